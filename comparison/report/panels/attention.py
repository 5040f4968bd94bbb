"""Attention maps of one run per initialization, before and after training."""

from __future__ import annotations

from comparison.report.data import ReportData
from comparison.report.drawing import Drawing, short
from comparison.report.map_grid import map_grid_figure
from comparison.report.panels.picker import picker_piece
from comparison.report.pictures import SEQUENTIAL, attention_maps, attention_picker, largest
from comparison.report.registry import Piece, note, register_panel

WHAT = (
    "Each map averages the probe’s samples: rows are queries, columns are keys. “By offset” averages over all pairs of "
    "patches, or tokens, at the same offset, the query in the centre: the convolution that a head resembles."
)
SCALE = "One colour scale for all pictures of a view, its square root, so that weak structure shows beside peaks."


@register_panel("Attention, before and after", label="Attention")
def attention(data: ReportData) -> list[Piece] | None:
    """Return the maps to choose from, or why there are none; None where no run was to have any."""
    maps, profiles = attention_maps(data.shown)
    if not maps:
        reasons = dict.fromkeys(why for run in data.runs for why in run.missing.get("attention", {}).values())
        return [f"Attention was not captured: {'; '.join(reasons)}."] if reasons else None
    layers = short(list(next(iter(next(iter(maps.values())).values()))))
    top = largest(maps)
    means = {
        arm: {moment: [layer[0] for layer in of_layers.values()] for moment, of_layers in moments.items()}
        for arm, moments in maps.items()
    }
    title = "Attention, mean of the heads"
    figure = map_grid_figure(means, data.styles, layers, title, SEQUENTIAL, lambda _: (0, top), power=0.5)
    text = "Attention maps of every layer, mean of the heads, before and after training"
    picker = attention_picker(maps, profiles, layers)
    return [
        WHAT,
        picker_piece(data, picker, [Drawing(figure, "attention", text)]),
        note(" ".join([data.shown_text(), SCALE, *picker.notes])),
    ]
