"""Mean subtraction folds away exactly in every architecture of the paper that has it; where it cannot, that is said."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from norm_geometry.folding import fold_mean_subtraction, swap, writers
from norm_geometry.sites import find_norms

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
BEYOND = {
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}
TIED = {"gpt2", "gpt_neo", "opt"}
IDS = torch.randint(64, (3, 20), generator=torch.Generator().manual_seed(2))


def built(architecture, **settings):
    torch.manual_seed(0)
    common = {key: size for key, size in TINY.items() if architecture != "gpt_neo" or "num_" not in key}
    config = AutoConfig.for_model(architecture, **common | BEYOND.get(architecture, {}) | settings)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # of gains 1 and biases 0 all norms are alike
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "falcon"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_a_folded_model_has_rms_norms_and_the_same_logits(architecture, dtype, tolerance):
    model = built(architecture).to(dtype)
    before, weights = logits(model), {name: p.clone() for name, p in model.named_parameters()}
    folded = fold_mean_subtraction(model, untie=True)
    assert {site.kind for site in find_norms(folded)} == {"rms"}
    torch.testing.assert_close(logits(folded), before, rtol=0, atol=tolerance)
    assert (logits(swap(model)) - before).abs().max() > 0.1  # what RMSNorm alone would do
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())


def test_writers_are_what_is_added_to_the_stream():
    written = ["transformer.wte", "transformer.wpe"]
    for i in range(2):  # GPT-Neo's queries, keys and values are as wide as the stream, and not among them
        written += [f"transformer.h.{i}.attn.attention.out_proj", f"transformer.h.{i}.mlp.c_proj"]
    assert writers(built("gpt_neo")) == written


def test_weights_that_nobody_trains_fold_too():
    model = built("gpt_neox").requires_grad_(False)
    torch.testing.assert_close(logits(fold_mean_subtraction(model)), logits(model), rtol=0, atol=1e-4)


def test_single_norms_can_be_swapped():
    model = built("gpt2")
    swapped = swap(model, ["transformer.h.1.ln_2"])
    kinds = {site.name: site.kind for site in find_norms(swapped)}
    assert [name for name, kind in kinds.items() if kind == "rms"] == ["transformer.h.1.ln_2"]
    norm, former = swapped.transformer.h[1].ln_2, model.transformer.h[1].ln_2
    x = torch.randn(5, 32)
    centred = x - x.mean(dim=1, keepdim=True)
    torch.testing.assert_close(norm(centred), former(x), rtol=1e-4, atol=1e-5)
    assert isinstance(former, nn.LayerNorm)


@pytest.mark.parametrize("architecture", sorted(TIED))
def test_a_tied_embedding_is_untied_only_when_asked(architecture):
    model = built(architecture)
    with pytest.raises(ValueError, match=r"is its embedding, .*: set untie=True, which adds 2,048 parameters"):
        fold_mean_subtraction(model)
    assert fold_mean_subtraction(model, untie=True).num_parameters() == model.num_parameters() + 2048


@pytest.mark.parametrize(
    ("architecture", "settings", "message"),
    [
        ("llama", {}, "LlamaForCausalLM has no LayerNorm on its residual stream"),
        ("cohere", {}, "is a CohereLayerNorm, not a torch.nn.LayerNorm"),
        ("opt", {"do_layer_norm_before": False}, "post-norm"),
        ("bloom", {}, "reads vectors with a component along 1"),  # its embedding is followed by a norm
    ],
)
def test_where_it_cannot_be_done_that_is_said(architecture, settings, message):
    with pytest.raises(ValueError, match=message):
        fold_mean_subtraction(built(architecture, **settings), untie=True)
