"""Configurations by name: ``-c vit_digits -c init/mimetic`` works in a clone and outside of one.

One resolver for all ways to name one: a path or a shipped name, either with arguments in braces behind it, or with a
control's ending. A file is read after those under its key ``layers``, as if each were
given by ``-c``, and once by itself, so that what is wrong in it is answered with its name and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from structured_init.presets import CONTROLS, SHIPPED, split_overrides
from structured_init.util.errors import StructuredInitError, nearest

KEY = "layers"
SECTIONS = ("trainer", "init", "attention", "filters", "model", "data")


def layers_in(text: str) -> list[str]:
    """Return the names under ``layers``; none where the text is no YAML, which the parser of the options reports."""
    try:
        given = yaml.load(text, Loader=Loader)[KEY]
    except (yaml.YAMLError, TypeError, KeyError):
        return []
    return [given] if isinstance(given, str) else [str(each) for each in given or []]


def without(text: str, *names: str) -> str:
    """Return a configuration without some of its keys; every other line keeps its number."""
    if not re.search(rf"^({'|'.join(names)})\s*:", text, re.MULTILINE):
        return text
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text
    lines, keys = text.splitlines(), node.value if isinstance(node, yaml.MappingNode) else []
    for key, value in keys:
        if key.value in names:
            begin, end = key.start_mark.line, value.end_mark.line + (value.end_mark.column > 0)
            lines[begin:end] = [""] * (end - begin)
    if keys and all(key.value in names for key, _ in keys):
        lines[:1] = ["{}"]  # jsonargparse refuses a text that says nothing
    return "\n".join(lines) + "\n"


def merged(below: Mapping[str, Any], above: Mapping[str, Any], *, section: bool = True) -> dict[str, Any]:
    """Return one configuration layered over another, by the rule of the command line.

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


Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_config(path: str) -> str:
    """Return the path of a configuration file, YAML or JSON (which YAML includes); refuse one that is none.

    It has to hold keys, and each once: of a key that is given twice the parser would silently take the last.
    """
    try:
        root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=Loader)
        yaml.load(Path(path).read_text(encoding="utf-8"), Loader=Loader)
    except OSError as error:
        raise StructuredInitError(f"cannot read '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StructuredInitError(
            f"'{path}' is not a configuration: byte {error.start} is not UTF-8 text; give a checkpoint with --ckpt_path"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise StructuredInitError(f"'{path}'{where}: {_problem(error)}") from error
    except yaml.YAMLError as error:
        raise StructuredInitError(f"'{path}' is not YAML: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        found = "is empty" if root is None else "holds no keys"
        raise StructuredInitError(f"'{path}' {found}: a configuration has sections such as 'model:' and 'trainer:'")
    for node, why in _wrong_keys(root):
        raise StructuredInitError(f"'{path}', line {node.start_mark.line + 1}: {why}")
    return path


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if "cannot start any token" in problem:
        return f"{problem}: indent with spaces, not tabs"
    return f"{error.context}, {problem}" if error.context else problem


def _wrong_keys(root: yaml.MappingNode) -> Iterator[tuple[yaml.Node, str]]:
    """Yield keys that are no names, stand twice, or beside ``init_args`` in place of below it, and what is wrong."""
    for key, value in root.value:
        if isinstance(value, yaml.SequenceNode) and key.value in ("init", "attention", "filters"):
            yield key, f"'{key.value}' is a section, got a list: leave out the dashes"
        if key.value == KEY and not value.tag.endswith((":seq", ":str", ":null")):
            yield key, f"'{KEY}' is a list of names, as in [vit_digits]"
    waiting, seen, within = [root], set(), {}
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set()
            names = [key.value for key, _ in node.value]
            # Without a class, where the experiment has it: only of the sections that are one.
            alone = "init_args" if within.get(id(node)) in ("model", "data", "optimizer", "initializer") else ""
            of_class = next((each for each in ("class_path", alone) if each in names), "")
            for key, value in node.value:
                if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):  # {lr: 0,001} has the key 001
                    yield key, f"the key {key.value} is not a name; write a decimal as 0.001"
                if key.value in keys and isinstance(key, yaml.ScalarNode):
                    yield key, f"'{key.value}' is given twice, and only the last would count"
                if of_class and key.value not in ("class_path", "init_args", "dict_kwargs", "<<"):
                    yield key, _beside_class(key.value, within.get(id(node), ""), of_class)
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else None)
                within[id(value)] = key.value
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)


def misplaced(inner: str, around: str) -> str:
    """Return what is wrong with a section inside of another, or of itself."""
    if inner == around:
        return f"'{inner}:' stands inside of '{inner}:': write it once"
    return f"'{inner}:' stands inside of '{around}:': it is a section of its own, beside '{around}:'"


def _beside_class(key: str, section: str, beside: str) -> str:
    if key in SECTIONS and section in SECTIONS:
        return misplaced(key, section)
    near = nearest(key, ["init_args"] if beside == "class_path" else ["init_args", "class_path"])
    if near.startswith("did"):
        return f"unknown key '{key}': {near}"
    return f"'{key}' stands beside '{beside}': arguments of the class go below 'init_args'"


OPTIONS = ("-c", "--config")
PREFIX = "--init.initializer.init_args."


@dataclass(frozen=True)
class Configuration:
    """What a name stands for."""

    files: tuple[Path, ...]  # the one that is named, after those that it is layered over
    overrides: dict[str, str] = field(default_factory=dict)  # arguments of the initializer to replace, as text
    control: str = ""  # the class that its initializer is given to, where a control of it is meant

    def words(self, option: str = "-c") -> list[str]:
        """Return the part of a command line that asks for it."""
        words = []
        for file in self.files:
            words += [option, str(file)]
        if not self.control:
            return [*words, *(f"{PREFIX}{key}={value}" for key, value in self.overrides.items())]
        return [*words, f"--init.initializer={json.dumps(self.content()['init']['initializer'])}"]

    def content(self) -> dict[str, Any]:
        """Return what the files and the overrides say, as the command line does it."""
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
def shipped_configs() -> dict[str, Path]:
    """Return the shipped files by their names, such as ``init/mimetic``."""
    return {path.relative_to(SHIPPED).with_suffix("").as_posix(): path for path in sorted(SHIPPED.glob("*/*.yaml"))}


def config_names() -> list[str]:
    """Return every name that ``-c`` knows."""
    return sorted(shipped_configs())


def find_config(name: str) -> Configuration:
    """Return what a name stands for.

    Args:
        name: a path; or a shipped name, as ``configs/init/mimetic.yaml``, ``init/mimetic``, or ``mimetic`` where only
            one folder has it, or where the folder is ``experiment``. Either may have arguments of the initializer in
            braces behind it. With ``_scrambled``, ``_sharpened`` or ``_positions`` behind the name, a control
            of it is meant: the same weights with their alignment destroyed, these with attention as sharp, or the same
            positions alone.

    Raises:
        StructuredInitError: there is no such file (the nearest is named), or several; the braces are malformed; a file
            is layered over itself.
    """
    name, overrides = (name, {}) if Path(name).is_file() else split_overrides(name)
    if Path(name).is_file():
        return Configuration(_with_layers(Path(name)), overrides)
    below, control = of_control(name)
    if control:
        return replace(find_config(below), overrides={**find_config(below).overrides, **overrides}, control=control)
    return Configuration(_with_layers(_shipped_file(name)), overrides)


def of_control(name: str) -> tuple[str, str]:
    """Return the name of what a control is made of and the control's class; two empty texts for any other name."""
    stem, suffix = (name[:-5], ".yaml") if name.endswith(".yaml") else (name, "")
    known = {each for key in config_names() for each in (key, key.partition("/")[2])}
    for ending, control in CONTROLS.items():
        below = stem.removesuffix(ending)
        if below not in (stem, "") and stem.removeprefix("configs/") not in known:
            return below + suffix, control
    return "", ""


def expand(args: list[str]) -> list[str]:
    """Replace configuration names by paths, each after those it is layered over, and give a lone flag its value."""
    expanded: list[str] = []
    given = [value for option, value in pairwise(args) if option in OPTIONS]
    experiments = [name for name in given if _is_experiment(name)]
    if len(set(experiments)) > 1:
        one, two = experiments[:2]
        raise StructuredInitError(f"'{one}' and '{two}' are both experiments: -c takes one; give one of the two")
    for index, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        if index and args[index - 1] in OPTIONS:
            option = expanded.pop()
            expanded += find_config(argument).words(option)
        elif equals and option in OPTIONS:
            expanded += find_config(value).words(option)
        elif argument == "--plan" and (args[index + 1 : index + 2] or ["-"])[0].startswith("-"):
            expanded.append(f"{argument}=true")
        else:
            expanded.append(argument)
    return expanded


def _is_experiment(name: str) -> bool:
    short = name.removeprefix("configs/").removesuffix(".yaml").removeprefix("experiment/")
    return not Path(name).is_file() and f"experiment/{short}" in config_names()


def _shipped_file(name: str) -> Path:
    """Return the file of a shipped configuration, with its folder before the name or without."""
    known = shipped_configs()
    short = name.removeprefix("configs/").removesuffix(".yaml")
    for key in (short, f"experiment/{short}"):
        if key in known:
            return known[key]
    matches = [key for key in known if key.partition("/")[2] == short]
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        raise StructuredInitError(f"several configurations are named '{name}': choose from {', '.join(matches)}")
    if name and Path(name).is_dir():
        files = sorted(str(file) for file in Path(name).iterdir() if file.suffix in (".yaml", ".yml", ".json"))
        inside = f"name a file in it, {nearest('', files)}" if files else "it holds no configuration"
        raise StructuredInitError(f"'{name}' is a folder: {inside}")
    names = known if "/" in short else {key.partition("/")[2] for key in known}
    inits = [key if "/" in short else key.partition("/")[2] for key in known if key.startswith("init/")]
    near = nearest(short, {*names, *(each + ending for each in inits for ending in CONTROLS)})
    if name.endswith((".yaml", ".yml")):
        near = nearest(name, map(str, Path(name).parent.glob("*.y*ml")))
    near = near if near.startswith("did") else nearest(short, names)
    near = "each of several has a -c of its own" if "," in name else near
    raise StructuredInitError(f"there is no file '{name}', nor a shipped configuration: {near}")


def _with_layers(file: Path, above: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return a file after those it is layered over, each before what is layered over it."""
    if file in above:
        raise StructuredInitError(f"'{file}' includes itself: remove it from 'layers'")
    check_config(str(file))
    below: list[Path] = []
    for name in layers_in(file.read_text(encoding="utf-8", errors="replace")):
        beside = file.parent / name  # a layer is a path seen from the file that names it, or a shipped name
        try:
            layer = beside if beside.is_file() else _shipped_file(name)
        except StructuredInitError as error:
            raise StructuredInitError(f"'{file}', {KEY}: {error}") from error
        below += _with_layers(layer, (*above, file))
    return (*below, file)


GAINS = SHIPPED / "gains.yaml"
# What layers an initialization is made for, by what its file says of networks; the first that is found counts.
KINDS = {"attention": "transformer|language model|attention", "state space": "Mamba", "convolution": "conv", "any": ""}


def initializations() -> list[dict[str, Any]]:
    """Return every shipped initialization by group: its name, what it is, for which networks, and what it gained here.

    All but the last stand at the top of its file; what it calls a control is one unless a paper has it. Gains are those
    of the page of claims, which writes them to ``configs/gains.yaml``; none where nothing was measured.
    """
    gains = yaml.safe_load(GAINS.read_text(encoding="utf-8"))
    rows = []
    for file in sorted((SHIPPED / "init").glob("*.yaml")):
        comment = [line[2:] for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
        text = [line for line in comment if not re.match("(For|Card|Control of): ", line)]
        networks = next(line.removeprefix("For: ") for line in comment if line.startswith("For: "))
        what = re.match(r".*?\.(?= [A-Z]|$)", " ".join(text))
        row = {"name": file.stem, "what": what[0] if what else text[0], "networks": networks}
        control = any(line.startswith("Control of: ") for line in comment) and not re.search(r"\d{4}\.", row["what"])
        row["kind"] = "controls" if control else next(kind for kind in KINDS if re.search(KINDS[kind], networks))
        rows.append({**row, **gains.get(file.stem, {"gain": None, "controls": None, "today": None})})
    return sorted(rows, key=lambda row: [*KINDS, "controls"].index(row["kind"]))
