"""The one walk over a model's parameters: what each is for, and what its numbers are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from structured_init.analysis.blocks import blocks_of
from structured_init.checks.distribution import FEWEST, Distribution, Sample, recognize
from structured_init.checks.places import Place, places
from structured_init.checks.references import Reference
from structured_init.checks.structure import structured
from structured_init.storage import uninitialized
from structured_init.util.names import is_stack, named_plain_modules
from structured_init.weights import tensor_names
from structured_init.writer import full_value


@dataclass(frozen=True)
class Record:
    """One parameter."""

    names: tuple[str, ...]  # all its names; tied weights have several
    block: str  # the block of the network that it lies in, or the module
    siblings: str  # its name without its place in a list of blocks, which its siblings in the others share
    place: Place  # what it is for
    shape: tuple[int, ...]
    dtype: str  # as the model stores it
    trainable: bool
    bare: str = ""  # why it looks like memory that was never initialized; empty where it does not
    structure: Distribution | None = None  # what no independent draws have
    constant: bool = False  # whether all numbers are one
    drawn: bool = False  # whether they may be draws
    mean: float = math.nan
    std: float = math.nan
    largest: float = math.nan  # magnitude
    digest: int = 0  # of all numbers, by which copies are found
    # What the audit adds.
    distribution: Distribution = field(default_factory=lambda: Distribution("unreadable"))  # what it was drawn from
    references: tuple[Reference, ...] = ()  # which initializations that equals
    kurtosis: float = math.nan  # 3 for normal numbers

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
    def rms(self) -> float:
        """Root mean square."""
        return math.hypot(self.mean, self.std)

    @property
    def recognized(self) -> bool:
        """Whether its kind is known, or a reference that it equals."""
        return self.distribution.kind not in ("unclear", "other", "memory", "unreadable") or bool(self.references)


class InLists:
    """Names without the numbers that lists of layers give: ``blocks.#.norm.weight`` is one in every block."""

    def __init__(self, model: nn.Module) -> None:
        self.stacks = {name for name, module in named_plain_modules(model) if is_stack(module)}

    def folded(self, name: str, innermost: bool = False) -> str:
        """Return a name with # for its place in a list, or in the innermost list alone."""
        parts = name.split(".")
        places = [k for k, part in enumerate(parts) if part.isdecimal() and ".".join(parts[:k]) in self.stacks]
        for place in places[-1:] if innermost else places:
            parts[place] = "#"
        return ".".join(parts)


def walk(model: nn.Module, fixed: Collection[str] = ()) -> Iterator[tuple[Record, Tensor | None]]:
    """Yield a record of every parameter, in the order of the model, and its full value on the CPU.

    Tied parameters have one record. What cannot be read has no value. ``fixed`` are names of what two builds of
    different seeds have in common.
    """
    names, where, lists, blocks = tensor_names(model), places(model), InLists(model), blocks_of(model)
    for parameter in model.parameters():
        own = names[id(parameter)]
        around = [block for block in blocks if own[0].startswith(f"{block}.")]
        parts = own[0].split(".")
        record = Record(
            names=own,
            block=max(around, key=len) if around else ".".join(parts[:-2]) or parts[0],
            siblings=lists.folded(own[0], innermost=True),
            place=where[id(parameter)],
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            trainable=parameter.requires_grad,
        )
        if parameter.is_floating_point() and not parameter.is_meta and parameter.numel():
            value = full_value(parameter, own[0])
            yield _measured(record, value, own[0] in fixed), value
        else:
            yield record, None


def _measured(record: Record, value: Tensor, fixed: bool) -> Record:
    stored = value.to(getattr(torch, record.dtype))
    bare = uninitialized(stored)
    if bare:
        return replace(record, bare=bare, distribution=Distribution("memory"))
    sample = Sample(without_zero_rows(value))
    constant = sample.low == sample.high
    structure = None if constant else _structure(stored, record.place)
    # A few numbers are no draws that one could know.
    table = fixed and not constant and (sample.count < FEWEST or recognize(sample).kind == "other")
    written = value[value != 0]  # all alike, as of any part of an identity, are no draws
    alike = constant or bool(written.min() == written.max())
    drawn = not alike and not table and (structure is None or "orthogonal" in structure.kind)
    return replace(
        record,
        structure=structure,
        constant=constant,
        drawn=drawn,
        mean=sample.mean,
        std=sample.std,
        largest=max(abs(sample.low), abs(sample.high)),
        digest=hash(value.contiguous().numpy().tobytes()) if drawn else 0,
    )


def _structure(stored: Tensor, place: Place) -> Distribution | None:
    found = None
    if place.stacked and min(stored.shape[1:]) > 1:
        found = structured(stored.flatten(0, 1), len(stored))
    return found or structured(stored, place.groups)


def without_zero_rows(value: Tensor) -> Tensor:
    """Leave out rows of zeros where they are the fewer; padding tokens have one."""
    if value.ndim < 2:
        return value
    used = value.flatten(1).any(dim=1)
    kept = int(used.sum())
    return value[used] if 2 * kept > len(used) > kept else value
