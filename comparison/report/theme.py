"""How the report's figures look: one colour per arm in all of them, told apart by the colour-blind, in dark and light.

A figure is drawn once, in the colours of paper. On the page its colours become CSS variables, and its text stays text:
what stands between dollar signs is a formula only where ``parse_math=True`` is given with it.
"""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from structured_init.util.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# On paper, on a light page and on a dark one. None of the colours on paper occurs twice: they are replaced by name.
INK, FAINT, RULE = "#20262d", "#68717c", "#dfe3e8"
BASELINE = ("#848d98", "#97a1ad")
# Okabe and Ito 2008, darkened on white and lightened on black until they can be read as text.
COLORS = (
    ("#0a6cb3", "#5cb3f2"),
    ("#cc5500", "#f5935a"),
    ("#078a66", "#3cc79b"),
    ("#ad4f8a", "#e696c5"),
    ("#a87500", "#e0b04a"),
    ("#2596be", "#8adcf5"),
    ("#7d4a2c", "#cfa283"),
    ("#5949b8", "#aca2fa"),
    ("#b8304a", "#ff9aa9"),
    ("#66802b", "#b9d66b"),
)
DASHES: tuple[str | tuple, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)))
FONT = 8.0
FAMILIES = (  # the first has the letters of Europe; of the others one is installed on most machines that show more
    *("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC"),
    *("Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Noto Sans"),
)
LINE = 9.5  # points between the names of arms beside the lines, at least
LABEL = 0.135  # inches that the name of an arm takes there
DPI = 200  # of what is written: text is a few percent wider or narrower at another
LONGEST = 100  # bytes of a name: file systems allow 255, of which a temporary file and its suffix take some


@dataclass(frozen=True)
class Style:
    """How an arm is drawn."""

    variable: str  # its colour on the page, a CSS variable
    paper: str  # its colour on paper and on a light page
    dark: str  # its colour on a dark page
    dash: str | tuple  # of its lines; arms beyond the tenth beside the baseline share colours


def styles(arms: Sequence[str], baseline: str) -> dict[str, Style]:
    """Return the style of every arm: the baseline is grey."""
    others = [arm for arm in arms if arm != baseline]
    found = {baseline: Style("var(--arm-0)", *BASELINE, DASHES[0])}
    for place, arm in enumerate(others):
        turn = min(place // len(COLORS), len(DASHES) - 1)
        number = place % len(COLORS)
        found[arm] = Style(f"var(--arm-{number + 1})", *COLORS[number], DASHES[turn])
    return found


def families() -> list[str]:
    """Return the fonts that figures take letters from, in this order, of those that are installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in FAMILIES if name in installed]


@contextmanager
def figure_settings() -> Iterator[None]:
    """Set matplotlib for one figure: text stays text, and nothing depends on the user's settings."""
    import matplotlib

    settings = {
        **{"font.size": FONT, "axes.titlesize": FONT + 0.5, "axes.labelsize": FONT, "svg.fonttype": "none"},
        **{"xtick.labelsize": FONT - 0.5, "ytick.labelsize": FONT - 0.5, "svg.hashsalt": "structured-init"},
        **{"text.color": INK, "axes.labelcolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT},
        **{"axes.edgecolor": RULE, "grid.color": RULE, "grid.linewidth": 0.6, "lines.solid_capstyle": "round"},
        **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True},
        **{"xtick.major.size": 0, "ytick.major.size": 0, "axes.formatter.use_mathtext": False},
        **{"axes.titlelocation": "left", "axes.titlecolor": INK, "axes.unicode_minus": True},
        **{"text.parse_math": False, "font.family": families()},  # an arm may be called anything
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of letters that no font has here
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


def new_figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout, dpi=DPI)


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Move labels apart until they stand at least a distance from each other, keeping their order.

    They move as little as they can (least squares): what they have over equal distances rises, by isotonic regression.
    """
    from scipy.optimize import isotonic_regression

    order, apart = np.argsort(places, kind="stable"), distance * np.arange(len(places))
    moved = np.empty(len(places))
    moved[order] = isotonic_regression(np.asarray(places, dtype=float)[order] - apart).x + apart
    return moved.tolist()


def inline(figure: Figure, name: str, description: str) -> str:
    """Return a figure as an SVG element for a page: colours as CSS variables, text as text, names of its own."""
    buffer = io.StringIO()
    with figure_settings():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    arms = {pair[0]: f"var(--arm-{number})" for number, pair in enumerate([BASELINE, *COLORS])}
    colors = {INK: "var(--ink)", FAINT: "var(--faint)", RULE: "var(--rule)", **arms}
    replaced = {**dict.fromkeys((' id="', "url(#", 'href="#')), **colors}
    known = re.compile("|".join(map(re.escape, replaced)))
    put = lambda found: replaced[found[0]] or f"{found[0]}{name}-"  # noqa: E731
    text = re.sub(r"<[^>]*>", lambda tag: known.sub(put, tag[0]), text)  # never what a label says
    label = html.escape(description, quote=True)
    opening = f'<svg role="img" aria-label="{label}"'
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(width|height|version|id|xmlns)="[^"]*"', "", head.replace("<svg", opening, 1))
    return re.sub(r"\n\s*", "\n", f"{head}>{rest}").strip()


def label_ends(
    axis: Axes,
    ends: Mapping[str, float],
    styles: Mapping[str, Style],
    texts: Mapping[str, str] | None = None,
    threads: bool = True,
) -> None:
    """Write each arm's name at the right end of its line, moved apart where they would touch, with a thread to the end.

    adjustText is no help here: it pushes the labels of scattered points apart in two dimensions, in small steps until
    they no longer overlap. These labels stand in one column in the order of their lines, where :func:`spread` gives
    the nearest places that do not touch at once.
    """
    axis.figure.canvas.draw()  # the layout is known only now, and the labels' distance with it
    low, high = axis.get_ylim()
    tall = axis.figure.get_size_inches()[1] * 72 * axis.get_position().height
    # What has no end stands lowest, and what ends outside of the axis at its edge.
    wanted = [min(max((end - low) / (high - low), 0.0), 1.0) if math.isfinite(end) else 0.0 for end in ends.values()]
    places = spread(wanted, LINE / tall)
    over = max([0.0, *(place - 1 for place in places)])
    for arm, end, place in zip(ends, wanted, places, strict=True):
        color = styles[arm].paper
        label = {"color": color, "va": "center", "fontweight": "bold", "annotation_clip": False}
        axis.annotate((texts or {}).get(arm, arm), (1.035, place - over), xycoords="axes fraction", **label)
        if not threads or not math.isfinite(ends[arm]):
            continue
        thread = {"transform": axis.transAxes, "clip_on": False, "linewidth": 0.6, "alpha": 0.7}
        axis.plot([1.004, 1.03], [end, place - over], color=color, **thread)


@dataclass(frozen=True)
class Drawing:
    """A figure in the colours of paper, and what it shows, in a line; ``save`` writes it for a paper too.

    The name is that of its files, and unlike any other on the page; see :func:`slug`.
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
        return inline(self._settled, self.name, self.text)

    def write(self, folder: Path) -> list[Path]:
        """Write the figure for a paper, as SVG and as PNG on white, each when it is complete, and return the files."""
        files = {kind: folder / f"{self.name}.{kind}" for kind in ("svg", "png")}
        for kind, file in files.items():
            with figure_settings(), replacing(file) as temporary:
                metadata = {"Date": None} if kind == "svg" else None
                self._settled.savefig(temporary, format=kind, dpi=DPI, facecolor="white", metadata=metadata)
        return list(files.values())

    @cached_property
    def _settled(self) -> Figure:
        """The figure, placed once: every writing would do it again, which takes longer than the drawing."""
        with figure_settings():
            self.figure.draw_without_rendering()
            self.figure.set_layout_engine("none")
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
