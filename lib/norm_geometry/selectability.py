"""Which keys some query can select: those at the vertices of the convex hull of all keys.

unselectable_keys(keys)         # a boolean for each key: True where no query gives it the largest score
selecting_query(keys, 3)        # the unit query that prefers key 3 by the largest margin, or None
length_for_half(keys, 3, q)     # how long a query along q must be to give key 3 half of the attention

The score of key k for a query q is q·k. Most keys are settled by trying queries. For each of the others a linear
programme finds either a query or the convex combination of keys that equals it; all are one HiGHS model in which only
the right-hand side changes, so that each starts from the solution of the last.
"""

import highspy
import numpy as np
from jaxtyping import Bool, Float, Real
from scipy.optimize import brentq, nnls

from norm_geometry.arrays import Array, to_numpy

__all__ = ["length_for_half", "selecting_query", "unselectable_keys"]

# A key that lies beyond the hull of the others by less than this share of the keys' spread counts as lying in it, and
# keys that differ by less count as equal; or four roundings of the keys' own floating-point type, where that is more.
TOLERANCE = 1e-9
ROUNDINGS = 4
BLOCK = 2**23  # scores held at once, 64 MiB


def unselectable_keys(keys: Real[Array, "n d"]) -> Bool[np.ndarray, " n"]:
    """Return for each key whether no query q gives it a score q·k larger than that of every other key.

    A key can be selected exactly when it is a vertex of the convex hull of the keys: when it is no convex combination
    Σ λⱼkⱼ, λⱼ ≥ 0, Σ λⱼ = 1, of the others (Brody, Alon and Yahav 2023, arXiv:2305.02582; for output layers Grivas,
    Bogoychev and Lopez 2022, arXiv:2203.06462). The programme solved is: minimise Σ λⱼ subject to Σ λⱼ(kⱼ − o) = k − o
    and λ ≥ 0, with o inside the hull and j running over vertices only (K. L. Clarkson, "More output-sensitive geometric
    algorithms", FOCS 1994). Its minimum is at most 1 for a k inside; its dual solution is a query for any other.

    Equal keys count as one: no query tells them apart, and they are selected together or not at all. So a single key,
    and any number of copies of it, can be selected; of keys on a line, the two ends; affinely independent keys, all.

    Exact up to rounding: keys closer together than 1e-9 of their spread (5e-7 for float32 and half precision) count as
    equal, a smaller margin as none, and directions in which they spread less than four roundings are left out: float32
    keys in a hyperplane are keys in a hyperplane. One key a billion times farther out than the rest hides the others.

    5,000 Gaussian keys take a second or a few, heavy-tailed ones, or nearly all of them vertices, a minute.

    Raises:
        ValueError: the keys are not an array (n, d), or one is not finite.
        TypeError: they are not real numbers.
    """
    points, rounding = _checked(keys)
    tolerance = max(TOLERANCE, rounding)
    spread = _affine_coordinates(points, rounding)
    if spread.shape[1] == 0:
        return np.zeros(len(points), dtype=bool)
    first, inverse = _distinct(spread, tolerance)
    points, spread = points[first] - points.mean(axis=0), spread[first]
    random = np.random.default_rng(0).standard_normal(spread.shape)
    # A key's own direction often selects it, on a sphere always; in coordinates of equal spread more often still.
    selectable = (
        _winners(points, points, tolerance) | _winners(spread, spread, tolerance) | _winners(random, spread, tolerance)
    )
    return ~_settle(spread, selectable, tolerance)[inverse]


def selecting_query(keys: Real[Array, "n d"], index: int) -> Float[np.ndarray, " d"] | None:
    """Return the unit query q that prefers key i = `index` by the largest margin minⱼ q·(kᵢ − kⱼ), or None.

    The margin is the distance from kᵢ to the convex hull of the keys that differ from it, and q points from the nearest
    point of the hull to kᵢ; where the distance is zero, no query selects kᵢ. The nearest point Σ λⱼkⱼ is found by
    non-negative least squares: the λ ≥ 0 that minimise ‖Σ λⱼ(kⱼ − kᵢ)‖² + (Σ λⱼ − 1)² are a multiple of its weights.

    If all keys are equal, every query selects them; the first unit vector is returned. The tolerances are those of
    `unselectable_keys`, here relative to the largest distance from kᵢ: within some ten times them the two may disagree.

    Raises:
        ValueError: the keys are not an array (n, d), or one is not finite.
        TypeError: they are not real numbers.
        IndexError: there is no key `index`.
    """
    points, rounding = _checked(keys)
    tolerance = max(TOLERANCE, rounding)
    differences = points - points[index]
    lengths = np.linalg.norm(differences, axis=1)
    differences = differences[lengths > tolerance * lengths.max()] / max(lengths.max(), np.finfo(float).tiny)
    if len(differences) == 0:
        return np.eye(points.shape[1])[0]
    target = np.append(np.zeros(points.shape[1]), 1.0)
    weights, _ = nnls(np.vstack([differences.T, np.ones(len(differences))]), target)
    query = -differences.T @ weights / weights.sum()
    distance = np.linalg.norm(query)
    if distance <= tolerance or (differences @ query >= 0).any():
        return None
    return query / distance


def length_for_half(keys: Real[Array, "n d"], index: int, query: Float[Array, " d"]) -> float:
    """Return the c ≥ 0 at which the query c·q gives key i = `index` the weight 1/2 of a softmax of scores c q·k/√d.

    It is the root of Σⱼ exp(−c q·(kᵢ − kⱼ)/√d) = 1 over all other keys; a longer query gives more than 1/2. Infinite
    where no length suffices, because q prefers another key or a copy of this one; 0 if it beats one other key or none.

    Raises:
        ValueError, TypeError, IndexError: as in `selecting_query`.
    """
    points = to_numpy(keys).astype(np.float64)
    _checked(points)
    gaps = np.delete(points[index] - points, index, axis=0) @ to_numpy(query) / np.sqrt(points.shape[1])
    if len(gaps) < 2:
        return 0.0 if len(gaps) == 0 or gaps[0] > 0 else np.inf
    if gaps.min() <= 0:
        return np.inf
    enough = np.log(len(gaps)) / gaps.min()  # even if every other key were as near as the nearest
    return brentq(lambda length: np.exp(-length * gaps).sum() - 1, 0, 1.01 * enough)


def _checked(keys: Array) -> tuple[np.ndarray, float]:
    """The keys in float64 and their relative rounding, or an error that names the first one that cannot be used."""
    points = to_numpy(keys)
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"keys of shape {points.shape} are not (n, d): give the keys of one head, a row for each")
    if points.dtype.kind not in "fiu":
        raise TypeError(f"keys must be real numbers, got {points.dtype}")
    precision = np.float64 if points.dtype.kind in "iu" else np.result_type(points, np.float32)
    points = points.astype(np.float64)
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        raise ValueError(f"key {finite.argmin()} of {len(points)} is not finite: leave such keys out")
    # A power of two changes no verdict, and keeps the squares of very large and very small coordinates in range.
    exponent = np.frexp(np.abs(points).max(initial=0.0))[1]
    return np.ldexp(points, -int(exponent)), ROUNDINGS * float(np.finfo(precision).eps)


def _affine_coordinates(points: np.ndarray, rounding: float) -> np.ndarray:
    """The points in coordinates of their affine hull, with mean 0 and variance 1 along every axis.

    An invertible affine map takes vertices to vertices; with equal spread the programmes are well conditioned.
    """
    if len(points) == 0:
        return np.empty((0, 0))
    resolution = rounding * np.linalg.norm(points)
    points = points - points[:1]  # a coordinate that all points share is then zero, and not the rounding of its mean
    left, singular, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    rank = np.count_nonzero(singular > resolution)
    return left[:, :rank] * np.sqrt(len(points))


def _distinct(points: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of one point from each group of equal ones, and for every point the number of its group."""
    order = np.argsort(
        points @ np.random.default_rng(0).standard_normal(points.shape[1])
    )  # equal points are neighbours
    starts = np.append(True, np.linalg.norm(np.diff(points[order], axis=0), axis=1) > tolerance)
    group = np.empty(len(points), dtype=int)
    group[order] = np.cumsum(starts) - 1
    return order[starts], group


def _winners(queries: np.ndarray, points: np.ndarray, tolerance: float) -> np.ndarray:
    """Which points win for one of the queries, by a clear margin."""
    won = np.zeros(len(points), dtype=bool)
    resolution = tolerance * np.linalg.norm(queries, axis=1, keepdims=True) * np.linalg.norm(points, axis=1).max()
    rows = max(1, BLOCK // len(points))
    for start in range(0, len(queries), rows):
        scores = queries[start : start + rows] @ points.T
        best = scores.max(axis=1, keepdims=True)
        alone = (scores >= best - resolution[start : start + rows]).sum(axis=1) == 1
        won[scores.argmax(axis=1)[alone]] = True
    return won


def _settle(points: np.ndarray, selectable: np.ndarray, tolerance: float) -> np.ndarray:
    """Decide the points that no query has selected yet; those in `selectable` are known to be vertices.

    The programme knows only vertices. A point inside their hull is settled. For any other the dual
    solution is a query, whose winner among all points is a vertex too: the point itself, or one that was missing.
    """
    selectable = selectable.copy()
    while (missed := _direction_missed(points, points[selectable])) is not None:
        selectable[_vertex(points, missed, tolerance)] = True
    undecided = np.flatnonzero(~selectable)
    points = points - points[selectable].mean(axis=0)  # the origin o, inside the hull of the known vertices
    programme = _Programme(points[selectable], tolerance)
    for i in undecided:
        while not selectable[i]:
            total, query = programme.solve(points[i])
            if total <= 1 + tolerance:
                break
            vertex = _vertex(points, query, tolerance)
            selectable[vertex] = True
            programme.add(points[vertex])
    return selectable


def _direction_missed(points: np.ndarray, vertices: np.ndarray) -> np.ndarray | None:
    """A direction along which the vertices found so far have no extent, towards the farthest point; None if none."""
    _, singular, right = np.linalg.svd(vertices - vertices[:1])
    rank = np.count_nonzero(singular > 1e-6)
    if rank == len(right):
        return None
    scores = (points - vertices[:1].sum(axis=0)) @ right[rank]
    return right[rank] * np.sign(scores[np.abs(scores).argmax()])


def _vertex(points: np.ndarray, query: np.ndarray, tolerance: float) -> int:
    """The winner for a query; among several a vertex of the face that they form, so that it wins for some query."""
    scores = points @ query
    face = np.flatnonzero(scores >= scores.max() - tolerance / 2)
    return int(face[np.argmax(points[face] @ _generic(points))])


def _generic(points: np.ndarray) -> np.ndarray:
    """A fixed direction that is orthogonal to no difference of points, but by chance."""
    return np.random.default_rng(0).standard_normal(points.shape[1])


class _Programme:
    """Minimise Σ λⱼ subject to Σ λⱼvⱼ = p and λ ≥ 0, for vertices v whose hull contains the origin."""

    def __init__(self, vertices: np.ndarray, tolerance: float):
        self.rows = np.arange(vertices.shape[1], dtype=np.int32)
        self.solver = highspy.Highs()
        for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self.solver.setOptionValue(option, tolerance / 10)
        for option, value in {"output_flag": False, "presolve": "off", "threads": 1}.items():
            self.solver.setOptionValue(option, value)
        for _ in self.rows:
            self.solver.addRow(0.0, 0.0, 0, self.rows[:0], np.empty(0))
        for vertex in vertices:
            self.add(vertex)

    def add(self, vertex: np.ndarray) -> None:
        self.solver.addCol(1.0, 0.0, highspy.kHighsInf, len(self.rows), self.rows, vertex)

    def solve(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """The minimum, and the dual solution: the query q with the largest q·p among those with q·vⱼ ≤ 1 for all j."""
        self.solver.changeRowsBounds(len(self.rows), self.rows, point, point)
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self.solver.clearSolver()  # a start from the last solution fails now and then, one from scratch does not
            self.solver.run()
        if (status := self.solver.getModelStatus()) != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"HiGHS stopped with {status} on a key: scale the keys to a common size and try again")
        return self.solver.getInfo().objective_function_value, np.array(self.solver.getSolution().row_dual)
