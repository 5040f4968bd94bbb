"""The controls of structured arms: those that are added, and which arm is what to which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from comparison.contrasts.controls import PEER, SCRAMBLED, Roles
from comparison.plan.arms import Arm
from structured_init import Initializer, InitReport, SamePositions
from structured_init.controls import is_structured
from structured_init.util.errors import StructuredInitError

SAME_POSITIONS, SHARPENED = "_positions", "_sharpened"
ROLE_OF = {SAME_POSITIONS: "positions", "_scrambled": SCRAMBLED, SHARPENED: "sharpened"}  # ending of a name → role
ENDINGS = {"auto": tuple(ROLE_OF), "scrambled": ("_scrambled",), "none": ()}  # what each ``--controls`` adds

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


def peer_of(
    initializer: Initializer, plan: Callable[[Initializer], Reports], plain: Mapping[str, Reports]
) -> str | None:
    """Return the arm without structure that has exactly the positions of an initialization, on every network.

    Args:
        initializer: a structured one.
        plan: plans another initialization in its place.
        plain: reports of the arms without structure.
    """
    try:
        wanted = _written(plan(SamePositions(initializer)))
    except StructuredInitError:  # it writes no positions
        return None
    return next((arm for arm, reports in plain.items() if None not in wanted and _written(reports) == wanted), None)


def _written(reports: Reports) -> list[Any]:
    """Return by network what every parameter is like after an initialization, and whether it trains."""
    return [report and [(each.names, each.after, each.trainable) for each in report.entries] for report in reports]


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
        roles: controls that there are, which get none of their own; what is added is written down here.
        plan: plans an arm on every network; what it refuses is left out.
        endings: of the names of what is added. A peer stands for the same positions.
    """
    found: dict[str, Arm] = {}
    remarks = []
    given = {name for controls in roles.values() for name, role in controls.items() if role != PEER}
    for label, arm in arms.items():
        found[label] = arm
        if label in given or not is_structured(initializers[label]):
            continue
        peers = [name for name, role in roles.get(label, {}).items() if role == PEER]
        for ending in endings:
            control = arm.control(ending)
            if arms.get(control.label, control) != control:
                raise StructuredInitError(f"--controls needs the label '{control.label}': rename that arm")
            if ending == SAME_POSITIONS and peers:
                remarks.append(f"{peers[0]} is the same-positions control of {label}")
            elif refusal := _refusal(control, plan, ending):
                remarks.append(f"left out {control.label}: {refusal}")
            else:
                found[control.label] = control
                roles.setdefault(label, {}).setdefault(control.label, ROLE_OF[ending])
    added = [label for label in found if label not in arms]
    if added:
        remarks.insert(0, f"added {', '.join(added)}")
    return found, remarks


def _refusal(control: Arm, plan: Callable[[Arm], Reports], ending: str) -> str:
    """Return why a control cannot be, empty where it can."""
    try:
        reports = plan(control)
    except StructuredInitError as error:
        return str(error).removeprefix(f"initialization '{control.label}': ")
    if ending == SHARPENED and None in reports:
        return "there are no samples here to measure attention on: name it yourself"
    return ""
