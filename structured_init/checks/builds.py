"""Checks that build a model more than once: memory, seeds, and the model's own method on an empty one."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from structured_init.checks.distribution import FEWEST, Sample, recognize
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.records import Record
from structured_init.checks.words import describe_distribution
from structured_init.undisturbed import own_random_state
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_names
from structured_init.weights import tensor_names

EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
ERRORS = 6.0  # standard errors beyond which two means or standard deviations are not of one distribution
CLOSE = 0.02  # relative difference of standard deviations that is none
WITHOUT_METHOD = "the model has no method that writes all its weights, init_weights() or initialize_weights()"
Said = Iterator[Finding | LeftOut]


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


def built(build: Callable[[], nn.Module], seed: int, second_fill: bool = False) -> Built:
    """Return the model that a function builds from a seed, in memory that is filled."""
    if not callable(build):
        raise StructuredInitError(f"give a model or a function that builds one, not {type(build).__name__}")
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
    before, hook = dict(os.environ), sys.excepthook
    alone = dist.is_available() and not dist.is_initialized()
    try:
        os.environ.update({name: str(rank) for name in RANKS}, WORLD_SIZE="2")
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


class Builds:
    """A function that builds a model, and what it built three times."""

    def __init__(self, build: Callable[[], nn.Module], seed: int, first: Built) -> None:
        self.build, self.seed, self.first = build, seed, first
        self.other = built(build, seed + 1)
        with as_rank(1):  # the seed of the first, in memory that held other numbers
            self.again = tensors(built(build, seed, second_fill=True).model)
        self.values = tensors(first.model)
        self.fixed = [name for name, each in tensors(self.other.model).items() if equal(self.values[name], each)]
        self.bare = {}  # where tensors hold what was in their memory before, in both
        for name, value in self.values.items():
            other = self.again.get(name, value)
            where = holds_fill(value)
            if value.shape == other.shape and where.any():
                where = where & holds_fill(other, second=True)
                self.bare |= {name: where} if where.any() else {}


def memory(builds: Builds, parameters: Collection[str]) -> Said:
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


def seed(builds: Builds) -> Said:
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


def seeds(builds: Builds, records: Iterable[Record]) -> Said:
    """Find draws that are the same under another seed, and a seed that is left behind."""
    text = f"the same under seeds {builds.seed} and {builds.seed + 1}"
    drawn = [each for each in records if each.name in builds.fixed and each.drawn]
    weights = [each for each in drawn if each.trainable and each.size >= FEWEST]
    yield from folded("seeds", [(each.name, f"σ {each.std:.2g}, {text}") for each in weights])
    for name, state in builds.first.states.items():
        if state == builds.other.states[name]:
            text = f"building the model leaves the generator of {name} in one state under every seed: it sets a seed"
            yield Finding("seeds", (), text)


def meta(builds: Builds, drawn: Collection[str], fixed: Collection[str]) -> Said:
    """Build on the meta device, call the model's own method, and compare with a fresh model."""
    if own_method(builds.first.model) is None:
        yield from _left_out(WITHOUT_METHOD)
        return
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # loaded weights go nowhere
            empty = built(builds.build, builds.seed).model
        with own_random_state(builds.seed), Filled():
            empty.to_empty(device="cpu")
            own_method(empty)()
            if hasattr(empty, "tie_weights"):  # of transformers
                empty.tie_weights()
    except Exception as error:  # whatever a host raises where it does not know the meta device
        yield from _left_out(f"meta device: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
        return
    own = f"{own_method(empty).__name__}()"
    theirs, bare, lost = tensors(empty), unwritten(empty), []
    for name, many in bare.items():
        if name not in builds.bare:  # else "memory" says so
            lost.append((name, f"{many} were not written by {own} after to_empty()"))
    if 2 * len(lost) > len(builds.values):
        yield from _left_out(f"{own} leaves {len(lost)} of {len(builds.values)} tensors: it is for no empty model")
        return
    untied = _ties(builds.first.model) - _ties(empty)
    lost += [(names[0], f"no longer tied to {names[1]} after to_empty() and {own}") for names in sorted(untied)]
    yield from folded("meta", lost)
    changed = []
    for name, value in builds.values.items():
        other = theirs.get(name)
        if other is None or name in bare or name in builds.bare or other.shape != value.shape or not value.numel():
            continue
        if name in drawn and value.is_floating_point():
            one, two = Sample(value.float().cpu()), Sample(other.float().cpu())
            if moments_differ(one, two, name in fixed):
                had, has = (describe_distribution(recognize(each)) for each in (one, two))
                changed.append((name, f"{own} gives {has}; a fresh model has {had}"))
        elif name in fixed and not equal(value, other, close=True):
            changed.append((name, f"the buffer has other numbers after {own} than in a fresh model"))
    yield from folded("own", changed)


def _left_out(why: str) -> Said:
    yield LeftOut("meta", why)
    yield LeftOut("own", why)


def _ties(model: nn.Module) -> set[tuple[str, ...]]:
    return {names for names in tensor_names(model).values() if len(names) > 1}


def unwritten(model: nn.Module) -> dict[str, str]:
    """Return the names of tensors that hold filled memory, and how many of their numbers; integers as a whole."""
    found = {}
    for name, value in tensors(model).items():
        where = holds_fill(value)
        has_nan = value.is_floating_point() or value.is_complex()
        if where.any() and (has_nan or (value.dtype != torch.bool and where.all())):
            found[name] = _how_many(where)
    return found


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


def moments_differ(one: Sample, other: Sample, exactly: bool = False) -> bool:
    """Tell whether two draws have other means or standard deviations than chance allows.

    Of fewer than ``FEWEST`` numbers only constants are compared, and with ``exactly`` means.
    """
    larger, smaller = max(one.std, other.std), min(one.std, other.std)
    if larger > 0 and one.count > 1 and smaller <= 1e-6 * larger:
        return True
    if one.count >= FEWEST and larger - smaller > CLOSE * larger:
        slack = math.sqrt(max(one.kurtosis - 1, other.kurtosis - 1, 0.8) / (2 * one.count))
        if larger - smaller > (CLOSE + ERRORS * slack) * larger:
            return True
    error = ERRORS * larger * math.sqrt(2 / one.count) + 1e-5 * max(abs(one.mean), abs(other.mean))
    return abs(one.mean - other.mean) > error and (one.count >= FEWEST or exactly)


def equal(one: Tensor, other: Tensor, close: bool = False) -> bool:
    """Tell whether two tensors hold the same numbers; NaN is equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.cpu(), other.cpu()
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-5 * close, atol=1e-5 * close, equal_nan=True)
