"""Turn ``> **Theorem 2 (Axes).** …`` into a theorem box that links can point to.

A block quote that opens with a bold "Theorem", "Definition", … gets the classes ``statement statement-theorem``
and, when it has a number or a name, an anchor: ``#theorem-2``, or ``#note-axes`` for ``> **Note (Axes).**``.
"""

import re

from docutils import nodes
from sphinx.transforms import SphinxTransform

OPENING = re.compile(
    r"(?P<kind>Theorem|Definition|Proposition|Lemma|Corollary|Exercise|Warning|Note)"
    r"(?: (?P<number>[\w.]+?))?(?: \((?P<name>.+)\))?[.:]?$"
)


class Statements(SphinxTransform):
    default_priority = 500  # before MyST resolves links to anchors (879)

    def apply(self) -> None:
        for quote in self.document.findall(nodes.block_quote):
            start = next((node for node in quote[0] if node.astext()), None)  # MyST may put an empty text first
            opening = isinstance(start, nodes.strong) and OPENING.match(start.astext())
            if opening:
                self.dress(quote, title=start.astext().rstrip(".:"), **opening.groupdict())

    def dress(self, quote: nodes.block_quote, title: str, kind: str, number: str | None, name: str | None) -> None:
        quote["classes"] += ["statement", f"statement-{kind.lower()}"]
        if number or name:
            anchor = nodes.make_id(f"{kind} {number or name}")
            quote["ids"].append(anchor)
            # MyST looks a link's anchor up here, among the headings: from this page and from others.
            anchors = self.env.metadata[self.env.docname].setdefault("myst_slugs", self.document.myst_slugs)
            anchors[anchor] = (quote.line, anchor, title)


def setup(app):
    app.add_transform(Statements)
    return {"parallel_read_safe": True}
