"""The scenes that a reader explores with several sliders; explorables.js computes them in the browser."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from norm_geometry import norms
from norm_geometry.browser_figures import Explorable, arrow, axes, explorable, flat, sliders, surface, words
from norm_geometry.palette import INK, NORMALIZED, OUTPUT, PROJECTED, QUERY, RANDOM, UNIFORM, VECTOR
from norm_geometry.scenes import PLANE, Points, curve, dots, patch

__all__ = ["attention", "ellipsoid", "half_plane", "hull", "hull_3d"]

EPSILONS = (0.0, 1e-3, 1e-2, 1e-1, 1.0)

# Six keys that point in all directions, of different lengths.
ATTENTION_KEYS = (
    (1.9, 1.3, 0.5), (-0.2, 1.6, 1.2), (-1.4, 0.6, -0.9), (-0.6, -1.7, 0.9), (0.8, -0.9, -1.3), (1.5, -0.9, 0.9),
)  # fmt: skip
# Each time the last is the reader's.
HULL_KEYS = ((1.9, 0.4), (0.5, 1.8), (-1.7, 1.1), (-1.3, -1.3), (0.9, -1.6), (1.9, 1.6))
HULL_3D_KEYS = (
    (2.0, -0.6, -0.8), (0.1, 2.0, -1.0), (-1.7, 0.9, -0.7), (0.3, -1.8, -1.1), (-0.2, -0.3, 2.1), (1.5, 1.5, 1.2),
)  # fmt: skip

Vector = Sequence[float | int] | np.ndarray
Vectors = Sequence[Vector] | np.ndarray
NOWHERE: Points = np.zeros((2, 3))  # until the script has computed the coordinates


def ellipsoid(gain: Vector = (1.2, 0.6, 0.9), bias: Vector = (0.3, -0.4, 0.5)) -> Explorable:
    """The outputs of LayerNorm and RMSNorm in ℝ³, with a slider for each coordinate of the gain and of the bias.

    RMSNorm's ellipsoid, shifted by b, is the image of the sphere of radius √3 under z ↦ G z + b. LayerNorm's ellipse
    is its section with the plane through b orthogonal to G⁻¹1; its semi-axes are √3 times the singular values of
    G P, P = I − 11ᵀ/3, and lie between the sorted √3·|gᵢ|: Cauchy's interlacing theorem for BᵀG²B, with B an
    orthonormal basis of the plane orthogonal to 1.

    Raises:
        ValueError: a gain outside −2 … 2, a bias outside −1 … 1, either not three multiples of 0.1.
    """
    controls = []
    for name, values, most in (("gain", gain, 2), ("bias", bias, 1)):
        if np.shape(values) != (3,):
            raise ValueError(f"{name} must hold three numbers, one for each coordinate, got {values!r}")
        controls += sliders(name, name[0], np.asarray(values, dtype=float), most)
    traces = {
        "axes": axes(),
        "sphere": surface(NORMALIZED, "sphere"),
        "circle": curve(NOWHERE, NORMALIZED, "circle", dash="dot"),
        "uniform": arrow(UNIFORM, "1", width=4),
        "ellipsoid": surface(OUTPUT, "ellipsoid"),
        "net": curve(NOWHERE, OUTPUT, "").update(line_width=1, opacity=0.6, legendgroup="ellipsoid"),
        "plane": patch(PLANE, "plane"),
        "ellipse": curve(NOWHERE, OUTPUT, "ellipse").update(line_width=9),
        "axis1": arrow(OUTPUT, "a₁"),
        "axis2": arrow(OUTPUT, "a₂", width=12).update(line_dash="longdash"),
        "bias": arrow(INK, "b"),
        "normal": arrow(UNIFORM, "normal"),
    }
    alt = (
        "A sphere of radius root 3 with LayerNorm's circle as its equator, and its image under gain and bias: an "
        "ellipsoid centred at the bias, and in a tilted plane through its centre an ellipse with two semi-axes. "
        "Six sliders set the coordinates of the gain and of the bias."
    )
    return explorable("ellipsoid", traces, controls, alt, limit=4.5)


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
        "axes": axes(),
        "plane": patch(PLANE, "plane ⟂ 1"),
        "circle": curve(NOWHERE, NORMALIZED, "circle"),
        "half_plane": patch(PLANE, "half-plane").update(color=VECTOR, opacity=0.12),
        "line": curve(NOWHERE, UNIFORM, "").update(line_width=2),
        "others": dots(NOWHERE, VECTOR).update(marker_size=2.5, opacity=0.6),
        "images": dots(NOWHERE, NORMALIZED).update(marker_size=5),
        "uniform": arrow(UNIFORM, "1"),
        "vector": arrow(VECTOR, "x′"),
        "drop": curve(NOWHERE, INK, "", dash="dash").update(line_width=3),
        "projected": arrow(PROJECTED, "Px′"),
        "output": arrow(NORMALIZED, "LN(x′)").update(textposition="middle left"),
    }
    alt = (
        "A half-plane bounded by the line along the uniform vector, with an input x′ in it, and the output of "
        "LayerNorm on a circle in the plane orthogonal to the uniform vector. Sliders scale and shift the input, turn "
        "the half-plane and set epsilon."
    )
    # The farthest that the sliders can take a coordinate of the input.
    limit = 1.05 * (1.5 * np.sqrt(2 / 3) * np.linalg.norm(point - point.mean()) + abs(point.mean()) + 1)
    return explorable("half_plane", traces, controls, alt, limit=max(limit, 2.6), point=point.tolist())


def attention(keys: Vectors = ATTENTION_KEYS) -> Explorable:
    """The attention weights softmax(q·kᵢ / √3) that a query in ℝ³ gives to keys, while the reader turns the query.

    Sliders set the angle between q and 1, the angle of q around 1 and the length of q. The keys are shown as they are,
    projected (P k) or projected and brought to the circle of radius √3. A key is the larger and its bar the longer, the
    larger its weight. With q along 1 the scores of all projected keys are 0 and their weights equal (Brody, Alon and
    Yahav 2023, section 3).

    Raises:
        ValueError: not two to eight keys of three numbers from −5 to 5, or three numbers of a key all equal: P k = 0.
    """
    array = _keys(keys, 3, least=2, most=8, limit=5)
    if (np.ptp(array, axis=1) == 0).any():
        raise ValueError(f"a key with equal numbers projects to 0 and cannot be normalized, got {array.tolist()}")
    controls = [
        {"name": "θ", "label": "angle to 1 θ", "min": 0, "max": 180, "step": 5, "value": 40, "unit": "°"},
        {"name": "φ", "label": "angle around 1 φ", "min": -180, "max": 180, "step": 5, "value": 60, "unit": "°"},
        {"name": "‖q‖", "label": "length ‖q‖", "min": 0, "max": 3, "step": 0.1, "value": 2},
        {"name": "keys", "label": "keys", "options": ["as they are", "projected", "on the circle"], "value": 0},
    ]
    names = _names(len(array))
    keys_and_bars = {}
    for i, color in enumerate((VECTOR, PROJECTED, NORMALIZED)):
        keys_and_bars[f"keys{i}"] = arrow(color, "", width=3).update(mode="lines+markers")
        keys_and_bars[f"bars{i}"] = flat(mode="lines", line={"color": color, "width": 13})
    text = {"mode": "text", "textfont": {"color": INK, "size": 14}}
    traces = {
        "axes": axes(),
        "plane": patch(PLANE, "plane ⟂ 1"),
        "circle": curve(NOWHERE, NORMALIZED, ""),
        "paths": curve(NOWHERE, VECTOR, "", dash="dot").update(line_width=4),
        **keys_and_bars,
        "labels": words(names),
        "uniform": arrow(UNIFORM, "1", width=10).update(textposition="middle left"),
        "query": arrow(QUERY, "q"),
        "equal": flat(mode="lines+text", text=["", f"1/{len(array)}"], textposition="top center")
        .update(line={"color": INK, "width": 1.5, "dash": "dot"}, textfont={"color": INK, "size": 14}),
        "names": flat(text=[f"{name}\u00a0" for name in names], textposition="middle left", **text),
        "percent": flat(textposition="middle right", **text),
    }  # fmt: skip
    alt = (
        f"{len(array)} keys in three dimensions, the uniform vector and a query. The size of a key, and a bar below, "
        "show its attention weight. Sliders turn the query and set its length; a choice projects the keys onto the "
        "plane orthogonal to the uniform vector, or brings them onto a circle in it."
    )
    scene = explorable("attention", traces, controls, alt, limit=max(2.6, np.abs(array).max()), keys=array.tolist())
    space, bars = 380, 24 * len(array) + 30  # pixels, one above the other
    axis = {"visible": False, "fixedrange": True}
    scene.figure.update_layout(
        height=space + bars,
        xaxis=axis | {"range": [-0.07, 1.15]},
        yaxis=axis | {"range": [0, len(array) + 1.6], "domain": [0, bars / (space + bars)]},
    )
    # The uniform vector points up, so that the plane orthogonal to it lies flat.
    camera = {"eye": {"x": 1.45, "y": -0.5, "z": 0.45}}
    camera |= {"up": dict.fromkeys("xyz", 1), "center": dict.fromkeys("xyz", 0.06)}
    scene.figure.update_scenes(domain_y=[bars / (space + bars), 1], camera=camera)
    return scene


def hull(keys: Vectors = HULL_KEYS) -> Explorable:
    """Keys in the plane, and around them the directions of the queries that select each: give it the largest score.

    The reader moves the last key, by dragging it or with two sliders. Where it is a vertex of the convex hull, an open
    arc of directions selects it; elsewhere none does, and it is a convex combination of other keys (Brody, Alon and
    Yahav 2023, section 4). The keys are shown as they are or brought to the circle of radius √3, where each is a
    vertex. The plane may be read as the plane orthogonal to 1 in ℝ³, and the circle as that of LayerNorm.

    Raises:
        ValueError: not four to nine keys of two numbers from −2.5 to 2.5; the last not multiples of 0.05; one of the
            others zero, or all of them, as they are or normalized, on one line.
    """
    array, names, controls = _hull_keys(keys, 2, "circle")
    area = {"mode": "lines", "fill": "toself", "line_width": 0}
    traces = {
        "wedge": flat(fillcolor=QUERY, opacity=0.15, **area),
        "regions": flat(fillcolor=RANDOM + "40", **area).update(line={"color": INK, "width": 1}),
        "region": flat(fillcolor=QUERY, name="queries that select k", **area).update(showlegend=True),
        "names": flat(mode="text", textfont={"color": INK, "size": 14}),
        "circle": flat(mode="lines", line={"color": NORMALIZED, "width": 2, "dash": "dot"}),
        "hull": flat(mode="lines", line={"color": INK, "width": 2}, fill="toself", fillcolor=INK + "26"),
        "spokes": flat(mode="lines", line={"color": VECTOR, "width": 2, "dash": "dash"}),
        "paths": flat(mode="lines", line={"color": VECTOR, "width": 1.5, "dash": "dot"}),
    }
    for i, color in enumerate((VECTOR, NORMALIZED)):
        size, position = [11] * (len(array) - 1) + [16], ["top center"] * (len(array) - 1) + ["top right"]
        marker = {"color": color, "opacity": 1, "size": size, "line": {"width": 2, "color": color}}
        keyed = flat(mode="markers+text", text=names, textposition=position, marker=marker)
        traces[f"keys{i}"] = keyed.update(textfont={"color": color, "size": 17})
    alt = (
        f"{len(array)} keys in the plane and their convex hull, in a ring of query directions that is cut into the "
        "arcs that select each key. The reader drags the last key or moves it with two sliders: inside the hull it has "
        "no arc. A choice brings all keys to a circle, where each has one."
    )
    scene = explorable("hull", traces, controls, alt, 2.6, keys=array.tolist(), draggable=True)
    axis = {"visible": False, "fixedrange": True, "range": [-3.65, 3.65], "constrain": "domain"}
    scene.figure.update_layout(dragmode=False, xaxis=axis, yaxis=axis | {"scaleanchor": "x"})
    return scene


def hull_3d(keys: Vectors = HULL_3D_KEYS) -> Explorable:
    """The scene of `hull` in ℝ³: keys, their convex hull, and on a sphere the query directions that select each.

    Three sliders move the last key. The choice brings the keys to the sphere of radius √3, that of RMSNorm in ℝ³.

    Raises:
        ValueError: not five to nine keys of three numbers from −2.5 to 2.5; the last not multiples of 0.05; one of the
            others zero, or all of them, as they are or normalized, in one plane.
    """
    array, names, controls = _hull_keys(keys, 3, "sphere")
    traces = {
        "axes": axes(),
        "sphere": surface(INK, "").update(showlegend=False, opacity=0.06),
        "borders": curve(NOWHERE, RANDOM, "").update(line_width=2),
        "region": surface(QUERY, "queries that select k").update(opacity=0.4, lighting_specular=0),
        "border": curve(NOWHERE, QUERY, "").update(line_width=6),
        "names": words(),
        "hull": go.Mesh3d(color=INK, opacity=0.15, hoverinfo="skip", flatshading=True),
        "edges": curve(NOWHERE, INK, "").update(line_width=3),
        "spokes": curve(NOWHERE, VECTOR, "", dash="dash").update(line_width=4),
        "paths": curve(NOWHERE, VECTOR, "", dash="dot").update(line_width=3),
    }
    for i, color in enumerate((VECTOR, NORMALIZED)):
        marker = {"color": color, "size": [10] * (len(array) - 1) + [20], "line": {"width": 2, "color": color}}
        traces[f"keys{i}"] = words(names, color).update(mode="markers+text", marker=marker, textposition="top center")
    alt = (
        f"{len(array)} keys in three dimensions and their convex hull, inside a sphere of query directions that is "
        "divided into the regions that select each key. Sliders move the last key: inside the hull it has no region. A "
        "choice brings all keys to a sphere, where each has one."
    )
    scene = explorable("hull_3d", traces, controls, alt, limit=3.3, keys=array.tolist())
    scene.figure.update_scenes(camera_eye={"x": 1.5, "y": 0.1, "z": 0.8})
    return scene


def _keys(keys: Vectors, dimensions: int, least: int, most: int, limit: float | int) -> np.ndarray:
    array = np.asarray(keys, dtype=float)
    if array.ndim != 2 or array.shape[1] != dimensions or not (np.abs(array) <= limit).all():
        raise ValueError(f"each key must be {dimensions} numbers from −{limit} to {limit}, got {array.tolist()}")
    if not least <= len(array) <= most:
        raise ValueError(f"the scene draws {least} to {most} keys, got {len(array)}")
    return array


def _hull_keys(keys: Vectors, dimensions: int, place: str) -> tuple[np.ndarray, list[str], list[dict]]:
    """The keys, their names, and the controls: sliders for the last key, and the choice to normalize them all."""
    array = _keys(keys, dimensions, least=dimensions + 2, most=9, limit=2.5)
    others = array[:-1]
    if not others.any(axis=1).all():
        raise ValueError(f"a key of length 0 cannot be normalized, got {others.tolist()}")
    if any(np.linalg.matrix_rank(points[1:] - points[0]) < dimensions for points in (others, norms.normalize(others))):
        raise ValueError(f"the keys but the last, as they are or normalized, have a flat hull: {others.tolist()}")
    options = ["as they are", f"on the {place}"]
    choice = {"name": "keys", "label": "keys", "options": options, "value": 0}
    return array, [*_names(len(others)), "k"], [*sliders("coordinate", "x", array[-1], 2.5, 0.05), choice]


def _names(count: int) -> list[str]:
    return [f"k{'₁₂₃₄₅₆₇₈'[i]}" for i in range(count)]
