"""Which arm is a control of which, as the init reports say, and what the controls leave of a gain.

A structured initialization writes positions as well as attention, and positions alone give much of what it gives. Its
control writes the same positions and no attention. Another control keeps positions and the size of all weights, and
destroys their alignment. Two more keep how sharp attention is: scrambled and then scaled, and heads at random offsets.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from comparison.results.decisions import decide, judged
from comparison.results.folder import Manifest, Point, Run, read_json
from comparison.results.paired import FAMILY_LEVEL, FEWEST_FOR_INTERVAL, Interval, paired_values, t_interval
from comparison.results.targets import fisher
from structured_init.errors import StructuredInitError, nearest

# Who may have written a control: positions, and what the literature calls its baselines.
POSITIONS = ("Positions", "SamePositions")
PLAIN = (*POSITIONS, "KaimingUniform", "TruncatedNormal", "UniformProjections")
STATISTICS = ("mean", "std", "rms")
# How the names of controls end.
SCRAMBLED, SHARPENED, OFFSET, SAME_POSITIONS = "_scrambled", "_sharpened", "_offset", "_positions"
GAINS = {"better": "shown", "worse": "refuted", "equivalent": "none", "undecided": "not shown"}

Report = Mapping[str, Any]
Controls = Mapping[str, str | Sequence[str]]  # arm → its control, or several


def find_controls(manifest: Manifest, runs: Iterable[Run]) -> dict[str, str]:
    """Return arm → its control: by reports of equal places and seeds, else by its name, else as the user named it."""
    reports: dict[str, dict[tuple[Point, int], Report]] = {arm: {} for arm in manifest["arms"]}
    for run in runs:
        path = run.folder / "init_report.json"
        if run.arm in reports and path.is_file():
            reports[run.arm].setdefault((run.point, run.seed), read_json(path, "entries"))
    found = {
        arm: control
        for arm in reports
        if (control := next((other for other in reports if _matches(reports[other], reports[arm])), None))
    }
    return {**_first_named(manifest, scrambled=False), **_by_name(manifest, SAME_POSITIONS), **found}


def usual_baseline(arms: Iterable[str]) -> str | None:
    """Return the arm that is called default, else baseline, in any case of letters, small ones first."""
    known = {arm.lower(): arm for arm in sorted(arms)}
    return known.get("default") or known.get("baseline")


def find_scrambled(manifest: Manifest, runs: Iterable[Run]) -> dict[str, str]:
    """Return arm → the same initialization scrambled: by the init reports, else by its name or as the user named it."""
    shown: dict[str, str] = {}
    for run in runs:
        path = run.folder / "init_report.json"
        if run.arm in manifest["arms"] and run.arm not in shown and path.is_file():
            shown[run.arm] = read_json(path, "initializer")["initializer"]
    found = {
        arm: other
        for arm, initializer in shown.items()
        for other, text in shown.items()
        if text.startswith(f"Scrambled(initializer={initializer}, ")
    }
    return {**_first_named(manifest, scrambled=True), **_by_name(manifest, SCRAMBLED), **found}


def named(manifest: Manifest) -> dict[str, list[str]]:
    """Return arm → controls as the user named them; one whose name ends in ``_scrambled`` is a scrambled one."""
    return check_controls(manifest.get("controls"), manifest)


def no_competitors(manifest: Manifest, scrambled: Mapping[str, str] = MappingProxyType({})) -> set[str]:
    """Return the arms that are controls alone: named as ones, scrambled ones, or called like an arm and its control."""
    arms = manifest["arms"]
    ends = {arm + ending for arm in arms for ending in (SCRAMBLED, SHARPENED, OFFSET, SAME_POSITIONS)}
    controls = {*chain(*named(manifest).values()), *scrambled.values(), *ends.intersection(arms)}
    return controls - {manifest["baseline"]}


def _first_named(manifest: Manifest, scrambled: bool) -> dict[str, str]:
    """Return arm → the first of its controls of one kind that the user named."""
    pairs = ((arm, other) for arm, others in named(manifest).items() for other in reversed(others))
    return {arm: other for arm, other in pairs if other.endswith(SCRAMBLED) is scrambled}


def further_controls(arm: str, arms: Collection[str], others: Iterable[str] = ()) -> list[str]:
    """Return the controls of an arm, among several arms, that have no column: as sharp as it is, or named further."""
    of_name = (arm + ending for ending in (SHARPENED, OFFSET))
    return [name for name in dict.fromkeys([*of_name, *others]) if name in arms]


def _by_name(manifest: Manifest, ending: str) -> dict[str, str]:
    """Return arm → the arm of its name with an ending, of runs made elsewhere, which have no init reports."""
    arms = manifest["arms"] if manifest.get("source") else ()
    return {arm: arm + ending for arm in arms if arm + ending in arms}


def due_to_structure(kinds: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return whether a gain is due to the structure, and the controls that decide it.

    By what the arm is beside each control (better, worse, equivalent or undecided), it is ``"shown"`` where every
    control is exceeded, ``"refuted"`` where one gains as much or more, ``"not shown"`` where a difference to one is
    undecided; ``"no control"`` without any.
    """
    as_good = [name for name, kind in kinds.items() if kind in ("worse", "equivalent")]
    missing = [name for name, kind in kinds.items() if kind != "better"]
    if not kinds:
        return "no control", []
    return ("refuted", as_good) if as_good else ("not shown", missing) if missing else ("shown", [*kinds])


class Further(NamedTuple):
    """An arm beside one of its controls that has no column."""

    arm: str
    control: str
    interval: Interval | None  # of the paired differences, 95 %; None of counts, or where they cannot be paired
    kind: str  # better, worse, equivalent or undecided, corrected for all of these


def beside_further(found: Any) -> list[Further]:
    """Return every arm beside its controls that have no column; these differences hold together (Bonferroni)."""
    arms = {arm.name: arm for arm in found.arms}
    pairs = [
        (arm, arms[other])
        for name, arm in arms.items()
        for other in further_controls(name, arms, found.named.get(name, ()))
        if other not in {each.reference for each in (arm.control, arm.scrambled) if each}
    ]
    return [Further(arm.name, other.name, *_beside(arm, other, found, len(pairs))) for arm, other in pairs]


def verdicts(found: Any) -> dict[str, tuple[str, str, list[str]]]:
    """Return of every arm: is a gain over the baseline shown, is it due to structure, what decides that.

    Of controls it says nothing, and of no arm where there are none. ``found`` is the ``Effects`` of one place of the
    grid; that module imports this one.
    """
    arms, further = {arm.name: arm for arm in found.arms}, beside_further(found)
    kinds = {}
    for name, arm in arms.items():
        own = {each.reference: _kind(each) for to in ("control", "scrambled") if (each := getattr(arm, to))}
        kinds[name] = {**own, **{each.control: each.kind for each in further if each.arm == name}}
    taken = {control for of in kinds.values() for control in of}
    said = {}
    for name, own in kinds.items():
        if taken and name not in taken and not arms[name].is_control and arms[name].baseline is not None:
            gain = GAINS[_kind(arms[name].baseline)]
            said[name] = (gain, *due_to_structure(own)) if gain == "shown" else (gain, "–", [])
    return said


def _kind(effect: Any) -> str:
    """Return what an arm is beside another, by a difference that was judged."""
    decision = getattr(effect, "decision", None)
    return decision.kind if decision else {True: "better", False: "worse", None: "undecided"}[effect.is_gain]


def _beside(arm: Any, other: Any, found: Any, number: int) -> tuple[Interval | None, str]:
    """Return the difference of an arm to another, and what it is beside it among so many differences."""
    if found.threshold is not None:
        more = arm.share.count * other.share.runs > other.share.count * arm.share.runs
        decided = fisher(arm.share, other.share) < FAMILY_LEVEL / number
        return None, ("better" if more else "worse") if decided else "undecided"
    if not arm.by_seed.keys() & other.by_seed.keys():
        return None, "undecided"
    values = list(paired_values(arm.by_seed, other.by_seed).values())
    shown = found.metric.cut(t_interval(values), difference=True)
    interval = t_interval(values, 1 - FAMILY_LEVEL / number)
    if len(values) < FEWEST_FOR_INTERVAL or interval.has_no_width:
        return shown, "undecided"
    if found.question is not None:
        kind = decide(values, found.question.of_family(number), found.metric).kind
    else:
        kind = judged(interval, None, found.metric)
    lost = {"better": arm.diverged, "worse": other.diverged}.get(kind, arm.diverged or other.diverged)
    return shown, "undecided" if lost else kind


def check_controls(controls: Controls | str | None, manifest: Manifest) -> dict[str, list[str]]:
    """Return arm → controls as the user named them; one name stands for every other arm but the baseline."""
    if isinstance(controls, str):
        known = {arm: [controls] for arm in manifest["arms"] if arm not in (controls, manifest["baseline"])}
        names = {controls}
    else:
        known = {arm: [of] if isinstance(of, str) else list(of) for arm, of in (controls or {}).items()}
        names = {*known, *chain.from_iterable(known.values())}
    for name in sorted(names - set(manifest["arms"])):
        raise StructuredInitError(f"'{name}' is not an arm of this comparison: {nearest(name, manifest['arms'])}")
    if itself := next((arm for arm, of in known.items() if arm in of), None):
        raise StructuredInitError(f"'{itself}' cannot be its own control: name another arm, as in {itself}=OTHER")
    return known


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


def _matches(controls: Mapping[Any, Report], arms: Mapping[Any, Report]) -> bool:
    both = controls.keys() & arms.keys()
    return bool(both) and all(is_control(controls[run], arms[run]) for run in both)


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


def parse_controls(text: str | None) -> dict[str, list[str]] | str:
    """Return initialization → controls of ``A=B,A=C,D=E``, or one name that stands for all."""
    if not text or "=" not in text:
        return text or {}
    controls: dict[str, list[str]] = {}
    for arm, _, control in (part.partition("=") for part in text.split(",")):
        controls.setdefault(arm.strip(), []).append(control.strip())
    return controls


def controls_text(controls: Controls | str | None) -> str | None:
    """Return what :func:`parse_controls` reads; None without controls."""
    if not controls or isinstance(controls, str):
        return controls or None
    return ",".join(f"{arm}={each}" for arm, of in controls.items() for each in ([of] if isinstance(of, str) else of))
