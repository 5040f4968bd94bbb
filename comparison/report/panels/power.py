"""What the comparison could have seen, and what it would take to see more."""

from __future__ import annotations

from comparison.report.data import ReportData
from comparison.report.registry import Piece, heading, note, register_panel, table
from comparison.results.power_table import power_sentence, power_table

HOW = (
    "The probability is that of the verdict “better” or “worse” among all arms together, or a little less: paired "
    "t-tests at Bonferroni's level (noncentral t distribution). The interval below it is due to that of the deviation, "
    "at 95 %. “Seeds” is how many it takes for a 95 % t interval of that half width."
)


@register_panel("What this comparison can see", label="Power")
def power(data: ReportData) -> list[Piece]:
    """Return a sentence and a table per place of the grid; nothing where no two differences of a pair are known.

    Nothing either where successes are counted: their report speaks of no means.
    """
    shown: list[Piece] = []
    for found in [] if data.successes else data.effects:
        known = power_table(found)
        if known is not None:
            shown += [*heading(data.place_text(found.point)), power_sentence(found), table(data, known, "tight")]
    return [*shown, note(HOW)] if shown else []
