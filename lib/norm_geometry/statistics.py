"""Frozen, mergeable statistics of the angles between vectors and fixed directions.

    part = AngleStatistics.of(vectors, directions)      # one batch
    whole = part.merge(other)                           # exact to rounding, in any order and split
    whole.mean, whole.std, whole.energy_ratio           # one entry for each direction

A few thousand numbers stand for any number of vectors, so a language model is measured without storing one hidden
vector. Means and variances are merged with the update of Chan, Golub and LeVeque (1983),
https://doi.org/10.1080/00031305.1983.10483115: the textbook formula E[θ²] − E[θ]² cancels where all angles lie close
to 90°, which is just where hidden vectors lie.
"""

from dataclasses import dataclass
from functools import cached_property
from math import lgamma

import numpy as np
from jaxtyping import Float, Int

from norm_geometry.arrays import Array, array_namespace, to_numpy

__all__ = [
    "AngleStatistics",
    "SecondMoment",
    "Summary",
    "chance_density",
    "random_directions",
    "uniform_and_random",
]

ANGLE_BINS = np.linspace(0.0, 180.0, 3601)  # degrees: bins of 0.05°
LOG_NORM_BINS = np.linspace(-128.0, 128.0, 8193)  # log2 ‖x‖, over the whole range of float32: bins of 2.2 %


def random_directions(count: int, width: int, seed: int) -> Float[np.ndarray, "count width"]:
    """Unit vectors drawn uniformly from the sphere in ℝ^width; the same seed gives the same vectors."""
    gaussian = np.random.default_rng(seed).standard_normal((count, width))
    return gaussian / np.linalg.norm(gaussian, axis=1, keepdims=True)


def uniform_and_random(width: int, seed: int = 0) -> dict[str, Float[np.ndarray, " width"]]:
    """After Gupta et al. (2024), section 3: the uniform vector and two random directions, all of length 1."""
    first, second = random_directions(2, width, seed)
    return {"uniform": np.full(width, width**-0.5), "random a": first, "random b": second}


def chance_density(degrees: Float[np.ndarray, "*n"], width: int) -> Float[np.ndarray, "*n"]:
    """Density, per degree, of the angle between a fixed vector and a random direction in ℝ^d (d = `width` ≥ 2).

        p(θ) = sin^(d−2) θ / B((d−1)/2, 1/2),

    which is the density ∝ (1 − t²)^((d−3)/2) of t = cos θ, written for the angle. Its mean is 90° and its standard
    deviation close to (180/π)/√d degrees.
    """
    log_beta = lgamma((width - 1) / 2) + lgamma(1 / 2) - lgamma(width / 2)
    with np.errstate(divide="ignore"):
        log_sine = np.log(np.sin(np.radians(degrees)))
    return np.radians(np.exp((width - 2) * log_sine - log_beta)) if width > 2 else np.full(np.shape(degrees), 1 / 180)


@dataclass(frozen=True)
class Summary:
    """Count, mean, spread, extremes and histogram of real samples, in `k` columns of `count` samples each."""

    count: int
    mean: Float[np.ndarray, " k"]
    squared_deviations: Float[np.ndarray, " k"]  # Σ (value − mean)²
    minimum: Float[np.ndarray, " k"]
    maximum: Float[np.ndarray, " k"]
    histogram: Int[np.ndarray, "k bins"]
    edges: Float[np.ndarray, " edges"]

    @classmethod
    def of(cls, values: Float[np.ndarray, "n k"], edges: Float[np.ndarray, " edges"]) -> "Summary":
        """Summarise `values`. The edges of the histogram are equidistant; its end bins take what lies beyond them."""
        count, k = values.shape
        bins = len(edges) - 1
        columns = np.ascontiguousarray(values.T)  # sums along contiguous memory are several times faster
        place = ((columns - edges[0]) * (bins / (edges[-1] - edges[0]))).astype(np.int64)
        place = np.clip(place, 0, bins - 1) + bins * np.arange(k)[:, None]
        mean = columns.mean(axis=1) if count else np.full(k, np.nan)
        return cls(
            count=count,
            mean=mean,
            squared_deviations=((columns - mean[:, None]) ** 2).sum(axis=1),
            minimum=columns.min(axis=1, initial=np.inf),
            maximum=columns.max(axis=1, initial=-np.inf),
            histogram=np.bincount(place.ravel(), minlength=k * bins).reshape(k, bins),
            edges=edges,
        )

    def merge(self, other: "Summary") -> "Summary":
        """The summary of both sets of samples together."""
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        count = self.count + other.count
        shift = other.mean - self.mean
        return Summary(
            count=count,
            mean=self.mean + shift * (other.count / count),
            squared_deviations=self.squared_deviations
            + other.squared_deviations
            + shift**2 * (self.count * (other.count / count)),
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
            histogram=self.histogram + other.histogram,
            edges=self.edges,
        )

    @property
    def std(self) -> Float[np.ndarray, " k"]:
        """Standard deviation with denominator `count`."""
        return np.sqrt(self.squared_deviations / self.count) if self.count else np.full(len(self.mean), np.nan)

    def quantile(self, q: float) -> Float[np.ndarray, " k"]:
        """The `q`-quantile, interpolated within its bin of the histogram: off by at most the width of a bin."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, got {q}")
        if self.count == 0:
            return np.full(len(self.mean), np.nan)
        target = max(q * self.count, 1)
        reached = np.cumsum(self.histogram, axis=1)
        bins = (reached < target).sum(axis=1)  # of each column the first bin in which the target is reached
        columns = np.arange(len(bins))
        inside = self.histogram[columns, bins]
        share = 1 - (reached[columns, bins] - target) / inside
        value = self.edges[bins] + share * (self.edges[bins + 1] - self.edges[bins])
        return np.clip(value, self.minimum, self.maximum)


@dataclass(frozen=True)
class AngleStatistics:
    """Angles in degrees between vectors in ℝ^d and `k` directions, with the vectors' norms.

    Zero vectors have no angle and non-finite ones no meaning: both are counted apart and enter nothing else.
    """

    width: int
    angles: Summary
    log_norms: Summary
    cos_squared: Float[np.ndarray, " k"]  # mean of cos²θ
    zero_count: int
    nonfinite_count: int

    @classmethod
    def of(cls, vectors: Float[Array, "*batch d"], directions: Float[Array, "k d"]) -> "AngleStatistics":
        """Measure `vectors` against `directions`, whose lengths do not matter.

        The inner products are formed where the vectors are and in their precision (half precision in float32); what
        leaves the device is k + 1 numbers a vector. An angle is then good to about 1e-5° in float32 near 90°, and to
        0.02° near 0° and 180°, where the arc cosine is steep.

        Raises:
            ValueError: a direction has another length than the vectors, or is zero or not finite.
        """
        width = vectors.shape[-1]
        units = _unit_rows(to_numpy(directions).astype(np.float64))
        if units.shape[1] != width:
            raise ValueError(f"the directions have length {units.shape[1]}, the vectors {width}")
        inner, norms = _inner_products_and_norms(vectors.reshape(-1, width), units)
        finite = np.isfinite(norms)
        measured = finite & (norms > 0)
        norms = norms[measured]
        cosines = np.clip(inner[measured] / norms[:, None], -1.0, 1.0)
        return cls(
            width=width,
            angles=Summary.of(np.degrees(np.arccos(cosines)), ANGLE_BINS),
            log_norms=Summary.of(np.log2(norms)[:, None], LOG_NORM_BINS),
            cos_squared=(cosines**2).mean(axis=0) if len(norms) else np.zeros(len(units)),
            zero_count=int((finite & ~measured).sum()),
            nonfinite_count=int((~finite).sum()),
        )

    def merge(self, other: "AngleStatistics") -> "AngleStatistics":
        """The statistics of both sets of vectors together; both must have been measured against the same directions."""
        if (self.width, len(self.cos_squared)) != (other.width, len(other.cos_squared)):
            raise ValueError(
                f"cannot merge statistics of {len(self.cos_squared)} directions in dimension {self.width} "
                f"with {len(other.cos_squared)} directions in dimension {other.width}"
            )
        share = other.count / max(self.count + other.count, 1)
        return AngleStatistics(
            width=self.width,
            angles=self.angles.merge(other.angles),
            log_norms=self.log_norms.merge(other.log_norms),
            cos_squared=self.cos_squared + (other.cos_squared - self.cos_squared) * share,
            zero_count=self.zero_count + other.zero_count,
            nonfinite_count=self.nonfinite_count + other.nonfinite_count,
        )

    @property
    def count(self) -> int:
        """Number of vectors measured: neither zero nor non-finite."""
        return self.angles.count

    @property
    def mean(self) -> Float[np.ndarray, " k"]:
        """Mean angle in degrees."""
        return self.angles.mean

    @property
    def std(self) -> Float[np.ndarray, " k"]:
        """Standard deviation of the angle in degrees."""
        return self.angles.std

    @property
    def minimum(self) -> Float[np.ndarray, " k"]:
        """Smallest angle in degrees."""
        return self.angles.minimum

    @property
    def maximum(self) -> Float[np.ndarray, " k"]:
        """Largest angle in degrees."""
        return self.angles.maximum

    def quantile(self, q: float) -> Float[np.ndarray, " k"]:
        """The `q`-quantile of the angle in degrees, good to 0.05°."""
        return self.angles.quantile(q)

    @property
    def energy_ratio(self) -> Float[np.ndarray, " k"]:
        """R = d · E[cos²θ]: the share of squared norm along each direction, relative to 1/d, the share of chance.

        Averaged over all directions R is exactly 1, whatever the vectors are.
        """
        return self.width * self.cos_squared if self.count else np.full(len(self.cos_squared), np.nan)

    def norm_quantile(self, q: float) -> float:
        """The `q`-quantile of the vectors' norms, good to 2.2 %."""
        return float(2.0 ** self.log_norms.quantile(q)[0])


@dataclass(frozen=True)
class SecondMoment:
    """The second-moment matrix of directions, C = E[x xᵀ/‖x‖²]: the energy ratio of *every* direction v at once,

        R(v) = d · v̂ᵀ C v̂.

    Zero and non-finite vectors are left out.
    """

    count: int
    total: Float[np.ndarray, "d d"]  # count · C

    @classmethod
    def of(cls, vectors: Float[Array, "*batch d"]) -> "SecondMoment":
        """Sum x xᵀ/‖x‖² over `vectors`, where they are and in their precision (half precision in float32)."""
        xp = array_namespace(vectors)
        x = _at_least_float32(vectors.reshape(-1, vectors.shape[-1]))
        norms = xp.linalg.vector_norm(x, axis=-1, keepdims=True)
        kept = (xp.isfinite(norms) & (norms > 0))[:, 0]
        units = x[kept] / norms[kept]
        return cls(count=int(units.shape[0]), total=to_numpy(units.T @ units))

    def merge(self, other: "SecondMoment") -> "SecondMoment":
        """The matrix of both sets of vectors together."""
        return SecondMoment(self.count + other.count, self.total + other.total)

    @cached_property
    def matrix(self) -> Float[np.ndarray, "d d"]:
        """C, symmetric and positive semidefinite, of trace 1."""
        return self.total.astype(np.float64) / self.count if self.count else np.full(self.total.shape, np.nan)

    def energy_ratio(self, directions: Float[np.ndarray, "k d"]) -> Float[np.ndarray, " k"]:
        """R(v) = d · v̂ᵀ C v̂ for each row v."""
        units = _unit_rows(directions)
        return units.shape[1] * ((units @ self.matrix) * units).sum(axis=1)


def _unit_rows(directions: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k d"]:
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError("a direction must be a finite, non-zero vector")
    return directions / norms


def _at_least_float32(x: Array) -> Array:
    xp = array_namespace(x)
    return xp.astype(x, xp.float32) if x.dtype.itemsize == 2 else x


def _inner_products_and_norms(
    x: Float[Array, "n d"], units: Float[np.ndarray, "k d"]
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, " n"]]:
    xp = array_namespace(x)
    x = _at_least_float32(x)
    on_device = xp.asarray(units, dtype=x.dtype, device=x.device)
    with np.errstate(over="ignore", invalid="ignore"):
        inner = to_numpy(x @ on_device.T).astype(np.float64)
        norms = to_numpy(xp.linalg.vector_norm(x, axis=-1)).astype(np.float64)

    # Squares of coordinates beyond about 1e19 leave float32's range, and tiny ones drown: these rows, if there are
    # any, are measured again in float64, in units of their largest coordinate.
    limits = np.finfo(to_numpy(x[:0]).dtype)
    again = ~np.isfinite(norms) | (norms < limits.tiny**0.5 / limits.eps)
    if again.any():
        rows = to_numpy(x[xp.asarray(again, device=x.device)]).astype(np.float64)
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
        with np.errstate(invalid="ignore"):
            rows = rows / np.where(largest > 0, largest, 1.0)
            inner[again] = (rows @ units.T) * largest
            norms[again] = np.linalg.norm(rows, axis=1) * largest[:, 0]
    return inner, norms
