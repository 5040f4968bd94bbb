"""Attention of one text, with its tokens along the axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from torch import Tensor

from callbacks.figures.style import (
    SEQUENTIAL,
    Labelled,
    colour_bar_ends,
    evenly,
    new_figure,
    quantile,
    read_layers,
    styled,
    thinned,
)
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TOKENS, MOST_LAYERS, MOST_HEADS = 24, 3, 2
LONGEST = 14  # characters of a token that are written
# Byte-level BPE and SentencePiece spell blanks as Ġ, Ċ and ▁.
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "Ġ": "␣", "Ċ": "⏎", "▁": "␣"})
LETTER = 0.105  # inches from one token to the next, in which their names can be read
Tokens = Sequence[str | int] | Tensor


@styled
def token_figure(maps: Labelled, tokens: Tokens) -> Figure:
    """Draw the attention among the first 24 tokens of a text: three layers down, moments and two heads across.

    Args:
        maps: label → layer → maps of one sample (heads, tokens, tokens); labels have the same layers.
        tokens: a string or an id (N,) per token, as ``ids[0]`` is; maps may be longer, by padding.

    Raises:
        StructuredInitError: more tokens than a map has; maps of cross-attention, which are not square.
    """
    from matplotlib.colors import PowerNorm

    given = read_layers("token_figure", "maps of one sample (heads, tokens, tokens), as maps[0] is", maps)
    layers = thinned({name: name for name in next(iter(given.values()))}, MOST_LAYERS)
    counts = []
    for of_label in given.values():
        for name in layers.values():
            count, queries, keys = of_label[name].shape
            counts.append(count)
            if queries != keys or keys < len(tokens):
                raise StructuredInitError(
                    f"token_figure: '{name}' has maps of {queries} queries and {keys} keys, which are not the"
                    f" {len(tokens)} tokens given"
                )
    heads = evenly(min(counts), MOST_HEADS)
    words = [readable(token) for token in tokens[:MOST_TOKENS]]
    columns = list(product(given, heads))
    side = max(1.9, LETTER * len(words))
    figure = new_figure(side * len(columns) + 1.6, side * len(layers) + 1.5)
    axes = figure.subplots(len(layers), len(columns), squeeze=False)
    norm, corners, images = PowerNorm(0.5, vmin=0, vmax=1), [], []
    for row, (caption, name) in enumerate(layers.items()):
        axes[row, 0].set_ylabel(f"layer {caption}")
        for column, (label, head) in enumerate(columns):
            corners.append(given[label][name][head, : len(words), : len(words)].float())
            images.append(axes[row, column].imshow(corners[-1].numpy(), cmap=SEQUENTIAL, norm=norm))
            _name_tokens(axes[row, column], words if column == 0 else [], words if row == len(layers) - 1 else [])
    for axis, (label, head) in zip(axes[0], columns, strict=True):
        number = f"head {head}" if max(counts) > 1 else ""
        axis.set_title(f"{label}\n{number}" if head == heads[0] else number)
    norm.vmax = max(quantile(corners, 0.995), 1e-6)
    drawn = f"the first {len(words)} of {len(tokens)} tokens, {len(heads)} of {max(counts)} heads"
    drawn += f", {len(layers)} of {len(next(iter(given.values())))} layers"
    figure.suptitle(f"Attention of one text: a row is the attending token, a column the attended one\n{drawn}")
    figure.colorbar(images[0], ax=axes, shrink=0.5, aspect=30, fraction=0.05, extend=colour_bar_ends(images))
    return figure


def readable(token: str | int | Tensor) -> str:
    """Return a token as an axis shows it: blanks spelled out, a long one cut in its middle; of an id, its number."""
    text = repr(f"{token}".translate(VISIBLE))[1:-1]  # with an escape for what cannot be printed
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}…{text[1 - LONGEST // 2 :]}"
    return text.replace("$", r"\$")


def _name_tokens(axis: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    axis.set_yticks(range(len(rows)), rows, fontsize=5.5)
    axis.set_xticks(range(len(columns)), columns, fontsize=5.5, rotation=90)
    axis.tick_params(length=0, pad=1.5)
    axis.spines[:].set_visible(False)
