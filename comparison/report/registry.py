"""The panels of a report, in their order, and the decorator that adds one.

A panel is a function of the report's data. What it returns is shown on the page and in the Markdown alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from comparison.report.data import ReportData
from comparison.report.theme import Drawing
from comparison.results.tables import Table
from structured_init.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Html:
    """A piece of the page that is neither a sentence, a table nor a figure.

    Attributes:
        markup: for the page; a script in it does not run, as the page's policy allows its own alone.
        markdown: the same in Markdown; empty where that cannot say it.
        drawings: figures inside the markup: they are written for a paper, and linked in the Markdown.
    """

    markup: Markup
    markdown: str = ""
    drawings: Sequence[Drawing] = ()


Piece: TypeAlias = "str | Table | Figure | Drawing | Html"


Content: TypeAlias = "Piece | Sequence[Piece] | None"


PanelFunction = Callable[[ReportData], Content]


@dataclass(frozen=True)
class Panel:
    """A section of the report."""

    name: str  # its anchor on the page, and the prefix of figures that have no name of their own
    title: str  # its heading
    label: str  # its entry in the bar of contents
    content: PanelFunction  # returns what it shows, or nothing where there is nothing to show


PANELS: list[Panel] = []  # in the order of the page


def register_panel(
    title: str, *, after: str | None = None, name: str | None = None, label: str | None = None
) -> Callable[[PanelFunction], PanelFunction]:
    """Add a panel to every report that is written from now on in this process.

    The function takes :class:`ReportData` and returns one piece, a sequence of pieces, or None where there is nothing
    to show (then the report has no such section). A piece is a sentence (``str``), a
    :class:`Table`, a matplotlib figure (or a :class:`Drawing`, which names it), or
    :class:`Html`. Registering the same function again, as a notebook does, replaces it.

    Args:
        title: heading of the panel.
        after: name of the panel that it follows; last when None.
        name: its anchor on the page; the function's name when None.
        label: its entry in the bar of contents; the title when None.

    Raises:
        StructuredInitError: ``after`` is no panel, or another panel has the name.
    """
    if not isinstance(title, str):
        raise StructuredInitError('a panel has a title: @register_panel("Seconds per run") above its function')

    def register(function: PanelFunction) -> PanelFunction:
        panel = Panel(name or function.__name__, title, label or title, function)
        same = [known for known in PANELS if known.name == panel.name]
        if any(_origin(known.content) != _origin(function) for known in same):
            raise StructuredInitError(f"there is a panel '{panel.name}' already: give yours another name")
        others = [known.name for known in PANELS if known.name != panel.name]
        if after is not None and after not in others:
            raise StructuredInitError(f"there is no panel '{after}' to come after: {nearest(after, others)}")
        PANELS[:] = [known for known in PANELS if known.name != panel.name]
        PANELS.insert(len(PANELS) if after is None else others.index(after) + 1, panel)
        return function

    return register


def pieces(panel: Panel, data: ReportData) -> list[str | Table | Drawing | Html]:
    """Return what a panel shows, its figures named; empty where it shows nothing.

    What a panel cannot read is said in its place: the rest of the report is not lost with it.
    """
    try:
        content = panel.content(data)
    except StructuredInitError as error:
        return [f"Not shown: {error}."]
    if content is None:
        return []
    several = isinstance(content, Sequence | Iterator) and not isinstance(content, str | Markup)
    return [_named(piece, panel, number) for number, piece in enumerate(content if several else [content])]


def heading(text: str) -> list[Html]:
    """Return a heading inside a panel; none where the text is empty."""
    return [Html(Markup("<h3>{}</h3>").format(text), f"### {text}")] if text else []


def note(text: str) -> Html:
    """Return a paragraph in small type."""
    return Html(Markup('<p class="small">{}</p>').format(text), str(escape(text).unescape()))


def table(data: ReportData, shown: Table, kind: str = "") -> Html:
    """Return a table in which every arm has the mark of its colour; see :meth:`Table.html` for ``kind``."""
    return Html(Markup(shown.html(data.colors, kind)), shown.markdown())


def _named(piece: Piece, panel: Panel, number: int) -> str | Table | Drawing | Html:
    if isinstance(piece, (str, Table, Drawing, Html)):
        return piece
    if hasattr(piece, "savefig"):
        titles = (axis.get_title(loc=where) for axis in piece.axes for where in ("left", "center"))
        text = piece.get_suptitle() or next(filter(None, titles), panel.title)
        return Drawing(piece, f"{panel.name}_{number}", text)
    raise StructuredInitError(
        f"the panel '{panel.name}' returned {type(piece).__name__}: give str, Table, a figure, Drawing or Html"
    )


def _origin(function: PanelFunction) -> tuple[str, str]:
    return function.__module__, function.__qualname__


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
