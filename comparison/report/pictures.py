"""Maps as small pictures: inside the page for every arm, layer and head, to choose from; on paper a row per arm."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from comparison.report.data import MOMENTS, Place, ReportData
from comparison.report.registry import Html, render, script_json
from comparison.report.theme import FAINT, Drawing, Style, figure_settings, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST_SIDE = 128  # pixels; larger maps are averaged down
BUDGET = 2_000_000  # characters of one picker's pictures, nearly
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"
GAP = 0.08  # on paper: between pictures, of a picture's side
BETWEEN = 0.35  # between before and after, of a picture's side
MOST_LAYERS = 6
MOST_PIXELS = 144  # that the side of a picture has

Maps = Mapping[Place, Mapping[str, Tensor]]  # of an arm and a moment → layer → (heads, side, side)
Transform = Callable[[Tensor], Tensor]  # to the ends 0 and 1 of a colour scale
Ticks = list[tuple[float, str]]  # of a colour bar, (place in [0, 1], text)


@dataclass(frozen=True)
class Picker:
    """Pictures to choose from."""

    name: str  # of the picker on the page
    layers: list[str]  # names of the layers
    heads: list[str]  # names of what each layer has
    # view → arm and moment → pictures [layer][head] in base64 PNG; None where there is none
    views: dict[str, dict[Place, list[list[str | None]]]]
    captions: dict[str, dict[Place, list[str]]]  # view → arm and moment → caption [head]
    notes: list[str]  # what was left out
    scale: Ticks  # empty where every picture has its own

    def piece(self, data: ReportData, drawings: Sequence[Drawing]) -> Html:
        """Return the picker for the page, and the figures that stand for it in the Markdown and on paper."""
        views, captions = ({view: _by_arm(of) for view, of in each.items()} for each in (self.views, self.captions))
        known = {"layers": self.layers, "heads": self.heads, "views": views, "captions": captions}
        given = {"colors": json.dumps(data.colors), "scale": self.scale, "data": script_json(known)}
        return Html(render("picker.html.j2", name=self.name, **given), drawings=drawings)


def _by_arm(values: Mapping[Place, Any]) -> dict[str, dict[str, Any]]:
    """Return arm → moment → value."""
    found: dict[str, dict[str, Any]] = {}
    for (arm, moment), value in values.items():
        found.setdefault(arm, {})[moment] = value
    return found


def make_picker(
    name: str,
    views: Mapping[str, Maps],
    layers: Mapping[str, str],
    heads: list[str],
    colors: str,
    scaling: Callable[[Sequence[Tensor]], tuple[Transform, Ticks]],
    captions: Mapping[str, Mapping[Place, list[str]]] | None = None,
) -> Picker:
    """Return pictures to choose from, of as many layers and heads as keep the page small.

    ``views`` are what is to be seen of every arm, ``layers`` the short names of its layers, and ``scaling`` gives the
    colour scale for a view, and its ticks.
    """
    kept = _affordable(views, len(layers), len(heads), colors)
    names = [list(layers)[i] for i in kept[0]]
    notes = {
        f"Shown are {len(of)} {what}, to keep the page small."
        for of, every, what in zip(kept, (layers, heads), ("layers", "heads"), strict=True)
        if len(of) < len(every)
    }
    pictures: dict[str, dict[Place, list[list[str | None]]]] = {}
    scale: Ticks = []
    for view, every in views.items():
        if not every:
            continue
        maps = {  # a network may have fewer layers and heads than another
            place: {
                name: of_layers[name][[head for head in kept[1] if head < len(of_layers[name])]]
                for name in names
                if name in of_layers
            }
            for place, of_layers in every.items()
        }
        known = [layer for of_layers in maps.values() for layer in of_layers.values()]
        transform, ticks = scaling(known)
        scale = scale or ticks
        pictures[view] = {
            place: [[_picture(head, transform, colors) for head in of_layers.get(name, ())] for name in names]
            for place, of_layers in maps.items()
        }
        if max(layer.shape[-1] for layer in known) > LARGEST_SIDE:
            notes.add(f"Pictures of more than {LARGEST_SIDE} rows are averaged down to {LARGEST_SIDE}.")
    shown = {
        view: {place: [texts[head] for head in kept[1]] for place, texts in of_view.items()}
        for view, of_view in (captions or {}).items()
    }
    of_heads = [heads[i] for i in kept[1]]
    return Picker(name, [layers[each] for each in names], of_heads, pictures, shown, sorted(notes), scale)


def _affordable(views: Mapping[str, Maps], layers: int, heads: int, colors: str) -> tuple[list[int], list[int]]:
    """Return the layers and heads whose pictures are within the budget, by those of the layer in the middle."""
    each = 0.0  # of one layer and head, in every view, arm and moment
    for of_layers in (of for maps in views.values() for of in maps.values()):
        values = list(of_layers.values())[len(of_layers) // 2]
        shown = (values / max(float(_numbers([values]).abs().max()), 1e-9)).clamp(0, 1)
        sizes = [len(_picture(head, torch.sqrt, colors) or "") for head in shown]
        each += sum(sizes) / len(sizes)
    counts = [layers, heads]
    while counts[0] * counts[1] * each > BUDGET:
        axis = 0 if counts[0] > 2 and (counts[0] > 4 or counts[1] <= 3) else 1
        if counts[axis] <= 2:
            break
        counts[axis] -= 1
    kept = [sorted({round(p) for p in np.linspace(0, n - 1, c)}) for n, c in zip((layers, heads), counts, strict=True)]
    return kept[0], kept[1]


def one_scale(maps: Sequence[Tensor]) -> tuple[Transform, Ticks]:
    """Return the scale of all maps from 0, its square root, so that weak structure shows beside peaks."""
    top = largest(maps)
    ticks = [(place, f"{top * place**2:.2g}") for place in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return (lambda values: (values / top).clamp(0, 1).sqrt()), ticks


def largest(maps: Sequence[Tensor]) -> float:
    """Return the upper end of the colour scale: above it lies one value in a thousand of those that are numbers."""
    joined = _numbers(maps)
    return max(joined.kthvalue(max(1, round(0.999 * joined.numel()))).values.item(), 1e-6)


def symmetric_end(values: Sequence[Tensor]) -> float:
    """Return the end of a scale around zero.

    Of a 64 × 64 corner the diagonal is 1.6 %: this quantile lies on it where it stands out.
    """
    joined = _numbers(values).abs()
    return max(joined.kthvalue(max(1, round(0.995 * joined.numel()))).values.item(), 1e-9)


def png(values: np.ndarray, colors: str) -> str:
    """Return values in [0, 1] as a PNG, in base64."""
    places = (255 * values).round().astype(np.uint8)
    palette = _palette(colors)
    if 3 * places.size < palette.size:  # of a small picture the palette would be most
        image = Image.fromarray(palette[places])
    else:
        image = Image.fromarray(places)
        image.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


@lru_cache  # to make one takes longer than to write a small picture
def _palette(colors: str) -> np.ndarray:
    import matplotlib

    return (255 * matplotlib.colormaps[colors](np.linspace(0, 1, 256))[:, :3]).round().astype(np.uint8)


def _picture(values: Tensor, transform: Transform, colors: str) -> str | None:
    """Return a small picture; none of a head that diverged, whose values are no numbers."""
    if not torch.isfinite(values).all():
        return None
    values = values.detach().float()
    if max(values.shape) > LARGEST_SIDE:
        size = [min(side, LARGEST_SIDE) for side in values.shape]
        values = torch.nn.functional.adaptive_avg_pool2d(values[None], size)[0]
    return png(transform(values).numpy(), colors)


def _numbers(values: Sequence[Tensor]) -> Tensor:
    """Return all values that are numbers, in one row; a zero where there is none."""
    joined = torch.cat([value.flatten() for value in values])
    joined = joined[torch.isfinite(joined)]
    return joined if len(joined) else joined.new_zeros(1)


def map_grid_figure(
    maps: Mapping[Place, Mapping[str, Tensor]],
    styles: Mapping[str, Style],
    names: Mapping[str, str],
    title: str,
    colors: str,
    limits: Callable[[Sequence[Tensor]], tuple[float, float]],
    power: float = 1.0,
) -> Figure:
    """Draw one square map per arm, moment and layer: before on the left, after on the right; none where there is none.

    The title says the scale if there is one, else the right end of each row does.
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    arms = list(dict.fromkeys(arm for arm, _ in maps))
    moments = [moment for moment in MOMENTS if any(moment == known for _, known in maps)]
    places = np.linspace(0, len(names) - 1, min(len(names), MOST_LAYERS))
    kept = [list(names)[place] for place in sorted({round(place) for place in places})]
    ends = {place: limits(list(layers.values())) for place, layers in maps.items()}
    shown = {
        (arms.index(arm), moments.index(moment), place): _colored(layers[layer], colors, ends[arm, moment], power)
        for (arm, moment), layers in maps.items()
        for place, layer in enumerate(kept)
        if layer in layers
    }
    scales = {(arms.index(arm), moments.index(moment)): each for (arm, moment), each in ends.items()}
    common = len(set(scales.values())) == 1
    if common:
        low, high = next(iter(scales.values()))
        beyond = " and more" * any(layer.max() > high for layers in maps.values() for layer in layers.values())
        title += f" (scale {low:.2g} to {high:.2g}{beyond}{', square root' if power == 0.5 else ''})"
    width = len(moments) * len(kept) + BETWEEN * (len(moments) - 1)
    side = min(0.75, 6.2 / width)
    with figure_settings():
        size = FontProperties(size=rcParams["axes.labelsize"]).get_size_in_points()
        left = max(TextPath((0, 0), arm, size=size).get_extents().width for arm in arms) / 72 + 0.2  # of the names
        heads = [f"{moments[-1]}: {names[kept[0]]}", *(names[layer] for layer in kept[1:])]
        above = max(TextPath((0, 0), text, size=6.5).get_extents().width for text in heads) / 72
        turned = above > side
        font = FontProperties(size=rcParams["figure.titlesize"], weight=rcParams["figure.titleweight"])
        said = TextPath((0, 0), title, size=font.get_size_in_points(), prop=font).get_extents().width / 72
        wide = max(left + side * width + 0.2, 1.05 * said + 0.1)
        tall = side * len(arms) + 0.55 + above * turned
        figure = new_figure(wide, tall, layout=None)
        for block, moment in enumerate(moments):
            place = {key[::2]: picture for key, picture in shown.items() if key[1] == block}
            image, pixels, step = mosaic(place, len(arms), len(kept))
            x = left + side * block * (len(kept) + BETWEEN)
            axis = figure.add_axes((x / wide, 0.05 / tall, side * len(kept) / wide, side * len(arms) / tall))
            axis.imshow(image, interpolation="nearest", aspect="auto", extent=(0, len(kept), len(arms), 0))
            axis.grid(visible=False)
            axis.spines[:].set_visible(False)
            axis.set(xticks=[], yticks=[])
            middle = pixels / step / 2
            for column, layer in enumerate(kept):
                text = f"{moment}: {names[layer]}" if column == 0 else names[layer]
                at = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "annotation_clip": False}
                turn = 90 if turned else 0
                axis.annotate(text, (column + middle, 0), color=FAINT, fontsize=6.5, rotation=turn, **at)
            for row in range(0 if common else len(arms)):
                if (row, block) in scales:
                    at = {"ha": "left", "va": "center", "rotation": 90, "fontsize": 6, "color": FAINT}
                    axis.text(len(kept) + 0.02, row + middle, f"± {scales[row, block][1]:.2g}", clip_on=False, **at)
            if block == 0:
                axis.set_yticks([number + middle for number in range(len(arms))], arms)
                for label, arm in zip(axis.get_yticklabels(), arms, strict=True):
                    label.set(color=styles[arm].paper, fontsize="medium")
        figure.suptitle(title, x=0.01, y=1 - 0.04 / tall, ha="left", va="top", parse_math=True)
    return figure


def mosaic(pictures: Mapping[tuple[int, int], np.ndarray], rows: int, columns: int) -> tuple[np.ndarray, int, int]:
    """Return all pictures in one image, what is between them transparent."""
    side = max((max(picture.shape[:2]) for picture in pictures.values()), default=1)
    step = side + max(1, round(GAP * side))
    image = np.zeros((rows * step, columns * step, 4))
    for (row, column), picture in pictures.items():
        y, x = (np.arange(side) * size // side for size in picture.shape[:2])  # the nearest of its own pixels
        image[row * step : row * step + side, column * step : column * step + side] = picture[y][:, x]
    return image, side, step


def _colored(values: Tensor, colors: str, limits: tuple[float, float], power: float) -> np.ndarray:
    """Return the colours of a map, (height, width, 4); transparent where it has no numbers."""
    import matplotlib
    from matplotlib.colors import PowerNorm

    every = -(-max(values.shape) // MOST_PIXELS)
    shown = np.ma.masked_invalid(values.numpy()[::every, ::every])
    return matplotlib.colormaps[colors](PowerNorm(power, *limits)(shown))
