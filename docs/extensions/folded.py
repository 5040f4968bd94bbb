"""Sections of a method's card that unfold on a click, so that a card is read in one screen.

In the repository the same pages show everything: their Markdown has ordinary headings.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes

FOLDED = (
    *("Attribution", "Batches", "Details", "Hosts", "Parameters", "What is not known", "What is unconfirmed"),
    *("What trained networks have", "What uniform selection does", "Where it cannot hold", "Where we deviate"),
)
OPEN = ("docs/analysis", "docs/judge")  # pages whose details are what one comes for


def fold(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put the sections that a card folds into ``<details>``, their headings into its summary."""
    for section in list(doctree.findall(nodes.section)) if docname.startswith("docs/") and docname not in OPEN else ():
        title = section[0]
        if isinstance(title, nodes.title) and title.astext().startswith(FOLDED):
            section[:] = [raw("<details><summary>"), title, raw("</summary>"), *section[1:], raw("</details>")]


def raw(text: str) -> nodes.raw:
    """Return a piece of HTML."""
    return nodes.raw("", text, format="html")


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-resolved", fold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
