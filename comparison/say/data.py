"""Everything a report is made of, read once."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comparison.contrasts.controls import Controls, roles_of
from comparison.contrasts.place import PlaceResult, check_success, count_successes, find_places
from comparison.runs.elsewhere import Wanted
from comparison.runs.folder import (
    Manifest,
    Point,
    Run,
    chosen_learning_rates,
    is_chosen,
    is_published,
    point_label,
)
from comparison.runs.metric import Metric
from comparison.runs.reading import read_runs
from comparison.runs.records import load_curves
from comparison.say.theme import Style, styles
from structured_init.util.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    import pandas as pd

MOMENTS = ("before", "after")  # training, at which runs are looked at
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # line breaks and the like, and halves of a character


@dataclass(frozen=True)
class ReportData:
    """What is known of a comparison.

    Attributes:
        folder: of the comparison.
        manifest: what is compared, with the baseline that the report refers to.
        runs: every run that was started.
        results: one row per complete run.
        curves: one row per logged value.
        places: what was found, at every place of the grid.
        successes: how many runs succeeded, at every place; empty where no threshold was given.
    """

    folder: Path
    manifest: Manifest
    runs: list[Run]
    results: pd.DataFrame
    curves: pd.DataFrame
    places: list[PlaceResult]
    successes: list[PlaceResult]

    @property
    def styles(self) -> dict[str, Style]:
        """Style of every arm, the baseline first."""
        return styles(list(self.manifest.arms), self.manifest.baseline)

    @property
    def colors(self) -> dict[str, str]:
        """Arm → its colour."""
        return {arm: style.paper for arm, style in self.styles.items()}

    @property
    def metric(self) -> Metric:
        """The metric that is compared."""
        return Metric(self.manifest.metric, self.manifest.mode)

    @property
    def judged(self) -> list[PlaceResult]:
        """What tables are of: of runs that succeed, where a threshold was given."""
        return self.successes or self.places

    @property
    def source(self) -> str:
        """The file or folder of runs that were made elsewhere; empty where the runs were made here."""
        return self.manifest.source

    @property
    def points(self) -> list[Point]:
        """The places of the grid."""
        return self.manifest.points()

    @property
    def missing(self) -> list[tuple[str, int, Point, float | None]]:
        """The runs that never started; of runs made elsewhere nobody knows."""
        return [] if self.source else self.manifest.missing_runs(self.runs)

    @property
    def point(self) -> Point:
        """The place of the grid with most complete runs, at which attention is shown."""
        complete = [run.point for run in self.runs if run.result is not None]
        return max(self.points, key=complete.count)

    @property
    def seed(self) -> int | None:
        """The seed that most arms have at that place, of which attention is shown."""
        counts = Counter(run.seed for run in self.complete)
        return min(counts, key=lambda seed: (-counts[seed], seed), default=None)

    @property
    def complete(self) -> list[Run]:
        """The complete runs that count, at the place that is shown."""
        chosen = chosen_learning_rates(self.folder)
        return [
            run
            for run in self.runs
            if run.result is not None and run.point == self.point and is_chosen(run, chosen, self.manifest)
        ]

    @property
    def shown(self) -> dict[str, Run]:
        """Arm → the run whose attention is shown, in the order of the styles."""
        seed = self.seed
        of_seed = {run.arm: run for run in self.complete if run.seed == seed}
        return {arm: of_seed[arm] for arm in self.styles if arm in of_seed}

    def place_text(self, point: Point) -> str:
        """Return a place of the grid for reading; empty where there is one alone."""
        return point_label(point) if len(self.points) > 1 else ""

    def place_name(self, name: str, point: Point) -> str:
        """Return a file's name, with the place of the grid where there are several."""
        label = self.place_text(point).replace(", ", "_").replace(" ", "_")
        return f"{name}_{label}" if label else name


@dataclass(frozen=True)
class Asked(Wanted):
    """What a report takes as its caller says, and not as the comparison or the table has it.

    Attributes:
        baseline: the arm that differences refer to; the comparison's own when None.
        controls: arm → its control or controls, or one for all arms, beside those of the comparison's plan.
        success: what a run has to reach of the metric to be counted, as it is logged; the comparison's own when None.
    """

    baseline: str | None = None
    controls: Controls | str | None = None
    success: float | None = None


def read_report_data(folder: str | os.PathLike[str], **given: Any) -> ReportData:
    """Read a comparison, finished or not, or runs made elsewhere, as :class:`Asked` says."""
    asked = Asked(**given)
    found = read_runs(Path(folder), asked)
    if not found.manifest.source and is_published(folder):
        raise StructuredInitError(
            f"'{folder}' holds a report without its runs: a report can only be regenerated from its runs; "
            "load_results and load_curves read its tables"
        )
    manifest, runs, results = found.manifest, found.runs, found.results
    curves = load_curves(folder) if found.curves is None else found.curves
    baseline = asked.baseline or manifest.baseline
    if baseline not in manifest.arms:
        raise StructuredInitError(
            f"the baseline '{baseline}' is not an arm of this comparison: {nearest(baseline, manifest.arms)}"
        )
    places = map(point_label, manifest.points())
    for name in (*manifest.arms, manifest.metric, *curves["metric"].unique(), *places):
        if CONTROL.search(name):
            raise StructuredInitError(f"the name {name!a} has a character that cannot be shown: rename it")
    success = check_success(asked.success, manifest.success, manifest.metric)
    manifest = replace(manifest, baseline=baseline, success=success)
    manifest = replace(manifest, controls=roles_of(manifest, asked.controls))
    found_there = find_places(results, manifest, curves, chosen_learning_rates(folder))
    return ReportData(
        folder=Path(folder),
        manifest=manifest,
        runs=runs,
        results=results,
        curves=curves,
        places=found_there,
        successes=[] if success is None else count_successes(found_there, success),
    )
