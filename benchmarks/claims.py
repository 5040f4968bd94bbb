"""Verdicts on claims: what papers and we say of initializations, judged by committed comparisons.

``benchmarks/claims.json`` says, for each claim, which committed comparison decides it, between which arms, by which
margin, and whether that was written down before the runs or after. Everything else is computed here from the values per
seed; :mod:`benchmarks.claims_page` writes it down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.committed import Committed, committed
from comparison.contrasts.contrasts import GAINS, LOOKS, decide, due_to_structure
from comparison.contrasts.targets import Share, fisher, share
from comparison.intervals import half_width, holm, p_value, paired_values, t_interval
from comparison.runs.folder import Question
from comparison.runs.metric import Metric
from comparison.tables import number

HERE = Path(__file__).parent
CLAIMS, RESULTS = HERE / "claims.json", HERE / "results"
LEVEL = 0.05
OWN = "holds"  # what has not been published cannot be replicated
WORDS = {"better": "replicates", "worse": "contrary", "equivalent": "equivalent to zero", "undecided": "undecided"}
Run = tuple[int | str, ...]  # its seed and its place of the grid


@dataclass(frozen=True)
class Contrast:
    """The difference of an arm to one reference.

    Attributes:
        name: of the reference, in words.
        kind: ``"better"``, ``"worse"``, ``"equivalent"`` or ``"undecided"``.
        text: the difference with its interval, or the two counts.
        p: that a difference as large, or such counts, come about without an effect.
        needed: seeds that would decide it at this spread, or with these shares; None where it is decided, or where
            shares are equal.
    """

    name: str
    kind: str
    text: str
    p: float = 1.0
    needed: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What a committed comparison says about a claim.

    Attributes:
        claim: as ``claims.json`` has it.
        contrasts: to every reference of the row, the one that the claim is about first.
        seeds: of the arm.
        runs: of the arm: its seeds at every place of the grid.
        minutes: of training, of all runs of the row.
        committed: the runs themselves.
    """

    claim: Mapping[str, Any]
    contrasts: list[Contrast]
    seeds: int
    runs: int
    minutes: float
    committed: Committed

    @property
    def missing(self) -> list[str]:
        """The controls that a gain is not shown to exceed."""
        return [each.name for each in self.contrasts[1:] if each.kind != "better"]

    @property
    def gain(self) -> str:
        """The first half of the verdict: whether there is a gain over the first reference."""
        return GAINS[self.contrasts[0].kind]

    @property
    def structure(self) -> str:
        """The second half: whether the gain is due to the structure, so that no control gains as much."""
        if self.gain != "shown":
            return "–"
        return due_to_structure({each.name: each.kind for each in self.contrasts[1:]})[0]

    @property
    def word(self) -> str:
        """The verdict in a word or three."""
        kind = self.contrasts[0].kind
        return OWN if kind == "better" and self.claim["source"].startswith("ours") else WORDS[kind]


def judge(claim: Mapping[str, Any], results: Path = RESULTS) -> Verdict | None:
    """Return the verdict on a claim; None where its comparison is not committed, or lacks an arm."""
    runs = committed(claim, results)
    if runs is None:
        return None
    arms = [claim["arm"], *claim["references"].values()]
    values = {arm: _values(runs, arm, claim.get("first_seed", 0)) for arm in arms}
    if not all(values.values()):
        return None
    level = 1 - LEVEL / len(claim["references"])
    compare = _counted if "success" in claim else _measured
    contrasts = [
        compare(name, values[claim["arm"]], values[reference], claim, runs.metric, level)
        for name, reference in claim["references"].items()
    ]
    minutes = sum(float(row["seconds"]) for row in runs.rows if row["arm"] in arms and row["seconds"]) / 60
    seeds = len({seed for seed, *_ in values[claim["arm"]]})
    return Verdict(claim, contrasts, seeds, len(values[claim["arm"]]), minutes, runs)


def _values(runs: Committed, arm: str, first_seed: int) -> dict[Run, float]:
    """Return final values by run, as shown; a run without a number counts as the worst there is.

    Seeds below ``first_seed`` are older than the rule, and do not count.
    """
    metric = runs.metric
    worst = -math.inf if metric.mode == "max" else math.inf
    own = [row for row in runs.rows if row["arm"] == arm and row.get(metric.name) and int(row["seed"]) >= first_seed]
    numbers = {(int(row["seed"]), *(row[key] for key in runs.grid)): float(row[metric.name]) for row in own}
    return {run: metric.factor * value if math.isfinite(value) else worst for run, value in numbers.items()}


def _measured(
    name: str,
    arm: Mapping[Run, float],
    reference: Mapping[Run, float],
    claim: Mapping[str, Any],
    metric: Metric,
    level: float,
) -> Contrast:
    paired = paired_values(arm, reference)
    differences = [paired[run] for run in sorted(paired)]
    lost = sum(not math.isfinite(value) for value in differences)
    if lost:
        return Contrast(name, "undecided", f"diverged in {lost} of {len(differences)} seeds")
    margin, looks = claim["margin"], claim.get("looks", False)
    if looks:
        found = decide(differences, Question(margin=margin, level=level), metric)
        interval, kind = found.interval, found.verdict
    else:
        interval = t_interval(differences, level)
        kind = metric.verdict(interval, margin)
    digits = max(1, -math.floor(math.log10(margin)))
    if interval.excludes_zero and round(abs(interval.mean), digits) <= round(interval.half_width, digits):
        digits += 1  # so that it can be seen
    text = f"{number(interval.mean, digits, signed=True)} ± {number(interval.half_width, digits)}"
    p = _p_of_looks(differences) if looks else p_value(differences)
    if kind != "undecided":
        return Contrast(name, kind, text, p)
    mean = math.fsum(differences) / len(differences)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (len(differences) - 1))
    return Contrast(name, kind, text, p, _pairs_for(deviation, margin, level))


def _pairs_for(deviation: float, width: float, level: float) -> int | None:
    """Return the smallest number of pairs whose t interval is ± this width or narrower; None above 10,000."""
    narrow = (pairs for pairs in range(2, 10_001) if half_width(deviation, pairs, level) <= width)
    return next(narrow, None)


def _counted(
    name: str,
    arm: Mapping[Run, float],
    reference: Mapping[Run, float],
    claim: Mapping[str, Any],
    metric: Metric,
    level: float,
) -> Contrast:
    ours, theirs = (_share(values, metric.factor * claim["success"], metric) for values in (arm, reference))
    kind, p = "undecided", fisher(ours, theirs)
    if p < 1 - level:
        kind = "better" if ours.count * theirs.runs > theirs.count * ours.runs else "worse"
    needed = runs_for(ours, theirs, 1 - level) if kind == "undecided" else None
    return Contrast(name, kind, f"{ours.count} of {ours.runs} against {theirs.count} of {theirs.runs}", p, needed)


def _p_of_looks(differences: Sequence[float]) -> float:
    """Return the least p-value of the looks, each of which has an equal part of the error."""
    return min([1.0, *(len(LOOKS) * p_value(differences[:look]) for look in LOOKS if look <= len(differences))])


def among_all(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return, by the name of its claim, the p-value of each first difference adjusted for all rows (Holm 1979)."""
    return holm({verdict.claim["name"]: verdict.contrasts[0].p for verdict in verdicts})


def runs_for(ours: Share, theirs: Share, error: float, most: int = 1000) -> int | None:
    """Return the runs of each arm at which shares like these differ by Fisher's exact test; None up to ``most``."""
    if ours.count * theirs.runs == theirs.count * ours.runs:
        return None
    for runs in range(max(ours.runs, theirs.runs), most + 1):
        one, two = (share(round(each.count / each.runs * runs), runs) for each in (ours, theirs))
        if fisher(one, two) < error:
            return runs
    return None


def _share(values: Mapping[Run, float], limit: float, metric: Metric) -> Share:
    sign = 1 if metric.mode == "max" else -1
    return share(sum(sign * value >= sign * limit for value in values.values()), len(values))
