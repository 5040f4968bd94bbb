"""What a comparison of so many seeds can see, and how its learning rates were chosen."""

from __future__ import annotations

from comparison.contrasts.power import power_table
from comparison.runs.folder import chosen_learning_rates, read_manifest
from comparison.runs.metric import Metric
from comparison.say.data import ReportData
from comparison.say.headline import learning_rate_table
from comparison.say.registry import Piece, explanation, heading, register_panel

HOW = (
    "The effect that is called better or worse with a probability of 80 %, if the deviation that was found is the true "
    "one: paired t-tests at Bonferroni’s level."
)
RATES = "Values of {metric}, {better}, by which each arm’s learning rate was chosen: the best mean over its seeds."


@register_panel("What this comparison can see")
def power(data: ReportData) -> list[Piece] | None:
    """Return a table per place of the grid; None where no two differences of a pair are known.

    None either where successes are counted: their report speaks of no means.
    """
    shown: list[Piece] = []
    for found in [] if data.successes else data.places:
        table = power_table(found)
        if table.rows:
            shown += [*heading(data.place_text(found.point)), table]
    return [*shown, explanation(HOW)] if shown else None


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
