"""Measure a language model's normalization sites over a corpus.

    python -m norm_geometry measure --model smollm2-135m --tokens 8192 --out smollm2.csv

or, in a notebook,

    model, tokenizer, _ = models.load("smollm2-135m")
    chunks = corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, tokens=8192)
    table = tabulate(sweep(model, chunks))
"""

import sys
from contextlib import nullcontext
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from norm_geometry import corpus, models, results
from norm_geometry.checkpoints import Checkpoint, differences
from norm_geometry.hooks import CONTROLS, Record
from norm_geometry.statistics import AngleStatistics, EnergyRatios, uniform_and_random
from norm_geometry.sweeps import launched_processes, sweep

__all__ = ["measure", "sweep", "tabulate"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def measure(
    name: str,
    out: str | Path,
    *,
    tokens: int | None,
    text: str = "packaged",
    revision: str | None = None,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    length: int = 512,
    batch_size: int = 8,
    skip: int = 0,
    seed: int = 0,
    checkpoint_every: float = 60.0,
) -> pd.DataFrame:
    """Measure the model called `name` on `tokens` tokens of a text (None: all of it) and save the table to `out`.

    `text` is "packaged" or "online", for the two Wikipedias of `corpus`, or the name of a file. A measurement that was
    interrupted goes on from its last checkpoint, which lies beside `out`; one that is there already is read.
    What cannot work is said before the model runs: see `models.load`, `corpus.tokenize`, `results.check_writable`.

    Raises:
        ValueError: `out`, or a checkpoint beside it, holds another measurement or is damaged; or `length` is more than
            the model can read.
        RuntimeError: another process is writing to `out`.
    """
    out, processes = Path(out), launched_processes()
    results.check_writable(out)
    with results.locked(out) if processes.is_main_process else nullcontext():
        device = device or (str(processes.device) if processes.num_processes > 1 else None)
        model, tokenizer, provenance = models.load(name, revision=revision, device=device, dtype=dtype)
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if longest and length > longest:
            raise ValueError(f"{name} reads at most {longest} tokens at once: give a smaller --length than {length}")
        description, articles = corpus.articles(text)
        chunks = corpus.tokenize(articles, tokenizer, length=length, tokens=tokens)
        run = {
            "model": {"name": name} | provenance,
            "corpus": {
                "text": description,
                "token_ids_sha256": corpus.fingerprint(chunks),
                "tokens": sum(map(len, chunks)),
                "sequences": len(chunks),
                "sequence_length": length,
            },
            "batch_size": batch_size,
            "skip": skip,
            "seed": seed,
            "random_directions": CONTROLS,
            "processes": processes.num_processes,
            "versions": {p: version(p) for p in ("norm-geometry", "numpy", "tokenizers", "torch", "transformers")},
        }
        given = {"--revision": revision, "--device": device, "--dtype": dtype and provenance["dtype"]}
        command = (
            f"python -m norm_geometry measure --model {name} --tokens {tokens or 'all'} --text {text}"
            + "".join(f" {option} {value}" for option, value in given.items() if value)
            + f" --length {length} --batch-size {batch_size} --skip {skip} --seed {seed} --out {out.name}"
        )
        if out.exists():
            return _already_measured(out, run)
        part = f"-{processes.process_index + 1}-of-{processes.num_processes}" if processes.num_processes > 1 else ""
        checkpoint = Checkpoint(out.with_name(f"{out.name}.checkpoint{part}"), run, checkpoint_every)
        processes.print(
            f"{name}: {model.num_parameters():,} parameters in {provenance['dtype']} on {provenance['device']}, "
            f"{run['corpus']['tokens']:,} tokens in {len(chunks):,} sequences",
            file=sys.stderr,
        )
        record = sweep(
            model,
            chunks,
            batch_size=batch_size,
            directions=lambda width: uniform_and_random(width, seed),
            skip=skip,
            seed=seed,
            checkpoint=checkpoint,
        )
        table = tabulate(record)
        if processes.is_main_process:
            results.save(
                table,
                run | {"sample_every": record.sample_every, "command": command, "date": date.today().isoformat()},
                out,
            )
        processes.wait_for_everyone()
        checkpoint.delete()
    return table


def tabulate(record: Record) -> pd.DataFrame:
    """The measurement as a tidy table: one row per site, side of the norm ("before" or "after") and direction.

    Angles are in degrees; `energy_ratio` is R over all vectors; `rank` is the place of the direction's R among those
    of 2,048 random directions (1: none of them has a larger R), both over the subsample of `sampled` vectors, whose
    5 %, 50 % and 95 % quantiles of random R stand beside it. data/README.md describes every column.
    """
    sites, rows = {site.name: site for site in record.sites}, []
    for name, measured in record.items():
        site = sites[name]
        for side, angles, sampled in (
            ("before", measured.before, measured.sampled_before),
            ("after", measured.after, measured.sampled_after),
        ):
            place = {"site": name, "kind": site.kind, "width": site.width, "place": site.place, "side": side}
            columns = _columns(angles) | _rank_columns(sampled, len(record.directions[site.width]))
            rows += [
                place | {"direction": direction} | {key: column[i] for key, column in columns.items()}
                for i, direction in enumerate(record.directions[site.width])
            ]
    return pd.DataFrame(rows)


def _already_measured(out: Path, run: dict) -> pd.DataFrame:
    table, found = results.load(out)
    if unlike := differences(found, run):
        raise ValueError(f"{out} holds another measurement ({unlike}): delete it, or give another --out")
    print(f"{out} holds this measurement already, of {found['date']}", file=sys.stderr)
    return table


def _columns(angles: AngleStatistics) -> dict[str, np.ndarray]:
    directions = len(angles.mean)

    def same(value: int | float | np.ndarray) -> np.ndarray:
        return np.full(directions, value)

    norms = {f"norm_q{round(100 * q):02}": same(angles.norm_quantile(q)) for q in QUANTILES}
    return {
        "count": same(angles.count),
        "zero_count": same(angles.zero_count),
        "nonfinite_count": same(angles.nonfinite_count),
        "mean": angles.mean,
        "std": angles.std,
        "minimum": angles.minimum,
        "maximum": angles.maximum,
        **{f"q{round(100 * q):02}": angles.quantile(q) for q in QUANTILES},
        "energy_ratio": angles.energy_ratio,
        "norm_minimum": same(2.0 ** angles.log_norms.minimum[0]),
        **norms,
        "norm_maximum": same(2.0 ** angles.log_norms.maximum[0]),
    }


def _rank_columns(sampled: EnergyRatios, directions: int) -> dict[str, np.ndarray]:
    own, random = np.split(sampled.energy_ratio, [directions])
    random = np.sort(random)
    larger = len(random) - np.searchsorted(random, own, side="right")
    spread = {f"random_energy_ratio_q{round(100 * q):02}": np.quantile(random, q) for q in (0.05, 0.5, 0.95)}
    return {
        "sampled": np.full(len(own), sampled.count),
        "sampled_energy_ratio": own,
        "rank": 1 + larger,
        **{name: np.full(len(own), value) for name, value in spread.items()},
    }
