"""Sliders over figures, in plain ipywidgets: they answer in a page without a kernel, in Jupyter and in Colab."""

import io
from collections.abc import Mapping
from html import escape
from urllib.parse import quote

import ipywidgets
import matplotlib
from matplotlib.figure import Figure

__all__ = ["slider_over"]


def slider_over(figures: Mapping[str, Figure], name: str, alt: str) -> ipywidgets.VBox:
    """Show one of `figures` at a time; a slider called `name`, labelled with their keys, chooses which.

    Args:
        alt: what the figure shows, for those who cannot see it; "{}" in it becomes the key.
    """
    pictures = [ipywidgets.HTML(_image(figure, alt.format(label))) for label, figure in figures.items()]
    slider = ipywidgets.SelectionSlider(
        options=[(label, index) for index, label in enumerate(figures)],
        description=name,
        layout=ipywidgets.Layout(width="100%", max_width="36rem"),
        style={"description_width": "initial"},
    )
    stack = ipywidgets.Stack(pictures, selected_index=0)
    ipywidgets.jslink((slider, "index"), (stack, "selected_index"))
    return ipywidgets.VBox([slider, stack])


def _image(figure: Figure, alt: str) -> str:
    svg = io.StringIO()
    # Letters as text, not as outlines: a third of the size. The salt makes the same figure the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "norm-geometry"}):
        figure.savefig(svg, format="svg", bbox_inches="tight", metadata={"Date": None})
    # Percent-encoded text shrinks under compression, which base64 does not.
    address = "data:image/svg+xml," + quote(svg.getvalue()[svg.getvalue().index("<svg") :], safe=" =:/,;()'")
    return f'<img alt="{escape(alt)}" style="width: 100%; max-width: 44rem" src="{address}">'
