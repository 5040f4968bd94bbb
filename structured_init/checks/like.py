"""Compare the scales of parameters with another model's, or with numbers that somebody wrote down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from structured_init.checks.builds import tensors
from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.measured import Measured
from structured_init.checks.records import InLists
from structured_init.util.errors import StructuredInitError, nearest, shown
from structured_init.util.names import folded_name
from structured_init.weights import tensor_names

SCALE = 1.25  # ratio to the scales of a reference


def as_reference(given: Any) -> Mapping[str, Tensor | float]:
    """Return the tensors of a model, or what was given by name, refusing anything else in one line."""
    if isinstance(given, nn.Module):
        return tensors(given)
    if not isinstance(given, Mapping):
        raise StructuredInitError(f"like is a model, its state dictionary, or root mean squares, got {shown(given)}")
    for name, value in given.items():
        if not isinstance(value, (Tensor, int, float)):
            raise StructuredInitError(f"like['{name}'] is a tensor or a root mean square, got {shown(value)}")
    return given


def like(measured: Measured) -> Iterator[Finding | LeftOut]:
    """Compare root mean squares with those of parameters of the same name, or with a number for all of a list.

    Raises:
        StructuredInitError: a name of ``like`` is none of the model's, or all are.
    """
    lists = InLists(measured.model)
    own = {name for names in tensor_names(measured.model).values() for name in names}
    kinds = {lists.folded(name) for name in own}
    scales: dict[str, float] = {}
    for name, value in measured.like.items():
        if isinstance(value, Tensor):
            scales[name] = value.detach().double().square().mean().sqrt().item()
        elif lists.folded(name) in kinds:
            scales[name] = scales[lists.folded(name)] = abs(value)
        else:
            raise StructuredInitError(f"like['{name}'] is no parameter of the model: {nearest(name, own)}")
    wrong, left = [], []
    for each in measured.chosen:
        near = SCALE * (1 + 3 / math.sqrt(each.size) if each.std else 1)  # two draws of so many numbers
        wanted = {name: scales.get(name, scales.get(lists.folded(name))) for name in each.names}
        if (each.size < FEWEST and not each.constant) or set(wanted.values()) == {None}:
            left.append((each.name, ""))
            continue
        for name, scale in wanted.items():
            if scale is not None and not max(each.rms, scale) <= near * min(each.rms, scale):
                tied = f", being tied to {each.name}" if name != each.name else ""
                wrong.append((name, f"root mean square {each.rms:.2g}{tied}; the reference has {scale:.2g}"))
    if len(left) == len(measured.chosen):
        raise StructuredInitError(f"like has no parameter of the model's names: {nearest('', own, 3)}")
    yield from folded("like", wrong)
    if left:
        alike = [folded_name(each.names) for each in folded("like", left)]
        yield LeftOut("like", f"not compared: {', '.join(alike)}")
