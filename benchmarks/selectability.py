"""`unselectable_keys` against one HiGHS programme per key, on Gaussian keys.

    python benchmarks/selectability.py [largest number of keys]

The programme for key k: maximise t subject to q·(k − kⱼ) ≥ t for every other key, −1 ≤ q ≤ 1; the key can be selected
if t > 0. Both alternate in one run; the ratio is the median over the pairs. The programmes of 32 keys are timed and
the time is scaled to all keys, as all of them are alike; "programmes" are scipy.optimize.linprog's, "bare" the same
rows handed to HiGHS without SciPy.
"""

import statistics
import sys
import time

import highspy
import numpy as np
from scipy.optimize import linprog

from norm_geometry.selectability import unselectable_keys

PAIRS = 9
TIMED = 32


def rows(keys: np.ndarray, index: int) -> np.ndarray:
    return np.column_stack([np.delete(keys, index, axis=0) - keys[index], np.ones(len(keys) - 1)])


def linprog_margin(keys: np.ndarray, index: int) -> float:
    n, d = keys.shape
    bounds = [(-1, 1)] * d + [(None, None)]
    return -linprog(np.eye(d + 1)[d] * -1, rows(keys, index), np.zeros(n - 1), bounds=bounds, method="highs").fun


def bare_margin(keys: np.ndarray, index: int) -> float:
    n, d = keys.shape
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = d + 1, n - 1
    model.col_cost_ = np.eye(d + 1)[d] * -1
    model.col_lower_ = np.append(np.full(d, -1.0), -highspy.kHighsInf)
    model.col_upper_ = np.append(np.ones(d), highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = np.full(n - 1, -highspy.kHighsInf), np.zeros(n - 1)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.arange(n) * (d + 1)
    model.a_matrix_.index_ = np.tile(np.arange(d + 1), n - 1)
    model.a_matrix_.value_ = rows(keys, index).ravel()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(model)
    solver.run()
    return -solver.getInfo().objective_function_value


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    largest = int(sys.argv[1]) if sys.argv[1:] else 4096
    print("   n    d  unselectable   ours, ms  programmes, s  ratio (least, most)     bare, s   ratio (least, most)")
    sizes = [(1024, d) for d in (2, 4, 8, 16, 32, 64, 128)] + [(n, 8) for n in (64, 256, 4096)] + [(4096, 64)]
    for n, d in ((n, d) for n, d in sizes if n <= largest):
        keys = np.random.default_rng(n + d).standard_normal((n, d))
        chosen = np.random.default_rng(0).choice(n, min(n, TIMED), replace=False)
        unselectable = unselectable_keys(keys)
        for margin in (linprog_margin, bare_margin):
            assert all((margin(keys, i) < 1e-9) == unselectable[i] for i in chosen)
        pairs = []
        for _ in range(PAIRS):
            ours = seconds(lambda: unselectable_keys(keys))  # noqa: B023
            theirs, bare = (
                seconds(lambda: [margin(keys, i) for i in chosen]) * n / len(chosen)  # noqa: B023
                for margin in (linprog_margin, bare_margin)
            )
            pairs.append((ours, theirs, bare))
        ours, theirs, bare = map(np.array, zip(*pairs, strict=True))
        line = f"{n:5}{d:5}{unselectable.mean():13.1%}{1000 * statistics.median(ours):11.1f}"
        for other in (theirs, bare):
            ratio = np.sort(other / ours)
            line += f"{np.median(other):14.2f} {np.median(ratio):7.1f} ({ratio[0]:.1f}, {ratio[-1]:.1f})"
        print(line, flush=True)
