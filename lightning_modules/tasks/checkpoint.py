"""Checkpoints appear whole, and those that do not fit are refused before anything is restored, in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from structured_init.util.errors import StructuredInitError
from structured_init.util.files import DamagedFileError, is_intact, load_saved, replacing

SHARDED = "meta.pt"  # in a checkpoint that is a folder, as of FSDP2: everything but weights and optimizer states


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its name and renames it when it is on the disk, so that none is ever seen in part.

    Lightning makes it in the folder of temporary files: moved from there to another disk, it grows under its name.
    What is not on this machine is left to Lightning.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint; an older one of this name stays until the new one is whole."""
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with replacing(path) as temporary, temporary.open("wb") as file:  # by a path, torch would write its name in it
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return a checkpoint that was not looked at before, such as ``last``; refuse one that cannot be read."""
        if not os.path.isfile(path) or kwargs.get("weights_only") is False:
            return super().load_checkpoint(path, *args, **kwargs)
        return read_checkpoint(path, mmap=False)


def is_plain(value: Any) -> bool:
    """Tell whether a value consists of text, numbers, lists and dictionaries alone, as safe loading asks."""
    if isinstance(value, Mapping):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def read_checkpoint(path: str | os.PathLike[str], *, mmap: bool = True) -> dict[str, Any]:
    """Open one of Lightning's checkpoints without running any code in it.

    Of a sharded one, a folder, weights and optimizer states are not read. ``mmap`` lets tensors stay on disk until they
    are read.

    Raises:
        StructuredInitError: there is no such file, it holds more than plain data and tensors, or it is not one of
            Lightning's.
        DamagedFileError: it is damaged.
    """
    sharded = os.path.isfile(os.path.join(path, SHARDED))
    file = os.path.join(path, SHARDED) if sharded else path
    if not os.path.isfile(file):
        raise StructuredInitError(f"there is no checkpoint '{path}'")
    way_out = "; if you trust it, add --weights_only false"
    checkpoint = load_saved(file, f"cannot read checkpoint '{path}'", way_out, mmap=mmap)
    if not isinstance(checkpoint, dict) or "pytorch-lightning_version" not in checkpoint:
        raise StructuredInitError(f"'{path}' is not a checkpoint of Lightning")
    return checkpoint


def checkpoints_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the checkpoints in a folder that are whole, the latest first, and those that are damaged.

    What is whole and cannot be read without running code is among the former: whoever trusts it may do so.
    """
    order: dict[Path, tuple[bool, int]] = {}
    damaged = []
    for path in sorted(folder.glob("[!.]*.ckpt")):  # a kill may have left one that has no name yet
        try:
            content = read_checkpoint(path)
        except DamagedFileError:
            damaged.append(path)
            continue
        except StructuredInitError:
            content = {}
        order[path] = path.name == "last.ckpt", content.get("global_step", -1)
    whole = sorted(order, key=order.__getitem__, reverse=True)
    while whole and not (whole[0].is_dir() or is_intact(whole[0])):  # only the latest is read to its end
        damaged.append(whole.pop(0))
    return whole, damaged


def refuse_best(path: str | None, command: str) -> None:
    """Refuse names that only the process which trained would know."""
    if path in ("", "best") or (path == "last" and command != "fit"):
        raise StructuredInitError(
            f"ckpt_path '{path}' names no file, and only the process that trained knows its own: give "
            "RUN/checkpoints/NAME.ckpt"
        )


def refuse_changed_arguments(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other arguments than the model's, naming the first one that both know, and both values."""
    known = saved.keys() & present.keys() - {"_instantiator"}
    before, now = _leaves(saved, known), _leaves(present, known)
    for key in sorted(before | now):
        if before.get(key) != now.get(key):
            raise StructuredInitError(
                f"the checkpoint was made with {key} = {before.get(key)}, this run asks for {now.get(key)}: "
                "give the checkpoint's value, or start a new run without it"
            )


def _leaves(nested: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return what is in nested dictionaries, of some keys, by dotted names; a tuple is a list."""
    found: dict[str, Any] = {}
    for key in keys:
        value = nested[key]
        if not isinstance(value, Mapping):
            found[key] = list(value) if isinstance(value, tuple) else value
            continue
        for name, leaf in _leaves(value, value).items():
            found[name if key == "init_args" else f"{key}.{name}"] = leaf
    return found


def refuse_other_weights(saved: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> None:
    """Refuse weights of another network, naming the first parameter that is missing, foreign or of another shape."""
    for name in [*present, *saved]:
        there, here = _shape(saved, name), _shape(present, name)
        if there != here:
            raise StructuredInitError(
                f"the checkpoint belongs to another network: '{name}' has shape {there} there, {here} here"
            )


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...] | str:
    if name not in tensors:
        return "none"
    return tuple(getattr(tensors[name], "shape", ()))  # a state may be no tensor
