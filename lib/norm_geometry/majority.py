"""The majority task of Brody, Alon and Yahav (2023): in one Transformer layer, which class is the most frequent?

    run = train("projection", seeds=range(3), steps=1000, record=range(0, 1001, 100))
    run.table                     # loss, accuracy, angle of the queries …: one row for each seed and step

The layer has no positions, so a sequence is known by how often each class occurs in it. Of n_j keys of class j, all of
one score, n_j times the weight of one goes to the class: a batch of sequences costs one matrix product with the
counts. This is no approximation: the outputs and gradients are those of `torch.nn.TransformerEncoderLayer`.

Source: https://arxiv.org/abs/2305.02582, section 3, and the code released with it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "ARMS",
    "Run",
    "evaluate",
    "initial_parameters",
    "logits",
    "losses",
    "mapped_back_queries",
    "sequences",
    "train",
]

Parameters = dict[str, Tensor]  # the names of nn.TransformerEncoderLayer and "embedding"; a leading axis of seeds


def _layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=0.0)


def _same_scale(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1) * x.shape[-1] ** 0.5


def _released_scale(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1) / x.shape[-1] ** 0.5


# What stands in the place of the first norm: the vectors that queries and keys are made of, and those of the values.
ARMS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "projection": lambda x: (_layer_norm(x),) * 2,
    "released scale": lambda x: (_released_scale(x),) * 2,
    "LayerNorm's scale": lambda x: (_same_scale(x),) * 2,
    "identity": lambda x: (x, x),
    "projection, released scale": lambda x: (_layer_norm(x) / x.shape[-1],) * 2,
    "released scale in the scores": lambda x: (_released_scale(x), _same_scale(x)),
    "released scale in the values": lambda x: (_same_scale(x), _released_scale(x)),
    "projection, equal attention": lambda x: (torch.zeros_like(x), _layer_norm(x)),
}


class Run(NamedTuple):
    """What was recorded, one row for each seed and recorded step (see data/README.md), and the trained parameters."""

    table: pd.DataFrame
    parameters: Parameters


def sequences(
    seed: int, *, classes: int = 20, length: int = 50, lead: int = 6, partitions: int = 10_000
) -> tuple[Int[np.ndarray, "train classes"], Int[np.ndarray, "test classes"]]:
    """Sequences as counts of their classes, ten for each partition of `length`; four fifths are there to train on.

    A partition says how often the most frequent class occurs, the second, and so on. They are taken in the order of a
    depth-first search, smallest part first, with the choices at each node shuffled: one data set holds partitions that
    share their smallest parts. Only those are kept in which the first class leads the second by at least `lead`.
    """
    random = np.random.default_rng(seed)
    found = []
    for parts in _partitions(random, length, classes):
        if len(parts) > 1 and parts[-1] - parts[-2] >= lead:
            found.append(parts + [0] * (classes - len(parts)))
        if len(found) == partitions:
            break
    counts = random.permuted(np.repeat(found, 10, axis=0), axis=1)
    return tuple(train_test_split(counts, train_size=0.8, stratify=counts.argmax(axis=1), random_state=seed))


def initial_parameters(seed: int, *, d: int = 8, classes: int = 20) -> Parameters:
    """Torch's own initial values of the encoder layer and of the embedding, which is its output matrix as well."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding = nn.Embedding(classes, d)
        layer = nn.TransformerEncoderLayer(d, nhead=1, dim_feedforward=d)
    unused = ("self_attn.in_proj_bias", "norm1.weight", "norm1.bias")
    parameters = {name: value for name, value in layer.named_parameters() if name not in unused}
    return {name: value.detach() for name, value in (parameters | {"embedding": embedding.weight}).items()}


def mapped_back_queries(
    parameters: Parameters, x: Float[Tensor, "seeds classes d"]
) -> Float[Tensor, "seeds classes d"]:
    """Wₖᵀ W_q x / √d for each x: the vector whose inner product with another x is the score before the softmax."""
    query, key, _ = parameters["self_attn.in_proj_weight"].chunk(3, dim=-2)
    return x @ query.mT @ key / x.shape[-1] ** 0.5


def logits(
    parameters: Parameters, arm: str, counts: Float[Tensor, "seeds batch classes"]
) -> Float[Tensor, "seeds batch classes classes"]:
    """What a position holding each of the classes says in each of the sequences (also where the class is absent)."""
    embedding = parameters["embedding"]
    seeds, classes, d = embedding.shape
    for_scores, for_values = ARMS[arm](embedding)
    scores = mapped_back_queries(parameters, for_scores) @ for_scores.mT
    weights = scores.softmax(dim=-1)
    value = parameters["self_attn.in_proj_weight"][:, 2 * d :]
    values = for_values @ value.mT @ parameters["self_attn.out_proj.weight"].mT
    # The weights add up to one, so what is added to the attention's output may be added to every value instead.
    residual = embedding + parameters["self_attn.out_proj.bias"][:, None]
    values = values[:, None] + residual[:, :, None]
    summands = weights[..., None] * torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)
    sums = counts @ summands.transpose(1, 2).reshape(seeds, classes, -1)
    sums = sums.view(seeds, -1, d + 1)
    hidden = sums[..., :d] / sums[..., d:]
    gain, bias = parameters["norm2.weight"][:, None], parameters["norm2.bias"][:, None]
    within = _linear(parameters, "linear1", torch.addcmul(bias, _layer_norm(hidden), gain)).relu()
    output = hidden + _linear(parameters, "linear2", within)
    return (output @ embedding.mT).view(*counts.shape, classes)


def _linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    return torch.baddbmm(parameters[f"{name}.bias"][:, None], x, parameters[f"{name}.weight"].mT)


def losses(predicted: Tensor, counts: Tensor) -> Float[Tensor, "seeds batch"]:
    """The cross entropy of the majority class, averaged over the positions of each sequence."""
    target = counts.argmax(dim=-1)[..., None].expand(predicted.shape[:-1])
    entropy = functional.cross_entropy(predicted.flatten(0, 2), target.flatten(), reduction="none")
    return (entropy.view(counts.shape) * counts).sum(dim=-1) / counts.sum(dim=-1)


@torch.no_grad()
def evaluate(parameters: Parameters, arm: str, counts: Float[Tensor, "seeds batch classes"]) -> dict[str, Tensor]:
    """Loss, accuracy and the geometry of the attention, each averaged over all positions, one number for each seed.

    Returns:
        loss, accuracy: of the predicted majority class.
        angle: between the mapped-back query and the line along 1, in degrees.
        along, inside: root mean squares of the mapped-back query's components along 1 and orthogonal to it.
        key_distance: root mean square distance of the keys' inputs from their mean.
        score_spread: standard deviation of the scores that a query gives to the positions of its sequence.
        divergence: log(length) minus the entropy of a query's attention: 0 if it attends to all positions equally.
    """
    entropies, correct = [], []
    for piece in counts.split(500, dim=1):  # all at once, the logits would fill the memory
        predicted = logits(parameters, arm, piece)
        entropies.append(losses(predicted, piece))
        correct.append((predicted.argmax(dim=-1) == piece.argmax(dim=-1, keepdim=True)).float())
    x = ARMS[arm](parameters["embedding"])[0]
    query, share = mapped_back_queries(parameters, x), counts / counts.sum(dim=-1, keepdim=True)

    def mean(values: Float[Tensor, "seeds #batch classes"]) -> Float[Tensor, " seeds"]:
        return (values * share).sum(dim=-1).mean(dim=-1)

    along = query.mean(dim=-1)[:, None] * query.shape[-1] ** 0.5
    inside = (query - query.mean(dim=-1, keepdim=True)).norm(dim=-1)[:, None]
    keys = x - (share.mean(dim=1)[..., None] * x).sum(dim=1, keepdim=True)
    scores = query @ keys.mT
    variance = share @ (scores**2).mT - (share @ scores.mT) ** 2
    total = share @ scores.exp().mT
    divergence = share @ (scores.exp() * scores).mT / total - total.log()
    return {
        "loss": torch.cat(entropies, dim=1).mean(dim=1),
        "accuracy": mean(torch.cat(correct, dim=1)),
        "angle": mean(torch.rad2deg(torch.atan2(inside, along.abs()))),
        "along": mean(along**2).sqrt(),
        "inside": mean(inside**2).sqrt(),
        "key_distance": mean(keys.square().sum(dim=-1)[:, None]).sqrt(),
        "score_spread": mean(variance.clamp(min=0).sqrt()),
        "divergence": mean(divergence),
    }


def train(
    arm: str,
    seeds: Sequence[int],
    *,
    steps: int,
    record: Collection[int],
    d: int = 8,
    batch: int = 512,
    decay_over: int = 140_000,
    progress: Callable[[str], None] | None = None,
    **data: int,
) -> Run:
    """Train one layer for each seed side by side with Adam, at a rate falling linearly from 1e-3, to 0 at `decay_over`.

    A seed decides data, initial values and order of the batches, the same for every arm. The batches go through the
    training sequences in a new order each time; a last incomplete batch is left out.

    Args:
        record: the steps before which the layers are evaluated, on the test sequences and as many training sequences.
        progress: called with a line of text at each of them.
        data: passed on to `sequences`.

    Raises:
        ValueError: there are fewer training sequences than a batch holds.
    """
    split = [sequences(seed, **data) for seed in seeds]
    training, test = (torch.from_numpy(np.stack(part)).float() for part in zip(*split, strict=True))
    if training.shape[1] < batch:
        raise ValueError(f"a batch of {batch} needs as many of the {training.shape[1]} training sequences: give less")
    each = [initial_parameters(seed, d=d, classes=training.shape[-1]) for seed in seeds]
    parameters = {name: torch.stack([one[name] for one in each]).requires_grad_() for name in each[0]}
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / decay_over)
    key_rows = parameters["self_attn.in_proj_weight"][:, d : 2 * d]
    initial = key_rows.detach().sum(dim=-1)
    table = []
    for step, chosen in enumerate(_batches(seeds, training.shape[1], batch)):
        if step in record:
            on_training = evaluate(parameters, arm, training[:, : test.shape[1]])
            on_test = evaluate(parameters, arm, test)
            drift = (key_rows.detach().sum(dim=-1) - initial).norm(dim=-1) / initial.norm(dim=-1)
            columns = {"train_loss": on_training["loss"], "test_loss": on_test.pop("loss")} | on_test | {"drift": drift}
            numbers = pd.DataFrame({name: values.numpy() for name, values in columns.items()})
            table.append(pd.DataFrame({"seed": list(seeds), "step": step}).join(numbers))
            if progress:
                means = ", ".join(f"{name} {value:.3f}" for name, value in numbers.mean().items())
                progress(f"{arm}, d = {d}, step {step}: {means}")
        if step == steps:
            break
        counts = training[torch.arange(len(seeds))[:, None], chosen]
        optimizer.zero_grad()
        losses(logits(parameters, arm, counts), counts).mean(dim=1).sum().backward()
        optimizer.step()
        schedule.step()
    return Run(pd.concat(table, ignore_index=True), {name: value.detach() for name, value in parameters.items()})


def _batches(seeds: Sequence[int], size: int, batch: int) -> Iterator[Int[Tensor, "seeds batch"]]:
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    while True:
        order = torch.stack([torch.randperm(size, generator=generator) for generator in generators])
        yield from order[:, : size - size % batch].split(batch, dim=1)


def _partitions(random: np.random.Generator, length: int, parts: int, smallest: int = 1) -> Iterator[list[int]]:
    """Ascending partitions of `length` into at most `parts` parts of at least `smallest`, choices shuffled."""
    first = np.append(np.arange(smallest, length // 2 + 1), length)
    for part in random.permutation(first).tolist() if parts > 1 else [length]:
        if part == length:
            yield [part]
        else:
            for rest in _partitions(random, length - part, parts - 1, part):
                yield [part, *rest]
