"""Figures show the data they were given, carry a text alternative, and leave Matplotlib as they found it."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from norm_geometry import (
    attention_figures,
    figures,
    model_figures,
    norms,
    results,
    scenes,
    training_figures,
    widgets,
)
from norm_geometry.statistics import AngleStatistics, random_directions

X, GAIN, BIAS = np.array([-0.5, 0.3, 2.4]), np.array([1.2, 0.6, 0.9]), np.array([0.3, -0.4, 0.5])


def points(trace):
    return np.stack([trace.x, trace.y, trace.z], axis=-1).astype(float)


def test_the_steps_end_at_layer_norm():
    scene = scenes.layer_norm_steps(X, GAIN, BIAS)
    last = {trace.name: trace for trace in scene.frames[-1].data}
    np.testing.assert_allclose(points(last["LayerNorm(x)"])[1], norms.layer_norm(X, GAIN, BIAS, eps=0.0), atol=1e-3)
    ellipse = points(last["ellipse"])
    np.testing.assert_allclose((ellipse - BIAS) @ (1 / GAIN), 0, atol=5e-3)
    circle = points({trace.name: trace for trace in scene.frames[4].data}["circle of radius √3"])
    np.testing.assert_allclose(np.linalg.norm(circle, axis=1), np.sqrt(3), atol=2e-3)
    np.testing.assert_allclose(circle.sum(axis=1), 0, atol=2e-3)


@pytest.mark.parametrize("project", [True, False])
def test_the_cloud_ends_on_the_image_of_the_norm(project):
    x = np.random.default_rng(0).normal(size=(20, 3))
    scene = scenes.cloud(x, GAIN if project else None, BIAS if project else None, project=project)
    ends = points(scene.frames[-1].data[1])
    expected = norms.layer_norm(x, GAIN, BIAS, eps=0.0) if project else norms.rms_norm(x, eps=0.0)
    np.testing.assert_allclose(ends, expected, atol=1e-3)
    np.testing.assert_allclose(points(scene.data[1]), x, atol=1e-3)


@pytest.mark.parametrize("scene", [scenes.layer_norm_steps(X, GAIN, BIAS), scenes.cloud(np.eye(3) + X)])
def test_every_step_of_a_scene_replaces_every_trace(scene):
    kinds = [type(trace) for trace in scene.data]
    assert all([type(trace) for trace in frame.data] == kinds for frame in scene.frames)
    assert [step.args[0][0] for step in scene.layout.sliders[0].steps] == [frame.name for frame in scene.frames]
    assert len(scene.layout.meta["alt"]) > 40


@pytest.fixture(scope="module")
def table():
    return results.published("smollm2-135m").table


READINGS = pd.DataFrame(
    [
        ["layer 0", target, probe, 0.7, 0.6, 0.8, 0.0]
        for target in ("scale", "mean")
        for probe in ("linear", "nonlinear")
    ],
    columns=["site", "target", "probe", "r2", "low", "high", "chance"],
)

CURVES = pd.DataFrame(
    [
        [arm, seed, step, seed / step, step + seed]
        for arm in attention_figures.ARM_STYLES
        for seed in (1, 2)
        for step in (100, 1000)
    ],
    columns=["arm", "seed", "step", "loss", "angle"],
)
LEARNED = pd.DataFrame(
    np.random.default_rng(0).normal(size=(4, 6)),
    columns=[f"{kind}_{axis}" for kind in ("key", "query") for axis in "xyz"],
)

STEPS = pd.Series([1.0, 2.0, 4.0], index=[0, 1, 10])


def twins(name):
    """The book's own measurement of the two main arms."""
    table = results.published(f"twins-{name}").table
    return table[table["arm"].isin(["LayerNorm", "RMSNorm"])]


def first_twins(**chosen):
    table = twins("angles")
    return table[(table[["seed", *chosen]] == pd.Series({"seed": 0} | chosen)).all(axis=1)]


UNSELECTABLE = pd.DataFrame(
    [
        [arm, seed, place, length, length, length // 2 + seed]
        for arm in ("with scaling", "without scaling")
        for seed in (0, 1)
        for place in ("before the norm", "after the norm", "head 0")
        for length in (16, 64)
    ],
    columns=["arm", "seed", "place", "length", "keys", "unselectable"],
)
REACH = pd.DataFrame({"layer": [0, 0, 1, 1]}).assign(
    **{f"needed_q{q}": 8.0 for q in ("05", "50", "95")},
    query_median_q50=9.0,
    query_longest_q50=20.0,
    within_longest=0.9,
    won=0.5,
    won_half=0.1,
)
RANDOM_KEYS = pd.DataFrame(
    [[d, n, norm, 100, n] for d in (3, 4) for n in (10, 20) for norm in ("none", "layer")],
    columns=["d", "n", "norm", "draws", "with_unselectable"],
)

STILL = {
    "layer_norm_panels": lambda table: figures.layer_norm_panels(X, GAIN, BIAS),
    "epsilon_conventions": lambda table: figures.epsilon_conventions(1e-3),
    "decoder_block": lambda table: model_figures.decoder_block(),
    "angles_by_depth": lambda table: model_figures.angles_by_depth(table),
    "energy_by_depth": lambda table: model_figures.energy_by_depth(table),
    "norms_by_depth": lambda table: model_figures.norms_by_depth(table),
    "growth_by_depth": lambda table: model_figures.growth_by_depth(
        dict.fromkeys(["first tokens", "later tokens"], np.arange(1.0, 9.0)),
        dict.fromkeys(["first tokens", "later tokens"], np.sqrt(np.arange(1.0, 9.0))),
    ),
    "angle_histogram": lambda table: model_figures.angle_histogram(
        AngleStatistics.of(random_directions(500, 30, seed=0), np.ones((1, 30))), 0, "chance"
    ),
    "scale_in_the_radius": lambda table: figures.scale_in_the_radius(
        np.array([0.1, 1.0, 10.0]), {"float32": np.array([1.0, 1.0, 0.5])}, {"float32": 9.2}
    ),
    "axes_from_gains": lambda table: figures.axes_from_gains(np.array([0.5, 1.0, 2.0])),
    "gains_and_axes": lambda table: figures.gains_and_axes(np.linspace(2, 1, 20), np.linspace(1.9, 1.1, 19)),
    "radius_distribution": lambda table: figures.radius_distribution({"uniform": np.linspace(0, 1, 50)}),
    "axes_by_depth": lambda table: figures.axes_by_depth(
        {kind: np.linspace([2, 3], [1, 1], 20).T for kind in ("attention", "feed-forward")}
    ),
    "losses_by_step": lambda table: training_figures.losses_by_step(twins("losses")),
    "angles_by_step": lambda table: training_figures.angles_by_step(first_twins(site="h.2.ln_1")),
    "energy_by_step": lambda table: training_figures.energy_by_step(twins("angles")),
    "energy_by_site": lambda table: training_figures.energy_by_site(first_twins(step=128)),
    "writers_by_step": lambda table: training_figures.writers_by_step(
        {arm: STEPS for arm in "abcd"}, {"a": STEPS.to_numpy() ** 2}, {arm: 2 * STEPS for arm in "abcd"}
    ),
    "probe_readings": lambda table: figures.probe_readings(READINGS),
    "random_keys": lambda table: attention_figures.random_keys(RANDOM_KEYS),
    "sphere_and_shadow": lambda table: attention_figures.sphere_and_shadow(
        np.concatenate([np.eye(3), -np.eye(3)]), np.concatenate([np.eye(3), -np.eye(3)])[:, :2], np.arange(6) % 3 == 2
    ),
    "unselectable_by_components": lambda table: attention_figures.unselectable_by_components(
        {"Gaussian": pd.Series([0.9, 0.1], index=[2, 8])}
    ),
    "queries_and_reach": lambda table: attention_figures.queries_and_reach(REACH),
    "unselectable_by_length": lambda table: attention_figures.unselectable_by_length(UNSELECTABLE),
    "training_curves": lambda table: attention_figures.training_curves(
        CURVES, {"loss": "training loss", "angle": "angle"}
    ),
    "learned_keys_and_queries": lambda table: attention_figures.learned_keys_and_queries(
        dict.fromkeys(["with projection", "without"], LEARNED)
    ),
}


@pytest.mark.parametrize("name", STILL)
def test_a_still_figure_is_complete_and_leaves_no_trace(name, table, tmp_path):
    modules = (figures, attention_figures, model_figures, training_figures)
    assert set(STILL) == {name for module in modules for name in module.__all__} - {"styled"}
    before = dict(plt.rcParams)
    figure = STILL[name](table)
    figure.savefig(tmp_path / "figure.png")
    assert dict(plt.rcParams) == before
    assert not plt.get_fignums()
    for ax in figure.axes:
        assert ax.lines or ax.collections or ax.patches
        beside = [other for other in ax.get_shared_y_axes().get_siblings(ax) if other.bbox.y0 == ax.bbox.y0]
        assert ax.name == "3d" or figure.get_supylabel() or any(other.get_ylabel() for other in beside)
    flat = [ax for ax in figure.axes if ax.name != "3d" and ax.get_label() != "<colorbar>"]
    assert not flat or flat[-1].get_xlabel()


def test_the_energy_figure_shows_the_table(table):
    upper = model_figures.energy_by_depth(table).axes[0]
    shown = {line.get_label(): line.get_ydata() for line in upper.lines}["uniform vector"]
    rows = table[(table["side"] == "before") & (table["direction"] == "uniform")]
    pd.testing.assert_series_equal(pd.Series(shown), rows["energy_ratio"], check_index=False, check_names=False)


def test_the_angle_figure_has_before_on_the_left_and_after_on_the_right(table):
    axes = model_figures.angles_by_depth(table).axes
    assert [ax.get_title() for ax in axes[:2]] == ["uniform vector, before", "uniform vector, after"]
    for ax, side in zip(axes[:2], ("before", "after"), strict=True):
        rows = table[(table["side"] == side) & (table["direction"] == "uniform")]
        np.testing.assert_array_equal(ax.lines[-1].get_ydata(), rows["mean"])


def test_a_slider_shows_each_figure_with_its_own_text_alternative():
    box = widgets.slider_over(
        {f"{e:g}": figures.epsilon_conventions(e) for e in (0.1, 0.001)}, "ε", "for ε = {} & more"
    )
    slider, stack = box.children
    assert [label for label, _ in slider.options] == ["0.1", "0.001"]
    for picture, label in zip(stack.children, ("0.1", "0.001"), strict=True):
        image = ElementTree.fromstring(picture.value.replace('">', '"/>'))
        assert image.get("alt") == f"for ε = {label} & more"
        svg = ElementTree.fromstring(unquote(image.get("src").partition(",")[2]))
        assert svg.tag.endswith("svg")
        assert re.search(rf"ε = {re.escape(label)}\b", "".join(svg.itertext()))


def test_training_curves_show_the_mean_and_its_interval():
    (ax,) = attention_figures.training_curves(CURVES[CURVES["arm"] == "projection"], {"loss": "training loss"}).axes
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[100, 0.015], [1000, 0.0015]])
    # Two values 1 and 2: the standard error is 1/2, and Student's t with one degree of freedom 12.706.
    band = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(band[:, 1].max(), (1.5 + 12.706 / 2) / 100, rtol=1e-3)
