"""Find a model's normalization sites: by what each module does, not by what its class is called."""

from collections import Counter
from copy import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

__all__ = ["Site", "find_norms"]


@dataclass(frozen=True)
class Site:
    """A normalization site of a model."""

    name: str  # the module's name within the model, as in model.get_submodule(name)
    kind: Literal["layer", "rms"]
    width: int  # length of the vectors it normalizes
    # Vectors as wide as the residual stream (which need not be the stream: Gemma 2 also normalizes what a sub-layer
    # returns), or others inside a sub-layer, such as queries and keys.
    place: Literal["residual", "heads"]


def find_norms(model: nn.Module) -> list[Site]:
    """List the normalization sites of `model`, in the order of its modules.

    Every module that has no submodules and whose parameters are vectors, or matrices with a vector for each head, is
    called, as a float32 copy on the CPU, on a few random vectors; their width comes from its parameters, its
    `normalized_shape`, the `head_dim` of the module it is in, or the model's config. A norm that is no module of its
    own, such as a call of `torch.nn.functional.layer_norm`, or that cannot do without a second argument, such as a
    gate, cannot be seen. A module is a norm if its output has the shape of its input, does not change when each vector
    is multiplied by a positive number of its own, and is not constant. It is a LayerNorm if the output also does not
    change when a constant is added to all coordinates of a vector, else an RMSNorm. BatchNorm, GroupNorm and softmax
    fail the first test, activations and dropout too.

    A site acts on heads if its vectors are not as wide as the model's hidden vectors, or if it stands beside at least
    two projections that read hidden vectors, as the query and key norms of an attention layer do.
    """
    modules = dict(model.named_modules())
    hidden = _hidden_width(model)
    kinds = {}
    for name, module in modules.items():
        parent = modules[name.rpartition(".")[0]]
        for shape in _possible_shapes(module, getattr(parent, "head_dim", hidden)):
            if kind := _kind(module, shape):
                kinds[name] = (kind, shape[-1])
                break
    if hidden is None and kinds:
        hidden = Counter(width for _, width in kinds.values()).most_common(1)[0][0]
    return [
        Site(name, kind, width, _place(modules[name.rpartition(".")[0]], width, hidden))
        for name, (kind, width) in kinds.items()
    ]


def _hidden_width(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return getattr(config, "hidden_size", None)


def _possible_shapes(module: nn.Module, unsaid: int | None) -> list[tuple[int, ...]]:
    """The shapes of a token's vectors that `module` could normalize: (width,), or (heads, width) where each head has
    gains of its own. There is none if it cannot be a norm; the width is `unsaid` if the module does not tell it.
    """
    parameters = list(module.parameters())
    if any(module.children()) or not all(p.is_floating_point() and _could_be_gains(p) for p in parameters):
        return []
    gains = sorted({tuple(p.shape) for p in parameters if p.numel() > 1})  # a single gain tells no width
    shape = getattr(module, "normalized_shape", unsaid and (unsaid,))
    return gains or ([tuple(shape)] if shape else [])


def _could_be_gains(parameter: torch.Tensor) -> bool:
    """Matrices of gains have a row for each head; nearly all others are larger, and would be slow to try."""
    return parameter.ndim < 2 or (parameter.ndim == 2 and max(parameter.shape) <= 256)


def _kind(module: nn.Module, shape: tuple[int, ...]) -> Literal["layer", "rms"] | None:
    generator = torch.Generator("cpu").manual_seed(0)
    # Two sequences of two tokens, so that norms over another axis fail. Far above any ε in use, so that the test sees
    # the invariance; powers of two, so that scaling rounds nothing.
    x = 32.0 * torch.randn(2, 2, *shape, generator=generator, device="cpu")
    each = torch.arange(x[..., 0].numel(), device="cpu").reshape(*x.shape[:-1], 1)
    scale = 2.0 ** (each % 4 + 1)
    probe = _float_copy(module)
    try:
        with torch.no_grad():
            # The class's own forward: neither hooks nor what a wrapper has put in the instance's place.
            y, scaled, shifted = (type(probe).forward(probe, inputs) for inputs in (x, scale * x, x + 8 * scale))
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
