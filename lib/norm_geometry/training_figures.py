"""The still figures of the chapters on training, in the style of `norm_geometry.figures`.

Steps stand on a scale that is linear up to 1 and logarithmic from there, as step 0 has to be seen as well.
"""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from norm_geometry.figures import styled
from norm_geometry.model_figures import COLORS
from norm_geometry.palette import INK, NORMALIZED, PROJECTED, RANDOM, UNIFORM

__all__ = ["angles_by_step", "energy_by_site", "energy_by_step", "losses_by_step", "writers_by_step"]

TWINS = ("LayerNorm", "RMSNorm")
TWIN_COLORS = {"LayerNorm": PROJECTED, "RMSNorm": NORMALIZED}


@styled
def losses_by_step(losses: pd.DataFrame) -> Figure:
    """Loss on text held out, one line for each seed of each twin."""
    figure, ax = plt.subplots(figsize=(5.4, 3))
    for (arm, seed), rows in losses.dropna(subset="held_out_loss").groupby(["arm", "seed"]):
        label, style = arm if seed == 0 else None, {"LayerNorm": "-", "RMSNorm": ":"}[arm]
        ax.plot(rows["step"], rows["held_out_loss"], style, color=TWIN_COLORS[arm], label=label)
    _steps(ax)
    ax.set(ylabel="loss, nats a token")
    ax.legend()
    figure.tight_layout()
    return figure


@styled
def angles_by_step(angles: pd.DataFrame) -> Figure:
    """Angles to each direction before one norm during training, with LayerNorm and with RMSNorm: mean and deviation."""
    figure, axes = plt.subplots(3, 2, figsize=(5.4, 6), sharex=True, sharey=True)
    for row, (direction, rows) in zip(axes, angles.groupby("direction", sort=False), strict=True):
        for ax, arm in zip(row, TWINS, strict=True):
            own = rows[rows["arm"] == arm]
            ax.axhline(90, color=INK, linewidth=0.8)
            low, high = own["mean"] - own["std"], own["mean"] + own["std"]
            ax.fill_between(own["step"], low, high, color=COLORS[direction], alpha=0.4, linewidth=0)
            ax.plot(own["step"], own["mean"], color=COLORS[direction])
            ax.set(title=f"{'uniform vector' if direction == 'uniform' else direction}, {arm}")
            _steps(ax)
        row[0].set_ylabel("degrees")
        row[0].set_xlabel(""), row[1].set_xlabel("")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    figure.tight_layout()
    return figure


@styled
def energy_by_step(angles: pd.DataFrame) -> Figure:
    """R of the uniform vector during training, the median over the sites, for each seed of either twin, over that of
    random directions."""
    figure, axes = plt.subplots(2, 1, figsize=(5.4, 5.6), sharex=True, sharey=True)
    for ax, arm in zip(axes, TWINS, strict=True):
        rows = angles[(angles["arm"] == arm) & (angles["direction"] == "uniform")]
        median = rows.groupby("step").median(numeric_only=True)
        _band(ax, median.index.to_numpy(), median)
        for seed, own in rows.groupby("seed"):
            line = own.groupby("step")["energy_ratio"].median()
            ax.plot(line.index, line, color=UNIFORM, linewidth=1.2, label=None if seed else "uniform vector")
        ax.set(title=arm)
        _energy(ax)
        _steps(ax)
    axes[0].set_xlabel("")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=3, fontsize=9, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


@styled
def energy_by_site(angles: pd.DataFrame) -> Figure:
    """R of the uniform vector before every norm of both twins at one step, over that of random directions."""
    figure, axes = plt.subplots(1, 2, figsize=(5.4, 3.2), sharex=True, sharey=True)
    for ax, arm in zip(axes, TWINS, strict=True):
        rows = angles[(angles["arm"] == arm) & (angles["direction"] == "uniform")]
        _band(ax, np.arange(len(rows)), rows)
        ax.plot(np.arange(len(rows)), rows["energy_ratio"], color=UNIFORM)
        ax.set(title=arm, xlabel="normalization site", ylim=(0.004, 8))
        _energy(ax)
    axes[1].set_ylabel("")
    figure.tight_layout()
    return figure


@styled
def writers_by_step(
    measured: Mapping[str, pd.Series],
    predicted: Mapping[str, Float[np.ndarray, " n"]],
    lengths: Mapping[str, pd.Series],
) -> Figure:
    """What the parameters that write to the residual stream have along 1, one panel for each arm, over the product of
    equation (7.2), and with their whole length. All is relative to the start; the indices of the series are steps.
    """
    rows = -(-len(measured) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(5.4, 0.9 + 1.5 * rows), sharex=True, sharey=True)
    for ax, (arm, along) in zip(axes.flat, measured.items(), strict=False):
        if arm in predicted:
            ax.plot(along.index, predicted[arm], color=UNIFORM, alpha=0.3, linewidth=6, label="product (7.2)")
        ax.plot(lengths[arm].index, lengths[arm], color=RANDOM, label="length")
        ax.plot(along.index, along, color=UNIFORM, label="along 1")
        ax.set(title=arm, yscale="log")
        ax.set_yticks([0.25, 0.5, 1, 2, 4, 8], labels=["¼", "½", "1", "2", "4", "8"])
        _steps(ax)
        ax.set_xlabel("")
    if len(measured) % 2:  # the last place stays empty, and the panel above it gets the labels
        axes[-1, 1].remove()
        axes[-2, 1].xaxis.set_tick_params(labelbottom=True)
    for ax in (axes[-1, 0], axes[-1 - len(measured) % 2, 1]):
        ax.set_xlabel("step")
    figure.supylabel("relative to the start", fontsize=plt.rcParams["axes.labelsize"], color=INK)
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=3, fontsize=9, columnspacing=1)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


def _steps(ax: Axes) -> None:
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xticks([0, 1, 10, 100, 1000], labels=["0", "1", "10", "100", "1k"])
    ax.minorticks_off()
    ax.set_xlabel("step")


def _band(ax: Axes, x: np.ndarray, rows: pd.DataFrame) -> None:
    low, middle, high = (rows[f"random_energy_ratio_q{q}"] for q in ("05", "50", "95"))
    ax.fill_between(x, low, high, color=RANDOM, alpha=0.3, linewidth=0, label="90 % of random directions")
    ax.plot(x, middle, color=RANDOM, linestyle="--", label="their median")
    ax.axhline(1, color=INK, linewidth=0.8)


def _energy(ax: Axes) -> None:
    ax.set(yscale="log", ylabel="R")
    ax.set_yticks([0.01, 0.1, 1], labels=["0.01", "0.1", "1"])
    ax.minorticks_off()
