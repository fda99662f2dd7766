r"""Hand display equations to MathJax as they were written.

Sphinx wraps an equation that contains ``\\`` in ``split``, inside which MathJax refuses the book's ``\tag{2.1}``.
"""

from docutils import nodes
from sphinx.transforms import SphinxTransform


class VerbatimEquations(SphinxTransform):
    default_priority = 500

    def apply(self) -> None:
        for equation in self.document.findall(nodes.math_block):
            equation[:] = [nodes.Text(rf"\[{equation.astext()}\]")]
            equation["nowrap"] = True


def setup(app):
    app.add_transform(VerbatimEquations)
    return {"parallel_read_safe": True}
