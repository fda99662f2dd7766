"""What a measurement of the angles at every norm costs: `watch` against the usual ways to read a model's activations.

    python -m venv _build/peers
    _build/peers/bin/pip install -r benchmarks/requirements.txt
    _build/peers/bin/pip install --no-deps -r requirements-colab.txt -e .
    _build/peers/bin/python benchmarks/peers.py [shape]...

Without TransformerLens and nnsight, as in the book's environment, the others are compared.
Every method does the same job on the same weights and tokens: mean, standard deviation, least and greatest of the
angles between every norm's inputs and outputs and three directions; means and deviations must agree before anything is
timed. The model runs without its output head. `watch` also takes histograms, norms and energy ratios. The others
keep all vectors of a batch, reduce them to angles with plain torch and drop them.

- eager: the bare pass with the attention that TransformerLens puts in place of the fused one, to show its patterns.
- output_hidden_states: what it returns is written to safetensors files and read back. These are the vectors between
  the blocks and the output of the last norm, and so fewer than the others measure.
- TransformerLens: run_with_cache with a filter of names. nnsight: the cache of a trace.

Time: all methods in turn in one process, every round beginning with another; the ratio is the median over the rounds
of a method's time to that of the bare pass. Share of the limit: the time to read every vector once, at the speed at
which memory is copied, over the time that the method takes beyond the bare pass; not told where a quarter of the
rounds shows no such time.
Memory: the greatest resident set, or allocation on the GPU, of a process of its own that reads 65,536 tokens in
batches of 4,096, as it stands after each number of tokens.
"""

import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from norm_geometry import corpus, hooks, models
from norm_geometry.statistics import uniform_and_random

ROUNDS = 18
SEQUENCES, LENGTH = 8, 512
SWEEP = [4096, 8192, 16384, 32768, 65536]  # tokens
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}  # degrees; attention computed in another order rounds otherwise

# glibc gives every large array back to the system and takes it anew, with a page fault for every 4 KiB, at places that
# differ from pass to pass: up to a fifth of a pass, and more than what is compared here. Timed passes keep theirs.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28)}

PRETRAINED = "smollm2-135m"  # the others have random weights
SHAPES = (PRETRAINED, "gpt2-small")
GPU_SHAPES = ("gpt-j-6b", "llama-3-8b")

Batches = Iterable[Tensor]
Key = tuple[str, str]  # a site's name, and "before" or "after"
Angles = dict[Key, np.ndarray]  # mean, standard deviation, least, greatest × directions; degrees
Method = Callable[[Batches], Angles]


def load(shape: str) -> tuple[PreTrainedModel, list[Tensor]]:
    """The model, and its tokens in batches: Wikipedia for trained weights, any for random ones."""
    if shape == PRETRAINED:
        model, tokenizer, _ = models.load(shape, device="cpu")
        chunks = corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, tokens=SWEEP[-1])
        tokens = torch.from_numpy(np.concatenate(chunks))
    else:
        torch.manual_seed(0)
        config = models.HUB[shape].config() if shape in models.HUB else AutoConfig.for_model("gpt2")
        device, dtype = ("cuda", torch.bfloat16) if shape in GPU_SHAPES else ("cpu", torch.float32)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
            tokens = torch.randint(config.vocab_size, (SWEEP[-1],))
    return model, list(tokens.reshape(-1, SEQUENCES, LENGTH))


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the same weights, for what changes the modules that it is given."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def bare(model: PreTrainedModel) -> Method:
    def run(batches):
        for ids in batches:
            model.base_model(input_ids=ids, use_cache=False)
        return {}

    return run


def eager(model: PreTrainedModel) -> Method:
    model = twin(model)
    model.set_attn_implementation("eager")
    return bare(model)


def watch(model: PreTrainedModel) -> Method:
    sites = hooks.find_norms(model.base_model)

    def run(batches):
        with hooks.watch(model.base_model, sites=sites) as record:
            for ids in batches:
                model.base_model(input_ids=ids, use_cache=False)
        return {
            (name, side): np.stack([angles.mean, angles.std, angles.minimum, angles.maximum])
            for name, site in record.items()
            for side, angles in (("before", site.before), ("after", site.after))
        }

    return run


def output_hidden_states(model: PreTrainedModel) -> Method:
    from safetensors.torch import load_file, save_file

    first = {}  # the first norm of every block, and at last the final norm
    for site in hooks.find_norms(model.base_model):
        first.setdefault(site.name.rpartition(".")[0], site.name)
    *blocks, final = first.values()
    keys = [*((name, "before") for name in blocks), (final, "after")]
    folder = tempfile.TemporaryDirectory()  # goes when the process ends

    def run(batches):
        numbers = count()

        def saved(ids):
            states = model.base_model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
            file = Path(folder.name, f"{next(numbers)}.safetensors")
            save_file({str(i): state for i, state in enumerate(states)}, file)
            stored = load_file(file, device=str(model.device))
            return {key: stored[str(i)] for i, key in enumerate(keys)}

        return angles(batches, saved)

    return run


def transformer_lens(model: PreTrainedModel) -> Method:
    from transformer_lens.model_bridge import NormalizationBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    sites = hooks.find_norms(model.base_model)
    model = twin(model)
    model.lm_head = nn.Linear(model.config.hidden_size, 1, bias=False, device=model.device, dtype=model.dtype)
    bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
    points = {point: name for name, point in bridge.hook_dict.items() if name.endswith((".hook_in", ".hook_out"))}
    norms = [part for part in bridge.modules() if isinstance(part, NormalizationBridge)]
    keys = {}
    for site, norm in zip(sites, norms, strict=True):
        keys |= {points[norm.hook_in]: (site.name, "before"), points[norm.hook_out]: (site.name, "after")}

    def cached(ids):
        _, activations = bridge.run_with_cache(ids, names_filter=list(keys))
        return {key: activations[name] for name, key in keys.items()}

    return lambda batches: angles(batches, cached)


def nnsight(model: PreTrainedModel) -> Method:
    from nnsight import NNsight

    traced = NNsight(twin(model).base_model)
    paths = {f"{traced.path}.{site.name}": site.name for site in hooks.find_norms(model.base_model)}

    def cached(ids):
        with traced.trace(input_ids=ids, use_cache=False) as tracer:
            norms = tracer.cache(modules=list(paths), include_inputs=True, device=None)
        before = {(name, "before"): norms[path].input for path, name in paths.items()}
        return before | {(name, "after"): norms[path].output for path, name in paths.items()}

    return lambda batches: angles(batches, cached)


PACKAGES = {"TransformerLens": "transformer_lens", "nnsight": "nnsight"}
METHODS: dict[str, Callable[[PreTrainedModel], Method]] = {
    "bare": bare,
    "eager": eager,
    "watch": watch,
    "output_hidden_states": output_hidden_states,
    "TransformerLens": transformer_lens,
    "nnsight": nnsight,
}
METHODS = {name: method for name, method in METHODS.items() if find_spec(PACKAGES.get(name, "torch"))}


def angles(batches: Batches, vectors: Callable[[Tensor], dict[Key, Tensor]]) -> Angles:
    """The statistics of the angles of all `vectors(ids)`."""
    parts = defaultdict(list)
    for ids in batches:
        for key, batch in vectors(ids).items():
            x = batch.flatten(0, -2).float()
            cosines = linear(x, directions(x.shape[-1], x.device)) / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            parts[key].append(torch.rad2deg(torch.acos(cosines.clamp(-1, 1))))
    return {key: summary(torch.cat(part).double()) for key, part in parts.items()}


def summary(samples: Tensor) -> np.ndarray:
    std, mean = torch.std_mean(samples, dim=0, correction=0)
    return torch.stack([mean, std, samples.amin(dim=0), samples.amax(dim=0)]).cpu().numpy()


@cache
def directions(width: int, device: torch.device) -> Tensor:
    return torch.from_numpy(np.stack(list(uniform_and_random(width).values()))).to(device, torch.float32)


def seconds(function: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.zeros(2**28, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * len(source) / min(seconds(lambda: target.copy_(source)) for _ in range(20))


def compare(shape: str) -> None:
    """Check that the methods agree, then print what they cost in time."""
    model, batches = load(shape)
    batch = batches[:1]
    tokens = batch[0].numel()
    methods = {name: prepare(model) for name, prepare in METHODS.items()}
    names = list(methods)
    times = defaultdict(list)
    with torch.inference_mode():
        found = {name: method(batch) for name, method in methods.items()}
        errors = {name: error(measured, found["watch"]) for name, measured in found.items()}
        if max(errors.values()) > TOLERANCE[model.dtype]:
            raise SystemExit(f"{shape}: the methods disagree on the angles, by so many degrees: {errors}")
        for i in range(ROUNDS):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                times[name].append(seconds(lambda: methods[name](batch)))  # noqa: B023
    speed = bandwidth(model.device)
    print(f"{tokens} tokens in sequences of {LENGTH}, {ROUNDS} rounds; a copy moves {speed / 1e9:.0f} GB/s")
    print(f"{'':22}tokens/s  ratio (least, most)    vectors/token  difference  share of the limit")
    for name in names:
        ratios = sorted(mine / base for mine, base in zip(times[name], times["bare"], strict=True))
        line = f"{name:20}{tokens / statistics.median(times[name]):10.0f}"
        line += f"{statistics.median(ratios):7.3f} ({ratios[0]:.3f}, {ratios[-1]:.3f})"
        if found[name]:
            extra = [mine - base for mine, base in zip(times[name], times["bare"], strict=True)]
            least, middle, _ = statistics.quantiles(extra, n=4)
            size = len(found[name]) * tokens * model.config.hidden_size * model.dtype.itemsize
            share = f"{size / speed / middle:.0%}" if least > 0 else "lost in the noise"
            line += f"{len(found[name]):16}{errors[name]:11.0e}°{share:>20}"
        print(line, flush=True)
    few, all_vectors = len(found["output_hidden_states"]), len(found["watch"])
    print(
        f"output_hidden_states sees {few} of {all_vectors}: the vectors between blocks and what the last norm puts out"
    )


def error(measured: Angles, reference: Angles) -> float:
    """The largest difference of a mean or standard deviation, in degrees."""
    return max((float(np.abs(angles - reference[key])[:2].max()) for key, angles in measured.items()), default=0.0)


def sweep(shape: str, name: str) -> None:
    """Measure all tokens by one method; on the way print tokens, seconds, MiB of memory, MiB of files."""
    model, batches = load(shape)
    method = METHODS[name](model)
    start = time.perf_counter()

    def report(tokens):
        memory = torch.cuda.max_memory_allocated() if shape in GPU_SHAPES else resident()
        files = sum(file.stat().st_size for file in Path(tempfile.gettempdir()).rglob("*.safetensors"))
        print(json.dumps([tokens, time.perf_counter() - start, memory / 2**20, files / 2**20]), flush=True)

    def reported():
        for i, ids in enumerate(batches):
            if i * ids.numel() in SWEEP:
                report(i * ids.numel())
            yield ids

    with torch.inference_mode():
        method(reported())
    report(SWEEP[-1])


def resident() -> int:
    """The greatest resident set so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_memory(shape: str) -> None:
    print("peak memory, MiB, after" + "".join(f"{tokens:9}" for tokens in SWEEP) + " tokens    seconds  files, MiB")
    for name in METHODS:
        rows = [json.loads(line) for line in run("sweep", shape, name).splitlines() if line.startswith("[")]
        line = f"{name:23}" + "".join(f"{memory:9.0f}" for _, _, memory, _ in rows)
        print(f"{line}{rows[-1][1]:18.0f}{rows[-1][3]:12.0f}", flush=True)


def run(*arguments: str, **environment: str) -> str:
    """What this script prints when it is called with `arguments`, with a folder of its own for temporary files.

    Whatever loads a model runs in such a process: on Linux the greatest resident set is handed down to children.
    """
    with tempfile.TemporaryDirectory() as folder:
        command, environment = [sys.executable, __file__, *arguments], os.environ | environment | {"TMPDIR": folder}
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def main(*shapes: str) -> None:
    programs = ["torch", "transformers", *(PACKAGES[name] for name in METHODS if name in PACKAGES)]
    print(", ".join(f"{program} {version(program)}" for program in programs))
    large = torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory > 40e9
    for shape in shapes or (SHAPES + GPU_SHAPES if large else SHAPES):
        device = torch.cuda.get_device_name() if shape in GPU_SHAPES else f"{torch.get_num_threads()} CPU threads"
        print(f"\n{shape} on {device}", flush=True)
        print(run("compare", shape, **KEEP_MEMORY))
        peak_memory(shape)


if __name__ == "__main__":
    if sys.argv[1:2] in (["compare"], ["sweep"]):
        globals()[sys.argv[1]](*sys.argv[2:])
    else:
        main(*sys.argv[1:])
