"""What all pictures share: a style, names and choices of layers and heads, and a file that is whole or not there."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from structured_init.util.errors import StructuredInitError, shown
from structured_init.util.files import replacing
from structured_init.util.names import by_depth, short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Given = ParamSpec("Given")
Layer = TypeVar("Layer")
Labelled = Mapping[str, Mapping[str, Tensor]]  # label → layer → tensor

INK, FAINT, PALE = "#222222", "#6f6f6f", "#c8c8c8"
COLORS = ("#8a94a6", "#d1495b", "#00798c", "#edae49", "#30638e", "#7b4f9d")
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"
WIDEST = 15.0  # inches
STYLE = {
    "font.size": 8,
    "figure.titlesize": 10,
    "axes.titlesize": 8.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#eeeeee",
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
}


def styled(draw: Callable[Given, Figure]) -> Callable[Given, Figure]:
    """Let a function draw in the style of all pictures; matplotlib is imported when it is first called."""

    @functools.wraps(draw)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Figure:
        from cycler import cycler
        from matplotlib import rc_context

        # Beyond six lines the colours come again, with other dashes.
        lines = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=COLORS)
        with rc_context({**STYLE, "axes.prop_cycle": lines}):
            return draw(*args, **kwargs)

    return call


def new_figure(width: float, height: float, layout: str = "constrained") -> Figure:
    """Return an empty figure of a size in inches, as wide as a title needs and no wider than a page shows."""
    from matplotlib.figure import Figure

    return Figure(figsize=(min(max(width, 6.4), WIDEST), height), layout=layout)


def save_figure(figure: Figure, path: str | PathLike[str], dpi: int = 170) -> None:
    """Write a figure as PNG without the blank around it; a name for another format is refused."""
    if Path(path).suffix not in ("", ".png"):
        raise StructuredInitError(f"save_figure writes PNG: name the file '{Path(path).with_suffix('.png').name}'")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format="png", facecolor="white", bbox_inches="tight")


def is_stack(value: Any) -> bool:
    """Tell whether a value is a tensor of three axes, such as the maps of all heads."""
    return isinstance(value, Tensor) and value.ndim == 3


def read_layers(
    who: str, what: str, given: Any, is_right: Callable[[Any], bool] = is_stack
) -> dict[str, dict[str, Any]]:
    """Return label → layer → value with names as text and tensors on the CPU; ``who`` says ``what`` a value must be.

    Raises:
        StructuredInitError: another nesting, a value that is not right, or nothing to draw.
    """
    takes = f"{who} takes {{label: {{layer: {what}}}}}"
    found: dict[str, dict[str, Any]] = {}
    for label, layers in given.items():
        if not isinstance(layers, Mapping):
            raise StructuredInitError(f"{takes}, got {{'{label}': {type(layers).__name__}}}")
        found[str(label)] = {}
        for name, value in layers.items():
            if not is_right(value):
                got = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
                raise StructuredInitError(f"{takes}, got {got}")
            found[str(label)][str(name)] = value.detach().cpu() if isinstance(value, Tensor) else value
    if not found or not all(found.values()):
        raise StructuredInitError(
            f"{who} has nothing to draw: {{label: {{layer: …}}}} needs a label, and layers of each"
        )
    return found


def evenly(count: int, limit: int) -> list[int]:
    """Return at most ``limit`` indices out of ``count``, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, limit))})


def some(items: Sequence[Layer], limit: int) -> list[Layer]:
    """Return at most ``limit`` items, the first and the last among them."""
    return [items[place] for place in evenly(len(items), limit)]


def thinned(layers: Mapping[str, Layer], limit: int) -> dict[str, Layer]:
    """Return at most ``limit`` layers, the first and the last among them, by what tells their names from all names."""
    named = list(zip(short_names([*layers]), layers.values(), strict=True))
    return dict(some(named, limit))


def every_layer(labels: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return the names of the layers of all labels, each once, in order."""
    return by_depth(chain.from_iterable(labels.values()))


def every_value(labels: Mapping[str, Mapping[str, Layer]]) -> list[Layer]:
    """Return what there is of all layers of all labels, in order."""
    return list(chain.from_iterable(layers.values() for layers in labels.values()))


def name_layers(axis: Axes, names: Sequence[str], most: int = 16) -> None:
    """Write what tells layers apart along an axis, at most ``most`` of them, and turned where a name is long."""
    captions = short_names(names)
    every = math.ceil(len(names) / most)
    turned = max(map(len, captions)) > 3
    axis.set_xticks(range(0, len(names), every), captions[::every], rotation=90 if turned else 0)


def quantile(tensors: Sequence[Tensor], share: float) -> float:
    """Return a quantile of all values but nan, or 0; torch's own refuses more than 2²⁴ of them."""
    values = torch.cat([tensor[~tensor.isnan()] for tensor in tensors])
    if not len(values):
        return 0.0
    return values.kthvalue(max(1, round(share * values.numel()))).values.item()


def colour_bar_ends(images: Sequence[AxesImage]) -> str:
    """Return at which ends of the colour bar of some images values lie beyond it, in matplotlib's words."""
    norm, values = images[0].norm, np.ma.concatenate([image.get_array().ravel() for image in images])
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return ends[bool(values.min() < norm.vmin), bool(values.max() > norm.vmax)]
