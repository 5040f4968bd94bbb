"""One record per parameter: what it was drawn from and which reference that equals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structured_init.checks.distribution import (
    FEWEST,
    KURTOSIS_ERRORS,
    KURTOSIS_FROM,
    Distribution,
    Sample,
    recognize,
)
from structured_init.checks.references import Place, Reference, matching, places
from structured_init.checks.structure import logarithms, structured
from structured_init.storage import uninitialized
from structured_init.weights import tensor_names
from structured_init.writer import full_value

FAR, ALONE = 8.0, 8  # so many numbers beyond so many standard deviations belong to no distribution,
GAP = 1.5  # if the nearest is this many times as far from the mean as the farthest of the others; else they are a tail
UNLIKELY = 3.0  # nats by which a reference explains a parameter's numbers worse than another that fits: 20 to 1
LEAST = 8  # of fewer numbers no reference is named
# Kinds in another space: what is recognized there → what the parameter itself is.
DECAYS = {"uniform": "log of uniform", "constant": "constant"}
STEPS = {"uniform": "log-uniform step", "constant": "constant"}


@dataclass(frozen=True)
class Record:
    """One parameter."""

    names: tuple[str, ...]  # all its names; tied weights have several
    block: str  # the block of the network that it lies in, or the module
    shape: tuple[int, ...]  # its full shape
    place: Place  # where it stands
    distribution: Distribution  # what its numbers were drawn from
    references: tuple[Reference, ...] = ()  # which initializations that equals
    why: str = ""  # why it looks like memory that was never initialized; empty where it does not
    mean: float = math.nan  # of its numbers
    std: float = math.nan  # of its numbers
    largest: float = math.nan  # the largest magnitude
    kurtosis: float = math.nan  # of its numbers; 3 for normal ones
    usual_std: float = math.nan  # of its numbers without single ones beyond FAR standard deviations
    trainable: bool = True  # whether it receives gradients
    dtype: str = "float32"  # as the model stores it

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]

    @property
    def role(self) -> str:
        """What it is for (see Place)."""
        return self.place.role

    @property
    def inside(self) -> str:
        """The name within its block; empty where it is a block of its own."""
        return self.name.removeprefix(self.block).lstrip(".")

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def drawn(self) -> tuple[float, ...]:
        """What copies have in common: independent draws differ in it."""
        return self.mean, self.std, self.largest, self.kurtosis

    @property
    def recognized(self) -> bool:
        """Whether its kind is known, or a reference that it equals."""
        return self.distribution.kind not in ("unclear", "other", "memory", "unreadable") or bool(self.references)


def records(model: nn.Module, blocks: Collection[str]) -> list[Record]:
    """Return a record of every parameter, in the order of the model; tied ones have one."""
    names, where = tensor_names(model), places(model)
    found = []
    for parameter in model.parameters():
        own = names[id(parameter)]
        inside = [block for block in blocks if own[0].startswith(f"{block}.")]
        parts = own[0].split(".")
        record = Record(
            names=own,
            block=max(inside, key=len) if inside else ".".join(parts[:-2]) or parts[0],
            shape=tuple(parameter.shape),
            place=where[id(parameter)],
            distribution=Distribution("unreadable"),
            trainable=parameter.requires_grad,
            dtype=str(parameter.dtype).removeprefix("torch."),
        )
        readable = parameter.is_floating_point() and not parameter.is_meta and parameter.numel()
        found.append(described(record, full_value(parameter, own[0])) if readable else record)
    often = Counter(name for record in found for name in {reference.name for reference in record.references})
    around = Counter(name for _, name in {(each.block, one.name) for each in found for one in each.references})
    by_chance = {name for name in around if "depth" in name and around[name] < min(len(blocks), 2)}
    return [replace(each, references=_in_order(each, often, by_chance)) for each in found]


def _in_order(record: Record, often: Counter[str], by_chance: Collection[str]) -> tuple[Reference, ...]:
    """Return the references of a parameter, first that which most parameters of the model equal.

    Those that its own numbers make unlikely come last. A scale for the depth that fits a single one of several blocks
    does so by chance.
    """
    likely = [each for each in record.references if each.name not in by_chance]
    nats = {each: record.size * each.expected.surprise(record.mean, record.usual_std) for each in likely}
    least = min(nats.values(), default=0.0)
    return tuple(sorted(likely, key=lambda each: (nats[each] > least + UNLIKELY, -often[each.name])))


def described(record: Record, value: Tensor) -> Record:
    """Return a record with what its full value on the CPU tells."""
    place, dtype = record.place, getattr(torch, record.dtype)
    stored = value.to(dtype)
    if why := uninitialized(stored):
        return replace(record, distribution=Distribution("memory"), why=why)
    used = _without_zero_rows(value)
    sample = Sample.of(used, torch.finfo(dtype).eps)
    structure = None if sample.low == sample.high else _structure(stored, place)
    usual = _without_lone_numbers(used, sample) if structure is None else used
    rest = sample if usual is used else Sample.of(usual, sample.epsilon)
    record = replace(
        record,
        mean=sample.mean,
        std=sample.std,
        usual_std=rest.std,
        largest=used.abs().max().item(),
        kurtosis=sample.kurtosis,
    )
    if place.role == "decay" and (counting := logarithms(value.reshape(-1, value.shape[-1]))):
        # over the states in Mamba-1; over the heads in transformers' Mamba-2
        reference = Reference("mamba-ssm" if value.ndim > 1 else "transformers", counting)
        return replace(record, distribution=counting, references=(reference,))
    if structure is not None:
        return replace(record, distribution=structure)
    if place.role in ("decay", "step"):
        return _transformed(record, value, sample.epsilon)
    seen = recognize(rest)
    if not _looks_independent(value, used, rest, seen, place):
        seen = replace(seen, kind="other", center=0.0)
    if seen.kind in ("unclear", "other"):
        seen = replace(seen, scale=sample.std)  # as the table says it
    references = _worth_saying(rest, place, seen.kind)
    if value.numel() == 1 and place.role in ("weight", "bias") and seen.center not in (0.0, 1.0):
        seen = Distribution("unclear", center=seen.center)  # a head with one output: a draw may give any number
    return replace(record, distribution=seen, references=references)


def _structure(stored: Tensor, place: Place) -> Distribution | None:
    found = None
    if place.stacked and min(stored.shape[1:]) > 1:
        found = structured(stored.flatten(0, 1), len(stored))
    return found or structured(stored, place.groups)


def _without_lone_numbers(value: Tensor, sample: Sample) -> Tensor:
    """Leave out a few numbers far from all others: once in 17 million draws, ``trunc_normal_`` returns its bound."""
    far = (value - sample.mean).abs()
    alone = far > FAR * sample.std
    count = int(alone.sum())
    if not 0 < count <= ALONE or far[alone].min() < GAP * far[~alone].max():
        return value
    others = value[~alone]
    return value if others.min() == others.max() else others  # beside equal numbers no σ is a measure


def _transformed(record: Record, value: Tensor, epsilon: float) -> Record:
    """Recognize −A of a decay, or log Δ of a step."""
    inner = value.double().exp() if record.role == "decay" else F.softplus(value.double()).log()
    sample = Sample.of(inner, max(epsilon, 1e-4))
    seen = recognize(sample)
    references = _worth_saying(sample, record.place, seen.kind)
    kinds = DECAYS if record.role == "decay" else STEPS
    seen = replace(seen, kind=kinds[seen.kind]) if seen.kind in kinds else recognize(Sample.of(value, epsilon))
    return replace(record, distribution=seen, references=references)


def _worth_saying(sample: Sample, place: Place, kind: str) -> tuple[Reference, ...]:
    """Return the references of the kind that was recognized, or of any kind where that is unclear.

    What few numbers cannot decide is left out: of ``FEWEST`` or more all stay, of fewer a single reference alone.
    """
    matched = tuple(each for each in matching(sample, place) if kind in ("unclear", each.expected.kind))
    exact = sample.low == sample.high
    return matched if exact or sample.count >= FEWEST or (len(matched) == 1 and sample.count >= LEAST) else ()


def _looks_independent(value: Tensor, used: Tensor, sample: Sample, seen: Distribution, place: Place) -> bool:
    """Tell draws from filters whose neighbours correlate, and from a fused weight whose parts have several scales.

    Compared are the mean product of neighbours along the last axis with zero, and the mean squares of thirds of rows
    and columns with that of all, within ``KURTOSIS_ERRORS`` standard errors.
    """
    if value.ndim > 2 and not place.stacked and value.shape[-1] > 1:
        filters = value.clamp(sample.low, sample.high).double() - seen.center
        product = (filters[..., 1:] * filters[..., :-1]).mean() / filters.square().mean()
        if product.abs().item() * math.sqrt(filters[..., 1:].numel()) > KURTOSIS_ERRORS:
            return False
    if value.ndim < 2 or sample.count < KURTOSIS_FROM or seen.kind == "other" or used.numel() > sample.count:
        return True
    squares = (used.double() - seen.center).square()
    far = KURTOSIS_ERRORS * math.sqrt(max(sample.kurtosis - 1, 0)) * squares.mean()
    thirds = (*squares.tensor_split(3, dim=0), *squares.tensor_split(3, dim=-1))
    return all(
        abs(each.mean() - squares.mean()) * math.sqrt(each.numel()) <= far for each in thirds if each.numel() > 99
    )


def _without_zero_rows(value: Tensor) -> Tensor:
    """Leave out rows of zeros where they are the fewer; padding tokens have one."""
    if value.ndim < 2:
        return value
    used = value.flatten(1).any(dim=1)
    kept = int(used.sum())
    return value[used] if 2 * kept > len(used) > kept else value
