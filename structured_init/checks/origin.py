"""What one parameter was drawn from, and whose initialization that is."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from structured_init.checks.distribution import (
    FEWEST,
    KURTOSIS_ERRORS,
    KURTOSIS_FROM,
    Distribution,
    Sample,
    recognize,
)
from structured_init.checks.records import Record, without_lone_numbers, without_zero_rows
from structured_init.checks.references import Reference, matching
from structured_init.checks.structure import logarithms

UNLIKELY = 3.0  # nats by which a reference explains a parameter's numbers worse than another that fits: 20 to 1
LEAST = 8  # of fewer numbers no reference is named
# Kinds in another space: what is recognized there → what the parameter itself is.
DECAYS = {"uniform": "log of uniform", "constant": "constant"}
STEPS = {"uniform": "log-uniform step", "constant": "constant"}


def with_origin(record: Record, value: Tensor) -> Record:
    """Return a record with the distribution of its numbers, and the references that it equals."""
    if record.bare:
        return record
    used = without_zero_rows(value)
    sample = Sample(used, torch.finfo(getattr(torch, record.dtype)).eps)
    record = replace(record, kurtosis=sample.kurtosis)
    if record.role == "decay" and (counting := logarithms(value.reshape(-1, value.shape[-1]))):
        # over the states in Mamba-1; over the heads in transformers' Mamba-2
        reference = Reference("mamba-ssm" if value.ndim > 1 else "transformers", counting)
        return replace(record, distribution=counting, references=(reference,))
    if record.structure is not None:
        return replace(record, distribution=record.structure)
    if record.role in ("decay", "step"):
        return _transformed(record, value, sample.epsilon)
    usual = without_lone_numbers(used, sample)
    rest = Sample(usual, sample.epsilon)
    seen = recognize(rest)
    if not _looks_independent(record, value, used, rest, seen):
        seen = replace(seen, kind="other", center=0.0)
    if seen.kind in ("unclear", "other"):
        seen = replace(seen, scale=sample.std)  # as the table says it
    references = _worth_saying(rest, record, seen.kind)
    if value.numel() == 1 and record.role in ("weight", "bias") and seen.center not in (0.0, 1.0):
        seen = Distribution("unclear", center=seen.center)  # a head with one output: a draw may give any number
    return replace(record, distribution=seen, references=references)


def _transformed(record: Record, value: Tensor, epsilon: float) -> Record:
    """Recognize −A of a decay, or log Δ of a step."""
    inner = value.double().exp() if record.role == "decay" else F.softplus(value.double()).log()
    sample = Sample(inner, max(epsilon, 1e-4))
    seen = recognize(sample)
    references = _worth_saying(sample, record, seen.kind)
    kinds = DECAYS if record.role == "decay" else STEPS
    seen = replace(seen, kind=kinds[seen.kind]) if seen.kind in kinds else recognize(Sample(value, epsilon))
    return replace(record, distribution=seen, references=references)


def _worth_saying(sample: Sample, record: Record, kind: str) -> tuple[Reference, ...]:
    """Return the references of the kind that was recognized, or of any kind where that is unclear.

    What few numbers cannot decide is left out: of ``FEWEST`` or more all stay, of fewer a single reference alone.
    """
    matched = tuple(each for each in matching(sample, record.place) if kind in ("unclear", each.expected.kind))
    exact = sample.low == sample.high
    return matched if exact or sample.count >= FEWEST or (len(matched) == 1 and sample.count >= LEAST) else ()


def _looks_independent(record: Record, value: Tensor, used: Tensor, sample: Sample, seen: Distribution) -> bool:
    """Tell draws from filters whose neighbours correlate, and from a fused weight whose parts have several scales.

    Compared are the mean product of neighbours along the last axis with zero, and the mean squares of thirds of rows
    and columns with that of all, within ``KURTOSIS_ERRORS`` standard errors.
    """
    if value.ndim > 2 and not record.place.stacked and value.shape[-1] > 1:
        filters = value.clamp(sample.low, sample.high).double() - seen.center
        product = (filters[..., 1:] * filters[..., :-1]).mean() / filters.square().mean()
        if product.abs().item() * math.sqrt(filters[..., 1:].numel()) > KURTOSIS_ERRORS:
            return False
    if value.ndim < 2 or sample.count < KURTOSIS_FROM or seen.kind == "other" or used.numel() > sample.count:
        return True
    squares = (used.double() - seen.center).square()
    mean = squares.mean()
    far = KURTOSIS_ERRORS * math.sqrt(max(sample.kurtosis - 1, 0)) * mean
    for each in (*squares.tensor_split(3, dim=0), *squares.tensor_split(3, dim=-1)):
        if each.numel() > 99 and abs(each.mean() - mean) * math.sqrt(each.numel()) > far:
            return False
    return True


def in_order(records: list[Record], num_blocks: int) -> list[Record]:
    """Return records whose first reference is that which most parameters of the model equal.

    References that a parameter's own numbers make unlikely come last. A scale for the depth that fits a single one of
    several blocks does so by chance.
    """
    often: Counter[str] = Counter()
    blocks: dict[str, set[str]] = defaultdict(set)  # reference → blocks in which a parameter equals it
    for record in records:
        names = {each.name for each in record.references}
        often.update(names)
        for name in names:
            blocks[name].add(record.block)
    by_chance = {name for name, found in blocks.items() if "depth" in name and len(found) < min(num_blocks, 2)}
    return [replace(each, references=_ordered(each, often, by_chance)) for each in records]


def _ordered(record: Record, often: Counter[str], by_chance: Collection[str]) -> tuple[Reference, ...]:
    likely = [each for each in record.references if each.name not in by_chance]
    nats = {each: record.size * each.expected.surprise(record.mean, record.usual_std) for each in likely}
    least = min(nats.values(), default=0.0)
    return tuple(sorted(likely, key=lambda each: (nats[each] > least + UNLIKELY, -often[each.name])))
