"""Compare the scales of parameters with another model's, or with numbers that somebody wrote down."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
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
    """Compare root mean squares with those of parameters of the same name, else of that in any block.

    Raises:
        StructuredInitError: a name of ``like`` is none of the model's, or all are.
    """
    lists = InLists(measured.model)
    own = {name for names in tensor_names(measured.model).values() for name in names}
    kinds = {lists.folded(name) for name in own}
    scales: dict[str, list[float]] = defaultdict(list)
    for name, value in measured.like.items():
        if not isinstance(value, Tensor) and lists.folded(name) not in kinds:
            raise StructuredInitError(f"like['{name}'] is no parameter of the model: {nearest(name, own)}")
        size = torch.as_tensor(value).detach().double().square().mean().sqrt().item()
        for key in {name, lists.folded(name)}:
            scales[key].append(size)
    wrong, left = [], []
    for each in measured.chosen:
        near = SCALE * (1 + 3 / math.sqrt(each.size) if each.std else 1)  # two draws of so many numbers
        compared = False
        for name in each.names if each.size >= FEWEST or each.constant else ():
            others = scales.get(name) or scales.get(lists.folded(name))
            if not others or max(others) > near * min(others):  # of unequal ones none is that of this one
                continue
            compared = True
            wanted = sum(others) / len(others)
            if not max(each.rms, wanted) <= near * min(each.rms, wanted):
                tied = f", being tied to {each.name}" if name != each.name else ""
                wrong.append((name, f"root mean square {each.rms:.2g}{tied}; the reference has {wanted:.2g}"))
        if not compared:
            left.append(each.name)
    if len(left) == len(measured.chosen):
        raise StructuredInitError(f"like has no parameter of the model's names: {nearest('', own, 3)}")
    yield from folded("like", wrong)
    if left:
        alike = [folded_name(each.names) for each in folded("like", ((name, "") for name in left))]
        yield LeftOut("like", f"not compared: {', '.join(alike)}")
