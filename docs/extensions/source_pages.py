"""Links to source files lead to pages of the site, so that it can be read without a connection.

A page links a file as any viewer of the repository follows it: ``[code](../structured_init/attention/mimetic.py)``. In
the site such a link leads to ``source/structured_init/attention/mimetic.html``, which holds the highlighted file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

FOLDER = "source"
LEXERS = {".py": "python", ".pyi": "python", ".yaml": "yaml", ".toml": "toml", ".md": "markdown"}


def linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """Return which source files each page links: page → paths from the root of the repository."""
    if not hasattr(env, "linked_source_files"):
        env.linked_source_files = {}
    return env.linked_source_files


def page(path: str) -> str:
    """Return the name of the page that shows a file: ``a/b.py`` → ``source/a/b.py``."""
    return f"{FOLDER}/{path}"


def lead_to_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Replace downloads of source files, and links to pages that the site leaves out, by links to their pages."""
    folder, root = Path(app.env.doc2path(app.env.docname)).parent, Path(app.srcdir)
    for node in list(doctree.findall(addnodes.download_reference)):
        show(app, node, (folder / node["reftarget"]).resolve())
    for node in list(doctree.findall(addnodes.pending_xref)):
        # MyST gives the name of a page without its suffix, also of one that is not built.
        if node.get("refdomain") == "doc" and node["reftarget"] not in app.env.found_docs:
            show(app, node, root / f"{node['reftarget']}.md")


def show(app: Sphinx, node: nodes.Element, target: Path) -> None:
    """Put a link to the page of a source file in place of a node, if it is a file that has one."""
    if target.suffix not in LEXERS or not target.is_file():
        return
    docname, path = app.env.docname, target.relative_to(app.srcdir).as_posix()
    linked(app.env).setdefault(docname, set()).add(path)
    uri = app.builder.get_relative_uri(docname, page(path))
    node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page linked, before it is read again."""
    linked(env).pop(docname, None)


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each linked file, and for each file that the API reference leads to."""
    paths = set().union(*linked(app.env).values(), getattr(app.env, "documented_files", ()))
    for path in sorted(path for path in paths if (Path(app.srcdir) / path).is_file()):
        text = (Path(app.srcdir) / path).read_text(encoding="utf-8")
        body = app.builder.highlighter.highlight_block(text, LEXERS[Path(path).suffix], lineanchors="L")
        yield page(path), {"title": path, "body": f"<h1>{path}</h1>{body}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-read", lead_to_pages, priority=100)  # before downloads are collected
    app.connect("env-purge-doc", forget)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
