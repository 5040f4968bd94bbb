"""The arms of a comparison, from what the user writes, and their controls."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparison.results.controls import PEER, SCRAMBLED, Roles
from comparison.run.same_positions import same_positions
from lightning_modules.cli.configurations import config_names, of_control
from structured_init import Initializer, InitReport
from structured_init.controls import is_structured
from structured_init.presets import split_outside_brackets, split_overrides
from structured_init.util.errors import StructuredInitError, nearest

LONGEST = 150  # bytes of a label: most file systems end at 255, and endings of controls and files follow
INITIALIZER = re.compile(r"\w+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")  # as messages name it, with its arguments
SAME_POSITIONS, SHARPENED = "_positions", "_sharpened"
MADE = {SAME_POSITIONS: "positions", "_scrambled": SCRAMBLED, SHARPENED: "sharpened"}  # what ends a name → the role
ENDINGS = {"auto": tuple(MADE), "scrambled": ("_scrambled",), "none": ()}  # what each choice of ``--controls`` adds


@dataclass(frozen=True)
class Arm:
    """One initialization among those compared, or a variant of the network."""

    label: str  # how tables, figures and folders name it
    # a name of ``configs/init``, one of another folder of ``configs`` with the folder before it, or the path of a
    # configuration. Whatever else than an initialization the configuration says is layered over the experiment
    init: str
    overrides: Mapping[str, str] = field(default_factory=dict)  # arguments of the initializer to replace, as text

    @property
    def configuration(self) -> str:
        """What ``-c`` takes for this initialization, good from any folder."""
        file = Path(of_control(self.init)[0] or self.init)
        shipped = self.init if "/" in self.init else f"init/{self.init}"
        name = str(file.resolve().parent / Path(self.init).name) if file.is_file() else shipped
        arguments = ",".join(f"{key}={value}" for key, value in self.overrides.items())
        return f"{name}{{{arguments}}}" if arguments else name

    def control(self, ending: str) -> Arm:
        """Return the arm of a control of this one, by the ending of its name, ``"_scrambled"``, for one."""
        stem, suffix = (self.init[:-5], ".yaml") if self.init.endswith(".yaml") else (self.init, "")
        return Arm(self.label + ending, stem + ending + suffix, self.overrides)


def parse_arms(text: str) -> dict[str, Arm]:
    """Return the arms by label, in the order given."""
    arms: dict[str, Arm] = {}
    if re.search(r"^\s*,|,\s*,|,\s*$", text):
        raise StructuredInitError(f"a name is missing beside a comma of '{text}': give names, as in default,sincos")
    for entry in split_outside_brackets(text):
        below, _ = of_control(entry)  # mine_scrambled, behind mine=…
        arm = arms[below].control(entry.removeprefix(below)) if below in arms else _arm(entry)
        if arm.label in arms:
            raise StructuredInitError(
                f"two initializations are labelled '{arm.label}': name one, as in other={arm.init}"
            )
        arms[arm.label] = arm
    if not arms:
        raise StructuredInitError("--inits names no initialization: give some, as in --inits default,sincos,mimetic")
    return arms


def _arm(entry: str) -> Arm:
    found = re.fullmatch(r"(?:([^={]*)=)?([^={]+(?:\{.*\})?)", entry)
    if not found:
        raise StructuredInitError(f"cannot read '{entry}': write name, label=name or name{{argument=value}}")
    label = found[1]
    init, overrides = split_overrides(found[2])
    init = _existing(init)
    if label is None:
        name = init.replace("\\", "/").rpartition("/")[2].removesuffix(".yaml")
        changes = (f"{key.rpartition('.')[2]}_{value}" for key, value in overrides.items())  # it names a folder too
        label = "_".join([name, *(re.sub(r"[^A-Za-z0-9.+-]+", "_", change).strip("_") for change in changes)])
    label = label.strip()
    if not re.fullmatch(r"\w[\w.+-]*", label):
        raise StructuredInitError(f"'{label}' cannot be a label: use letters, digits and . _ + -, as in mine={init}")
    if len(label.encode()) > LONGEST:
        raise StructuredInitError(
            f"'{label[:20]}…' cannot be a label: it has {len(label)} characters and names folders: "
            f"give another, as in mine={init}"
        )
    return Arm(label, init, overrides)


def _existing(init: str) -> str:
    """Return the name of a shipped configuration, or a path as it is."""
    known = {name.removeprefix("init/") for name in config_names()}
    short = init.removeprefix("configs/").removeprefix("init/").removesuffix(".yaml")
    below, control = of_control(init)
    if Path(init).is_file() or (control and Path(below).is_file()):
        return init
    if short in known or of_control(short)[0] in known:
        return short
    own = f"{below if control else init}.yaml"
    near = f"did you mean '{own}'?" if Path(own).is_file() else nearest(of_control(short)[0] or short, known)
    raise StructuredInitError(f"there is no initialization '{init}', neither shipped nor a file: {near}")


def with_controls(
    arms: Mapping[str, Arm],
    initializers: Mapping[str, Initializer],
    reports: Mapping[str, Sequence[InitReport | None]],
    plan: Callable[[Arm], Sequence[InitReport | None]],
    endings: Sequence[str] = ENDINGS["auto"],
    given: Collection[str] = (),
) -> tuple[dict[str, Arm], list[str]]:
    """Return the arms with their controls, each behind its own, and what is to be said about those that there are not.

    An arm among those given that already is a control of another stays the only one. ``reports`` and ``plan`` give one
    for each network of the grid, all of which a control has to fit. Arms that are ``given`` as controls get none.
    """
    found, remarks = dict[str, Arm](), []
    refused: dict[str, list[str]] = {}  # reason without its initializer → labels
    for label, arm in arms.items():
        found[label] = arm
        if label in given or not is_structured(initializers[label]):
            continue
        for ending in endings:
            control = arm.control(ending)
            if ending == SAME_POSITIONS and (other := same_positions(label, reports)):
                remarks.append(f"{other} is the same-positions control of {label}")
            elif control.label in arms:
                if arms[control.label] != control:
                    raise StructuredInitError(f"--controls needs the label '{control.label}': rename that arm")
            elif ending == SAME_POSITIONS and None in reports[label]:
                remarks.append(f"{label} needs samples to be planned: give its same-positions control yourself")
            else:
                try:
                    if None in plan(control) and ending == SHARPENED:
                        raise StructuredInitError("there are no samples here to measure attention on: name it yourself")
                except StructuredInitError as refusal:
                    # "initialization 'mine_scrambled' (at depth 2): Scrambled: Mimetic(scale=1) has none" is
                    # "at depth 2 it has none"
                    reason = re.sub(
                        r"^(initialization '[^']*'( \((at .*?)\))?: )?(\w+: )?", r"\3 ", str(refusal)
                    ).strip()
                    refused.setdefault(INITIALIZER.sub("it", reason), []).append(control.label)
                else:
                    found[control.label] = control
    remarks += [f"left out {', '.join(labels)}: {reason}" for reason, labels in refused.items()]
    if added := [label for label in found if label not in arms]:
        remarks.insert(0, f"added {', '.join(added)}")
    return found, remarks


def controls_among(arms: Mapping[str, Arm], reports: Mapping[str, Sequence[InitReport | None]]) -> Roles:
    """Return arm → its controls among all arms → what each is; controls have none of their own.

    A control is named by its arm, ``mimetic_scrambled``, or has the same positions by the reports of the plans.
    """
    made: Roles = {}
    for label, arm in arms.items():
        for ending, role in MADE.items():
            control = arm.control(ending)
            same = [
                each.label for each in arms.values() if (each.init, each.overrides) == (control.init, control.overrides)
            ]
            made.setdefault(label, {}).update(dict.fromkeys(same, role))
    controls = {name for of in made.values() for name in of}
    found: Roles = {}
    for label, own in made.items():
        if label in controls:
            continue
        peer = "" if MADE[SAME_POSITIONS] in own.values() else same_positions(label, reports)
        found[label] = {**({peer: PEER} if peer else {}), **own}
    return {label: own for label, own in found.items() if own}
