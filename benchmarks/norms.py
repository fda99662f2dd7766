"""What LayerNorm and RMSNorm cost in the forms that people use, against the time in which memory is copied.

    python benchmarks/norms.py [table.csv]    # with a name, the table is written there, for the book

All forms alternate in one run on the same vectors, 4,096 of each width, forward and with the backward pass; the ratio
is the median over the rounds of a form's time to that of a copy of the vectors. Then whole models of GPT-2's shape,
1,024 tokens in sequences of 512, with the norms exchanged; against "no norms" one sees their share of a pass.

On a CPU all of this is done twice. glibc, the usual allocator of Linux, gives large arrays back to the system as soon
as they are free and takes them anew, page by page: a form that is made of several operations pays for that several
times. "allocator: keeps" is with the settings that make it keep them.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from norm_geometry import folding, results

KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28)}

ROUNDS = 9
VECTORS = 4096
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class PlainLayerNorm(nn.LayerNorm):
    """From single operations, as in a textbook."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + self.eps) * self.weight + self.bias


class PlainRMSNorm(nn.RMSNorm):
    """From single operations, as in transformers' Llama."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5) * self.weight


FORMS: dict[tuple[str, str], Callable[[int], nn.Module]] = {
    ("LayerNorm", "torch.nn"): nn.LayerNorm,
    ("LayerNorm", "single operations"): PlainLayerNorm,
    ("LayerNorm", "compiled"): lambda width: torch.compile(PlainLayerNorm(width)),
    ("RMSNorm", "torch.nn"): nn.RMSNorm,
    ("RMSNorm", "single operations"): PlainRMSNorm,
    ("RMSNorm", "compiled"): lambda width: torch.compile(PlainRMSNorm(width)),
}


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Of one call, the mean over `repeats`."""
    synchronize = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    synchronize()
    return (time.perf_counter() - start) / repeats


def interleaved(functions: dict, repeats: int = 1) -> dict:
    """The times of all functions, called in turn, every round beginning with another."""
    names, times = list(functions), defaultdict(list)
    for function in functions.values():
        function(), function()
    for i in range(ROUNDS):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(seconds(functions[name], repeats))
    return times


def compared(times: dict, base, **described) -> list[dict]:
    """Rows of median time and ratio to `base`."""
    rows = []
    for name, mine in times.items():
        ratios = sorted(a / b for a, b in zip(mine, times[base], strict=True))
        rows.append(
            described
            | {"norm": name[0], "form": name[1], "milliseconds": 1e3 * statistics.median(mine)}
            | {"ratio": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
        )
    return rows


def layers(width: int) -> list[dict]:
    x = torch.randn(VECTORS, width, device=DEVICE, dtype=DTYPE)
    target, upstream = torch.empty_like(x), torch.randn_like(x)
    modules = {name: form(width).to(DEVICE, DTYPE) for name, form in FORMS.items()}
    copy = {("copy", "torch"): lambda: target.copy_(x)}
    with torch.inference_mode():
        forward = interleaved(copy | {name: partial(module, x) for name, module in modules.items()}, repeats=5)
    learned = x.clone().requires_grad_()

    def both(module):
        learned.grad = None
        module(learned).backward(upstream)

    backward = interleaved(copy | {name: partial(both, module) for name, module in modules.items()}, repeats=5)
    return [
        *compared(forward, ("copy", "torch"), what=f"{VECTORS} × {width}", passes="forward"),
        *compared(backward, ("copy", "torch"), what=f"{VECTORS} × {width}", passes="forward and backward"),
    ]


def whole_models() -> list[dict]:
    config = AutoConfig.for_model("gpt2", use_cache=False)
    layer = AutoModelForCausalLM.from_config(config).eval()
    norms = [name for name, module in layer.named_modules() if isinstance(module, nn.LayerNorm)]

    def exchanged(make: Callable[[int], nn.Module]) -> nn.Module:
        model = folding.swap(layer)
        for name in norms:
            model.set_submodule(name, make(config.n_embd))
        return model.to(DEVICE, DTYPE)

    models = {name: exchanged(form) for name, form in FORMS.items() if name[1] != "compiled"}
    models["no norms", "identity"] = exchanged(lambda _: nn.Identity())
    ids = torch.randint(config.vocab_size, (2, 512), device=DEVICE)
    with torch.inference_mode():
        times = interleaved({name: partial(model.transformer, ids) for name, model in models.items()})
    return compared(times, ("no norms", "identity"), what="GPT-2 small", passes="forward")


def processor() -> str:
    if DEVICE == "cuda":
        return torch.cuda.get_device_name()
    try:
        with open("/proc/cpuinfo") as lines:
            name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def rows() -> None:
    """Print them all, each as a line of JSON."""
    torch.manual_seed(0)
    for row in [row for width in (768, 4096) for row in layers(width)] + whole_models():
        print(json.dumps(row))


def main(path: str | None = None) -> None:
    table = []
    for allocator, environment in {"usual": {}, "keeps": KEEP_MEMORY}.items() if DEVICE == "cpu" else [("cuda", {})]:
        command, environment = [sys.executable, __file__, "rows"], os.environ | environment
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        table += [{"allocator": allocator} | json.loads(line) for line in done.stdout.splitlines()]
    table = pd.DataFrame(table)
    print(processor(), DTYPE, "torch", torch.__version__)
    print(table.to_string(index=False, float_format="{:.2f}".format))
    if path:
        provenance = {"processor": processor(), "dtype": str(DTYPE), "rounds": ROUNDS, "date": date.today().isoformat()}
        provenance |= {"versions": {p: version(p) for p in ("torch", "transformers")}}
        results.save(table, provenance | {"command": "python benchmarks/norms.py"}, path)


if __name__ == "__main__":
    rows() if sys.argv[1:] == ["rows"] else main(*sys.argv[1:])
