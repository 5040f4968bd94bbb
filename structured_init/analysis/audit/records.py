"""One record per parameter: what it was drawn from and which reference that equals."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structured_init.analysis.audit.distribution import (
    ALPHA,
    FEWEST,
    KURTOSIS_ERRORS,
    KURTOSIS_FROM,
    STANDARD_ERRORS,
    Distribution,
    Sample,
    logarithms,
    recognize,
    structured,
)
from structured_init.analysis.audit.references import Place, Reference, matching, places
from structured_init.storage import uninitialized
from structured_init.weights import tensor_names
from structured_init.writer import full_value

FAR, ALONE = 8.0, 8  # so many numbers beyond so many standard deviations belong to no distribution,
GAP = 1.5  # if the nearest is this many times as far from the mean as the farthest of the others; else they are a tail
UNLIKELY = 3.0  # nats by which a reference explains a parameter's numbers worse than another that fits: 20 to 1
LEAST = 8  # of fewer numbers no reference is named
LIBRARIES = ("torch", "timm", "transformers", "mamba-ssm")
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
    outliers: int = 0  # single numbers beyond FAR standard deviations, which recognition leaves out
    usual_std: float = math.nan  # of its numbers without those
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


def records(model: nn.Module, blocks: list[str]) -> list[Record]:
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
    # Where several references fit one, that comes first which most parameters of the model equal, but for those that
    # its own numbers make unlikely. A scale for the depth that fits a single one of several blocks does so by chance.
    count = Counter(name for record in found for name in {reference.name for reference in record.references})
    blocks_of = Counter(name for _, name in {(each.block, r.name) for each in found for r in each.references})

    by_chance = {name for name, number in blocks_of.items() if "depth" in name and number < min(len(blocks), 2)}
    # So does one that the same parameters of all blocks contradict when they are taken together.
    alike: defaultdict[tuple[str, str], dict[tuple, tuple[Record, Distribution]]] = defaultdict(dict)
    for each in found:
        for name, expected in each.references:
            if expected.scale and not expected.center:  # no constant, and neither −A nor log Δ
                alike[each.inside, name][each.drawn] = each, expected  # copies count once
    contradicted = {key for key, drawn in alike.items() if not _fit_together([*drawn.values()])}

    def kept(record: Record) -> tuple[Reference, ...]:
        likely = [
            r for r in record.references if r.name not in by_chance and (record.inside, r.name) not in contradicted
        ]
        nats = {r: record.size * r.expected.surprise(record.mean, record.usual_std) for r in likely}
        best = min(nats.values(), default=0.0)
        return tuple(sorted(likely, key=lambda r: (nats[r] > best + UNLIKELY, -count[r.name])))

    return [replace(each, references=kept(each)) for each in found]


def _fit_together(drawn: list[tuple[Record, Distribution]]) -> bool:
    """Test the size and the largest of all numbers, each by the scale of its own distribution, as ``fits`` does."""
    numbers = sum(each.size for each, _ in drawn)
    square = sum(each.size * (each.usual_std**2 + each.mean**2) / expected.std**2 for each, expected in drawn) / numbers
    error = math.sqrt((drawn[0][1].kurtosis - 1) / (4 * numbers))
    rounding = 2 * max(torch.finfo(getattr(torch, each.dtype)).eps for each, _ in drawn)
    largest = max(each.largest / expected.scale for each, expected in drawn) * (1 + rounding)
    within = sum(each.size * expected.log_within(largest * expected.scale) for each, expected in drawn)
    return abs(math.sqrt(square) - 1) <= STANDARD_ERRORS * error + 1 / numbers and within >= math.log(ALPHA)


def described(record: Record, value: Tensor) -> Record:
    """Return a record with what its full value on the CPU tells."""
    place = record.place
    epsilon = torch.finfo(getattr(torch, record.dtype)).eps
    stored = value.to(getattr(torch, record.dtype))
    why = uninitialized(stored)
    if why is not None:
        return replace(record, distribution=Distribution("memory"), why=why)
    used = _without_zero_rows(value)
    sample = Sample.of(used, epsilon)
    far = (used - sample.mean).abs()
    alone = far > FAR * sample.std
    count = int(alone.sum())
    if count and far[alone].min() < GAP * far[~alone].max():
        count = 0
    distribution, rest = None, sample
    if sample.low != sample.high:
        if place.stacked and min(stored.shape[1:]) > 1:
            distribution = structured(stored.flatten(0, 1), len(stored))
        distribution = distribution or structured(stored, place.groups)
    if distribution is None and 0 < count <= ALONE:
        others = Sample.of(used[~alone], epsilon)
        count, rest = (count, others) if others.std > 0 else (0, sample)  # beside equal numbers no σ is a measure
    record = replace(
        record,
        mean=sample.mean,
        std=sample.std,
        usual_std=rest.std,
        largest=used.abs().max().item(),
        kurtosis=sample.kurtosis,
        outliers=count if distribution is None and count <= ALONE else 0,
    )
    if place.role == "decay" and (counting := logarithms(value.reshape(-1, value.shape[-1]))):
        # over the states in Mamba-1; over the heads in transformers' Mamba-2
        reference = Reference("mamba-ssm" if value.ndim > 1 else "transformers", counting)
        return replace(record, distribution=counting, references=(reference,))
    if place.role in ("decay", "step") and distribution is None:
        return _transformed(record, value, epsilon)
    if distribution is not None:
        return replace(record, distribution=distribution)
    seen = recognize(rest)
    filters = value.ndim > 2 and not place.stacked
    if (filters and _neighbours_correlate(value, rest, seen)) or not _thirds_alike(used, rest, seen):
        seen = replace(seen, kind="other", center=0.0)
    if seen.kind in ("unclear", "other"):
        seen = replace(seen, scale=sample.std)  # as the table says it
    references = _worth_saying(rest, place, seen.kind)
    if value.numel() == 1 and place.role in ("weight", "bias") and seen.center not in (0.0, 1.0):
        seen = Distribution("unclear", center=seen.center)  # a head with one output: a draw may give any number
    return replace(record, distribution=seen, references=references)


def describe_kind(record: Record) -> str:
    """Say what a parameter is in a few words: the kind, with the scale of the reference where one matches."""
    shown = record.references[0].expected if record.references else record.distribution
    if record.role == "step" and shown.kind in ("uniform", "log-uniform step"):
        low, high = (math.exp(shown.center + sign * shown.scale) for sign in (-1, 1))
        return f"Δ log-uniform {low:.2g} to {high:.2g}"
    if record.role == "decay" and shown.kind in ("uniform", "log of uniform"):
        return f"log U({shown.center - shown.scale:.2g}, {shown.center + shown.scale:.2g})"
    if record.role == "step" and shown.kind == "constant":
        return f"Δ = {math.exp(shown.center):.3g}"
    if record.role == "decay" and shown.kind == "constant":
        return f"−A = {shown.center:.3g}"
    return _kind_in_words(shown)


def label(record: Record) -> str:
    """Return what a parameter was drawn from and whose initialization that is."""
    if not record.references:
        return describe_kind(record)
    first = record.references[0]
    same = [each.name for each in record.references if each.expected == first.expected]
    names = [name for name in same if name in LIBRARIES] or [name for name in same[:1] if name not in ("zeros", "ones")]
    plain = record.distribution.kind == "constant" and first.expected.center in (0.0, 1.0)
    return describe_kind(record) if plain or not names else f"{describe_kind(record)} ({', '.join(names)})"


def _kind_in_words(distribution: Distribution) -> str:
    """Say a kind and its scale, to two or three digits."""
    kind, scale, center = distribution.kind, distribution.scale, distribution.center
    around = f", mean {center:.2g}" if center else ""
    if kind == "constant":
        return {0.0: "zeros", 1.0: "ones"}.get(center, f"constant {center:.3g}")
    if kind == "normal":
        return f"normal σ {scale:.2g}{around}"
    if kind == "truncated normal":
        return f"normal σ {scale:.2g} cut at {distribution.cut:.2g} σ{around}"
    if kind == "uniform":
        return f"uniform ± {scale:.2g}{around}"
    if kind in ("identity", "orthogonal", "delta orthogonal", "Dirac", "impulse"):
        return kind if math.isclose(scale, 1, rel_tol=1e-3) else f"{scale:.2g} × {kind}"
    if kind == "unclear":
        return f"unclear, std {scale:.2g}{around}" if scale else f"one number, {center:.2g}"
    if kind == "other":
        return f"no known distribution, std {scale:.2g}{around}"
    return {"memory": "never initialized", "unreadable": "not readable"}.get(kind, kind)


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


def _neighbours_correlate(value: Tensor, sample: Sample, seen: Distribution) -> bool:
    """Tell whether filters have neighbours along their last axis that independent draws have not.

    Their mean product is compared with zero, within ``KURTOSIS_ERRORS`` standard errors; outliers are cut off.
    """
    if value.shape[-1] < 2:
        return False
    value = value.clamp(sample.low, sample.high).double() - seen.center
    product = (value[..., 1:] * value[..., :-1]).mean() / value.square().mean()
    return product.abs().item() * math.sqrt(value[..., 1:].numel()) > KURTOSIS_ERRORS


def _thirds_alike(value: Tensor, sample: Sample, seen: Distribution) -> bool:
    """Tell whether thirds of the rows and of the columns have one scale; those of a fused weight may have several.

    Their mean squares are compared with that of all, within ``KURTOSIS_ERRORS`` standard errors.
    """
    if value.ndim < 2 or sample.count < KURTOSIS_FROM or seen.kind == "other" or value.numel() > sample.count:
        return True
    squares = (value.double() - seen.center).square()
    parts = [part for axis in (0, -1) for part in squares.tensor_split(3, dim=axis)]
    far = KURTOSIS_ERRORS * math.sqrt(max(sample.kurtosis - 1, 0)) * squares.mean()
    return all(
        abs(part.mean() - squares.mean()) * math.sqrt(part.numel()) <= far for part in parts if part.numel() > 99
    )


def _without_zero_rows(value: Tensor) -> Tensor:
    """Leave out rows of zeros where they are the fewer; padding tokens have one."""
    if value.ndim < 2:
        return value
    used = value.flatten(1).any(dim=1)
    kept = int(used.sum())
    return value[used] if 2 * kept > len(used) > kept else value
