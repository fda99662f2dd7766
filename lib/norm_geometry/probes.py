"""Probes: can a number be read off vectors? Fitted on the tokens of some articles, judged on articles never seen.

    vectors = collect(model, ["layers.5.input_layernorm"], chunks)["layers.5.input_layernorm"]
    read = held_out_r2(linear_probe(), vectors.after, vectors.before.mean(axis=1, keepdims=True), vectors.chunk)
    read.r2.mean(axis=0), read.chance.mean(axis=0)

A low score shows that this kind of probe does not find the number, not that the number is not there; a high one shows
that it is there for vectors such as these, not for all vectors.
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import StandardScaler
from torch import nn

from norm_geometry import corpus
from norm_geometry.arrays import to_numpy

__all__ = ["Reading", "Vectors", "collect", "held_out_r2", "linear_probe", "nonlinear_probe"]

PENALTIES = np.logspace(-2, 5, 8)


class Vectors(NamedTuple):
    """Vectors at one normalization site, one row a token, and the number of the chunk that each token stands in."""

    before: Float[np.ndarray, "tokens d"]
    after: Float[np.ndarray, "tokens d"]
    chunk: Int[np.ndarray, " tokens"]


def collect(model: nn.Module, names: Iterable[str], chunks: Sequence[Int[np.ndarray, "_"]]) -> dict[str, Vectors]:
    """Run `model` over the chunks and keep the vectors before and after each of the modules called `names`.

    The first token of each chunk is left out: in many models it carries massive activations, or is no word of the text.
    All vectors are held in memory at once; `norm_geometry.hooks.watch` measures without keeping any.
    """
    device = next(model.parameters()).device
    seen = {name: ([], []) for name in names}
    kept = torch.empty(0)

    def keep(name):
        def hook(module, inputs, output):
            for side, vectors in zip(seen[name], (inputs[0], output), strict=True):
                side.append(to_numpy(vectors[kept]))

        return hook

    with ExitStack() as hooks, torch.inference_mode():
        for name in seen:
            hooks.callback(model.get_submodule(name).register_forward_hook(keep(name)).remove)
        for batch in corpus.batches(chunks):
            batch = {key: torch.from_numpy(value).to(device) for key, value in batch.items()}
            kept = batch["attention_mask"].bool()
            kept[:, 0] = False
            model(**batch)
    numbers = np.repeat(np.arange(len(chunks)), [len(chunk) - 1 for chunk in chunks])
    return {name: Vectors(*map(np.concatenate, sides), numbers) for name, sides in seen.items()}


class Reading(NamedTuple):
    """R² on held-out articles, one row for each split into training and held-out articles, one column a target.

    1 is a perfect prediction; 0 is as good as the mean of the held-out targets, which is the best constant there is;
    below 0 is worse than that. `chance` is the R² of the same probe fitted to permuted training targets.
    """

    r2: Float[np.ndarray, "splits targets"]
    chance: Float[np.ndarray, "splits targets"]


def linear_probe() -> Pipeline:
    """Ridge regression on standardized coordinates.

    The penalty is chosen for each target by leave-one-out on the training data, for which ridge has a closed form.
    """
    return make_pipeline(StandardScaler(), RidgeCV(PENALTIES, alpha_per_target=True))


def nonlinear_probe(functions: int = 200) -> Pipeline:
    """Ridge regression on the standardized coordinates and on radial basis functions centred at training vectors.

    The functions are Gaussian in the distance of standardized vectors, with squared width d/2, made orthonormal
    (Nyström's approximation of kernel regression, Williams and Seeger 2001). Since the coordinates stand beside them,
    what this probe finds beyond `linear_probe` is not linear.
    """
    basis = Nystroem(n_components=functions, random_state=0)
    features = make_union("passthrough", make_pipeline(basis, StandardScaler()))
    return make_pipeline(StandardScaler(), features, RidgeCV(PENALTIES, alpha_per_target=True))


def held_out_r2(
    probe: Any,
    features: Float[np.ndarray, "tokens d"],
    targets: Float[np.ndarray, "tokens targets"],
    articles: Int[np.ndarray, " tokens"],
    *,
    splits: int = 3,
    seed: int = 0,
) -> Reading:
    """Fit `probe` on three quarters of the articles and judge it on the others.

    All tokens of an article are on the same side: neighbouring tokens resemble each other, and a split by token would
    let the probe recognise what it is to predict.

    Args:
        probe: an estimator of scikit-learn that takes several targets and fits each by itself, as ridge regression
            does: the targets and their permutations are fitted in one.
        articles: the number of the article that each token comes from.

    Raises:
        ValueError: there are fewer than four articles.
    """
    if len(np.unique(articles)) < 4:
        raise ValueError(f"the tokens come from {len(np.unique(articles))} articles: give tokens from at least four")
    random, scores = np.random.default_rng(seed), []
    for train, test in GroupShuffleSplit(splits, test_size=0.25, random_state=seed).split(features, groups=articles):
        permuted = random.permutation(targets[train])
        fitted = clone(probe).fit(features[train], np.hstack([targets[train], permuted]))
        truth = np.hstack([targets[test], targets[test]])
        scores.append(r2_score(truth, fitted.predict(features[test]), multioutput="raw_values"))
    return Reading(*np.hsplit(np.array(scores), 2))
