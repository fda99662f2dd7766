"""The book's still figures: data in, Matplotlib figure out. They show nothing by themselves and change no settings.

Backgrounds are transparent and the ink is a middle grey, so that a figure can be read on light and on dark pages.
"""

from collections.abc import Callable
from functools import wraps

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from norm_geometry import norms
from norm_geometry.palette import INK, MEAN, NORMALIZED, OUTPUT, PROJECTED, RANDOM, UNIFORM, VECTOR
from norm_geometry.scenes import CIRCLE, PLANE
from norm_geometry.statistics import AngleStatistics, chance_density

__all__ = [
    "angle_histogram",
    "angles_by_depth",
    "energy_by_depth",
    "epsilon_conventions",
    "layer_norm_panels",
    "norms_by_depth",
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


def _arrow(ax: Axes, start: np.ndarray, end: np.ndarray, color: str, label: str) -> None:
    ax.quiver(*start, *(end - start), color=color, linewidth=2.2, arrow_length_ratio=0.12)
    ax.text(*(start + 1.12 * (end - start)), label, color=color, fontsize=12, ha="center")


def _plane(ax: Axes, directions: np.ndarray, around: np.ndarray | float = 0.0) -> None:
    u, v = np.meshgrid([-1.8, 1.8], [-1.8, 1.8])
    surface = around + u[..., None] * directions[0] + v[..., None] * directions[1]
    ax.plot_surface(*np.moveaxis(surface, -1, 0), color=PROJECTED, alpha=0.15, shade=False)
