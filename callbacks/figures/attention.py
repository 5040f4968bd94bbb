"""Attention in pictures: maps and offset profiles, statistics over depth, texts with their tokens, circuits.

Maps come as label → layer name → tensor with heads first, so that ``{"before": …, "after": …}`` stand side by side on
one colour scale.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from torch import Tensor

from callbacks.figures.mosaic import (
    FAINT,
    INK,
    SEQUENTIAL,
    Mosaic,
    evenly,
    every_layer,
    head_captions,
    mosaic_figure,
    name_layers,
    plain_curves,
    quantile,
    thinned,
    wrapped,
)
from structured_init.analysis.summary import STATISTICS
from structured_init.arguments import check_whole
from structured_init.errors import StructuredInitError, nearest, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

TICKS = (0.8, 0.5, 0.3, 0.15, 0.05, 0.02, 0.008, 0.003, 0.001)
Labelled = Mapping[str, Mapping[str, Tensor]]
Given = ParamSpec("Given")
# Arguments that are at least one.
COUNTS = ("max_layers", "max_heads", "max_filters", "side", "reach", "columns", "shown")


def labelled(
    what: str, kind: type = Tensor, axes: int | None = 3, levels: Sequence[str] = ("label", "layer"), of: str = ""
) -> Callable[[Callable[Given, Figure]], Callable[Given, Figure]]:
    """Give a drawing its argument ``of``, else the first, with names as text; say in one line where it is another.

    It is ``what``, said in words, by ``levels`` of names; ``kind`` is its class, ``axes`` are how many a tensor has.
    """
    takes = f"{of} ".lstrip() + "".join(f"{{{level}: " for level in levels) + what + "}" * len(levels)

    def decorate(draw: Callable[Given, Figure]) -> Callable[Given, Figure]:
        signature = inspect.signature(draw)
        asked = of or next(iter(signature.parameters))

        def checked(given: Any, below: Sequence[str], name: str | None = None) -> Any:
            if below and isinstance(given, Mapping):
                if not given and (name is None or kind in (Tensor, Mapping)):
                    lacks = f"it was given no {below[0]}" if name is None else f"'{name}' has no {below[0]}s"
                    raise StructuredInitError(f"{draw.__name__} has nothing to draw: {lacks}")
                return {str(key): checked(value, below[1:], str(key)) for key, value in given.items()}
            if not below and isinstance(given, kind) and (axes is None or given.ndim == axes):
                return given.detach().cpu() if isinstance(given, Tensor) else given
            got = str(tuple(given.shape)) if isinstance(given, Tensor) and not below else shown(given)
            if below and name is not None:
                got = f"{{'{name}': {type(given).__name__}}}"
            raise StructuredInitError(f"{draw.__name__} takes {takes}, got {got}")

        @functools.wraps(draw)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Figure:
            bound = signature.bind(*args, **kwargs)
            named = bound.arguments
            named[asked] = checked(named[asked], levels)
            check_whole(draw.__name__, **{name: named[name] for name in COUNTS if name in named})
            return draw(*bound.args, **bound.kwargs)

        return call

    return decorate


SHOWN = ("mean_distance", "normalised_entropy", "diagonal_mass", "impulse_mass", "effective_rank", "profile_energy")
COLORS = ("#8a94a6", "#d1495b", "#00798c", "#edae49", "#30638e", "#7b4f9d")
LONGEST = 14  # characters of a token that are written
# Byte-level BPE and SentencePiece spell blanks as Ġ, Ċ and ▁.
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "Ġ": "␣", "Ċ": "⏎", "▁": "␣"})
STRIP = 5  # pixels of a sequence's profile, which has one row, downwards
FEW = 8  # points of a curve that are marked
Curve = Sequence[tuple[float, float]]  # (step, value)


@labelled("maps averaged over samples (heads, tokens, tokens), as maps.mean(0) is")
def map_figure(maps: Labelled, max_layers: int = 12, max_heads: int = 12) -> Figure:
    """Draw whole attention maps: label → layer → maps averaged over samples (heads, tokens, tokens).

    More than ``max_layers`` layers and ``max_heads`` heads are thinned out evenly. A map smaller than others is
    enlarged by a whole number, and blank beyond.
    """
    return _figure(maps, "Attention maps: a row is a query, a column a key", max_layers, max_heads)


@labelled("maps averaged over samples (heads, tokens, tokens), as maps.mean(0) is")
def zoom_figure(
    maps: Labelled, columns: int, prefix_tokens: int = 0, side: int = 48, max_layers: int = 3, max_heads: int = 6
) -> Figure:
    """Draw the upper left corner of the maps of the first, middle and last layers.

    Args:
        maps: label → layer → maps averaged over samples (heads, tokens, tokens).
        columns: patches in a row of the image; lines separate its rows.
        prefix_tokens: class and register tokens, which are left out.
        side: how many patches are shown.
        max_layers: number of layers.
        max_heads: number of heads.
    """
    check_whole("zoom_figure", least=0, prefix_tokens=prefix_tokens)
    for tokens in {layer.shape[-1] for layers in maps.values() for layer in layers.values()}:
        if (patches := tokens - prefix_tokens) < 1 or patches % columns:
            given = f"{columns} patches after {prefix_tokens} prefix tokens"
            raise StructuredInitError(f"zoom_figure: maps of {tokens} tokens have no rows of {given}")
    end = prefix_tokens + side
    corner = {
        label: {name: layer[:, prefix_tokens:end, prefix_tokens:end] for name, layer in layers.items()}
        for label, layers in maps.items()
    }
    shown = max(layer.shape[-1] for layers in corner.values() for layer in layers.values())
    title = f"Attention among the first {shown} patches: lines separate image rows, frames mark a row with itself"
    return _figure(corner, title, max_layers, max_heads, grid=columns, panel_inches=1.9)


@labelled("offset profiles (heads, rows, columns)")
def profile_figure(profiles: Labelled, reach: int = 7, max_layers: int = 12, max_heads: int = 12) -> Figure:
    """Draw the average attention at every offset, a dot where it is the query's own; a sequence's is a strip.

    Profiles are label → layer → (heads, 2·rows − 1, 2·columns − 1), shown up to a ``reach`` in patches or tokens. More
    than ``max_layers`` layers and ``max_heads`` heads are thinned out evenly.
    """
    sizes = np.array([profile.shape[1:] for layers in profiles.values() for profile in layers.values()])
    down, across = np.minimum(reach, (sizes.min(axis=0) - 1) // 2)
    strips = sizes[:, 0].max() == 1
    centred: dict[str, dict[str, Tensor]] = {label: {} for label in profiles}
    for label, name, profile in ((label, *each) for label, layers in profiles.items() for each in layers.items()):
        y, x = profile.shape[1] // 2, profile.shape[2] // 2
        panels = profile[:, y - down : y + down + 1, x - across : x + across + 1]
        centred[label][name] = panels.expand(-1, STRIP, -1) if strips else panels
    up_to = f"±{max(down, across)} {'tokens' if strips else 'patches'}"
    title = f"Average attention by offset, up to {up_to}: a dot marks the query"
    figure = _figure(centred, title, max_layers, max_heads)
    for axis in figure.axes[: len(profiles)]:
        queries = np.meshgrid(axis.get_xticks(), axis.get_yticks())
        axis.plot(*queries, "o", color="white", markersize=2.2, markeredgecolor=INK, markeredgewidth=0.3)
    return figure


def _figure(
    maps: Labelled, title: str, max_layers: int, max_heads: int, grid: int | None = None, panel_inches: float = 1.2
) -> Figure:
    from matplotlib.colors import PowerNorm

    mosaics = []
    for label, layers in maps.items():
        layers = thinned(layers, max_layers)
        heads = evenly(max(len(layer) for layer in layers.values()), max_heads)
        kept = {name: layer[[head for head in heads if head < len(layer)]] for name, layer in layers.items()}
        mosaics.append(Mosaic(label, kept, head_captions(heads), grid))
    top = max(quantile([layer for m in mosaics for layer in m.panels.values()], 0.999), 1e-6)
    # The square root keeps weak structure visible beside sharp peaks, on one scale for all panels.
    norm = PowerNorm(0.5, vmin=0, vmax=top)
    # Those of the range that lie far enough apart and from zero under the square root.
    ticks = [0.0, *[tick for tick in TICKS if top / 100 < tick <= top]]
    ticks += [top] if top > 1.5 * max(ticks) else []
    return mosaic_figure(mosaics, title, [norm] * len(mosaics), SEQUENTIAL, ["attention"], panel_inches, ticks)


@labelled("statistics, as summarize(maps) gives them", Mapping, None)
def depth_figure(
    phases: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], statistics: Sequence[str] = SHOWN
) -> Figure:
    """Draw statistics over depth: a line through the mean of the heads, a dot per head.

    Args:
        phases: label → layer → statistic → values over heads, as ``structured_init.analysis.summarize`` gives them.
        statistics: which ones, by name; a layer that has one not is left out of its picture.
    """
    from matplotlib.figure import Figure

    if isinstance(statistics, str) or not statistics:
        raise StructuredInitError(f"depth_figure: statistics must be a list of names, got {statistics!r}")
    known = {name for layers in phases.values() for of_layer in layers.values() for name in of_layer}
    for name in statistics:
        if name not in known:
            raise StructuredInitError(f"depth_figure: there is no statistic '{name}': {nearest(name, known)}")
    columns = min(3, len(statistics))
    rows = -(-len(statistics) // columns)
    figure = Figure(figsize=(3.3 * columns, 2.3 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    down = [_draw_statistic(axis, phases, statistic) for axis, statistic in zip(axes, statistics, strict=False)]
    figure.set_figheight(2.3 * rows + 0.6 + rows * down[0])
    for axis in axes[len(statistics) :]:
        axis.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.suptitle("Attention over depth: lines are means over heads, dots are heads", fontsize=10, color=INK)
    figure.legend(handles, labels, loc="outside lower center", ncols=_abreast(labels), fontsize=8, frameon=False)
    return figure


def _abreast(labels: Sequence[str], letters: int = 100) -> int:
    """Return how many labels of a legend stand side by side."""
    return max(1, min(len(labels), letters // (max(map(len, labels), default=1) + 6)))


def _draw_statistic(axis: Axes, phases: Mapping, statistic: str) -> float:
    """Draw one statistic, and return the inches that the names of the layers need below; see :func:`name_layers`."""
    names = every_layer(phases)
    for index, (label, layers) in enumerate(phases.items()):
        turn, color = divmod(index, len(COLORS))
        color, dashes = COLORS[color], ("-", "--", ":", "-.")[turn % 4]
        places = [names.index(name) for name in layers if statistic in layers[name]]
        values = [np.asarray(layers[names[place]][statistic], dtype=float) for place in places]
        for place, heads in zip(places, values, strict=True):
            axis.plot([place] * len(heads), heads, ".", color=color, markersize=4, alpha=0.4, markeredgewidth=0)
        (line,) = axis.plot(places, [heads.mean() for heads in values], dashes, color=color, linewidth=1.6, label=label)
        if len(values) == 1:  # of which there is no line
            line.set(marker="D", markersize=5, markerfacecolor="none", clip_on=False)
    axis.set_title(STATISTICS.get(statistic, statistic), fontsize=8.5, color=INK)
    down = name_layers(axis, names)
    axis.set_xlabel("layer", fontsize=7.5, color=FAINT)
    if axis.dataLim.y0 >= 0:
        axis.set_ylim(bottom=0)
    plain_curves(axis)
    return down


@labelled("maps of one sample (heads, tokens, tokens), as maps[0] is")
def token_figure(
    maps: Mapping[str, Mapping[str, Tensor]],
    tokens: Sequence[str | bytes | int] | Tensor,
    first: int = 0,
    shown: int = 24,
    max_layers: int = 3,
    max_heads: int = 2,
    heads: Sequence[int] | None = None,
) -> Figure:
    """Draw the attention among a stretch of tokens: layers down, moments and heads across.

    Args:
        maps: label → layer → maps of one sample (heads, tokens, tokens).
        tokens: a string, bytes or an id (N,) per token, as ``ids[0]`` is; maps may be longer, by padding.
        first: the first token that is shown.
        shown: how many are shown; what they pay to earlier tokens is left out of the picture.
        max_layers: the first, the last and some between.
        max_heads: the first, the last and some between.
        heads: which ones instead, by number.

    Raises:
        StructuredInitError: tokens of several texts, or more than a map has; maps of cross-attention, which are not
            square; labels of other layers; a head that a layer does not have.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    if isinstance(tokens, Tensor) and tokens.ndim != 1:
        raise StructuredInitError(
            f"token_figure takes tokens of one text, as ids[0] is, got shape {tuple(tokens.shape)}"
        )
    if first not in range(len(tokens)):
        raise StructuredInitError(f"token_figure: first={first!r} is none of the {len(tokens)} tokens")
    for label, layers in maps.items():
        if [*layers] != [*(names := next(iter(maps.values())))]:
            raise StructuredInitError(
                f"token_figure: labels have the same layers, got {[*layers]} for '{label}' beside {[*names]}"
            )
        for name, (_, queries, keys) in ((name, layer.shape) for name, layer in layers.items()):
            if queries != keys or keys < len(tokens):
                raise StructuredInitError(
                    f"token_figure: '{name}' has maps of {queries} queries and {keys} keys, which are not the"
                    f" {len(tokens)} tokens given"
                )
    end = min(first + shown, len(tokens))
    words = [readable(token) for token in tokens[first:end]]
    kept = thinned({name: name for name in next(iter(maps.values()))}, max_layers)
    names = [*kept.values()]
    counts = [len(layers[name]) for layers in maps.values() for name in names]
    heads = evenly(min(counts), max_heads) if heads is None else heads
    if not isinstance(heads, Sequence) or not heads or any(head not in range(min(counts)) for head in heads):
        raise StructuredInitError(f"token_figure: heads must be a list of numbers below {min(counts)}, got {heads!r}")
    corners = {
        (label, name, head): layers[name][head, first:end, first:end].float()
        for label, layers in maps.items()
        for name in names
        for head in heads
    }
    norm = PowerNorm(0.5, vmin=0, vmax=max(quantile(list(corners.values()), 0.995), 1e-6))
    columns = [(label, head) for label in maps for head in heads]
    side = max(1.9, 0.105 * len(words))
    drawn = f"tokens {first + 1} to {end} of {len(tokens)}, {len(heads)} of {max(counts)} heads"
    drawn += f", {len(names)} of {len(next(iter(maps.values())))} layers"
    said = "Attention of one text: a row is the attending token, a column the attended one"
    width = side * len(columns) + 1.6
    title = "\n".join(wrapped(line, width, 10) for line in (said, drawn))
    figure = Figure(figsize=(width, side * len(names) + 1.2 + 0.16 * (title.count("\n") + 1)), layout="constrained")
    axes = figure.subplots(len(names), len(columns), squeeze=False)
    for row, (name, layer) in enumerate(zip(names, kept, strict=True)):
        for column, (label, head) in enumerate(columns):
            axis = axes[row, column]
            image = axis.imshow(corners[label, name, head].numpy(), cmap=SEQUENTIAL, norm=norm, interpolation="nearest")
            _name(axis, words if column == 0 else [], words if row == len(names) - 1 else [])
            if row == 0:
                axis.set_title(f"{label}\nhead {head}" if head == heads[0] else f"head {head}", fontsize=8, color=INK)
            if column == 0:
                axis.set_ylabel(wrapped(f"layer {layer}", side, 8), fontsize=8, color=INK)
    extend = "max" if any((corner > norm.vmax).any() for corner in corners.values()) else "neither"
    bar = figure.colorbar(image, ax=axes, shrink=0.5, aspect=30, pad=0.01, extend=extend)
    bar.ax.tick_params(labelsize=6, color=FAINT)
    figure.suptitle(title, fontsize=10)
    for _ in range(2):  # whoever draws it for the first time has room for the names below
        figure.draw_without_rendering()
    return figure


def readable(token: str | bytes | int | Tensor) -> str:
    """Return a token as an axis shows it: blanks spelled out, a long one cut in its middle; of an id, its number."""
    try:
        text = token.decode(errors="replace") if isinstance(token, bytes) else token
        token = text if isinstance(text, str) else str(operator.index(text))
    except TypeError:
        raise StructuredInitError(f"a token is a text, bytes or a number, got {shown(token)}") from None
    signs = ("␣" if each.isspace() else each if each.isprintable() else "�" for each in token.translate(VISIBLE))
    token, half = "".join(signs), LONGEST // 2
    token = token if len(token) <= LONGEST else f"{token[:half]}…{token[1 - half :]}"
    return token.replace("$", r"\$")


def _name(axis: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    axis.set_yticks(range(len(rows)), rows, fontsize=5.5)
    axis.set_xticks(range(len(columns)), columns, fontsize=5.5, rotation=90)
    axis.tick_params(length=0, pad=1.5, labelcolor=INK)
    axis.spines[:].set_visible(False)


@labelled("map of one text (tokens, tokens)", axes=2, levels=("arm", "moment", "head"))
@labelled("[(step, value), …]", object, None, ("quantity", "arm"), of="curves")
def circuit_figure(
    maps: Mapping[str, Mapping[str, Mapping[str, Tensor]]],
    curves: Mapping[str, Mapping[str, Curve]],
    tokens: Sequence[str | bytes | int] | Tensor = (),
    title: str = "",
) -> Figure:
    """Draw one map per head and moment of every arm, and below them each quantity over training with a line per arm.

    In a map a row is the token that looks, a column the one it sees.

    Args:
        maps: arm → moment (such as ``"before"``) → head (such as ``"layer 1, head 0"``) → map (N, N) of one text.
        curves: quantity (such as ``"loss"``) → arm → a list of (step, value).
        tokens: the text, along the axes of the maps; none where empty.
        title: what is seen, in one line.
    """
    from matplotlib.figure import Figure

    for each in (each for moments in maps.values() for of_heads in moments.values() for each in of_heads.values()):
        if len(tokens) and {*each.shape} != {len(tokens)}:
            raise StructuredInitError(
                f"circuit_figure: a map of shape {tuple(each.shape)} is not of the {len(tokens)} tokens given"
            )
    rows = {arm: [*dict.fromkeys(itertools.chain(*moments.values()))] for arm, moments in maps.items()}
    heads = max(map(len, rows.values()))
    columns = sum(len(moments) for moments in maps.values())
    side = max(9.6 / max(columns, 4), 0.105 * len(tokens))  # names of tokens stand beside each other
    figure = Figure(figsize=(max(side * columns, 8.4) + 0.6, side * heads + 3.2), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[side * heads + 0.6, 2.6], hspace=0.02)
    arms = dict.fromkeys([*maps, *(arm for of_arms in curves.values() for arm in of_arms)])
    colors = {arm: COLORS[number % len(COLORS)] for number, arm in enumerate(arms)}
    _draw_maps(above, maps, rows, [readable(token) for token in tokens], colors, side)
    _draw_curves(below, curves, colors)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _draw_maps(
    figure: SubFigure,
    maps: Mapping,
    rows: Mapping[str, Sequence[str]],
    tokens: Sequence[str],
    colors: Mapping[str, str],
    side: float,
) -> None:
    from matplotlib.colors import PowerNorm

    norm = PowerNorm(0.5, vmin=0, vmax=1)
    widths, heads = [len(moments) for moments in maps.values()], max(map(len, rows.values()))
    *parts, beside = figure.subfigures(1, len(maps) + 1, width_ratios=[*widths, 0.07 * sum(widths)], wspace=0.03)
    for part, (arm, moments) in zip(parts, maps.items(), strict=True):
        axes = part.subplots(heads, len(moments), squeeze=False)
        part.suptitle(arm, fontsize=10, color=colors[arm], fontweight="bold")
        for column, (moment, of_heads) in enumerate(moments.items()):
            axes[0, column].set_title(moment, fontsize=8.5, color=INK)
            for row, axis in enumerate(axes[:, column]):
                head = rows[arm][row] if row < len(rows[arm]) else ""
                if head in of_heads:
                    image = axis.imshow(of_heads[head].float().numpy(), cmap=SEQUENTIAL, norm=norm)
                seen = tokens if head in of_heads else []
                _name(axis, seen if column == 0 else [], seen if row == heads - 1 else [])
                if column == 0:
                    axis.set_ylabel(wrapped(head, side, 8.5), fontsize=8.5, color=INK)
    bar = beside.colorbar(image, cax=beside.add_axes((0.1, 0.3, 0.16, 0.45)), ticks=[0, 0.1, 0.5, 1])
    bar.ax.tick_params(labelsize=7, color=FAINT, labelcolor=INK, length=2)
    bar.outline.set_visible(False)
    bar.ax.set_title("attention", fontsize=7.5, color=INK, loc="left")


def _draw_curves(figure: SubFigure, curves: Mapping[str, Mapping[str, Curve]], colors: Mapping[str, str]) -> None:
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axis, (quantity, of_arms) in zip(axes, curves.items(), strict=True):
        for arm, curve in of_arms.items():
            try:
                steps, values = np.array([(step, value) for step, value in curve], dtype=float).reshape(-1, 2).T
            except (TypeError, ValueError):
                takes = "circuit_figure takes curves {quantity: {arm: [(step, value), …]}}"
                raise StructuredInitError(f"{takes}, got {shown(curve)} for '{arm}' of '{quantity}'") from None
            marker = "o" if len(steps) <= FEW else None
            axis.plot(steps, values, color=colors[arm], linewidth=1.8, marker=marker, markersize=2.6, label=arm)
        axis.set_title(quantity, fontsize=9, color=INK, loc="left")
        axis.set_xlabel("steps", fontsize=7.5, color=FAINT)
        axis.set_xlim(left=0)
        axis.locator_params("x", integer=True, min_n_ticks=1)
        if axis.dataLim.y0 >= 0:
            axis.set_ylim(bottom=0)
        plain_curves(axis)
    handles = {line.get_label(): line for axis in axes for line in axis.lines}  # an arm may lack some quantities
    columns = _abreast([*handles])
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=8.5, frameon=False)
