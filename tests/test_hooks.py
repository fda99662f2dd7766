"""Norms are found by what they do, and watching leaves no trace."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from norm_geometry.hooks import CONTROLS, find_norms, watch
from norm_geometry.statistics import AngleStatistics, EnergyRatios, random_directions, uniform_and_random

TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
OWN = {"llama": GROUPED, "qwen3": GROUPED, "gemma3_text": GROUPED}


def tiny(architecture):
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(architecture, **TINY, **OWN.get(architecture, {}))).eval()


def tokens(batch=3, length=10):
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(1))


class Impostor(nn.Module):
    """Called a norm, and does not normalize."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.weight * torch.tanh(x)


class Plain(nn.Module):
    """Normalizes, and is not called a norm."""

    def __init__(self, *shape):
        super().__init__()
        self.g = nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x):
        return self.g * x / x.square().mean(-1, keepdim=True).sqrt()


def test_modules_are_judged_by_what_they_do():
    model = nn.ModuleDict(
        {
            "impostor": Impostor(16),
            "plain": Plain(16),
            "layer": nn.LayerNorm(16),
            "heads": Plain(4, 16),
            "batch": nn.BatchNorm1d(16),
            "group": nn.GroupNorm(1, 16),
            "jointly": nn.LayerNorm((4, 16)),
            "linear": nn.Linear(16, 16),
            "scale": nn.Sequential(nn.ReLU(), nn.Dropout(), nn.Softmax(-1), nn.PReLU(16)),
        }
    ).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = [(s.name, s.kind, s.width) for s in find_norms(model)]
    assert found == [("plain", "rms", 16), ("layer", "layer", 16), ("heads", "rms", 16)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sites_are_found_in_half_precision_and_without_weights(dtype):
    expected = find_norms(tiny("llama"))
    assert find_norms(tiny("llama").to(dtype)) == expected
    with torch.device("meta"):
        assert find_norms(tiny("llama")) == expected


def activations(model, **inputs):
    """The references: what every norm got and gave, kept whole."""
    kept = {}
    handles = [
        model.get_submodule(site.name).register_forward_hook(
            lambda module, args, output, name=site.name: kept.update({name: (args[0].clone(), output.clone())})
        )
        for site in find_norms(model)
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return kept


@pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])
def test_statistics_are_those_of_the_stored_activations(architecture):
    model, ids = tiny(architecture), tokens()
    with watch(model, sample_every=1) as record, torch.no_grad():
        model(input_ids=ids[:2])
        model(input_ids=ids[2:])
    stored = [activations(model, input_ids=part) for part in (ids[:2], ids[2:])]
    assert list(record) == list(stored[0])  # in the order of their calls
    for site in record.sites:
        directions = np.stack(list(uniform_and_random(site.width).values()))
        for side in (0, 1):
            vectors = torch.cat([part[site.name][side].reshape(-1, site.width) for part in stored])
            expected = AngleStatistics.of(vectors, directions)
            measured = (record[site.name].before, record[site.name].after)[side]
            assert measured.count == len(vectors)
            np.testing.assert_allclose(measured.mean, expected.mean, rtol=1e-6)
            np.testing.assert_allclose(measured.std, expected.std, rtol=1e-6)
            ratios = (record[site.name].sampled_before, record[site.name].sampled_after)[side]
            controls = np.concatenate([directions, random_directions(CONTROLS, site.width, seed=1)])
            expected = EnergyRatios.of(vectors, controls)
            assert ratios.count == expected.count
            np.testing.assert_allclose(ratios.energy_ratio, expected.energy_ratio, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("length", [16, 50, 64, 100])
def test_the_sample_is_no_matter_of_batches_and_favours_no_place_in_a_sequence(length):
    model = nn.Sequential()
    model.norm = nn.LayerNorm(64)
    model.forward = lambda input_ids: model.norm(nn.functional.one_hot(input_ids % 64, 64).float() * 9)
    # Every token is the unit vector of its place in the sequence (modulo 64), so ratios to unit vectors count places.
    ids = torch.arange(length).expand(40 * 64 // length * 4, length)
    ratios = []
    for batch in (1, 3, 16):
        with watch(model, lambda width: dict(enumerate(np.eye(width))), sample_every=20) as record:
            for part in ids.split(batch):
                model(input_ids=part)
        ratios.append(record["norm"].sampled_before)
    for other in ratios:
        assert other.count == ratios[0].count
        np.testing.assert_allclose(other.total, ratios[0].total, rtol=1e-6)
    share = ratios[0].total[:64] / ratios[0].total[:64].sum()
    expected = np.bincount(np.arange(length) % 64, minlength=64) / length
    assert abs(ratios[0].count / ids.numel() - 1 / 20) < 0.005
    assert np.abs(share - expected).max() < 0.6 * expected.max()


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3", "gemma3_text"])  # the last puts heads before tokens
def test_padding_is_left_out(architecture):
    model, ids = tiny(architecture), tokens(2, 8)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    with watch(model) as padded, torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
    with watch(model) as apart, torch.no_grad():
        model(input_ids=ids[:1])
        model(input_ids=ids[1:, :5])
    for name in padded:
        assert padded[name].before.count == apart[name].before.count
        np.testing.assert_allclose(padded[name].after.mean, apart[name].after.mean, rtol=1e-4)


def test_the_encoders_mask_hides_nothing_of_the_decoder():
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    model = AutoModel.from_config(AutoConfig.for_model("t5", **shape)).eval()
    mask = torch.ones(3, 10, dtype=torch.long)
    mask[:, 6:] = 0
    with watch(model) as record, torch.no_grad():
        model(input_ids=tokens(), attention_mask=mask, decoder_input_ids=tokens())
    assert {int(record[name].before.count) for name in record if name.startswith("decoder")} == {30}


def test_a_site_that_gets_other_vectors_than_it_should_is_named():
    model = tiny("llama")
    sites = [replace(find_norms(model)[0], width=16)]
    with (
        pytest.raises(ValueError, match=r"layers\.0\.input_layernorm got vectors of length 32, not 16"),
        watch(model, sites=sites),
    ):
        model(input_ids=tokens())


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3", "olmo"])
def test_output_is_unchanged_to_the_bit_and_nothing_remains(architecture):
    model, ids = tiny(architecture), tokens()
    with torch.no_grad():
        bare = model(input_ids=ids).last_hidden_state
        with watch(model):
            watched = model(input_ids=ids).last_hidden_state
    assert torch.equal(bare, watched)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_gradients_pass_through_a_watched_model():
    model, ids = tiny("llama"), tokens()
    with watch(model):
        model(input_ids=ids).last_hidden_state.sum().backward()
    assert all(p.grad is not None for p in model.layers.parameters())


def test_hooks_are_gone_after_an_error_in_the_block():
    model = tiny("llama")
    beyond_the_vocabulary = tokens() + 64
    with pytest.raises(IndexError), watch(model):
        model(input_ids=beyond_the_vocabulary)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_hooks_are_gone_after_an_error_at_a_later_site():
    model = tiny("llama")
    sites = find_norms(model)
    missing = [*sites[:2], sites[2].__class__("no.such.module", "rms", 32, "residual")]
    with pytest.raises(AttributeError), watch(model, sites=missing):
        pass
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_no_activation_is_kept():
    model = tiny("llama")
    seen = []
    for site in find_norms(model):
        model.get_submodule(site.name).register_forward_hook(
            lambda module, args, output: seen.extend(map(weakref.ref, (*args, output)))
        )
    with watch(model) as record, torch.no_grad():
        model(input_ids=tokens())
        gc.collect()
        assert len(seen) == 10
        assert all(activation() is None for activation in seen)
    assert len(record) == 5


def test_a_model_without_norms_is_refused():
    with pytest.raises(ValueError, match="Linear has no normalization layers"), watch(nn.Linear(3, 3)):
        pass
