"""How the site is built: ``make docs``, or ``sphinx-build -W -c docs . build/site`` in the root of a clone."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import structured_init  # noqa: E402

project = "structured-init"
author = "The structured-init developers"
version = release = structured_init.__version__

# The root of the clone is the source, so that a link between pages is the same here and in a viewer of the repository.
root_doc = "docs/index"
# Pages for contributors stay in the repository: links to them, and to measured results, lead to pages of the source.
include_patterns = ["docs/**"]
exclude_patterns = ["docs/contributing"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "menu",
    "source_pages",
    "stacked_tables",
]

# Pages
myst_heading_anchors = 4

# Reference
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autoclass_content = "class"
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# The look
html_theme = "furo"
html_title = f"structured-init {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["filter.js"]
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_additional_pages = {"index": "to_first_page.html"}
templates_path = ["templates"]
highlight_language = "text"  # of blocks that name none: commands, output
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


documented_files: set[str] = set()


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return where the source of a documented object stands, seen from a page in ``docs/api``."""
    found = importlib.import_module(info["module"]) if info["module"] else None
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    try:
        found = inspect.unwrap(found.fget if isinstance(found, property) else found)
        path = Path(inspect.getsourcefile(found)).resolve()
        _, line = inspect.getsourcelines(found)
    except (TypeError, OSError):
        return None  # a constant, or an attribute of an instance
    if not path.is_relative_to(ROOT):
        return None
    shown = path.relative_to(ROOT).as_posix()
    documented_files.add(shown)
    return f"../../source/{shown}.html#L-{line}"


def as_rst(app: Any, what: str, name: str, found: object, options: Any, lines: list[str]) -> None:
    """Write |x| and (F, *kernel) of a docstring so that reStructuredText does not take them for markup."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        star = r"|(?<=[( ])\*(?=\w)" if sum(part.count("*") for part in parts[::2]) == 1 else ""
        parts[::2] = [re.sub(rf"\|{star}", r"\\\g<0>", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def keep_documented_files(app: Any, env: Any) -> None:
    """Remember the files that the reference links, for a build that reads only what has changed."""
    env.documented_files = documented_files | getattr(env, "documented_files", set())


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("autodoc-process-docstring", as_rst, priority=1000)  # behind napoleon
    app.connect("env-updated", keep_documented_files)
