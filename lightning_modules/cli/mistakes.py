"""Known mistakes on the command line and their answers: one line each that says what would be right.

``PATTERNS`` goes from jsonargparse's trees of failed attempts to an answer; ``CUSTOMARY`` and ``COMMANDS`` say what
other programs call a thing; :func:`answer` tells Lightning's complaints from bugs; and :func:`check_trainer` says what
Lightning says badly, late, or not at all.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import tempfile
import traceback
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonargparse
import lightning
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy, StrategyRegistry
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim import Optimizer

from lightning_modules.cli.commands import BUILT_IN, PACKAGES, added_commands
from lightning_modules.cli.configurations import SECTIONS, config_names, misplaced
from structured_init import Initializer
from structured_init.presets import preset_names
from structured_init.util.arguments import parse_duration
from structured_init.util.errors import StructuredInitError, nearest, one_line

# What a section of the configuration may hold, by the start of its key; the first that fits counts.
BASES: dict[str, type] = {
    "init": Initializer,
    "data": LightningDataModule,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
    "trainer.strategy": Strategy,
    "model.network": nn.Module,
    "model.optimizer": Optimizer,
    "model": LightningModule,
}

# What other programs call a command of this one.
COMMANDS = {
    "train": "fit",
    "run": "fit",
    "eval": "test",
    "evaluate": "test",
    "plot": "show",
    "init": "show",
    "check": "audit",
}


class Mistake(NamedTuple):
    """What a pattern has found in jsonargparse's message, what stands before and after it, and every known key."""

    found: re.Match[str]
    before: str
    after: str
    keys: list[str]

    @property
    def names(self) -> list[str]:
        return re.findall(r'Parser key "([\w.]+)"', self.before)

    @property
    def key(self) -> str:
        return ".".join(dict.fromkeys(self.names))

    @property
    def given(self) -> re.Match[str] | None:
        return re.search(r"(?:Got|Given) value: (.*)", self.after)

    @property
    def owners(self) -> list[str]:
        """The classes whose arguments were read, the innermost last."""
        within = re.findall(r"given class_path '([\w.]+)'", self.before)
        return within + re.findall(r"^\. Got value: Namespace\(class_path='([\w.]+)'", self.after)  # of a callable


def explain(message: str, known_keys: Iterable[str]) -> str:
    """Return one line for jsonargparse's message of many lines; of all keys that are known, it names the nearest."""
    # Where a name would do as well as a class, what is wrong with the class that was given is worth saying.
    message = re.sub(r"- Expected a <class 'str'>\s*(?=- (Problem with given class|Expected a dot))", "", message)
    for pattern, answer in PATTERNS.items():
        if found := re.search(pattern, message):
            mistake = Mistake(found, message[: found.start()], message[found.end() :], list(known_keys))
            if callable(answer):
                return answer(mistake)
            return answer.format(*found.groups(), key=mistake.key, commands=", ".join([*BUILT_IN, *added_commands()]))
    return _deepest(message)


def _unknown_argument(mistake: Mistake) -> str:
    name = mistake.found[1]
    if not mistake.owners:
        return f"unknown key '{name}': {suggest(name, mistake.keys)}"
    owner, section = mistake.owners[-1], name.partition(".")[0]
    if name == "class":
        return "unknown key 'class': did you mean 'class_path'?"
    if owner.endswith(".LightningModule"):  # the class of the task is not known
        return f"'{name}' is an argument of the task, which is not given: add --model=ImageClassifier, or another"
    if section in SECTIONS and section not in set(_arguments(owner)):
        return misplaced(section, mistake.key)
    if owner.rpartition(".")[2] == "Compose":
        near = suggest(name, {each for cls in _subclasses(Initializer) for each in argument_names(cls)})
        if near.startswith("did") and f"'{name}'" not in near:
            return f"neither Compose nor its parts take '{name}': {near}"
        return f"Compose takes no argument '{name}', its parts do: as in -c 'init/mimetic{{qk_alpha=0.3}}'"
    if owner.rpartition(".")[2] == "Default":
        return f"Default takes no argument '{name}': give an initialization first, as in -c init/mimetic"
    return f"{owner.rpartition('.')[2]} takes no argument '{name}': {suggest(name, set(_arguments(owner)))}"


def _unknown_class(mistake: Mistake) -> str:
    # A class may be but one of the choices.
    kinds = re.search(r"((?:- Expected an? (?:<class '\w+'>|typing\.Literal\[.*?\])\s*)+)- $", mistake.before)
    name, given = ".".join(mistake.names), mistake.found[1]
    if kinds and (choices := _choices(kinds[1])) not in ([], ["list"]):
        return f"{name}: expected {' or '.join(choices)}, got {given}"
    key = name.replace(".init_args", "")
    base = next((base for start, base in BASES.items() if key.startswith(start)), None)
    valid = set() if base is None else {cls.__name__ for cls in _subclasses(base)}
    if key == "model" and given[:1].islower() and "." not in given:
        return f"model: '{given}' is no class of a task: a network is given with --model.network={given}"
    return f"{name or 'class_path'}: unknown class '{given}': {nearest(given, valid)}"


def _unknown_key(mistake: Mistake) -> str:
    name = mistake.found[1].lstrip("-").partition("=")[0]
    around, inner = [*name.split("."), ""][:2]
    if around in SECTIONS and inner in SECTIONS:
        return misplaced(inner, around)
    return f"unknown key '{name}': {suggest(name, [*mistake.keys, 'help', 'config', 'no-open'])}"


def is_config(name: str) -> bool:
    """Say whether ``-c`` knows a name with its folder, or an experiment without it."""
    return name in config_names() or f"experiment/{name}" in config_names()


def _unrecognized(mistake: Mistake) -> str:
    name = mistake.found[1]
    if name.startswith("-"):
        return _unknown_key(mistake)
    if name.endswith((".yaml", ".yml", ".json")) or Path(name).is_file() or is_config(name):
        return f"'{name}' belongs to no option: a configuration is given with -c {name}"
    if re.match(r"[\w.]+=", name):
        key, value = name.split("=", 1)
        right = re.match(r"did you mean '(.*)'", suggest(key, mistake.keys))
        return (
            f"'{name}' belongs to no option: an option begins with two dashes, --{right[1] if right else key}={value}"
        )
    experiments = {each.removeprefix("experiment/") for each in config_names() if each.startswith("experiment/")}
    near = nearest(name, experiments.union(map(str, Path().glob("*.yaml"))))
    if near.startswith("did"):
        return f"'{name}' belongs to no option: a configuration is given with -c: {near}"
    if re.fullmatch(r"(s|sec|second|m|min|minute|h|hour|d|day)s?", name):
        return f"'{name}' belongs to no option: a time is one word, such as 5min or 2h"
    inside = " or -c ".join(each for each in config_names() if each.endswith(f"/{name}"))
    config = f"a configuration is given with -c {inside}, and " if inside else ""
    return f"'{name}' belongs to no option: {config}several values are joined by commas, without spaces"


def _unknown_command(mistake: Mistake) -> str:
    meant = COMMANDS.get(mistake.found[1].lower(), mistake.found[1])
    return f"unknown command '{mistake.found[1]}': {nearest(meant, [*BUILT_IN, *added_commands()])}"


def _unknown_path(mistake: Mistake) -> str:
    path, missing = (*mistake.found.groups(), None)[:2]
    module, _, name = path.rpartition(".")
    what = f"{mistake.key}: there is no class '{path}'"
    if missing is None:
        found = None
        while found is None:
            try:
                found = vars(importlib.import_module(module))
            except ModuleNotFoundError:  # torch.optmi: what is wrong is nearer to the beginning
                module, _, name = module.rpartition(".")
        known = [key for key, each in found.items() if inspect.isclass(each) or inspect.ismodule(each)]
        return f"{what}: {nearest(name, [key for key in known if not key.startswith('_')])}"
    near = nearest(missing, [each.stem for each in Path().glob("*.py")]) if module.startswith(missing) else ""
    also = f"; {near}" if near.startswith("did") else ""
    return f"{what}: there is no module '{missing}' in the present folder or among what is installed{also}"


def _required(mistake: Mistake) -> str:
    missing = mistake.found[1].partition(".")[2] or mistake.found[1]
    if owners := re.findall(r"given class_path '([\w.]+)'", mistake.before):
        return f"{owners[-1].rpartition('.')[2]} needs the argument '{missing}'"
    return f"no {missing} is given: add a configuration with -c, or --{missing}"


def _wrong_type(mistake: Mistake) -> str:
    found, given = mistake.found, mistake.given
    got = (found[2] or (given[1] if given else "")).partition(". Got value: ")[0].strip() or "nothing"
    said = f"{'.'.join(mistake.names)}: expected {' or '.join(_choices(found[0]))}"
    said += f", got {got}" if given or found[2] else ""
    switch = found[1] == "bool" and len(mistake.names) == 1 and "." not in mistake.key
    return f"{said} (what follows a switch is its value, so names come before it)" if switch else said


def _wrong_choice(mistake: Mistake) -> str:
    later = re.match(r"(?:\s*- Expected an? <class '\w+'>)*", mistake.after)
    earlier = re.search(r"(?:- Expected an? <class '\w+'>\s*)*- $", mistake.before)
    *others, last = _choices("".join(each[0] for each in (mistake.found, earlier, later) if each))
    expected = f"{', '.join(others)} or {last}" if others else last
    return f"{'.'.join(mistake.names)}: expected {expected}" + (f", got {mistake.given[1]}" if mistake.given else "")


def _choices(errors: str) -> list[str]:
    """Return what jsonargparse expects in a row of errors: values, then types."""
    values = [choice.strip("' ") for found in re.findall(r"Literal\[(.*?)\]", errors) for choice in found.split(",")]
    types = [name for name in re.findall(r"<class '([\w.]+)'>", errors) if name != "NoneType"]
    return list(dict.fromkeys(values + types))


def _no_attribute(mistake: Mistake) -> str:
    module, name = mistake.found.groups()
    if module in PACKAGES and Path(module).exists():
        return f"{mistake.key}: '{module}' is a package of this project, which hides your own: rename yours"
    return f"{mistake.key}: module '{module}' has no '{name}'"


def _not_a_class(mistake: Mistake) -> str:
    kind, given = mistake.found[1], mistake.found[2].strip()
    way = "several of them go into Compose, as its initializers" if kind == "Initializer" else "give one"
    return f"{mistake.key}: expected one {kind}, got {given}" + (f": {way}" if given[0] == "[" else "")


def _undotted(mistake: Mistake) -> str:
    right = mistake.found[1].replace("/", ".").replace(".py.", ".").lstrip(".")
    return f"{mistake.key}: '{mistake.found[1]}' is no path of a class: did you mean '{right}'?"


def _no_section(mistake: Mistake) -> str:
    section, given = mistake.key.rpartition(".")[2], mistake.found[1]
    if re.match(r"\w+:\S", given):
        return f"'{section}' is a section, got {given}: a space follows the colon, {given.replace(':', ': ', 1)}"
    if section == "init":
        typed = given not in {cls.__name__ for cls in _subclasses(Initializer)}
        near = typed and re.match(r"did you mean '(.*?)'", nearest(given, preset_names()))
        way = f"-c init/{near[1]}" if near else f"init: {{initializer: {given}}}"
        return f"'init' is a section, got {given}: an initialization is given as {way}"
    inside = [key for key in mistake.keys if key.startswith(f"{section}.")][:3]
    return f"'{section}' is a section with keys such as {', '.join(inside)}, got {mistake.found[1]}"


# What jsonargparse says, by a part of it; the first that is found counts. A text is filled with the groups found.
PATTERNS: dict[str, str | Callable[[Mistake], str]] = {
    r"(?:given class_path '|import path (?:string|format): )([\w./]*(?:/|\.py\.)[\w./]+)": _undotted,
    r"has no attribute '\w+'\. Got value: (?:Namespace\(class_path=')?([\w.]+)": _unknown_path,
    r"\b(\w+) has no '(\w+)': (did you mean '\w+'\?)": "{key}: {0} has no '{1}': {2}",
    r"'(\w+)' object has no attribute 'keys'": "{key}: init_args is a section with the class's arguments, got a {0}",
    r"Expected an import path or a subclass spec, but got (.*)\. Got": "{key}: expected a class or its path, got {0}",
    r"Expected an instantiatable class, but ([\w.]+) is abstract": "{key}: '{0}' is abstract: it lacks methods",
    r"Unexpected config:\s*(\w+:)": "'{0}' holds nothing: leave it out, or write its keys below it",
    r"given class_path '([\w.]+)':\s*(?:No module named '([\w.]+)'|module '[\w.]+' has no attribute)": _unknown_path,
    r"Option '([\w.]+)' is not accepted": _unknown_argument,
    r"Expected a dot import path string: (\S+)": _unknown_class,
    r"does not accept option '([\w.]+)'": _unknown_key,
    r"[Uu]nrecognized arguments: (\S+)": _unrecognized,
    r"No (\w+) attribute (\w+)": _no_attribute,
    r"invalid choice: '([^']*)' \(choose from ([^)]*)\)": _unknown_command,
    r"arguments are required: ([\w.]+)": _required,
    r'expected "subcommand" to be one of {(.*?)}': "no command is given: choose from {commands}",
    r"Import path ([\w.]+) does not correspond to a subclass of (\w+)": "{key}: '{0}' is no {1}",
    r"Expected a path but (\S+)[\s\S]*?does not correspond to a subclass of (\w+)": "{key}: {0} is no {1}",
    r"- (.*) \((\S+\.py), line (\d+)\)": "{key}: cannot import '{1}': {0} in line {2}",
    r"Expected a typing\.Literal\[(.*?)\]": _wrong_choice,
    r"(?:Expected(?: an?)? <class '(?!NoneType)(\w+)'>(?:\s*- (?=Expected))?)+(?:\. Got value: (.*))?": _wrong_type,
    r"No module named '([\w.]+)'": "{key}: there is no module '{0}' in the present folder or among what is installed",
    r"argument (?:\S*/)?(\S+): expected one argument": "{0} needs a value after it",
    r"Not a valid subclass of (\w+)\. Got value: (.*)": _not_a_class,
    r"Not a valid subclass of (\w+)": "{key}: expected one {0}, as its name or as class_path and init_args",
    r"Expected a dot import path string:\s*$": "{key}: the name of a class is missing",
    r"Unable to load config ['\"](.*?)['\"]": _no_section,
}


def _deepest(message: str) -> str:
    """Return the innermost lines of a message, joined: jsonargparse indents what went wrong below where."""
    body = re.split(r"\n\s*Given value type:", message)[0]
    lines = [line.strip(" -") for line in body.splitlines() if line.strip(" -")]
    noise = r"(Subtypes|Errors|Expected a <class 'NoneType'>|Does not validate)"
    return " ".join(dict.fromkeys(line for line in lines if not re.match(noise, line)))


def argument_names(cls: type) -> Iterator[str]:
    """Yield the names of a class's arguments, its bases' included where they travel through ``**kwargs``."""
    for base in cls.__mro__[:-1]:
        parameters = inspect.signature(base.__init__).parameters.values()
        several = {each.name for each in parameters if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        yield from {each.name for each in parameters} - several - {"self"}
        if "__init__" in vars(base) and not any(each.kind is each.VAR_KEYWORD for each in parameters):
            return


def _arguments(class_path: str) -> Iterator[str]:
    module, _, name = class_path.rpartition(".")
    return argument_names(getattr(importlib.import_module(module), name))


def _subclasses(base: type) -> Iterator[type]:
    """Yield the concrete public subclasses that are imported."""
    for cls in base.__subclasses__():
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            yield cls
        yield from _subclasses(cls)


def original_error(error: Exception) -> Exception:
    """Return what a constructor raised, below the errors that jsonargparse piles on a choice of types."""
    while str(error).startswith("Does not validate against any") and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def refuse_unwritable(folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder that cannot be made or written to, before any work is done; create nothing."""
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise StructuredInitError(f"cannot write to '{folder}': '{existing}' is a file")
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell, as of root on a read-only disk
    except OSError as error:
        raise StructuredInitError(f"cannot write to '{folder}': {error.strerror} in '{existing}'") from error


# What other programs call a key of this one; the first that exists is suggested.
CUSTOMARY: dict[str, tuple[str, ...]] = {
    "arch": ("network", "model.network"),
    "batch": ("batch_size", "data.batch_size"),
    "budget": ("trainer.max_time",),
    "batch_size": ("data.batch_size",),
    "checkpoint": ("ckpt_path",),
    "ckpt": ("ckpt_path",),
    "dataset": ("name", "data.name"),
    "dropout": ("network_args.drop_rate",),
    "epoch": ("max_epochs", "trainer.max_epochs"),
    "epochs": ("max_epochs", "trainer.max_epochs"),
    "gpus": ("devices", "trainer.devices"),
    "grad_clip": ("gradient_clip_val", "trainer.gradient_clip_val"),
    "initializer": ("init.initializer",),
    "learning_rate": ("lr", "optimizer.lr", "model.optimizer.lr"),
    "lr": ("optimizer.lr", "model.optimizer.lr"),
    "max_iters": ("max_steps", "trainer.max_steps"),
    "momentum": ("optimizer.momentum", "model.optimizer.momentum"),
    "network": ("model.network",),
    "num_epochs": ("max_epochs", "trainer.max_epochs"),
    "num_workers": ("data.num_workers",),
    "optim": ("optimizer", "model.optimizer"),
    "optimizer": ("model.optimizer",),
    "output": ("trainer.default_root_dir",),
    "output_dir": ("default_root_dir", "trainer.default_root_dir"),
    "resume": ("ckpt_path",),
    "seed": ("seed_everything",),
    "steps": ("max_steps", "trainer.max_steps"),
    "time-limit": ("trainer.max_time",),
    "time_limit": ("trainer.max_time",),
    "wd": ("weight_decay", "optimizer.weight_decay", "model.optimizer.weight_decay"),
    "weight_decay": ("optimizer.weight_decay", "model.optimizer.weight_decay"),
    "workers": ("num_workers", "data.num_workers"),
}


def suggest(name: str, valid: Collection[str]) -> str:
    """Return the end of an error message: the right name for what the user wrote, with or without a section.

    It is that of :func:`structured_init.util.errors.nearest`; of dotted keys that are all far, the sections.
    """
    section, _, last = name.rpartition(".")
    if (first := name.partition(".")[0]) not in valid and first.lower() in valid:
        return f"did you mean '{first.lower()}'?"
    if difflib.get_close_matches(name.partition(".")[0], ["init_args", "class_path"], cutoff=0.8):
        return nearest(name.partition(".")[0], ["init_args", "class_path"])
    for right in CUSTOMARY.get(last, ()):
        within = f"{section}.{right}" if section else right
        if within in valid or _reaches(within, valid):
            return f"did you mean '{within}'?"
    if section in ("optim", "optimizer") and "model" in valid:
        return f"did you mean 'model.optimizer.{last}'?"
    sections = {key.partition(".")[0] for key in valid}
    if section and last == "class_path":  # which every section has
        return nearest(section, sections)
    if right := next((each for each in CUSTOMARY.get(last, ()) if each in valid), None):
        return f"did you mean '{right}'?"
    for open_section, base in (("data", LightningDataModule), ("model", LightningModule)):
        if not section and open_section in valid and last in _arguments_of_any(base):
            return f"did you mean '{open_section}.{last}'?"
    for key in sorted(valid, key=len):
        if key.rpartition(".")[2] == last and key != name:
            return f"did you mean '{key}'?"
    found = nearest(name, valid)
    if found.startswith("did you mean"):
        return found
    return nearest(name.partition(".")[0], sections)  # a section may be misspelled


def _arguments_of_any(base: type) -> set[str]:
    """Return the names of all arguments of this project's classes of one kind."""
    ours = [each for each in _subclasses(base) if each.__module__.startswith("lightning_modules.")]
    return {name for each in ours for name in argument_names(each)}


def _reaches(key: str, valid: Collection[str]) -> bool:
    """Tell whether a key lies below an argument whose own arguments depend on the class it is given."""
    first = key.partition(".")[0]
    return "." in key and first in ("model", "data", "optimizer", "network_args") and first in valid


ABSENT = "trainer.accelerator names hardware that is not found here: take auto, or cpu"
ANSWERS = (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError)
# An error that passes through nothing but these concerns what they were given; the user's own code lies elsewhere.
LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (lightning, jsonargparse))
_CALLERS = ("lightning_modules/cli", "lightning_modules/tasks/task.py", "callbacks/lightning_private.py", "comparison")
OURS = tuple(str(Path(__file__).parents[2] / caller) for caller in _CALLERS)


def answer(error: Exception) -> StructuredInitError | None:
    """Return Lightning's own complaint about its arguments as one line; ``None`` for a bug, the user's or another's.

    A complaint is one that Lightning raises by itself, reached through its own code alone.
    """
    if isinstance(error, MisconfigurationException):
        absent = re.search(r"accelerator is not available|No supported gpu backend", str(error))
        return StructuredInitError(ABSENT if absent else one_line(error))
    if not isinstance(error, ANSWERS) or not _raised_by_a_library(error):
        return None
    chain: BaseException | None = error
    while chain is not None:
        if not _within_libraries(chain):
            return None
        chain = chain.__cause__
    return StructuredInitError(one_line(error))


def _raised_by_a_library(error: BaseException) -> bool:
    """Tell whether the innermost line is a ``raise`` of a library, not an operation that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(LIBRARIES) and (frames[-1].line or "").startswith("raise ")


def _within_libraries(error: BaseException) -> bool:
    """Tell whether an error passed through no code but the libraries' and this package's; who called it is left out."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    first = next((i for i, file in enumerate(files) if file.startswith(OURS)), 0)
    return all(file.startswith(LIBRARIES + OURS) for file in files[first:])


def check_trainer(trainer: Any) -> None:
    """Refuse values of the section ``trainer`` that Lightning answers badly, late, or not at all; read ``5min``."""
    for key, known in (
        ("accelerator", ["auto", "gpu", *ACCELERATOR_REGISTRY.available_accelerators()]),
        ("strategy", ["auto", *StrategyRegistry.available_strategies()]),
    ):
        given = trainer.get(key)
        if isinstance(given, str) and given not in known:
            raise StructuredInitError(f"trainer.{key}: unknown {key} '{given}': {nearest(given, known)}")
    _check_devices(trainer.get("devices"))
    limit = trainer.get("max_time")
    if isinstance(limit, str) and limit.count(":") != 3:  # 5min; Lightning's own form is DD:HH:MM:SS
        try:
            trainer.max_time = {"seconds": int(parse_duration(limit))}
        except ArgumentTypeError as error:
            raise StructuredInitError(f"trainer.max_time: {error}") from None
    for key, least in LEAST.items():
        given = trainer.get(key)
        if given is not None and given < least:
            raise StructuredInitError(f"trainer.{key} is {given:g}: it must be at least {least}")
    if (trainer.get("min_epochs") or 0) > (trainer.get("max_epochs") or 0) >= 1:
        raise StructuredInitError(
            f"trainer.min_epochs is {trainer.min_epochs}, more than trainer.max_epochs, {trainer.max_epochs}"
        )


LEAST = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "gradient_clip_val": 0,
    "log_every_n_steps": 0,
    "num_nodes": 1,
}


def _check_devices(devices: Any) -> None:
    """Refuse what is no number or list of devices."""
    if isinstance(devices, str) and devices != "auto":
        if not re.fullmatch(r"-?\d+|\d+(,\d*)+|\[[\d, ]+\]", devices):
            raise StructuredInitError(f"trainer.devices is '{devices}': give a number, a list such as [0,1], or auto")
        devices = int(devices) if devices.lstrip("-").isdecimal() else None
    if not isinstance(devices, int):
        return
    if devices == 0 or devices < -1:
        raise StructuredInitError(f"trainer.devices is {devices}: it must be at least 1, or -1 for all GPUs")
