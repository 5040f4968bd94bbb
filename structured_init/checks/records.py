"""The one walk over a model's parameters: what each is for, and what its numbers are."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from structured_init.analysis.blocks import blocks_of
from structured_init.checks.distribution import DRAWS, FEWEST, Distribution, Sample, recognize
from structured_init.checks.places import Place, places
from structured_init.checks.structure import structured
from structured_init.storage import uninitialized
from structured_init.util.names import is_stack, named_plain_modules
from structured_init.weights import tensor_names
from structured_init.writer import full_value

ORTHOGONAL = ("orthogonal", "delta orthogonal")
UNREAD = Distribution("unreadable")


@dataclass(frozen=True)
class Record:
    """One parameter."""

    names: tuple[str, ...]  # all its names; tied weights have several
    block: str  # the block of the network that it lies in, or the module
    inside: str  # its name within that; empty where it is a block of its own
    siblings: str  # its name without the numbers of its block in a list, which its siblings in the others share
    place: Place  # what it is for
    shape: tuple[int, ...]
    size: int  # how many numbers it has
    dtype: str  # as the model stores it
    trainable: bool
    bare: str = ""  # why it looks like memory that was never initialized; empty where it does not
    distribution: Distribution = UNREAD  # what it was drawn from
    drawn: bool = False  # whether its numbers may be draws
    mean: float = math.nan
    std: float = math.nan
    largest: float = math.nan  # magnitude
    kurtosis: float = math.nan  # 3 for normal numbers
    digest: int = 0  # of all numbers, by which copies are found

    @property
    def name(self) -> str:
        """Its first name."""
        return self.names[0]

    @property
    def role(self) -> str:
        """What it is for (see Place)."""
        return self.place.role

    @property
    def rms(self) -> float:
        """Root mean square."""
        return math.hypot(self.mean, self.std)

    @property
    def kind(self) -> str:
        """What kind of distribution or structure its numbers have."""
        return self.distribution.kind

    @property
    def constant(self) -> bool:
        """Whether all numbers are one."""
        return self.kind == "constant"


def lists_of(model: nn.Module) -> set[str]:
    """Return the names of a model's lists of layers."""
    return {name for name, module in named_plain_modules(model) if is_stack(module)}


def in_lists(name: str, lists: Collection[str]) -> str:
    """Return a name with # for each place in a list: ``blocks.#.norm.weight`` is one in every block."""
    parts = name.split(".")
    for place in reversed(range(len(parts))):
        if parts[place].isdecimal() and ".".join(parts[:place]) in lists:
            parts[place] = "#"
    return ".".join(parts)


def records_of(model: nn.Module, fixed: Collection[str] = ()) -> list[Record]:
    """Return a record of every parameter, in the order of the model; tied ones have one.

    ``fixed`` are names of what two builds of different seeds have in common.
    """
    names, where, blocks, lists = tensor_names(model), places(model), blocks_of(model), lists_of(model)
    records = []
    for parameter in model.parameters():
        own = names[id(parameter)]
        around = max((block for block in blocks if own[0].startswith(f"{block}.")), key=len, default="")
        listed = around if around.rpartition(".")[0] in lists else ""
        parts = own[0].split(".")
        block = around or ".".join(parts[:-2]) or parts[0]
        record = Record(
            names=own,
            block=block,
            inside=own[0].removeprefix(block).lstrip("."),
            siblings=re.sub(r"\d+", "#", listed) + own[0].removeprefix(listed),
            place=where[id(parameter)],
            shape=tuple(parameter.shape),
            size=parameter.numel(),
            dtype=str(parameter.dtype).removeprefix("torch."),
            trainable=parameter.requires_grad,
        )
        if parameter.is_floating_point() and not parameter.is_meta and parameter.numel():
            record = _measured(record, full_value(parameter, own[0]), parameter.dtype, own[0] in fixed)
        records.append(record)
    return records


def _measured(record: Record, value: Tensor, dtype: torch.dtype, fixed: bool) -> Record:
    """Return the record with what its numbers are; ``fixed`` where another seed gives the same."""
    stored = value.to(dtype)
    bare = uninitialized(stored)
    if bare:
        return replace(record, bare=bare, distribution=Distribution("memory"))
    sample = Sample(without_zero_rows(value))
    seen = recognize(sample)
    if seen.kind != "constant":
        stacked = record.place.stacked and min(record.shape[1:]) > 1
        groups = record.shape[0] if stacked else record.place.groups
        seen = structured(stored.flatten(0, 1) if stacked else stored, groups) or seen
    # A few numbers that are the same under every seed are no draws that one could know.
    table = fixed and (sample.count < FEWEST or seen.kind == "other")
    written = value[value != 0]  # all alike, as of any part of an identity, are no draws
    drawn = seen.kind in (*DRAWS, *ORTHOGONAL) and not table and bool(written.min() < written.max())
    return replace(
        record,
        distribution=seen,
        drawn=drawn,
        mean=sample.mean,
        std=sample.std,
        largest=max(abs(sample.low), abs(sample.high)),
        kurtosis=sample.kurtosis,
        digest=hash(value.contiguous().numpy().tobytes()),
    )


def without_zero_rows(value: Tensor) -> Tensor:
    """Leave out rows of zeros where they are the fewer; padding tokens have one."""
    if value.ndim < 2:
        return value
    used = value.flatten(1).any(dim=1)
    kept = int(used.sum())
    return value[used] if 2 * kept > len(used) > kept else value
