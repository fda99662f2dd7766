"""The majority task's layer, seen through counts, is torch's encoder layer on the sequences themselves."""

import numpy as np
import pytest
import torch
from torch import nn

from norm_geometry import majority, norms

D, CLASSES = 8, 6
COUNTS = torch.tensor([[5, 0, 2, 1, 0, 0], [1, 1, 1, 1, 1, 3], [0, 8, 0, 0, 0, 0]])
NORMS = {
    "projection": lambda x: norms.layer_norm(x, eps=0.0),
    "released scale": lambda x: x / x.norm(dim=-1, keepdim=True) / D**0.5,
    "LayerNorm's scale": lambda x: x / x.norm(dim=-1, keepdim=True) * D**0.5,
    "identity": lambda x: x,
    "projection, released scale": lambda x: norms.layer_norm(x, eps=0.0) / D,
}


class Norm(nn.Module):
    def __init__(self, arm):
        super().__init__()
        self.arm = arm

    def forward(self, x):
        return NORMS[self.arm](x)


def parameters(seeds):
    each = [majority.initial_parameters(seed, d=D, classes=CLASSES) for seed in seeds]
    # Values other than torch's initial zeros and ones, or a forgotten bias would not show.
    noise = torch.Generator().manual_seed(0)
    return {
        name: torch.stack([one[name] + 0.3 * torch.randn(one[name].shape, generator=noise) for one in each])
        .double()
        .requires_grad_()
        for name in each[0]
    }


def encoder_layer(arm, values):
    layer = nn.TransformerEncoderLayer(
        D, nhead=1, dim_feedforward=D, dropout=0.0, layer_norm_eps=0.0, batch_first=True, norm_first=True
    ).double()
    layer.norm1 = Norm(arm)
    layer.self_attn.in_proj_bias = None
    layer.load_state_dict({name: value for name, value in values.items() if name != "embedding"})
    return layer


@pytest.mark.parametrize("arm", NORMS)
def test_outputs_and_gradients_are_those_of_torchs_encoder_layer(arm):
    batched = parameters([0, 1])
    counts = torch.stack([COUNTS, COUNTS.flip(0)]).double()
    predicted = majority.logits(batched, arm, counts)
    majority.losses(predicted, counts).mean(dim=1).sum().backward()
    for seed in range(2):
        single = {name: value[seed].detach() for name, value in batched.items()}
        layer, embedding = encoder_layer(arm, single), single["embedding"].requires_grad_()
        tokens = torch.stack([torch.arange(CLASSES).repeat_interleave(row.long()) for row in counts[seed]])
        reference = layer(embedding[tokens]) @ embedding.T
        torch.testing.assert_close(predicted[seed].gather(1, tokens[..., None].expand_as(reference)), reference)
        target = counts[seed].argmax(dim=-1, keepdim=True).expand_as(tokens)
        nn.functional.cross_entropy(reference.flatten(0, 1), target.flatten()).backward()
        for name, value in {**dict(layer.named_parameters()), "embedding": embedding}.items():
            torch.testing.assert_close(batched[name].grad[seed], value.grad, msg=name)


def test_initial_values_are_those_of_torch():
    torch.manual_seed(3)
    embedding = nn.Embedding(20, 8)
    layer = nn.TransformerEncoderLayer(8, nhead=1, dim_feedforward=8)
    initial = majority.initial_parameters(3)
    assert initial.pop("embedding").equal(embedding.weight)
    assert set(dict(layer.named_parameters())) - set(initial) == {
        "self_attn.in_proj_bias",
        "norm1.weight",
        "norm1.bias",
    }
    for name, value in initial.items():
        assert value.equal(layer.get_parameter(name)), name


def test_every_quantity_is_an_average_over_the_positions_of_the_sequences():
    values, arm = parameters([5]), "LayerNorm's scale"
    counts = torch.tensor([[[5, 0, 2, 1, 0, 0], [1, 1, 1, 1, 1, 3]]]).double()
    found = {name: value.item() for name, value in majority.evaluate(values, arm, counts).items()}
    single = {name: value[0].detach() for name, value in values.items()}
    x = NORMS[arm](single["embedding"]).numpy()
    query, key, _ = single["self_attn.in_proj_weight"].chunk(3)
    mapped = x @ (query.T @ key).numpy() / np.sqrt(D)
    spread, divergence, angle, along, keys = [], [], [], [], []
    for row in counts[0].long().numpy():
        tokens = np.repeat(np.arange(CLASSES), row)
        for token in tokens:
            scores = x[tokens] @ mapped[token]
            weights = np.exp(scores) / np.exp(scores).sum()
            spread.append(scores.std())
            divergence.append(np.log(len(tokens)) + (weights * np.log(weights)).sum())
            along.append(mapped[token].sum() / np.sqrt(D))
            angle.append(np.degrees(np.arccos(abs(along[-1]) / np.linalg.norm(mapped[token]))))
            keys.append(x[token])
    expected = {
        "score_spread": np.mean(spread),
        "divergence": np.mean(divergence),
        "angle": np.mean(angle),
        "along": np.sqrt(np.mean(np.square(along))),
        "key_distance": np.sqrt(np.var(keys, axis=0).sum()),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name
    predicted = majority.logits(values, arm, counts)
    assert found["loss"] == pytest.approx(majority.losses(predicted, counts).mean().item())
    right = predicted.argmax(dim=-1) == counts.argmax(dim=-1, keepdim=True)
    assert found["accuracy"] == pytest.approx((right * counts).sum().item() / counts.sum().item())


def test_sequences_are_as_asked_for():
    training, test = majority.sequences(1, classes=7, length=20, lead=4, partitions=50)
    assert training.shape == (400, 7)
    assert test.shape == (100, 7)
    both = np.concatenate([training, test])
    ordered = np.sort(both, axis=1)
    assert (both.sum(axis=1) == 20).all()
    assert (ordered[:, -1] - ordered[:, -2] >= 4).all()
    assert (np.unique(ordered, axis=0, return_counts=True)[1] == 10).all()
    assert set(training.argmax(axis=1)) == set(test.argmax(axis=1)) == set(range(7))
    again, other = (majority.sequences(seed, classes=7, length=20, lead=4, partitions=50)[0] for seed in (1, 2))
    np.testing.assert_array_equal(training, again)
    assert not np.array_equal(training, other)


def test_all_partitions_are_found():
    found = {tuple(parts) for parts in majority._partitions(np.random.default_rng(0), 12, 12)}
    assert len(found) == 77  # the number of partitions of 12
    assert all(sum(parts) == 12 and list(parts) == sorted(parts) for parts in found)


SMALL = {"steps": 20, "record": [0, 20], "batch": 50, "classes": 5, "length": 12, "lead": 2, "partitions": 20}


def test_a_seed_is_the_same_alone_and_beside_others():
    both, alone = majority.train("projection", [3, 4], **SMALL), majority.train("projection", [4], **SMALL)
    ours = both.table[both.table["seed"] == 4].reset_index(drop=True)
    np.testing.assert_allclose(ours, alone.table, rtol=1e-3, atol=1e-5)
    loss = both.table.pivot(index="step", columns="seed", values="train_loss")
    assert (loss.loc[20] < loss.loc[0]).all()


def test_only_the_projection_makes_the_model_blind_to_keys_along_the_uniform_vector():
    values = parameters([0, 1])
    counts = COUNTS.expand(2, -1, -1).double()
    shifted = {name: value.detach().clone() for name, value in values.items()}
    shifted["self_attn.in_proj_weight"][:, D : 2 * D] += torch.randn(2, D, 1, dtype=torch.float64)
    for arm in ("projection", "LayerNorm's scale"):
        before, after = (majority.evaluate(one, arm, counts) for one in (values, shifted))
        same = torch.allclose(before["loss"], after["loss"], rtol=1e-12)
        assert same == (arm == "projection")
        assert (before["angle"] - after["angle"]).abs().min() > 1


def test_the_released_scale_is_layer_norms_with_smaller_matrices():
    values = parameters([0, 1])
    counts = COUNTS.expand(2, -1, -1).double()
    smaller = values | {"self_attn.in_proj_weight": values["self_attn.in_proj_weight"] / D}
    released, same = (
        majority.logits(values, "released scale", counts),
        majority.logits(smaller, "LayerNorm's scale", counts),
    )
    torch.testing.assert_close(released, same)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="160 training sequences"):
        majority.train("projection", [0], **SMALL | {"batch": 161})
