"""Give links to a work that chapters/references lists its citation as their title.

Browsers show the title on hover; scripts/previews.js shows it on keyboard focus and on touch as well.
"""

from functools import lru_cache

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

REFERENCES = "chapters/references"


class CitationTitles(SphinxPostTransform):
    default_priority = 500

    def run(self) -> None:
        if self.env.docname == REFERENCES:
            return
        citations = citations_by_address(self.env)
        for link in self.document.findall(nodes.reference):
            if link.get("refuri") in citations:
                link["reftitle"] = citations[link["refuri"]]


@lru_cache(1)
def citations_by_address(env) -> dict[str, str]:
    return {
        link["refuri"]: " ".join(item.astext().split())
        for item in env.get_doctree(REFERENCES).findall(nodes.list_item)
        for link in item.findall(nodes.reference)
        if "refuri" in link
    }


def setup(app):
    app.add_post_transform(CitationTitles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
