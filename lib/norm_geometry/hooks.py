"""Find a model's normalization sites and measure the vectors before and after each, without keeping any of them.

    with watch(model) as record:
        model(input_ids=tokens, attention_mask=mask)
    record["layers.0.input_layernorm"].before.mean      # mean angle to each direction, in degrees

A site is recognised by what its module does, not by what its class is called; `find_norms` says how.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import nn

from norm_geometry.statistics import AngleStatistics, SecondMoment, uniform_and_random

__all__ = ["Record", "Site", "SiteRecord", "find_norms", "watch"]


@dataclass(frozen=True)
class Site:
    """A normalization site of a model."""

    name: str  # the module's name within the model, as in model.get_submodule(name)
    kind: Literal["layer", "rms"]
    width: int  # length of the vectors it normalizes
    place: Literal["residual", "heads"]  # the residual stream, or vectors inside a sub-layer (queries, keys)


def find_norms(model: nn.Module) -> list[Site]:
    """List the normalization sites of `model`, in the order of its modules.

    Every module that has no submodules and no parameters but vectors is called, as a float32 copy on the CPU, on a few
    random vectors; their width comes from its parameters, its `normalized_shape` or the model's config. A norm that is
    no module of its own, such as a call of `torch.nn.functional.layer_norm`, cannot be seen. A module is a norm if its
    output has the shape of its input, does not change when each vector is multiplied by a positive number of its
    own, and is not constant. It is a LayerNorm if the output also does not change when a constant is added to all
    coordinates of a vector, else an RMSNorm. BatchNorm and softmax fail the first test, activations and dropout too.

    A site acts on heads if its vectors are narrower than the model's hidden vectors, or if it stands beside at least
    two projections that read hidden vectors, as the query and key norms of an attention layer do.
    """
    modules = dict(model.named_modules())
    hidden = _hidden_width(model)
    kinds = {}
    for name, module in modules.items():
        for width in _possible_widths(module, hidden):
            if kind := _kind(module, width):
                kinds[name] = (kind, width)
                break
    if hidden is None and kinds:
        hidden = Counter(width for _, width in kinds.values()).most_common(1)[0][0]
    return [
        Site(name, kind, width, _place(modules[name.rpartition(".")[0]], width, hidden))
        for name, (kind, width) in kinds.items()
    ]


@dataclass(frozen=True)
class SiteRecord:
    """What was measured at one site: every vector's angles and norm, and the second moments of a subsample."""

    before: AngleStatistics
    after: AngleStatistics
    second_moment_before: SecondMoment
    second_moment_after: SecondMoment


@dataclass
class Record(Mapping[str, SiteRecord]):
    """The statistics of every watched site that has seen a vector, by the site's name."""

    sites: list[Site]
    directions: Callable[[int], dict[str, np.ndarray]]
    second_moment_every: int
    _angles: dict[tuple[str, str], AngleStatistics] = field(default_factory=dict)
    _second_moments: dict[tuple[str, str], SecondMoment] = field(default_factory=dict)
    _seen: Counter = field(default_factory=Counter)
    _mask: torch.Tensor | None = None

    def __getitem__(self, name: str) -> SiteRecord:
        sides = [(name, "before"), (name, "after")]
        return SiteRecord(*(self._angles[side] for side in sides), *(self._second_moments[side] for side in sides))

    def __iter__(self) -> Iterator[str]:
        return (site.name for site in self.sites if (site.name, "after") in self._angles)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @torch.no_grad()
    def _add(self, side: tuple[str, str], vectors: torch.Tensor, directions: np.ndarray) -> None:
        vectors = self._without_padding(vectors.detach())
        # The subsample is chosen by place in the stream, so that it does not depend on how the stream is batched.
        first = -self._seen[side] % self.second_moment_every
        self._seen[side] += len(vectors)
        parts = (AngleStatistics.of(vectors, directions), SecondMoment.of(vectors[first :: self.second_moment_every]))
        for totals, part in zip((self._angles, self._second_moments), parts, strict=True):
            totals[side] = totals[side].merge(part) if side in totals else part

    def _without_padding(self, vectors: torch.Tensor) -> torch.Tensor:
        if self._mask is not None:
            # With a key-value cache the mask also covers earlier tokens; some models flatten batch and position.
            mask = self._mask[:, -vectors.shape[1] :] if vectors.ndim > 2 else self._mask.reshape(-1)
            if mask.shape == vectors.shape[: mask.ndim]:
                vectors = vectors[mask.to(vectors.device, torch.bool)]
        return vectors.reshape(-1, vectors.shape[-1])


@contextmanager
def watch(
    model: nn.Module,
    directions: Callable[[int], dict[str, np.ndarray]] = uniform_and_random,
    sites: list[Site] | None = None,
    second_moment_every: int = 64,
) -> Iterator[Record]:
    """Measure the vectors before and after each of `sites` (by default all norms) while the block runs.

    Each batch is reduced inside the hook; no activation is kept and the model's output does not change by a bit. The
    hooks are gone after the block, whatever happened in it. Where the model is called with a two-dimensional
    `attention_mask`, padded positions are left out.

    Args:
        directions: gives, for a width, the directions to measure angles to, by name.
        second_moment_every: every how many vectors one enters the second-moment matrices.

    Raises:
        ValueError: the model has no normalization sites.
    """
    sites = find_norms(model) if sites is None else sites
    if not sites:
        raise ValueError(f"{type(model).__name__} has no normalization layers: there is nothing to measure")
    record = Record(sites, directions, second_moment_every)
    matrices = {width: np.stack(list(directions(width).values())) for width in {site.width for site in sites}}

    signature = inspect.signature(model.forward)

    def remember_mask(module, args, kwargs):
        mask = signature.bind_partial(*args, **kwargs).arguments.get("attention_mask")
        padded = isinstance(mask, torch.Tensor) and mask.ndim == 2 and not mask.all()
        record._mask = mask if padded else None  # without padding there is nothing to copy out

    def add_before(site):
        return lambda module, args, kwargs: record._add(
            (site.name, "before"), args[0] if args else next(iter(kwargs.values())), matrices[site.width]
        )

    def add_after(site):
        return lambda module, args, output: record._add((site.name, "after"), output, matrices[site.width])

    with ExitStack() as hooks:
        hooks.callback(model.register_forward_pre_hook(remember_mask, with_kwargs=True).remove)
        for site in sites:
            module = model.get_submodule(site.name)
            hooks.callback(module.register_forward_pre_hook(add_before(site), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(add_after(site)).remove)
        yield record


def _hidden_width(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return getattr(config, "hidden_size", None)


def _possible_widths(module: nn.Module, hidden: int | None) -> list[int]:
    """The lengths of vectors that `module` could normalize: none if it cannot be a norm."""
    parameters = list(module.parameters())
    if any(module.children()) or any(p.ndim != 1 or not p.is_floating_point() for p in parameters):
        return []
    if parameters:
        return sorted({p.numel() for p in parameters})
    shape = getattr(module, "normalized_shape", None)  # norms without parameters keep their width here, if anywhere
    return [shape[-1]] if shape else [hidden] if hidden else []


def _kind(module: nn.Module, width: int) -> Literal["layer", "rms"] | None:
    generator = torch.Generator("cpu").manual_seed(0)
    # Far above any ε in use, so that the test sees the invariance; powers of two, so that scaling rounds nothing.
    x = 32.0 * torch.randn(4, width, generator=generator, device="cpu")
    scale = torch.tensor([[0.5], [2.0], [4.0], [8.0]], device="cpu")
    shift = torch.tensor([[32.0], [-16.0], [64.0], [8.0]], device="cpu")
    probe = _float_copy(module)
    try:
        with torch.no_grad():
            # The class's own forward: neither hooks nor what a wrapper has put in the instance's place.
            y, scaled, shifted = (type(probe).forward(probe, inputs) for inputs in (x, scale * x, x + shift))
        if y.shape != x.shape or not torch.isfinite(y).all():
            return None
    except Exception:  # not a map of vectors: whatever it wants, it is no norm
        return None
    tolerance = 1e-3 * (y - y.mean(dim=0)).abs().max()
    if tolerance == 0 or (scaled - y).abs().max() > tolerance:
        return None
    return "layer" if (shifted - y).abs().max() <= tolerance else "rms"


def _float_copy(module: nn.Module) -> nn.Module:
    """A copy that can be called without touching the model: on the CPU, in float32, in evaluation mode."""

    def fresh(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or not tensor.is_meta:
            return tensor if tensor is None else tensor.detach().to("cpu", torch.float32, copy=True)
        return torch.ones(tensor.shape, device="cpu")

    probe = copy(module)
    for kind in ("_parameters", "_buffers"):
        probe.__dict__[kind] = {name: fresh(tensor) for name, tensor in getattr(module, kind).items()}
    probe.training = False
    return probe


def _place(parent: nn.Module, width: int, hidden: int) -> Literal["residual", "heads"]:
    if width != hidden:
        return "heads"
    projections = [child for child in parent.children() if getattr(child, "in_features", None) == hidden]
    return "heads" if len(projections) >= 2 else "residual"
