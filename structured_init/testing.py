"""Does a model begin as it should? Checks for whoever writes models; ``pytest --initialized`` runs them."""

from __future__ import annotations

import copy
import io
import math
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.analysis.audit import findings
from structured_init.analysis.audit.depth import measure_depth
from structured_init.analysis.audit.records import Record, describe_kind, records
from structured_init.analysis.audit.references import num_layers
from structured_init.analysis.blocks import blocks_of
from structured_init.hosts.attention import attention_sites
from structured_init.hosts.mlp import mlps
from structured_init.hosts.registry import selects
from structured_init.inputs import (
    Inputs,
    as_inputs,
    explain_failure,
    host_inputs,
    own_random_state,
    undisturbed,
    with_fields,
)
from structured_init.storage import refuse_unreadable
from structured_init.util.arguments import check_positive, check_whole
from structured_init.util.errors import StructuredInitError, nearest, shown
from structured_init.util.names import folded_name, is_stack, named_plain_modules, plain_names
from structured_init.weights import tensor_names

CHECKS = ("memory", "seed", "seeds", "save", "meta", "own", "copies", "loss", "bfloat16", "depth", "like")
ERRORS = 6.0  # standard errors beyond which two means or standard deviations are not of one distribution
CLOSE = 0.02  # relative difference of standard deviations that is none
SCALE = 1.25  # ratio to the scales of a reference
FEWEST = 24  # numbers of which a standard deviation is compared
HINTS = {  # by the check that fails
    "seeds": "loaded weights are the same under every seed: say which are drawn anew, as in where='classifier'; so are"
    " all where build itself fixes a seed, or calls initialize without seed=torch.initial_seed()",
    "meta": "a model that nobody builds on the meta device needs no meta: skip=('meta', 'own')",
}
DEPTH_SCALE = "GPT-2 depth scale σ/√(2n)"
# role of a parameter → names of references in the audit that a standard draws it from; other roles are not compared
NORMS = {"norm": ("torch",), "norm bias": ("torch",)}
STANDARDS: dict[str, dict[str, tuple[str, ...]]] = {
    # timm's is N(0, 0.02²), as GPT-2's
    "gpt2": {"weight": ("timm", DEPTH_SCALE), "embedding": ("timm",), "bias": ("zeros",), **NORMS},
    "llama": {"weight": ("timm",), "embedding": ("timm",), "norm": ("torch",)},
    "torch": {role: ("torch",) for role in ("weight", "attention input", "bias", "embedding", "recurrent", *NORMS)},
    "mamba": {"embedding": ("timm",), **{role: ("mamba-ssm",) for role in ("decay", "step", "skip")}},
}


@dataclass(frozen=True)
class Check:
    """One row: a check by name, what fails (a line each), why it was left out, and what it does not cover."""

    name: str
    failures: tuple[str, ...] = ()
    left_out: str = ""
    uncovered: str = ""

    def __str__(self) -> str:
        said = f"left out: {self.left_out}" if self.left_out else "; ".join(self.failures[:1]) or "passed"
        others = len(self.failures) - 1
        more = f"; {others} more line{'s' * (others > 1)} in failures" if others > 0 else ""
        return f"{self.name:9} {said}{more}{f'; {self.uncovered}' if self.uncovered else ''}"


@dataclass(frozen=True)
class Checked:
    """What was checked of one model; ``print`` shows a table, a row per check.

    Attributes:
        model: its class.
        checks: a row per check, in the order of ``CHECKS``.
    """

    model: str
    checks: tuple[Check, ...]

    @property
    def failures(self) -> list[str]:
        """Return every failure as one line, which begins with the name of its check."""
        return [f"{check.name}: {line}" for check in self.checks for line in check.failures]

    @property
    def left_out(self) -> list[str]:
        """Return every check that could not be made, or not of every parameter, as one line that says why."""
        found = [check for check in self.checks if check.left_out or check.uncovered]
        return [f"{each.name:9} {each.uncovered}" if each.failures else str(each) for each in found]

    def __str__(self) -> str:
        return "\n".join([self.model, *map(str, self.checks)])


def assert_initialized(model: nn.Module | Callable[[], nn.Module], batch: Any = None, **options: Any) -> Checked:
    """Raise if a model does not begin as it should; the arguments are those of :func:`check_initialized`.

    Raises:
        AssertionError: a line per failure: the check, the parameter, and what is wrong with it.
        StructuredInitError: an argument is wrong.

    Example:
        >>> from torch import nn
        >>> from structured_init.testing import assert_initialized
        >>> checked = assert_initialized(lambda: nn.Linear(8, 8), skip=("loss",))
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    checked = check_initialized(model, batch, **options)
    if checked.failures:
        lines = [f"{checked.model} does not begin as it should:", *checked.failures, *checked.left_out]
        lines += [HINTS[check.name] for check in checked.checks if check.failures and check.name in HINTS]
        raise AssertionError("\n  ".join(lines))
    return checked


def check_initialized(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any = None,
    *,
    skip: str | Collection[str] = (),
    where: str | list[str] | None = None,
    like: str | nn.Module | Mapping[str, Tensor | float] | None = None,
    classes: int | None = None,
    loss_tolerance: float = 0.1,
    growth: float = findings.GROWTH,
    seed: int = 0,
) -> Checked:
    """Check how a model begins, and return a row per check. Global random states are left alone.

    - ``memory``: every parameter and buffer is written; memory that ``torch.empty`` gives is filled with NaN.
    - ``seed``, ``seeds``: the same seed gives the same weights, also on rank 1 of two (by ``torch.distributed`` and by
      the environment; none is started), and another seed gives other draws.
    - ``save``: ``state_dict``, saved and loaded into a model of another seed, gives the same parameters and
      buffers, and no other tensor of a module differs.
    - ``meta``: built on the meta device, ``to_empty``, then the model's own method: everything is written, and what
      was tied is tied. The own method is transformers' ``initialize_weights`` and ``tie_weights``, else
      ``init_weights`` or ``initialize_weights``, by ``apply`` if it needs a module alone, else ``reset_parameters`` of
      every module, children first.
    - ``own``: these weights have the means and standard deviations of a fresh model, fixed tables the same numbers.
    - ``copies``: no two blocks have the same draws, nor two experts in one parameter; no row of a matrix is zero,
      but for a padding token's, and a third of them, as queries may be.
    - ``loss``: the expected cross-entropy of uniform targets is ln C; ``bfloat16``: the model gives no NaN and no +∞.
    - ``depth``: activations, and gradients times activations, change less than ``growth``-fold from the first block
      to the last, and no matrix gives less than a ten-thousandth of what comes in.
    - ``like``: scales are those of a reference. What it does not cover is named.

    Args:
        model: a function without arguments that builds the model, or its class. Of a built model only ``memory`` (from
            its numbers), ``copies``, ``loss``, ``bfloat16``, ``depth`` and ``like`` are checked.
        batch: what the model is called with, as in :func:`structured_init.analysis.audit`; else what its host names.
        skip: checks that are left out, by name: ``("meta", "copies")`` or ``"meta,copies"``.
        where: which parameters are drawn, if the others are loaded, as in ``where="classifier"``: patterns of their
            names, or of modules around them. ``seeds``, ``own``, ``copies`` and ``like`` check these alone.
        like: a model, or a state dictionary, whose parameters of the same name, else of that name in any block (numbers
            in lists of layers do not count), have a root mean square within 25 %, or within what chance allows of few
            numbers. Numbers in place of tensors are root mean squares, under names that the model has. A tied parameter
            is compared under each of its names. Or a standard: ``"gpt2"``, whose outputs into the residual stream have
            its depth scale, ``"llama"``, ``"torch"``, ``"mamba"``.
        classes: number of classes or words, the length of the last axis of the logits, or of axis 1 as in segmentation,
            where the model does not say it by ``num_classes``, an embedding, or a linear layer called ``head``,
            ``classifier``, ``fc`` or ``lm_head``.
        loss_tolerance: share of ln C by which the loss may differ.
        growth: ratio of the scales after the last block and the first.
        seed: of the draws.

    Raises:
        StructuredInitError: a check or a standard is unknown, ``model`` is neither a model nor builds one, or a layer
            is lazy, or the model fails on a batch that was given.
        Exception: whatever the model raises while it is built.
    """
    check_whole("assert_initialized", 2, null=True, classes=classes)
    check_whole("assert_initialized", 0, seed=seed)
    check_positive("assert_initialized", growth=growth, loss_tolerance=loss_tolerance)
    if isinstance(skip, str):
        skip = [name.strip() for name in skip.split(",") if name.strip()]
    if not isinstance(like, (str, nn.Module, Mapping, type(None))):
        named = ", ".join(STANDARDS)
        raise StructuredInitError(f"like is a model, its state dictionary, or one of {named}, got {shown(like)}")
    for name, value in like.items() if isinstance(like, Mapping) else ():
        if not isinstance(value, (Tensor, int, float)):
            raise StructuredInitError(f"like['{name}'] is a tensor or a root mean square, got {shown(value)}")
    unknown = [("check", name, CHECKS) for name in skip if name not in CHECKS]
    unknown += [("standard", like, STANDARDS)] if isinstance(like, str) and like not in STANDARDS else []
    for what, name, names in unknown:
        raise StructuredInitError(f"there is no {what} '{name}': {nearest(str(name), names, limit=len(names))}")
    wanted = [name for name in CHECKS if name not in skip and (name != "like" or like is not None)]
    rows: dict[str, Check] = {}
    fixed: set[str] = set()
    build = None if isinstance(model, nn.Module) else model
    fresh = model if isinstance(model, nn.Module) else _built(model, seed)
    refuse_unreadable(fresh)
    every = records(fresh, list(blocks_of(fresh)))
    for pattern in where if where and isinstance(where, list | tuple) else [where]:
        if every and not any(selects(pattern, each.name, each) for each in every):
            near = nearest(str(pattern), {each.name.rpartition(".")[0] or each.name for each in every})
            raise StructuredInitError(f"where={pattern!r} selects no parameter: {near}")
    found = [each for each in every if selects(where, each.name, each)]

    def row(name: str, failures: Iterable[str] = (), left_out: str = "", uncovered: str = "") -> None:
        if name in wanted:
            rows[name] = Check(name, tuple(dict.fromkeys(failures)), left_out, uncovered)

    if build is None:
        row("memory", (str(each.text) for each in findings.never_initialized(every)))
        for name in ("seed", "seeds", "save", "meta", "own"):
            row(name, left_out="it needs a function that builds the model")
    else:
        row("memory", _folded((name, f"{text} never written") for name, text in _bare(fresh).items()))
        other = _built(build, seed + 1)
        same = {name for name, each in _tensors(other).items() if _equal(_tensors(fresh)[name], each)}
        fixed = {name for name in same if selects(where, name, name)}
        for name, each in _against_builds(build, fresh, other, found, fixed, wanted, seed):
            row(name, **each)
    values = _tensors(fresh)
    drawn = [each for each in found if each.name not in fixed or _looks_drawn(each)]  # computed tables may be equal
    row("copies", (each.text for of in (findings.copied, findings.parts) for each in of(drawn, values)))
    if {"loss", "bfloat16", "depth"} & set(wanted):
        with torch.no_grad():  # what was never written is said once, by "memory"
            for name in _bare(fresh) if build else ():
                if values[name].is_floating_point():
                    values[name].nan_to_num_()
        small = [each.text for each in findings.too_small(drawn)]
        for name, each in _run(fresh, batch, classes, loss_tolerance, growth, seed):
            row(name, **(each | {"failures": [*each.get("failures", ()), *small]} if name == "depth" else each))
    if like is not None:
        outputs = _outputs(fresh, batch) if like == "gpt2" else set()
        row("like", **_unlike(found, like, fresh, outputs))
    return Checked(type(fresh).__name__, tuple(rows[name] for name in CHECKS if name in rows))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by their first plain name."""
    plain = plain_names(model)
    return {plain(name): each.detach() for name, each in (*model.named_parameters(), *model.named_buffers())}


@contextmanager
def _poisoned() -> Iterator[None]:
    """Fill memory that torch hands out with NaN, and with the largest number of an integer dtype."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    if not callable(build):
        raise StructuredInitError(f"give a model or a function that builds one, not {type(build).__name__}")
    try:
        signature(build).bind()
    except TypeError as error:
        name = getattr(build, "__name__", "the function")
        raise StructuredInitError(
            f"{name} cannot be called without arguments, {error}: give lambda: {name}(…)"
        ) from None
    except ValueError:  # what is written in C has no signature
        pass
    began = torch.cuda.is_initialized()
    with own_random_state(nn.Module(), seed), _poisoned():
        model = build()
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"what was given builds no nn.Module, but {type(model).__name__}")
    return model if began == torch.cuda.is_initialized() else _built(build, seed)  # whose draws had no seed yet


@contextmanager
def _as_rank(rank: int) -> Iterator[None]:
    """Let a process take itself for one of two ranks: by torch.distributed, where nobody uses it, and environment."""
    told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
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


def _unwritten(tensor: Tensor) -> str:
    """Say how many numbers are those of poisoned memory; empty where none is."""
    if tensor.is_meta:
        return "has no memory and was"
    if tensor.is_floating_point() or tensor.is_complex():
        count = int(tensor.isnan().sum())
    elif tensor.dtype == torch.bool or not tensor.numel():
        return ""
    else:  # a table of integers is written as a whole
        count = tensor.numel() if bool((tensor == torch.iinfo(tensor.dtype).max).all()) else 0
    return f"{count:,} of {tensor.numel():,} numbers were" if count else ""


def _bare(model: nn.Module) -> dict[str, str]:
    """Return the names of what was not written, and how much of it."""
    said = {name: _unwritten(each) for name, each in _tensors(model).items()}
    return {name: text for name, text in said.items() if text}


def _folded(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line per parameter; those that differ in numbers alone share one."""
    return [f"{names[0]}: {text}" for names, text in findings.folded(lines)]


def _against_builds(
    build: Callable[[], nn.Module],
    fresh: nn.Module,
    other: nn.Module,
    found: list[Record],
    fixed: set[str],
    wanted: list[str],
    seed: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compare a fresh model with others that the same function builds; ``fixed`` is the same under two seeds."""
    values = _tensors(fresh)
    if "seed" in wanted:
        again = _tensors(_built(build, seed))
        text = f"differs between two models of seed {seed}"
        unequal = [(name, text) for name in values if not _equal(values[name], again[name])]
        with _as_rank(1):
            other_rank = _tensors(_built(build, seed))
        text = f"differs between ranks 0 and 1 of seed {seed}"
        named = {name for name, _ in unequal}
        unequal += [(name, text) for name in values if name not in named and not _equal(values[name], other_rank[name])]
        yield "seed", {"failures": _folded(unequal)}
    drawn = [each for each in found if each.name in fixed and _looks_drawn(each)]
    failures = _folded(
        (each.name, f"{describe_kind(each)}, the same under seeds {seed} and {seed + 1}") for each in drawn
    )
    yield "seeds", {"failures": failures}
    if {"meta", "own"} & set(wanted):
        yield from _by_meta(build, fresh, found, fixed, seed)
    if "save" in wanted:
        file = io.BytesIO()
        torch.save(fresh.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file))
        text = "does not come back with the state_dict"
        lost = [(name, text) for name, each in _tensors(other).items() if not _equal(values[name], each)]
        yield "save", {"failures": _folded([*lost, *_unregistered(fresh, other)])}


def _unregistered(fresh: nn.Module, loaded: nn.Module) -> Iterator[tuple[str, str]]:
    """Find tensors that are neither parameter nor buffer, and not those of the model whose state_dict was loaded."""
    text = "holds random numbers that a state_dict lacks: see register_buffer, or nn.ModuleList of layers"
    for (name, one), (_, other) in zip(named_plain_modules(fresh), named_plain_modules(loaded), strict=False):
        for key, own in vars(one).items():
            pairs = zip(_held(own), _held(vars(other).get(key)), strict=False)
            registered = key in ("_parameters", "_buffers", "_modules")
            if not registered and any(mine.is_leaf and not _equal(mine, theirs) for mine, theirs in pairs):
                yield f"{name}.{key}".removeprefix("."), text


def _held(value: Any) -> list[Tensor]:
    """Return the tensors of an attribute, and those of layers in a list or dictionary, which no module registers."""
    leaves = (leaf.parameters() if isinstance(leaf, nn.Module) else [leaf] for leaf in tree_leaves(value))
    return [each for several in leaves for each in several if isinstance(each, Tensor)]


def _looks_drawn(record: Record) -> bool:
    """Tell weights from a table that is computed, which looks like no random numbers."""
    kinds = {record.distribution.kind, *(known.expected.kind for known in record.references)}
    random = not kinds.isdisjoint(("normal", "truncated normal", "uniform"))
    return random and record.trainable and record.size >= FEWEST


def _by_meta(
    build: Callable[[], nn.Module], fresh: nn.Module, found: list[Record], fixed: set[str], seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Build on the meta device, call the model's own method, and compare with a fresh model."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # loaded weights go nowhere
            empty = _built(build, seed)
        with own_random_state(nn.Module(), seed), _poisoned():
            empty.to_empty(device="cpu")
            own = initialize_by_own_method(empty)
    except Exception as error:  # whatever a host raises where it does not know the meta device
        why = f"meta device: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if isinstance(error, StructuredInitError):
            why = f"meta device: initialize, which build calls, cannot run the model there; {HINTS['meta']}"
        yield from (("meta", {"left_out": why}), ("own", {"left_out": why}))
        return
    bare, here = _bare(empty), _bare(fresh)  # of what is bare here, "memory" says so
    lost = [(name, f"{text} not written by {own} after to_empty()") for name, text in bare.items() if name not in here]
    ties = {names for names in tensor_names(fresh).values() if len(names) > 1}
    untied = ties - {names for names in tensor_names(empty).values() if len(names) > 1}
    lost += [(names[0], f"no longer tied to {names[1]} after to_empty() and {own}") for names in sorted(untied)]
    yield "meta", {"failures": _folded(lost)}
    unequal = _disagreements(found, fresh, empty, bare.keys() | here.keys(), own, fixed)
    yield "own", {"failures": _folded(unequal)}


def initialize_by_own_method(model: nn.Module) -> str:
    """Let a model write its weights by its own method, and return what that is called."""
    if hasattr(model, "initialize_weights") and hasattr(model, "tie_weights"):  # transformers
        model.initialize_weights()
        model.tie_weights()
        return "initialize_weights()"
    for name in ("init_weights", "initialize_weights"):
        method = getattr(model, name, None)
        takes = [*signature(method).parameters.values()] if callable(method) else []
        needed = [each for each in takes if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is Parameter.empty]
        modules = [each for each in needed if each.name in ("m", "module", "layer") or "Module" in str(each.annotation)]
        if len(needed) == len(modules) == 1:
            model.apply(method)
            return f"apply({name})"
        if callable(method) and (name == "init_weights" or not takes):
            method()
            return f"{name}()"
    for module in reversed(list(model.modules())):
        for name in ("reset_parameters", "_reset_parameters"):
            if callable(getattr(module, name, None)):
                getattr(module, name)()
                break
    return "reset_parameters()"


def _disagreements(
    found: list[Record], fresh: nn.Module, empty: nn.Module, bare: Collection[str], own: str, fixed: set[str]
) -> Iterator[tuple[str, str]]:
    """Find tensors that the own method gives other moments, and tables that it gives other numbers."""
    others = {each.name: each for each in records(empty, [])}
    values, theirs = _tensors(fresh), _tensors(empty)
    seen = set()
    for each in found:
        seen.update(each.names)
        other = others.get(each.name)
        if other is None or each.name in bare or math.isnan(each.std + other.std):
            continue
        slack = max(math.sqrt(max(record.kurtosis - 1, 0.8) / (2 * record.size)) for record in (each, other))
        larger = max(each.usual_std, other.usual_std)
        spread = abs(each.usual_std - other.usual_std) > (CLOSE + ERRORS * slack) * larger and each.size >= FEWEST
        constant = min(each.usual_std, other.usual_std) <= 1e-6 * larger and larger > 0 and each.size > 1
        error = ERRORS * larger * math.sqrt(2 / each.size) + 1e-5 * max(abs(each.mean), abs(other.mean))
        if spread or constant or (abs(each.mean - other.mean) > error and (each.size >= FEWEST or each.name in fixed)):
            yield each.name, f"{own} gives {describe_kind(other)}; a fresh model has {describe_kind(each)}"
    for name in sorted(fixed - seen - set(bare)):
        if name in theirs and not _equal(values[name], theirs[name], close=True):
            yield name, f"the buffer has other numbers after {own} than in a fresh model"


def _equal(one: Tensor, other: Tensor, close: bool = False) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.cpu(), other.cpu()
    if one.is_floating_point():
        return torch.allclose(one, other, rtol=1e-5 * close, atol=1e-5 * close, equal_nan=True)
    return torch.equal(one, other)


def _run(
    model: nn.Module, batch: Any, classes: int | None, tolerance: float, growth: float, seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the model once, and once in bfloat16; an error on inputs that nobody gave leaves the checks out."""
    inputs = host_inputs(model, seed) if batch is None else as_inputs(batch)
    why = "no batch was given and the host names none: give batch=, what the model is called with"
    try:
        with explain_failure(model, given=batch is not None):
            depth = None if inputs is None else measure_depth(model, inputs, blocks_of(model), seed, classes=classes)
    except StructuredInitError as error:
        if batch is not None:
            raise
        depth, why = None, f"{error}: give batch=, what the model is called with"
    if depth is None:
        yield from ((name, {"left_out": why}) for name in ("loss", "bfloat16", "depth"))
        return
    unknown = "" if depth.loss else depth.doubt
    yield "loss", {"failures": [each.text for each in findings.first_loss(depth, tolerance)], "left_out": unknown}
    yield "bfloat16", _in_bfloat16(model, inputs, seed)
    failures = [each.text for each in findings.through_depth(depth.blocks, growth)]
    yield "depth", {"failures": failures, "uncovered": "" if findings.stacks(depth.blocks) else findings.NO_STACK}


def _in_bfloat16(model: nn.Module, inputs: Inputs, seed: int) -> dict[str, Any]:
    """Run a copy in bfloat16; an error, as of an operation without bfloat16, leaves the check out."""
    if any(each.is_complex() for each in _tensors(model).values()):
        return {"left_out": "there is no complex bfloat16"}
    cast = tree_map(lambda x: x.bfloat16() if isinstance(x, Tensor) and x.is_floating_point() else x, inputs)
    try:
        held = (leaf for module in model.modules() for leaf in tree_leaves(vars(module)) if isinstance(leaf, Tensor))
        kept = {id(each): each.detach() for each in held if not each.is_leaf}  # by forward; deepcopy refuses such
        narrow = copy.deepcopy(model, kept).to(torch.bfloat16)
        with undisturbed(narrow, seed), torch.enable_grad():  # which a model may need itself, as for forces
            output = with_fields(narrow(*cast[0], **cast[1]))
    except Exception as error:
        return {"left_out": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"}
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    broken = sum(int((leaf.isnan() | (leaf == math.inf)).sum()) for leaf in leaves)  # −∞ rules a class out
    return {"failures": [f"{broken:,} numbers of the output are NaN or +∞"] if broken else []}


def _outputs(model: nn.Module, batch: Any) -> set[str]:
    """Return the names of the matrices by which attention and MLPs add to the stream, as far as these are found."""
    try:
        sites = attention_sites(model, batch=batch)
    except StructuredInitError:  # it does not run on the batch, which other checks say
        sites = attention_sites(model)
    names, found = tensor_names(model), [site.layout.output.weight for site in sites]
    found += [mlp.back for mlp in mlps(model, [each for site in sites for each in site.layout.parameters()]).values()]
    return {name for each in found for name in names.get(id(each), ())}


def _unlike(
    found: list[Record],
    like: str | nn.Module | Mapping[str, Tensor | float],
    model: nn.Module,
    outputs: Collection[str],
) -> dict[str, Any]:
    """Compare scales with a standard, or with those of parameters of the same name, else of that in any block."""
    wrong: list[tuple[str, str]] = []
    covered: set[str] = set()
    if isinstance(like, str):
        layers = num_layers(model) if like == "gpt2" else 0
        deep = {each.name for each in found if layers > 1 and _has_depth_scale(each, layers, outputs)}
        for each in found:
            names = STANDARDS[like].get(each.role)
            if names and (each.distribution.kind != "unclear" or each.size >= FEWEST):  # of fewer nothing is known
                covered.add(each.name)
                if each.name not in deep and not any(reference.name in names for reference in each.references):
                    wrong.append((each.name, f"{describe_kind(each)}, not as {like} draws its {each.role}"))
        if layers > 1:
            wrong += _unscaled(found, layers, outputs, deep)
    else:
        given = _tensors(like) if isinstance(like, nn.Module) else like
        scales: dict[str, list[float]] = {}
        every = [name for names in tensor_names(model).values() for name in names]
        stacks: set[str] = set()
        for name, module in named_plain_modules(model):  # outer ones first
            if is_stack(module):
                stacks.add(_kinds(name, stacks)[-1])
        own = {_kinds(name, stacks)[-1]: name for name in reversed(every)}
        for name, value in given.items():
            scale = torch.as_tensor(value).detach().double().square().mean().sqrt().item()
            for kind in _kinds(name, stacks):
                scales.setdefault(kind, []).append(scale)
            if not isinstance(value, Tensor) and kind not in own:
                raise StructuredInitError(f"like['{name}'] is no parameter of the model: {nearest(name, own.values())}")
        for each in found:
            for name in each.names:
                others = next(filter(None, map(scales.get, _kinds(name, stacks))), [])
                chance = 1 + 3 / math.sqrt(each.size) if each.std else 1  # of two draws of so many numbers
                alike = others and max(others) <= SCALE * chance * min(others)  # else none of them is that of this one
                if alike and (each.size >= FEWEST or each.distribution.kind == "constant"):
                    covered.add(each.name)
                    mine, wanted = math.hypot(each.usual_std, each.mean), sum(others) / len(others)
                    if not max(mine, wanted) <= SCALE * chance * min(mine, wanted):
                        tied = f", being tied to {each.name}" if name != each.name else ""
                        wrong.append((name, f"root mean square {mine:.2g}{tied}; the reference has {wanted:.2g}"))
        if not covered:
            raise StructuredInitError(f"like has no parameter of the model's names: {nearest('', own.values(), 3)}")
    more = list(findings.folded((each.name, "") for each in found if each.name not in covered))
    named = ", ".join(folded_name(names) for names, _ in more)
    return {"failures": _folded(wrong), "uncovered": f"not compared: {named}" if more else ""}


def _kinds(name: str, stacks: Collection[str]) -> list[str]:
    """Return a name, and those for all blocks: without its numbers in ``stacks``, the outermost first, at last all.

    ``stacks`` are lists of layers, named so themselves.
    """
    parts, kinds = name.split("."), [name]
    for place, part in enumerate(parts):
        if part.isdecimal() and ".".join(parts[:place]) in stacks:
            parts[place] = "#"
            kinds.append(".".join(parts))
    return kinds


def _has_depth_scale(record: Record, layers: int, known: Collection[str]) -> bool:
    """Tell whether σ is GPT-2's for its depth; of a known output also where it is so in a single block."""
    if any(reference.name == DEPTH_SCALE for reference in record.references):
        return True
    relative = record.std * math.sqrt(2 * layers) / record.place.std
    near = abs(relative - 1) <= 4 / math.sqrt(2 * record.size)  # four standard errors
    return near and record.name in known and record.distribution.kind == "normal"


def _unscaled(
    found: list[Record], layers: int, known: Collection[str], deep: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Find outputs into the residual stream without GPT-2's depth scale.

    Which they are, attention layers and MLPs tell, and the scale in any block.
    """
    outputs = {each.inside for each in found if each.name in deep or (each.name in known and deep)}
    if not outputs:
        yield "outputs of blocks", f"no matrix has GPT-2's depth scale σ/√(2·{layers})"
    for each in found:
        if each.inside in outputs and each.name not in deep:
            yield each.name, f"{describe_kind(each)}, without the depth scale σ/√(2·{layers}) that others have"
