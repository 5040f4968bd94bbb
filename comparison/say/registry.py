"""The panels of a report, in their order, and the decorator that adds one.

A panel is a function of the report's data. What it returns is shown on the page and in the Markdown alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from markupsafe import Markup

from comparison.say.data import ReportData
from comparison.say.theme import Drawing
from comparison.tables import Cell, Table, number, plain, significant
from structured_init.util.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Html:
    """A piece of the page that is neither a sentence, a table nor a figure.

    Its markup is HTML; a script in it does not run, as the page's policy allows none. ``markdown`` says the same, or is
    empty where it cannot.
    """

    markup: str
    markdown: str = ""


Piece: TypeAlias = "str | Table | pd.DataFrame | Figure | Drawing | Html"
Content: TypeAlias = "Piece | Sequence[Piece] | None"
Shown: TypeAlias = "str | Table | Drawing | Html"  # a piece as the page and the Markdown have it
PanelFunction = Callable[[ReportData], Content]


@dataclass(frozen=True)
class Panel:
    """A section of the report."""

    name: str  # its anchor on the page, and the prefix of figures that have no name of their own
    title: str  # its heading, and its entry in the bar of contents
    content: PanelFunction  # returns what it shows, or nothing where there is nothing to show


PANELS: list[Panel] = []  # in the order of the page


def register_panel(title: str, *, after: str | None = None) -> Callable[[PanelFunction], PanelFunction]:
    """Add a panel to every report that is written from now on in this process.

    The function takes :class:`ReportData` and returns one piece, a sequence of pieces, or None where there is nothing
    to show (then the report has no such section). A piece is a sentence (``str``), a table (a pandas ``DataFrame``, or
    a :class:`Table`), a matplotlib figure (or a :class:`Drawing`, which names it), or :class:`Html`. Registering a
    panel of the same name again, as a notebook does, replaces it.

    The function's name is its anchor on the page; ``after`` names the panel that it follows, the last when None.
    A report has ``result``, ``grid``, ``curves``, ``attention``, ``learning_rates``, ``initializations`` and
    ``runs``, in this order. An ``after`` that is no panel is refused.
    """

    def register(function: PanelFunction) -> PanelFunction:
        panel = Panel(function.__name__, title, function)
        others = [known for known in PANELS if known.name != panel.name]
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
    if content is None:
        return []
    given = content if isinstance(content, (list, tuple)) else [content]
    return [_shown(piece, panel, place) for place, piece in enumerate(given)]


def heading(text: str) -> list[Html]:
    """Return a heading inside a panel; none where the text is empty."""
    return [Html(Markup("<h3>{}</h3>").format(text), f"### {plain(text)}")] if text else []


def explanation(text: str) -> Html:
    """Return what numbers mean, behind a question mark."""
    markup = Markup('<details class="help"><summary aria-label="What the numbers mean">?</summary><p>{}</p></details>')
    return Html(markup.format(text), plain(text))


def _shown(piece: Piece, panel: Panel, place: int) -> Shown:
    if isinstance(piece, (str, Table, Drawing, Html)):
        return piece
    if hasattr(piece, "savefig"):
        titles = [piece.get_suptitle(), *(axis.get_title(loc="left") or axis.get_title() for axis in piece.axes)]
        return Drawing(piece, f"{panel.name}_{place}", next(filter(None, titles), panel.title))
    if hasattr(piece, "iterrows"):
        return table_of(piece)
    raise StructuredInitError(
        f"the panel '{panel.name}' returned {type(piece).__name__}: give str, Table, a DataFrame, a figure, Drawing or "
        "Html"
    )


def table_of(frame: pd.DataFrame) -> Table:
    """Return a table as it is shown: three digits of a number, nothing where there is none, its index if it has a name.

    Args:
        frame: the column ``arm`` has the names of arms.
    """
    named = frame.reset_index() if any(frame.index.names) else frame
    columns = list(map(str, named.columns))
    rows = []
    for values in named.itertuples(index=False):
        rows.append([_cell(value, column) for value, column in zip(values, columns, strict=True)])
    return Table(columns, rows)


def _cell(value: Any, column: str) -> Cell:
    if isinstance(value, float):
        return Cell("" if math.isnan(value) else number(value, significant(value)))
    return Cell(str(value), arm=str(value) if column == "arm" else "")
