"""How the report's figures look: one colour per arm in all of them, told apart by the colour-blind."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from structured_init.util.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, RULE = "#20262d", "#68717c", "#dfe3e8"
BASELINE = "#848d98"
# Okabe and Ito 2008, darkened until they can be read as text.
COLORS = (
    *("#0a6cb3", "#cc5500", "#078a66", "#ad4f8a", "#a87500"),
    *("#2596be", "#7d4a2c", "#5949b8", "#b8304a", "#66802b"),
)
DASHES: tuple[str | tuple, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)))
FONT = 8.0
DPI = 200
LONGEST = 100  # bytes of a name: file systems allow 255, of which a temporary file and its suffix take some
SETTINGS = {
    **{"font.size": FONT, "axes.titlesize": FONT + 0.5, "axes.labelsize": FONT, "svg.fonttype": "none"},
    **{"xtick.labelsize": FONT - 0.5, "ytick.labelsize": FONT - 0.5, "svg.hashsalt": "structured-init"},
    **{"text.color": INK, "axes.labelcolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT},
    **{"axes.edgecolor": RULE, "grid.color": RULE, "grid.linewidth": 0.6, "lines.solid_capstyle": "round"},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True},
    **{"xtick.major.size": 0, "ytick.major.size": 0, "axes.formatter.use_mathtext": False},
    **{"axes.titlelocation": "left", "axes.titlecolor": INK, "legend.frameon": False},
    "text.parse_math": False,  # an arm may be called anything
}


@dataclass(frozen=True)
class Style:
    """How an arm is drawn."""

    paper: str  # its colour
    dash: str | tuple  # of its lines; arms beyond the tenth beside the baseline share colours


def styles(arms: Sequence[str], baseline: str) -> dict[str, Style]:
    """Return the style of every arm: the baseline is grey."""
    found = {baseline: Style(BASELINE, DASHES[0])}
    for place, arm in enumerate(arm for arm in arms if arm != baseline):
        turn = min(place // len(COLORS), len(DASHES) - 1)
        found[arm] = Style(COLORS[place % len(COLORS)], DASHES[turn])
    return found


@contextmanager
def figure_settings() -> Iterator[None]:
    """Set matplotlib for one figure: text stays text, and nothing depends on the user's settings."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of letters that the font does not have
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=DPI)


@dataclass(frozen=True)
class Drawing:
    """A figure, or the PNG file of one, and what it shows, in a line.

    The name is that of its files, and unlike any other on the page; see :func:`slug`.
    """

    figure: Figure | Path = field(repr=False)
    name: str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", slug(self.name))

    @cached_property
    def png(self) -> bytes:
        """The figure as a PNG on white."""
        if isinstance(self.figure, Path):
            return self.figure.read_bytes()
        buffer = io.BytesIO()
        with figure_settings():
            self.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
        return buffer.getvalue()

    @property
    def address(self) -> str:
        """The PNG as an address that a page needs no file for."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"

    def write(self, folder: Path) -> list[Path]:
        """Write the figure for a paper, as PNG and, if it was drawn here, as SVG; return the files."""
        files = [folder / f"{self.name}.png"]
        with replacing(files[0]) as temporary:
            temporary.write_bytes(self.png)
        if not isinstance(self.figure, Path):
            files.append(folder / f"{self.name}.svg")
            with figure_settings(), replacing(files[1]) as temporary:
                self.figure.savefig(temporary, format="svg", facecolor="white", metadata={"Date": None})
        return files


def slug(text: str) -> str:
    """Return a name for files: letters, digits and ``._-``, at most 100 bytes.

    A text that is such a name stays as it is; what is made of any other ends in a digest, so that names stay distinct.
    """
    kept = re.sub(r"[^\w.-]", "_", text).encode()
    if kept == text.encode(errors="replace") and len(kept) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{kept[: LONGEST - 9].decode(errors='ignore')}_{digest}"
