"""Checks that build a model more than once: memory, seeds, state dictionaries, and the meta device."""

from __future__ import annotations

import copy
import math
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from structured_init.checks.distribution import FEWEST, Sample, recognize
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.records import Record
from structured_init.checks.scales import moments_differ
from structured_init.checks.weights import looks_drawn
from structured_init.checks.words import describe_distribution, describe_kind
from structured_init.inputs import own_random_state
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules, plain_names
from structured_init.weights import tensor_names

EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
Said = Iterator[Finding | LeftOut]
WITHOUT_META = "a model that nobody builds on the meta device needs no meta: skip=('meta', 'own')"


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
        given = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in EMPTY and not given.is_meta:
            given.fill_(fill_of(given.dtype, self.second))
        return given


def fill_of(dtype: torch.dtype, second: bool = False) -> int | float:
    """Return what memory of a dtype is filled with."""
    if dtype == torch.bool:
        return not second
    if second:
        return 77
    return math.nan if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype).max


class Built(NamedTuple):
    """A model, and where the generators of torch and NumPy stood when it was built."""

    model: nn.Module
    states: dict[str, object]


def built(build: Callable[[], nn.Module], seed: int, second_fill: bool = False) -> Built:
    """Return the model that a function builds from a seed, in memory that is filled."""
    if not callable(build):
        raise StructuredInitError(f"give a model or a function that builds one, not {type(build).__name__}")
    try:
        signature(build).bind()
    except TypeError as error:
        name = getattr(build, "__name__", "the function")
        why = f"{name} cannot be called without arguments, {error}: give lambda: {name}(…)"
        raise StructuredInitError(why) from None
    except ValueError:  # what is written in C has no signature
        pass
    began = torch.cuda.is_initialized()
    with own_random_state(seed), Filled(second_fill):
        model = build()
        _, keys, position, *_ = np.random.get_state()
        states = {"torch": torch.get_rng_state().numpy().tobytes(), "NumPy": (keys.tobytes(), position)}
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"what was given builds no nn.Module, but {type(model).__name__}")
    if began != torch.cuda.is_initialized():
        return built(build, seed, second_fill)  # its draws had no seed yet
    return Built(model, states)


@contextmanager
def as_rank(rank: int) -> Iterator[None]:
    """Let a process take itself for one of two ranks: by torch.distributed, where nobody uses it, and environment."""
    told = {name: str(rank) for name in RANKS} | {"WORLD_SIZE": "2"}
    before, hook = dict(os.environ), sys.excepthook
    alone = dist.is_available() and not dist.is_initialized()
    try:
        os.environ.update(told)
        if alone:
            dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        yield
    finally:
        if alone and dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = hook  # torch.distributed puts its rank before every line of an error
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@dataclass(frozen=True)
class Builds:
    """A function that builds a model, and what it built."""

    build: Callable[[], nn.Module]
    seed: int
    first: Built  # of that seed
    other: Built  # of the next
    records: list[Record]  # the parameters that are drawn
    fixed: Collection[str]  # names of what two seeds give the same, of those that are drawn

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Tensors of the first."""
        return tensors(self.first.model)

    @cached_property
    def again(self) -> dict[str, Tensor]:
        """Tensors of another of the same seed, on rank 1 of two, in memory that held other numbers before."""
        with as_rank(1):
            return tensors(built(self.build, self.seed, second_fill=True).model)

    @cached_property
    def bare(self) -> dict[str, Tensor]:
        """Where tensors hold what was in their memory before, in both."""
        found = {}
        for name, value in self.values.items():
            other = self.again.get(name, value)
            if value.shape == other.shape:
                found[name] = holds_fill(value) & holds_fill(other, second=True)
        return {name: where for name, where in found.items() if where.any()}


def holds_fill(tensor: Tensor, second: bool = False) -> Tensor:
    """Return where numbers are those of filled memory; without memory all are."""
    if tensor.is_meta:
        return torch.ones(tensor.shape, dtype=torch.bool)
    fill = fill_of(tensor.dtype, second)
    return tensor.isnan() if math.isnan(fill) else tensor == fill


def unwritten(model: nn.Module) -> dict[str, str]:
    """Return the names of tensors that hold filled memory, and how many of their numbers; integers as a whole."""
    found = {}
    for name, value in tensors(model).items():
        where = holds_fill(value)
        has_nan = value.is_floating_point() or value.is_complex()
        if where.any() and (has_nan or (value.dtype != torch.bool and where.all())):
            found[name] = _how_many(where)
    return found


def _how_many(where: Tensor) -> str:
    return f"{int(where.sum()):,} of {where.numel():,} numbers"


def memory(builds: Builds) -> Said:
    """Find parameters and buffers that are never written, and numbers that are not finite."""
    lines = []
    parameters = {each.name for each in builds.records}
    for name, value in builds.values.items():
        bare = builds.bare.get(name, torch.zeros(value.shape, dtype=torch.bool))
        if bare.any():
            lines.append((name, f"{_how_many(bare)} were never written"))
            continue
        parameter = name in parameters
        broken = ~value.isfinite() if parameter else value.isnan()  # buffers, such as masks, may hold −∞
        if broken.any():
            lines.append((name, f"{_how_many(broken)} are NaN{' or infinite' if parameter else ''}"))
    return folded("memory", lines)


def seed(builds: Builds) -> Said:
    """Find what the same seed gives other numbers, also on the second of two ranks."""
    unequal = []
    for name, value in builds.values.items():
        other = builds.again.get(name)
        if other is None or not equal(_without(value, builds.bare.get(name)), _without(other, builds.bare.get(name))):
            unequal.append(name)
    if unequal:  # by chance, or by the rank
        again = tensors(built(builds.build, builds.seed).model)
        for name in unequal:
            by_chance = not equal(builds.values[name], again[name])
            between = "two models" if by_chance else "ranks 0 and 1"
            yield from folded("seed", [(name, f"differs between {between} of seed {builds.seed}")])


def _without(tensor: Tensor, where: Tensor | None) -> Tensor:
    return tensor if where is None or tensor.is_meta else tensor.masked_fill(where, 0)


def seeds(builds: Builds) -> Said:
    """Find draws that are the same under another seed, and a seed that is left behind."""
    text = f"the same under seeds {builds.seed} and {builds.seed + 1}"
    drawn = [each for each in builds.records if each.name in builds.fixed and looks_drawn(each)]
    yield from folded("seeds", ((each.name, f"{describe_kind(each)}, {text}") for each in drawn))
    for name, state in builds.first.states.items():
        if state == builds.other.states[name]:
            text = f"building the model leaves the generator of {name} in one state under every seed: it sets a seed"
            yield Finding("seeds", (), text)


def save(builds: Builds) -> Said:
    """Find what a state_dict does not bring back to a model of another seed."""
    fresh, other = builds.first.model, builds.other.model
    other.load_state_dict(copy.deepcopy(fresh.state_dict()))
    text = "does not come back with the state_dict"
    lost = [(name, text) for name, each in tensors(other).items() if not equal(builds.values[name], each)]
    text = "holds random numbers that a state_dict lacks: see register_buffer, or nn.ModuleList of layers"
    for (name, one), (_, two) in zip(named_plain_modules(fresh), named_plain_modules(other), strict=False):
        for key in vars(one).keys() - {"_parameters", "_buffers", "_modules"}:
            mine, theirs = _held(vars(one)[key]), _held(vars(two).get(key))
            unequal = [x for x, y in zip(mine, theirs, strict=False) if x.is_leaf and not equal(x, y)]
            if sum(x.numel() for x in unequal) >= FEWEST:  # fewer are no weights
                lost.append((f"{name}.{key}".removeprefix("."), text))
    return folded("save", lost)


def _held(value: Any) -> list[Tensor]:
    """Return the tensors of an attribute, and those of layers in a list or dictionary, which no module registers."""
    held = []
    for leaf in tree_leaves(value):
        held += leaf.parameters() if isinstance(leaf, nn.Module) else [leaf]
    return [each for each in held if isinstance(each, Tensor)]


def meta(builds: Builds) -> Said:
    """Build on the meta device, call the model's own method, and compare with a fresh model."""
    if own_method(builds.first.model) is None:
        why = "the model has no method that writes all its weights, init_weights() or initialize_weights()"
        yield from (LeftOut("meta", why), LeftOut("own", why))
        return
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # loaded weights go nowhere
            empty = built(builds.build, builds.seed).model
        with own_random_state(builds.seed), Filled():
            empty.to_empty(device="cpu")
            method = own_method(empty)
            method()
            if hasattr(empty, "tie_weights"):  # of transformers
                empty.tie_weights()
    except Exception as error:  # whatever a host raises where it does not know the meta device
        why = f"meta device: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if isinstance(error, StructuredInitError):
            why = f"meta device: initialize, which build calls, cannot run the model there; {WITHOUT_META}"
        yield from (LeftOut("meta", why), LeftOut("own", why))
        return
    own = f"{method.__name__}()"
    bare = unwritten(empty)  # of what is bare in a fresh model, "memory" says so
    lost = [
        (n, f"{many} were not written by {own} after to_empty()") for n, many in bare.items() if n not in builds.bare
    ]
    if 2 * len(lost) > len(builds.values):
        why = f"{own} leaves {len(lost)} of {len(builds.values)} tensors as they are: it is for no empty model"
        yield from (LeftOut("meta", why), LeftOut("own", why))
        return
    ties = {names for names in tensor_names(builds.first.model).values() if len(names) > 1}
    untied = ties - {names for names in tensor_names(empty).values() if len(names) > 1}
    lost += [(names[0], f"no longer tied to {names[1]} after to_empty() and {own}") for names in sorted(untied)]
    yield from folded("meta", lost)
    yield from folded("own", _disagreements(builds, empty, bare.keys() | builds.bare.keys(), own))


def own_method(model: nn.Module) -> Callable[[], object] | None:
    """Return the method by which a model writes all its weights; ``None`` where it has none.

    A method that needs an argument, as one for ``apply`` needs a module, claims what it is given alone. So does
    ``reset_parameters`` of a layer.
    """
    for name in ("initialize_weights", "init_weights"):
        method = getattr(model, name, None)
        if callable(method) and not any(map(_is_required, signature(method).parameters.values())):
            return method
    return None


def _is_required(parameter: Parameter) -> bool:
    several = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in several


def _disagreements(builds: Builds, empty: nn.Module, bare: Collection[str], own: str) -> Iterator[tuple[str, str]]:
    """Find draws that the own method gives other moments, and tables that it gives other numbers."""
    theirs = tensors(empty)
    drawn = {each.name for each in builds.records}
    for name, value in builds.values.items():
        other = theirs.get(name)
        if other is None or name in bare or other.shape != value.shape or not value.numel():
            continue
        if name in drawn and value.is_floating_point():
            one, two = Sample.of(value.float().cpu()), Sample.of(other.float().cpu())
            if moments_differ(one, two, name in builds.fixed):
                had, has = (describe_distribution(recognize(each)) for each in (one, two))
                yield name, f"{own} gives {has}; a fresh model has {had}"
        elif name in builds.fixed and not equal(value, other, close=True):
            yield name, f"the buffer has other numbers after {own} than in a fresh model"


def equal(one: Tensor, other: Tensor, close: bool = False) -> bool:
    """Tell whether two tensors hold the same numbers; NaN is equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.cpu(), other.cpu()
    if one.is_floating_point():
        return torch.allclose(one, other, rtol=1e-5 * close, atol=1e-5 * close, equal_nan=True)
    return torch.equal(one, other)
