"""Attention of one text, with its tokens along both axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from callbacks.figures.mosaic import FAINT, INK, SEQUENTIAL, evenly, quantile, short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST = 14  # characters of a token that are written
VISIBLE = {
    " ": "␣",
    "\n": "⏎",
    "\t": "⇥",
    "Ġ": "␣",
    "Ċ": "⏎",
    "▁": "␣",
}  # byte-level BPE and SentencePiece spell blanks so


def token_figure(
    maps: Mapping[str, Mapping[str, Tensor]],
    tokens: Sequence[str],
    first: int = 0,
    shown: int = 24,
    max_layers: int = 3,
    max_heads: int = 2,
) -> Figure:
    """Draw the attention among a stretch of tokens: layers down, moments and heads across.

    Args:
        maps: label → layer → maps of one sample (heads, tokens, tokens).
        tokens: one string per token; maps may be longer, by padding.
        first: the first token that is shown.
        shown: how many are shown; what they pay to earlier tokens is left out of the picture.
        max_layers: the first, the last and some between.
        max_heads: the first, the last and some between.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    end = min(first + shown, len(tokens))
    words = [visible(token) for token in tokens[first:end]]
    names = list(next(iter(maps.values())))
    names = [names[i] for i in evenly(len(names), max_layers)]
    heads = evenly(min(len(layers[name]) for layers in maps.values() for name in names), max_heads)
    corners = {
        (label, name, head): layers[name][head, first:end, first:end].detach().float().cpu()
        for label, layers in maps.items()
        for name in names
        for head in heads
    }
    norm = PowerNorm(0.5, vmin=0, vmax=max(quantile(list(corners.values()), 0.995), 1e-6))
    columns = [(label, head) for label in maps for head in heads]
    side = max(1.9, 0.105 * len(words))
    figure = Figure(figsize=(side * len(columns) + 1.6, side * len(names) + 1.5), layout="constrained")
    axes = figure.subplots(len(names), len(columns), squeeze=False)
    for row, (name, layer) in enumerate(zip(names, short_names(names), strict=True)):
        for column, (label, head) in enumerate(columns):
            axis = axes[row, column]
            image = axis.imshow(corners[label, name, head].numpy(), cmap=SEQUENTIAL, norm=norm, interpolation="nearest")
            _name(axis, words if column == 0 else [], words if row == len(names) - 1 else [])
            if row == 0:
                axis.set_title(f"{label}\nhead {head}" if head == heads[0] else f"head {head}", fontsize=8, color=INK)
            if column == 0:
                axis.set_ylabel(f"layer {layer}", fontsize=8, color=INK)
    figure.colorbar(image, ax=axes, shrink=0.5, aspect=30, pad=0.01).ax.tick_params(labelsize=6, color=FAINT)
    layers = next(iter(maps.values()))
    of_heads, of_layers = max(len(each) for each in layers.values()), len(layers)
    drawn = f"tokens {first + 1} to {end} of {len(tokens)}, {len(heads)} of {of_heads} heads"
    drawn += f", {len(names)} of {of_layers} layers"
    said = "Attention of one text: a row is the attending token, a column the attended one"
    figure.suptitle(f"{said}\n{drawn}", fontsize=10)
    return figure


def visible(token: str) -> str:
    """Return a token as it can be read on an axis: blanks spelled out, a long one cut."""
    for blank, sign in VISIBLE.items():
        token = token.replace(blank, sign)
    token = "".join("␣" if each.isspace() else each if each.isprintable() else "�" for each in token).replace(
        "$", r"\$"
    )
    return token if len(token) <= LONGEST else token[: LONGEST - 1] + "…"


def _name(axis: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    size = 5.5
    axis.set_yticks(range(len(rows)), rows, fontsize=size)
    axis.set_xticks(range(len(columns)), columns, fontsize=size, rotation=90)
    axis.tick_params(length=0, pad=1.5, labelcolor=INK)
    axis.spines[:].set_visible(False)
