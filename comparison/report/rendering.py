"""The templates of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

FOLDER = Path(__file__).with_name("templates")


def render(template: str, /, **values: Any) -> Markup:
    """Return a template of the folder ``templates``, filled in; text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return Markup(environment.get_template(template).render(**values))


def source(name: str) -> str:
    """Return a file of the folder as it is."""
    return (FOLDER / name).read_text(encoding="utf-8")


def script_json(text: str) -> Markup:
    """Return JSON that is safe inside a script element: it holds no ``<``, so it can neither end nor nest one."""
    return Markup(text.replace("<", "\\u003c"))
