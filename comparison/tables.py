"""Tables as Markdown and as LaTeX, and how numbers are written in them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

MOST_DECIMALS, MOST_ROUNDED = 8, 4  # digits after the point, and zeros before it; beyond is a power of ten
MARKUP = re.compile(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-z/!?])|\[(?=\^|[^]]*\]\()|&(?=#?\w+;)", re.IGNORECASE)
# What pdfLaTeX has no letters for.
LATEX = str.maketrans({"<": "$<$", "−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "√": r"$\surd$", "→": r"$\to$"})


@dataclass(frozen=True)
class Cell:
    """One cell: what it says, what it adds in smaller type, and of which arm it is the name.

    Its kind is ``"gain"``, ``"loss"`` or ``"open"`` (not told apart from zero); empty elsewhere.
    """

    text: str
    note: str = ""
    kind: str = ""
    arm: str = ""


@dataclass(frozen=True)
class Table:
    """A table: a heading for each of its columns, and rows of as many cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [list(self.columns), ["---"] * len(self.columns), *self._texts()]
        return "\n".join("| " + " | ".join(map(plain, line)).replace("\n", "\\n") + " |" for line in lines)

    def latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs."""
        import pandas as pd

        frame = pd.DataFrame(self._texts(), columns=list(self.columns))
        return frame.to_latex(index=False, escape=True).translate(LATEX)

    def _texts(self) -> list[list[str]]:
        """Return the text of every cell, with what it adds behind it."""
        return [[f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row] for row in self.rows]


def plain(text: str) -> str:
    """Return a text for Markdown, in which its signs are no markup: an arm may be called anything."""
    return MARKUP.sub(r"\\\g<0>", text)


def number(value: float, digits: int, signed: bool = False) -> str:
    """Return a number with a real minus sign; none before what rounds to zero."""
    kind = f".{max(digits, 0)}f"
    if not -MOST_ROUNDED <= digits <= MOST_DECIMALS and math.isfinite(value):
        kind = f".{max(digits + math.floor(math.log10(abs(value))), 0)}e" if value else ".0f"
    text = f"{value:{'+' if signed else ''}{kind}}"
    return text.lstrip("-") if not re.search(r"[1-9a-z]", text) else text.replace("-", "−")


def count(number: int, what: str) -> str:
    """Return a number with its noun: ``1 seed``, ``3 seeds``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def p_text(p: float) -> str:
    """Return a p-value for reading, ``p = 0.03``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def times(ratio: float) -> str:
    """Return a ratio with two digits, more where it has more before the point."""
    return f"{ratio:,.{min(max(significant(ratio, 2), 0), MOST_DECIMALS)}f}"


def significant(value: float, digits: int = 3) -> int:
    """Return the number of decimals that show so many digits of a value, as :func:`number` takes it."""
    if not math.isfinite(value) or value == 0:
        return digits
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return decimals if decimals < -MOST_ROUNDED else max(decimals, 0)  # a power of ten, or none below 0
