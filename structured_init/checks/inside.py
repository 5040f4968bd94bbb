"""Checks of one parameter: each says what is wrong with its numbers in a few words, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from structured_init.checks.records import Record
from structured_init.checks.references import STEP

MATRICES = ("weight", "attention input")  # roles of what multiplies
COMPARED = 16  # numbers of a row by which it is told from others
LOOKED_AT = 4096  # numbers of which the different ones are counted
FAR, ALONE = 8.0, 8  # so many numbers beyond so many standard deviations belong to no distribution,
GAP = 1.5  # if the nearest is this many times as large as the largest of the others; else they are a tail
LARGE = 8.0  # times 1/√fan, the smaller one: no library draws such a σ
LITTLE = 1e-4  # of what comes in, which a matrix gives: less than that is lost beside anything else
BIAS = 3.0  # times the σ of U(±1/√fan_in), which torch draws biases from
DECAY = 1000.0  # −A of a state space: more is forgotten within a step, and mostly a logarithm that was not taken


def memory(record: Record, value: Tensor) -> str:
    """Find bare memory, as after ``torch.empty`` or timm's ``weight_init="skip"``."""
    return f"never initialized, {record.bare}" if record.bare else ""


def repeated_rows(record: Record, value: Tensor) -> str:
    """Find equal rows or columns in a drawn matrix: equal experts or heads, keys that are queries, words."""
    if not record.drawn or value.ndim < 2:
        return ""
    rows = value.flatten(1)
    sides = {"parts": rows} if record.place.stacked else {"rows": rows, "columns": rows.T}
    for what, vectors in sides.items():
        if vectors.shape[1] < COMPARED or (what != "parts" and len(vectors) < COMPARED):
            continue
        some = vectors[:, :: vectors.shape[1] // COMPARED]
        some = some[some.amax(1) > some.amin(1)]  # constant ones, such as those of an identity, are no copies
        again = len(some) - len(torch.unique(some, dim=0))
        if again:
            return f"{again:,} of {len(vectors):,} {what} repeat another"
    return ""


def coarse(record: Record, value: Tensor) -> str:
    """Find matrices in float32 that are all numbers of bfloat16 or float16."""
    if not record.drawn or record.dtype != "float32" or value.ndim < 2 or len(value.flatten()[:LOOKED_AT].unique()) < 3:
        return ""  # of zeros and ones the places are drawn
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(value.to(dtype).float(), value):
            return f"is float32, and all its numbers are those of {str(dtype).removeprefix('torch.')}"
    return ""


def lone(record: Record, value: Tensor) -> str:
    """Find single numbers far from all others, as the bound that ``trunc_normal_`` returns once in a while."""
    if not record.drawn or record.largest + abs(record.mean) <= FAR * record.std:
        return ""
    far = (value - record.mean).abs()
    alone = far > FAR * record.std
    count = int(alone.sum())
    if not 0 < count <= ALONE or far[alone].min() < GAP * far[~alone].max():
        return ""
    return f"{count} numbers reach {far.max():.2g} from the mean, all others {far[~alone].max():.2g}"


def scale(record: Record, value: Tensor) -> str:
    """Find matrices that give far more than comes in, or hardly anything, and large biases."""
    fan_in, fan_out, std = record.place.fan_in, record.place.fan_out, record.std
    if not record.drawn or not fan_in:
        return ""
    if record.role == "bias" and record.std > BIAS / math.sqrt(3 * fan_in):
        return f"σ {record.std:.2g} is more than {BIAS:g} times what torch draws biases with"
    if record.role in MATRICES and std * math.sqrt(min(fan_in, fan_out)) > LARGE:
        return f"σ {std:.2g} is {std * math.sqrt(fan_in):.2g}/√fan_in"
    if record.role in MATRICES and std * math.sqrt(fan_in) < LITTLE:
        return f"σ {std:.2g} leaves {std * math.sqrt(fan_in):.1g} of what comes in"
    return ""


def norms(record: Record, value: Tensor) -> str:
    """Find norms that begin with a factor above one, or a bias that is not zero, everywhere."""
    if not record.constant or record.size == 1:
        return ""
    if record.role == "norm" and record.mean > 1:
        return f"begins at {record.mean:.3g}; norms begin at 1, or at 0 where a model adds 1"
    if record.role == "norm bias" and record.mean != 0:
        return f"begins at {record.mean:.3g}; biases of norms begin at 0"
    return ""


def embeddings(record: Record, value: Tensor) -> str:
    """Find tables of tokens whose rows are all equal, and a row of a padding token that is not zero."""
    padding = record.place.padding
    if record.role != "embedding":
        return ""
    if len(value) > 1 and bool((value == value[:1]).all()):
        return "all rows are equal, so that no token differs from another"
    if padding is not None and value[padding].any():
        return f"the row of the padding token, {padding}, is not zero"
    return ""


def step(record: Record, value: Tensor) -> str:
    """Find state-space layers whose step Δ = softplus(bias) is none of mamba-ssm's, or that forget within a step."""
    if record.role == "step" and not record.bare:
        median = torch.nn.functional.softplus(value.double()).median().item()
        if not STEP[0] / 2 <= median <= STEP[1] * 2:
            return f"the median step is {median:.2g}; mamba-ssm draws {STEP[0]:g} to {STEP[1]:g}"
    if record.role == "decay" and math.log(DECAY) < record.largest < math.inf:
        return f"holds {record.largest:.3g} as the logarithm of a decay: nothing is left after a step"
    return ""


CHECKS: tuple[tuple[str, Callable[[Record, Tensor], str]], ...] = (
    ("memory", memory),
    ("copies", repeated_rows),
    ("embeddings", embeddings),
    ("scale", scale),
    ("scale", lone),
    ("norms", norms),
    ("step", step),
    ("coarse", coarse),
)


def inspect(record: Record, value: Tensor) -> Iterator[tuple[str, str]]:
    """Yield each check that finds something in one parameter, and what it says."""
    for check, find in CHECKS:
        text = find(record, value)
        if text:
            yield check, text
