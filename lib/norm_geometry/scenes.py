"""Three-dimensional scenes: vectors in ℝ³ in, a Plotly figure with a slider out.

They answer with or without a kernel: the frames travel with the figure.
"""

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float

from norm_geometry import norms
from norm_geometry.palette import INK, MEAN, NORMALIZED, OUTPUT, PROJECTED, UNIFORM, VECTOR

__all__ = ["cloud", "layer_norm_steps"]

Point = Float[np.ndarray, "3"]
Points = Float[np.ndarray, "n 3"]

ORIGIN = np.zeros(3)
UNIFORM_VECTOR = np.ones(3)
# An orthonormal basis of the plane orthogonal to the uniform vector.
PLANE = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]) / np.sqrt([[2.0], [6.0]])
TURN = np.linspace(0, 2 * np.pi, 97)
CIRCLE = np.sqrt(3) * (np.outer(np.cos(TURN), PLANE[0]) + np.outer(np.sin(TURN), PLANE[1]))


def layer_norm_steps(x: Point, gain: Point, bias: Point) -> go.Figure:
    """LayerNorm of one vector in ℝ³, step by step: uniform vector, component along it, plane, circle, ellipse."""
    projected = norms.project(x)
    unit = projected / np.linalg.norm(projected)
    normalized = norms.normalize(projected)
    scaled = gain * normalized
    uniform = arrow(ORIGIN, UNIFORM_VECTOR, UNIFORM, "uniform vector 1", "1")
    vector = arrow(ORIGIN, x, VECTOR, "vector x", "x")
    along = arrow(ORIGIN, x - projected, MEAN, "component along 1", width=13)
    perpendicular = arrow(ORIGIN, projected, PROJECTED, "P x", "Px")
    plane = patch(PLANE, "plane orthogonal to 1")
    circle = curve(CIRCLE, NORMALIZED, "circle of radius √3")
    point = arrow(ORIGIN, normalized, NORMALIZED, "√3 · P x / ‖P x‖")
    steps = {
        "1 · a vector and the uniform vector": [uniform, vector],
        "2 · the component along 1": [uniform, vector, along, _dashes(x, x - projected)],
        "3 · take it away: P x lies in the plane orthogonal to 1": [
            *(uniform, vector, along, plane, perpendicular),
            _dashes(x, projected),
        ],
        "4 · divide by its length": [uniform, plane, arrow(ORIGIN, unit, NORMALIZED, "P x / ‖P x‖"), _line(projected)],
        "5 · multiply by √3: every output lies on this circle": [uniform, plane, circle, point],
        "6 · multiply by the gain: the circle becomes an ellipse in another plane": [
            patch(gain * PLANE, "plane orthogonal to G⁻¹1"),
            curve(CIRCLE, NORMALIZED, "circle of radius √3", dash="dot"),
            curve(gain * CIRCLE, OUTPUT, "ellipse"),
            arrow(ORIGIN, scaled, OUTPUT, "G · √3 · P x / ‖P x‖"),
        ],
        "7 · add the bias: the ellipse is centred at b": [
            patch(gain * PLANE, "plane of the ellipse", around=bias),
            curve(gain * CIRCLE, OUTPUT, "", dash="dot"),
            curve(gain * CIRCLE + bias, OUTPUT, "ellipse"),
            arrow(ORIGIN, bias, INK, "bias b", "b"),
            arrow(bias, scaled + bias, OUTPUT, "LayerNorm(x)"),
        ],
    }
    return _figure(
        steps,
        "A vector in three dimensions is taken through LayerNorm in seven steps. Its component along the uniform "
        "vector is removed, which leaves a vector in the plane orthogonal to it; that vector is brought to length √3, "
        "onto a circle; the gain turns the circle into an ellipse in a tilted plane; the bias moves its centre.",
    )


def cloud(x: Points, gain: Point | None = None, bias: Point | None = None, *, project: bool = True) -> go.Figure:
    """A moving picture: a cloud of vectors in ℝ³ goes through LayerNorm or, without `project`, through RMSNorm."""
    gain = np.ones(3) if gain is None else gain
    bias = np.zeros(3) if bias is None else bias
    projected = norms.project(x) if project else x
    normalized = norms.normalize(projected)
    stages = [("the vectors", x, VECTOR)]
    if project:
        stages.append(("component along 1 removed", projected, PROJECTED))
    stages.append(("brought to length √3", normalized, NORMALIZED))
    if (gain != 1).any() or (bias != 0).any():
        stages.append(("multiplied by the gain", gain * normalized, OUTPUT))
        stages.append(("shifted by the bias", gain * normalized + bias, OUTPUT))
    uniform = arrow(ORIGIN, UNIFORM_VECTOR, UNIFORM, "uniform vector 1", "1")
    steps = {stages[0][0]: [uniform, dots(*stages[0][1:])]}
    for (_, start, before), (label, end, after) in pairwise(stages):
        for share in np.linspace(0, 1, 11)[1:]:
            moved = dots((1 - share) * start + share * end, _blend(before, after, share))
            steps[label if share == 1 else f"{label}: {share:.0%}"] = [uniform, moved]
    name, way = "LayerNorm", "falls flat onto the plane orthogonal to the uniform vector, then closes onto a circle"
    if not project:
        name, way = "RMSNorm", "spreads over a sphere"
    rest = ", then stretches into an ellipse and moves to the bias" if len(stages) > 3 else ""
    alt = f"A cloud of {len(x)} vectors in three dimensions goes through {name}: it {way}{rest}."
    return _figure(steps, alt, play=True)


def arrow(start: Point, end: Point, color: str, name: str, label: str = "", width: int = 7) -> go.Scatter3d:
    return go.Scatter3d(
        **_coordinates(np.stack([start, end])),
        mode="lines+markers+text",
        line={"color": color, "width": width, "dash": "solid"},
        marker={"color": color, "size": [0, 8], "line": {"width": 0}},
        text=["", label],
        textposition="top center",
        textfont={"color": color, "size": 18},
        name=name,
        showlegend=True,
    )


def curve(points: Points, color: str, name: str, dash: str = "solid") -> go.Scatter3d:
    line = {"color": color, "width": 5, "dash": dash}
    return go.Scatter3d(**_coordinates(points), mode="lines", line=line, name=name, showlegend=bool(name))


def _dashes(start: Point, end: Point) -> go.Scatter3d:
    return curve(np.stack([start, end]), INK, "", dash="dash")


def _line(end: Point) -> go.Scatter3d:
    return curve(np.stack([ORIGIN, end]), PROJECTED, "P x", dash="dot")


def dots(points: Points, color: str) -> go.Scatter3d:
    marker = {"color": color, "size": 3.5, "line": {"width": 0}}
    return go.Scatter3d(**_coordinates(points), mode="markers", marker=marker, showlegend=False)


def patch(directions: Float[np.ndarray, "2 3"], name: str, around: Point = ORIGIN) -> go.Mesh3d:
    corners = around + 2.4 * np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) @ directions
    return go.Mesh3d(
        **_coordinates(corners), i=[0, 0], j=[1, 2], k=[2, 3],
        color=PROJECTED, opacity=0.18, hoverinfo="skip", name=name, showlegend=True,
    )  # fmt: skip


def _coordinates(points: Points) -> dict[str, list[float]]:
    return dict(zip("xyz", np.round(points, 3).T.tolist(), strict=True))


def _blend(first: str, second: str, share: float) -> str:
    a, b = (np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) for color in (first, second))
    return "#" + "".join(f"{round(c):02x}" for c in (1 - share) * a + share * b)


def layout(alt: str, limit: float = 2.6) -> go.Layout:
    """What all scenes share: three equal axes from −limit to limit, the point of view, the text alternative."""
    axis = {
        "range": [-limit, limit],
        "color": INK,
        "gridcolor": INK,
        "zerolinecolor": INK,
        "showbackground": False,
        "nticks": 4,
    }
    return go.Layout(
        height=520,
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "size": 14},
        legend={"orientation": "h", "y": 1, "x": 0, "bgcolor": "rgba(0,0,0,0)"},
        scene={
            "xaxis": axis | {"title": {"text": "x₁"}},
            "yaxis": axis | {"title": {"text": "x₂"}},
            "zaxis": axis | {"title": {"text": "x₃"}},
            "aspectmode": "cube",
            "camera": {"eye": {"x": 1.85, "y": -0.58, "z": 0.92}, "center": {"x": 0, "y": 0, "z": -0.15}},
            "bgcolor": "rgba(0,0,0,0)",
        },
        meta={"alt": alt},
    )


def _figure(steps: dict[str, list], alt: str, play: bool = False) -> go.Figure:
    # A frame replaces traces one for one: the shorter steps are filled up, kind for kind, with traces of no extent.
    nothing = _coordinates(np.zeros((4, 3)))
    empty = {
        go.Scatter3d: go.Scatter3d(**nothing, mode="lines", showlegend=False),
        go.Mesh3d: go.Mesh3d(**nothing, i=[0, 0], j=[1, 2], k=[2, 3], showlegend=False),
    }
    kinds = tuple(empty)
    most = {kind: max(sum(isinstance(t, kind) for t in traces) for traces in steps.values()) for kind in kinds}

    def filled(traces: list) -> list:
        own = {kind: [t for t in traces if isinstance(t, kind)] for kind in kinds}
        return [t for kind in kinds for t in own[kind] + [empty[kind]] * (most[kind] - len(own[kind]))]

    frames = [go.Frame(name=label, data=filled(traces)) for label, traces in steps.items()]
    jump = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    figure = go.Figure(data=frames[0].data, frames=frames, layout=layout(alt))
    figure.update_layout(
        sliders=[
            {
                "steps": [{"label": label, "method": "animate", "args": [[label], jump]} for label in steps],
                "currentvalue": {"prefix": ""},
                "ticklen": 0,
                "minorticklen": 0,
                "font": {"color": "rgba(0,0,0,0)"},
            }
        ],
    )
    if play:
        moving = {"fromcurrent": True, "frame": {"duration": 70, "redraw": True}, "transition": {"duration": 0}}
        buttons = [("Play", [None, moving]), ("Pause", [[None], jump])]
        menu = [{"label": label, "method": "animate", "args": args} for label, args in buttons]
        figure.update_layout(updatemenus=[{"type": "buttons", "direction": "left", "x": 0, "y": 0, "buttons": menu}])
    return figure
