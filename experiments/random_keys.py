"""How often random keys hold one that cannot be selected: python experiments/random_keys.py, a few minutes.

Figures 1c and 1d of Brody, Alon and Yahav (2023, arXiv:2305.02582): Gaussian keys, as they are and after LayerNorm.
"""

import argparse
from datetime import date
from importlib.metadata import version
from itertools import product
from multiprocessing import Pool

import numpy as np
import pandas as pd

from norm_geometry import norms, results, selectability

DRAWS = 100
NORMS = {"none": lambda x: x, "layer": lambda x: norms.layer_norm(x, eps=0.0)}


def row(place: tuple[int, int]) -> list[dict]:
    """One number of dimensions and of keys; both rows are about the same draws."""
    d, n = place
    draws = np.random.default_rng(place).standard_normal((DRAWS, n, d))
    rows = []
    for name, norm in NORMS.items():
        counts = np.array([selectability.unselectable_keys(norm(keys)).sum() for keys in draws])
        shares = {"with_unselectable": np.count_nonzero(counts), "unselectable_share": counts.mean() / n}
        rows.append({"norm": name, "d": d, "n": n, "draws": DRAWS} | shares)
    return rows


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    places = list(product(range(3, 16), range(3, 61)))
    with Pool() as pool:
        rows = [each for rows in pool.imap(row, places, chunksize=8) for each in rows]
    provenance = {
        "what": "Gaussian keys, as they are and after LayerNorm: draws that hold an unselectable key, and their share",
        "command": "python experiments/random_keys.py",
        "seed": "numpy.random.default_rng((d, n))",
        "versions": {package: version(package) for package in ("highspy", "norm-geometry", "numpy", "scipy")},
        "date": date.today().isoformat(),
    }
    results.save(pd.DataFrame(rows), provenance, results.DATA / "measurements" / "random-keys.csv")
