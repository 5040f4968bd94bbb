"""Checks of parameters beside each other: copies, the odd one of several blocks, shared memory, all too small."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from torch import Tensor, nn

from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, first_names, folded
from structured_init.checks.inside import MATRICES
from structured_init.checks.measured import Measured, without
from structured_init.checks.records import InLists, Record
from structured_init.util.names import folded_name
from structured_init.weights import tensor_names

EXPERT = re.compile(r"(\bexperts\.\d+)\..*")  # in the name of a parameter, its expert and what follows
ENOUGH = 16  # numbers by which copies are told from chance
FAINT = 0.02  # of what comes in, which half of all matrices give, if σ² was taken for σ; GPT-2's in width 32 give 0.04
NEAR = math.log(1.1)  # of two sizes, beside chance
ERRORS = 6.0  # standard errors of the ratio of two sizes
TREND = math.log(2.2)  # by which the first or last of sizes that fall or rise may differ: 1/i halves at the second
RISE = math.log(4)  # from the first to the last of four blocks or more: known trends over depth fall
SIBLINGS = 3  # that are compared, or more


def copies(measured: Measured) -> Iterator[Finding]:
    """Find equal draws in one parameter, or in several: a layer that was copied, or the same seed before each."""
    yield from measured.alone("copies")
    unused = {each.name for each in measured.unmoved()}
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for record in measured.chosen:
        if record.drawn and record.size >= ENOUGH:
            groups[record.shape, record.digest].append(record)
    equal: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for same in groups.values():
        moving = [each for each in same if each.trainable and each.name not in unused]
        same = moving or same  # a frozen copy is meant: a teacher's, or what peft keeps
        places = _places(same)
        # Biases whose outputs are added train alike, and tokens begin equal.
        vector = same[0].size == max(same[0].shape)
        if len(same) > 1 and not (vector and places[0] == same[0].name):
            equal[places].append(same[0].name)
    for places, names in equal.items():
        yield Finding("copies", tuple(names), f"{_equal_in_words(places, names)}: copied, or drawn from the same seed")


def _places(same: Sequence[Record]) -> tuple[str, ...]:
    """Return the blocks, or the experts, in which several parameters have one name; else the parameters."""
    names = tuple(each.name for each in same)
    for places in (tuple(each.block for each in same), tuple(EXPERT.sub(r"\1", name) for name in names)):
        if len({name.removeprefix(place) for name, place in zip(names, places, strict=True)}) == 1:
            return places
    return names


def _equal_in_words(places: tuple[str, ...], names: Sequence[str]) -> str:
    if places[0] == names[0]:  # of other names, or in no block
        return f"{first_names(places)} are equal"
    inside = [name.removeprefix(f"{places[0]}.") for name in names]
    if len(names) == 1:
        return f"{inside[0]} is equal in {folded_name(places)}"
    return f"{len(names)} parameters are equal in {folded_name(places)} ({first_names(inside)})"


def odd(measured: Measured) -> Iterator[Finding]:
    """Find a single block whose parameter is zero, larger, smaller or forgotten, among others that are alike."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for each in measured.chosen:
        if each.size >= FEWEST or each.constant:
            groups[each.siblings, each.shape].append(each)
    lines = []
    for group in groups.values():
        if len(group) >= SIBLINGS:
            lines += _odd_one(group)
    yield from folded("odd", lines)


def _odd_one(group: Sequence[Record]) -> Iterator[tuple[str, str]]:
    sizes = [each.rms for each in group]
    median = sorted(sizes)[len(sizes) // 2]
    rises = all(one < other for one, other in pairwise(sizes))
    if len(group) > SIBLINGS and rises and _apart(sizes[0], sizes[-1]) > RISE:
        yield group[-1].name, f"root mean square grows with depth, from {sizes[0]:.2g} to {sizes[-1]:.2g}"
        return
    near = NEAR + 1.5 * ERRORS / math.sqrt(2 * group[0].size)
    usually_constant = 2 * sum(each.constant for each in group) > len(group)
    others = [each for each in group if each.constant != usually_constant or _apart(each.rms, median) > near]
    if len(others) != 1:
        return
    (other,) = others
    at_an_end = sizes in (sorted(sizes), sorted(sizes, reverse=True)) and other in (group[0], group[-1])
    if not at_an_end or _apart(other.rms, median) >= TREND + near:
        yield other.name, f"root mean square {other.rms:.2g}; in the other {len(group) - 1} blocks it is {median:.2g}"


def _apart(one: float, other: float) -> float:
    """Return the distance of two sizes, as logarithms."""
    if one == other:
        return 0.0
    return abs(math.log(one / other)) if min(one, other) > 0 and math.isfinite(one * other) else math.inf


def scale(measured: Measured) -> Iterator[Finding]:
    """Find single scales that are wrong, or that most matrices hardly give anything, as where σ² was taken for σ."""
    yield from measured.alone("scale")
    gains = {}
    for each in measured.chosen:
        if each.role in MATRICES and each.drawn:
            gains[each.name] = each.std * math.sqrt(each.place.fan_in)
    middle = sorted(gains.values())[len(gains) // 2 :][:1]
    if len(gains) > 3 and middle[0] < FAINT:
        small = tuple(name for name, gain in gains.items() if gain < FAINT)
        text = f"{first_names(small)}: most matrices leave less than {FAINT:g} of what comes in; half, {middle[0]:.1g}"
        yield Finding("scale", small, text)


def shared(measured: Measured) -> Iterator[Finding]:
    """Find one module, or one parameter, that several blocks of a list have in common: ``[block] * 12``."""
    model = measured.model
    lists = InLists(model)
    places: dict[int, list[str]] = defaultdict(list)
    sizes: dict[int, int] = {}
    modules, parameters = (each(remove_duplicate=False) for each in (model.named_modules, model.named_parameters))
    for name, part in (*modules, *parameters):
        places[id(part)].append(name)
        held = part.parameters() if isinstance(part, nn.Module) else [part]
        sizes[id(part)] = sum(each.numel() for each in held)
    told: list[str] = []
    for key, names in places.items():
        if len(names) < 2 or not sizes[key] or any(names[0].startswith(f"{outer}.") for outer in told):
            continue
        if len({lists.folded(name, innermost=True) for name in names}) == 1:
            told.append(names[0])
            numbers = f"{sizes[key]:,} numbers in place of {len(names) * sizes[key]:,}"
            yield Finding("shared", tuple(names), f"{folded_name(names)} are one: {numbers}")
    yield from _overlapping(model)


def _overlapping(model: nn.Module) -> Iterator[Finding]:
    """Find parameters that are views of one memory, in part or as a whole, and no parameter of two names."""
    names = tensor_names(model)
    spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for parameter in model.parameters():
        if not parameter.is_meta and type(parameter.data) is Tensor and parameter.numel():
            begin = parameter.storage_offset()
            reach = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
            memory = parameter.untyped_storage().data_ptr()
            spans[memory].append((begin, begin + reach, names[id(parameter)][0]))
    for together in spans.values():
        end, before = -1, ""
        for begin, last, name in sorted(together):
            if begin <= end:
                yield Finding("shared", (before, name), f"{before} and {name} share memory, and are two parameters")
            end, before = max((end, before), (last, name))


def frozen(measured: Measured) -> Iterator[Finding]:
    """Find draws that are not trained; tables are computed."""
    still = []
    for each in without(measured.chosen, measured.frozen):
        if each.drawn and not each.trainable and each.size >= FEWEST:
            still.append((each.name, "is drawn, and is not trained"))
    return folded("frozen", still)
