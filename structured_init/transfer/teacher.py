"""Reading the tensors of a larger network: from a file, from timm, or from Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import load_saved, read_tensors
from structured_init.util.names import plain_name

Teacher = str | Path | nn.Module | Mapping[str, Tensor]

KEYS = ("state_dict", "model", "model_state_dict")  # under which a checkpoint holds its tensors
SUFFIXES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def described(teacher: Teacher) -> str:
    """Return what a report and an error call a teacher: never its whole contents."""
    if isinstance(teacher, str | Path):
        return f"'{teacher}'"
    return type(teacher).__name__ if isinstance(teacher, nn.Module) else f"a dictionary of {len(teacher)} tensors"


def refuse_missing(teacher: object, who: str) -> None:
    """Refuse a folder, and the path of a file that is not there, before anything is built; read nothing."""
    named = isinstance(teacher, Path) or (isinstance(teacher, str) and teacher.endswith(SUFFIXES))
    if isinstance(teacher, str | Path) and Path(teacher).is_dir():
        raise StructuredInitError(f"{who}: '{teacher}' is a folder: name the file in it")
    if named and not Path(str(teacher)).is_file():
        raise StructuredInitError(f"{who}: there is no file '{teacher}'")


def opened(teacher: Teacher, who: str = "WeightSelection") -> nn.Module | Mapping[str, Tensor]:
    """Open what a string names, a file or a pretrained model of timm; leave modules and dictionaries as they are."""
    refuse_missing(teacher, who)
    if not isinstance(teacher, str | Path):
        return teacher
    named = isinstance(teacher, Path) or teacher.endswith(SUFFIXES) or Path(teacher).is_file()
    return _file(str(teacher), who) if named else _timm(teacher, who)


def tensors_of(teacher: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the teacher's tensors by their plain names."""
    model = teacher if isinstance(teacher, nn.Module) else None
    state = teacher if model is None else model.state_dict()
    return {plain_name(name, model): tensor.detach() for name, tensor in state.items() if isinstance(tensor, Tensor)}


def beginnings(student: Iterable[str], teacher: Iterable[str]) -> tuple[str, str]:
    """Return what stands before the student's names and what before the teacher's, where one is wrapped more deeply.

    A module around the network puts ``"network."`` before each name, DDP ``"module."``. Of all ways to cut a beginning
    off one side, this is the one under which most names agree.
    """
    ours, theirs = set(student), set(teacher)
    agree = Counter({("", ""): len(ours & theirs)})
    for outer, inner, pair in ((ours, theirs, lambda start: (start, "")), (theirs, ours, lambda start: ("", start))):
        for name in outer:
            parts = name.split(".")
            for cut in range(1, len(parts)):
                if ".".join(parts[cut:]) in inner:
                    agree[pair(".".join(parts[:cut]) + ".")] += 1
    return max(agree, key=lambda starts: (agree[starts], -len("".join(starts)), starts))


def _file(path: str, who: str) -> dict[str, Tensor]:
    if path.endswith(".safetensors"):
        return read_tensors(path, before=f"{who}: ")
    content = load_saved(path, f"{who}: cannot read '{path}'")
    content = content if isinstance(content, dict) else {}
    for tensors in (*(content[key] for key in KEYS if key in content), content):
        if isinstance(tensors, dict) and any(isinstance(value, Tensor) for value in tensors.values()):
            return tensors
    held = f" ({', '.join(map(str, [*content][:5]))}{' …' * (len(content) > 5)})" if content else ""
    raise StructuredInitError(
        f"{who}: '{path}'{held} is no dictionary of tensors, and has none as {', '.join(map(repr, KEYS))}"
    )


def _timm(name: str, who: str) -> nn.Module:
    """Build one of timm's models with its pretrained weights; the global random state is not touched."""
    timm = import_module("timm")  # only here: a teacher from a file needs no host library
    if ":" not in name and not timm.is_model(name):  # "hf-hub:…" and "local-dir:…" are timm's own to resolve
        known = {tagged.partition(".")[0] for tagged in timm.list_models(pretrained=True)}
        raise StructuredInitError(f"{who}: '{name}' is neither a file nor a model of timm: {nearest(name, known)}")
    try:
        with torch.random.fork_rng(devices=[]):
            return timm.create_model(name, pretrained=True)
    except (OSError, RuntimeError, ValueError) as error:  # no network, no such weights, none published
        reason = str(error).splitlines()[0]
        raise StructuredInitError(f"{who}: cannot fetch the weights of '{name}': {reason}") from error
