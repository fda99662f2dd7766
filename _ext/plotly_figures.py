"""Draw a plotly figure that ends a cell in the page, with the one script that the pages share.

The cell holds plain ``fig``. Its text alternative is ``fig.update_layout(meta={"alt": "…"})``, or else its title.
scripts/figures.js draws what is written here.
"""

import html
import json

from docutils import nodes
from myst_nb.core.render import load_mime_renders

# A plain figure, and one that norm_geometry/explorables.js computes.
MIME_TYPES = ("application/vnd.plotly.v1+json", "application/vnd.norm-geometry.explorable+json")


class PlotlyFigures:
    """A MIME renderer as MyST-NB wants them."""

    mime_priority_overrides = [("html", mime_type, 1) for mime_type in MIME_TYPES]  # noqa: RUF012

    @staticmethod
    def handle_mime(renderer, data, inline):
        if data.mime_type in MIME_TYPES and not inline:
            return [nodes.raw(text=figure_html(data.content), format="html")]
        return None


def figure_html(figure: dict) -> str:
    layout = figure["layout"]
    alternative = layout.get("meta", {}).get("alt") or layout.get("title", {}).get("text", "Interactive figure")
    content = {key: figure[key] for key in ("data", "layout", "frames") if key in figure}
    # "</" inside a script element would end it.
    script = json.dumps(content, separators=(",", ":")).replace("</", r"<\/")
    return (
        f'<figure class="plotly-figure" aria-label="{html.escape(alternative)}">'
        f'<script type="application/json">{script}</script></figure>'
    )


def setup(app):
    # MyST-NB finds renderers among the entry points of installed packages and remembers the list;
    # adding to that list saves making a package of this file.
    load_mime_renders().append(PlotlyFigures)
    return {"parallel_read_safe": True}
