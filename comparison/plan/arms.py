"""The arms of a comparison, from what the user writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_modules.cli.configurations import config_names, of_control
from structured_init.presets import split_outside_brackets, split_overrides
from structured_init.util.errors import StructuredInitError, nearest

LONGEST = 150  # bytes of a label: most file systems end at 255, and endings of controls and files follow


@dataclass(frozen=True)
class Arm:
    """One initialization among those compared, or a variant of the network."""

    label: str  # how tables, figures and folders name it
    # a name of ``configs/init``, one of another folder of ``configs`` with the folder before it, or the path of a
    # configuration. Whatever else than an initialization the configuration says is layered over the experiment
    init: str
    overrides: Mapping[str, str] = field(default_factory=dict)  # arguments of the initializer to replace, as text
    # the values by which it differs from the experiment, by dotted name, once it has been read
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def configuration(self) -> str:
        """What ``-c`` takes for this initialization, good from any folder."""
        file = Path(of_control(self.init)[0] or self.init)
        if file.is_file():
            name = str(file.resolve().parent / Path(self.init).name)
        else:
            name = self.init if "/" in self.init else f"init/{self.init}"
        if not self.overrides:
            return name
        arguments = ",".join(f"{key}={value}" for key, value in self.overrides.items())
        return f"{name}{{{arguments}}}"

    def control(self, ending: str) -> Arm:
        """Return the arm of a control of this one, by the ending of its name, ``"_scrambled"``, for one."""
        stem = self.init.removesuffix(".yaml")
        suffix = self.init[len(stem) :]
        return Arm(self.label + ending, stem + ending + suffix, self.overrides)


def parse_arms(text: str) -> dict[str, Arm]:
    """Return the arms by label, in the order given."""
    arms: dict[str, Arm] = {}
    for entry in split_outside_brackets(text):
        below, _ = of_control(entry)
        is_control = below in arms  # mine_scrambled, behind mine=…
        arm = arms[below].control(entry.removeprefix(below)) if is_control else _parse_arm(entry)
        if arm.label in arms:
            raise StructuredInitError(
                f"two initializations are labelled '{arm.label}': name one, as in other={arm.init}"
            )
        arms[arm.label] = arm
    if not arms:
        raise StructuredInitError("--inits names no initialization: give some, as in --inits default,sincos,mimetic")
    return arms


def _parse_arm(entry: str) -> Arm:
    found = re.fullmatch(r"(?:([^={]*)=)?([^={]+(?:\{.*\})?)", entry)
    if not found:
        raise StructuredInitError(f"cannot read '{entry}': write name, label=name or name{{argument=value}}")
    name, overrides = split_overrides(found[2])
    init = _existing(name)
    label = _label_of(init, overrides) if found[1] is None else found[1].strip()
    if not re.fullmatch(r"\w[\w.+-]*", label):
        raise StructuredInitError(f"'{label}' cannot be a label: use letters, digits and . _ + -, as in mine={init}")
    if len(label.encode()) > LONGEST:
        raise StructuredInitError(
            f"'{label[:20]}…' cannot be a label: it has {len(label)} characters and names folders: "
            f"give another, as in mine={init}"
        )
    return Arm(label, init, overrides)


def _label_of(init: str, overrides: Mapping[str, str]) -> str:
    """Return the label of an arm that has none: its name and what it changes, as a folder can be named."""
    parts = [Path(init).name.removesuffix(".yaml")]
    for key, value in overrides.items():
        change = f"{key.rpartition('.')[2]}_{value}"
        parts.append(re.sub(r"[^A-Za-z0-9.+-]+", "_", change).strip("_"))
    return "_".join(parts)


def _existing(init: str) -> str:
    """Return the name of a shipped configuration, or a path as it is."""
    known = {name.removeprefix("init/") for name in config_names()}
    short = init.removeprefix("configs/").removeprefix("init/").removesuffix(".yaml")
    file = of_control(init)[0] or init
    name = of_control(short)[0] or short
    if Path(file).is_file():
        return init
    if short in known or name in known:
        return short
    near = nearest(name, known)
    raise StructuredInitError(f"there is no initialization '{init}', neither shipped nor a file: {near}")
