"""Plotly figures whose coordinates explorables.js computes in the reader's browser, with sliders below them.

They answer with or without a kernel: Python says how every trace looks, the script beside this module where it lies.
"""

import html
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from norm_geometry import scenes
from norm_geometry.palette import INK

__all__ = ["MIME_TYPE", "Explorable", "arrow", "axes", "explorable", "flat", "sliders", "surface", "words"]

MIME_TYPE = "application/vnd.norm-geometry.explorable+json"

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
        script = Path(__file__).with_name("explorables.js").read_text(encoding="utf-8")
        plot = self.figure.to_html(
            full_html=False,
            include_plotlyjs="cdn",
            config={"responsive": True, "displaylogo": False},
            post_script=script + AFTERWARDS,
        )
        alt = html.escape(repr(self))
        return FRAME.format(alt=alt, document=html.escape(DOCUMENT.format(alt=alt, ink=INK, plot=plot)))


def flat(**properties) -> go.Scatter:
    return go.Scatter(hoverinfo="skip", showlegend=False, cliponaxis=False, **properties)


def arrow(color: str, label: str, width: int = 7) -> go.Scatter3d:
    return scenes.arrow(scenes.ORIGIN, scenes.ORIGIN, color, label, label, width).update(showlegend=False)


def axes() -> go.Scatter3d:
    """The three axes through the origin: a box around all that the sliders can reach would leave the picture small."""
    return go.Scatter3d(
        mode="lines+text",
        line={"color": INK, "width": 2},
        text=["", "x₁", "", "", "x₂", "", "", "x₃", ""],
        textfont={"color": INK, "size": 15},
        hoverinfo="skip",
        showlegend=False,
    )


def words(text: list[str] | None = None, color: str = INK) -> go.Scatter3d:
    """Words in space, said here or by the script."""
    font = {"color": color, "size": 16}
    return go.Scatter3d(mode="text", text=text, textfont=font, hoverinfo="skip", showlegend=False)


def surface(color: str, name: str) -> go.Surface:
    return go.Surface(
        colorscale=[[0, color], [1, color]],
        showscale=False,
        opacity=0.1,
        hoverinfo="skip",
        name=name,
        legendgroup=name,
        showlegend=True,
    )


def explorable(scene: str, traces: dict, controls: list[dict], alt: str, limit: float, **fixed) -> Explorable:
    # The sliders lead far out. The reader stands as near as in a scene that shows less of the space.
    eye = np.array([1.9, -0.25, 0.9]) * 2.5 / limit
    figure = go.Figure([trace.update(meta=key) for key, trace in traces.items()], scenes.layout(alt, limit))
    figure.update_layout(
        height=480,
        template="none",
        plot_bgcolor="rgba(0,0,0,0)",
        meta={"alt": alt, "scene": scene, "controls": controls, **fixed},
    ).update_scenes(
        xaxis_visible=False,
        yaxis_visible=False,
        zaxis_visible=False,
        camera={"eye": dict(zip("xyz", eye, strict=True)), "center": {"x": 0, "y": 0, "z": 0.05}},
    )
    return Explorable(figure)


def sliders(name: str, symbol: str, values: np.ndarray, most: float | int, step: float = 0.1) -> list[dict]:
    steps = np.round(values / step)
    if not (np.abs(values) <= most).all() or not np.allclose(values / step, steps, rtol=0, atol=1e-6):
        reach = f"from −{most} to {most} in steps of {step}"
        raise ValueError(f"the sliders of the {name} go {reach}, got {values.tolist()}")
    common = {"min": -most, "max": most, "step": step}
    return [
        {"name": symbol + index, "label": f"{name} {symbol}{index}", "value": value, **common}
        for index, value in zip("₁₂₃", (steps * step).round(2).tolist(), strict=False)
    ]
