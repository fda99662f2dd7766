"""Norms are found in every family of models, and in those of the paper each reads what it should."""

from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from norm_geometry.catalogue import HUB
from norm_geometry.hooks import Site, find_norms, watch

# Gupta et al. (2024), Table 1: layers, width, kind of norm. Then the parameters of the published weights with the
# output head, which in GPT-2 and GPT-Neo is the embedding and counts once. GPT-J's model card counts 6,053,381,344:
# its norms and biases eight times, once for each of the devices it was trained on.
TABLE_1 = {
    "gpt2-xl": (48, 1600, "layer", 1_557_611_200),
    "gpt-neo-1.3b": (24, 2048, "layer", 1_315_575_808),
    "pythia-1.4b": (24, 2048, "layer", 1_414_647_808),
    "gpt-j-6b": (28, 4096, "layer", 6_050_882_784),
    "pythia-6.9b": (32, 4096, "layer", 6_857_302_016),
    "llama-2-7b": (32, 4096, "rms", 6_738_415_616),
    "llama-3-8b": (32, 4096, "rms", 8_030_261_248),
}


class Decoder(NamedTuple):
    """What an architecture calls the parts of the decoder block of appendix A.1."""

    blocks: str
    attention: str
    first: str  # LN1
    second: str | None  # LN2
    last: str  # after all blocks
    parallel: bool = False  # attention and MLP read the same hidden vectors


DECODERS = {
    "gpt2": Decoder("h", "attn", "ln_1", "ln_2", "ln_f"),
    "gpt_neo": Decoder("h", "attn", "ln_1", "ln_2", "ln_f"),
    "gpt_neox": Decoder(
        "layers", "attention", "input_layernorm", "post_attention_layernorm", "final_layer_norm", parallel=True
    ),
    "gptj": Decoder("h", "attn", "ln_1", None, "ln_f", parallel=True),
    "llama": Decoder("layers", "self_attn", "input_layernorm", "post_attention_layernorm", "norm"),
}

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


class Family(NamedTuple):
    architecture: str  # transformers' model_type
    kind: str
    sites: tuple[str, ...]  # in order, as "module: norm norm@width": {} for each layer, @ where it acts on heads
    config: dict[str, Any] = {}  # beyond TINY


PRE_NORM = ("layers.{}: input_layernorm post_attention_layernorm", "norm")
ONE_NORM = ("layers.{}: input_layernorm", "norm")
GPT = ("h.{}: ln_1 ln_2", "ln_f")
POST_NORM = ("embeddings: LayerNorm", "encoder.layer.{}: attention.output.LayerNorm output.LayerNorm")
QUERY_KEY = "layers.{}: self_attn.q_norm@8 self_attn.k_norm@8 input_layernorm post_attention_layernorm"
SANDWICH = "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"
WHISPER_SIZES = {"d_model": 32, "num_mel_bins": 8, "max_source_positions": 10, "decoder_start_token_id": 1} | {
    f"{half}_{size}": n
    for half in ("encoder", "decoder")
    for size, n in {"layers": 2, "attention_heads": 4, "ffn_dim": 48}.items()
}

FAMILIES = {
    "OPT": Family(
        "opt",
        "layer",
        ("decoder: final_layer_norm", "decoder.layers.{}: self_attn_layer_norm final_layer_norm"),
        {"ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "OPT, post-norm": Family(
        "opt",
        "layer",
        ("decoder.layers.{}: self_attn_layer_norm final_layer_norm",),
        {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    ),
    "Bloom": Family(
        "bloom", "layer", ("word_embeddings_layernorm", "h.{}: input_layernorm post_attention_layernorm", "ln_f")
    ),
    "Falcon": Family("falcon", "layer", ("h.{}: input_layernorm", "ln_f")),
    "Falcon, two parallel norms": Family(
        "falcon", "layer", ("h.{}: ln_attn ln_mlp", "ln_f"), {"new_decoder_architecture": True, "num_kv_heads": 2}
    ),
    "Phi": Family("phi", "layer", ("layers.{}: input_layernorm", "final_layernorm")),
    "Phi, QK-norm": Family(
        "phi",
        "layer",
        ("layers.{}: self_attn.q_layernorm@8 self_attn.k_layernorm@8 input_layernorm", "final_layernorm"),
        {"qk_layernorm": True},
    ),
    "Qwen 2": Family("qwen2", "rms", PRE_NORM, {"num_key_value_heads": 2}),
    "Qwen 3": Family("qwen3", "rms", (QUERY_KEY, "norm"), GROUPED),
    "Qwen 3, heads as wide as the stream": Family(
        "qwen3", "rms", (QUERY_KEY.replace("@8", "@32"), "norm"), {"num_key_value_heads": 2, "head_dim": 32}
    ),
    "Mistral": Family("mistral", "rms", PRE_NORM, GROUPED),
    "Mixtral": Family("mixtral", "rms", PRE_NORM, GROUPED | {"num_local_experts": 2}),
    "Gemma": Family("gemma", "rms", PRE_NORM, GROUPED),
    "Gemma 2": Family("gemma2", "rms", (f"layers.{{}}: {SANDWICH}", "norm"), GROUPED),
    "Gemma 3": Family(
        "gemma3_text", "rms", (f"layers.{{}}: self_attn.q_norm@8 self_attn.k_norm@8 {SANDWICH}", "norm"), GROUPED
    ),
    "OLMo": Family("olmo", "layer", PRE_NORM),  # no parameters
    "OLMo 2": Family(
        "olmo2",
        "rms",
        (
            "layers.{}: self_attn.q_norm@32 self_attn.k_norm@16 post_attention_layernorm post_feedforward_layernorm",
            "norm",
        ),
        {"num_key_value_heads": 2},
    ),
    "Cohere": Family("cohere", "layer", ONE_NORM),
    "Cohere, QK-norm": Family(  # each head has gains of its own
        "cohere",
        "layer",
        ("layers.{}: self_attn.q_norm@8 self_attn.k_norm@8 input_layernorm", "norm"),
        {"use_qk_norm": True, "num_key_value_heads": 2},
    ),
    "GPT-BigCode": Family("gpt_bigcode", "layer", GPT),
    "StableLM": Family("stablelm", "layer", PRE_NORM),
    "StableLM, parallel": Family("stablelm", "layer", ONE_NORM, {"use_parallel_residual": True}),
    "StableLM, QK-norm": Family(  # each head has a module of its own
        "stablelm",
        "layer",
        (
            "layers.{}: "
            + "".join(f"self_attn.q_layernorm.norms.{head}@8 " for head in range(4))
            + "".join(f"self_attn.k_layernorm.norms.{head}@8 " for head in range(2))
            + "input_layernorm post_attention_layernorm",
            "norm",
        ),
        {"qk_layernorm": True, "num_key_value_heads": 2},
    ),
    "Llama 4": Family(  # the query and key norm is one module without parameters
        "llama4_text",
        "rms",
        ("layers.{}: self_attn.qk_norm@8 input_layernorm post_attention_layernorm", "norm"),
        GROUPED | {"num_local_experts": 2},
    ),
    "Mamba": Family("mamba", "rms", ("layers.{}: norm", "norm_f"), {"state_size": 4}),
    "Falcon Mamba": Family(  # the norms within the mixer are not trained
        "falcon_mamba",
        "rms",
        ("layers.{}: norm mixer.dt_layernorm@64 mixer.b_layernorm@4 mixer.c_layernorm@4", "norm_f"),
        {"state_size": 4},
    ),
    "BERT": Family("bert", "layer", POST_NORM),
    "RoBERTa": Family("roberta", "layer", POST_NORM),
    "T5": Family(
        "t5",
        "rms",
        (
            "encoder.block.{}: layer.0.layer_norm layer.1.layer_norm",
            "encoder: final_layer_norm",
            "decoder.block.{}: layer.0.layer_norm layer.1.layer_norm layer.2.layer_norm",
            "decoder: final_layer_norm",
        ),
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    ),
    "ViT": Family(
        "vit", "layer", ("layers.{}: layernorm_before layernorm_after", "layernorm"), {"image_size": 8, "patch_size": 4}
    ),
    "Whisper": Family(
        "whisper",
        "layer",
        (
            "encoder.layers.{}: self_attn_layer_norm final_layer_norm",
            "encoder: layer_norm",
            "decoder.layers.{}: self_attn_layer_norm encoder_attn_layer_norm final_layer_norm",
            "decoder: layer_norm",
        ),
        WHISPER_SIZES,
    ),
}


def listed(groups, layers, width, kind):
    """The sites that `groups` describe, as `find_norms` should give them."""
    sites = []
    for group in groups:
        module, _, names = group.rpartition(": ")
        for layer in range(layers if "{}" in module else 1):
            for name, _, head in (name.partition("@") for name in names.split()):
                path = f"{module.format(layer)}.{name}".lstrip(".")
                sites.append(Site(path, kind, int(head or width), "heads" if head else "residual"))
    return sites


def listed_in_table_1(name, width):
    layers, _, kind, _ = TABLE_1[name]
    decoder = DECODERS[HUB[name].architecture]
    norms = f"{decoder.first} {decoder.second}" if decoder.second else decoder.first
    return listed((f"{decoder.blocks}.{{}}: {norms}", decoder.last), layers, width, kind)


def built(config):
    torch.manual_seed(0)
    return AutoModel.from_config(config).eval()


def tiny(family):
    return built(AutoConfig.for_model(family.architecture, **TINY | family.config))


def inputs(model):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 64, (3, 10), generator=generator)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)}
    sound = {"input_features": torch.randn(3, 8, 20, generator=generator)}
    given = sound if model.main_input_name == "input_features" else {"input_ids": ids}
    return given | ({"decoder_input_ids": ids[:, :7]} if model.config.is_encoder_decoder else {})


def forward(model, **settings):
    """The model's output, and by module what it was given and what it returned."""
    passed, handles = {}, []
    for name, module in model.named_modules():

        def keep(module, args, kwargs, output, name=name):
            given = args[0] if args else kwargs.get("hidden_states")
            returned = output[0] if isinstance(output, tuple) else output
            passed[name] = [x.clone() if isinstance(x, torch.Tensor) else x for x in (given, returned)]

        handles.append(module.register_forward_hook(keep, with_kwargs=True))
    with torch.no_grad():
        output = model(**inputs(model), **settings)
    for handle in handles:
        handle.remove()
    return output, passed


def same(x, y):
    return torch.allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TABLE_1)
def test_full_shapes_are_those_of_table_1(name):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(HUB[name].config())
    _, width, _, parameters = TABLE_1[name]
    assert model.num_parameters() == parameters
    assert find_norms(model.base_model) == listed_in_table_1(name, width)


@pytest.mark.parametrize("name", TABLE_1)
def test_every_site_reads_what_the_decoder_block_says(name):
    """Equations 12 to 17 of appendix A.1; in place of equation 14, Pythia's LN2 and GPT-J's MLP read h^(l-1) too."""
    config, decoder = HUB[name].config(), DECODERS[HUB[name].architecture]
    for size, small in (TINY | GROUPED | {"rotary_dim": 4}).items():
        if hasattr(config, size) and size != "num_hidden_layers":
            setattr(config, size, small)
    model = built(config)
    assert find_norms(model) == listed_in_table_1(name, 32)

    output, passed = forward(model, output_hidden_states=True)
    stream = output.hidden_states[0]
    for layer, hidden in enumerate(output.hidden_states[:-1]):  # the last ones are those after the last norm
        block = f"{decoder.blocks}.{layer}"
        before, f = passed[f"{block}.{decoder.first}"]
        attended, a = passed[f"{block}.{decoder.attention}"]
        processed, m = passed[f"{block}.mlp"]
        assert same(stream, hidden)  # equation 17
        assert same(before, hidden)  # equation 12
        assert same(attended, f)  # equation 13
        assert not same(hidden + a, hidden)
        if decoder.second:
            before, g = passed[f"{block}.{decoder.second}"]
            assert same(before, hidden if decoder.parallel else hidden + a)  # equation 14
            assert same(processed, g)  # equation 15
        else:
            assert same(processed, f)
        stream = stream + a + m  # equation 16
    before, after = passed[decoder.last]
    assert same(before, stream)
    assert same(after, output.last_hidden_state)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_norms_are_found_and_classified(family):
    assert find_norms(tiny(family)) == listed(family.sites, TINY["num_hidden_layers"], 32, family.kind)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_vector_at_every_site_is_counted(family):
    model = tiny(family)
    _, passed = forward(model)
    with watch(model) as record, torch.no_grad():
        model(**inputs(model))
    assert list(record) == [site.name for site in find_norms(model)]
    for site in record.sites:
        vectors = [x.numel() // site.width for x in passed[site.name]]
        assert [record[site.name].before.count, record[site.name].after.count] == vectors


@pytest.mark.parametrize("name", ["Gemma 2", "Gemma 3", "OLMo 2"])
def test_norms_after_a_sublayer_read_what_it_returns(name):
    _, passed = forward(tiny(FAMILIES[name]))
    assert same(passed["layers.1.post_attention_layernorm"][0], passed["layers.1.self_attn"][1])
    assert same(passed["layers.1.post_feedforward_layernorm"][0], passed["layers.1.mlp"][1])
