"""The runs behind the chapter `projection`: python experiments/majority.py, less than an hour on two free cores.

Every finished run is kept in _build/majority; started again, the command goes on there. Delete that folder after a
change of the settings.
"""

import argparse
import time
from collections.abc import Iterator
from datetime import date
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch

from norm_geometry import majority, results

PARTS = Path("_build/majority")
PUBLISHED = ["projection", "LayerNorm's scale", "released scale"]  # the two arms of the paper, and what parts them
FOUR = [*PUBLISHED, "identity"]
OTHERS = [arm for arm in majority.ARMS if arm not in FOUR]

# Dense at first, when most happens.
RECORD = [*range(0, 2000, 100), *range(2000, 16_001, 500)]
COMMON = {"d": 8, "batch": 512}
PLANS = {
    "majority": (FOUR, {"steps": 16_000, "seeds": range(10)}),
    "majority-ablation": (OTHERS, {"steps": 2000, "seeds": range(10)}),
    "majority-3d": (
        PUBLISHED,
        # As in the paper's runs for its pictures, but for the batch, there all of the 4,800 training sequences.
        {"d": 3, "steps": 10_000, "decay_over": 10_000, "seeds": range(3)}
        | {"classes": 10, "length": 30, "partitions": 600},
    ),
    "majority-batch": (PUBLISHED, {"batch": 6000, "steps": 1000, "seeds": range(3)}),
    "majority-width-32": (FOUR, {"d": 32, "steps": 2000, "seeds": range(5)}),
    "majority-width-64": (FOUR, {"d": 64, "steps": 500, "seeds": range(5)}),
}
TABLES = {
    "majority": ["majority"],
    "majority-ablation": ["majority-ablation"],
    "majority-3d": ["majority-3d"],
    "majority-width": ["majority-width-32", "majority-width-64"],
    "majority-batch": ["majority-batch"],
}


def part(plan: str, arm: str) -> Path:
    return PARTS / f"{plan}, {arm}.pt"


def run(plan: str, arm: str) -> None:
    """Train one arm of one plan, unless that is done."""
    if part(plan, arm).is_file():
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    begun, settings = time.monotonic(), COMMON | PLANS[plan][1]
    trained = majority.train(arm, record=RECORD, progress=partial(print, f"{plan}:", flush=True), **settings)
    seconds = round(time.monotonic() - begun)
    print(f"{plan}: {arm} took {seconds} s", flush=True)
    table = trained.table.assign(arm=arm, d=settings["d"])
    unfinished = part(plan, arm).with_suffix(".unfinished")
    torch.save({"table": table.to_dict(), "parameters": trained.parameters, "seconds": seconds}, unfinished)
    unfinished.rename(part(plan, arm))


def runs(name: str) -> Iterator[tuple[str, dict]]:
    for plan in TABLES[name]:
        for arm in PLANS[plan][0]:
            yield arm, torch.load(part(plan, arm), weights_only=True)


def write(name: str, plans: list[str], table: pd.DataFrame, seconds: int) -> None:
    provenance = {
        "settings": {plan: {key: str(value) for key, value in (COMMON | PLANS[plan][1]).items()} for plan in plans},
        "wall_seconds_of_all_runs": seconds,
        "versions": {package: version(package) for package in ("norm-geometry", "numpy", "scikit-learn", "torch")},
        "command": "python experiments/majority.py",
        "date": date.today().isoformat(),
    }
    # Five digits are more than two machines agree on.
    rounded = table.map(lambda value: float(f"{value:.5g}") if isinstance(value, float) else value)
    results.save(rounded, provenance, results.DATA / "measurements" / f"{name}.csv")


def vectors(arm: str, parameters: dict[str, torch.Tensor]) -> pd.DataFrame:
    """The learned keys and mapped-back queries, one row for each seed and class."""
    x = majority.ARMS[arm](parameters["embedding"])[0]
    both = torch.cat([x, majority.mapped_back_queries(parameters, x)], dim=-1).flatten(0, 1)
    table = pd.DataFrame(both.numpy(), columns=[f"{kind}_{axis}" for kind in ("key", "query") for axis in "xyz"])
    seed_and_class = pd.MultiIndex.from_product(map(range, x.shape[:2])).to_frame(index=False, name=["seed", "class"])
    return pd.concat([seed_and_class, table], axis=1).assign(arm=arm)


def tabulate(name: str) -> None:
    """Write the table of the finished runs, and in three dimensions the vectors for the picture as well."""
    finished, plans = list(runs(name)), TABLES[name]
    seconds = sum(one["seconds"] for _, one in finished)
    write(name, plans, pd.concat([pd.DataFrame(one["table"]) for _, one in finished]), seconds)
    if name == "majority-3d":
        both = pd.concat([vectors(arm, one["parameters"]) for arm, one in finished])
        write(f"{name}-vectors", plans, both, seconds)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--processes", type=int, default=2)
    PARTS.mkdir(parents=True, exist_ok=True)
    jobs = [(plan, arm) for plan, (arms, _) in PLANS.items() for arm in arms]
    with get_context("spawn").Pool(arguments.parse_args().processes, maxtasksperchild=1) as pool:
        pool.starmap(run, jobs, chunksize=1)
    for name in TABLES:
        tabulate(name)


if __name__ == "__main__":
    main()
