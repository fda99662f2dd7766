"""The still figures of the part on attention: data in, Matplotlib figure out, in the style of `figures`."""

from collections.abc import Mapping
from itertools import cycle
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from norm_geometry.figures import styled
from norm_geometry.palette import INK, NORMALIZED, OUTPUT, PROJECTED, QUERY, RANDOM, UNIFORM, VECTOR
from norm_geometry.scenes import PLANE

__all__ = [
    "learned_keys_and_queries",
    "queries_and_reach",
    "random_keys",
    "sphere_and_shadow",
    "training_curves",
    "unselectable_by_components",
    "unselectable_by_length",
]

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


@styled
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


@styled
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


@styled
def random_keys(table: pd.DataFrame) -> Figure:
    """Share of draws with an unselectable key against dimension and number of keys, as drawn and after LayerNorm.

    `table` has the columns d, n, norm ("none" or "layer"), draws and with_unselectable.
    """
    figure, axes = plt.subplots(1, 2, figsize=(5.4, 3.2), sharey=True, layout="constrained")
    for ax, norm, title in zip(axes, ("none", "layer"), ("Gaussian keys", "after LayerNorm"), strict=True):
        rows = table[table["norm"] == norm].assign(share=lambda rows: rows["with_unselectable"] / rows["draws"])
        share = rows.pivot(index="n", columns="d", values="share")
        mesh = ax.pcolormesh(share.columns, share.index, share, vmin=0, vmax=1, cmap="cividis")
        ax.set(xlabel="dimension d", title=title, xticks=[3, 6, 9, 12, 15])
    axes[0].set_ylabel("number of keys n")
    figure.colorbar(mesh, ax=axes, label="draws with an unselectable key")
    return figure


@styled
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


@styled
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


@styled
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


@styled
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
