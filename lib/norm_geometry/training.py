"""Train a twin, and record what happens along the uniform vector meanwhile.

    python -m norm_geometry train --size nano --norm layer --seed 0 --out layer-0
    python -m norm_geometry train --size nano --norm rms --seed 0 --out rms-0

Both start from the same weights and read the same text in the same order. When a run is done its folder holds the
weights (`model.safetensors`, read by `twins.load`) and three tables, described in data/README.md: at recorded steps the
`angles` before every norm and the `writers`, which are the parameters that write to the residual stream; `losses` of
every step.

Source: Gupta et al. (2024), section 3.3 and appendix A.2, https://arxiv.org/abs/2409.12951. Not told there and chosen
here: AdamW's momenta of 0.9 and 0.95, a weight decay of 0.1 on matrices alone, gradients clipped to length 1, a
fiftieth of the steps for the linear rise of the learning rate.
"""

import json
import math
import sys
from contextlib import nullcontext
from datetime import date
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from norm_geometry import corpus, results, twins, windows
from norm_geometry.checkpoints import Checkpoint, differences
from norm_geometry.hooks import watch
from norm_geometry.measure import tabulate
from norm_geometry.twins import SIZES, Norm, Twin

__all__ = ["learning_rate", "recorded_steps", "train"]

WRITERS = ("wte.weight", "wpe.weight", "c_proj.weight", "c_proj.bias")  # the last axis of each is that of the stream
ANGLES = ["site", "direction", "count", "mean", "std", "energy_ratio", "rank", "norm_q50"]
ANGLES += [f"random_energy_ratio_q{q}" for q in ("05", "50", "95")]


def learning_rate(step: int, steps: int, greatest: float) -> float:
    """Of the step after `step` others: for a fiftieth of all it rises, then it falls to a tenth as a half cosine."""
    rising = max(steps // 50, 1)
    if step < rising:
        return greatest * (step + 1) / rising
    return greatest * (0.55 + 0.45 * math.cos(math.pi * (step - rising) / (steps - rising)))


def recorded_steps(steps: int) -> set[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, and the last."""
    return {0, steps} | {step for k in range(steps.bit_length()) for step in (2**k, 3 * 2**k) if step < steps}


def train(
    out: str | Path,
    *,
    size: str = "nano",
    norm: Norm = "layer",
    seed: int = 0,
    optimizer: Literal["adamw", "sgd"] = "adamw",
    weight_decay: float = 0.1,
    rate: float | None = None,
    steps: int | None = None,
    at_once: int = 8,
    checkpoint_every: float = 60.0,
) -> Twin:
    """Train one model into the folder `out`. An interrupted run goes on from its checkpoint, with the same losses.

    It runs on a GPU, in bfloat16, if there is one, and under `accelerate launch` on many, which share every batch.

    Args:
        size: a key of `twins.SIZES`.
        rate: the greatest learning rate, by default that of the size.
        steps: by default those of the size; the learning rate's schedule is made for so many.
        at_once: windows in one forward pass, as the memory allows; it changes the result by no more than rounding.

    Raises:
        ValueError: `out` holds something else, another run or a damaged one; or a batch cannot be divided.
        FloatingPointError: loss or gradient is not finite; the last checkpoint, from a step before that, is kept.
        RuntimeError: another process trains into `out`.
    """
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}: give one of {', '.join(SIZES)}")
    out, shape = Path(out), SIZES[size]
    _check_folder(out)
    bfloat16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    accelerator = Accelerator(cpu=not torch.accelerator.is_available(), mixed_precision="bf16" if bfloat16 else "no")
    with accelerator.main_process_first():
        text = getattr(windows, shape.text)(shape.length)
    run = {
        "size": {"name": size} | shape._asdict(),
        "norm": norm,
        "seed": seed,
        "optimizer": optimizer,
        "weight_decay": weight_decay,
        "greatest_learning_rate": rate or shape.learning_rate,
        "steps": steps or shape.steps,
        "text": text.text,
        "windows": len(text.training),
        "held_out_sha256": corpus.fingerprint(text.held_out),
        "at_once": at_once,
        "processes": accelerator.num_processes,
        "versions": {p: version(p) for p in ("norm-geometry", "numpy", "tokenizers", "torch", "transformers")},
    }
    with results.locked(out / "run") if accelerator.is_main_process else nullcontext():
        if (out / "losses.json").exists():
            _check_finished(out, run)
            return twins.load(out / "model.safetensors")
        training, checkpoint = _Training(accelerator, text, run), Checkpoint(out / "checkpoint", run, checkpoint_every)
        if state := checkpoint.load():
            training.restore(state)
        with tqdm(
            desc=f"training {out.name}",
            total=run["steps"],
            initial=training.done,
            unit=" steps",
            disable=not accelerator.is_main_process,
        ) as progress:
            while training.done < run["steps"]:
                training.step()
                progress.update()
                progress.set_postfix(loss=f"{training.losses[-1]:.3f}", refresh=False)
                if checkpoint.due and accelerator.is_main_process:
                    checkpoint.save(training.state())
        training.record()
        if accelerator.is_main_process:
            training.write(out)
            checkpoint.delete()
        accelerator.wait_for_everyone()
    return twins.load(out / "model.safetensors")


def _check_folder(out: Path) -> None:
    ours = {"checkpoint", "losses.csv", "run.lock"}
    if out.exists() and not (out.is_dir() and (ours & {path.name for path in out.iterdir()} or not any(out.iterdir()))):
        raise ValueError(f"{out} exists and is not the folder of a training run: give another --out")
    out.mkdir(parents=True, exist_ok=True)


def _check_finished(out: Path, run: dict) -> None:
    _, found = results.load(out / "losses.csv")
    if unlike := differences(found, run):
        raise ValueError(f"{out} holds another run ({unlike}): delete it, or give another --out")
    print(f"{out} holds this run already, of {found['date']}", file=sys.stderr)


class _Training:
    """A model in training: what a step does, what is recorded, and all that must be kept to go on."""

    def __init__(self, accelerator: Accelerator, text: windows.Windows, run: dict):
        shape = SIZES[run["size"]["name"]]
        own = shape.batch // accelerator.num_processes
        self.at_once = min(run["at_once"], own)
        if own * accelerator.num_processes != shape.batch or own % self.at_once:
            raise ValueError(
                f"{shape.batch} windows a step cannot be divided among {accelerator.num_processes} processes, "
                f"{self.at_once} at once: choose divisors"
            )
        accelerator.gradient_accumulation_steps = own // self.at_once
        self.accelerator, self.text, self.run = accelerator, text, run
        self.plain = twins.gpt2(shape, run["norm"], text.tokenizer.get_vocab_size(), run["seed"])
        self.initial = {name: p.detach().clone() for name, p in self.plain.named_parameters() if name.endswith(WRITERS)}
        self.model, self.optimizer = accelerator.prepare(self.plain, _optimizer(self.plain, run))
        self.recorded = recorded_steps(run["steps"])
        self.order = _order(len(text.training), run["steps"] * shape.batch, run["seed"]).reshape(-1, shape.batch)
        self.done, self.losses = 0, []
        self.rows = {"angles": [], "writers": [], "held out": []}

    def step(self) -> None:
        """Make one, after recording if it is time for that. Nothing is changed by a loss that is not finite."""
        recorded = self.done in self.recorded
        if recorded:
            self.record()
        rate = learning_rate(self.done, self.run["steps"], self.run["greatest_learning_rate"])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        own = self.order[self.done][self.accelerator.process_index :: self.accelerator.num_processes]
        losses = []
        self.model.train()
        for numbers in own.reshape(-1, self.at_once):
            ids = torch.as_tensor(self.text.training[numbers]).to(self.accelerator.device)
            with self.accelerator.accumulate(self.model):
                loss = _loss(self.model(input_ids=ids, use_cache=False).logits, ids)
                losses.append(loss.detach())
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    length = self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    mean = self.accelerator.reduce(torch.stack(losses).mean(), "mean").item()
                    if not math.isfinite(mean + float(length)):
                        raise FloatingPointError(
                            f"step {self.done + 1} has loss {mean} and a gradient of length {float(length)}: a "
                            f"checkpoint from before it is kept; try a learning rate below {rate:.1e} in a new folder"
                        )
                    if recorded:
                        self._record_writers()
                self.optimizer.step()
                self.optimizer.zero_grad()
        self.losses.append(mean)
        self.done += 1

    @torch.no_grad()
    def record(self) -> None:
        """Record the angles before every norm and the loss, both over the windows held out."""
        self.plain.eval()
        losses = []
        with watch(self.plain.transformer, sample_every=4) as watched:
            for ids in torch.as_tensor(self.text.held_out).to(self.accelerator.device).split(self.at_once):
                hidden = self.plain.transformer(input_ids=ids, use_cache=False).last_hidden_state
                losses.append(_loss(self.plain.lm_head(hidden), ids).item())
        table = tabulate(watched)
        table = table.loc[table["side"] == "before", ANGLES].assign(step=self.done)
        self.rows["angles"] += table.to_dict("records")
        self.rows["held out"].append({"step": self.done, "held_out_loss": float(np.mean(losses))})
        if self.done == self.run["steps"]:
            self._record_writers()

    @torch.no_grad()
    def _record_writers(self) -> None:
        for name, parameter in self.plain.named_parameters():
            if name in self.initial:
                drift = parameter - self.initial[name].to(parameter.device)
                gradient = math.nan * drift if parameter.grad is None else parameter.grad
                parts = {"": parameter, "drift_": drift, "gradient_": gradient}
                row = {"parameter": name, "step": self.done}
                for prefix, part in parts.items():
                    row |= {f"{prefix}length": part.norm().item(), f"{prefix}along": _along(part).norm().item()}
                self.rows["writers"].append(row)

    def state(self) -> dict[str, np.ndarray]:
        """All that a step depends on, and what has been recorded."""
        kept = self.optimizer.state_dict()["state"]
        arrays = {f"model {name}": p for name, p in self.plain.named_parameters()}
        arrays |= {f"optimizer {i} {key}": part for i, parts in kept.items() for key, part in parts.items()}
        rows = np.frombuffer(json.dumps(self.rows).encode(), dtype=np.uint8)
        done = {"rows": rows, "losses": np.asarray(self.losses), "done": np.asarray([self.done])}
        return {name: part.detach().cpu().numpy() for name, part in arrays.items()} | done

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go back to what `state` has returned."""
        self.done, self.losses = int(state["done"][0]), state["losses"].tolist()
        self.rows = json.loads(state["rows"].tobytes())
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {}
        for name, array in state.items():
            kind, _, key = name.partition(" ")
            if kind == "optimizer":
                i, _, key = key.partition(" ")
                optimizer["state"].setdefault(int(i), {})[key] = torch.from_numpy(array)
        self.optimizer.load_state_dict(optimizer)
        with torch.no_grad():
            for name, parameter in self.plain.named_parameters():
                parameter.copy_(torch.from_numpy(state[f"model {name}"]))

    def write(self, out: Path) -> None:
        """Write the weights and then the tables."""
        size = SIZES[self.run["size"]["name"]]
        content = twins.stored(self.plain, self.text.tokenizer, size, self.run["norm"])
        results.write_whole({out / "model.safetensors": content})
        steps, greatest = self.run["steps"], self.run["greatest_learning_rate"]
        rates = [learning_rate(step, steps, greatest) for step in range(steps)]
        losses = pd.DataFrame({"step": range(steps), "learning_rate": rates, "training_loss": self.losses})
        losses = losses.merge(pd.DataFrame(self.rows["held out"]), on="step", how="outer")
        provenance = self.run | {"date": date.today().isoformat()}
        for name in ("angles", "writers"):
            results.save(pd.DataFrame(self.rows[name]), provenance, out / f"{name}.csv")
        results.save(losses, provenance, out / "losses.csv")  # last: it tells that the run is finished


def _optimizer(model: nn.Module, run: dict) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": run["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    if run["optimizer"] == "sgd":
        return torch.optim.SGD(groups)
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def _order(windows: int, needed: int, seed: int) -> np.ndarray:
    """The numbers of the windows in the order in which they are read: every one once, then again in another order."""
    random = (np.random.default_rng([seed, epoch]).permutation(windows) for epoch in count())
    return np.concatenate(list(islice(random, -(-needed // windows))))[:needed]


def _loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _along(part: Tensor) -> Tensor:
    """Components along the uniform vector of what stands along the last axis."""
    return part.sum(dim=-1) / part.shape[-1] ** 0.5
