"""Which keys of trained models can be selected: python experiments/real_keys.py [--processes 2], about half an hour.

For every layer and head, the keys as attention uses them (after the key matrix and the rotary embedding): how many no
query can select, in prefixes of the text and in the space of their leading principal components; for some keys, how
long a query must be to give them more than half of the weight; and what the model's own queries do. Each finished
window of text is kept in _build/real-keys; started again, the command goes on there. (Delete that folder after a change
of the settings.)
"""

import argparse
from datetime import date
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from norm_geometry import corpus, models, results
from norm_geometry.selectability import length_for_half, selecting_query, unselectable_keys

PARTS = Path("_build/real-keys")
# The length of a window, the number of windows, and the prefixes in which keys are counted.
PLANS = {
    "smollm2-135m": (2048, 4, (64, 256, 1024, 2048)),
    "all-minilm-l6-v2": (512, 8, (64, 128, 256, 512)),
}
COMPONENTS = (2, 4, 8, 12, 16, 24, 32, 48)  # leading principal components, in prefixes of REDUCED keys
REDUCED, REDUCED_WINDOWS = {"smollm2-135m": 1024, "all-minilm-l6-v2": 512}, 2
SAMPLED = 32  # keys of each head and window whose margin is measured, in prefixes of REDUCED keys


def attention_inputs(model, ids: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each layer the keys (heads, n, d), the lengths of the queries and the weights (query heads, n, n)."""
    queries, keys = [], []  # of an encoder; a decoder keeps its keys, turned by the rotary embedding, in its cache
    handles = [
        part.register_forward_hook(lambda module, inputs, output, kept=kept: kept.append(output[0]))
        for kept, names in ((queries, ("q_proj", "self.query")), (keys, ("self.key",)))
        for name, part in model.named_modules()
        if name.endswith(names)
    ]
    with torch.inference_mode():
        out = model(torch.from_numpy(ids)[None], output_attentions=True)
    for handle in handles:
        handle.remove()
    heads = out.attentions[0].shape[1]
    lengths = [query.unflatten(-1, (heads, -1)).norm(dim=-1).T for query in queries]  # which a rotation leaves
    if keys:
        keys = [key.unflatten(-1, (heads, -1)).transpose(0, 1) for key in keys]
    else:
        keys = [layer.keys[0] for layer in out.past_key_values.layers]
    attentions = [weights[0] for weights in out.attentions]
    return [tuple(part.numpy() for part in layer) for layer in zip(keys, lengths, attentions, strict=True)]


def measure_window(place: tuple[str, int]) -> None:
    name, window = place
    counted, sampled = (PARTS / f"{name}-{window}-{kind}.csv" for kind in ("counts", "lengths"))
    if sampled.is_file():
        return
    torch.set_num_threads(1)
    length, windows, prefixes = PLANS[name]
    model, tokenizer, _ = models.load(name)
    model.set_attn_implementation("eager")  # the one that returns its weights
    chunks = [
        ids for ids in corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, length=length) if len(ids) == length
    ]
    ids = chunks[window * len(chunks) // windows]  # spread over the text
    count_rows, length_rows = [], []
    for layer, (keys, query_lengths, weights) in enumerate(attention_inputs(model, ids)):
        for head, own in enumerate(keys):
            d, n = own.shape[1], REDUCED[name]
            known = {"model": name, "layer": layer, "head": head}
            for prefix in prefixes:
                count = int(unselectable_keys(own[:prefix]).sum())
                count_rows.append(known | {"components": d, "n": prefix, "keys": prefix, "unselectable": count})
            if window < REDUCED_WINDOWS:
                centred = own[:n] - own[:n].mean(axis=0)
                principal = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
                for m in (m for m in COMPONENTS if m < d):
                    count = int(unselectable_keys(principal[:, :m]).sum())
                    count_rows.append(known | {"components": m, "n": n, "keys": n, "unselectable": count})
            group = slice(head * len(weights) // len(keys), (head + 1) * len(weights) // len(keys))
            received = weights[group, :n, :n]
            winners = received.argmax(axis=2)
            used = {
                "won": len(np.unique(winners)) / n,
                "won_half": (received > 0.5).any(axis=(0, 1)).mean(),
                "won_by_first": (winners == 0).mean(),
                "query_median": np.median(query_lengths[group, :n]),
                "query_longest": query_lengths[group, :n].max(),
            }
            for index in np.random.default_rng((window, layer, head)).choice(n, SAMPLED, replace=False):
                query = selecting_query(own[:n], index)
                if query is None:
                    margin, needed = 0.0, np.inf
                else:
                    margin = np.delete(own[index] - own[:n], index, axis=0).dot(query).min()
                    needed = length_for_half(own[:n], index, query)
                length_rows.append(known | {"margin": margin, "needed": needed} | used)
        print(f"{name}, window {window}, layer {layer}", flush=True)
    for rows, file in ((count_rows, counted), (length_rows, sampled)):
        unfinished = file.with_suffix(".unfinished")
        pd.DataFrame(rows).to_csv(unfinished, index=False)
        unfinished.rename(file)


def save_tables() -> None:
    head = ["model", "layer", "head"]
    counts = pd.concat(map(pd.read_csv, sorted(PARTS.glob("*-counts.csv"))))
    counts = counts.groupby([*head, "components", "n"])[["keys", "unselectable"]].sum().reset_index()
    lengths = pd.concat(map(pd.read_csv, sorted(PARTS.glob("*-lengths.csv")))).groupby(head)
    quantiles = {
        f"{name}_q{round(100 * q):02}": lengths[name].quantile(q)
        for name in ("margin", "needed", "query_median", "query_longest")
        for q in (0.05, 0.5, 0.95)
    }
    shares = {
        f"within_{bound}": lengths.apply(lambda rows, bound=bound: (rows["needed"] <= rows[f"query_{bound}"]).mean())
        for bound in ("median", "longest")
    }
    means = {name: lengths[name].mean() for name in ("won", "won_half", "won_by_first")}
    summary = pd.DataFrame({"sampled": lengths.size()} | quantiles | shares | means).reset_index()
    provenance = {
        "what": "keys of attention heads that no query can select, and how long queries must be for half of the weight",
        "models": {name: models.load(name).provenance for name in PLANS},
        "windows": {name: {"tokens": length, "number": windows} for name, (length, windows, _) in PLANS.items()},
        "corpus": "norm_geometry.corpus.packaged_wikipedia",
        "command": "python experiments/real_keys.py",
        "versions": {
            package: version(package)
            for package in ("highspy", "norm-geometry", "numpy", "scipy", "torch", "transformers")
        },
        "date": date.today().isoformat(),
    }
    for name, table in {"real-keys": counts, "real-keys-lengths": summary}.items():
        results.save(table, provenance, results.DATA / "measurements" / f"{name}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    PARTS.mkdir(parents=True, exist_ok=True)
    places = [(name, window) for name, (_, windows, _) in PLANS.items() for window in range(windows)]
    with get_context("spawn").Pool(options.processes) as pool:
        pool.map(measure_window, places, chunksize=1)
    save_tables()
