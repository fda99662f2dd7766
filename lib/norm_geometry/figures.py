"""The book's still figures: data in, Matplotlib figure out. They show nothing by themselves and change no settings.

Backgrounds are transparent and the ink is a middle grey, so that a figure can be read on light and on dark pages.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from itertools import cycle
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from norm_geometry import norms
from norm_geometry.ellipsoid import layer_norm_ellipsoid
from norm_geometry.palette import INK, MEAN, NORMALIZED, OUTPUT, PROJECTED, QUERY, RANDOM, UNIFORM, VECTOR
from norm_geometry.scenes import CIRCLE, PLANE
from norm_geometry.statistics import AngleStatistics, chance_density

__all__ = [
    "angle_histogram",
    "angles_by_depth",
    "axes_by_depth",
    "axes_from_gains",
    "energy_by_depth",
    "epsilon_conventions",
    "gains_and_axes",
    "layer_norm_panels",
    "learned_keys_and_queries",
    "norms_by_depth",
    "probe_readings",
    "queries_and_reach",
    "radius_distribution",
    "random_keys",
    "scale_in_the_radius",
    "sphere_and_shadow",
    "training_curves",
    "unselectable_by_components",
    "unselectable_by_length",
]

STYLE = {
    "figure.dpi": 150,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}

COLORS = {"uniform": UNIFORM, "random a": RANDOM, "random b": RANDOM}


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the book's style, and take the figure out of pyplot's hands: it is shown where it is returned."""

    @wraps(draw)
    def styled(*args, **kwargs) -> Figure:
        with plt.rc_context(STYLE):
            figure = draw(*args, **kwargs)
        plt.close(figure)
        return figure

    return styled


@_styled
def layer_norm_panels(x: Float[np.ndarray, "3"], gain: Float[np.ndarray, "3"], bias: Float[np.ndarray, "3"]) -> Figure:
    """LayerNorm of one vector in ℝ³ in four panels: the vector, its projection, the circle, the ellipse."""
    projected = norms.project(x)
    normalized = norms.normalize(projected)
    output = norms.scale_and_shift(normalized, gain, bias)
    figure, axes = plt.subplots(2, 2, figsize=(5.6, 6), subplot_kw={"projection": "3d", "computed_zorder": False})
    titles = ["a vector x and the uniform vector", "take away the component\nalong it", "bring the rest to length √3"]
    for ax, title in zip(axes.flat, [*titles, "stretch by the gain,\nshift by the bias"], strict=True):
        ax.set(xlim=(-1.7, 1.7), ylim=(-1.7, 1.7), zlim=(-1.7, 1.7), title=title)
        ax.set_box_aspect((1, 1, 1), zoom=1.15)
        ax.view_init(elev=25, azim=-17)
        ax.set_axis_off()
    first, second, third, fourth = axes.flat
    for ax in (first, second, third):
        _arrow(ax, np.zeros(3), np.ones(3), UNIFORM, "1")
    _arrow(first, np.zeros(3), x, VECTOR, "x")
    _plane(second, PLANE)
    _arrow(second, np.zeros(3), x - projected, MEAN, "")
    _arrow(second, np.zeros(3), x, VECTOR, "x")
    _arrow(second, np.zeros(3), projected, PROJECTED, "Px")
    second.plot(*np.stack([x, projected]).T, color=INK, linestyle=":")
    _plane(third, PLANE)
    third.plot(*CIRCLE.T, color=NORMALIZED)
    _arrow(third, np.zeros(3), normalized, NORMALIZED, "")
    _plane(fourth, gain * PLANE, bias)
    fourth.plot(*CIRCLE.T, color=NORMALIZED, linestyle=":")
    fourth.plot(*(gain * CIRCLE + bias).T, color=OUTPUT)
    _arrow(fourth, bias, output, OUTPUT, "LayerNorm(x)")
    figure.subplots_adjust(left=0, right=1, bottom=0, top=0.92, wspace=0, hspace=0.14)
    return figure


@_styled
def epsilon_conventions(eps: float) -> Figure:
    """How far from the centre an output lies, against the spread σ of its input, for the three conventions about ε."""
    sigma = np.logspace(-7, 1, 400)
    figure, ax = plt.subplots(figsize=(5.4, 3))
    ax.plot(sigma, np.ones_like(sigma), color=RANDOM, linestyle=":", label="ε = 0")
    ax.plot(sigma, sigma / np.sqrt(sigma**2 + eps), color=OUTPUT, label="√(σ² + ε), as in PyTorch")
    ax.plot(sigma, sigma / (sigma + eps), color=INK, linestyle="--", label="σ + ε")
    ax.set(xscale="log", ylim=(0, 1.08), xlabel="σ, the standard deviation of the coordinates of x")
    ax.set(ylabel="‖output‖ / √d")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=9, title=f"ε = {eps:g}")
    figure.tight_layout()
    return figure


@_styled
def angle_histogram(statistics: AngleStatistics, direction: int, title: str) -> Figure:
    """The angles to one direction, as measured, over the density of the angle between random directions."""
    angles, shown = statistics.angles, np.linspace(80, 100, 401)
    figure, ax = plt.subplots(figsize=(5.4, 2.9))
    coarse = angles.histogram[direction].reshape(-1, 5).sum(axis=1)  # bins of 0.25°
    ax.stairs(coarse / (0.25 * angles.count), angles.edges[::5], fill=True, color=UNIFORM, alpha=0.55, label="measured")
    ax.plot(shown, chance_density(shown, statistics.width), color=RANDOM, label="random directions")
    ax.set(xlim=(80, 100), ylim=(0, 0.4), xlabel="angle to the uniform vector, degrees", ylabel="density", title=title)
    ax.legend(loc="upper left")
    figure.tight_layout()
    return figure


@_styled
def angles_by_depth(table: pd.DataFrame, side: str) -> Figure:
    """Mean angle and spread at every site, one panel for each direction. `side` is "before" or "after"."""
    rows = table[table["side"] == side]
    figure, axes = plt.subplots(3, 1, figsize=(5.4, 6), sharex=True, sharey=True)
    for ax, (direction, own) in zip(axes, rows.groupby("direction", sort=False), strict=True):
        depth = np.arange(len(own))
        ax.axhline(90, color=INK, linewidth=0.8)
        ax.fill_between(depth, own["minimum"], own["maximum"], color=COLORS[direction], alpha=0.15, linewidth=0)
        ax.fill_between(
            depth, own["mean"] - own["std"], own["mean"] + own["std"], color=COLORS[direction], alpha=0.4, linewidth=0
        )
        ax.plot(depth, own["mean"], color=COLORS[direction])
        name = "uniform vector" if direction == "uniform" else direction
        ax.set(title=f"{name}, {side} the norm", ylabel="degrees")
    axes[-1].set_xlabel("normalization site, from the first to the last")
    figure.tight_layout()
    return figure


@_styled
def energy_by_depth(table: pd.DataFrame) -> Figure:
    """R of the uniform vector at every site, before and after the norm, over the R of random directions."""
    figure, axes = plt.subplots(2, 1, figsize=(5.4, 5.6), sharex=True, sharey=True)
    for ax, side in zip(axes, ("before", "after"), strict=True):
        rows = table[(table["side"] == side) & (table["direction"] == "uniform")]
        depth = np.arange(len(rows))
        low, middle, high = (rows[f"random_energy_ratio_q{q}"] for q in ("05", "50", "95"))
        ax.fill_between(depth, low, high, color=RANDOM, alpha=0.3, linewidth=0, label="90 % of random directions")
        ax.plot(depth, middle, color=RANDOM, linestyle="--", label="their median")
        ax.plot(depth, rows["energy_ratio"], color=UNIFORM, label="uniform vector")
        ax.axhline(1, color=INK, linewidth=0.8)
        ax.set(yscale="log", ylabel="R", title=f"{side} the norm")
        ax.set_yticks([0.2, 0.5, 1, 2], labels=["0.2", "0.5", "1", "2"])
        ax.minorticks_off()
    axes[-1].set_xlabel("normalization site, from the first to the last")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=3, fontsize=9, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


@_styled
def norms_by_depth(table: pd.DataFrame) -> Figure:
    """Norms of the vectors before every site: median, the middle 90 %, and the largest."""
    rows = table[(table["side"] == "before") & (table["direction"] == "uniform")]
    depth = np.arange(len(rows))
    figure, ax = plt.subplots(figsize=(5.4, 3.2))
    ax.fill_between(
        depth, rows["norm_q05"], rows["norm_q95"], color=VECTOR, alpha=0.3, linewidth=0, label="middle 90 %"
    )
    ax.plot(depth, rows["norm_q50"], color=VECTOR, label="median")
    ax.plot(depth, rows["norm_maximum"], color=VECTOR, linestyle=":", label="largest")
    ax.set(yscale="log", ylabel="‖x‖", xlabel="normalization site, from the first to the last")
    ax.legend(loc="upper left")
    figure.tight_layout()
    return figure


@_styled
def axes_from_gains(gain: Float[np.ndarray, " d"]) -> Figure:
    """The polynomial whose roots are the squared gains, over √λ, with its critical points: semi-axes over √d."""
    axes = layer_norm_ellipsoid(gain).axis_lengths / np.sqrt(len(gain))
    scale = np.linspace(0.97 * np.abs(gain).min(), 1.015 * np.abs(gain).max(), 500)

    def polynomial(root):
        return np.prod(np.subtract.outer(np.square(root), gain**2), axis=-1)

    figure, ax = plt.subplots(figsize=(5.4, 3.3))
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.plot(scale, polynomial(scale), color=RANDOM)
    ax.plot(np.abs(gain), np.zeros_like(gain), "|", color=INK, markersize=18, markeredgewidth=2, label="gains |g|")
    ax.plot(axes, polynomial(axes), "o", color=OUTPUT, label="critical points")
    ax.vlines(axes, 0, polynomial(axes), color=OUTPUT, linestyle=":")
    ax.plot(axes, np.zeros_like(axes), "D", color=OUTPUT, markersize=5, label="semi-axes / √d")
    highest = 1.4 * np.abs(polynomial(axes)).max()
    ax.set(xlabel="√λ", ylabel="p(λ)", yticks=[0], ylim=(-highest, highest))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=10, columnspacing=1, handletextpad=0.3)
    figure.tight_layout()
    return figure


@_styled
def gains_and_axes(gains: Float[np.ndarray, " d"], axes: Float[np.ndarray, " axes"]) -> Figure:
    """Sorted |gains| and semi-axes over √d against their rank: all of them, and the ten largest."""
    figure, (whole, top) = plt.subplots(1, 2, figsize=(5.4, 3))
    dashes, diamonds = {"linestyle": "--"}, {"linestyle": "", "marker": "D", "markersize": 5}
    for ax, shown, look in ((whole, len(gains), dashes), (top, 10, diamonds)):
        own = axes[:shown]
        ax.step(np.arange(1, shown + 1), gains[:shown], where="mid", color=RANDOM, label="gains |g|")
        ax.plot(np.arange(len(own)) + 1.5, own, color=OUTPUT, label="axes / √d", **look)
        ax.set(xlabel="rank", ylabel="length")
    whole.set(title="all")
    top.set(title="the ten largest", xticks=[1, 4, 7, 10])
    top.legend(loc="upper right", fontsize=10)
    figure.tight_layout()
    return figure


@_styled
def radius_distribution(fractions: dict[str, Float[np.ndarray, " n"]]) -> Figure:
    """For each set of outputs the share that lies within a fraction of the way from the centre to the surface."""
    figure, ax = plt.subplots(figsize=(5.4, 3.4))
    looks = cycle([("-", OUTPUT), ("--", OUTPUT), ("-", RANDOM), ("--", RANDOM), (":", OUTPUT)])
    quantiles = np.linspace(0, 1, 201)
    for (name, own), (line, color) in zip(fractions.items(), looks, strict=False):
        ax.plot(np.quantile(own, quantiles), quantiles, color=color, linestyle=line, label=name)
    ax.set(
        xlim=(-0.02, 1.03), ylim=(-0.02, 1.02), xlabel="fraction of the way to the surface", ylabel="share of outputs"
    )
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, fontsize=10)
    figure.tight_layout()
    return figure


@_styled
def axes_by_depth(axis_lengths: dict[str, Float[np.ndarray, "layers axes"]]) -> Figure:
    """Semi-axes relative to their root mean square, a panel for each kind of norm: rows are layers, descending."""
    figure, panels = plt.subplots(len(axis_lengths), 1, figsize=(5.4, 5.6), sharex=True, sharey=True)
    for ax, (kind, lengths) in zip(panels, axis_lengths.items(), strict=True):
        relative = lengths / np.sqrt((lengths**2).mean(axis=1, keepdims=True))
        layer = np.arange(len(relative))
        low, middle, high = np.quantile(relative, [0.1, 0.5, 0.9], axis=1)
        ax.axhline(1, color=INK, linewidth=0.8)
        ax.fill_between(layer, low, high, color=OUTPUT, alpha=0.3, linewidth=0, label="middle 80 %")
        ax.plot(layer, middle, color=OUTPUT, label="median")
        ax.plot(layer, relative[:, 0], color=OUTPUT, linestyle="--", label="longest")
        ax.plot(layer, relative[:, -1], color=OUTPUT, linestyle=":", label="shortest")
        ax.set(yscale="log", ylabel="axis / root mean square", title=kind)
    panels[-1].set_xlabel("layer")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper center", ncols=4, fontsize=10, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


@_styled
def scale_in_the_radius(
    sigma: Float[np.ndarray, " n"], told: Mapping[str, Float[np.ndarray, " n"]], thresholds: Mapping[str, float]
) -> Figure:
    """How well the output's length tells σ: rank correlations `told`, and where one rounding error covers the trace."""
    styles = cycle([("-", OUTPUT), ("--", OUTPUT), (":", RANDOM), ("-.", RANDOM)])
    figure, ax = plt.subplots(figsize=(5.4, 3.4))
    for name, (line, color) in zip(told, styles, strict=False):
        ax.plot(sigma, told[name], color=color, linestyle=line, label=name)
    for name, threshold in thresholds.items():
        ax.axvline(threshold, color=INK, linewidth=0.8)
        ax.text(1.12 * threshold, 1.06, f"√(ε/2u), {name}", fontsize=9)
    ax.set(xscale="log", ylim=(-0.1, 1.15), xlabel="σ, the standard deviation of the coordinates of x")
    ax.set(ylabel="rank correlation\nof σ and the radius")
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, fontsize=9, columnspacing=1)
    figure.tight_layout()
    return figure


@_styled
def probe_readings(table: pd.DataFrame) -> Figure:
    """What probes read off the outputs, one panel a target: R² on held-out articles, its range over splits, chance.

    `table` has the columns site, target, probe ("linear" or "nonlinear"), r2, low, high and chance.
    """
    groups = table.groupby("target", sort=False)
    figure, axes = plt.subplots(len(groups), 1, figsize=(5.4, 6.2), sharex=True)
    for ax, (target, rows) in zip(axes, groups, strict=True):
        sites = list(dict.fromkeys(rows["site"]))
        places = np.array([len(sites) - 1 - sites.index(site) for site in rows["site"]])
        ax.scatter(rows["chance"], places, color=RANDOM, marker="|", s=90, label="chance")
        for probe, face, shift in (("linear", OUTPUT, 0.13), ("nonlinear", "none", -0.13)):
            chosen = (rows["probe"] == probe).to_numpy()
            own, height = rows[chosen], places[chosen] + shift
            ax.hlines(height, own["low"], own["high"], color=OUTPUT)
            ax.scatter(own["r2"], height, facecolor=face, edgecolor=OUTPUT, s=40, zorder=3, label=f"{probe} probe")
        ax.set_yticks(range(len(sites)), labels=sites[::-1])
        ax.set(title=target, ylabel="site", xlim=(min(-0.15, table["low"].min() - 0.05), 1.03))
    axes[-1].set_xlabel("R² on held-out articles")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=3, fontsize=9, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


# Solid at LayerNorm's scale, broken where something has another one.
ARM_STYLES = {
    "projection": (PROJECTED, "-"),
    "projection, equal attention": (UNIFORM, "-"),
    "projection, released scale": (PROJECTED, "--"),
    "LayerNorm's scale": (NORMALIZED, "-"),
    "released scale in the scores": (NORMALIZED, ":"),
    "released scale in the values": (RANDOM, "-."),
    "released scale": (RANDOM, "--"),
    "identity": (VECTOR, ":"),
    "with scaling": (NORMALIZED, "-"),
    "without scaling": (PROJECTED, "--"),
}


@_styled
def training_curves(table: pd.DataFrame, panels: Mapping[str, str]) -> Figure:
    """Mean over the seeds against the step, with the 95 % interval of Student's t for it: a panel for each column.

    `table` has the columns arm, seed, step and those of `panels`, which gives each its label.
    """
    figure, axes = plt.subplots(len(panels), 1, figsize=(5.4, 0.9 + 2.1 * len(panels)), sharex=True, squeeze=False)
    for ax, (column, label) in zip(axes.flat, panels.items(), strict=True):
        for arm, rows in table[table["step"] > 0].groupby("arm", sort=False):
            color, line = ARM_STYLES[arm]
            summary = rows.dropna(subset=column).groupby("step")[column].agg(["mean", "sem", "count"])
            half = summary["sem"] * stats.t.ppf(0.975, summary["count"] - 1)
            ax.fill_between(
                summary.index, summary["mean"] - half, summary["mean"] + half, color=color, alpha=0.25, linewidth=0
            )
            ax.plot(summary.index, summary["mean"], color=color, linestyle=line, label=arm)
        ax.set(ylabel=label, xscale="log")
    axes[-1, 0].set_xlabel("step")
    ticks = [step for step in (100, 200, 500, 1000, 2000, 5000, 16_000) if step <= table["step"].max()]
    axes[-1, 0].set_xticks(ticks, labels=[f"{step:,}" for step in ticks])
    axes[-1, 0].minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=2, fontsize=9, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.1 + 0.2 * ceil(len(labels) / 2)) / figure.get_figheight()))
    return figure


@_styled
def learned_keys_and_queries(vectors: Mapping[str, pd.DataFrame]) -> Figure:
    """Learned keys and mapped-back queries in ℝ³, each brought to length 1, and the plane orthogonal to 1.

    Each table of `vectors` has one row a class and the columns key_x … key_z and query_x … query_z; its name is the
    title of a panel.
    """
    figure, axes = plt.subplots(
        1, len(vectors), figsize=(5.6, 3.3), subplot_kw={"projection": "3d", "computed_zorder": False}
    )
    for ax, (title, table) in zip(axes, vectors.items(), strict=True):
        ax.set(xlim=(-0.7, 0.7), ylim=(-0.7, 0.7), zlim=(-0.7, 0.7), title=title)
        ax.set_box_aspect((1, 1, 1), zoom=1.15)
        ax.view_init(elev=18, azim=-17)
        ax.set_axis_off()
        u, v = np.meshgrid([-0.75, 0.75], [-0.75, 0.75])
        ax.plot_surface(*(u * PLANE[0][:, None, None] + v * PLANE[1][:, None, None]), color=PROJECTED, alpha=0.12)
        ax.quiver(0, 0, 0, *np.full(3, 0.65), color=UNIFORM, linewidth=2.2, arrow_length_ratio=0.1)
        ax.text(0.68, 0.68, 0.68, "1", color=UNIFORM, fontsize=12)
        for kind, color in (("key", VECTOR), ("query", QUERY)):
            directions = table[[f"{kind}_{axis}" for axis in "xyz"]].to_numpy()
            directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
            start = np.zeros_like(directions)
            ax.quiver(*start.T, *directions.T, color=color, linewidth=1.6, arrow_length_ratio=0.12)
    handles = [Line2D([], [], color=color, label=name) for name, color in (("keys", VECTOR), ("queries", QUERY))]
    figure.legend(handles=handles, loc="lower center", ncols=2, fontsize=10)
    figure.subplots_adjust(left=0, right=1, bottom=0.08, top=0.92, wspace=0)
    return figure


@_styled
def random_keys(table: pd.DataFrame) -> Figure:
    """Share of draws with an unselectable key against dimension and number of keys, as drawn and after LayerNorm.

    `table` has the columns d, n, norm ("none" or "layer"), draws and with_unselectable.
    """
    figure, axes = plt.subplots(1, 2, figsize=(5.4, 3.2), layout="constrained")
    for ax, norm, title in zip(axes, ("none", "layer"), ("Gaussian keys", "after LayerNorm"), strict=True):
        rows = table[table["norm"] == norm].assign(share=lambda rows: rows["with_unselectable"] / rows["draws"])
        share = rows.pivot(index="n", columns="d", values="share")
        mesh = ax.pcolormesh(share.columns, share.index, share, vmin=0, vmax=1, cmap="cividis")
        ax.set(xlabel="dimension d", ylabel="number of keys n", title=title, xticks=[3, 6, 9, 12, 15])
    figure.colorbar(mesh, ax=axes, label="draws with an unselectable key")
    return figure


@_styled
def sphere_and_shadow(
    keys: Float[np.ndarray, "n 3"], shadows: Float[np.ndarray, "n 2"], lost: Bool[np.ndarray, " n"]
) -> Figure:
    """Keys on a sphere and what a matrix makes of them in the plane; those in `lost` are unselectable there."""
    figure = plt.figure(figsize=(5.4, 2.9))
    sphere = figure.add_subplot(121, projection="3d", computed_zorder=False)
    plane = figure.add_subplot(122, aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
    corners = shadows[~lost]
    corners = corners[np.argsort(np.arctan2(*(corners - shadows.mean(axis=0)).T))]
    plane.fill(*corners.T, facecolor=INK, alpha=0.15)
    for points, ax in ((keys, sphere), (shadows, plane)):
        ax.scatter(*points[lost].T, facecolor="none", edgecolor=RANDOM, s=18, label="unselectable")
        ax.scatter(*points[~lost].T, color=NORMALIZED, s=26, zorder=3, label="selectable")
    sphere.set_box_aspect((1, 1, 1), zoom=1.35)
    sphere.view_init(elev=25, azim=-50)
    sphere.set_axis_off()
    figure.legend(*plane.get_legend_handles_labels(), loc="upper center", ncols=2, fontsize=10)
    figure.subplots_adjust(left=0, right=0.97, bottom=0.17, top=0.88, wspace=0.25)
    return figure


@_styled
def unselectable_by_length(table: pd.DataFrame) -> Figure:
    """Share of unselectable vectors among the first tokens of an input, before and after W_K: mean and range of seeds.

    `table` has the columns arm, seed, place ("after the norm", "head 0", …), length, keys and unselectable.
    """
    counted = table[table["place"] != "before the norm"]
    places = counted["place"].where(counted["place"] == "after the norm", "keys of a head")
    totals = counted.groupby([places, "arm", "length", "seed"])[["unselectable", "keys"]].sum()
    percent = 100 * totals["unselectable"] / totals["keys"]
    figure, ax = plt.subplots(figsize=(5.4, 3.6))
    for (place, arm), own in percent.groupby(level=["place", "arm"]):
        seeds, (color, line) = own.groupby("length"), ARM_STYLES[arm]
        marker = "o" if place == "after the norm" else "s"
        ax.fill_between(seeds.mean().index, seeds.min(), seeds.max(), color=color, alpha=0.25, linewidth=0)
        ax.plot(seeds.mean(), color=color, linestyle=line, marker=marker, markersize=5, label=f"{place}, {arm}")
    lengths = sorted(table["length"].unique())
    ax.set(xscale="log", xlabel="number of keys", ylabel="unselectable, per cent", ylim=(-3, 103))
    ax.set_xticks(lengths, labels=lengths)
    ax.minorticks_off()
    ax.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, fontsize=9, columnspacing=1)
    figure.tight_layout()
    return figure


@_styled
def unselectable_by_components(shares: Mapping[str, pd.Series]) -> Figure:
    """Percentage of unselectable keys against the number of dimensions, the index of each series."""
    looks = cycle([("-", NORMALIZED, "o"), ("--", OUTPUT, "s"), (":", RANDOM, "D"), ("-.", RANDOM, "^")])
    figure, ax = plt.subplots(figsize=(5.4, 3.3))
    for (name, share), (line, color, marker) in zip(shares.items(), looks, strict=False):
        ax.plot(share.index, 100 * share, color=color, linestyle=line, marker=marker, markersize=5, label=name)
    ticks = sorted(set().union(*(share.index for share in shares.values())))
    ax.set(xscale="log", xlabel="dimensions", ylabel="unselectable, per cent", ylim=(-3, 103))
    ax.set_xticks(ticks, labels=ticks)
    ax.minorticks_off()
    ax.legend(fontsize=10)
    figure.tight_layout()
    return figure


@_styled
def queries_and_reach(table: pd.DataFrame) -> Figure:
    """Layer by layer: how long queries are and would have to be, and how many keys they reach.

    `table` has a row for each layer and head with columns as in data/measurements/real-keys-lengths.csv.
    """
    heads = table.groupby("layer").median(numeric_only=True)
    figure, (lengths, shares) = plt.subplots(2, 1, figsize=(5.4, 6.2), sharex=True)
    needed = {"color": RANDOM, "alpha": 0.3, "linewidth": 0, "label": "needed, middle 90 %"}
    lengths.fill_between(heads.index, heads["needed_q05"], heads["needed_q95"], **needed)
    lengths.plot(heads["needed_q50"], color=RANDOM, linestyle="--", label="needed, median")
    lengths.plot(heads["query_longest_q50"], color=QUERY, linestyle=":", label="longest query")
    lengths.plot(heads["query_median_q50"], color=QUERY, label="median query")
    lengths.set(yscale="log", ylabel="length of a query")
    lengths.set_yticks([5, 10, 20, 50, 100], labels=[5, 10, 20, 50, 100])
    lengths.set_ylim(4, max(30, 1.1 * heads["needed_q95"].max()))
    lengths.minorticks_off()
    lengths.legend(fontsize=9, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    means = 100 * table.groupby("layer")[["within_longest", "won", "won_half"]].mean()
    shares.plot(means["within_longest"], color=QUERY, linestyle=":", label="weight > ½ in reach of the longest query")
    shares.plot(means["won"], color=VECTOR, label="largest weight from some query")
    shares.plot(means["won_half"], color=VECTOR, linestyle="--", label="weight > ½ from some query")
    shares.set(xlabel="layer", ylabel="keys, per cent", ylim=(-3, 103))
    shares.legend(fontsize=9, loc="lower center", bbox_to_anchor=(0.45, 1.0))
    figure.tight_layout()
    return figure


def _arrow(ax: Axes, start: np.ndarray, end: np.ndarray, color: str, label: str) -> None:
    ax.quiver(*start, *(end - start), color=color, linewidth=2.2, arrow_length_ratio=0.12)
    ax.text(*(start + 1.12 * (end - start)), label, color=color, fontsize=12, ha="center")


def _plane(ax: Axes, directions: np.ndarray, around: np.ndarray | float = 0.0) -> None:
    u, v = np.meshgrid([-1.8, 1.8], [-1.8, 1.8])
    surface = around + u[..., None] * directions[0] + v[..., None] * directions[1]
    ax.plot_surface(*np.moveaxis(surface, -1, 0), color=PROJECTED, alpha=0.15, shade=False)
