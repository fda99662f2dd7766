"""Measure the vectors before and after each normalization site of a model, without keeping any of them.

with watch(model) as record:
    model(input_ids=tokens, attention_mask=mask)
record["layers.0.input_layernorm"].before.mean      # mean angle to each direction, in degrees
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import nn

from norm_geometry.arrays import Array, lengths
from norm_geometry.sites import Site, find_norms
from norm_geometry.statistics import (
    AngleStatistics,
    EnergyRatios,
    at_least_float32,
    random_directions,
    uniform_and_random,
    unit_rows,
)
from norm_geometry.summaries import arrays_of, with_arrays

__all__ = ["CONTROLS", "Record", "Site", "SiteRecord", "find_norms", "watch"]

CONTROLS = 2048  # random directions, for comparison
SIDES_AT_ONCE = 32  # sides of sites that are reduced together: enough to fill a device, few enough for a CPU's cache
ROOM = 2**26  # bytes that are set aside at once; those that are not used cost nothing


@dataclass(frozen=True)
class SiteRecord:
    """What was measured at one site.

    `before` and `after` hold the angles and norms of every vector. `sampled_before` and `sampled_after` hold the energy
    ratios, over a subsample of the vectors, of the record's own directions and after them of `CONTROLS` random ones.
    """

    before: AngleStatistics
    after: AngleStatistics
    sampled_before: EnergyRatios
    sampled_after: EnergyRatios


class _Batch(NamedTuple):
    """One call of the watched model: which of its tokens count, by their places in the flattened batch."""

    shape: torch.Size  # (sequences, length)
    counted: Int[torch.Tensor, " n"] | None  # None: all
    sampled: Int[torch.Tensor, " m"]
    tokens: int


class _Passed(NamedTuple):
    """What is kept, until the model is done with the batch, of the vectors that passed one side of a site."""

    side: tuple[str, str]
    width: int
    inner: Float[Array, "n k"]
    norms: Float[Array, " n"]
    sampled: Float[Array, "m d"]


class _Room:
    """Memory for the small arrays that stay until the model is done with a batch.

    Left to the allocator of a CPU they, even the mere tensor objects, settle in the holes that each layer's large
    arrays leave, which then are too small for those of the next layer, and the process grows by those at every site.
    """

    def __init__(self):
        self._blocks: list[np.ndarray] = []
        self.clear()

    def clear(self) -> None:
        """Give all of it up for what comes next."""
        self._full, self._used = 0, 0

    def keep(self, array: torch.Tensor) -> Array:
        """A numpy copy of `array`, good until the room is cleared; on a GPU, where there is no such trouble, itself."""
        if array.device.type != "cpu":
            return array
        size = -(-array.nbytes // 64) * 64
        while self._full < len(self._blocks) and self._used + size > len(self._blocks[self._full]):
            self._full, self._used = self._full + 1, 0
        if self._full == len(self._blocks):
            self._blocks.append(np.empty(max(size, ROOM), dtype=np.uint8))
        array = array.numpy()
        place = self._blocks[self._full][self._used : self._used + array.nbytes].view(array.dtype)
        self._used += size
        np.copyto(place.reshape(array.shape), array)
        return place.reshape(array.shape)


class Record(Mapping[str, SiteRecord]):
    """The statistics of every watched site that has seen a vector, by the site's name."""

    def __init__(
        self,
        sites: list[Site],
        directions: Callable[[int], dict[str, np.ndarray]] = uniform_and_random,
        *,
        sample_every: int = 256,
        skip: int = 0,
        seed: int = 0,
    ):
        self.sites, self.sample_every, self.skip = sites, sample_every, skip
        self.position = 0  # in the stream of counted tokens, of the next one: it decides which are sampled
        self.directions = {width: directions(width) for width in sorted({site.width for site in sites})}
        if len({len(named) for named in self.directions.values()}) > 1:
            raise ValueError("`directions` must give equally many for every width")
        self._own = len(next(iter(self.directions.values())))
        self._units = {
            width: np.concatenate(
                [unit_rows(np.stack(list(named.values()))), random_directions(CONTROLS, width, seed + 1)]
            )
            for width, named in self.directions.items()
        }
        self._units_on: dict[tuple, torch.Tensor] = {}
        nothing = {width: self._nothing(width) for width in self.directions}
        self._totals = {(site.name, side): nothing[site.width] for site in sites for side in ("before", "after")}
        self._passed: list[_Passed] = []
        self._room = _Room()
        self._batch: _Batch | None = None
        self._strays: Counter = Counter()
        self._order: dict[str, int] = {}  # in which the model calls the sites

    def __getitem__(self, name: str) -> SiteRecord:
        self._reduce()
        (before, sampled_before), (after, sampled_after) = (self._totals[name, side] for side in ("before", "after"))
        return SiteRecord(before, after, sampled_before, sampled_after)

    def __iter__(self) -> Iterator[str]:
        """The sites that have seen a vector, in the order in which the model calls them."""
        return iter(sorted(self._order, key=self._order.get))

    def __len__(self) -> int:
        return len(self._order)

    def state(self) -> dict[str, np.ndarray]:
        """All that has been measured, as arrays whose first axis is that of the sites' sides; for `merge`."""
        self._reduce()
        rows = [arrays_of(angles) | arrays_of(energies) for angles, energies in self._totals.values()]
        order = np.asarray([self._order.get(site.name, -1) for site in self.sites])
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"order": order}

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Take in the `state` of a record of the same sites and directions; a fresh record becomes that record."""
        state = dict(state)
        order = {site.name: int(place) for site, place in zip(self.sites, state.pop("order"), strict=True)}
        self._order = {name: place for name, place in order.items() if place >= 0} | self._order
        for i, (side, totals) in enumerate(self._totals.items()):
            row = {name: np.asarray(array[i]) for name, array in state.items()}
            self._totals[side] = tuple(mine.merge(with_arrays(mine, row)) for mine in totals)

    def _begin(self, ids: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        self._passed.clear()  # of a batch that the model did not finish, if there was one: nothing of that counts
        self._room.clear()
        tokens = mask if ids is None else ids
        if tokens is None:
            tokens = torch.ones(0, 0)  # no site sees as many: all vectors count
        counted = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        if mask is not None:
            counted &= mask[:, -counted.shape[1] :].bool()  # with a key-value cache the mask covers earlier tokens too
        counted[:, : self.skip] = False
        places = counted.reshape(-1).nonzero()[:, 0]
        sampled = places[_in_sample(self.position, len(places), self.sample_every).to(places.device)]
        everything = len(places) == counted.numel()
        self._batch = _Batch(counted.shape, None if everything else places, sampled, len(places))

    def _end(self) -> None:
        self.position += self._batch.tokens
        self._batch = None
        self._reduce()

    @torch.no_grad()
    def _add(self, site: Site, side: str, x: torch.Tensor) -> None:
        x = at_least_float32(x.detach())
        if x.shape[-1] != site.width:
            raise ValueError(
                f"{site.name} got vectors of length {x.shape[-1]}, not {site.width}: leave it out of `sites`"
            )
        self._order.setdefault(site.name, len(self._order))
        batch = self._batch
        if batch and x.ndim == 4 and x.shape[1] != batch.shape[1] == x.shape[2]:
            x = x.transpose(1, 2)  # queries and keys whose heads come before the tokens
        if batch and x.shape[:2] == batch.shape:
            x = x.flatten(0, 1)
        if batch and x.shape[0] == batch.shape.numel():  # some models flatten sequences and tokens themselves
            counted, sampled = batch.counted, batch.sampled
        else:
            x = x.reshape(-1, site.width)
            counted, sampled = None, _in_sample(self._strays[site.name, side], len(x), self.sample_every)
            self._strays[site.name, side] += len(x)
        # Written so, the product reads both factors along memory, which is several times faster on a CPU.
        inner, norms = nn.functional.linear(x, self._all_units(site.width, x)[: self._own]), lengths(x)
        if counted is not None:
            inner, norms = inner[counted.to(x.device)], norms[counted.to(x.device)]
        sampled = x[sampled.to(x.device)]
        kept = inner.reshape(-1, self._own), norms.reshape(-1), sampled.reshape(-1, site.width)
        self._passed.append(_Passed((site.name, side), site.width, *map(self._room.keep, kept)))
        if batch is None:  # a part of the model was called by itself, and may be without end
            self._reduce()

    @torch.no_grad()
    def _reduce(self) -> None:
        """Merge what has passed into the totals, the sides of equal shapes together; not in the middle of a batch."""
        if self._batch is not None:
            return
        shapes: dict[tuple, list[_Passed]] = {}
        for passed in self._passed:
            inner = passed.inner
            alike = (passed.width, inner.device, inner.dtype, inner.shape, passed.sampled.shape)
            shapes.setdefault(alike, []).append(passed)
        self._passed.clear()
        for (width, *_), all_alike in shapes.items():
            for start in range(0, len(all_alike), SIDES_AT_ONCE):
                sides, _, inner, norms, sampled = zip(*all_alike[start : start + SIDES_AT_ONCE], strict=True)
                inner, norms, sampled = (torch.stack([*map(torch.as_tensor, part)]) for part in (inner, norms, sampled))
                angles = AngleStatistics.of_inner_products(inner.mT.contiguous(), norms, width)
                energies = EnergyRatios.of(sampled, self._all_units(width, sampled))
                for i, side in enumerate(sides):
                    measured, ratios = self._totals[side]
                    self._totals[side] = measured.merge(angles[i]), ratios.merge(energies[i])
        self._room.clear()

    def _nothing(self, width: int) -> tuple[AngleStatistics, EnergyRatios]:
        vectors, units = np.zeros((0, width)), self._units[width]
        return AngleStatistics.of(vectors, units[: self._own]), EnergyRatios.of(vectors, units)

    def _all_units(self, width: int, like: torch.Tensor) -> Float[torch.Tensor, "k d"]:
        """The record's own directions and then the random ones, of length 1, where and of the type that `like` is."""
        place = (width, like.device, like.dtype)
        if place not in self._units_on:
            self._units_on[place] = torch.from_numpy(self._units[width]).to(like.dtype).to(like.device)
        return self._units_on[place]


@contextmanager
def watch(
    model: nn.Module,
    directions: Callable[[int], dict[str, np.ndarray]] = uniform_and_random,
    sites: list[Site] | None = None,
    *,
    sample_every: int = 256,
    skip: int = 0,
    seed: int = 0,
) -> Iterator[Record]:
    """Measure the vectors before and after each of `sites` (by default all norms) while the block runs.

    Of each vector its norm and its inner products with the directions are kept, of one in `sample_every` the vector
    itself, and these only until the model is done with the batch; then they are reduced where they are. The model's
    output does not change by a bit. The hooks are gone after the block, whatever happened in it. Where the model is
    called with a two-dimensional `attention_mask`, padded positions are left out; a batch that fails counts nowhere.

    Args:
        directions: gives, for a width, the directions to measure angles to, by name.
        sample_every: of how many tokens one has its energy ratios to random directions taken.
        skip: how many tokens at the start of each sequence are left out.
        seed: of the random directions among which `measure.tabulate` ranks those of `directions`.

    Raises:
        ValueError: the model has no normalization sites.
    """
    sites = find_norms(model) if sites is None else sites
    if not sites:
        raise ValueError(f"{type(model).__name__} has no normalization layers: there is nothing to measure")
    record = Record(sites, directions, sample_every=sample_every, skip=skip, seed=seed)
    signature = inspect.signature(model.forward)

    def begin(module, args, kwargs):
        arguments = signature.bind_partial(*args, **kwargs).arguments
        if any(name.startswith("decoder_") for name in arguments):
            arguments = {}  # the mask is the encoder's: it says nothing of the decoder's tokens
        record._begin(*(_as_tokens(arguments.get(name)) for name in ("input_ids", "attention_mask")))

    def add_before(site):
        return lambda module, args, kwargs: record._add(
            site, "before", args[0] if args else next(iter(kwargs.values()))
        )

    def add_after(site):
        return lambda module, args, output: record._add(site, "after", output)

    with ExitStack() as hooks:
        hooks.callback(model.register_forward_pre_hook(begin, with_kwargs=True).remove)
        hooks.callback(model.register_forward_hook(lambda *_: record._end()).remove)
        for site in sites:
            module = model.get_submodule(site.name)
            hooks.callback(module.register_forward_pre_hook(add_before(site), with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(add_after(site)).remove)
        yield record


def _in_sample(start: int, count: int, every: int) -> Bool[torch.Tensor, " count"]:
    """Of `count` vectors from place `start` of a stream on, which belong to a sample of one in `every`.

    It depends on nothing but the place, so not on how the stream is divided. Multiples of the golden ratio spread
    evenly: the sample favours no place within sequences of any length, as every n-th vector would.
    """
    places = torch.arange(start, start + count)
    return places * 2654435769 % 2**32 < 2**32 / every  # 2³² divided by the golden ratio


def _as_tokens(argument: Any) -> torch.Tensor | None:
    """The argument if it has one entry for each token of each sequence."""
    return argument if isinstance(argument, torch.Tensor) and argument.ndim == 2 else None
