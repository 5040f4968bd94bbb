"""Configurations by name: ``-c vit_digits -c init/mimetic`` works in a clone and outside of one.

A name is a path or a shipped name, with arguments of the initializer in braces behind it, or with a control's ending.
A file is read after those under its key ``layers``, as if each were given by ``-c``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

from structured_init.presets import CONTROLS, SHIPPED, split_overrides
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import read_text
from structured_init.util.yaml_reader import read_yaml

KEY = "layers"
LOOKING = ("show", "audit")  # commands that train and evaluate nothing
OF_RUNS = ("ckpt_path", "weights_only")  # keys of a run's configuration that these do not take
CONFIG = "--config"
INITIALIZER = "--init.initializer"


def read_config(file: Path) -> dict[str, Any]:
    """Return what a configuration file says, YAML or JSON (which YAML includes); refuse one that is none."""
    content = read_yaml(read_text(file), f"'{file}'")
    if not isinstance(content, dict):
        raise StructuredInitError(f"'{file}' holds no keys: a configuration has sections such as 'model:' and 'init:'")
    init = content.get("init", {})
    if not isinstance(init, dict):
        raise StructuredInitError(f"'{file}': init is a section with keys such as initializer and seed")
    if "initializer" in init:
        init["initializer"] = _as_class(init["initializer"])
    return content


def merged(below: Mapping[str, Any], above: Mapping[str, Any], *, section: bool = True) -> dict[str, Any]:
    """Return one configuration layered over another.

    Sections, classes and their ``init_args`` are merged. A dictionary that is the value of one argument, such as
    ``network_args``, is replaced as a whole; so are the arguments of a class by those of another class.

    ``above`` is the content of the file that comes later, and ``section`` says whether the keys are sections.
    """
    whole = dict(below)
    if "class_path" in above and above["class_path"] != below.get("class_path"):
        whole.pop("init_args", None)
    for key, value in above.items():
        known = whole.get(key)
        mappings = isinstance(value, Mapping) and isinstance(known, Mapping)
        if mappings and (section or key == "init_args" or {"class_path", "init_args"} & {*value, *known}):
            whole[key] = merged(known, value, section=False)
        else:
            whole[key] = value
    return whole


@dataclass(frozen=True)
class Configuration:
    """What a name stands for."""

    file: Path
    contents: list[dict[str, Any]]  # of the files it is layered over, its own, then those of braces and of a control

    def content(self) -> dict[str, Any]:
        """Return what all of it says together."""
        return reduce(merged, self.contents)


@cache
def shipped_configs() -> dict[str, Path]:
    """Return the shipped files by their names, such as ``init/mimetic``."""
    return {path.relative_to(SHIPPED).with_suffix("").as_posix(): path for path in sorted(SHIPPED.glob("*/*.yaml"))}


def config_names() -> list[str]:
    """Return every name that ``-c`` knows."""
    return sorted(shipped_configs())


def shipped_file(name: str) -> Path | None:
    """Return the shipped file of a name; its folder may be left out where that is ``experiment`` or ``init``."""
    known = shipped_configs()
    short = name.removesuffix(".yaml")
    return known.get(short) or known.get(f"experiment/{short}") or known.get(f"init/{short}")


def find_config(name: str) -> Configuration:
    """Return what a name stands for.

    Args:
        name: a path; or a shipped name, such as ``init/mimetic``, whose folder may be left out where that is
            ``experiment`` or ``init``. Either may have arguments of the initializer in braces behind it. With
            ``_scrambled``, ``_sharpened`` or ``_positions`` behind the name, a control of it is meant: the same weights
            with their alignment destroyed, these with attention as sharp, or the same positions alone.

    Raises:
        StructuredInitError: there is no such file (the nearest is named); the braces are malformed; a file is layered
            over itself.
    """
    stem, overrides = split_overrides(name)
    below, control = of_control(stem)
    file = _existing_file(below or stem)
    contents = _contents(file)
    if overrides:
        arguments = {key: value and read_yaml(value, f"{key}={value}") for key, value in overrides.items()}
        contents.append({"init": {"initializer": {"init_args": arguments}}})
    if control:
        inner = reduce(merged, contents).get("init", {}).get("initializer")
        if inner is None:
            raise StructuredInitError(f"'{file}' sets no initializer, so no control of it can be made")
        contents.append({"init": {"initializer": {"class_path": control, "init_args": {"initializer": inner}}}})
    return Configuration(file, contents)


def of_control(name: str) -> tuple[str, str]:
    """Return the name of what a control is made of and the control's class; two empty texts for any other name."""
    stem = name.removesuffix(".yaml")
    for ending, control in CONTROLS.items():
        if stem.endswith(ending):
            return stem.removesuffix(ending) + name.removeprefix(stem), control
    return "", ""


def _existing_file(name: str) -> Path:
    file = Path(name) if Path(name).is_file() else shipped_file(name)
    if file is None:
        bare = [key.partition("/")[2] for key in config_names()]
        valid = [*config_names(), *bare, *map(str, Path(name).parent.glob("*.y*ml"))]
        near = nearest(name.removesuffix(".yaml"), valid)
        raise StructuredInitError(f"there is no file '{name}', nor a shipped configuration: {near}")
    return file


def _contents(file: Path, above: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """Return what a file says after what those say that it is layered over, each before what is layered over it."""
    if file in above:
        raise StructuredInitError(f"'{file}' includes itself: remove it from '{KEY}'")
    content = read_config(file)
    names = content.pop(KEY, None) or []
    contents = []
    for name in [names] if isinstance(names, str) else names:
        beside = file.parent / name  # a layer is a path seen from the file that names it, or a shipped name
        contents += _contents(beside if beside.is_file() else _existing_file(name), (*above, file))
    return [*contents, content]


def expand(args: list[str]) -> list[str]:
    """Replace configuration names by what they say: JSON of each file, after those that it is layered over.

    Of two initializers the later one counts alone: no argument of the other is left. The parser would keep those that
    both have.
    """
    init: dict[str, Any] = {"initializer": {"class_path": "Default"}}
    expanded = []
    words = iter(args[1:])
    for word in words:
        option, equals, value = word.partition("=")
        if option not in ("-c", CONFIG, INITIALIZER):
            expanded.append("--plan=true" if word == "--plan" else word)
            continue
        if not equals:
            value = next(words, "")
        if option == INITIALIZER:
            init = merged(init, {"initializer": _as_class(read_yaml(value, INITIALIZER))})
            continue
        for content in find_config(value).contents:
            init = merged(init, content.pop("init", {}))
            if args[0] in LOOKING:
                content = {key: each for key, each in content.items() if key not in OF_RUNS}
            expanded += [CONFIG, json.dumps(content, default=str)]
    return [args[0], CONFIG, json.dumps({"init": init}, default=str), *expanded]


def _as_class(given: Any) -> dict[str, Any]:
    """Return a class with its arguments as a dictionary, under the short name where it is one of ours."""
    node = {"class_path": given} if isinstance(given, str) else dict(given)
    if "class_path" in node:
        node["class_path"] = node["class_path"].removeprefix("structured_init.")
    return node
