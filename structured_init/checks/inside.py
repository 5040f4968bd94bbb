"""Checks of one parameter: each says what is wrong with its numbers in a few words, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from structured_init.checks.findings import Finding, folded
from structured_init.checks.measured import Measured
from structured_init.checks.records import Record

Say = Callable[[Measured, Record], str]

COMPARED = 16  # numbers of a row by which it is told from others
FAR, ALONE = 8.0, 8  # standard deviations beyond which so many numbers belong to no distribution,
GAP = 1.5  # if the largest is this many times as far as what follows these; else they are a tail
LARGE = 8.0  # times 1/√fan, the smaller one: no library draws such a σ
LITTLE = 1e-4  # of what comes in, which a matrix gives: less than that is lost beside anything else
BIAS = 3.0  # times the σ of U(±1/√fan_in), which torch draws biases from
STEP = (0.001, 0.1)  # Δ of mamba-ssm, log-uniform
DECAY = 1000.0  # −A of a state space: more is forgotten within a step, and mostly a logarithm that was not taken


def of_each(check: str, say: Say, measured: Measured) -> Iterator[Finding]:
    """Ask one parameter after the other; parameters that were never written are the check ``memory``'s."""
    lines = []
    for record in measured.chosen:
        text = say(measured, record) if math.isfinite(record.std) else ""
        if text:
            lines.append((record.name, text))
    return folded(check, lines)


def repeated_rows(measured: Measured, record: Record) -> str:
    """Find equal rows or columns in a drawn matrix: equal experts or heads, keys that are queries, words."""
    if not record.drawn or len(record.shape) < 2:
        return ""
    rows = measured.value(record).flatten(1)
    sides = {"parts": (rows, 2)} if record.place.stacked else {"rows": (rows, COMPARED), "columns": (rows.T, COMPARED)}
    for what, (vectors, least) in sides.items():
        if len(vectors) >= least and vectors.shape[1] >= COMPARED:
            some = vectors[:, :: vectors.shape[1] // COMPARED]
            some = some[some.amax(1) > some.amin(1)]  # constant ones, such as those of an identity, are no copies
            again = len(some) - len(torch.unique(some, dim=0))
            if again:
                return f"{again:,} of {len(vectors):,} {what} repeat another"
    return ""


def coarse(measured: Measured, record: Record) -> str:
    """Find matrices in float32 that are all numbers of bfloat16."""
    if not record.drawn or record.dtype != "float32" or len(record.shape) < 2:
        return ""
    value = measured.value(record)
    alike = torch.equal(value.bfloat16().float(), value)
    return "is float32, and all its numbers are those of bfloat16" if alike else ""


def lone(measured: Measured, record: Record) -> str:
    """Find single numbers far from all others, as the bound that ``trunc_normal_`` returns once in a while."""
    if record.drawn and record.largest + abs(record.mean) > FAR * record.std:
        far = (measured.value(record) - record.mean).abs().flatten()
        first, *_, last = far.topk(min(ALONE + 1, record.size)).values.tolist()
        if first > max(FAR * record.std, GAP * last):
            return f"single numbers reach {first:.2g} from the mean, others {last:.2g}"
    return ""


def scale(measured: Measured, record: Record) -> str:
    """Find matrices that give far more than comes in, or hardly anything, and large biases."""
    fan_in, fan_out, std = record.place.fan_in, record.place.fan_out, record.std
    if not record.drawn or not fan_in:
        return ""
    if record.role == "bias" and std > BIAS / math.sqrt(3 * fan_in):
        return f"σ {std:.2g} is more than {BIAS:g} times what torch draws biases with"
    if record.role == "weight" and std * math.sqrt(min(fan_in, fan_out)) > LARGE:
        return f"σ {std:.2g} is {std * math.sqrt(fan_in):.2g}/√fan_in"
    if record.role == "weight" and std * math.sqrt(fan_in) < LITTLE:
        return f"σ {std:.2g} leaves {std * math.sqrt(fan_in):.1g} of what comes in"
    return ""


def norms(measured: Measured, record: Record) -> str:
    """Find norms that begin with a factor above one, or a bias that is not zero, everywhere."""
    if not record.constant or record.size == 1:
        return ""
    if record.role == "norm" and record.mean > 1:
        return f"begins at {record.mean:.3g}; norms begin at 1, or at 0 where a model adds 1"
    if record.role == "norm bias" and record.mean != 0:
        return f"begins at {record.mean:.3g}; biases of norms begin at 0"
    return ""


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


def step(measured: Measured, record: Record) -> str:
    """Find state-space layers whose step Δ = softplus(bias) is none of mamba-ssm's, or that forget within a step."""
    if record.role == "step":
        median = torch.nn.functional.softplus(measured.value(record).double()).median().item()
        if not STEP[0] / 2 <= median <= STEP[1] * 2:
            return f"the median step is {median:.2g}; mamba-ssm draws {STEP[0]:g} to {STEP[1]:g}"
    if record.role == "decay" and record.largest > math.log(DECAY):
        return f"holds {record.largest:.3g} as the logarithm of a decay: nothing is left after a step"
    return ""
