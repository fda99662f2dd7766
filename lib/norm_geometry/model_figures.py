"""The still figures of the chapters on language models, in the style of `norm_geometry.figures`."""

from collections.abc import Mapping
from numbers import Real

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from norm_geometry.figures import styled
from norm_geometry.palette import INK, NORMALIZED, OUTPUT, RANDOM, UNIFORM, VECTOR
from norm_geometry.statistics import AngleStatistics, chance_density

__all__ = [
    "angle_histogram",
    "angles_by_depth",
    "decoder_block",
    "energy_by_depth",
    "growth_by_depth",
    "norms_by_depth",
]

COLORS = {"uniform": UNIFORM, "random a": RANDOM, "random b": RANDOM}


@styled
def decoder_block() -> Figure:
    """What the norms of a block read and what reads them, from bottom to top, in three arrangements.

    Blue is what a norm has yet to read, violet what a norm returned, grey what a sub-layer writes.
    Source: Gupta et al. (2024), appendix A.1 and figure 5, https://arxiv.org/abs/2409.12951, for the first.
    """
    figure, axes = plt.subplots(1, 3, figsize=(5.2, 4.6), sharey=True, width_ratios=(2.2, 3.3, 2.2))
    models = {"sequential": "GPT-2, Llama", "parallel": "GPT-NeoX", "post-norm": "BERT"}
    for ax, (title, name) in zip(axes, models.items(), strict=True):
        stream = OUTPUT if title == "post-norm" else VECTOR
        _way(ax, [(0, 0), (0, 10)], stream, width=2.5)
        ax.text(0, -0.2, r"$h^{\ell-1}$", color=stream, ha="center", va="top", fontsize=13)
        ax.text(0, 10.2, r"$h^\ell$", color=stream, ha="center", fontsize=13)
        ax.spines[:].set_visible(False)
        ax.set(title=title, xlabel=name, xlim=(-0.5, 1.7), ylim=(-1, 11), xticks=[], yticks=[])
    sequential, parallel, post_norm = axes
    sequential.set_ylabel(r"depth $\rightarrow$")
    parallel.set_xlim(-1.65, 1.65)
    attention, mlp = ("attention", r"$a^\ell$"), ("MLP", r"$m^\ell$")
    for ax, side, bottom in ((sequential, 1, 0.5), (parallel, -1, 2.8)):
        _sublayer(ax, side, bottom, *attention, "LN$_1$", r"$f^\ell$")
    for ax, side, bottom in ((sequential, 1, 5.3), (parallel, 1, 2.8)):
        _sublayer(ax, side, bottom, *mlp, "LN$_2$", r"$g^\ell$")
    for bottom, sublayer, norm in ((0.4, attention, "LN$_1$"), (5.2, mlp, "LN$_2$")):
        _sublayer(post_norm, 1, bottom, *sublayer)
        _way(post_norm, [(0, bottom + 2.4), (0, bottom + 3.2)], VECTOR, width=2.5)
        _box(post_norm, 0, bottom + 3.6, norm, NORMALIZED)
    figure.tight_layout(w_pad=0.4)
    return figure


@styled
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


@styled
def angles_by_depth(table: pd.DataFrame) -> Figure:
    """Angles to each direction at every site, before the norm and after it: mean, standard deviation and extremes."""
    figure, axes = plt.subplots(3, 2, figsize=(5.4, 6), sharex=True, sharey=True)
    for row, (direction, rows) in zip(axes, table.groupby("direction", sort=False), strict=True):
        color = COLORS[direction]
        name = "uniform vector" if direction == "uniform" else direction
        for ax, side in zip(row, ("before", "after"), strict=True):
            own = rows[rows["side"] == side]
            mean, std, depth = own["mean"], own["std"], np.arange(len(own))
            ax.axhline(90, color=INK, linewidth=0.8)
            ax.fill_between(depth, own["minimum"], own["maximum"], color=color, alpha=0.15, linewidth=0)
            ax.fill_between(depth, mean - std, mean + std, color=color, alpha=0.4, linewidth=0)
            ax.plot(depth, mean, color=color)
            ax.set(title=f"{name}, {side}")
        row[0].set_ylabel("degrees")
    for ax in axes[-1]:
        ax.set_xlabel("normalization site")
    figure.tight_layout()
    return figure


@styled
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
    lowest, highest = axes[0].get_ylim()
    ticks = [tick for tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5) if lowest <= tick <= highest]
    axes[0].set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes[0].minorticks_off()
    axes[-1].set_xlabel("normalization site, from the first to the last")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=3, fontsize=9, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


@styled
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


@styled
def growth_by_depth(
    measured: Mapping[str, Float[np.ndarray, " n"]], orthogonal: Mapping[str, Float[np.ndarray, " n"]]
) -> Figure:
    """Lengths of the residual stream, one panel for each kind of token: as measured, and were all outputs orthogonal
    to the stream that they are added to. Entry k is the length after k outputs of sub-layers.
    """
    figure, axes = plt.subplots(len(measured), 1, figsize=(5.4, 5), sharex=True)
    for ax, (name, lengths) in zip(axes, measured.items(), strict=True):
        ax.plot(orthogonal[name], color=RANDOM, linestyle="--", label="if outputs were orthogonal")
        ax.plot(lengths, color=VECTOR, label="measured")
        ax.set(yscale="log", ylabel="length", title=name)
    axes[-1].set_xlabel("outputs of sub-layers added")
    axes[0].legend(loc="lower right")
    figure.tight_layout()
    return figure


def _sublayer(ax: Axes, x: Real, y: Real, name: str, written: str, norm: str = "", normalized: str = "") -> None:
    """A branch beside the stream, which runs along x = 0: it leaves at height y and is added above the sub-layer."""
    if norm:
        _way(ax, [(0, y), (x, y), (x, y + 0.6)], VECTOR)
        _box(ax, x, y + 1, norm, NORMALIZED)
        _way(ax, [(x, y + 1.4), (x, y + 2.2)], OUTPUT)
        ax.text(x + 0.12, y + 1.75, normalized, color=OUTPUT, va="center")
        y += 1.4
    else:
        _way(ax, [(0, y), (x, y), (x, y + 0.8)], OUTPUT)
    _box(ax, x, y + 1.2, name, "none")
    _way(ax, [(x, y + 1.6), (x, y + 2.4), (0.13 * x, y + 2.4)], INK)
    ax.text(0.55 * x, y + 2.5, written, color=INK, ha="center")
    ax.plot(0, y + 2.4, "o", color=INK, markersize=9, zorder=3)
    ax.plot(0, y + 2.4, "+", color="white", markersize=6, zorder=4)


def _box(ax: Axes, x: Real, y: Real, label: str, face: str) -> None:
    ink, box = INK if face == "none" else "black", {"boxstyle": "round", "facecolor": face, "edgecolor": INK}
    ax.text(x, y, label, color=ink, ha="center", va="center", bbox=box)


def _way(ax: Axes, points: list[tuple[Real, Real]], color: str, width: float = 1.6) -> None:
    """A line from point to point that ends in an arrowhead."""
    head = {"arrowstyle": "-|>", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    ax.plot(*zip(*points[:-1], strict=True), color=color, linewidth=width)
    ax.annotate("", points[-1], points[-2], arrowprops=head)
