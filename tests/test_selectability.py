"""Selectable keys against one linear programme per key, in every awkward position that keys can be in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial import ConvexHull
from scipy.special import softmax

from norm_geometry import selectability
from norm_geometry.norms import layer_norm, rms_norm
from norm_geometry.selectability import length_for_half, selecting_query, unselectable_keys


def by_programmes(keys: np.ndarray) -> np.ndarray:
    """One linear programme per key: the largest t with q·(k − kⱼ)/‖k − kⱼ‖ ≥ t for all kⱼ ≠ k and −1 ≤ q ≤ 1."""
    unselectable = np.zeros(len(keys), dtype=bool)
    for i, key in enumerate(keys):
        differences = key - keys
        lengths = np.linalg.norm(differences, axis=1)
        directions = differences[lengths > 0] / lengths[lengths > 0, None]
        d = keys.shape[1]
        found = linprog(
            -np.eye(d + 1)[d],
            np.column_stack([-directions, np.ones(len(directions))]),
            np.zeros(len(directions)),
            bounds=[(-1, 1)] * d + [(None, 1)],
            method="highs",
        )
        unselectable[i] = -found.fun < 1e-8
    return unselectable


seeds = st.integers(0, 2**32 - 1)
sizes = {"n": st.integers(1, 24), "d": st.integers(1, 6)}


def gaussian(rng, n, d):
    return rng.standard_normal((n, d))


def lattice(rng, n, d):
    """Many copies, collinear and coplanar keys, keys on edges and faces."""
    return rng.integers(-2, 3, (n, d)).astype(float)


def collinear(rng, n, d):
    return rng.integers(-9, 9, (n, 1)) * rng.integers(-3, 4, d) + rng.integers(-3, 4, d).astype(float)


def in_a_plane(rng, n, d):
    return rng.standard_normal((n, 2)) @ rng.standard_normal((2, d)) + 10 * rng.standard_normal(d)


def stretched(rng, n, d):
    return rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 2, d)


def clustered(rng, n, d):
    return rng.standard_normal((n, d)) + 1000 * rng.integers(0, 2, (n, 1))


@pytest.mark.parametrize("kind", [gaussian, lattice, collinear, in_a_plane, stretched, clustered])
@given(seed=seeds, **sizes)
def test_agrees_with_one_linear_programme_per_key(kind, seed, n, d):
    keys = kind(np.random.default_rng(seed), n, d)
    expected = by_programmes(keys)
    np.testing.assert_array_equal(unselectable_keys(keys), expected)
    queries = [selecting_query(keys, i) for i in range(n)]
    np.testing.assert_array_equal([query is None for query in queries], expected)


@pytest.mark.parametrize(("n", "d"), [(300, 8), (200, 3), (150, 64)])
def test_agrees_with_one_linear_programme_per_key_where_there_are_many(n, d):
    keys = np.random.default_rng(n).standard_normal((n, d))
    np.testing.assert_array_equal(unselectable_keys(keys), by_programmes(keys))


def test_selectable_keys_are_the_vertices_of_the_convex_hull():
    keys = np.random.default_rng(0).standard_normal((2000, 4))
    np.testing.assert_array_equal(np.flatnonzero(~unselectable_keys(keys)), np.sort(ConvexHull(keys).vertices))


def test_no_answer_rests_on_the_queries_that_were_tried(monkeypatch):
    keys = np.random.default_rng(0).standard_normal((200, 6))
    expected = unselectable_keys(keys)
    monkeypatch.setattr(selectability, "_winners", lambda queries, points, tolerance: np.zeros(len(points), dtype=bool))
    np.testing.assert_array_equal(unselectable_keys(keys), expected)
    assert 0 < expected.sum() < 200


@given(seed=seeds, n=st.integers(2, 40), d=st.integers(3, 8))
def test_after_either_norm_every_key_can_be_selected(seed, n, d):
    x = np.random.default_rng(seed).standard_normal((n, d))
    for norm in (layer_norm, rms_norm):
        assert not unselectable_keys(norm(x, eps=0.0)).any()
        assert not unselectable_keys(norm(x.astype(np.float32), eps=0.0)).any()


@given(seed=seeds)
def test_the_answer_does_not_change_under_an_invertible_affine_map(seed):
    rng = np.random.default_rng(seed)
    keys, matrix = rng.standard_normal((60, 4)), rng.standard_normal((4, 4)) + 4 * np.eye(4)
    np.testing.assert_array_equal(unselectable_keys(keys @ matrix + 7), unselectable_keys(keys))


def test_keys_of_lower_precision_are_judged_to_their_rounding():
    """A projection computed in float32 leaves the hyperplane by rounding; read as float64 that is a dimension more."""
    keys = np.random.default_rng(0).standard_normal((400, 5)) + 3
    exact = keys - keys.mean(axis=1, keepdims=True)
    rounded = keys.astype(np.float32) - keys.astype(np.float32).mean(axis=1, keepdims=True)
    np.testing.assert_array_equal(unselectable_keys(rounded), unselectable_keys(exact))
    assert unselectable_keys(rounded.astype(float)).sum() < 0.9 * unselectable_keys(exact).sum()
    np.testing.assert_array_equal(unselectable_keys(torch.tensor(rounded)), unselectable_keys(rounded))


@given(seed=seeds, n=st.integers(2, 30), d=st.integers(1, 6))
def test_the_selecting_query_has_the_largest_margin(seed, n, d):
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((n, d))
    query = selecting_query(keys, 0)
    others = rng.standard_normal((1000, d))
    margins = ((keys[0] - keys[1:]) @ np.vstack([others / np.linalg.norm(others, axis=1, keepdims=True)]).T).min(axis=0)
    if query is None:
        assert margins.max() <= 0
    else:
        assert np.linalg.norm(query) == pytest.approx(1)
        assert ((keys[0] - keys[1:]) @ query).min() >= margins.max() - 1e-12


@given(seed=seeds, n=st.integers(3, 30), d=st.integers(1, 6))
def test_at_the_needed_length_the_key_has_half_of_the_attention(seed, n, d):
    rng = np.random.default_rng(seed)
    keys, query = rng.standard_normal((n, d)), rng.standard_normal(d)
    winner = int((keys @ query).argmax())
    length = length_for_half(keys, winner, query)
    assert softmax(length * keys @ query / np.sqrt(d))[winner] == pytest.approx(0.5)
    assert length_for_half(keys, (winner + 1) % n, query) == np.inf


def test_the_needed_length_of_few_keys():
    query = np.array([1.0, 0])
    assert length_for_half(np.eye(2)[:1], 0, query) == 0
    assert length_for_half(np.eye(2), 0, query) == 0
    assert length_for_half(np.eye(2)[[0, 0, 1]], 0, query) == np.inf


def test_copies_of_a_key_are_selected_together_or_not_at_all():
    square = np.array([[0.0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5], [0.5, 0.5], [0, 0]])
    np.testing.assert_array_equal(unselectable_keys(square), [False] * 4 + [True] * 2 + [False])
    assert selecting_query(square, 6) is not None
    assert selecting_query(square, 5) is None


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (np.empty((0, 3)), []),
        (np.array([[1.0, 2, 3]]), [False]),
        (np.zeros((3, 2)), [False] * 3),
        (np.array([[1.0], [2], [2], [3], [1]]), [False, True, True, False, False]),
        (np.eye(5), [False] * 5),
        (np.vstack([np.eye(3), np.zeros(3), np.full(3, 0.2)]), [False, False, False, False, True]),
    ],
    ids=["no keys", "one key", "zero keys", "on a line", "independent", "inside a tetrahedron"],
)
def test_few_keys(keys, expected):
    np.testing.assert_array_equal(unselectable_keys(keys), np.array(expected, dtype=bool))
    for i, unselectable in enumerate(expected):
        query = selecting_query(keys, i)
        assert (query is None) == unselectable
        assert query is None or np.linalg.norm(query) == pytest.approx(1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_keys_that_are_not_finite_are_named(bad):
    keys = np.eye(4)
    keys[2, 1] = bad
    with pytest.raises(ValueError, match="key 2 of 4 is not finite"):
        unselectable_keys(keys)
    with pytest.raises(ValueError, match="key 2 of 4 is not finite"):
        selecting_query(keys, 0)


@pytest.mark.parametrize("shape", [(3, 0), (3,), (), (1, 2, 30, 8)], ids=str)
def test_what_is_not_one_key_a_row_is_refused(shape, unchecked):
    with pytest.raises(ValueError, match=r"are not \(n, d\)"):
        unselectable_keys(np.ones(shape))


def test_complex_keys_are_refused(unchecked):
    with pytest.raises(TypeError, match="real numbers"):
        unselectable_keys(np.eye(3) + 1j)


def test_numbers_count_and_neither_their_type_nor_their_scale():
    keys = np.random.default_rng(0).integers(-9, 9, (60, 3))
    expected = unselectable_keys(keys.astype(float))
    assert 0 < expected.sum() < 60
    same = [keys, torch.tensor(keys), keys.astype(np.float16), torch.tensor(keys, dtype=torch.bfloat16)]
    for other in [*same, keys * 1e300, keys * 1e-300]:
        np.testing.assert_array_equal(unselectable_keys(other), expected)
        np.testing.assert_array_equal([selecting_query(other, i) is None for i in range(60)], expected)


def test_a_coordinate_that_all_keys_share_counts_for_nothing():
    """Its mean is rounded, and the keys then seem to spread along it: all alike."""
    rng = np.random.default_rng(2)
    x, gain, bias = rng.standard_normal((500, 8)), rng.standard_normal(8), rng.standard_normal(8)
    assert not unselectable_keys(layer_norm(x, gain * (np.arange(8) > 0), bias, eps=0.0)).any()
