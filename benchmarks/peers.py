"""What a measurement of the angles at every norm costs: `watch` against the usual ways to read a model's activations.

    python -m venv _build/peers
    _build/peers/bin/pip install -r benchmarks/requirements.txt
    _build/peers/bin/pip install --no-deps -r requirements-colab.txt -e .
    _build/peers/bin/python benchmarks/peers.py [name of a shape]...

Every method does the same job on the same weights and tokens: mean, standard deviation, least and greatest of the
angles between every norm's inputs and outputs and three directions. Its mean angles are compared with those of
`watch` before anything is timed. The model runs without its output head. `watch` also keeps histograms, norms and
second moments. The peers keep all vectors of a batch, reduce them to angles with plain torch, and drop them.

- output_hidden_states: the hidden states are written to safetensors files and read back. They are the vectors between
  the blocks and the output of the last norm: half of the norms' inputs or fewer, and none of their other outputs.
- TransformerLens: run_with_cache with a name filter. It replaces fused attention by one that shows its pattern.
- nnsight: tracer.cache over the norms, with inputs and outputs.

Time: all methods in turn in one process, the first of a round changing from round to round; the ratio is the median
over the rounds of a method's time to the bare one's. Share of the limit: the time to read each of the vectors that
the method measures once, at the speed of copying memory, over the time that the method takes beyond the bare pass.
Memory: the greatest resident set (on a GPU, the most memory allocated there) of a process that runs one method only.
"""

import copy
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from norm_geometry import corpus, hooks, models
from norm_geometry.statistics import uniform_and_random

ROUNDS = 9
SEQUENCES, LENGTH = 8, 512
SWEEP = (4096, 8192, 16384, 32768, 65536)  # tokens
TOLERANCE = 1e-3  # degrees, between mean angles; half precision is compared with itself and agrees as well

SHAPES = {
    "gpt2-small": dict(model_type="gpt2"),
    "smollm2-135m": None,  # packaged, with its trained weights
}
GPU_SHAPES = {
    "gpt-j-6b": dict(model_type="gptj"),
    "llama-3-8b": dict(
        model_type="llama",
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        rope_theta=500000.0,
    ),
}
GPU = torch.cuda.is_available()

Batches = Iterable[Tensor]
Key = tuple[str, str]  # a site's name, and "before" or "after"
Angles = dict[Key, np.ndarray]  # mean, standard deviation, least and greatest × directions, in degrees
Method = Callable[[Batches], Angles]


def load(shape: str) -> tuple[PreTrainedModel, list[Tensor]]:
    """The model, and its tokens in batches."""
    model, tokenizer, _ = models.load("smollm2-135m", device="cuda" if GPU else "cpu")
    if config := (SHAPES | GPU_SHAPES)[shape]:
        torch.manual_seed(0)
        with torch.device(model.device):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**config), dtype=torch.bfloat16 if shape in GPU_SHAPES else torch.float32
            ).eval()
    # The same text for all, in whole sequences; the ids of this tokenizer lie within every vocabulary.
    chunks = corpus.tokenize(corpus.packaged_wikipedia(), tokenizer, tokens=SWEEP[-1])
    tokens = torch.from_numpy(np.concatenate(chunks)).reshape(-1, SEQUENCES, LENGTH)
    return model, list(tokens.to(model.device))


def bare(model: PreTrainedModel) -> Method:
    def run(batches):
        for ids in batches:
            model.base_model(input_ids=ids, use_cache=False)
        return {}

    return run


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

    first = {}  # the first norm of every block, and at last the final one
    for site in hooks.find_norms(model.base_model):
        first.setdefault(site.name.rpartition(".")[0], site.name)
    *blocks, final = first.values()
    keys = [*((name, "before") for name in blocks), (final, "after")]
    folder = Path(tempfile.mkdtemp(dir=FOLDER))

    def vectors(ids):
        states = model.base_model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        file = folder / f"{len(list(folder.iterdir()))}.safetensors"
        save_file({str(i): state for i, state in enumerate(states)}, file)
        stored = load_file(file, device=str(model.device))
        return ((key, stored[str(i)]) for i, key in enumerate(keys))

    return angles_of(vectors, model)


def transformer_lens(model: PreTrainedModel) -> Method:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.generalized_components import NormalizationBridge

    names = [site.name for site in hooks.find_norms(model.base_model)]
    headless = twin(model)
    headless.lm_head = nn.Linear(model.config.hidden_size, 1, bias=False, device=model.device, dtype=model.dtype)
    bridge = TransformerBridge.boot_transformers(
        model.config.model_type, hf_model=headless, dtype=model.dtype, device=model.device, tokenizer=TOKENIZER
    )
    components = [name for name, part in bridge.named_modules() if isinstance(part, NormalizationBridge)]
    hook_names = {
        f"{component}.{hook}": (name, side)
        for component, name in zip(components, names, strict=True)
        for hook, side in (("hook_in", "before"), ("hook_out", "after"))
    }

    def vectors(ids):
        _, cache = bridge.run_with_cache(ids, names_filter=list(hook_names))
        return ((key, cache[name]) for name, key in hook_names.items())

    return angles_of(vectors, model)
