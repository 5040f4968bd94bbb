"""What the referee has seen: read, checked, and held against the runs of today.

A second try at a seed is how luck is kept. So a run that changes, vanishes or comes again under another name is
refused, and so is a rule that changes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from numbers import Integral, Real
from typing import Any

from structured_init.util.errors import StructuredInitError

RULE = ("metric", "mode", "margin", "proposals")  # what is fixed at the first look
STATE = {
    **dict.fromkeys(("metric", "mode", "baseline"), str),
    **{"version": Integral, "proposals": Integral, "margin": (Real, type(None)), "controls": list, "pairs": list},
}
PAIR = {"arm": str, "baseline": str, "seen": list}
RUN = {0: Integral, 1: Real, 2: Real}  # of what is seen
FEWEST_COPIED = 3  # different values that two arms share; accuracies on a small split meet by chance in one or two

Runs = dict[int, float]  # value by seed
Seen = list[list[Any]]  # seed, value of the arm, value of the baseline, in the order in which they came


def recall(before: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that a look begins with; refuse a rule that is not that of the first look.

    A state that is damaged is refused too: as a first look it would forget what was seen.
    """
    if before is None:
        return {"version": 1, **asked, "baseline": None, "controls": [], "pairs": []}
    _refuse_damage(before, STATE)
    for control in before["controls"]:
        _refuse_damage({"controls": control}, {"controls": str})
    for pair in before["pairs"]:
        _refuse_damage(pair, PAIR)
        for run in pair["seen"]:
            _refuse_damage(dict(enumerate(run)) if isinstance(run, list) else run, RUN)
    for name in RULE:
        if asked[name] not in (None, before[name]):
            raise StructuredInitError(
                f"{name} was {before[name] or 'not given'} at the first look and is {asked[name]} now: a rule that "
                "changes after a look is none. Keep it, or judge fresh seeds in a table of their own"
            )
    return copy.deepcopy(dict(before))


def _refuse_damage(found: Any, kinds: Mapping[Any, type | tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        if not isinstance(found, Mapping) or name not in found or not isinstance(found[name], kind):
            raise StructuredInitError(f"what earlier looks saw is damaged, in its '{name}': bring back a copy")


def remember(state: dict[str, Any], arms: Sequence[str], values: Mapping[str, Runs]) -> None:
    """Add what is seen of arms beside the baseline; refuse runs that have changed, and copies."""
    reference = state["baseline"]
    pairs = {(pair["arm"], pair["baseline"]): pair for pair in state["pairs"]}
    for arm in arms:
        pair = pairs.setdefault((arm, reference), {"arm": arm, "baseline": reference, "seen": []})
        pair["seen"] = _add_seeds(pair, values[arm], values[reference])
    state["pairs"] = list(pairs.values())
    _refuse_copies(state["pairs"], reference)


def _add_seeds(pair: Mapping[str, Any], ours: Runs, theirs: Runs) -> Seen:
    """Return what is seen of a pair now: what was, and the seeds that are new."""
    known = set()
    for seed, our_old, their_old in pair["seen"]:
        known.add(seed)
        _refuse_change(pair["arm"], seed, our_old, ours)
        _refuse_change(pair["baseline"], seed, their_old, theirs)
    new = sorted((ours.keys() & theirs.keys()) - known)
    return [*pair["seen"], *([seed, ours[seed], theirs[seed]] for seed in new)]


def _refuse_change(arm: str, seed: int, old: float, runs: Runs) -> None:
    if seed not in runs:
        raise StructuredInitError(f"seed {seed} of '{arm}' was judged before and is gone: put it back")
    if repr(runs[seed]) != repr(old):  # all digits: the last may differ; two that are nan are equal
        changed = f"was {old!r} when it was judged and is {runs[seed]!r} now"
        raise StructuredInitError(f"seed {seed} of '{arm}' {changed}: a run counts once")


def _refuse_copies(pairs: Sequence[Mapping[str, Any]], reference: str) -> None:
    """Refuse an arm that has the runs of another: under a new name, unlucky seeds could be left out.

    One that equals the baseline is no better in any seed, and is discarded.
    """
    values: dict[str, Runs] = {}
    for pair in pairs:
        for seed, ours, theirs in pair["seen"]:
            values.setdefault(pair["arm"], {})[seed] = ours
            values.setdefault(pair["baseline"], {})[seed] = theirs
    values.pop(reference, None)
    for one, other in combinations(values, 2):
        shared = values[one].keys() & values[other].keys()
        both = [(values[one][seed], values[other][seed]) for seed in shared]
        known = {pair for pair in both if all(map(math.isfinite, pair))}
        if len(known) >= FEWEST_COPIED and all(ours == theirs for ours, theirs in known):
            raise StructuredInitError(
                f"'{other}' has the values of '{one}' in all {len(shared)} seeds that both have: a run counts once, "
                f"under one name. Leave '{other}' out"
            )
