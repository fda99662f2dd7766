"""Where a model is to run, and in which floating type: asked, and refused, before any weight is read."""

import psutil
import torch
from transformers import AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["auto_class", "memory_free", "memory_needed", "place", "without_weights"]


def place(config: PretrainedConfig, device: str | None, dtype: torch.dtype | None) -> tuple[str, torch.dtype]:
    """The device and floating type for the model of `config`, where they are not given: see `models.load`.

    Raises:
        MemoryError: the model does not fit; the message says what would.
    """
    chosen = device or ("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    if dtype is None and torch.cuda.is_available() and chosen not in ("cpu", "mps"):
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    dtype = dtype or torch.float32
    needed = memory_needed(config, dtype)
    if device is None and chosen == "cuda" and needed > memory_free("cuda"):
        chosen = "auto"
    free = memory_free(chosen)
    if needed > free:
        half = needed * 2 // dtype.itemsize
        advice = "dtype bfloat16 fits with" if half <= free else "even bfloat16 needs"
        raise MemoryError(
            f"in {str(dtype).removeprefix('torch.')} it needs about {needed / 1e9:.1f} GB and {chosen} has "
            f"{free / 1e9:.1f} GB free; {advice} {half / 1e9:.1f} GB"
        )
    return chosen, dtype


def memory_needed(config: PretrainedConfig, dtype: torch.dtype, tokens: int = 4096) -> int:
    """Estimate, in bytes, what a forward pass of the model of `config` over `tokens` tokens takes: its weights, whose
    size is exact, and 40 hidden vectors a token for what passes between them."""
    parameters = sum(p.numel() for p in without_weights(config).parameters())
    width = getattr(config.get_text_config(), "hidden_size", 0)
    return (parameters + 40 * width * tokens) * dtype.itemsize


def memory_free(device: str) -> int:
    """How many bytes are free on `device`."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(torch.device(device))[0]
    if device == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    main = psutil.virtual_memory().available
    if device == "auto":
        return main + sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    return main


def auto_class(config: PretrainedConfig) -> type[AutoModel] | type[AutoModelForCausalLM]:
    """Which of transformers' factories to use: an encoder read as a causal model would get an untrained output head."""
    named = config.architectures
    causal = not named or named[0] in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return AutoModelForCausalLM if causal else AutoModel


def without_weights(config: PretrainedConfig) -> PreTrainedModel:
    """The model of `config` at full shape, on PyTorch's meta device: it takes no memory and cannot be run."""
    with torch.device("meta"):
        return auto_class(config).from_config(config)
