"""The nearest right name, where difflib alone misleads: names of other programs, and keys without their section."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from structured_init.errors import nearest

# What other programs call a key of this one; the first that exists is suggested.
CUSTOMARY: dict[str, tuple[str, ...]] = {
    "arch": ("network", "model.network"),
    "batch": ("batch_size", "data.batch_size"),
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
    "output": ("trainer.default_root_dir",),
    "output_dir": ("default_root_dir", "trainer.default_root_dir"),
    "resume": ("ckpt_path",),
    "seed": ("seed_everything",),
    "steps": ("max_steps", "trainer.max_steps"),
    "wd": ("weight_decay", "optimizer.weight_decay", "model.optimizer.weight_decay"),
    "weight_decay": ("optimizer.weight_decay", "model.optimizer.weight_decay"),
    "workers": ("num_workers", "data.num_workers"),
}


def suggest(name: str, valid: Collection[str]) -> str:
    """Return the end of an error message: the right name.

    Args:
        name: what the user wrote, with or without a section.
        valid: names of arguments, or dotted keys.

    Returns:
        As :func:`structured_init.errors.nearest`; of dotted keys that are all far, the sections.
    """
    section, _, last = name.rpartition(".")
    if difflib.get_close_matches(name.partition(".")[0], ["init_args", "class_path"], cutoff=0.8):
        return nearest(name.partition(".")[0], ["init_args", "class_path"])
    for right in CUSTOMARY.get(last, ()):
        within = f"{section}.{right}" if section else right
        if within in valid or _reaches(within, valid):
            return f"did you mean '{within}'?"
    for key in sorted(valid, key=len):
        if key.rpartition(".")[2] == last and key != name:
            return f"did you mean '{key}'?"
    found = nearest(name, valid)
    if found.startswith("did you mean"):
        return found
    return nearest(name.partition(".")[0], {key.partition(".")[0] for key in valid})  # a section may be misspelled


def _reaches(key: str, valid: Collection[str]) -> bool:
    """Tell whether a key lies below an argument whose own arguments depend on the class it is given."""
    first = key.partition(".")[0]
    return "." in key and first in (*OPEN, "network_args") and first in valid


OPEN = ("model", "data", "optimizer")
