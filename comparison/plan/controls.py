"""The controls of structured arms: those that are added, and which arm is what to which."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from comparison.plan.arms import Arm
from comparison.results.controls import PEER, SCRAMBLED, Roles
from structured_init import Initializer, InitReport, SamePositions
from structured_init.controls import is_structured
from structured_init.util.errors import StructuredInitError

SAME_POSITIONS, SHARPENED = "_positions", "_sharpened"
ROLE_OF = {SAME_POSITIONS: "positions", "_scrambled": SCRAMBLED, SHARPENED: "sharpened"}  # ending of a name → role
ENDINGS = {"auto": tuple(ROLE_OF), "scrambled": ("_scrambled",), "none": ()}  # what each ``--controls`` adds
STATISTICS = ("mean", "std", "rms")

Reports = Sequence[InitReport | None]  # of a plan on every network; None where it takes samples that are not here


def roles_by_name(arms: Mapping[str, Arm]) -> Roles:
    """Return arm → its controls → what each is, of those that are named by their arm: ``mimetic_scrambled``."""
    found: Roles = {}
    for label, arm in arms.items():
        for ending, role in ROLE_OF.items():
            control = arm.control(ending)
            for other in arms.values():
                if (other.init, other.overrides) == (control.init, control.overrides):
                    found.setdefault(label, {})[other.label] = role
    return found


def merged_roles(*parts: Roles) -> Roles:
    """Return the controls of all; a later part says what one is."""
    merged: Roles = {}
    for part in parts:
        for arm, controls in part.items():
            merged[arm] = {**merged.get(arm, {}), **controls}
    return merged


def peers(
    initializers: Mapping[str, Initializer],
    reports: Mapping[str, Reports],
    plan: Callable[[str, Initializer], Reports],
) -> dict[str, str]:
    """Return structured arm → the arm without structure that has exactly its positions, on every network.

    ``plan`` plans another initialization in the place of an arm's.
    """
    plain = [label for label, each in initializers.items() if not is_structured(each) and _changes(reports[label])]
    found = {}
    for label, initializer in initializers.items():
        if not plain or not is_structured(initializer):
            continue
        try:
            wanted = plan(label, SamePositions(initializer))
        except StructuredInitError:  # it writes no positions
            continue
        for other in plain:
            pairs = zip(reports[other], wanted, strict=True)
            if all(one and two and same_weights(one.to_dict(), two.to_dict()) for one, two in pairs):
                found.setdefault(label, other)
    return found


def _changes(reports: Reports) -> bool:
    return any(report and report.changed for report in reports)


def same_weights(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two reports at the same seed say the same of every parameter: its statistics, and if it trains."""
    ours, theirs = ({tuple(entry["names"]): entry for entry in report["entries"]} for report in (one, other))
    return ours.keys() == theirs.keys() and all(_alike(ours[names], theirs[names]) for names in ours)


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if one["trainable"] != other["trainable"]:
        return False
    if one["after"] is None or other["after"] is None:  # as the host built it, from the same seed
        return one["after"] is other["after"]
    pairs = ((one["after"][name], other["after"][name]) for name in STATISTICS)
    return all(math.isclose(*pair, rel_tol=1e-6, abs_tol=1e-9) for pair in pairs)


def with_controls(
    arms: Mapping[str, Arm],
    initializers: Mapping[str, Initializer],
    roles: Roles,
    plan: Callable[[Arm], Reports],
    endings: Sequence[str],
) -> tuple[dict[str, Arm], list[str]]:
    """Return the arms with their controls, each behind its own, and what is to be said of them.

    Args:
        arms: what is compared.
        initializers: of each arm.
        roles: controls that there are; they get none of their own, and a peer is not given a second time.
        plan: plans an arm on every network; what it refuses is left out.
        endings: of the names of what is added.
    """
    found: dict[str, Arm] = {}
    remarks = []
    controls = _given(roles)
    for label, arm in arms.items():
        found[label] = arm
        if label in controls or not is_structured(initializers[label]):
            continue
        peer = next((name for name, role in roles.get(label, {}).items() if role == PEER), "")
        for ending in endings:
            control = arm.control(ending)
            if ending == SAME_POSITIONS and peer:
                remarks.append(f"{peer} is the same-positions control of {label}")
            elif control.label in arms:
                if arms[control.label] != control:
                    raise StructuredInitError(f"--controls needs the label '{control.label}': rename that arm")
            elif refusal := _refusal(control, plan, ending):
                remarks.append(f"left out {control.label}: {refusal}")
            else:
                found[control.label] = control
    added = [label for label in found if label not in arms]
    if added:
        remarks.insert(0, f"added {', '.join(added)}")
    return found, remarks


def _given(roles: Roles) -> Collection[str]:
    """Return the arms that are controls, but for those that compete."""
    named = chain.from_iterable(of.items() for of in roles.values())
    return {name for name, role in named if role != PEER}


def _refusal(control: Arm, plan: Callable[[Arm], Reports], ending: str) -> str:
    """Return why a control cannot be, empty where it can."""
    try:
        reports = plan(control)
    except StructuredInitError as error:
        return str(error).removeprefix(f"initialization '{control.label}': ")
    if ending == SHARPENED and None in reports:
        return "there are no samples here to measure attention on: name it yourself"
    return ""
