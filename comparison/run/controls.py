"""What ``--controls`` adds: of every structured arm, the same positions and the same weights scrambled.

A structured initialization changes positions, the size of weights, how sharp attention is, and alignment. Against the
arm with the same positions and the one with the same weights scrambled, sharpness and alignment are left; against one
that is scrambled and as sharp, the alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from comparison.results.controls import SAME_POSITIONS, SCRAMBLED, SHARPENED, is_control
from comparison.run.arms import Arm
from structured_init import Initializer, InitReport
from structured_init.controls import is_structured
from structured_init.errors import StructuredInitError

Plan = Callable[[Arm], InitReport | None]

# What each choice of ``--controls`` adds, by how the names of these controls end.
ENDINGS = {
    "auto": (SAME_POSITIONS, SCRAMBLED),
    "sharpened": (SAME_POSITIONS, SCRAMBLED, SHARPENED),
    "scrambled": (SCRAMBLED,),
    "none": (),
}


def with_controls(
    arms: Mapping[str, Arm],
    initializers: Mapping[str, Initializer],
    reports: Mapping[str, InitReport | None],
    plan: Plan,
    endings: Sequence[str] = ENDINGS["auto"],
) -> tuple[dict[str, Arm], list[str]]:
    """Return the arms with their controls, each behind its own, and what is to be said about those that there are not.

    An arm among those given that already is a control of another stays the only one.

    Args:
        arms: by label.
        initializers: of each.
        reports: what planning each on its network gave; None where it could not be planned without samples.
        plan: parses an arm and plans it on its network.
        endings: of the controls that are wanted.

    Raises:
        StructuredInitError: a label that a control would have is taken by something else.
    """
    found, remarks = dict[str, Arm](), []
    for label, arm in arms.items():
        found[label] = arm
        if not is_structured(initializers[label]):
            continue
        for ending in endings:
            control = arm.control(ending)
            if ending == SAME_POSITIONS and (other := _same_positions(label, reports)):
                remarks.append(f"{other} is the same-positions control of {label}")
            elif control.label in arms:
                if arms[control.label] != control:
                    raise StructuredInitError(f"--controls needs the label '{control.label}': rename that arm")
            elif ending == SAME_POSITIONS and reports[label] is None:
                remarks.append(f"{label} needs samples to be planned: give its same-positions control yourself")
            else:
                try:
                    if ending == SHARPENED and not _turns_queries(plan(arm.control(SCRAMBLED))):
                        raise StructuredInitError(f"{label} writes no queries and keys")
                    plan(control)
                except StructuredInitError as refusal:
                    remarks.append(f"no {control.label}: {refusal}")
                else:
                    found[control.label] = control
    if added := [label for label in found if label not in arms]:
        remarks.insert(0, f"added {', '.join(added)}")
    return found, remarks


def _turns_queries(scrambled: InitReport | None) -> bool:
    """Tell whether there are queries and keys among what was scrambled; yes where it could not be planned."""
    return scrambled is None or any("Scrambled: query_key" in entry.set_by for entry in scrambled.entries)


def _same_positions(label: str, reports: Mapping[str, InitReport | None]) -> str:
    """Return the arm that already is the same-positions control of another; empty where there is none."""
    report = reports[label]
    if report is None:
        return ""
    others = ((other, given) for other, given in reports.items() if given is not None and other != label)
    return next((other for other, given in others if is_control(given.to_dict(), report.to_dict())), "")
