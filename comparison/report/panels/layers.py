"""Statistics of attention over depth, before and after training."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from comparison.report.data import ReportData
from comparison.report.depth import SHOWN, TITLES, attention_statistics, depth_figure
from comparison.report.drawing import Drawing, short
from comparison.report.registry import Html, Piece, note, register_panel
from comparison.report.sentences import listed, plain

WHAT = (
    "Each line is the mean over heads and seeds; for scores of circuits it is the mean of the best heads. Left: before"
    " training. Right: after. Both have one scale."
)


@register_panel("Layer by layer", label="Layers")
def layers(data: ReportData) -> list[Piece] | None:
    """Return a figure per statistic; None where no run has attention maps."""
    names, values = attention_statistics(data.complete)
    order = [name for name in (*SHOWN, "structure_left") if name in values]
    if not order:
        return None
    lost = {arm for name in order for arm, of in values[name].items() if not np.isfinite([*of.values()]).all()}
    marks = Markup("").join(
        Markup('<span><i class="mark" style="background: {}"></i>{}</span>').format(data.colors[arm], arm)
        for arm in data.manifest["arms"]
    )
    return [
        WHAT,
        Html(Markup('<div class="legend">{}</div>').format(marks)),
        *(_figure(data, name, values[name], short(names)) for name in order),
        *(
            [note(f"No line is drawn where the attention of a run is not finite: {listed(sorted(lost))}.")]
            if lost
            else []
        ),
    ]


def _figure(data: ReportData, name: str, values: dict, names: list[str]) -> Drawing:
    ordered = {arm: values[arm] for arm in data.manifest["arms"] if arm in values}
    moments = "" if name == "structure_left" else " before and after training"
    text = f"{plain(TITLES.get(name, name))}, in every layer{moments}"
    return Drawing(depth_figure(name, ordered, data.styles, names), f"layers_{name}", text)
