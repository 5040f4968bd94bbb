"""How the site is built: ``make docs``, or ``sphinx-build -W -c docs . build/site`` in the root of a clone."""

from __future__ import annotations

import importlib
import inspect
import json
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
include_patterns = [
    "docs/**",
    "notebooks/*.ipynb",
    "benchmarks/results/*.md",
    "benchmarks/results/**/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [".*", "build", "dist", "runs", "demo", "tests", "README.md", "notebooks/runs", "**/.ipynb_*"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "sphinx_design",
    "folded",
    "mathml",
    "presets",
    "source_pages",
]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page of results may begin its parts with any level of heading

# Notebooks: executed once and kept in build/notebooks until they change; `off` where pictures are not wanted
nb_execution_mode = os.environ.get("DOCS_NOTEBOOKS", "cache")
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_timeout = 1800  # seconds a cell, for machines that are busy
nb_execution_raise_on_error = True
nb_merge_streams = True

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
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_additional_pages = {"index": "to_first_page.html"}
templates_path = ["templates"]
highlight_language = "text"  # of blocks that name none: commands, output
pygments_style = "friendly"
pygments_dark_style = "github-dark"
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


def name_report(app: Any, docname: str, source: list[str]) -> None:
    """Put the folder of a published comparison before its title: several compare the same experiment."""
    folder, _, page = docname.removeprefix("benchmarks/results/").rpartition("/")
    if docname.startswith("benchmarks/results/") and page == "report":
        source[0] = re.sub(r"\A# ", f"# {folder}: ", source[0])


def say_no_pictures(app: Any, docname: str, source: list[str]) -> None:
    """Say in the gallery and on the notebooks' pages that notebooks were not run, where they were not."""
    if nb_execution_mode != "off":
        return
    note = "*This site was built without running the notebooks: their pages show no pictures. `make docs` runs them.*"
    if docname == "docs/gallery/index":
        source[0] = source[0].replace("\n::::{grid}", f"\n{note}\n\n::::{{grid}}", 1)
    elif docname.startswith("notebooks/"):
        notebook = json.loads(source[0])
        notebook["cells"].insert(1, {"cell_type": "markdown", "id": "no-pictures", "metadata": {}, "source": note})
        source[0] = json.dumps(notebook)


def setup(app: Any) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", name_report)
    app.connect("source-read", say_no_pictures)
    app.connect("autodoc-process-docstring", as_rst, priority=1000)  # behind napoleon
    app.connect("env-updated", keep_documented_files)
