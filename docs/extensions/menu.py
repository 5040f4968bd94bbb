"""The menu of the site, from ``docs/menu.yaml``: pages need no directives, which a repository shows as they are."""

from __future__ import annotations

from pathlib import Path

import yaml
from sphinx.application import Sphinx

MENU = Path(__file__).resolve().parents[1] / "menu.yaml"


def write_toctree(pages: dict[str, str]) -> str:
    """Return a hidden table of contents: title → page in ``docs``."""
    lines = [f"{title} </docs/{page}>" for title, page in pages.items()]
    return "\n\n```{toctree}\n:hidden:\n" + "\n".join(lines) + "\n```\n"


def add_toctrees(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the entries of the menu below the first page, and the pages of an entry below the page where it leads."""
    menu = yaml.safe_load(MENU.read_text(encoding="utf-8"))
    leads_to = {entry: next(iter(pages.values())) for entry, pages in menu.items()}
    below = {"docs/index": leads_to}
    for entry, page in leads_to.items():
        below[f"docs/{page}"] = {title: each for title, each in menu[entry].items() if each != page}
    if below.get(docname):
        source[0] += write_toctree(below[docname])
        app.env.note_dependency(str(MENU))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", add_toctrees)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
