"""Statistics of angles: right in one batch, and merged without loss in any order and split."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from norm_geometry.statistics import (
    AngleStatistics,
    EnergyRatios,
    chance_density,
    random_directions,
    uniform_and_random,
)

D = 16
DIRECTIONS = np.stack(list(uniform_and_random(D).values()))


def angles_one_by_one(vectors, directions):
    """The definition, in float64: θ = arccos(x·v / ‖x‖‖v‖)."""
    inner = vectors @ directions.T
    lengths = np.outer(np.linalg.norm(vectors, axis=1), np.linalg.norm(directions, axis=1))
    return np.degrees(np.arccos(np.clip(inner / lengths, -1, 1)))


def sample(count, seed=0):
    return np.random.default_rng(seed).normal(0.3, 1.0, (count, D))


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, lambda x: torch.from_numpy(x).float()])
def test_against_the_definition(convert):
    x = sample(500)
    theta = angles_one_by_one(x, DIRECTIONS)
    s = AngleStatistics.of(convert(x), 7 * DIRECTIONS)
    assert s.count == 500
    for ours, expected in (
        (s.mean, theta.mean(0)),
        (s.std, theta.std(0)),
        (s.minimum, theta.min(0)),
        (s.maximum, theta.max(0)),
        (s.energy_ratio, D * (np.cos(np.radians(theta)) ** 2).mean(0)),
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
    for q in (0.0, 0.05, 0.5, 0.99, 1.0):
        np.testing.assert_allclose(s.quantile(q), np.quantile(theta, q, axis=0, method="inverted_cdf"), atol=0.06)
        norms = np.linalg.norm(x, axis=1)
        np.testing.assert_allclose(s.norm_quantile(q), np.quantile(norms, q, method="inverted_cdf"), rtol=0.025)


@given(cuts=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 99), data=st.data())
def test_merging_is_exact_in_any_split_and_order(cuts, seed, data):
    x = sample(60, seed) * 10.0 ** np.random.default_rng(seed).integers(-3, 4, (60, 1))
    x[::17] = 0
    x[5, 2] = np.nan
    parts = np.split(x, sorted(cuts))
    order = data.draw(st.permutations(range(len(parts))))
    whole = AngleStatistics.of(x, DIRECTIONS)
    merged = AngleStatistics.of(x[:0], DIRECTIONS)
    for i in order:
        merged = merged.merge(AngleStatistics.of(parts[i], DIRECTIONS))
    assert (merged.count, merged.zero_count, merged.nonfinite_count) == (55, 4, 1)
    assert (whole.count, whole.zero_count, whole.nonfinite_count) == (55, 4, 1)
    for name in ("mean", "std", "minimum", "maximum", "energy_ratio"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-13)
    np.testing.assert_array_equal(merged.quantile(0.3), whole.quantile(0.3))
    assert merged.norm_quantile(0.9) == whole.norm_quantile(0.9)


def test_the_textbook_formula_fails_where_merging_passes():
    # Angles within 1e-7 degrees of 90: mean of squares minus square of mean cancels all its digits.
    offsets = np.random.default_rng(0).normal(0, 1e-9, 4000)
    x = np.eye(D)[[1] * len(offsets)] + np.outer(offsets, np.eye(D)[0])
    spread = np.degrees(np.arctan(offsets)).std()
    merged = AngleStatistics.of(x[:0], np.eye(D)[:1])
    sums = np.zeros(2)
    for part in np.split(x, 40):
        one = AngleStatistics.of(part, np.eye(D)[:1])
        theta = angles_one_by_one(part, np.eye(D)[:1])
        merged = merged.merge(one)
        sums += theta.sum(), (theta**2).sum()
    naive_variance = sums[1] / len(x) - (sums[0] / len(x)) ** 2
    assert abs(merged.std[0] / spread - 1) < 1e-4
    assert abs(naive_variance / spread**2 - 1) > 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_massive_activations_overflow_nothing(dtype):
    x = torch.full((3, D), 26_000.0, dtype=dtype)  # squares beyond float16, sums of squares far beyond
    s = AngleStatistics.of(x, DIRECTIONS[:1])
    assert (s.count, s.nonfinite_count) == (3, 0)
    np.testing.assert_allclose(s.norm_quantile(0.5), 4 * float(x[0, 0]), rtol=0.025)
    np.testing.assert_allclose(s.energy_ratio, D, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_float32_vectors_whose_squares_leave_the_format_are_measured(size):
    x = sample(20)
    small = AngleStatistics.of((x * size).astype(np.float32), DIRECTIONS)
    np.testing.assert_allclose(small.mean, AngleStatistics.of(x, DIRECTIONS).mean, rtol=1e-6)
    np.testing.assert_allclose(
        small.norm_quantile(0.5), size * AngleStatistics.of(x, DIRECTIONS).norm_quantile(0.5), rtol=0.03
    )


def test_zero_and_nonfinite_vectors_are_counted_apart():
    x = sample(10)
    spoiled = np.concatenate([x, np.zeros((2, D)), np.full((3, D), np.inf), np.full((1, D), np.nan)])
    s, clean = AngleStatistics.of(spoiled, DIRECTIONS), AngleStatistics.of(x, DIRECTIONS)
    assert (s.count, s.zero_count, s.nonfinite_count) == (10, 2, 4)
    np.testing.assert_array_equal(s.mean, clean.mean)
    for many, few in ((EnergyRatios.of(spoiled, DIRECTIONS), EnergyRatios.of(x, DIRECTIONS)),):
        assert many.count == few.count == 10
        np.testing.assert_allclose(many.energy_ratio, few.energy_ratio, rtol=1e-14)


def test_no_vectors_give_no_numbers():
    s = AngleStatistics.of(sample(0), DIRECTIONS)
    assert s.count == 0
    assert np.isnan([s.mean, s.std, s.energy_ratio, s.quantile(0.5)]).all()


def test_energy_ratio_of_a_random_direction_is_one():
    x = np.random.default_rng(1).normal(size=(20_000, D))
    np.testing.assert_allclose(AngleStatistics.of(x, DIRECTIONS).energy_ratio, 1, atol=0.05)


def test_energy_ratios_over_an_orthonormal_basis_average_to_one():
    x = sample(100)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(D, D)))[0]
    np.testing.assert_allclose(AngleStatistics.of(x, basis).energy_ratio.mean(), 1, rtol=1e-12)
    np.testing.assert_allclose(EnergyRatios.of(x, basis).energy_ratio.mean(), 1, rtol=1e-12)


@given(cut=st.integers(0, 40))
def test_energy_ratios_of_many_directions_are_those_of_each(cut):
    x = sample(40)
    directions = random_directions(7, D, seed=5)
    merged = EnergyRatios.of(x[:cut], directions).merge(EnergyRatios.of(x[cut:], directions))
    assert merged.count == 40
    np.testing.assert_allclose(merged.energy_ratio, AngleStatistics.of(x, directions).energy_ratio, rtol=1e-10)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_sets_side_by_side_are_measured_as_if_alone(convert):
    x = np.stack([sample(30, seed) for seed in range(4)])
    x[1, 3], x[2, 5, 0] = 0, np.inf
    inner, norms = x @ DIRECTIONS.T, np.linalg.norm(x, axis=-1)
    together = AngleStatistics.of_inner_products(convert(inner.swapaxes(1, 2)), convert(norms), D)
    energies = EnergyRatios.of(convert(x), convert(DIRECTIONS))
    for i in range(4):
        alone = AngleStatistics.of(x[i], DIRECTIONS)
        assert (together[i].count, together[i].zero_count) == (alone.count, alone.zero_count)
        assert together[i].nonfinite_count == alone.nonfinite_count
        for name in ("mean", "std", "minimum", "maximum", "energy_ratio"):
            np.testing.assert_allclose(getattr(together[i], name), getattr(alone, name), rtol=1e-12)
        np.testing.assert_allclose(energies[i].energy_ratio, alone.energy_ratio, rtol=1e-12)
        assert together[i].norm_quantile(0.5) == alone.norm_quantile(0.5)


def test_random_directions_are_reproducible_and_of_length_one():
    first = random_directions(5, 30, seed=1)
    np.testing.assert_array_equal(first, random_directions(5, 30, seed=1))
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1)
    assert not np.allclose(first, random_directions(5, 30, seed=2))


@pytest.mark.parametrize("width", [2, 3, 5, 576])
def test_chance_density_is_that_of_random_directions(width):
    degrees = np.linspace(0, 180, 20_001)
    density = chance_density(degrees, width)
    np.testing.assert_allclose(np.trapezoid(density, degrees), 1, rtol=1e-3)
    drawn = AngleStatistics.of(random_directions(4000, width, seed=3), np.eye(width)[:1])
    spread = np.sqrt(np.trapezoid((degrees - 90) ** 2 * density, degrees))
    np.testing.assert_allclose(drawn.std, spread, rtol=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AngleStatistics.of(sample(3), np.zeros((1, D))), "non-zero"),
        (lambda: AngleStatistics.of(sample(3), np.eye(D + 1)), "have length 17, the vectors 16"),
        (
            lambda: AngleStatistics.of(sample(3), DIRECTIONS).merge(AngleStatistics.of(sample(3), DIRECTIONS[:1])),
            "merge",
        ),
        (lambda: AngleStatistics.of(sample(3), DIRECTIONS).quantile(1.5), "between 0 and 1"),
    ],
)
def test_bad_input_is_named(call, message, unchecked):
    with pytest.raises(ValueError, match=message):
        call()
