"""Reading the tensors of a larger network: from a file, from timm, or from Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
    """Refuse the path of a file that is not there, before anything is built; read nothing."""
    if _names_file(teacher) and not Path(str(teacher)).is_file():
        raise StructuredInitError(f"{who}: there is no file '{teacher}'")


def _names_file(teacher: object) -> bool:
    """Say whether a teacher is a path; any other string is a model of timm."""
    if isinstance(teacher, str):
        return teacher.endswith(SUFFIXES) or Path(teacher).is_file()
    return isinstance(teacher, Path)


def opened(teacher: Teacher, who: str = "WeightSelection") -> nn.Module | Mapping[str, Tensor]:
    """Open what a string names, a file or a pretrained model of timm; leave modules and dictionaries as they are."""
    refuse_missing(teacher, who)
    if _names_file(teacher):
        return _file(str(teacher), who)
    return _timm(teacher, who) if isinstance(teacher, str) else teacher


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
    for name in ours:
        agree.update((start, "") for start, rest in _cuts(name) if rest in theirs)
    for name in theirs:
        agree.update(("", start) for start, rest in _cuts(name) if rest in ours)
    return max(agree, key=lambda starts: (agree[starts], -len("".join(starts)), starts))


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """Yield each beginning of a name, with its dot, and what follows on it."""
    parts = name.split(".")
    for cut in range(1, len(parts)):
        yield ".".join(parts[:cut]) + ".", ".".join(parts[cut:])


def _file(path: str, who: str) -> dict[str, Tensor]:
    if path.endswith(".safetensors"):
        return read_tensors(path, before=f"{who}: ")
    content = load_saved(path, f"{who}: cannot read '{path}'")
    content = content if isinstance(content, dict) else {}
    for tensors in (*map(content.get, KEYS), content):
        if isinstance(tensors, dict) and any(isinstance(value, Tensor) for value in tensors.values()):
            return tensors
    keys = ", ".join(map(repr, KEYS))
    raise StructuredInitError(f"{who}: '{path}' is no dictionary of tensors, and has none as {keys}")


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
