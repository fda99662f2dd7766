"""The nano twins: LayerNorm and RMSNorm, three seeds each, and the arms that test where orthogonality comes from.

    python experiments/twins.py    # trains what is not trained yet, two runs at a time with one thread each

A run that was killed goes on from its last checkpoint in _build/twins and ends with the numbers it would have had.
Writes data/measurements/twins-angles.csv, twins-writers.csv and twins-losses.csv, and data/models/nano-*.safetensors.
"""

import argparse
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch

from norm_geometry import results
from norm_geometry.training import train

PARTS = Path("_build/twins")
ARMS = {
    "LayerNorm": {"norm": "layer"},
    "RMSNorm": {"norm": "rms"},
    "LayerNorm, SGD": {"norm": "layer", "optimizer": "sgd", "weight_decay": 0.0, "rate": 0.5},
    "RMSNorm, SGD": {"norm": "rms", "optimizer": "sgd", "weight_decay": 0.0, "rate": 0.5},
    "LayerNorm, no decay": {"norm": "layer", "weight_decay": 0.0},
    "RMSNorm, no decay": {"norm": "rms", "weight_decay": 0.0},
    "LayerNorm, SGD, decay": {"norm": "layer", "optimizer": "sgd", "weight_decay": 2e-3, "rate": 0.5},
}
RUNS = [(arm, 0) for arm in ARMS] + [(arm, seed) for seed in (1, 2) for arm in ("LayerNorm", "RMSNorm")]
LOSSES_EVERY = 25  # steps, of whose training losses the mean is published


def folder(arm: str, seed: int) -> Path:
    return PARTS / f"{arm}, seed {seed}"


def run(arm: str, seed: int) -> None:
    torch.set_num_threads(1)
    train(folder(arm, seed), seed=seed, **ARMS[arm])


def published(table: str, arm: str, seed: int) -> tuple[pd.DataFrame, dict]:
    rows, provenance = results.load(folder(arm, seed) / f"{table}.csv")
    if table == "losses":
        mean = rows["training_loss"].groupby(-(-rows["step"] // LOSSES_EVERY) * LOSSES_EVERY).mean()
        rows = pd.concat([mean, rows.set_index("step")["held_out_loss"].dropna()], axis=1).rename_axis("step")
        rows = rows.sort_index().reset_index().round(5)
    return rows.assign(arm=arm, seed=seed), provenance


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(run, *zip(*RUNS, strict=True)))
    for table in ("angles", "writers", "losses"):
        tables, provenances = zip(*(published(table, *each) for each in RUNS), strict=True)
        shared = {key: value for key, value in provenances[0].items() if all(p[key] == value for p in provenances)}
        arms = {arm: {"weight_decay": 0.1} | settings for arm, settings in ARMS.items()}
        provenance = shared | {"arms": arms, "command": "python experiments/twins.py", "date": provenances[-1]["date"]}
        results.save(pd.concat(tables), provenance, results.DATA / "measurements" / f"twins-{table}.csv")
    (results.DATA / "models").mkdir(exist_ok=True)
    for norm, arm in (("layer", "LayerNorm"), ("rms", "RMSNorm")):
        shutil.copy(folder(arm, 0) / "model.safetensors", results.DATA / "models" / f"nano-{norm}.safetensors")


if __name__ == "__main__":
    main()
