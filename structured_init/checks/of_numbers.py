"""Checks of numbers: of one parameter by itself, and of several beside each other."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor, nn

from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Found, first_names
from structured_init.checks.measured import Measured
from structured_init.checks.records import Record, in_lists, lists_of
from structured_init.hosts.registry import selects
from structured_init.util.names import folded_name

COMPARED = 16  # numbers of a row by which it is told from others
FAR, ALONE = 8.0, 8  # standard deviations beyond which so many numbers belong to no distribution,
GAP = 1.5  # if the largest is this many times as far as what follows these; else they are a tail
LARGE = 8.0  # times 1/√fan, the smaller one: no library draws such a σ
LITTLE = 1e-4  # of what comes in, which a matrix gives: less than that is lost beside anything else
FAINT = 0.02  # of what comes in, which half of all matrices give, if σ² was taken for σ; GPT-2's in width 32 give 0.04
BIAS = 3.0  # times the σ of U(±1/√fan_in), which torch draws biases from
NORMS = {  # role → the largest number that it begins at
    "norm": (1, "norms begin at 1, or at 0 where a model adds 1"),
    "norm bias": (0, "biases of norms begin at 0"),
}
STEP = (0.001, 0.1)  # Δ of mamba-ssm, log-uniform
DECAY = 1000.0  # −A of a state space: more is forgotten within a step, and mostly a logarithm that was not taken
ENOUGH = 16  # numbers by which copies are told from chance
NEAR = math.log(1.1)  # of two sizes, beside chance
ERRORS = 6.0  # standard errors of the ratio of two sizes
TREND = math.log(2.2)  # by which one of sizes that fall or rise may differ: 1/i halves at the second
RISE = math.log(4)  # from the first to the last of four blocks or more: known trends over depth fall
SMALLEST = 1e-30  # root mean square that is told from zero
SIBLINGS = 3  # that are compared, or more
Say = Callable[[Measured, Record], str]  # what is wrong with one parameter, in a few words; or nothing


def of_each(say: Say) -> Callable[[Measured], Found]:
    """Make a check of a function that says what is wrong with one parameter in a few words, or nothing.

    Parameters that were never written are the check ``memory``'s.
    """
    return _check_of(say, lambda measured: measured.written)


def of_draws(say: Say) -> Callable[[Measured], Found]:
    """Make such a check of the parameters whose numbers may be draws."""
    return _check_of(say, lambda measured: measured.draws)


def _check_of(say: Say, asked: Callable[[Measured], Sequence[Record]]) -> Callable[[Measured], Found]:
    @wraps(say)
    def check(measured: Measured) -> Found:
        for record in asked(measured):
            text = say(measured, record)
            if text:
                yield record.name, text

    return check


@of_each
def embeddings(measured: Measured, record: Record) -> str:
    """Find tables of tokens whose rows are all equal, and a row of a padding token that is not zero."""
    if record.role != "embedding":
        return ""
    value, padding = measured.value(record), record.place.padding
    if len(value) > 1 and bool((value == value[:1]).all()):
        return "all rows are equal, so that no token differs from another"
    if padding is not None and value[padding].any():
        return f"the row of the padding token, {padding}, is not zero"
    return ""


@of_each
def norms(measured: Measured, record: Record) -> str:
    """Find norms that begin with a factor above one, or a bias that is not zero, everywhere."""
    most, usual = NORMS.get(record.role, (math.inf, ""))
    wrong = record.constant and record.size > 1 and abs(record.mean) > most
    return f"begins at {record.mean:.3g}; {usual}" if wrong else ""


@of_draws
def coarse(measured: Measured, record: Record) -> str:
    """Find matrices in float32 that are all numbers of bfloat16."""
    if record.dtype != "float32" or len(record.shape) < 2:
        return ""
    value = measured.value(record)
    alike = torch.equal(value.bfloat16().float(), value)
    return "is float32, and all its numbers are those of bfloat16" if alike else ""


@of_each
def step(measured: Measured, record: Record) -> str:
    """Find state-space layers whose step Δ = softplus(bias) is none of mamba-ssm's, or that forget within a step."""
    if record.role == "step":
        median = nn.functional.softplus(measured.value(record).double()).median().item()
        if not STEP[0] / 2 <= median <= STEP[1] * 2:
            return f"the median step is {median:.2g}; mamba-ssm draws {STEP[0]:g} to {STEP[1]:g}"
    if record.role == "decay" and record.largest > math.log(DECAY):
        return f"holds {record.largest:.3g} as the logarithm of a decay: nothing is left after a step"
    return ""


def scale(measured: Measured) -> Found:
    """Find single scales that are wrong, or that most matrices hardly give anything, as where σ² was taken for σ."""
    yield from _wrong_scale(measured)
    yield from _lone_numbers(measured)
    gains = {}
    for each in measured.draws:
        if each.role == "weight":
            gains[each.name] = each.std * math.sqrt(each.place.fan_in)
    small = tuple(name for name, gain in gains.items() if gain < FAINT)
    if len(gains) > 3 and 2 * len(small) > len(gains):
        yield small, f"{first_names(small)}: most matrices leave less than {FAINT:g} of what comes in"


@of_draws
def _wrong_scale(measured: Measured, record: Record) -> str:
    """Find matrices that give far more than comes in, or hardly anything, and large biases."""
    fan_in, fan_out, std = record.place.fan_in, record.place.fan_out, record.std
    gain = std * math.sqrt(fan_in)
    if record.role == "bias" and gain > BIAS / math.sqrt(3):
        return f"σ {std:.2g} is more than {BIAS:g} times what torch draws biases with"
    if record.role != "weight":
        return ""
    if std * math.sqrt(min(fan_in, fan_out)) > LARGE:
        return f"σ {std:.2g} is {gain:.2g}/√fan_in"
    return f"σ {std:.2g} leaves {gain:.1g} of what comes in" if gain < LITTLE else ""


@of_draws
def _lone_numbers(measured: Measured, record: Record) -> str:
    """Find single numbers far from all others, as the bound that ``trunc_normal_`` returns once in a while."""
    if record.largest + abs(record.mean) <= FAR * record.std:
        return ""
    far = (measured.value(record) - record.mean).abs().flatten()
    first, *_, last = far.topk(min(ALONE + 1, record.size)).values.tolist()
    alone = first > max(FAR * record.std, GAP * last)
    return f"single numbers reach {first:.2g} from the mean, others {last:.2g}" if alone else ""


def copies(measured: Measured) -> Found:
    """Find equal draws in one parameter, or in several: a layer that was copied, or the same seed before each.

    A copy that is not trained is meant: a teacher's, or what peft keeps.
    """
    yield from _repeated_rows(measured)
    unused = {each.name for each in measured.unmoved()}
    groups: dict[tuple, list[str]] = defaultdict(list)
    for record in measured.draws:
        if record.trainable and record.size >= ENOUGH and record.name not in unused:
            # Biases whose outputs are added train alike, and tokens begin equal; but not those of several blocks.
            beside = record.siblings if record.size == max(record.shape) else ""
            groups[record.shape, record.digest, beside].append(record.name)
    found = [names for names in groups.values() if len(names) > 1]
    if found:
        shown = first_names([_equal_names(names) for names in found])
        yield tuple(chain(*found)), f"{shown}: equal, copied or drawn from the same seed"


def _equal_names(names: Sequence[str]) -> str:
    """Name equal parameters: in one name where they differ in their places in lists alone."""
    alike = {re.sub(r"\b\d+\b", "#", name) for name in names}
    return folded_name(names) if len(alike) == 1 else " = ".join(names)


@of_draws
def _repeated_rows(measured: Measured, record: Record) -> str:
    """Find equal rows or columns in a drawn matrix: equal experts or heads, keys that are queries, words."""
    if len(record.shape) < 2:
        return ""
    rows = measured.value(record).flatten(1)
    if record.place.stacked:
        return _repeated("parts", rows, 2)
    return _repeated("rows", rows, COMPARED) or _repeated("columns", rows.T, COMPARED)


def _repeated(what: str, vectors: Tensor, least: int) -> str:
    """Say how many of so many vectors or more repeat another."""
    if len(vectors) < least or vectors.shape[1] < COMPARED:
        return ""
    some = vectors[:, :: vectors.shape[1] // COMPARED]
    some = some[some.amax(1) > some.amin(1)]  # constant ones, such as those of an identity, are no copies
    again = len(some) - len(torch.unique(some, dim=0))
    return f"{again:,} of {len(vectors):,} {what} repeat another" if again else ""


def odd(measured: Measured) -> Found:
    """Find a single block whose parameter is zero, larger, smaller or forgotten, among others that are alike."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for each in measured.chosen:
        if not each.bare and (each.size >= FEWEST or each.constant):
            groups[each.siblings, each.shape, each.place.fan_in].append(each)
    for group in groups.values():
        if len(group) >= SIBLINGS:
            yield from _odd_one(group)


def _odd_one(group: Sequence[Record]) -> Found:
    sizes = np.array([each.rms for each in group])
    logarithms = np.log(np.maximum(sizes, SMALLEST))
    steps = np.diff(logarithms)
    if len(group) > SIBLINGS and (steps > 0).all() and steps.sum() > RISE:
        yield group[-1].name, f"root mean square grows with depth, from {sizes[0]:.2g} to {sizes[-1]:.2g}"
        return
    near = NEAR + 1.5 * ERRORS / math.sqrt(2 * group[0].size)
    if (steps >= 0).all() or (steps <= 0).all():
        near += TREND
    middle = len(group) // 2
    constant = np.array([each.constant for each in group])
    apart = np.abs(logarithms - np.sort(logarithms)[middle])
    (places,) = np.nonzero((constant != (2 * constant.sum() > len(group))) | (apart > near))
    if len(places) == 1:
        other, median = group[places[0]], np.sort(sizes)[middle]
        yield other.name, f"root mean square {other.rms:.2g}; in the other {len(group) - 1} blocks it is {median:.2g}"


def shared(measured: Measured) -> Found:
    """Find what several blocks of a list have in common, as in ``[block] * 12``, and parameters that share memory."""
    model, lists = measured.model, lists_of(measured.model)
    places: dict[nn.Module | nn.Parameter, list[str]] = defaultdict(list)
    for outer, module in model.named_modules():  # each once: what lies in a shared one has one place
        for key, part in (*module._modules.items(), *module._parameters.items()):
            places[part].append(f"{outer}.{key}".lstrip("."))
    places.pop(None, None)
    for part, names in places.items():
        size = sum(each.numel() for each in part.parameters()) if isinstance(part, nn.Module) else part.numel()
        alike = len(names) > 1 and len({in_lists(name, lists) for name in names}) == 1
        if alike and size:
            yield tuple(names), f"{folded_name(names)} are one: {size:,} numbers in place of {len(names) * size:,}"
    yield from _overlapping(measured)


def _overlapping(measured: Measured) -> Found:
    """Find parameters that are views of one memory, in part or as a whole."""
    spans = []
    for record in measured.records:
        held = measured.tensors[record.name]
        if type(held) is Tensor and record.kind != "unreadable":
            pairs = zip(held.shape, held.stride(), strict=True)
            reach = 1 + sum((size - 1) * stride for size, stride in pairs)
            spans.append((held.data_ptr(), held.data_ptr() + reach * held.element_size(), record.name))
    for (_, end, one), (begin, _, other) in pairwise(sorted(spans)):
        if begin < end:
            yield (one, other), f"{one} and {other} share memory, and are two parameters"


def frozen(measured: Measured) -> Found:
    """Find draws that are not trained; tables are computed."""
    for each in measured.draws:
        meant = each.trainable or selects(measured.frozen, each.name, each)
        if each.size >= FEWEST and not meant:
            yield each.name, "is drawn, and is not trained"
