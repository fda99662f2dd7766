"""A tiny GPT-2 with and without the scaling of its attention norms: tables 1 and 2 and figure 4 of Brody, Alon and
Yahav (2023), https://arxiv.org/abs/2305.02582.

    python experiments/tiny_gpt2.py    # trains what is not trained yet, then measures: an hour on two free cores

Two runs at a time, one thread each. A run that was killed goes on from its last checkpoint in _build/tiny-gpt2 and
ends with the numbers it would have had; delete that folder after a change of the settings. Writes
data/measurements/tiny-gpt2-training.csv and tiny-gpt2-keys.csv.
"""

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from importlib.metadata import version
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from norm_geometry import corpus, norms, results, windows
from norm_geometry.selectability import unselectable_keys

PARTS = Path("_build/tiny-gpt2")
ARMS = ("with scaling", "without scaling")
SEEDS = (0, 1, 2)
VOCABULARY, STEPS, LEARNING_RATE = 4096, 6_000, 5e-3
SHORTEST, LONGEST = 768, 1024  # tokens of an input
CURVE_EVERY, TEST_EVERY, CHECKPOINT_EVERY = 100, 500, 250
MEASURED = 20  # inputs in which unselectable keys are counted
PREFIXES = (16, 64, 256, LONGEST)  # a causal model's later tokens choose among more keys


class Projection(nn.Module):
    """LayerNorm without its scaling: x − mean(x)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return norms.project(x)


def tiny_gpt2(arm: str, seed: int) -> GPT2LMHeadModel:
    """GPT-2 with hidden size 8, four layers and four heads, its attention fed by LayerNorm or by the projection alone.

    As in the authors' code the norms before attention have no gain and bias, and the keys no bias: scaling is then the
    only difference. The initial weights depend on the seed alone.
    """
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LONGEST,
        n_embd=8,
        n_layer=4,
        n_head=4,
        attn_pdrop=0.0,  # dropping attention weights would make a step three times as long
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        scaling = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, elementwise_affine=False)
        block.ln_1 = {"with scaling": scaling, "without scaling": Projection()}[arm]
        block.attn.c_attn.bias.requires_grad_(False)  # it starts at zero
    return model


def data() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The training articles as one row of token ids, and the inputs of 768 to 1,024 tokens to test with.

    Every eighth article is held out, from the training of the vocabulary too; every third input of theirs is taken.
    """
    tokenizer, training, held_out = windows.split(VOCABULARY)
    stream = [token for text in training for token in [*tokenizer.encode(text).ids, 0]]
    inputs = []
    for text in held_out:
        ids = torch.tensor(tokenizer.encode(text).ids)
        inputs += [window for window in ids.split(LONGEST) if len(window) >= SHORTEST]
    return torch.tensor(stream), inputs[::3]


def loss_of(model: GPT2LMHeadModel, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token, in nats."""
    return cross_entropy(model(ids[None]).logits[0, :-1], ids[1:])


@torch.no_grad()
def test_loss(model: GPT2LMHeadModel, inputs: list[torch.Tensor]) -> float:
    model.eval()
    return float(np.mean([loss_of(model, ids).item() for ids in inputs]))


def train(
    arm: str,
    seed: int,
    stream: torch.Tensor,
    inputs: list[torch.Tensor],
    folder: Path = PARTS,
    steps: int = STEPS,
    checkpoint_every: int = CHECKPOINT_EVERY,
) -> dict:
    """Train one model to the end, from its last checkpoint if there is one, and return the final checkpoint.

    A step draws from generators of its own number alone, so a resumed run draws what an uninterrupted one would.
    """
    torch.set_num_threads(1)
    model = tiny_gpt2(arm, seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], weight_decay=0.0)
    checkpoint = {"step": 0, "losses": [], "test_losses": {}, "seconds": 0.0}
    file = folder / f"{arm}, seed {seed}.pt"
    if file.exists():
        checkpoint = torch.load(file)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    random = np.random.default_rng(seed)
    lengths = random.integers(SHORTEST, LONGEST + 1, size=steps)
    starts = random.integers(len(stream) - LONGEST, size=steps)
    losses, test_losses, started = checkpoint["losses"], checkpoint["test_losses"], time.perf_counter()
    if not test_losses:
        test_losses[0] = test_loss(model, inputs)
    for step in range(checkpoint["step"], steps):
        torch.manual_seed(seed * steps + step)  # of dropout
        model.train()
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
        loss = loss_of(model, stream[starts[step] : starts[step] + lengths[step]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        done = step + 1
        if done % TEST_EVERY == 0 or done == steps:
            test_losses[done] = test_loss(model, inputs)
            print(f"{arm}, seed {seed}: step {done}, test loss {test_losses[done]:.4f}", flush=True)
        if done % checkpoint_every == 0 or done == steps:
            seconds = checkpoint["seconds"] + time.perf_counter() - started
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"step": done, "losses": losses, "test_losses": test_losses, "seconds": seconds}
            unfinished = file.with_suffix(".unfinished")
            torch.save(state, unfinished)
            os.replace(unfinished, file)
    return torch.load(file)


@torch.no_grad()
def vectors_before_attention(model: GPT2LMHeadModel, ids: torch.Tensor) -> dict[tuple[int, str], torch.Tensor]:
    """The vectors before and after the norm of every layer's attention, and the keys that each head makes of them."""
    vectors = {}

    def keep(layer: int, block: nn.Module) -> list:
        def norm(_, inputs, output):
            vectors[layer, "before the norm"], vectors[layer, "after the norm"] = inputs[0][0], output[0]

        def projections(_, inputs, output):
            keys = output[0].chunk(3, dim=-1)[1].chunk(block.attn.num_heads, dim=-1)
            vectors.update({(layer, f"head {head}"): own for head, own in enumerate(keys)})

        return [block.ln_1.register_forward_hook(norm), block.attn.c_attn.register_forward_hook(projections)]

    handles = [handle for layer, block in enumerate(model.transformer.h) for handle in keep(layer, block)]
    model.eval()(ids[None])
    for handle in handles:
        handle.remove()
    return vectors


def unselectable(model: GPT2LMHeadModel, inputs: list[torch.Tensor]) -> pd.DataFrame:
    """Count the unselectable vectors among the first `length` of every input, by layer and place."""
    count = Counter()
    for ids in inputs:
        for (layer, place), own in vectors_before_attention(model, ids).items():
            for length in (LONGEST,) if place == "before the norm" else PREFIXES:
                keys = own[:length]
                row = (layer, place, keys.shape[1], length)
                count[row, "keys"] += len(keys)
                count[row, "unselectable"] += int(unselectable_keys(keys).sum())
    rows = [(*row, count[row, "keys"], count[row, "unselectable"]) for row, what in count if what == "keys"]
    return pd.DataFrame(rows, columns=["layer", "place", "dimension", "length", "keys", "unselectable"])


def run(arm: str, seed: int, stream: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The curves of one run, and its unselectable keys before and after training."""
    trained = train(arm, seed, stream, inputs)
    steps = pd.RangeIndex(1, STEPS + 1, name="step")
    losses = pd.Series(trained["losses"], steps).groupby(-(-steps // CURVE_EVERY) * CURVE_EVERY).mean()
    curves = pd.DataFrame({"training_loss": losses, "test_loss": pd.Series(trained["test_losses"])})
    file = PARTS / f"{arm}, seed {seed}.csv"
    if not file.is_file():
        model = tiny_gpt2(arm, seed)
        tables = [unselectable(model, inputs[:MEASURED]).assign(step=0)]
        model.load_state_dict(trained["model"])
        tables.append(unselectable(model, inputs[:MEASURED]).assign(step=STEPS))
        unfinished = file.with_suffix(".unfinished")
        pd.concat(tables).to_csv(unfinished, index=False)
        os.replace(unfinished, file)
        print(f"{arm}, seed {seed}: measured", flush=True)
    named = {"arm": arm, "seed": seed}
    return curves.rename_axis("step").reset_index().round(5).assign(**named), pd.read_csv(file).assign(**named)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    PARTS.mkdir(parents=True, exist_ok=True)
    stream, inputs = data()
    print(f"{len(stream):,} training tokens, {len(inputs)} inputs to test with", flush=True)
    runs = [(arm, seed) for seed in SEEDS for arm in ARMS]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        curves, keys = zip(*pool.map(run, *zip(*runs, strict=True), repeat(stream), repeat(inputs)), strict=True)
    provenance = {
        "text": f"enwiki dump packaged in gensim {version('gensim')}",
        "training_tokens": len(stream),
        "training_token_ids_sha256": corpus.fingerprint([stream.numpy()]),
        "test_inputs": len(inputs),
        "test_token_ids_sha256": corpus.fingerprint([ids.numpy() for ids in inputs]),
        "vocabulary": VOCABULARY,
        "input_lengths": [SHORTEST, LONGEST],
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "measured_inputs": MEASURED,
        "versions": {p: version(p) for p in ("norm-geometry", "numpy", "tokenizers", "torch", "transformers")},
        "command": "python experiments/tiny_gpt2.py",
        "date": date.today().isoformat(),
    }
    for name, tables in (("training", curves), ("keys", keys)):
        results.save(pd.concat(tables), provenance, results.DATA / "measurements" / f"tiny-gpt2-{name}.csv")


if __name__ == "__main__":
    main()
