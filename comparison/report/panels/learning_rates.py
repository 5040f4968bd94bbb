"""The learning rates that were tried, and the one chosen for every initialization."""

from __future__ import annotations

from comparison.report.data import ReportData
from comparison.report.registry import Piece, heading, register_panel, table
from comparison.results.records import chosen_learning_rates
from comparison.results.tables import learning_rate_table

WHY = (
    "Each arm is trained with its own learning rate: the one that was best on the validation split, averaged over "
    "its seeds."
)


@register_panel("Learning rates")
def learning_rates(data: ReportData) -> list[Piece] | None:
    """Return a table per place of the grid; None where nothing was to be chosen."""
    chosen = chosen_learning_rates(data.folder)
    if not chosen:
        return None
    shown: list[Piece] = [f"{WHY} Of {data.metric.words}, {data.metric.better}."]
    for place, arms in chosen.items():
        shown += [*heading(place if len(chosen) > 1 else ""), table(data, learning_rate_table(arms, data.metric))]
    return shown
