"""Does a model begin as it should? Checks for whoever writes models; ``pytest --initialized`` runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.analysis.blocks import blocks_of
from structured_init.checks import audit as audits
from structured_init.checks import behaviour, builds, scales, sharing, signal
from structured_init.checks.builds import Builds, Built, built, unwritten
from structured_init.checks.depth import Depth, measure_depth
from structured_init.checks.findings import Finding, LeftOut
from structured_init.checks.measured import Measured
from structured_init.checks.records import Record, records
from structured_init.checks.scales import STANDARDS
from structured_init.checks.snapshot import compare_snapshot
from structured_init.hosts.registry import selects
from structured_init.inputs import as_inputs, explain_failure, host_inputs
from structured_init.storage import refuse_unreadable
from structured_init.util.arguments import check_positive, check_whole
from structured_init.util.errors import StructuredInitError, nearest, shown

OF_BUILDS = {"memory": builds.memory, "seed": builds.seed, "seeds": builds.seeds, "save": builds.save}
OF_A_PASS = ("stuck", "blind", "causal", "loss", "bfloat16", "depth", "unused")
CHECKS = (
    *("memory", "seed", "seeds", "save", "meta", "own", "copies", "shared", "embeddings", "odd", "scale", "norms"),
    *("coarse", "step", "overflow", *OF_A_PASS, "frozen", "like", "snapshot"),
)
OF_FRESH = (*audits.CHECKS, sharing.unused, sharing.frozen)  # a checkpoint may be frozen, and a part of it not used
HINTS = {  # by the check that fails
    "seeds": "loaded weights are the same under every seed: say which are drawn anew, as in where='classifier'; so are"
    " all where build itself fixes a seed, or calls initialize without seed=torch.initial_seed()",
    "meta": builds.WITHOUT_META,
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
        """Return what could not be checked, a line for each reason, which begins with the names of the checks."""
        reasons: dict[str, list[str]] = defaultdict(list)
        for check in self.checks:
            if check.left_out:
                reasons[f"left out: {check.left_out}"].append(check.name)
            if check.uncovered:
                reasons[check.uncovered].append(check.name)
        return [f"{', '.join(names):9} {why}" for why, names in reasons.items()]

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
    growth: float = 1e3,
    seed: int = 0,
    snapshot: str | Path | None = None,
    update_snapshot: bool = False,
    frozen: str | Collection[str] = (),
    unused: str | Collection[str] = (),
) -> Checked:
    """Check how a model begins, and return a row per check. Global random states are left alone.

    - ``memory``: every parameter and buffer is written, and none is NaN or infinite; the model is built twice, in
      memory that held other numbers.
    - ``seed``, ``seeds``: the same seed gives the same weights, also on rank 1 of two (by ``torch.distributed`` and by
      the environment; none is started), and another seed gives other draws.
    - ``save``: ``state_dict``, saved and loaded into a model of another seed, gives the same parameters and
      buffers, and no other tensor of a module differs.
    - ``meta``: built on the meta device, ``to_empty``, then the model's own ``initialize_weights()`` or
      ``init_weights()``: everything is written, and what was tied is tied. Left out, with ``own``, where there is no
      such method without arguments, or where it leaves more than half of the tensors.
    - ``own``: these weights have the means and standard deviations of a fresh model, fixed tables the same numbers.
    - ``copies``: no two blocks have the same draws, nor two experts in one parameter; no row of a matrix is zero,
      but for a padding token's, and a third of them, as queries may be, or repeats another.
    - ``odd``: of three equal blocks or more, no single one has another scale or another constant.
    - ``coarse``: no float32 matrix holds numbers of half precision alone; ``shared``: no module or parameter stands in
      several blocks, and no two share memory; ``frozen``: all draws are trained.
    - ``embeddings``: rows differ, and a padding token's is zero; ``norms``: factors begin at 1 or less, biases at 0.
    - ``blind``, ``causal``: two samples give two outputs, and in a causal language model of transformers the last
      token changes nothing before it; ``unused``: an output depends on every parameter.
    - ``scale``, ``step``, ``overflow``, ``stuck``: the audit finds none.
    - ``loss``: the expected cross-entropy of uniform targets is ln C; ``bfloat16``: the model gives no NaN and no +∞.
    - ``depth``: activations, and gradients times activations, change less than ``growth``-fold from the first block
      to the last, and no matrix gives less than a ten-thousandth of what comes in.
    - ``like``: scales are those of a reference. What it does not cover is named.
    - ``snapshot``: every tensor is as it was when the file was written, as far as another seed allows.

    Args:
        model: a function without arguments that builds the model, or its class. Of a built model,
            ``memory`` is told from its numbers, and ``seed``, ``seeds``, ``save``, ``meta`` and ``own`` are left out.
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
        snapshot: a JSON file, which is written where it does not exist yet, and belongs into the repository.
        update_snapshot: write it anew.
        frozen: patterns of names of draws that are not trained, as a backbone's.
        unused: patterns of names of parameters that no output depends on.

    Raises:
        StructuredInitError: a check or a standard is unknown, ``model`` is neither a model nor builds one, or a layer
            is lazy, or the model fails on a batch that was given.
        Exception: whatever the model raises while it is built.
    """
    check_whole("assert_initialized", 2, null=True, classes=classes)
    check_whole("assert_initialized", 0, seed=seed)
    check_positive("assert_initialized", growth=growth, loss_tolerance=loss_tolerance)
    wanted = _wanted(skip)
    _check_like(like)
    build = None if isinstance(model, nn.Module) else model
    first = Built(model, {}) if isinstance(model, nn.Module) else built(model, seed)
    fresh = first.model
    refuse_unreadable(fresh)
    every = records(fresh, list(blocks_of(fresh)))
    drawn = _selected(every, where)
    said: list[Finding | LeftOut] = []
    fixed: Collection[str] = ()
    if build is None:
        said += [LeftOut(name, "it needs a function that builds the model") for name in (*OF_BUILDS, "meta", "own")]
    else:
        other, values = built(build, seed + 1), builds.tensors(fresh)
        same = [name for name, each in builds.tensors(other.model).items() if builds.equal(values[name], each)]
        fixed = [name for name in same if selects(where, name, name)]
        several = Builds(build, seed, first, other, drawn, fixed)
        for name, check in OF_BUILDS.items():
            said += check(several) if name in wanted else ()
        said += builds.meta(several) if {"meta", "own"} & set(wanted) else ()
        _write_zeros(fresh)  # what was never written is said once, by "memory"
    depth = Depth()
    if not wanted.isdisjoint(OF_A_PASS):
        depth, of_the_pass = _pass(fresh, batch, seed, classes)
        said += of_the_pass
    allowed = {"may_be_frozen": _patterns(frozen), "may_be_unused": _patterns(unused)}
    measured = Measured(fresh, drawn, depth, {}, fixed, loss_tolerance, growth, fresh=True, **allowed)
    for check in OF_FRESH:
        said += [each for each in check(measured) if each.problem and (each.kind != "memory" or build is None)]
    if isinstance(like, str):
        said += scales.unlike_standard(drawn, like, fresh)
    elif like is not None:
        said += scales.unlike_numbers(drawn, builds.tensors(like) if isinstance(like, nn.Module) else like, fresh)
    if snapshot is not None and "snapshot" in wanted:
        said += compare_snapshot(fresh, every, fixed, snapshot, update_snapshot)
    asked = wanted - {name for name, given in (("like", like), ("snapshot", snapshot)) if given is None}
    names = [name for name in CHECKS if name in asked]
    return Checked(type(fresh).__name__, tuple(_row(name, said) for name in names))


def _patterns(given: str | Collection[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _wanted(skip: str | Collection[str]) -> set[str]:
    names = [name.strip() for name in skip.split(",") if name.strip()] if isinstance(skip, str) else skip
    for name in names:
        if name not in CHECKS:
            raise StructuredInitError(f"there is no check '{name}': {nearest(str(name), CHECKS, limit=len(CHECKS))}")
    return set(CHECKS).difference(names)


def _check_like(like: Any) -> None:
    named = ", ".join(STANDARDS)
    if isinstance(like, str) and like not in STANDARDS:
        raise StructuredInitError(f"there is no standard '{like}': {nearest(like, STANDARDS, limit=len(STANDARDS))}")
    if not isinstance(like, (str, nn.Module, Mapping, type(None))):
        raise StructuredInitError(f"like is a model, its state dictionary, or one of {named}, got {shown(like)}")
    for name, value in like.items() if isinstance(like, Mapping) else ():
        if not isinstance(value, (Tensor, int, float)):
            raise StructuredInitError(f"like['{name}'] is a tensor or a root mean square, got {shown(value)}")


def _selected(every: list[Record], where: str | list[str] | None) -> list[Record]:
    for pattern in where if where and isinstance(where, list | tuple) else [where]:
        if every and not any(selects(pattern, each.name, each) for each in every):
            near = nearest(str(pattern), {each.name.rpartition(".")[0] or each.name for each in every})
            raise StructuredInitError(f"where={pattern!r} selects no parameter: {near}")
    return [each for each in every if selects(where, each.name, each)]


def _write_zeros(model: nn.Module) -> None:
    bare, values = unwritten(model), builds.tensors(model)
    with torch.no_grad():
        for name in bare:
            if values[name].is_floating_point():
                values[name].nan_to_num_()


def _pass(model: nn.Module, batch: Any, seed: int, classes: int | None) -> tuple[Depth, list[Finding | LeftOut]]:
    """Run the model once, and once in bfloat16; an error on inputs that nobody gave leaves the checks out."""
    inputs = host_inputs(model, seed) if batch is None else as_inputs(batch)
    why = "no batch was given and the host names none: give batch=, what the model is called with"
    try:
        with explain_failure(model, given=batch is not None):
            depth = None if inputs is None else measure_depth(model, inputs, blocks_of(model), seed, classes)
    except StructuredInitError as error:
        if batch is not None:
            raise
        depth, why = None, f"{error}: give batch=, what the model is called with"
    if depth is None:
        return Depth(), [LeftOut(name, why) for name in OF_A_PASS]
    said = [*behaviour.bfloat16(model, inputs, seed), *behaviour.causal(model, inputs, seed)]
    if depth.loss is None:
        said.append(LeftOut("loss", depth.doubt))
    if not signal.stacks(depth.blocks):
        said.append(LeftOut("depth", signal.NO_STACK, partly=True))
    return depth, said


def _row(name: str, said: Collection[Finding | LeftOut]) -> Check:
    own = [each for each in said if each.kind == name]
    left = [each for each in own if isinstance(each, LeftOut)]
    failures = dict.fromkeys(each.text for each in own if isinstance(each, Finding))
    left_out = "; ".join(each.why for each in left if not each.partly)
    return Check(name, tuple(failures), left_out, "; ".join(each.why for each in left if each.partly))
