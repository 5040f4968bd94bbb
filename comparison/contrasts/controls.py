"""Which arm is a control of which, as the plan of a comparison says, or as the user names it.

A structured initialization writes positions as well as attention, and positions alone give much of what it gives. So
one control has the same positions and no attention, another keeps positions and the size of all weights and destroys
their alignment, and a third is scrambled and then as sharp. Whoever plans a comparison knows which arm is what, and
writes it down: nothing is told from names or reports afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comparison.runs.folder import Manifest
from structured_init.util.errors import StructuredInitError, nearest

# What a control is to its arm. A peer is an initialization of its own, given beside the arm, which has the same
# positions: unlike other controls it competes with the baseline as well. A plan makes "positions" and "sharpened" too.
NAMED, PEER, SCRAMBLED = "named", "same positions", "scrambled"

Controls = Mapping[str, str | Sequence[str]]  # arm → its control, or several, as the user names them
Roles = dict[str, dict[str, str]]  # arm → control → role


def roles_of(manifest: Manifest, controls: Controls | str | None = None) -> Roles:
    """Return the controls of a comparison, and those that the user names; refuse what is no arm.

    One name stands for every other arm but the baseline.
    """
    arms = manifest.arms
    if isinstance(controls, str):
        controls = {arm: controls for arm in arms if arm not in (controls, manifest.baseline)} or {controls: ()}
    found = {arm: dict(of) for arm, of in manifest.controls.items()}
    for arm, named in (controls or {}).items():
        of_arm = found.setdefault(arm, {})
        for name in [named] if isinstance(named, str) else named:
            if of_arm.get(name, PEER) == PEER:  # what was made for the arm stays what it is
                of_arm[name] = NAMED
    for arm, of in found.items():
        for name in (arm, *of):
            if name not in arms:
                raise StructuredInitError(f"'{name}' is not an arm of this comparison: {nearest(name, arms)}")
        if arm in of:
            raise StructuredInitError(f"'{arm}' cannot be its own control: name another arm, as in {arm}=OTHER")
    return {arm: of for arm, of in found.items() if of}


def no_competitors(roles: Roles, baseline: str) -> set[str]:
    """Return the arms that are controls alone, made for an arm or named as one."""
    return {name for of in roles.values() for name, role in of.items() if role != PEER} - {baseline}


def parse_controls(text: str | None) -> dict[str, list[str]] | str:
    """Return initialization → controls of ``A=B,A=C,D=E``, or one name that stands for all."""
    if not text or "=" not in text:
        return text or {}
    controls: dict[str, list[str]] = {}
    for arm, _, control in (part.partition("=") for part in text.split(",")):
        controls.setdefault(arm.strip(), []).append(control.strip())
    return controls
