"""Pictures to choose from, as a piece of a panel."""

from __future__ import annotations

import json
from collections.abc import Sequence

from comparison.report.data import ReportData
from comparison.report.drawing import Drawing
from comparison.report.pictures import Picker
from comparison.report.registry import Html
from comparison.report.rendering import render, script_json


def picker_piece(data: ReportData, picker: Picker, drawings: Sequence[Drawing]) -> Html:
    """Return a picker for the page, and the figures that stand for it in the Markdown and on paper."""
    markup = render(
        "picker.html.j2",
        name=picker.name,
        colors=json.dumps(data.colors),
        scale=picker.scale,
        data=script_json(picker.to_json()),
    )
    return Html(markup, drawings=drawings)
