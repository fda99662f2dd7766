"""Twins: the same GPT-2 with LayerNorm and with RMSNorm, in the sizes of Gupta et al. (2024) and a smaller one.

    model, tokenizer = published("layer")    # the book's own, of size nano

Source: appendix A.2 and table 2, https://arxiv.org/abs/2409.12951. `norm_geometry.training` trains them.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from norm_geometry.results import DATA

__all__ = ["SIZES", "Norm", "Size", "Twin", "gpt2", "load", "published", "stored"]

Norm = Literal["layer", "rms"]


class Size(NamedTuple):
    """A row of table 2, with what it is trained on; "nano" is ours."""

    layers: int
    width: int
    heads: int
    learning_rate: float  # the greatest
    length: int = 1024  # tokens in a window
    batch: int = 64  # windows in a step
    steps: int = 100_000
    text: Literal["packaged", "openwebtext"] = "openwebtext"


SIZES = {
    "nano": Size(4, 192, 6, 2e-3, length=256, batch=8, steps=2_500, text="packaged"),
    "70m": Size(6, 512, 8, 1e-3),
    "160m": Size(12, 768, 12, 6e-4),
    "410m": Size(24, 1024, 16, 3e-4, steps=50_000),
    "1b": Size(16, 2048, 8, 3e-4, steps=50_000),
}


class Twin(NamedTuple):
    """A trained model in evaluation mode, and its tokenizer."""

    model: GPT2LMHeadModel
    tokenizer: PreTrainedTokenizerFast


def gpt2(size: Size, norm: Norm, vocabulary: int, seed: int) -> GPT2LMHeadModel:
    """An untrained GPT-2; for "rms" every LayerNorm is exchanged for `torch.nn.RMSNorm`, which has a gain and no bias.

    All other weights depend on the seed alone. The output head has weights of its own, as in the Pythia models, whose
    sizes and names are those of table 2. There is no dropout: a mask on the way to the residual stream turns the
    component along 1, which no norm sees, into others, which they do.
    """
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=size.length,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # which transformers does not see in the name of the class, and warns
    return _with_norms(model, norm)


def _with_norms(model: GPT2LMHeadModel, norm: str) -> GPT2LMHeadModel:
    for name, module in [*model.named_modules()]:
        if norm == "rms" and isinstance(module, nn.LayerNorm):
            model.set_submodule(name, nn.RMSNorm(module.normalized_shape, module.eps))
    return model


def load(file: str | Path) -> Twin:
    """The model and tokenizer in a file that `train` has written, in float32 on the CPU.

    Raises ValueError if the file is no such thing, FileNotFoundError if there is none.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            described = json.loads((stored.metadata() or {})["twin"])
            weights = {name: stored.get_tensor(name).float() for name in stored.keys()}  # noqa: SIM118
        size = Size(**described["size"])
        tokenizer = Tokenizer.from_str(described["tokenizer"])
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{file} is not the model of a twin, or damaged ({str(error).splitlines()[0]})") from error
    model = gpt2(size, described["norm"], tokenizer.get_vocab_size(), seed=0)
    model.load_state_dict(weights)
    return Twin(model.eval(), PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def published(norm: Norm) -> Twin:
    """The book's own model of size nano, from data/models/ of the repository."""
    return load(DATA / "models" / f"nano-{norm}.safetensors")


def stored(model: GPT2LMHeadModel, tokenizer: Tokenizer, size: Size, norm: Norm) -> bytes:
    """The content of a file for `load`: the weights in float16, and what else the model is made of."""
    weights = {name: p.detach().half().cpu().contiguous() for name, p in model.named_parameters()}
    # One entry, because the order of several is not the same in every run.
    described = {"size": size._asdict(), "norm": norm, "tokenizer": tokenizer.to_str()}
    return save(weights, {"twin": json.dumps(described)})
