"""The arms of a comparison, from what the user writes: ``default,strong=impulse{kernel_size=5,shared=true}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightning_modules.cli.config_names import config_names, of_control, override_words
from structured_init.errors import StructuredInitError, nearest
from structured_init.presets import split_outside_brackets, split_overrides

LONGEST = 150  # bytes of a label: most file systems end at 255, and endings of controls and files follow


@dataclass(frozen=True)
class Arm:
    """One initialization among those compared, or a variant of the network.

    Attributes:
        label: how tables, figures and folders name it.
        init: a name of ``configs/init``, one of another folder of ``configs`` with the folder before it, or the path of
            a configuration. Whatever else than an initialization the configuration says is layered over the experiment.
        overrides: arguments of the initializer to replace, as text.
    """

    label: str
    init: str
    overrides: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """Return the part of a command line that asks for this initialization, good from any folder."""
        file = Path(of_control(self.init)[0] or self.init)
        shipped = self.init if "/" in self.init else f"init/{self.init}"
        path = str(file.resolve().parent / Path(self.init).name) if file.is_file() else shipped
        if not of_control(self.init)[1] or not self.overrides:
            return ["-c", path, *override_words(self.overrides)]
        arguments = ",".join(f"{key}={value}" for key, value in self.overrides.items())
        return ["-c", f"{path}{{{arguments}}}"]  # they are those of the initializer inside the control

    def control(self, ending: str) -> Arm:
        """Return the arm of a control of this one, by the ending of its name, ``"_scrambled"``, for one."""
        stem, suffix = (self.init[:-5], ".yaml") if self.init.endswith(".yaml") else (self.init, "")
        return Arm(self.label + ending, stem + ending + suffix, self.overrides)


def parse_arms(text: str) -> dict[str, Arm]:
    """Return the arms by label, in the order given.

    Args:
        text: entries separated by commas: a shipped name (of ``configs/init`` without its folder) or a path, with
            ``label=`` before it and arguments of the initializer in braces behind it, where wanted. Commas inside
            brackets of any kind do not separate.

    Raises:
        StructuredInitError: no entry, an unknown name (the nearest is named), a malformed entry, a label given twice.
    """
    arms: dict[str, Arm] = {}
    for entry in split_outside_brackets(text):
        arm = _arm(entry)
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
        words = [name, *(_short(*item) for item in overrides.items())]
        label = "_".join(words)
    label = label.strip()
    if not re.fullmatch(r"\w[\w.+-]*", label):
        raise StructuredInitError(f"'{label}' cannot be a label: use letters, digits and . _ + -, as in mine={init}")
    if len(label.encode()) > LONGEST:
        raise StructuredInitError(
            f"'{label[:20]}…' cannot be a label: it has {len(label)} characters and names folders: "
            f"give another, as in mine={init}"
        )
    return Arm(label, init, overrides)


def _short(key: str, value: str) -> str:
    """Return an override as part of a label, which also names a folder."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "_", f"{key.rpartition('.')[2]}_{value}").strip("_")


def _existing(init: str) -> str:
    """Return the name of a shipped configuration, or a path as it is."""
    known = {name.removeprefix("init/") for name in config_names()}
    short = init.removeprefix("configs/").removeprefix("init/").removesuffix(".yaml")
    below, control = of_control(init)
    if Path(init).is_file() or (control and Path(below).is_file()):
        return init
    if short in known or of_control(short)[0] in known:
        return short
    near = nearest(of_control(short)[0] or short, known)
    raise StructuredInitError(f"there is no initialization '{init}', neither shipped nor a file: {near}")
