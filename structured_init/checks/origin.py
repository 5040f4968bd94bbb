"""What one parameter was drawn from, and whose initialization that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from structured_init.checks.distribution import FEWEST, Distribution, Sample, fits, recognize
from structured_init.checks.records import Record, without_zero_rows
from structured_init.checks.references import Reference, references
from structured_init.checks.structure import logarithms

LEAST = 8  # of fewer numbers no reference is named


def with_origin(record: Record, value: Tensor) -> Record:
    """Return a record with the distribution of its numbers, and the references that it equals."""
    if record.bare:
        return record
    sample = Sample(without_zero_rows(value), torch.finfo(getattr(torch, record.dtype)).eps)
    record = replace(record, kurtosis=sample.kurtosis)
    counting = logarithms(value.reshape(-1, value.shape[-1])) if record.role == "decay" else None
    if counting:  # over the states in Mamba-1; over the heads in transformers' Mamba-2
        reference = Reference("mamba-ssm" if value.ndim > 1 else "transformers", counting)
        return replace(record, distribution=counting, references=(reference,))
    if record.structure is not None:
        return replace(record, distribution=record.structure)
    if record.role in ("decay", "step"):
        return _transformed(record, value, sample)
    seen = recognize(sample)
    references = _worth_saying(sample, record, seen.kind)
    if value.numel() == 1 and record.role in ("weight", "bias") and seen.center not in (0.0, 1.0):
        seen = Distribution("unclear", center=seen.center)  # a head with one output: a draw may give any number
    return replace(record, distribution=seen, references=references)


def _transformed(record: Record, value: Tensor, stored: Sample) -> Record:
    """Recognize −A of a decay, or log Δ of a step."""
    inner = value.double().exp() if record.role == "decay" else F.softplus(value.double()).log()
    sample = Sample(inner, max(stored.epsilon, 1e-4))
    seen = recognize(sample)
    references = _worth_saying(sample, record, seen.kind)
    if seen.kind == "uniform":
        seen = replace(seen, kind="log of uniform" if record.role == "decay" else "log-uniform step")
    elif seen.kind != "constant":
        seen = recognize(stored)
    return replace(record, distribution=seen, references=references)


def _worth_saying(sample: Sample, record: Record, kind: str) -> tuple[Reference, ...]:
    """Return the references of the kind that was recognized, or of any kind where that is unclear.

    What few numbers cannot decide is left out: of ``FEWEST`` or more all stay, of fewer a single reference alone.
    """
    alike = (each for each in references(record.place) if kind in ("unclear", each.expected.kind))
    matched = tuple(each for each in alike if fits(sample, each.expected))
    exact = sample.low == sample.high
    return matched if exact or sample.count >= FEWEST or (len(matched) == 1 and sample.count >= LEAST) else ()


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return records whose first reference is that which most parameters of the model equal."""
    records = list(records)
    often: Counter[str] = Counter()
    for record in records:
        often.update({each.name for each in record.references})
    found = []
    for record in records:
        ordered = sorted(record.references, key=lambda reference: -often[reference.name])
        found.append(replace(record, references=tuple(ordered)))
    return found
