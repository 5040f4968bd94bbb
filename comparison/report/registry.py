"""The panels of a report, in their order, and the decorator that adds one.

A panel is a function of the report's data. What it returns is shown on the page and in the Markdown alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from comparison.report.data import ReportData
from comparison.report.theme import Drawing
from comparison.results.tables import Cell, Table, number, plain, significant
from structured_init.util.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FOLDER = Path(__file__).with_name("templates")
TEMPLATES = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True)


@dataclass(frozen=True)
class Html:
    """A piece of the page that is neither a sentence, a table nor a figure.

    Its markup is HTML; a script in it does not run, as the page's policy allows its own alone. ``markdown`` says the
    same, or is empty where it cannot. Figures inside are its drawings: they are written for a paper, and linked in the
    Markdown.
    """

    markup: str
    markdown: str = ""
    drawings: Sequence[Drawing] = ()


Piece: TypeAlias = "str | Table | pd.DataFrame | Figure | Drawing | Html"
Content: TypeAlias = "Piece | Sequence[Piece] | None"
Shown: TypeAlias = "str | Table | Drawing | Html"  # a piece as the page and the Markdown have it
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
    to show (then the report has no such section). A piece is a sentence (``str``), a table (a pandas ``DataFrame``, or
    a :class:`Table`), a matplotlib figure (or a :class:`Drawing`, which names it), or :class:`Html`. Registering the
    same function again, as a notebook does, replaces it.

    ``name`` is its anchor on the page, the function's name when None; ``label`` its entry in the bar of contents, the
    title when None; ``after`` names the panel that it follows, the last when None. A report has ``result``, ``grid``,
    ``power``, ``learning_rates``, ``curves``, ``steps``, ``attention``, ``weight_products``, ``layers``,
    ``similarity``, ``initializations`` and ``runs``, in this order. An ``after`` that is no panel is refused, and a
    name that another panel has.
    """

    def register(function: PanelFunction) -> PanelFunction:
        panel = Panel(name or function.__name__, title, label or title, function)
        others = [known for known in PANELS if known.name != panel.name]
        origins = {(f.__module__, f.__qualname__) for f in (function, *(p.content for p in PANELS if p not in others))}
        if len(origins) > 1:
            raise StructuredInitError(f"there is a panel '{panel.name}' already: give yours another name")
        names = [known.name for known in others]
        if after is not None and after not in names:
            raise StructuredInitError(f"there is no panel '{after}' to come after: {nearest(after, names)}")
        others.insert(len(others) if after is None else names.index(after) + 1, panel)
        PANELS[:] = others
        return function

    return register


def pieces(panel: Panel, data: ReportData) -> list[Shown]:
    """Return what a panel shows, its figures named; empty where it shows nothing.

    What a panel cannot read is said in its place: the rest of the report is not lost with it.
    """
    try:
        content = panel.content(data)
    except StructuredInitError as error:
        return [f"Not shown: {error}."]
    several = isinstance(content, Sequence | Iterator) and not isinstance(content, str | Markup)
    given = [] if content is None else content if several else [content]
    return [_shown(piece, panel, place) for place, piece in enumerate(given)]


def heading(text: str) -> list[Html]:
    """Return a heading inside a panel; none where the text is empty."""
    return [Html(Markup("<h3>{}</h3>").format(text), f"### {plain(text)}")] if text else []


def note(text: str) -> Html:
    """Return a paragraph in small type."""
    return Html(Markup('<p class="small">{}</p>').format(text), plain(escape(text).unescape()))


def table(data: ReportData, shown: Table, kind: str = "") -> Html:
    """Return a table in which every arm has the mark of its colour; see :meth:`Table.html` for ``kind``."""
    return Html(Markup(shown.html(data.colors, kind)), shown.markdown())


def _shown(piece: Piece, panel: Panel, place: int) -> Shown:
    if isinstance(piece, (str, Table, Drawing, Html)):
        return piece
    if hasattr(piece, "savefig"):
        titles = (axis.get_title(loc=where) for axis in piece.axes for where in ("left", "center"))
        text = piece.get_suptitle() or next(filter(None, titles), panel.title)
        return Drawing(piece, f"{panel.name}_{place}", text)
    if hasattr(piece, "iterrows"):
        return table_of(piece)
    raise StructuredInitError(
        f"the panel '{panel.name}' returned {type(piece).__name__}: give str, Table, a DataFrame, a figure, Drawing or "
        "Html"
    )


def table_of(frame: pd.DataFrame) -> Table:
    """Return a table as it is shown: three digits of a number, nothing where there is none, its index if it says more.

    An index that has a name or holds names is shown; one that only counts rows is not.
    """
    import pandas as pd

    says_more = any(frame.index.names) or not pd.api.types.is_numeric_dtype(frame.index)
    named = frame.reset_index() if says_more else frame

    def cell(value: Any, column: str) -> Cell:
        if isinstance(value, float):
            return Cell("" if math.isnan(value) else number(value, significant(value)))
        return Cell(str(value), arm=str(value) if column == "arm" else "")

    columns = list(map(str, named.columns))
    return Table(columns, [list(map(cell, row, columns)) for row in named.itertuples(index=False)])


def render(template: str, /, **values: Any) -> Markup:
    """Return a template of the folder ``templates``, filled in; text is escaped."""
    return Markup(TEMPLATES.get_template(template).render(**values))


def script_json(content: Any) -> Markup:
    """Return JSON that is safe inside a script element: it holds no ``<``, so it can neither end nor nest one."""
    return Markup(json.dumps(content, separators=(",", ":")).replace("<", "\\u003c"))
