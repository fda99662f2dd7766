"""Three-dimensional scenes with several sliders, computed in the reader's browser by explorables.js.

They answer with or without a kernel: Python says how every trace looks, the script beside this module where it lies.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from norm_geometry.palette import INK, NORMALIZED, OUTPUT, PROJECTED, UNIFORM, VECTOR
from norm_geometry.scenes import ORIGIN, PLANE, Points, arrow, curve, dots, layout, patch

__all__ = ["MIME_TYPE", "Explorable", "ellipsoid", "half_plane"]

MIME_TYPE = "application/vnd.norm-geometry.explorable+json"
EPSILONS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)

Vector = Sequence[float | int] | np.ndarray
NOWHERE: Points = np.zeros((2, 3))  # until the script has computed the coordinates

# A notebook's output stands in a frame of its own: there the scripts run in their order, which JupyterLab does not
# keep for scripts in the notebook's own document, and the styles of the notebook stay out.
DOCUMENT = """<!doctype html><meta charset="utf-8"><title>{alt}</title>
<style>body {{ margin: 0; padding-bottom: 1px; color: {ink}; font: 14px sans-serif }}</style>{plot}"""
FRAME = '<iframe title="{alt}" srcdoc="{document}" style="width: 100%; height: 700px; border: 0"></iframe>'
AFTERWARDS = """
const plot = document.getElementById("{plot_id}");
plot.parentElement.after(explore(plot));
const fit = () => { frameElement.style.height = `${document.documentElement.offsetHeight}px`; };
if (frameElement) new ResizeObserver(fit).observe(document.body);
"""


@dataclass(frozen=True, repr=False)
class Explorable:
    """What ends a cell: a Plotly figure whose layout.meta names a scene of explorables.js and its sliders."""

    figure: go.Figure

    def __repr__(self) -> str:
        return self.figure.layout.meta["alt"]

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {MIME_TYPE: self.figure.to_plotly_json(), "text/html": self.to_html()}

    def to_html(self) -> str:
        """The scene in a frame, for a notebook: complete but for plotly.js, which comes from Plotly's own host."""
        script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
        plot = self.figure.to_html(
            full_html=False,
            include_plotlyjs="cdn",
            config={"responsive": True, "displaylogo": False},
            post_script=script + AFTERWARDS,
        )
        alt = html.escape(repr(self))
        return FRAME.format(alt=alt, document=html.escape(DOCUMENT.format(alt=alt, ink=INK, plot=plot)))


def ellipsoid(gain: Vector = (1.2, 0.6, 0.9), bias: Vector = (0.3, -0.4, 0.5)) -> Explorable:
    """The outputs of LayerNorm and RMSNorm in ℝ³, with a slider for each coordinate of the gain and of the bias.

    RMSNorm's ellipsoid, shifted by b, is the image of the sphere of radius √3 under z ↦ G z + b. LayerNorm's ellipse
    is its section with the plane through b orthogonal to G⁻¹1; its semi-axes are √3 times the singular values of
    G P, P = I − 11ᵀ/3, and lie between the sorted √3·|gᵢ|: Cauchy's interlacing theorem for BᵀG²B, with B an
    orthonormal basis of the plane orthogonal to 1.

    Raises:
        ValueError: a gain outside −2 … 2, a bias outside −1 … 1, either not three multiples of 0.1.
    """
    controls = [*_sliders("gain", "g", gain, 2), *_sliders("bias", "b", bias, 1)]
    traces = {
        "axes": _axes(),
        "sphere": _surface(NORMALIZED, "sphere"),
        "circle": curve(NOWHERE, NORMALIZED, "circle", dash="dot"),
        "uniform": _arrow(UNIFORM, "1", width=4),
        "ellipsoid": _surface(OUTPUT, "ellipsoid"),
        "net": curve(NOWHERE, OUTPUT, "").update(line_width=1, opacity=0.6, legendgroup="ellipsoid"),
        "plane": patch(PLANE, "plane"),
        "ellipse": curve(NOWHERE, OUTPUT, "ellipse").update(line_width=9),
        "axis1": _arrow(OUTPUT, "a₁"),
        "axis2": _arrow(OUTPUT, "a₂", width=12).update(line_dash="longdash"),
        "bias": _arrow(INK, "b"),
        "normal": _arrow(UNIFORM, "normal"),
    }
    alt = (
        "A sphere of radius root 3 with LayerNorm's circle as its equator, and its image under gain and bias: an "
        "ellipsoid centred at the bias, and in a tilted plane through its centre an ellipse with two semi-axes. "
        "Six sliders set the coordinates of the gain and of the bias."
    )
    return _explorable("ellipsoid", traces, controls, alt, limit=4.5)


def half_plane(x: Vector = (-0.5, 0.3, 2.4)) -> Explorable:
    """All inputs that LayerNorm cannot tell apart: {αPx + c1 : α > 0}, a half-plane bounded by the line along 1.

    Sliders scale Px by α, shift x by c·1, turn the half-plane about 1 by φ and set ε. With ε = 0 the output does not
    depend on α and c; with ε > 0 it depends on α.

    Raises:
        ValueError: `x` is not three finite numbers, or they are all equal, so that Px = 0.
    """
    point = np.asarray(x, dtype=float)
    if point.shape != (3,) or not np.isfinite(point).all() or np.ptp(point) == 0:
        raise ValueError(f"half_plane draws three finite numbers that are not all equal, got {x!r}")
    controls = [
        {"name": "α", "label": "scale α", "min": 0.1, "max": 1.5, "step": 0.1, "value": 1},
        {"name": "c", "label": "shift c", "min": -1, "max": 1, "step": 0.1, "value": 0},
        {"name": "φ", "label": "angle φ", "min": -180, "max": 180, "step": 5, "value": 0, "unit": "°"},
        {"name": "ε", "label": "epsilon ε", "choices": list(EPSILONS), "value": 0.0},
    ]
    traces = {
        "axes": _axes(),
        "plane": patch(PLANE, "plane ⟂ 1"),
        "circle": curve(NOWHERE, NORMALIZED, "circle"),
        "half_plane": patch(PLANE, "half-plane").update(color=VECTOR, opacity=0.12),
        "line": curve(NOWHERE, UNIFORM, "").update(line_width=2),
        "others": dots(NOWHERE, VECTOR).update(marker_size=2.5, opacity=0.6),
        "images": dots(NOWHERE, NORMALIZED).update(marker_size=5),
        "uniform": _arrow(UNIFORM, "1"),
        "vector": _arrow(VECTOR, "x′"),
        "drop": curve(NOWHERE, INK, "", dash="dash").update(line_width=3),
        "projected": _arrow(PROJECTED, "Px′"),
        "output": _arrow(NORMALIZED, "LN(x′)").update(textposition="middle left"),
    }
    alt = (
        "A half-plane bounded by the line along the uniform vector, with an input x′ in it, and the output of "
        "LayerNorm on a circle in the plane orthogonal to the uniform vector. Sliders scale and shift the input, turn "
        "the half-plane and set epsilon."
    )
    # The farthest that the sliders can take a coordinate of the input.
    limit = 1.05 * (1.5 * np.sqrt(2 / 3) * np.linalg.norm(point - point.mean()) + abs(point.mean()) + 1)
    return _explorable("half_plane", traces, controls, alt, limit=max(limit, 2.6), point=point.tolist())


def _sliders(name: str, symbol: str, values: Vector, most: int) -> list[dict]:
    array = np.asarray(values, dtype=float)
    if array.shape != (3,):
        raise ValueError(f"{name} must hold three numbers, one for each coordinate, got {values!r}")
    steps = np.round(array * 10)
    if not (np.abs(array) <= most).all() or not np.allclose(array * 10, steps, rtol=0, atol=1e-6):
        raise ValueError(f"the sliders of the {name} go from −{most} to {most} in steps of 0.1, got {values!r}")
    return [
        {"name": symbol + index, "label": f"{name} {symbol}{index}", "min": -most, "max": most, "step": 0.1, "value": v}
        for index, v in zip("₁₂₃", (steps / 10).tolist(), strict=True)
    ]


def _arrow(color: str, label: str, width: int = 7) -> go.Scatter3d:
    return arrow(ORIGIN, ORIGIN, color, label, label, width).update(showlegend=False)


def _axes() -> go.Scatter3d:
    """The three axes through the origin: a box around all that the sliders can reach would leave the picture small."""
    return go.Scatter3d(
        mode="lines+text",
        line={"color": INK, "width": 2},
        text=["", "x₁", "", "", "x₂", "", "", "x₃", ""],
        textfont={"color": INK, "size": 15},
        hoverinfo="skip",
        showlegend=False,
    )


def _surface(color: str, name: str) -> go.Surface:
    return go.Surface(
        colorscale=[[0, color], [1, color]],
        showscale=False,
        opacity=0.1,
        hoverinfo="skip",
        name=name,
        legendgroup=name,
        showlegend=True,
    )


def _explorable(scene: str, traces: dict, controls: list[dict], alt: str, limit: float, **fixed) -> Explorable:
    # The sliders lead far out. The reader stands as near as in a scene that shows less of the space.
    eye = np.array([1.9, -0.25, 0.9]) * 2.5 / limit
    figure = go.Figure([trace.update(meta=key) for key, trace in traces.items()], layout(alt, limit))
    figure.update_layout(
        height=480,
        template="none",
        meta={"alt": alt, "scene": scene, "controls": controls, **fixed},
    ).update_scenes(
        xaxis_visible=False,
        yaxis_visible=False,
        zaxis_visible=False,
        camera={"eye": dict(zip("xyz", eye, strict=True)), "center": {"x": 0, "y": 0, "z": 0.05}},
    )
    return Explorable(figure)
