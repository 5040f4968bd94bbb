"""Checks that build a model more than once: memory and seeds."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, folded
from structured_init.checks.records import Record
from structured_init.undisturbed import own_random_state
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_names

EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
WRITING = ("normal_", "uniform_", "erfinv_", "clamp_", "mul_", "add_", "fill_", "zero_", "copy_")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by their first plain name."""
    plain = plain_names(model)
    return {plain(name): _dense(each.detach()) for name, each in (*model.named_parameters(), *model.named_buffers())}


def _dense(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor that is stored in an unusual way."""
    if tensor.is_nested:
        return torch.cat([each.flatten() for each in tensor.unbind()])
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


class Filled(TorchDispatchMode):
    """Fill memory that torch hands out: with NaN and the largest integer, or the ``second`` time with other numbers."""

    def __init__(self, second: bool = False) -> None:
        super().__init__()
        self.second = second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WRITING and args[0].is_meta:
            return args[0]  # without memory, this takes long for nothing
        given = func(*args, **(kwargs or {}))
        if name in EMPTY and not given.is_meta:
            given.fill_(fill_of(given.dtype, self.second))
        return given


def fill_of(dtype: torch.dtype, second: bool = False) -> int | float:
    """Return what memory of a dtype is filled with."""
    if dtype == torch.bool:
        return not second
    if second:
        return 77
    return math.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


def holds_fill(tensor: Tensor, second: bool = False) -> Tensor:
    """Return where numbers are those of filled memory; without memory all are."""
    if tensor.is_meta:
        return torch.ones(tensor.shape, dtype=torch.bool)
    fill = fill_of(tensor.dtype, second)
    return tensor.isnan() if math.isnan(fill) else tensor == fill


class Built(NamedTuple):
    """A model, and where the generators of torch and NumPy stood when it was built."""

    model: nn.Module
    states: dict[str, object]


def built(build: Callable[[], nn.Module], seed: int, memory: AbstractContextManager[Any] | None = None) -> Built:
    """Return the model that a function builds from a seed, in ``memory`` that may be filled."""
    if not callable(build):
        raise StructuredInitError(f"give a model or a function that builds one, not {type(build).__name__}")
    began = torch.cuda.is_initialized()
    with own_random_state(seed), memory or nullcontext():
        model = build()
        _, keys, position, *_ = np.random.get_state()
        states = {"torch": torch.get_rng_state().numpy().tobytes(), "NumPy": (keys.tobytes(), position)}
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"what was given builds no nn.Module, but {type(model).__name__}")
    if began != torch.cuda.is_initialized():
        return built(build, seed, memory)  # its draws had no seed yet
    return Built(model, states)


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    """Let a process take itself for one of two ranks: by torch.distributed, where nobody uses it, and environment."""
    told = {name: str(rank) for name in RANKS} | {"WORLD_SIZE": "2"}
    alone = not dist.is_initialized()
    # torch.distributed puts its rank before every line of an error: the hook is put back.
    with patch.dict(os.environ, told), patch.object(sys, "excepthook", sys.excepthook):
        if alone:
            dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        try:
            yield
        finally:
            if alone and dist.is_initialized():
                dist.destroy_process_group()


class Builds:
    """A function that builds a model, and what it built three times."""

    def __init__(self, build: Callable[[], nn.Module], seed: int) -> None:
        self.build, self.seed = build, seed
        self.first = built(build, seed, Filled())
        self.other = built(build, seed + 1)
        with as_rank(1):  # the seed of the first, in memory that held other numbers
            self.again = tensors(built(build, seed, Filled(second=True)).model)
        self.values = tensors(self.first.model)
        self.fixed = [name for name, each in tensors(self.other.model).items() if equal(self.values[name], each)]
        self.bare = {}  # where tensors hold what was in their memory before, in both
        for name, value in self.values.items():
            other = self.again.get(name, value)
            where = holds_fill(value)
            if value.shape == other.shape and where.any():
                where = where & holds_fill(other, second=True)
                self.bare |= {name: where} if where.any() else {}


def memory(builds: Builds, parameters: Collection[str]) -> Iterator[Finding]:
    """Find parameters and buffers that are never written, and numbers that are not finite."""
    lines = []
    for name, value in builds.values.items():
        broken = ~value.isfinite() if name in parameters else value.isnan()  # buffers, such as masks, may hold −∞
        if name in builds.bare:
            lines.append((name, f"{_how_many(builds.bare[name])} were never written"))
        elif broken.any():
            lines.append((name, f"{_how_many(broken)} are NaN{' or infinite' if name in parameters else ''}"))
    return folded("memory", lines)


def _how_many(where: Tensor) -> str:
    return f"{int(where.sum()):,} of {where.numel():,} numbers"


def seed(builds: Builds) -> Iterator[Finding]:
    """Find what the same seed gives other numbers, also on the second of two ranks."""
    unequal = []
    for name, value in builds.values.items():
        other = builds.again.get(name)
        if name in builds.bare and other is not None and not value.is_meta:
            value, other = (each.masked_fill(builds.bare[name], 0) for each in (value, other))
        if other is None or not equal(value, other):
            unequal.append(name)
    if unequal:  # by chance, or by the rank
        third = tensors(built(builds.build, builds.seed).model)
        for name in unequal:
            between = "ranks 0 and 1" if equal(builds.values[name], third[name]) else "two models"
            yield from folded("seed", [(name, f"differs between {between} of seed {builds.seed}")])


def seeds(builds: Builds, records: Iterable[Record]) -> Iterator[Finding]:
    """Find draws that are the same under another seed, and a seed that is left behind."""
    text = f"the same under seeds {builds.seed} and {builds.seed + 1}"
    drawn = [each for each in records if each.name in builds.fixed and each.drawn]
    weights = [each for each in drawn if each.trainable and each.size >= FEWEST]
    yield from folded("seeds", [(each.name, f"σ {each.std:.2g}, {text}") for each in weights])
    for name, state in builds.first.states.items():
        if state == builds.other.states[name]:
            text = f"building the model leaves the generator of {name} in one state under every seed: it sets a seed"
            yield Finding("seeds", (), text)


def unwritten(model: nn.Module) -> dict[str, str]:
    """Return the names of tensors that hold filled memory, and how many of their numbers; integers as a whole."""
    found = {}
    for name, value in tensors(model).items():
        where = holds_fill(value)
        has_nan = value.is_floating_point() or value.is_complex()
        if where.any() and (has_nan or (value.dtype != torch.bool and where.all())):
            found[name] = _how_many(where)
    return found


def equal(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same numbers; NaN is equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.cpu(), other.cpu()
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
