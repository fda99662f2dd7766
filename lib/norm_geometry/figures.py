"""The book's still figures: data in, Matplotlib figure out. They show nothing by themselves and change no settings.

Backgrounds are transparent and the ink is a middle grey, so that a figure can be read on light and on dark pages.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from norm_geometry import norms
from norm_geometry.ellipsoid import layer_norm_ellipsoid
from norm_geometry.palette import INK, MEAN, NORMALIZED, OUTPUT, PROJECTED, RANDOM, UNIFORM, VECTOR
from norm_geometry.scenes import CIRCLE, PLANE

__all__ = [
    "axes_by_depth",
    "axes_from_gains",
    "epsilon_conventions",
    "gains_and_axes",
    "layer_norm_panels",
    "probe_readings",
    "radius_distribution",
    "scale_in_the_radius",
    "styled",
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


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the book's style, and take the figure out of pyplot's hands: it is shown where it is returned."""

    @wraps(draw)
    def styled(*args, **kwargs) -> Figure:
        with plt.rc_context(STYLE):
            figure = draw(*args, **kwargs)
        plt.close(figure)
        return figure

    return styled


@styled
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


@styled
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


@styled
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


@styled
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


@styled
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


@styled
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


@styled
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


@styled
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


def _arrow(ax: Axes, start: np.ndarray, end: np.ndarray, color: str, label: str) -> None:
    ax.quiver(*start, *(end - start), color=color, linewidth=2.2, arrow_length_ratio=0.12)
    ax.text(*(start + 1.12 * (end - start)), label, color=color, fontsize=12, ha="center")


def _plane(ax: Axes, directions: np.ndarray, around: np.ndarray | float = 0.0) -> None:
    u, v = np.meshgrid([-1.8, 1.8], [-1.8, 1.8])
    surface = around + u[..., None] * directions[0] + v[..., None] * directions[1]
    ax.plot_surface(*np.moveaxis(surface, -1, 0), color=PROJECTED, alpha=0.15, shade=False)
