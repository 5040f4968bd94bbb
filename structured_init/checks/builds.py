"""What a function that builds a model gives: three times under two seeds, and once on an empty model."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from inspect import signature
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from structured_init.checks.findings import NotMade
from structured_init.hosts.registry import Where, selects
from structured_init.undisturbed import own_random_state
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_names

EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by their first plain name."""
    plain = plain_names(model)
    named = (*model.named_parameters(), *model.named_buffers())
    return {plain(name): each.detach().to_dense() for name, each in named}


class Filled(TorchDispatchMode):
    """Fill memory that torch hands out: with NaN and the largest integer, or the ``second`` time with other numbers."""

    def __init__(self, second: bool = False) -> None:
        super().__init__()
        self.second = second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in EMPTY and not given.is_meta:
            given.fill_(_fill_of(given.dtype, self.second))
        return given


def _fill_of(dtype: torch.dtype, second: bool) -> int | float:
    if second or dtype == torch.bool:
        return 77 * second  # of bool, True and False
    return math.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


def holds_fill(tensor: Tensor, second: bool = False) -> Tensor:
    """Return where numbers are those of filled memory; without memory all are."""
    if tensor.is_meta:
        return torch.ones(tensor.shape, dtype=torch.bool)
    fill = torch.full_like(tensor, _fill_of(tensor.dtype, second))
    return (tensor == fill) | (tensor.isnan() & fill.isnan())


def unwritten(model: nn.Module) -> dict[str, str]:
    """Return the names of tensors that hold filled memory, and how many of their numbers; integers as a whole."""
    found = {}
    for name, value in tensors(model).items():
        where = holds_fill(value)
        has_nan = value.is_floating_point() or value.is_complex()
        if where.any() and (has_nan or (value.dtype != torch.bool and where.all())):
            found[name] = how_many(where)
    return found


def how_many(where: Tensor) -> str:
    """Say how many numbers of a tensor are meant."""
    return f"{int(where.sum()):,} of {where.numel():,} numbers"


def built(build: Callable[[], nn.Module], seed: int, second: bool = False) -> tuple[nn.Module, dict[str, object]]:
    """Return the model that a function builds from a seed, and where the generators of torch and NumPy stand then.

    Memory is filled; ``second`` is another filling.
    """
    if not callable(build):
        raise StructuredInitError(f"give a model or a function that builds one, not {type(build).__name__}")
    began = torch.cuda.is_initialized()
    with own_random_state(seed), Filled(second):
        model = build()
        _, keys, position, *_ = np.random.get_state()
        states = {"torch": torch.get_rng_state().numpy().tobytes(), "NumPy": (keys.tobytes(), position)}
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"what was given builds no nn.Module, but {type(model).__name__}")
    if began != torch.cuda.is_initialized():
        return built(build, seed, second)  # its draws had no seed yet
    return model, states


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
    """A function that builds a model, and what it built: ``fixed`` names what two seeds give alike, of ``where``."""

    def __init__(self, build: Callable[[], nn.Module], seed: int, where: Where = None) -> None:
        self.build, self.seed = build, seed
        self.model, self.states = built(build, seed)
        other, self.other_states = built(build, seed + 1)
        with as_rank(1):  # the seed of the first, in memory that held other numbers
            self.again = tensors(built(build, seed, second=True)[0])
        self.values = tensors(self.model)
        self.method = own_method(self.model)
        self.fixed: set[str] = set()
        for name, value in tensors(other).items():
            if equal(self.values[name], value) and selects(where, name, name):
                self.fixed.add(name)
        self.bare: dict[str, Tensor] = {}  # where tensors hold what was in their memory before, in both
        for name, value in self.values.items():
            again = self.again.get(name, value)
            if value.shape == again.shape:
                bare = holds_fill(value) & holds_fill(again, second=True)
                if bare.any():
                    self.bare[name] = bare

    @cached_property
    def emptied(self) -> nn.Module:
        """A model that was built on the meta device, and written by its own method alone.

        Raises:
            NotMade: there is none, and why.
        """
        if not self.method:
            raise NotMade("the model has no method that writes all its weights, init_weights() or initialize_weights()")
        try:
            with torch.device("meta"), warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # loaded weights go nowhere
                empty, _ = built(self.build, self.seed)
            with own_random_state(self.seed), Filled():
                empty.to_empty(device="cpu")
                getattr(empty, self.method)()
                if hasattr(empty, "tie_weights"):  # of transformers
                    empty.tie_weights()
            lost = unwritten(empty).keys() - self.bare.keys()
        except Exception as error:  # whatever a host raises where it does not know the meta device
            why = next(iter(str(error).splitlines()), "")
            raise NotMade(f"meta device: {type(error).__name__}: {why}") from error
        if 2 * len(lost) > len(self.values):
            raise NotMade(f"{self.method}() leaves {len(lost)} of {len(self.values)} tensors: it is for no empty model")
        return empty

    def write_zeros_for_nan(self) -> None:
        """Let the first model run where it was never written, which is said once; ``values`` keep what was there."""
        for name, value in self.values.items():
            if value.isnan().any():
                self.values[name] = value.clone()
                value.nan_to_num_()


def own_method(model: nn.Module) -> str:
    """Return the name of the method by which a model writes all its weights; nothing where it has none.

    A method that needs an argument, as one for ``apply`` needs a module, claims what it is given alone. So does
    ``reset_parameters`` of a layer.
    """
    for name in ("initialize_weights", "init_weights"):
        with suppress(TypeError):  # it needs an argument, or there is none
            signature(getattr(model, name, None)).bind()
            return name
    return ""


def equal(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same bits, so that NaN is equal to NaN."""
    return torch.equal(*(each.cpu().reshape(-1).view(torch.uint8) for each in (one, other)))
