"""Tensors that a run wrote: safetensors files, which hold numbers and nothing that could be executed."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from structured_init.errors import StructuredInitError


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, in the order of their names, numbers inside them taken as numbers.

    Raises:
        StructuredInitError: it cannot be read, or is damaged.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise StructuredInitError(f"cannot read '{path}': {error}") from error
    return dict(sorted(tensors.items(), key=lambda item: _natural(item[0])))  # a file keeps no order


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Order numbers inside names as numbers: layer 10 comes after layer 9."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in name.split(".")]
