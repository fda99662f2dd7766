"""Frozen, mergeable statistics of the angles between vectors and fixed directions.

    part = AngleStatistics.of(vectors, directions)      # one batch
    whole = part.merge(other)                           # exact to rounding, in any order and split
    whole.mean, whole.std, whole.energy_ratio           # one entry for each direction

A few thousand numbers stand for any number of vectors, so a language model is measured without storing one hidden
vector.
"""

from dataclasses import dataclass
from math import lgamma

import numpy as np
from jaxtyping import Float, Int

from norm_geometry.arrays import Array, array_namespace, lengths, to_numpy, upcast
from norm_geometry.summaries import Summary

__all__ = [
    "AngleStatistics",
    "EnergyRatios",
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
class AngleStatistics:
    """Angles in degrees between vectors in ℝ^d and `k` directions, with the vectors' norms.

    Zero vectors have no angle and non-finite ones no meaning: both are counted apart and enter nothing else. Leading
    axes `*s`, where there are any, stand for sets of vectors that are measured side by side.
    """

    width: int
    angles: Summary
    log_norms: Summary
    cos_squared: Float[np.ndarray, "*s k"]  # mean of cos²θ, 0 of no vectors
    zero_count: Int[np.ndarray, "*s"]
    nonfinite_count: Int[np.ndarray, "*s"]

    @classmethod
    def of(cls, vectors: Float[Array, "*batch d"], directions: Float[Array, "k d"]) -> "AngleStatistics":
        """Measure `vectors` against `directions`, whose lengths do not matter.

        The inner products are formed where the vectors are and in their precision (half precision in float32). An
        angle is then good to about 1e-5° in float32 near 90°, and to 0.02° near 0° and 180°, where the arc cosine is
        steep.

        Raises:
            ValueError: a direction has another length than the vectors, or is zero or not finite.
        """
        width = vectors.shape[-1]
        units = unit_rows(to_numpy(directions).astype(np.float64))
        if units.shape[1] != width:
            raise ValueError(f"the directions have length {units.shape[1]}, the vectors {width}")
        x = at_least_float32(vectors.reshape(-1, width))
        xp = array_namespace(x)
        with np.errstate(over="ignore", invalid="ignore"):
            inner = x @ xp.asarray(units, dtype=x.dtype, device=x.device).T
        return cls.of_inner_products(inner.T[None], lengths(x)[None], width)[0]

    @classmethod
    def of_inner_products(
        cls, inner: Float[Array, "*s k n"], norms: Float[Array, "*s n"], width: int
    ) -> "AngleStatistics":
        """Measure vectors in ℝ^width of which only the inner products with unit directions, and the norms, are known.

        The work is done where the arrays are, in float64 where there is such a thing; sums are merged in float64.
        """
        xp = array_namespace(inner)
        inner, norms = upcast(inner), upcast(norms)
        finite = xp.isfinite(norms)
        measured = finite & (norms > 0)
        count = xp.sum(xp.astype(measured, xp.int64), axis=-1)
        cosines = xp.clip(inner / xp.where(measured, norms, 1.0)[..., None, :], -1.0, 1.0)
        squares = xp.sum(xp.where(measured[..., None, :], cosines, 0.0) ** 2, axis=-1)
        return cls(
            width=width,
            angles=Summary.of(xp.acos(cosines) * (180 / np.pi), measured, ANGLE_BINS),
            log_norms=Summary.of(xp.log2(xp.where(measured, norms, 1.0))[..., None, :], measured, LOG_NORM_BINS),
            cos_squared=to_numpy(squares / xp.where(count > 0, count, 1)[..., None]).astype(np.float64),
            zero_count=to_numpy(xp.sum(xp.astype(norms == 0, xp.int64), axis=-1)),
            nonfinite_count=to_numpy(xp.sum(xp.astype(~finite, xp.int64), axis=-1)),
        )

    def __getitem__(self, i: int) -> "AngleStatistics":
        """The `i`-th of the sets along the first leading axis."""
        counts = (np.asarray(part[i]) for part in (self.cos_squared, self.zero_count, self.nonfinite_count))
        return AngleStatistics(self.width, self.angles[i], self.log_norms[i], *counts)

    def merge(self, other: "AngleStatistics") -> "AngleStatistics":
        """The statistics of both sets of vectors together; both must have been measured against the same directions."""
        if (self.width, self.cos_squared.shape) != (other.width, other.cos_squared.shape):
            raise ValueError(
                f"cannot merge statistics of {self.cos_squared.shape[-1]} directions in dimension {self.width} "
                f"with {other.cos_squared.shape[-1]} directions in dimension {other.width}"
            )
        share = other.angles.count / np.maximum(self.angles.count + other.angles.count, 1)
        return AngleStatistics(
            width=self.width,
            angles=self.angles.merge(other.angles),
            log_norms=self.log_norms.merge(other.log_norms),
            cos_squared=self.cos_squared + (other.cos_squared - self.cos_squared) * share[..., None],
            zero_count=np.asarray(self.zero_count + other.zero_count),
            nonfinite_count=np.asarray(self.nonfinite_count + other.nonfinite_count),
        )

    @property
    def count(self) -> Int[np.ndarray, "*s"]:
        """Number of vectors measured: neither zero nor non-finite."""
        return self.angles.count

    @property
    def mean(self) -> Float[np.ndarray, "*s k"]:
        """Mean angle in degrees; NaN of no vectors."""
        return np.where(self.count[..., None] > 0, self.angles.mean, np.nan)

    @property
    def std(self) -> Float[np.ndarray, "*s k"]:
        """Standard deviation of the angle in degrees."""
        return self.angles.std

    @property
    def minimum(self) -> Float[np.ndarray, "*s k"]:
        """Smallest angle in degrees."""
        return self.angles.minimum

    @property
    def maximum(self) -> Float[np.ndarray, "*s k"]:
        """Largest angle in degrees."""
        return self.angles.maximum

    def quantile(self, q: float) -> Float[np.ndarray, " k"]:
        """The `q`-quantile of the angle in degrees, good to 0.05°."""
        return self.angles.quantile(q)

    @property
    def energy_ratio(self) -> Float[np.ndarray, "*s k"]:
        """R = d · E[cos²θ]: the share of squared norm along each direction, relative to 1/d, the share of chance.

        Averaged over all directions R is exactly 1, whatever the vectors are.
        """
        return np.where(self.count[..., None] > 0, self.width * self.cos_squared, np.nan)

    def norm_quantile(self, q: float) -> float:
        """The `q`-quantile of the vectors' norms, good to 2.2 %."""
        return float(2.0 ** self.log_norms.quantile(q)[0])


@dataclass(frozen=True)
class EnergyRatios:
    """R(v) = d · E[cos²θ] alone, for so many directions v that angles and histograms of each would be too much."""

    width: int
    count: Int[np.ndarray, "*s"]
    total: Float[np.ndarray, "*s k"]  # Σ cos²θ

    @classmethod
    def of(cls, vectors: Float[Array, "*s n d"], units: Float[Array, "k d"]) -> "EnergyRatios":
        """Measure `vectors` against `units` of length 1. Zero and non-finite vectors are left out."""
        x = at_least_float32(vectors)
        xp = array_namespace(x)
        norms = lengths(x)
        measured = xp.isfinite(norms) & (norms > 0)
        units = xp.asarray(units, dtype=x.dtype, device=x.device)
        x = xp.where(measured[..., None], x, 0.0) / xp.astype(xp.where(measured, norms, 1.0), x.dtype)[..., None]
        return cls(
            width=x.shape[-1],
            count=to_numpy(xp.sum(xp.astype(measured, xp.int64), axis=-1)),
            total=to_numpy(xp.sum((x @ units.T) ** 2, axis=-2)).astype(np.float64),
        )

    def __getitem__(self, i: int) -> "EnergyRatios":
        """The `i`-th of the sets along the first leading axis."""
        return EnergyRatios(self.width, np.asarray(self.count[i]), self.total[i])

    def merge(self, other: "EnergyRatios") -> "EnergyRatios":
        """The energy ratios of both sets of vectors together."""
        return EnergyRatios(self.width, np.asarray(self.count + other.count), self.total + other.total)

    @property
    def energy_ratio(self) -> Float[np.ndarray, "*s k"]:
        """R(v) for each direction; NaN of no vectors."""
        with np.errstate(invalid="ignore"):
            return self.width * self.total / self.count[..., None]


def unit_rows(directions: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k d"]:
    """The directions scaled to length 1; ValueError if one is zero or not finite."""
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError("a direction must be a finite, non-zero vector")
    return directions / norms


def at_least_float32(x: Array) -> Array:
    """Half precision in float32, everything else as it is."""
    xp = array_namespace(x)
    return xp.astype(x, xp.float32) if x.dtype.itemsize == 2 else x
