"""Does a model begin as it should? Checks for whoever writes models; ``pytest --initialized`` runs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from structured_init.checks import among, builds, inside, own_method, signal, tokens
from structured_init.checks.depth import Depth, measure
from structured_init.checks.distribution import FEWEST
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.like import unlike
from structured_init.checks.records import Record, walk
from structured_init.checks.snapshot import compare_snapshot
from structured_init.hosts.registry import selects
from structured_init.inputs import as_inputs, explain_failure
from structured_init.storage import refuse_unreadable
from structured_init.util.arguments import check_positive, check_whole
from structured_init.util.errors import StructuredInitError, nearest, shown

OF_BUILDS = ("seed", "seeds", "meta", "own")
OF_A_PASS = ("stuck", "blind", "causal", "padding", "order", "loss", "depth", "unused")
CHECKS = (
    *("memory", *OF_BUILDS, "copies", "shared", "embeddings", "odd", "scale", "norms", "coarse", "step"),
    *(*OF_A_PASS, "frozen", "like", "snapshot"),
)
Patterns = str | Collection[str]
HINTS = {  # by the check that fails
    "seeds": "loaded weights are the same under every seed: say which are drawn anew, as in where='classifier'; so are"
    " all where build itself fixes a seed, or calls initialize without seed=torch.initial_seed()",
    "meta": "a model that nobody builds on the meta device needs no meta: skip=('meta', 'own')",
}


@dataclass(frozen=True)
class Check:
    """One row: a check by name, what fails (a line each), and why it was left out, or of what."""

    name: str
    failures: tuple[str, ...] = ()
    left_out: str = ""

    def __str__(self) -> str:
        said = [*self.failures[:1]]
        if len(self.failures) > 1:
            said.append(f"{len(self.failures)} lines in all, in failures")
        if self.left_out:
            said.append(f"left out: {self.left_out}")
        return f"{self.name:9} {'; '.join(said) or 'passed'}"


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
                reasons[check.left_out].append(check.name)
        return [f"{', '.join(names):9} left out: {why}" for why, names in reasons.items()]

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
    skip: Patterns = (),
    where: str | list[str] | None = None,
    like: nn.Module | Mapping[str, Tensor | float] | None = None,
    classes: int | None = None,
    loss_tolerance: float = 0.1,
    seed: int = 0,
    snapshot: str | Path | None = None,
    update_snapshot: bool = False,
    frozen: Patterns = (),
    unused: Patterns = (),
) -> Checked:
    """Check how a model begins, and return a row per check. Global random states are left alone.

    ``CHECKS`` names the checks; what each asks stands in ``docs/testing.md`` and in the functions of
    ``structured_init/checks``. One that cannot be made is left out, and says why.

    Args:
        model: a function without arguments that builds the model, or its class. Of a built model,
            ``memory`` is told from its numbers, and ``seed``, ``seeds``, ``meta`` and ``own`` are left out.
        batch: what the model is called with, as in :func:`structured_init.analysis.audit`; else what its host names.
        skip: checks that are left out, by name: ``("meta", "copies")`` or ``"meta,copies"``.
        where: which parameters are drawn, if the others are loaded, as in ``where="classifier"``: patterns of their
            names, or of modules around them. ``seeds``, ``own``, ``copies`` and ``like`` check these alone.
        like: a model, or a state dictionary, whose parameters of the same name, else of that name in any block (numbers
            in lists of layers do not count), have a root mean square within 25 %, or within what chance allows of few
            numbers. Numbers in place of tensors are root mean squares, under names that the model has. A tied parameter
            is compared under each of its names.
        classes: number of classes or words, the length of the last axis of the logits, or of axis 1 as in segmentation,
            where the model does not say it by ``num_classes``, an embedding, or a linear layer called ``head``,
            ``classifier``, ``fc`` or ``lm_head``.
        loss_tolerance: share of ln C by which the loss may differ.
        seed: of the draws.
        snapshot: a JSON file, which is written where it does not exist yet, and belongs into the repository.
        update_snapshot: write it anew.
        frozen: patterns of names of draws that are not trained, as a backbone's.
        unused: patterns of names of parameters that no output depends on.

    Raises:
        StructuredInitError: a check is unknown, ``model`` is neither a model nor builds one, or a layer is lazy, or the
            model fails on a batch that was given.
        Exception: whatever the model raises while it is built.
    """
    check_whole("assert_initialized", 2, null=True, classes=classes)
    check_whole("assert_initialized", 0, seed=seed)
    check_positive("assert_initialized", loss_tolerance=loss_tolerance)
    wanted = _wanted(skip)
    reference = _tensors_of(like)
    several = None if isinstance(model, nn.Module) else builds.Builds(model, seed)
    fresh = model if several is None else several.first.model
    refuse_unreadable(fresh)
    fixed = [] if several is None else [name for name in several.fixed if selects(where, name, name)]
    records: list[Record] = []
    lines: inside.Lines = defaultdict(list)
    for record, value in walk(fresh, fixed):
        records.append(record)
        if value is not None and selects(where, record.name, record):
            inside.inspect(record, value, lines)
    drawn = _selected(records, where)
    said: list[Finding | LeftOut] = []
    if several is None:
        said += [LeftOut(name, "it needs a function that builds the model") for name in OF_BUILDS]
    else:
        lines.pop("memory", None)  # which several builds tell exactly
        names = [each.name for each in drawn]
        said += [*builds.memory(several, names), *builds.seed(several), *builds.seeds(several, drawn)]
        said += own_method.meta(several, drawn, fixed) if wanted & {"meta", "own"} else ()
        for value in several.values.values():
            if not value.is_meta and value.is_floating_point() and value.isnan().any():
                value.nan_to_num_()  # what was never written is said once, by "memory"
    for check, some in lines.items():
        said += folded(check, some)
    measured = Depth()
    if wanted.intersection(OF_A_PASS):
        measured, of_the_pass = _pass(fresh, batch, seed, classes)
        said += of_the_pass
    said += [*signal.of_a_pass(measured), *signal.loss(measured, loss_tolerance)]
    said += [*among.beside_each_other(fresh, drawn, [each.name for each in signal.unmoved(measured, drawn)])]
    said += signal.unused(measured, _without(drawn, unused))
    untrained = [each for each in _without(drawn, frozen) if not each.trainable]
    still = [each.name for each in untrained if each.drawn and each.size >= FEWEST]  # tables are computed
    said += folded("frozen", [(name, "is drawn, and is not trained") for name in still])
    said += () if reference is None else unlike(drawn, reference, fresh)
    if snapshot is not None and "snapshot" in wanted:
        said += compare_snapshot(fresh, records, fixed, snapshot, update_snapshot)
    asked = wanted - {name for name, given in (("like", like), ("snapshot", snapshot)) if given is None}
    return Checked(type(fresh).__name__, tuple(_row(name, said) for name in CHECKS if name in asked))


def _wanted(skip: Patterns) -> set[str]:
    names = [name.strip() for name in skip.split(",") if name.strip()] if isinstance(skip, str) else skip
    for name in names:
        if name not in CHECKS:
            raise StructuredInitError(f"there is no check '{name}': {nearest(str(name), CHECKS, limit=len(CHECKS))}")
    return set(CHECKS).difference(names)


def _tensors_of(like: Any) -> Mapping[str, Tensor | float] | None:
    if isinstance(like, nn.Module):
        return builds.tensors(like)
    if not isinstance(like, (Mapping, type(None))):
        raise StructuredInitError(f"like is a model, its state dictionary, or root mean squares, got {shown(like)}")
    for name, value in (like or {}).items():
        if not isinstance(value, (Tensor, int, float)):
            raise StructuredInitError(f"like['{name}'] is a tensor or a root mean square, got {shown(value)}")
    return like


def _selected(records: list[Record], where: str | list[str] | None) -> list[Record]:
    for pattern in where if where and isinstance(where, list | tuple) else [where]:
        if records and not any(selects(pattern, each.name, each) for each in records):
            near = nearest(str(pattern), {each.name.rpartition(".")[0] or each.name for each in records})
            raise StructuredInitError(f"where={pattern!r} selects no parameter: {near}")
    return [each for each in records if selects(where, each.name, each)]


def _without(records: list[Record], patterns: Patterns) -> list[Record]:
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    return [each for each in records if not selects(given, each.name, each)]


def _pass(model: nn.Module, batch: Any, seed: int, classes: int | None) -> tuple[Depth, list[Finding | LeftOut]]:
    """Run the model; an error on inputs that nobody gave leaves the checks out."""
    with explain_failure(model, given=batch is not None):
        given = None if batch is None else as_inputs(batch)
        measured, inputs, why_none = measure(model, given, seed, classes)
        if inputs is None:
            why = f"{why_none}: give batch=, what the model is called with"
            return measured, [LeftOut(name, why) for name in OF_A_PASS]
        said = [*tokens.of_tokens(model, inputs, measured.gradients, seed)]
    if measured.loss is None:
        said.append(LeftOut("loss", measured.doubt))
    if not signal.stacks(measured.blocks):
        said.append(LeftOut("depth", signal.NO_STACK))
    return measured, said


def _row(name: str, said: Collection[Finding | LeftOut]) -> Check:
    own = [each for each in said if each.kind == name]
    failures = dict.fromkeys(each.text for each in own if isinstance(each, Finding))
    left_out = "; ".join(each.why for each in own if isinstance(each, LeftOut))
    return Check(name, tuple(failures), left_out)
