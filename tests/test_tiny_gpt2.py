"""The arms of the tiny GPT-2 differ in scaling alone, and a run that was interrupted ends as if it had not been."""

import sys
from pathlib import Path

import pytest
import torch

from norm_geometry import norms

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import tiny_gpt2

IDS = torch.randint(tiny_gpt2.VOCABULARY, (2000,), generator=torch.Generator().manual_seed(0))
INPUTS = [IDS[:40]]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(tiny_gpt2, "SHORTEST", 48)
    monkeypatch.setattr(tiny_gpt2, "LONGEST", 64)
    monkeypatch.setattr(tiny_gpt2, "TEST_EVERY", 2)


def test_the_arms_start_with_the_same_weights_and_train_the_same_ones():
    models = [tiny_gpt2.tiny_gpt2(arm, seed=3) for arm in tiny_gpt2.ARMS]
    first, second = (dict(model.named_parameters()) for model in models)
    assert first.keys() == second.keys()
    for name, weights in first.items():
        assert torch.equal(weights, second[name])
        assert weights.requires_grad == second[name].requires_grad == ("c_attn.bias" not in name)
    assert not any("ln_1" in name for name in first)
    assert sum("ln_2" in name for name in first) == 8
    other_seed = dict(tiny_gpt2.tiny_gpt2(tiny_gpt2.ARMS[0], seed=4).named_parameters())
    assert not torch.equal(first["transformer.wte.weight"], other_seed["transformer.wte.weight"])


@pytest.mark.parametrize("arm", tiny_gpt2.ARMS)
def test_attention_reads_what_the_arm_says(arm):
    model = tiny_gpt2.tiny_gpt2(arm, seed=0).eval()
    seen = {}
    for index, block in enumerate(model.transformer.h):
        block.ln_1.register_forward_hook(lambda _, inputs, __, index=index: seen.update({index: inputs[0]}))
        block.attn.register_forward_pre_hook(lambda _, inputs, index=index: seen.update({-1 - index: inputs[0]}))
    model(IDS[None, :40])
    for index in range(4):
        expected = norms.project(seen[index]) if arm == "without scaling" else norms.layer_norm(seen[index])
        torch.testing.assert_close(seen[-1 - index], expected)


def test_the_keys_counted_are_those_that_attention_uses():
    model = tiny_gpt2.tiny_gpt2("with scaling", seed=0).eval()
    vectors = tiny_gpt2.vectors_before_attention(model, IDS[:40])
    cache = model(IDS[None, :40], use_cache=True).past_key_values
    for layer in range(4):
        for head in range(4):
            assert torch.equal(vectors[layer, f"head {head}"], cache.layers[layer].keys[0, head])
    table = tiny_gpt2.unselectable(model, [IDS[:40], IDS[40:70]])
    assert table.query("place == 'after the norm'")["unselectable"].sum() == 0
    head = table.query("place == 'head 0' and layer == 0").set_index("length")["keys"]
    assert (head[16], head[64]) == (2 * 16, 40 + 30)


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    run = {"arm": "with scaling", "seed": 1, "stream": IDS, "inputs": INPUTS, "steps": 8, "checkpoint_every": 3}
    expected = tiny_gpt2.train(folder=whole, **run)

    count, loss_of = 0, tiny_gpt2.loss_of

    def killed(model, ids):
        nonlocal count
        count += model.training
        if count == 6:  # two steps after the checkpoint
            raise KeyboardInterrupt
        return loss_of(model, ids)

    monkeypatch.setattr(tiny_gpt2, "loss_of", killed)
    with pytest.raises(KeyboardInterrupt):
        tiny_gpt2.train(folder=broken, **run)
    monkeypatch.setattr(tiny_gpt2, "loss_of", loss_of)
    resumed = tiny_gpt2.train(folder=broken, **run)
    assert len(resumed["losses"]) == 8
    assert resumed["losses"] == expected["losses"]
    assert resumed["test_losses"] == expected["test_losses"]
    for name, weights in expected["model"].items():
        assert torch.equal(weights, resumed["model"][name])
    assert len(set(expected["losses"])) == 8
