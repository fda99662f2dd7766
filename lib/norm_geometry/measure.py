"""Measure a language model's normalization sites over a corpus.

    python -m norm_geometry measure --model smollm2-135m --tokens 8192 --out smollm2.csv

or, in a notebook,

    model, tokenizer, _ = models.load("smollm2-135m")
    chunks = corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, tokens=8192)
    table = tabulate(sweep(model, chunks))
"""

from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from norm_geometry import corpus, models, results
from norm_geometry.hooks import Record, watch
from norm_geometry.statistics import AngleStatistics, SecondMoment, random_directions, uniform_and_random

__all__ = ["RANK_DIRECTIONS", "measure", "sweep", "tabulate"]

RANK_DIRECTIONS = 4096  # random directions among which each direction gets its rank
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def sweep(
    model: PreTrainedModel,
    chunks: Sequence[Int[np.ndarray, "_"]],
    *,
    batch_size: int = 8,
    second_moment_every: int = 64,
    directions: Callable[[int], dict[str, np.ndarray]] = uniform_and_random,
) -> Record:
    """Run `model` over `chunks` of token ids and watch every normalization site. Shows a progress bar.

    The output head is left out: nothing that is measured depends on it. Sites are named as in `model.base_model`.
    """
    body = model.base_model
    progress = tqdm(total=sum(map(len, chunks)), unit=" tokens", unit_scale=True, desc="measuring")
    with watch(body, directions, second_moment_every=second_moment_every) as record, torch.inference_mode(), progress:
        for batch in corpus.batches(chunks, batch_size):
            body(**{name: torch.from_numpy(ids).to(model.device) for name, ids in batch.items()}, use_cache=False)
            progress.update(int(batch["attention_mask"].sum()))
    return record


def tabulate(record: Record, seed: int = 0) -> pd.DataFrame:
    """The measurement as a tidy table: one row per site, side of the norm ("before" or "after") and direction.

    Angles are in degrees; `energy_ratio` is R over all vectors; `rank` is the place of the direction's R among those
    of 4,096 random directions (1: none of them has a larger R), both over the subsample of `sampled` vectors, whose
    5 %, 50 % and 95 % quantiles of random R stand beside it. data/README.md describes every column.
    """
    controls = {width: random_directions(RANK_DIRECTIONS, width, seed + 1) for width in {s.width for s in record.sites}}
    rows = []
    for site in record.sites:
        if site.name not in record:
            continue
        names, vectors = zip(*record.directions(site.width).items(), strict=True)
        measured = record[site.name]
        for side, angles, moment in (
            ("before", measured.before, measured.second_moment_before),
            ("after", measured.after, measured.second_moment_after),
        ):
            place = {"site": site.name, "kind": site.kind, "width": site.width, "place": site.place, "side": side}
            columns = _columns(angles) | _rank_columns(moment, np.stack(vectors), controls[site.width])
            rows += [
                place | {"direction": name} | {key: column[i] for key, column in columns.items()}
                for i, name in enumerate(names)
            ]
    return pd.DataFrame(rows)


def measure(
    name: str,
    out: str | Path,
    *,
    tokens: int | None,
    revision: str | None = None,
    online: bool = False,
    length: int = 512,
    batch_size: int = 8,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure the model called `name` on `tokens` tokens of Wikipedia (None: all of it) and save the table to `out`.

    What cannot work is said before the model runs: see `models.load`, `corpus.tokenize`, `results.check_writable`.
    """
    results.check_writable(out)
    model, tokenizer, provenance = models.load(name, revision=revision)
    articles = corpus.online_wikipedia() if online else corpus.packaged_wikipedia()
    chunks = corpus.tokenize(articles, tokenizer, length=length, tokens=tokens)
    record = sweep(model, chunks, batch_size=batch_size, directions=lambda width: uniform_and_random(width, seed))
    table = tabulate(record, seed)
    text = "wikimedia/wikipedia 20231101.en" if online else f"enwiki dump packaged in gensim {version('gensim')}"
    options = (" --online" if online else "") + (f" --revision {revision}" if revision else "")
    results.save(
        table,
        {
            "model": {"name": name} | provenance,
            "corpus": {
                "text": text,
                "token_ids_sha256": corpus.fingerprint(chunks),
                "tokens": sum(map(len, chunks)),
                "sequences": len(chunks),
                "sequence_length": length,
            },
            "batch_size": batch_size,
            "seed": seed,
            "second_moment_every": record.second_moment_every,
            "rank_directions": RANK_DIRECTIONS,
            "versions": {p: version(p) for p in ("norm-geometry", "numpy", "tokenizers", "torch", "transformers")},
            "command": f"python -m norm_geometry measure --model {name} --tokens {tokens or 'all'}{options}"
            f" --length {length} --batch-size {batch_size} --seed {seed} --out {Path(out).name}",
            "date": date.today().isoformat(),
        },
        out,
    )
    return table


def _columns(angles: AngleStatistics) -> dict[str, np.ndarray]:
    directions = len(angles.mean)

    def same(value: int | float) -> np.ndarray:
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


def _rank_columns(moment: SecondMoment, directions: np.ndarray, controls: np.ndarray) -> dict[str, np.ndarray]:
    random = np.sort(moment.energy_ratio(controls))
    own = moment.energy_ratio(directions)
    larger = len(random) - np.searchsorted(random, own, side="right")
    spread = {f"random_energy_ratio_q{round(100 * q):02}": np.quantile(random, q) for q in (0.05, 0.5, 0.95)}
    return {
        "sampled": np.full(len(own), moment.count),
        "sampled_energy_ratio": own,
        "rank": 1 + larger,
        **{name: np.full(len(own), value) for name, value in spread.items()},
    }
