"""Tables as Markdown, as LaTeX and as HTML, and how numbers are written in them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparison.results.paired import FEWEST_FOR_INTERVAL, Interval

MOST_DECIMALS, MOST_ROUNDED = 8, 4  # digits after the point, and zeros before it; beyond is a power of ten
MARKUP = re.compile(r"[\\`*|~]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-z/!?])|\[(?=\^|[^]]*\]\()|&(?=#?\w+;)", re.IGNORECASE)
LATEX = {each: f"\\{each}" for each in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
LATEX |= {
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    "×": r"$\times$",
    "−": "$-$",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "√": r"$\surd$",
    "→": r"$\to$",
    "–": "--",
    "’": "'",
}


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
        cells = [[f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in row] for row in self.rows]
        lines = [list(self.columns), ["---"] * len(self.columns), *cells]
        return "\n".join("| " + " | ".join(map(plain, line)).replace("\n", "\\n") + " |" for line in lines)

    def only(self, columns: Sequence[int]) -> Table:
        """Return some of the columns, by number."""
        return Table([self.columns[i] for i in columns], [[row[i] for i in columns] for row in self.rows])

    def latex(self, title: str = "") -> str:
        """Return the table in LaTeX, for the package booktabs, below a row with its title.

        Notes stand in small type below what they belong to.
        """

        def written(text: str) -> list[str]:
            return ["".join(LATEX.get(each, each) for each in line) for line in _lines(text)]

        def stacked(lines: Sequence[str]) -> str:
            several = r"\begin{tabular}[t]{@{}l@{}}" + r" \\ ".join(lines) + r"\end{tabular}"
            return several if len(lines) > 1 else lines[0]

        def shown(cell: Cell) -> str:
            notes = written(cell.note) if cell.note else []
            text = ["".join(LATEX.get(each, each) for each in cell.text)] if cell.arm else written(cell.text)
            return stacked([*text, *(rf"{{\scriptsize {each}}}" for each in notes)])

        lines = [[stacked(written(each)) for each in self.columns], *(map(shown, row) for row in self.rows)]
        head, *rows = (" & ".join(line) + r" \\" for line in lines)
        begin = rf"\begin{{tabular}}{{{'l' * len(self.columns)}}}"
        escaped = "".join(LATEX.get(each, each) for each in title)
        wide = rf"\multicolumn{{{len(self.columns)}}}{{l}}{{{escaped}}} \\"
        above = [wide, r"\midrule"] if title else []
        return "\n".join([begin, r"\toprule", *above, head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"])

    def html(self, colors: Mapping[str, str] | None = None, kind: str = "") -> str:
        """Return the table in HTML."""
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in self.columns)
        known = colors or {}
        rows = ["".join(map(_html, row, self.columns, [known] * len(row))) for row in self.rows]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        shown = f' class="{kind}"' if kind else ""
        return f'<div class="scroll"><table{shown}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def plain(text: str) -> str:
    """Return a text for Markdown, in which its signs are no markup: an arm may be called anything."""
    return MARKUP.sub(r"\\\g<0>", text)


def _lines(text: str) -> list[str]:
    """Split a text where LaTeX may break it: at commas and semicolons and before brackets, but not inside of these."""
    lines, depth = [""], 0
    for part in re.split(r"(, |; |[()\[\]{}])", text):
        if depth == 0 and part in (", ", "; "):
            lines.append("")
            continue
        if depth == 0 and part == "(" and lines[-1].endswith(" "):
            lines[-1:] = [lines[-1].rstrip(), ""]
        depth = max(0, depth + (part in ("(", "[", "{")) - (part in (")", "]", "}")))
        lines[-1] += part
    return lines


def interval_text(interval: Interval, digits: int, signed: bool = False) -> str:
    """Return ``mean ± half width``, both ends where the sides differ, the mean alone where there is no interval."""
    mean = number(interval.mean, digits, signed)
    if math.isinf(interval.half_width) or interval.samples < FEWEST_FOR_INTERVAL or interval.has_no_width:
        return mean
    if abs(interval.high + interval.low - 2 * interval.mean) > 0.1 * interval.half_width:
        return f"{mean} ({number(interval.low, digits, signed)} to {number(interval.high, digits, signed)})"
    return f"{mean} ± {number(interval.half_width, digits)}"


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
    return shown(digits - 1 - math.floor(math.log10(abs(value))))


def shown(decimals: int) -> int:
    """Return how many decimals are shown: none below 0, but where :func:`number` writes a power of ten."""
    return decimals if decimals < -MOST_ROUNDED else max(decimals, 0)


def _html(cell: Cell, column: str, colors: Mapping[str, str]) -> str:
    note = f' <span class="note">{html.escape(cell.note)}</span>' if cell.note else ""
    kind = f' class="{cell.kind}"' if cell.kind else ""
    label = f' data-label="{html.escape(column)}"' if cell.text else ""
    if cell.arm:
        mark = f'<i class="mark" style="background:{colors[cell.arm]}"></i>' if cell.arm in colors else ""
        return f'<th scope="row">{mark}{html.escape(cell.text)}{note}</th>'
    return f"<td{kind}{label}>{html.escape(cell.text)}{note}</td>"
