"""The set of all outputs of LayerNorm or RMSNorm: an ellipsoid, its centre, hyperplane and principal axes.

    ellipsoid = layer_norm_ellipsoid(layer.weight, layer.bias)
    ellipsoid.axis_lengths            # the d − 1 semi-axes, longest first
    ellipsoid.axes([0, 1])            # the directions of the two longest, as columns
    ellipsoid.contains(layer(x))      # true for every x, within a tolerance for rounding

Parameters and points may be numpy arrays or torch tensors of any floating type; all results are float64 numpy arrays.

Sources: Riechers (2024), https://arxiv.org/abs/2405.04134, for the ellipsoid and its hyperplane. The axes are computed
from the singular values of G P, which need no inverse of the gains, instead of the source's Π₂ G⁻² Π₂.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from norm_geometry import norms
from norm_geometry.arrays import Array, to_numpy, upcast

__all__ = ["Ellipsoid", "layer_norm_ellipsoid", "rms_norm_ellipsoid"]

BLOCK = 1 << 17  # matrix elements held at a time, 1 MiB: what a processor's cache takes


@dataclass(frozen=True, eq=False)
class Ellipsoid:
    """The solid ellipsoid { G z + b : ‖z‖ ≤ √d }, with z orthogonal to the uniform vector for LayerNorm.

    Outputs have ‖z‖ = √d for ε = 0, which with at most one zero gain is the surface, and ‖z‖ < √d for ε > 0.
    """

    gain: Float[np.ndarray, " d"]
    center: Float[np.ndarray, " d"]  # the bias
    normal: Float[np.ndarray, " d"] | None
    """Unit vector orthogonal to y − b for all outputs y, the direction of G⁻¹1; None for RMSNorm, which has none.

    Where gains are zero it is the limit for gains that shrink to zero together: equal on their coordinates, else 0."""
    axis_lengths: Float[np.ndarray, " axes"]
    """Lengths of the principal semi-axes, descending: d − 1 of them for LayerNorm, d for RMSNorm."""
    _spectrum: "_Spectrum"

    def axes(self, indices: Sequence[int] | Int[np.ndarray, " n"]) -> Float[np.ndarray, "d n"]:
        """Unit vectors along the semi-axes with these indices (0 is the longest), as columns.

        A direction's sign is arbitrary; among equally long semi-axes one orthonormal set is chosen.

        Raises:
            IndexError: there is no such semi-axis.
            TypeError: an index is no whole number.
        """
        count = len(self.axis_lengths)
        indices = [operator.index(index) for index in indices]
        for index in indices:
            if not -count <= index < count:
                raise IndexError(f"there is no semi-axis {index}: this ellipsoid has {count}, numbered from 0")
        columns = [self._axis(index % count) for index in indices]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.gain), 0))

    def contains(self, y: Float[Array, "*batch d"], tolerance: float = 1e-6) -> Bool[np.ndarray, "*batch"]:
        """Whether each point lies in the solid ellipsoid, or no farther from it than rounding explains.

        `tolerance` is the largest distance allowed, in units of the longest semi-axis or, if that is larger, of the
        largest |bias|: the numbers in whose sum an output was rounded. For float32 outputs 1e-6 is enough, for
        bfloat16 ones 1e-2, unless the mean of the inputs exceeds their spread by orders of magnitude and was
        subtracted in that format. Points that are not finite are outside.

        Raises:
            ValueError: the points have another length than the gain.
        """
        y = np.asarray(to_numpy(y), dtype=float)
        if y.shape[-1:] != self.center.shape:
            raise ValueError(f"points of shape {y.shape}, but the ellipsoid lies in ℝ^{len(self.center)}")
        allowed = tolerance * max(self.axis_lengths.max(initial=0.0), np.abs(self.center).max())
        from_center = (y - self.center).reshape(-1, len(self.center))
        inside = self._distance(from_center, halvings=0) <= allowed
        inside[~inside] = self._distance(from_center[~inside], halvings=60) <= allowed
        return inside.reshape(y.shape[:-1])

    def sample(self, count: int, seed: int) -> Float[np.ndarray, "count d"]:
        """Outputs, for ε = 0, of `count` inputs of uniformly distributed direction.

        They are spread evenly over the sphere before the gain, not over the ellipsoid's area.
        """
        z = np.random.default_rng(seed).standard_normal((count, len(self.gain)))
        if self.normal is not None:
            z = norms.project(z)
        return norms.scale_and_shift(norms.normalize(z), self.gain, self.center)

    def _axis(self, index: int) -> Float[np.ndarray, " d"]:
        pole, offset, repeat = (entries[index] for entries in self._spectrum)
        size = np.abs(_in_range(self.gain)[0])
        axis = np.zeros_like(self.gain)
        if repeat == 0:
            axis = self.gain / ((size - pole) * (size + pole) - offset)
        elif self.normal is None:
            axis[np.flatnonzero(size == pole)[repeat - 1]] = 1.0
        else:  # one of several equally long ones: they lie in the span of the coordinates that share the gain
            shared = np.flatnonzero(size == pole)[: repeat + 1]
            axis[shared] = np.copysign(1.0, self.gain[shared])
            axis[shared[-1]] *= -repeat
        axis /= np.abs(axis).max()
        return axis / np.linalg.norm(axis)

    def _distance(self, y: Float[np.ndarray, "n d"], halvings: int) -> Float[np.ndarray, " n"]:
        """From points relative to the centre to the ellipsoid; without halvings no less than that, but quickly had."""
        # The nearest point G z minimizes ‖G z − y‖² + μ‖z‖², where the multiplier μ ≥ 0 is 0 or makes ‖z‖ = √d.
        gain, exponent = _in_range(self.gain)
        y, radius = np.ldexp(y, -exponent), len(gain) ** 0.5

        def nearest(mu):
            weights = 1 / (gain**2 + mu)
            z = weights * gain * y
            if self.normal is not None:
                z -= weights * (z.sum(axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True))
            return z, np.linalg.norm(z, axis=-1, keepdims=True)

        with np.errstate(invalid="ignore", over="ignore"):
            upper = np.linalg.norm(gain * y, axis=-1, keepdims=True) / radius + 1e-290
            lower = np.maximum(upper * 2.0**-100, 1e-290)
            for _ in range(halvings):
                middle = np.sqrt(lower) * np.sqrt(upper)
                outside = nearest(middle)[1] > radius
                lower, upper = np.where(outside, middle, lower), np.where(outside, upper, middle)
            z, length = nearest(upper if halvings else lower)
            z /= np.maximum(length / radius, 1.0)
            return np.ldexp(np.linalg.norm(gain * z - y, axis=-1), exponent)


def layer_norm_ellipsoid(gain: Float[Array, " d"], bias: Float[Array, " d"] | None = None) -> Ellipsoid:
    """The ellipsoid of all outputs of LayerNorm with these parameters, in the hyperplane (y − b)·G⁻¹1 = 0.

    Its semi-axes are √d times the d − 1 singular values of G on the hyperplane orthogonal to the uniform vector: √(d λ)
    with λ the roots of

        Σᵢ 1/(gᵢ² − λ) = 0,

    the critical points of the polynomial whose roots are the squared gains. The axis that belongs to λ has the
    direction of gᵢ/(gᵢ² − λ). Between neighbours among the squared gains lies exactly one root; a gain of multiplicity
    m is itself a root of multiplicity m − 1. Each root takes about three passes over the d gains, so that all lengths
    take O(d²) time and O(d) memory. They are right to about 14 digits each, the shortest as much as the longest.

    Raises:
        ValueError: gain or bias is not one finite number for each of d ≥ 1 coordinates, or gains that are not zero
            differ by a factor beyond 1e150, so that their squares are not all numbers.
        TypeError: they are not floating-point.
    """
    gain, bias = _parameters(gain, bias)
    scaled, exponent = _in_range(gain)
    zero = scaled == 0
    normal = zero.astype(float) if zero.any() else np.abs(scaled).min() / scaled
    poles, counts = np.unique(np.abs(scaled), return_counts=True)
    parts = zip(_roots_between(poles, counts), _repeated(poles, counts - 1), strict=True)
    spectrum = tuple(map(np.concatenate, parts))
    return _ellipsoid(gain, bias, normal / np.linalg.norm(normal), spectrum, exponent)


def rms_norm_ellipsoid(gain: Float[Array, " d"], bias: Float[Array, " d"] | None = None) -> Ellipsoid:
    """The ellipsoid of all outputs of RMSNorm: its semi-axes √d |gᵢ| lie along the coordinate axes.

    Its centre is the bias, which is usually absent. Raises as `layer_norm_ellipsoid` does.
    """
    gain, bias = _parameters(gain, bias)
    scaled, exponent = _in_range(gain)
    return _ellipsoid(gain, bias, None, _repeated(*np.unique(np.abs(scaled), return_counts=True)), exponent)


# For each semi-axis √(d λ): the nearest |gain|, its pole, and the offset in λ = pole² + offset, of the gains in range;
# and its number among equally long ones, or 0. Kept apart, pole and offset preserve the digits of gᵢ² − λ.
_Spectrum = tuple[Float[np.ndarray, " axes"], Float[np.ndarray, " axes"], Int[np.ndarray, " axes"]]


def _parameters(gain: Array, bias: Array | None) -> tuple[np.ndarray, np.ndarray]:
    gain = np.asarray(to_numpy(upcast(gain)), dtype=float)
    bias = np.zeros_like(gain) if bias is None else np.asarray(to_numpy(upcast(bias)), dtype=float)
    if gain.ndim != 1 or gain.size == 0 or bias.shape != gain.shape:
        raise ValueError(
            f"gain has shape {gain.shape} and bias {bias.shape}: pass one number of each for every coordinate"
        )
    for name, parameter in (("gain", gain), ("bias", bias)):
        if not np.isfinite(parameter).all():
            raise ValueError(f"{name} holds {np.sum(~np.isfinite(parameter))} numbers that are not finite")
    sizes = np.abs(gain[gain != 0])
    if sizes.size and sizes.max() / 1e150 > sizes.min():
        raise ValueError(
            f"gains from {sizes.min():g} to {sizes.max():g}: set those below {sizes.max() / 1e150:g} to zero"
        )
    return gain, bias


def _in_range(gain: np.ndarray) -> tuple[np.ndarray, int]:
    """The gains times a power of two, exactly, so that the squares of huge and tiny ones are numbers too."""
    exponent = int(np.frexp(np.abs(gain).max())[1])
    return np.ldexp(gain, -exponent), exponent


def _ellipsoid(gain, bias, normal, spectrum, exponent) -> Ellipsoid:
    pole, offset, _ = spectrum
    lengths = np.sqrt(len(gain) * np.maximum(pole**2 + offset, 0.0))
    order = np.argsort(-lengths, kind="stable")
    return Ellipsoid(gain, bias, normal, np.ldexp(lengths[order], exponent), tuple(part[order] for part in spectrum))


def _repeated(poles: np.ndarray, counts: np.ndarray) -> _Spectrum:
    """Every pole as often as `counts` says, numbered from 1."""
    numbers = [np.arange(1, count + 1) for count in counts]
    repeated = np.repeat(poles, counts)
    return repeated, np.zeros_like(repeated), np.concatenate(numbers)


def _roots_between(poles: np.ndarray, counts: np.ndarray) -> _Spectrum:
    """The roots λ of Σ counts/(poles² − λ) = 0, one in each gap between the squares of ascending poles ≥ 0.

    The first guess is made in single precision from the middle of the gap. It tells which end the root is nearer to;
    from there the offset is refined in double precision.
    """
    squares, weights = poles**2, counts.astype(float)
    nearest, offsets = np.arange(len(poles) - 1), np.zeros(len(poles) - 1)
    height = min(len(poles), max(1, BLOCK // len(poles)))
    single, double = np.empty((2, height, len(poles)), np.float32), np.empty((2, height, len(poles)))
    distances = np.empty((height, len(poles)))
    for start in range(0, len(nearest), height):
        rows = slice(start, start + height)
        left, right = poles[:-1][rows], poles[1:][rows]
        gap, count = (right - left) * (right + left), len(left)
        np.subtract(squares, (left**2 + gap / 2)[:, None], out=single[0, :count], casting="same_kind")
        guess = _step(_sums(single[:, :count], weights.astype(np.float32)), -gap / 2, gap / 2)
        is_right = guess > 0
        nearest[rows] += is_right
        pole = poles[nearest[rows]][:, None]
        np.subtract(poles, pole, out=distances[:count])
        distances[:count] *= np.add(poles, pole, out=double[0, :count])
        ends = np.stack([np.where(is_right, -gap, 0.0), np.where(is_right, 0.0, gap)])
        offsets[rows] = _refined(distances[:count], weights, ends, guess + ends.mean(axis=0), double)
    return poles[nearest], offsets, np.zeros_like(nearest)


def _refined(distances, weights, ends, guess, work):
    """The root t of Σ weights/(distances − t) = 0 between the two ends, for each row of distances."""
    lower, upper = ends.copy()
    offset = np.where((guess > lower) & (guess < upper), guess, (lower + upper) / 2)
    active = np.arange(len(offset))
    while len(active):
        t = offset[active]
        differences = work[:, : len(active)]
        np.take(distances, active, axis=0, out=differences[0], mode="clip")
        differences[0] -= t[:, None]
        sums = _sums(differences, weights)
        # The sum grows with t from −∞ to ∞: its sign says on which side of t the root is.
        lower[active], upper[active] = np.where(sums[0] < 0, (t, upper[active]), (lower[active], t))
        new = t + _step(sums, *(ends[:, active] - t))
        inside = (new >= lower[active]) & (new <= upper[active])
        offset[active] = new = np.where(inside, new, (lower[active] + upper[active]) / 2)
        # The error after a step is of the order of the step cubed: after so small a one it is below rounding.
        active = active[np.abs(new - t) > 1e-5 * np.abs(new)]
    return offset


def _sums(differences, weights):
    """Σ w/δ, Σ w/δ² and Σ w/δ³ over each row of δ = differences[0]; both layers are overwritten."""
    inverse, power = differences
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        np.divide(1, inverse, out=inverse)
        first = inverse @ weights
        second = np.multiply(inverse, inverse, out=power) @ weights
        return first, second, np.multiply(power, inverse, out=power) @ weights


def _step(sums, lower, upper):
    """From a point between two poles, at distance `lower` < 0 and `upper` > 0, the step to the root of the function
    c + s/(lower − t) + r/(upper − t) that has there the given value, derivative and half second derivative."""
    value, first, second = (part.astype(float) for part in sums)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        of_upper = (second - first / lower) * lower * upper / (lower - upper)
        of_lower = first - of_upper
        constant = value - of_lower * lower - of_upper * upper
        linear = constant * (lower + upper) + of_lower * lower**2 + of_upper * upper**2
        product = lower * upper * value
        root = np.sqrt(linear**2 - 4 * constant * product)
        return np.where(linear > 0, 2 * product / (linear + root), (linear - root) / (2 * constant))
