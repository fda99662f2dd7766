"""The ellipsoid agrees with the singular values of G P, holds every output of the norms, and nothing else."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg.lapack import dgejsv
from scipy.optimize import minimize

from norm_geometry import norms
from norm_geometry.ellipsoid import layer_norm_ellipsoid, rms_norm_ellipsoid

SIX_ORDERS = st.builds(lambda sign, exponent: sign * 10.0**exponent, st.sampled_from([-1, 1]), st.floats(-3, 3))
FEW_VALUES = st.sampled_from([0.0, 1.0, -1.0, 2.0, 1 + 2.0**-52, 1e-3, -1e3])
GAINS = st.lists(SIX_ORDERS | FEW_VALUES, min_size=1, max_size=20).map(np.array)


def projected_gain(gain):
    d = len(gain)
    return np.diag(gain) @ (np.eye(d) - np.ones((d, d)) / d)


def singular_values(matrix):
    """By Jacobi rotations, which unlike numpy's method get small ones among large ones right to all digits."""
    values, _, _, work, _, info = dgejsv(matrix, joba=4, jobu=3, jobv=3)
    assert info == 0
    return values * (work[0] / work[1])


def gain_on_the_hyperplane(gain):
    """G times an orthonormal basis of the hyperplane: the singular values of G P without the one that is zero."""
    d = len(gain)
    basis = [np.r_[np.ones(j), -j, np.zeros(d - j - 1)] / np.sqrt(j * (j + 1)) for j in range(1, d)]
    return gain[:, None] * np.array(basis).T


@given(GAINS)
def test_axis_lengths_are_those_of_the_svd(gain):
    lengths = layer_norm_ellipsoid(gain).axis_lengths
    d = len(gain)
    assert lengths.shape == (d - 1,)
    assert (np.diff(lengths) <= 0).all()
    if d > 1:
        reference = np.sqrt(d) * singular_values(gain_on_the_hyperplane(gain))
        vanishing = max(0, int((gain == 0).sum()) - 1)
        assert (lengths[d - 1 - vanishing :] == 0).all()
        np.testing.assert_allclose(lengths[: d - 1 - vanishing], reference[: d - 1 - vanishing], rtol=1e-10)
        ordinary = np.sqrt(d) * np.linalg.svd(projected_gain(gain), compute_uv=False)[:-1]
        np.testing.assert_allclose(lengths, ordinary, rtol=1e-10, atol=1e-12 * lengths.max())


@given(GAINS)
def test_axes_are_orthonormal_and_rebuild_the_matrix(gain):
    ellipsoid = layer_norm_ellipsoid(gain)
    axes = ellipsoid.axes(range(len(gain) - 1))
    np.testing.assert_allclose(axes.T @ axes, np.eye(len(gain) - 1), atol=1e-10)
    np.testing.assert_allclose(ellipsoid.normal @ axes, 0, atol=1e-10)
    squared = len(gain) * projected_gain(gain) @ projected_gain(gain).T
    rebuilt = (axes * ellipsoid.axis_lengths**2) @ axes.T
    np.testing.assert_allclose(rebuilt, squared, atol=1e-12 * max(1e-300, np.abs(squared).max()))


@given(GAINS)
def test_gains_and_axes_interlace(gain):
    sizes = np.sort(np.abs(gain))[::-1]
    axes = layer_norm_ellipsoid(gain).axis_lengths / np.sqrt(len(gain))
    assert (axes <= sizes[:-1] * (1 + 1e-14)).all()
    assert (axes >= sizes[1:] * (1 - 1e-14)).all()


@given(GAINS)
def test_rms_norm_axes_are_the_gains(gain):
    ellipsoid = rms_norm_ellipsoid(gain)
    assert ellipsoid.normal is None
    np.testing.assert_allclose(ellipsoid.axis_lengths, np.sqrt(len(gain)) * np.sort(np.abs(gain))[::-1], rtol=1e-14)
    axes = ellipsoid.axes(range(len(gain)))
    rebuilt = (axes * ellipsoid.axis_lengths**2) @ axes.T
    np.testing.assert_allclose(rebuilt, np.diag(len(gain) * gain**2), rtol=1e-12)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.1])
@given(gain=GAINS, seed=st.integers(0, 100))
def test_contains_every_output(eps, gain, seed):
    random = np.random.default_rng(seed)
    bias, x = random.normal(size=len(gain)), random.normal(3, 10.0 ** random.uniform(-3, 3), size=(5, len(gain)))
    assert layer_norm_ellipsoid(gain, bias).contains(norms.layer_norm(x, gain, bias, eps), 1e-12).all()
    assert rms_norm_ellipsoid(gain).contains(norms.rms_norm(x, gain, eps), 1e-12).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_contains_the_rounded_outputs_of_a_module(dtype, tolerance):
    torch.manual_seed(0)
    module = torch.nn.LayerNorm(300)
    module.weight.data = torch.randn(300) * 10 ** torch.empty(300).uniform_(-3, 3)
    module.bias.data = torch.randn(300)
    module = module.to(dtype)
    outputs = module(torch.randn(4, 25, 300, dtype=dtype))
    inside = layer_norm_ellipsoid(module.weight, module.bias).contains(outputs, tolerance)
    assert inside.shape == (4, 25)
    assert inside.all()


@given(GAINS, st.integers(0, 100))
def test_does_not_contain_what_is_outside(gain, seed):
    bias = np.random.default_rng(seed).normal(size=len(gain))
    ellipsoid = layer_norm_ellipsoid(gain, bias)
    longest = max(ellipsoid.axis_lengths.max(initial=0), np.abs(bias).max())
    outputs = ellipsoid.sample(3, seed)
    assert not ellipsoid.contains(outputs + 0.01 * longest * ellipsoid.normal, 0.009).any()
    for length, axis in zip(ellipsoid.axis_lengths, ellipsoid.axes(range(len(gain) - 1)).T, strict=True):
        end = bias + length * axis
        step = max(0.01 * length, 1e-6 * longest)
        assert ellipsoid.contains(end, 1e-12)
        assert ellipsoid.contains(bias - 0.999 * length * axis, 1e-12)
        assert not ellipsoid.contains(end + step * axis, 0.5 * step / longest)
    assert not ellipsoid.contains(outputs * np.nan).any()
    assert not ellipsoid.contains(outputs + np.inf).any()


@pytest.mark.parametrize("gain", [[1.0, 2.0, -0.5, 0.1], [0.0, 2.0, 1.0, 1.0], [0.0, 0.0, 1.0, 3.0]])
@pytest.mark.parametrize("make", [layer_norm_ellipsoid, rms_norm_ellipsoid])
def test_the_edge_of_the_tolerance_is_the_distance(make, gain):
    gain = np.array(gain)
    ellipsoid = make(gain)
    point = np.array([3.0, -6.0, 4.0, 1.0])
    limits = [{"type": "ineq", "fun": lambda z: 4 - z @ z}]
    if ellipsoid.normal is not None:
        limits.append({"type": "eq", "fun": lambda z: z.sum()})
    nearest = minimize(lambda z: ((gain * z - point) ** 2).sum(), np.zeros(4), constraints=limits, tol=1e-14)
    distance = np.linalg.norm(gain * nearest.x - point) / ellipsoid.axis_lengths[0]
    assert ellipsoid.contains(point, distance * (1 + 1e-5))
    assert not ellipsoid.contains(point, distance * (1 - 1e-5))


@given(GAINS, st.integers(0, 100))
def test_samples_are_outputs(gain, seed):
    bias = np.random.default_rng(seed).normal(size=len(gain))
    ellipsoid = layer_norm_ellipsoid(gain, bias)
    sample = ellipsoid.sample(7, seed)
    assert sample.shape == (7, len(gain))
    assert (sample == ellipsoid.sample(7, seed)).all()
    assert ellipsoid.contains(sample, 1e-12).all()
    if len(gain) > 1 and (gain != 0).all():
        z = (sample - bias) / gain
        error = 1e-14 * (1 + np.abs(bias / gain).max())
        np.testing.assert_allclose(np.linalg.norm(z, axis=1), np.sqrt(len(gain)), atol=10 * error)
        np.testing.assert_allclose(z.sum(axis=1), 0, atol=100 * error)


def test_one_coordinate_is_a_point():
    ellipsoid = layer_norm_ellipsoid(np.array([2.0]), np.array([3.0]))
    assert ellipsoid.axis_lengths.shape == (0,)
    assert ellipsoid.axes([]).shape == (1, 0)
    assert ellipsoid.contains(np.array([3.0]))
    assert not ellipsoid.contains(np.array([3.1]))
    assert (ellipsoid.sample(4, seed=0) == 3).all()


def test_two_coordinates_are_a_segment():
    ellipsoid = layer_norm_ellipsoid(np.array([3.0, -4.0]))
    np.testing.assert_allclose(ellipsoid.axis_lengths, [5])
    np.testing.assert_allclose(np.abs(ellipsoid.axes([0])[:, 0]), [0.6, 0.8])
    np.testing.assert_allclose(ellipsoid.contains(np.array([[3.0, 4.0], [0.3, 0.4], [3.0, -4.0]])), [True, True, False])


def test_equal_gains_leave_a_sphere():
    ellipsoid = layer_norm_ellipsoid(np.full(9, -2.0))
    np.testing.assert_allclose(ellipsoid.axis_lengths, 6)
    np.testing.assert_allclose(np.abs(ellipsoid.normal), 1 / 3)


@pytest.mark.parametrize("scale", [2.0**-900, 2.0**900])
def test_huge_and_tiny_gains_keep_their_digits(scale):
    gain = np.random.default_rng(0).normal(size=30)
    expected, scaled = layer_norm_ellipsoid(gain), layer_norm_ellipsoid(gain * scale)
    assert (scaled.axis_lengths == expected.axis_lengths * scale).all()
    np.testing.assert_allclose(scaled.axes([0, 20]), expected.axes([0, 20]))
    assert scaled.contains(scaled.sample(3, seed=0), 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_parameters_are_taken_exactly(dtype):
    gain = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = layer_norm_ellipsoid(gain.double().numpy())
    ellipsoid = layer_norm_ellipsoid(torch.nn.Parameter(gain))
    assert (ellipsoid.axis_lengths == expected.axis_lengths).all()
    assert ellipsoid.axis_lengths.dtype == float


def test_memory_does_not_grow_as_the_square():
    gain = np.random.default_rng(0).normal(size=4096)
    tracemalloc.start()
    layer_norm_ellipsoid(gain)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4096**2  # bytes: an eighth of one matrix


@pytest.mark.parametrize("make", [layer_norm_ellipsoid, rms_norm_ellipsoid])
def test_errors_say_what_was_given(make, unchecked):
    with pytest.raises(ValueError, match=r"gain has shape \(0,\)"):
        make(np.ones(0))
    with pytest.raises(ValueError, match=r"bias \(2,\)"):
        make(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="bias holds 1 numbers that are not finite"):
        make(np.ones(2), np.array([0.0, np.nan]))
    with pytest.raises(TypeError, match="int64"):
        make(np.ones(2, dtype=int))
    with pytest.raises(IndexError, match="no semi-axis 9"):
        make(np.ones(3)).axes([9])
    with pytest.raises(TypeError, match="float"):
        make(np.ones(3)).axes([0.5])
    with pytest.raises(ValueError, match=r"points of shape \(2,\)"):
        make(np.ones(3)).contains(np.ones(2))
    with pytest.raises(ValueError, match="set those below 1e-50 to zero"):
        make(np.array([1e100, 1.0, 1e-60]))
