"""Frozen, mergeable summaries of real samples, and how such statistics are stored.

Means and variances are merged with the update of Chan, Golub and LeVeque (1983),
https://doi.org/10.1080/00031305.1983.10483115: the textbook formula E[θ²] − E[θ]² cancels where all angles lie close
to 90°, which is just where hidden vectors lie.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from norm_geometry.arrays import Array, array_namespace, histogram, to_numpy

__all__ = ["Summary", "arrays_of", "with_arrays"]

UNCHANGING = ("width", "edges")  # fields of the statistics below that no vector changes


@dataclass(frozen=True)
class Summary:
    """Count, mean, spread, extremes and histogram of real samples, in `k` columns of `count` samples each.

    Leading axes `*s`, where there are any, stand for sets of samples that are summarised side by side.
    """

    count: Int[np.ndarray, "*s"]
    mean: Float[np.ndarray, "*s k"]  # 0 of no samples
    squared_deviations: Float[np.ndarray, "*s k"]  # Σ (value − mean)²
    minimum: Float[np.ndarray, "*s k"]
    maximum: Float[np.ndarray, "*s k"]
    histogram: Int[np.ndarray, "*s k bins"]
    edges: Float[np.ndarray, " edges"]

    @classmethod
    def of(
        cls, values: Float[Array, "*s k n"], counted: Bool[Array, "*s n"], edges: Float[np.ndarray, " edges"]
    ) -> "Summary":
        """Summarise those of `values` that are `counted`, where they are: what leaves the device is the summary.

        The edges of the histogram are equidistant; its end bins take what lies beyond them.
        """
        xp, bins = array_namespace(values), len(edges) - 1
        if values.shape[-1] == 0:  # extrema need something to be taken over: a value that is not counted
            values, counted = (xp.zeros((*a.shape[:-1], 1), dtype=a.dtype, device=a.device) for a in (values, counted))
        count = xp.sum(xp.astype(counted, xp.int64), axis=-1)
        counted = xp.broadcast_to(counted[..., None, :], values.shape)
        mean = xp.sum(xp.where(counted, values, 0.0), axis=-1) / xp.where(count > 0, count, 1)[..., None]
        squared_deviations = xp.sum(xp.where(counted, values - mean[..., None], 0.0) ** 2, axis=-1)
        scaled = (xp.where(counted, values, edges[0]) - edges[0]) * (bins / (edges[-1] - edges[0]))
        return cls(
            count=to_numpy(count),
            mean=to_numpy(mean).astype(np.float64),
            squared_deviations=to_numpy(squared_deviations).astype(np.float64),
            minimum=to_numpy(xp.min(xp.where(counted, values, np.inf), axis=-1)).astype(np.float64),
            maximum=to_numpy(xp.max(xp.where(counted, values, -np.inf), axis=-1)).astype(np.float64),
            histogram=to_numpy(histogram(xp.clip(xp.astype(scaled, xp.int64), 0, bins - 1), counted, bins)),
            edges=edges,
        )

    def __getitem__(self, i: int) -> "Summary":
        """The `i`-th of the sets along the first leading axis."""
        parts = (self.count, self.mean, self.squared_deviations, self.minimum, self.maximum, self.histogram)
        return Summary(*(np.asarray(part[i]) for part in parts), self.edges)

    def merge(self, other: "Summary") -> "Summary":
        """The summary of both sets of samples together."""
        count = self.count + other.count
        share = (other.count / np.maximum(count, 1))[..., None]
        shift = other.mean - self.mean
        return Summary(
            count=np.asarray(count),
            mean=self.mean + shift * share,
            squared_deviations=self.squared_deviations
            + other.squared_deviations
            + shift**2 * (self.count[..., None] * share),
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
            histogram=self.histogram + other.histogram,
            edges=self.edges,
        )

    @property
    def std(self) -> Float[np.ndarray, "*s k"]:
        """Standard deviation with denominator `count`; NaN of no samples."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(self.squared_deviations / self.count[..., None])

    def quantile(self, q: float) -> Float[np.ndarray, " k"]:
        """The `q`-quantile, interpolated within its bin of the histogram: off by at most the width of a bin."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, got {q}")
        if self.count == 0:
            return np.full(len(self.mean), np.nan)
        target = max(q * int(self.count), 1)
        reached = np.cumsum(self.histogram, axis=1)
        bins = (reached < target).sum(axis=1)  # of each column the first bin in which the target is reached
        columns = np.arange(len(bins))
        inside = self.histogram[columns, bins]
        share = 1 - (reached[columns, bins] - target) / inside
        value = self.edges[bins] + share * (self.edges[bins + 1] - self.edges[bins])
        return np.clip(value, self.minimum, self.maximum)


def arrays_of(statistics: Any) -> dict[str, np.ndarray]:
    """The arrays that change as vectors come in, by name: what must be stored of any of the statistics above."""
    arrays = {}
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if is_dataclass(value):
            arrays |= {f"{field.name}.{name}": array for name, array in arrays_of(value).items()}
        elif field.name not in UNCHANGING:
            arrays[field.name] = value
    return arrays


def with_arrays(statistics: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The statistics that have `arrays`, by the names of `arrays_of`, in the place of their own."""
    changed = {}
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if is_dataclass(value):
            inner = {name.partition(".")[2]: a for name, a in arrays.items() if name.startswith(f"{field.name}.")}
            changed[field.name] = with_arrays(value, inner)
        elif field.name not in UNCHANGING:
            changed[field.name] = arrays[field.name]
    return replace(statistics, **changed)
