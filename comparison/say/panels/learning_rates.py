"""How the learning rates of a comparison were chosen."""

from __future__ import annotations

from comparison.runs.folder import chosen_learning_rates, read_manifest
from comparison.runs.metric import Metric
from comparison.say.data import ReportData
from comparison.say.headline import learning_rate_table
from comparison.say.registry import Piece, explanation, heading, register_panel

RATES = "Values of {metric}, {better}, by which each arm’s learning rate was chosen: the best mean over its seeds."


@register_panel("Learning rates")
def learning_rates(data: ReportData) -> list[Piece] | None:
    """Return a table per place of the grid; None where nothing was to be chosen."""
    chosen = chosen_learning_rates(data.folder)
    if not chosen:
        return None
    made = read_manifest(data.folder)  # what chose the rates, whatever the metric of the report
    chose = Metric(Metric(made.metric).on_validation, made.mode)
    shown: list[Piece] = []
    for place, arms in chosen.items():
        shown += [*heading(place), learning_rate_table(arms, chose)]
    return [*shown, explanation(RATES.format(metric=chose.words, better=chose.better))]
