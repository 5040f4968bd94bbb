"""Tables that stack on a phone: each cell repeats the head of its column, which only a narrow screen shows."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx


def label_cells(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the head of its column before the content of every cell but the first of a row."""
    for table in doctree.findall(nodes.tgroup):
        heads = [entry.astext() for head in table.findall(nodes.thead) for entry in head.findall(nodes.entry)]
        for body in table.findall(nodes.tbody) if len(heads) > 2 else ():
            for row in body.findall(nodes.row):
                for head, cell in list(zip(heads, row.children, strict=False))[1:]:
                    if head and cell.astext():
                        cell.insert(0, nodes.paragraph("", "", nodes.inline("", head), classes=["column-head"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-resolved", label_cells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
