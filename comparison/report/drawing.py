"""A figure of a report: for the page as SVG, and for a paper in files of its own."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from comparison.report import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 100  # bytes of a name: file systems allow 255, of which a temporary file and its suffix take some


@dataclass(frozen=True)
class Drawing:
    """A figure with its name.

    Attributes:
        figure: drawn in the colours of paper.
        name: of its files, and unlike any other on the page; see :func:`slug`.
        text: what it shows, in a line.
        save: whether it is written for a paper too.
    """

    figure: Figure = field(repr=False)
    name: str
    text: str
    save: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", slug(self.name))

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG element for a page."""
        return theme.inline(self._settled, self.name, self.text)

    def write(self, folder: Path) -> list[Path]:
        """Write the figure for a paper, as SVG and as PNG, and return the files."""
        return theme.save(self._settled, folder, self.name)

    @cached_property
    def _settled(self) -> Figure:
        """The figure with everything in its place: it is placed once, whatever is written of it."""
        theme.settle(self.figure)
        return self.figure


def slug(text: str) -> str:
    """Return a name for files and for ids on the page: letters, digits and ``._-``, at most 100 bytes.

    A text that is such a name stays as it is; what is made of any other ends in a digest, so that names stay distinct.
    """
    kept = re.sub(r"[^\w.-]", "_", text).encode()
    if kept == text.encode(errors="replace") and len(kept) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{kept[: LONGEST - 9].decode(errors='ignore')}_{digest}"


def plot_share(drawing: Drawing) -> float | None:
    """Return which share of a figure's width lies left of the end of its one plot; None where it has several.

    What stands right of it are the names of the lines, which a narrow page has in a legend of its own.
    """
    assert drawing.svg  # places everything
    axes = drawing.figure.axes
    return round(float(axes[0].get_position().x1) + 0.028, 4) if len(axes) == 1 else None


def short(names: list[str]) -> list[str]:
    """Return the parts of dotted names that differ: ``blocks.0.attn``, ``blocks.1.attn`` → ``0``, ``1``."""
    parts = [name.split(".") for name in names]
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return list(names)
    differing = [place for place, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    return [".".join(part[place] for place in differing) for part in parts]
