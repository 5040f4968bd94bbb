"""The similarity of representations: all initializations with one another, all layers with all layers."""

from __future__ import annotations

from pathlib import Path

from comparison.report.data import ReportData
from comparison.report.drawing import Drawing, short
from comparison.report.registry import Html, Piece, note, register_panel
from comparison.report.rendering import render, script_json
from comparison.report.sentences import count
from comparison.report.similarity import Similarity, similarity_figure
from comparison.report.similarity import similarity as compare
from comparison.report.tensors import read_tensors

WHAT = (
    "Every small square compares all layers of one initialization with all layers of another, the first layer at the "
    "lower left. Above the diagonal: both before training. Below: both after. On the diagonal: an initialization "
    "before training (rows) with itself after (columns). Choose one to see it large."
)
TEXT = "CKA between initializations, before and after training, and of each before with after"


@register_panel("Similarity of representations", label="Similarity")
def similarity(data: ReportData) -> list[Piece] | None:
    """Return the CKA of all pairs of arms; None where no run kept representations."""
    blocks = sorted({name for run in data.complete for name in _blocks(run.folder)})
    found = compare(data.manifest["arms"], data.complete, dict(zip(blocks, short(blocks), strict=True)))
    if found is None:
        return None
    how = (
        "Linear CKA with the unbiased minibatch estimator on the same validation samples, mean over "
        f"{count(len(found.seeds), 'seed')}, paired within a seed."
    )
    drawing = Drawing(similarity_figure(found, data.styles), "similarity", TEXT)
    return [WHAT, Html(_squares(data, found), drawings=[drawing]), note(how)]


def _squares(data: ReportData, found: Similarity) -> str:
    rows = [
        [{"picture": picture, "title": _caption(found, i, j)} for j, picture in enumerate(row)]
        for i, row in enumerate(found.pictures())
    ]
    arms = [{"name": arm, "color": data.colors[arm]} for arm in found.arms]
    return render("similarity.html.j2", arms=arms, rows=rows, data=script_json(found.to_json()))


def _caption(found: Similarity, i: int, j: int) -> str:
    moments = ("before", "after") if i == j else ("before", "before") if i < j else ("after", "after")
    cell = found.cells[i][j]
    mean = "" if cell is None else f": mean {cell.mean():.2f}"
    return f"{found.arms[i]} {moments[0]}, {found.arms[j]} {moments[1]}{mean}"


def _blocks(folder: Path) -> list[str]:
    path = folder / "representations" / "before.safetensors"
    return list(read_tensors(path)) if path.is_file() else []
