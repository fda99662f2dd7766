"""Probes find what is there, find nothing where nothing is, and never see the articles they are judged on."""

import numpy as np
import pytest
import torch

from norm_geometry import norms, probes

PROBES = [probes.linear_probe(), probes.nonlinear_probe(functions=50)]
ARTICLES = np.repeat(np.arange(20), 30)


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(600, 8))


@pytest.mark.parametrize("probe", PROBES, ids=["linear", "nonlinear"])
def test_a_planted_target_is_found_and_an_independent_one_is_not(probe, vectors):
    random = np.random.default_rng(1)
    targets = np.stack([vectors @ random.normal(size=8) + 5, random.normal(size=600)], axis=1)
    read = probes.held_out_r2(probe, vectors, targets, ARTICLES)
    assert read.r2.shape == read.chance.shape == (3, 2)
    assert (read.r2[:, 0] > 0.99).all()
    assert (read.r2[:, 1] < 0.05).all()
    assert (read.chance.mean(axis=0) < 0.1).all()


def test_only_the_nonlinear_probe_finds_a_square(vectors):
    target = vectors[:, :1] ** 2
    linear, nonlinear = (
        probes.held_out_r2(probe, vectors[:, :3], target, ARTICLES)
        for probe in (probes.linear_probe(), probes.nonlinear_probe())
    )
    assert linear.r2.max() < 0.1
    assert nonlinear.r2.min() > 0.9


def test_articles_are_held_out_whole():
    random = np.random.default_rng(2)
    name, number = random.normal(size=(20, 8)), random.normal(size=(20, 1))  # of each article
    vectors = name[ARTICLES] + 0.01 * random.normal(size=(600, 8))
    by_article = probes.held_out_r2(probes.nonlinear_probe(), vectors, number[ARTICLES], ARTICLES)
    by_token = probes.held_out_r2(probes.nonlinear_probe(), vectors, number[ARTICLES], np.arange(600))
    assert by_article.r2.mean() < 0.3
    assert by_token.r2.min() > 0.95  # what a leak would look like


def test_the_scale_is_gone_after_the_norm_unless_the_vectors_leave_a_trace():
    random = np.random.default_rng(3)
    scale = np.exp(random.normal(size=(600, 1)))
    direction = random.normal(size=(600, 8))
    constant = np.hstack([scale * direction, np.ones((600, 1))])  # one coordinate does not scale
    for x, found in ((scale * direction, False), (constant, True)):
        y = norms.rms_norm(x, eps=0.0)
        log_scale = 0.5 * np.log((x**2).mean(axis=1, keepdims=True))
        read = probes.held_out_r2(probes.linear_probe(), y, log_scale, ARTICLES)
        assert (read.r2.min() > 0.7) if found else (read.r2.max() < 0.1)


def test_the_same_seed_gives_the_same_reading(vectors):
    target = vectors[:, :1] ** 3
    one, same, other = (
        probes.held_out_r2(probes.nonlinear_probe(), vectors, target, ARTICLES, seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one.r2, same.r2)
    np.testing.assert_array_equal(one.chance, same.chance)
    assert (one.r2 != other.r2).any()


def test_vectors_are_collected_without_first_tokens_and_padding(minilm):
    chunks = [np.arange(2000, 2000 + length) for length in (7, 3, 5)]
    model, name = minilm.model, "encoder.layer.2.output.LayerNorm"
    collected = probes.collect(model, [name], chunks)[name]
    np.testing.assert_array_equal(collected.chunk, np.repeat([0, 1, 2], [6, 2, 4]))
    norm = model.get_submodule(name)
    with torch.no_grad():
        after = norm(torch.tensor(collected.before, device=model.device)).cpu()
        alone = model(torch.tensor(chunks[1], device=model.device)[None], output_hidden_states=True).hidden_states[3][
            0, 1:
        ]
    np.testing.assert_allclose(collected.after, after, atol=1e-5)
    np.testing.assert_allclose(collected.after[collected.chunk == 1], alone.cpu(), atol=1e-4)
    assert not norm._forward_hooks


def test_too_few_articles_are_refused(vectors):
    with pytest.raises(ValueError, match="from 3 articles: give tokens from at least four"):
        probes.held_out_r2(PROBES[0], vectors, vectors[:, :1], ARTICLES % 3)
