"""Whether one initialization is the same-positions control of another, by the reports of their plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from structured_init import InitReport

# Who may have written a control: positions, and what the literature calls its baselines.
POSITIONS = ("Positions", "SamePositions")
PLAIN = (*POSITIONS, "KaimingUniform", "TruncatedNormal", "UniformProjections")
STATISTICS = ("mean", "std", "rms")

Report = Mapping[str, Any]


def same_positions(label: str, reports: Mapping[str, Sequence[InitReport | None]]) -> str:
    """Return the arm that is the same-positions control of another on every network; empty where there is none.

    ``reports`` has those of the plans of every arm, one for each network, None where that takes samples.
    """
    ours = reports.get(label, ())
    for other, theirs in reports.items():
        both = list(zip(theirs, ours, strict=False))
        known = other != label and both and all(one and arm for one, arm in both)
        if known and all(is_control(one.to_dict(), arm.to_dict()) for one, arm in both):
            return other
    return ""


def is_control(control: Report, arm: Report) -> bool:
    """Tell whether one initialization is the same-positions control of another, by their reports at the same seed.

    The control has plain writers only and sets positions; the other has an attention part; and every parameter that
    no attention part wrote has the same statistics and trains alike in both.
    """
    classes = {initializer for entry in control["entries"] for initializer, _ in _writers(entry)}
    if not classes <= {*PLAIN} or not classes & {*POSITIONS}:
        return False
    ours, theirs = ({tuple(entry["names"]): entry for entry in report["entries"]} for report in (control, arm))
    attended = {
        names
        for names, entry in theirs.items()
        if any(initializer not in PLAIN and part != "positions" for initializer, part in _writers(entry))
    }
    return bool(attended) and all(
        names in ours and names in theirs and _alike(ours[names], theirs[names])
        for names in ours.keys() | theirs.keys()
        if names not in attended
    )


def _writers(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return who set a tensor: class and part."""
    return [(each["initializer"], each["part"]) for each in entry["writers"]]


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["trainable"] != other["trainable"] or bool(one["set_by"]) != bool(other["set_by"]):
        return False
    if one["after"] is None or other["after"] is None:  # as the host built it, from the same seed
        return one["after"] is other["after"] is None
    return all(
        math.isclose(one["after"][name], other["after"][name], rel_tol=1e-6, abs_tol=1e-9) for name in STATISTICS
    )
