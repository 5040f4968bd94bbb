"""Checks of parameters beside each other: copies, the odd one of several blocks, what is shared or not trained."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
from torch import Tensor, nn

from structured_init.checks import inside
from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, first_names, folded
from structured_init.checks.measured import Measured, without
from structured_init.checks.records import InLists, Record
from structured_init.util.names import folded_name

ENOUGH = 16  # numbers by which copies are told from chance
FAINT = 0.02  # of what comes in, which half of all matrices give, if σ² was taken for σ; GPT-2's in width 32 give 0.04
NEAR = math.log(1.1)  # of two sizes, beside chance
ERRORS = 6.0  # standard errors of the ratio of two sizes
TREND = math.log(2.2)  # by which one of sizes that fall or rise may differ: 1/i halves at the second
RISE = math.log(4)  # from the first to the last of four blocks or more: known trends over depth fall
SMALLEST = 1e-30  # root mean square that is told from zero
SIBLINGS = 3  # that are compared, or more


def copies(measured: Measured) -> Iterator[Finding]:
    """Find equal draws in one parameter, or in several: a layer that was copied, or the same seed before each.

    A copy that is not trained is meant: a teacher's, or what peft keeps.
    """
    yield from inside.of_each("copies", inside.repeated_rows, measured)
    unused = {each.name for each in measured.unmoved()}
    groups: dict[tuple, list[str]] = defaultdict(list)
    for record in measured.chosen:
        if record.drawn and record.trainable and record.size >= ENOUGH and record.name not in unused:
            # Biases whose outputs are added train alike, and tokens begin equal; but not those of several blocks.
            beside = record.siblings if record.size == max(record.shape) else ""
            groups[record.shape, record.digest, beside].append(record.name)
    found = [names for names in groups.values() if len(names) > 1]
    if found:
        text = f"{first_names([_in_words(names) for names in found])}: equal, copied or drawn from the same seed"
        yield Finding("copies", tuple(chain(*found)), text)


def _differ_in_numbers(names: Sequence[str]) -> bool:
    """Tell whether names are one but for places in lists."""
    return len({re.sub(r"\b\d+\b", "#", name) for name in names}) == 1


def _in_words(names: Sequence[str]) -> str:
    return folded_name(names) if _differ_in_numbers(names) else " = ".join(names)


def odd(measured: Measured) -> Iterator[Finding]:
    """Find a single block whose parameter is zero, larger, smaller or forgotten, among others that are alike."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for each in measured.chosen:
        if not each.bare and (each.size >= FEWEST or each.constant):
            groups[each.siblings, each.shape, each.place.fan_in].append(each)
    lines = []
    for group in groups.values():
        if len(group) >= SIBLINGS:
            lines += _odd_one(group)
    yield from folded("odd", lines)


def _odd_one(group: Sequence[Record]) -> Iterator[tuple[str, str]]:
    sizes = np.array([each.rms for each in group])
    median = sorted(sizes)[len(sizes) // 2]
    logarithms = np.log(np.maximum(sizes, SMALLEST))
    steps = np.diff(logarithms)
    if len(group) > SIBLINGS and (steps > 0).all() and steps.sum() > RISE:
        yield group[-1].name, f"root mean square grows with depth, from {sizes[0]:.2g} to {sizes[-1]:.2g}"
        return
    near = NEAR + 1.5 * ERRORS / math.sqrt(2 * group[0].size)
    if (steps >= 0).all() or (steps <= 0).all():
        near += TREND
    usually_constant = 2 * sum(each.constant for each in group) > len(group)
    apart = np.abs(logarithms - math.log(max(median, SMALLEST)))
    otherwise = np.array([each.constant != usually_constant for each in group]) | (apart > near)
    if otherwise.sum() == 1:
        other = group[int(otherwise.argmax())]
        yield other.name, f"root mean square {other.rms:.2g}; in the other {len(group) - 1} blocks it is {median:.2g}"


def scale(measured: Measured) -> Iterator[Finding]:
    """Find single scales that are wrong, or that most matrices hardly give anything, as where σ² was taken for σ."""
    for say in (inside.scale, inside.lone):
        yield from inside.of_each("scale", say, measured)
    gains = {}
    for each in measured.chosen:
        if each.role == "weight" and each.drawn:
            gains[each.name] = each.std * math.sqrt(each.place.fan_in)
    small = tuple(name for name, gain in gains.items() if gain < FAINT)
    if len(gains) > 3 and 2 * len(small) > len(gains):
        text = f"{first_names(small)}: most matrices leave less than {FAINT:g} of what comes in"
        yield Finding("scale", small, text)


def shared(measured: Measured) -> Iterator[Finding]:
    """Find what several blocks of a list have in common, as in ``[block] * 12``, and parameters that share memory."""
    model, lists = measured.model, InLists(measured.model)
    places: dict[nn.Module | nn.Parameter, list[str]] = defaultdict(list)
    for each in (model.named_modules, model.named_parameters):
        for name, part in each(remove_duplicate=False):
            places[part].append(name)
    told: list[str] = []
    for part, names in places.items():
        size = sum(each.numel() for each in part.parameters()) if isinstance(part, nn.Module) else part.numel()
        alike = len(names) > 1 and len({lists.folded(name) for name in names}) == 1
        if alike and size and not any(names[0].startswith(f"{outer}.") for outer in told):
            told.append(names[0])
            text = f"{folded_name(names)} are one: {size:,} numbers in place of {len(names) * size:,}"
            yield Finding("shared", tuple(names), text)
    yield from _overlapping(measured)


def _overlapping(measured: Measured) -> Iterator[Finding]:
    """Find parameters that are views of one memory, in part or as a whole."""
    spans = []
    for name, parameter in measured.parameters.items():
        if type(parameter.data) is Tensor and parameter.numel() and not parameter.is_meta:
            pairs = zip(parameter.shape, parameter.stride(), strict=True)
            reach = 1 + sum((size - 1) * stride for size, stride in pairs)
            spans.append((parameter.data_ptr(), parameter.data_ptr() + reach * parameter.element_size(), name))
    for (_, end, one), (begin, _, other) in pairwise(sorted(spans)):
        if begin < end:
            yield Finding("shared", (one, other), f"{one} and {other} share memory, and are two parameters")


def frozen(measured: Measured) -> Iterator[Finding]:
    """Find draws that are not trained; tables are computed."""
    still = []
    for each in without(measured.chosen, measured.frozen):
        if each.drawn and not each.trainable and each.size >= FEWEST:
            still.append((each.name, "is drawn, and is not trained"))
    return folded("frozen", still)
