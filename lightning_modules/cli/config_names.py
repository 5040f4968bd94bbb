"""Configuration files by name: ``-c vit_digits -c init/mimetic`` works in a clone and outside of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.cli.config_files import check_config, refuse_folder
from lightning_modules.cli.layers import KEY, layers_in, merged
from structured_init.errors import StructuredInitError, nearest
from structured_init.presets import ALIASES, CONTROLS, SHIPPED, split_overrides

OPTIONS = ("-c", "--config")
FLAGS = ("--plan",)
PREFIX = "--init.initializer.init_args."


@dataclass(frozen=True)
class Configuration:
    """What a name stands for.

    Attributes:
        files: the file, after those that it is layered over.
        overrides: arguments of the initializer to replace, as text.
        control: the class that its initializer is given to, where a control of it is meant.
    """

    files: tuple[Path, ...]
    overrides: dict[str, str] = field(default_factory=dict)
    control: str = ""

    def words(self, option: str = "-c") -> list[str]:
        """Return the part of a command line that asks for it."""
        files = [word for file in self.files for word in (option, str(file))]
        if not self.control:
            return [*files, *override_words(self.overrides)]
        return [*files, f"--init.initializer={json.dumps(self.content()['init']['initializer'])}"]

    def content(self) -> dict[str, Any]:
        """Return what the files and the overrides say, layered as the command line does it."""
        whole: dict[str, Any] = {}
        for file in self.files:
            whole = merged(whole, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
        whole.pop(KEY, None)
        if self.overrides:
            arguments = {key: value and yaml.safe_load(value) for key, value in self.overrides.items()}
            whole = merged(whole, {"init": {"initializer": {"init_args": arguments}}})
        if self.control:
            inner = whole.get("init", {}).get("initializer")
            if inner is None:
                raise StructuredInitError(f"'{self.files[-1]}' sets no initializer, so no control of it can be made")
            inner = {"class_path": inner} if isinstance(inner, str) else inner
            whole["init"]["initializer"] = {"class_path": self.control, "init_args": {"initializer": inner}}
        return whole


@cache
def shipped_configs(root: Path = SHIPPED) -> dict[str, Path]:
    """Return the shipped files by their names, such as ``init/mimetic``."""
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.glob("*/*.yaml"))}


@cache
def aliases(root: Path = SHIPPED) -> dict[str, str]:
    """Return the names that stand for a shipped file with other arguments, such as ``covariance{frozen=true}``."""
    table = yaml.safe_load((root / ALIASES).read_text(encoding="utf-8"))
    return {
        f"{folder}/{name}": f"{folder}/{meaning}" for folder, names in table.items() for name, meaning in names.items()
    }


def config_names() -> list[str]:
    """Return every name that ``-c`` knows: of shipped files and of their variants."""
    return sorted({*shipped_configs(), *aliases()})


def find_config(name: str) -> Configuration:
    """Return what a name stands for.

    Args:
        name: a path; or a shipped name, as ``configs/init/mimetic.yaml``, ``init/mimetic``, or ``mimetic`` where only
            one folder has it, or where the folder is ``experiment``. Either may have arguments of the initializer in
            braces behind it. With ``_scrambled``, ``_sharpened`` or ``_positions`` behind the name, a control of it is
            meant: the same weights with their alignment destroyed, these with attention as sharp, or the same positions
            alone.

    Raises:
        StructuredInitError: there is no such file (the nearest is named), or several; the braces are malformed; a file
            is layered over itself.
    """
    if Path(name).is_file():
        return Configuration(_with_layers(Path(name)))
    name, overrides = split_overrides(name)
    if Path(name).is_file():
        return Configuration(_with_layers(Path(name)), overrides)
    below, control = of_control(name)
    if control:
        return replace(find_config(below), overrides={**find_config(below).overrides, **overrides}, control=control)
    key = _shipped_name(name)
    if key in aliases():
        below = find_config(aliases()[key])
        return Configuration(below.files, {**below.overrides, **overrides})
    return Configuration(_with_layers(shipped_configs()[key]), overrides)


def of_control(name: str) -> tuple[str, str]:
    """Return the name of what a control is made of and the control's class; two empty texts for any other name."""
    stem, suffix = (name[:-5], ".yaml") if name.endswith(".yaml") else (name, "")
    known = {each for key in config_names() for each in (key, key.partition("/")[2])}
    for ending, control in CONTROLS.items():
        below = stem.removesuffix(ending)
        if below not in (stem, "") and stem.removeprefix("configs/") not in known:
            return below + suffix, control
    return "", ""


def read_config(name: str) -> dict[str, Any]:
    """Return the content of a configuration with what it is layered over, as plain types."""
    return find_config(name).content()


def override_words(overrides: dict[str, str]) -> list[str]:
    """Return the part of a command line that replaces arguments of the initializer."""
    return [f"{PREFIX}{key}={value}" for key, value in overrides.items()]


def expand(args: list[str]) -> list[str]:
    """Replace configuration names by paths, each after those it is layered over, and give a lone flag its value.

    Args:
        args: a command line without the program's name.
    """
    expanded: list[str] = []
    for index, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        if index and args[index - 1] in OPTIONS:
            option = expanded.pop()
            expanded += find_config(argument).words(option)
        elif equals and option in OPTIONS:
            expanded += find_config(value).words(option)
        elif argument in FLAGS and (args[index + 1 : index + 2] or ["-"])[0].startswith("-"):
            expanded.append(f"{argument}=true")
        else:
            expanded.append(argument)
    return expanded


def _shipped_name(name: str) -> str:
    """Return the full name of a shipped configuration, its folder first."""
    known = config_names()
    short = name.removeprefix("configs/").removesuffix(".yaml")
    for key in (short, f"experiment/{short}"):
        if key in known:
            return key
    matches = [key for key in known if key.partition("/")[2] == short]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StructuredInitError(f"several configurations are named '{name}': choose from {', '.join(matches)}")
    refuse_folder(name)
    names = known if "/" in short else {key.partition("/")[2] for key in known}
    raise StructuredInitError(f"there is no file '{name}', nor a shipped configuration: {nearest(short, names)}")


def _with_layers(file: Path, above: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return a file after those it is layered over, each before what is layered over it."""
    if file in above:
        raise StructuredInitError(f"'{file}' includes itself: remove it from 'layers'")
    check_config(str(file))
    return (*_layers(file, (*above, file)), file)


def _layers(file: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    for name in layers_in(file.read_text(encoding="utf-8", errors="replace")):
        beside = file.parent / name  # a layer is a path seen from the file that names it, or a shipped name
        yield from _with_layers(beside if beside.is_file() else shipped_configs()[_shipped_name(name)], above)
