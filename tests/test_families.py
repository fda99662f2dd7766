"""Norms are found in every family of models, and in those of the paper each reads what it should."""

from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from norm_geometry.catalogue import HUB
from norm_geometry.hooks import Site, find_norms, watch

# Gupta et al. (2024), Table 1: layers, width, kind of norm. Then the parameters of the published weights with the
# output head, which in GPT-2 and GPT-Neo is the embedding and counts once. GPT-J's model card says 6,053,381,344: norms
# and output biases count eight times there, once for each device that the training code spread the model over.
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


GPT_2 = Decoder("h", "attn", "ln_1", "ln_2", "ln_f")
LLAMA = Decoder("layers", "self_attn", "input_layernorm", "post_attention_layernorm", "norm")
DECODERS = {
    "gpt2": GPT_2,
    "gpt_neo": GPT_2,
    "gpt_neox": LLAMA._replace(attention="attention", last="final_layer_norm", parallel=True),
    "gptj": GPT_2._replace(second=None, parallel=True),
    "llama": LLAMA,
}


class Family(NamedTuple):
    architecture: str  # transformers' model_type
    kind: str  # of all its norms
    sites: str  # in order, as "module: norm norm@width | norm": {} is the number of each layer, @ marks norms on heads
    config: dict[str, Any] = {}  # beyond TINY  # noqa: RUF012


TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 8}
WHISPER_SIZES = {"num_mel_bins": 8, "max_source_positions": 10, "decoder_layers": 2, "decoder_attention_heads": 4}

ONE = "layers.{}: input_layernorm | norm"
TWO = "layers.{}: input_layernorm post_attention_layernorm | norm"
FOUR = TWO.replace(" |", " pre_feedforward_layernorm post_feedforward_layernorm |")
AFTER = "layers.{}: post_attention_layernorm post_feedforward_layernorm | norm"
BERT = "embeddings: LayerNorm | encoder.layer.{}: attention.output.LayerNorm output.LayerNorm"
BLOOM = "h.{}: input_layernorm post_attention_layernorm | ln_f"
PHI = "layers.{}: input_layernorm | final_layernorm"
VIT = "layers.{}: layernorm_before layernorm_after | layernorm"
OPT = "decoder.layers.{}: self_attn_layer_norm final_layer_norm"
T5 = (
    "encoder.block.{}: layer.0.layer_norm layer.1.layer_norm | encoder: final_layer_norm | "
    "decoder.block.{}: layer.0.layer_norm layer.1.layer_norm layer.2.layer_norm | decoder: final_layer_norm"
)
WHISPER = (
    "encoder.layers.{}: self_attn_layer_norm final_layer_norm | encoder: layer_norm | "
    "decoder.layers.{}: self_attn_layer_norm encoder_attn_layer_norm final_layer_norm | decoder: layer_norm"
)
EACH_HEAD = [f"q_layernorm.norms.{i}@8" for i in range(4)] + [f"k_layernorm.norms.{i}@8" for i in range(2)]


def inside(sites, *norms):
    """`sites` with norms inside the attention of each layer before them."""
    return sites.replace(": ", ": " + "".join(f"self_attn.{norm} " for norm in norms))


FAMILIES = {
    "OPT": Family("opt", "layer", f"decoder: final_layer_norm | {OPT}"),
    "OPT, post-norm": Family("opt", "layer", OPT, {"do_layer_norm_before": False}),
    "Bloom": Family("bloom", "layer", f"word_embeddings_layernorm | {BLOOM}"),
    "Falcon": Family("falcon", "layer", "h.{}: input_layernorm | ln_f"),
    "Falcon, two norms": Family("falcon", "layer", "h.{}: ln_attn ln_mlp | ln_f", {"new_decoder_architecture": True}),
    "Phi": Family("phi", "layer", PHI),
    "Phi, QK-norm": Family("phi", "layer", inside(PHI, "q_layernorm@8", "k_layernorm@8"), {"qk_layernorm": True}),
    "Qwen 2": Family("qwen2", "rms", TWO),
    "Qwen 3": Family("qwen3", "rms", inside(TWO, "q_norm@8", "k_norm@8"), HEADS),
    "Qwen 3, wide heads": Family("qwen3", "rms", inside(TWO, "q_norm@32", "k_norm@32"), {"head_dim": 32}),
    "Mistral": Family("mistral", "rms", TWO, HEADS),
    "Mixtral": Family("mixtral", "rms", TWO, HEADS | {"num_local_experts": 2}),
    "Gemma": Family("gemma", "rms", TWO, HEADS),
    "Gemma 2": Family("gemma2", "rms", FOUR, HEADS),
    "Gemma 3": Family("gemma3_text", "rms", inside(FOUR, "q_norm@8", "k_norm@8"), HEADS),
    "OLMo": Family("olmo", "layer", TWO),  # norms without parameters
    "OLMo 2": Family("olmo2", "rms", inside(AFTER, "q_norm@32", "k_norm@16")),
    "Cohere": Family("cohere", "layer", ONE),
    "Cohere, QK-norm": Family("cohere", "layer", inside(ONE, "q_norm@8", "k_norm@8"), {"use_qk_norm": True}),
    "GPT-BigCode": Family("gpt_bigcode", "layer", "h.{}: ln_1 ln_2 | ln_f"),
    "StableLM": Family("stablelm", "layer", TWO),
    "StableLM, parallel": Family("stablelm", "layer", ONE, {"use_parallel_residual": True}),
    "StableLM, QK-norm": Family("stablelm", "layer", inside(TWO, *EACH_HEAD), {"qk_layernorm": True}),
    "Llama 4": Family("llama4_text", "rms", inside(TWO, "qk_norm@8"), HEADS | {"num_local_experts": 2}),
    "Mamba": Family("mamba", "rms", "layers.{}: norm | norm_f", {"state_size": 4}),
    "BERT": Family("bert", "layer", BERT),
    "RoBERTa": Family("roberta", "layer", BERT),
    "T5": Family("t5", "rms", T5, {"num_decoder_layers": 2}),
    "ViT": Family("vit", "layer", VIT, {"image_size": 8, "patch_size": 4}),
    "Whisper": Family("whisper", "layer", WHISPER, WHISPER_SIZES),
}


def listed(groups, layers, width, kind):
    """The sites that `groups`, written as in `Family.sites`, describe."""
    sites = []
    for group in groups.split(" | "):
        module, _, names = group.rpartition(": ")
        for layer in range(layers if "{}" in module else 1):
            for name, _, head in (name.partition("@") for name in names.split()):
                path = f"{module.format(layer)}.{name}".lstrip(".")
                sites.append(Site(path, kind, int(head or width), "heads" if head else "residual"))
    return sites


def listed_in_table_1(name, width):
    layers, _, kind, _ = TABLE_1[name]
    decoder = DECODERS[HUB[name].architecture]
    norms = " ".join(filter(None, (decoder.first, decoder.second)))
    return listed(f"{decoder.blocks}.{{}}: {norms} | {decoder.last}", layers, width, kind)


def built(config):
    torch.manual_seed(0)
    return AutoModel.from_config(config).eval()


def tiny(family):
    return built(AutoConfig.for_model(family.architecture, **TINY | family.config))


def inputs(model):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 64, (3, 10), generator=generator)
    image, sound = torch.randn(3, 3, 8, 8, generator=generator), torch.randn(3, 8, 20, generator=generator)
    given = {"input_ids": ids, "pixel_values": image, "input_features": sound}[model.main_input_name]
    decoded = {"decoder_input_ids": ids[:, :7]} if model.config.is_encoder_decoder else {}
    return {model.main_input_name: given} | decoded


def forward(model, **settings):
    """The model's output, and by module all that it was given and that it returned, call by call."""
    passed, handles = {name: [] for name, _ in model.named_modules()}, []
    for name, module in model.named_modules():

        def keep(module, args, kwargs, output, calls=passed[name]):
            given = args[0] if args else kwargs.get("hidden_states")
            returned = output[0] if isinstance(output, tuple) else output
            calls.append([x.clone() if isinstance(x, torch.Tensor) else x for x in (given, returned)])

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
    for size, small in (TINY | HEADS | {"rotary_dim": 4}).items():
        if hasattr(config, size) and size != "num_hidden_layers":
            setattr(config, size, small)
    model = built(config)
    assert find_norms(model) == listed_in_table_1(name, 32)

    output, passed = forward(model, output_hidden_states=True)
    stream = output.hidden_states[0]
    for layer, hidden in enumerate(output.hidden_states[:-1]):  # the last ones are those after the last norm
        block = f"{decoder.blocks}.{layer}"
        ((before, f),) = passed[f"{block}.{decoder.first}"]
        ((attended, a),) = passed[f"{block}.{decoder.attention}"]
        ((processed, m),) = passed[f"{block}.mlp"]
        assert same(hidden, stream)  # equation 17
        assert same(before, hidden)  # equation 12
        assert same(attended, f)  # equation 13
        assert not same(hidden + a, hidden)
        if decoder.second:
            ((before, g),) = passed[f"{block}.{decoder.second}"]
            assert same(before, hidden if decoder.parallel else hidden + a)  # equation 14
            assert same(processed, g)  # equation 15
        else:
            assert same(processed, f)
        stream = stream + a + m  # equation 16
    ((before, after),) = passed[decoder.last]
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
    assert set(record) == {site.name for site in find_norms(model)}
    for site in record.sites:
        given, returned = (sum(x.numel() for x in side) for side in zip(*passed[site.name], strict=True))
        assert record[site.name].before.count * site.width == given
        assert record[site.name].after.count * site.width == returned


@pytest.mark.parametrize("name", ["Gemma 2", "Gemma 3", "OLMo 2"])
def test_norms_after_a_sublayer_read_what_it_returns(name):
    _, passed = forward(tiny(FAMILIES[name]))
    for norm, sublayer in (("post_attention_layernorm", "self_attn"), ("post_feedforward_layernorm", "mlp")):
        ((before, _),), ((_, returned),) = passed[f"layers.1.{norm}"], passed[f"layers.1.{sublayer}"]
        assert same(before, returned)
