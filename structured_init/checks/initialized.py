"""Does a model begin as it should? Checks for whoever writes models; ``pytest --initialized`` runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from structured_init.checks.builds import Builds
from structured_init.checks.findings import Check, left_out
from structured_init.checks.measured import Measured, Patterns
from structured_init.checks.one_pass import Depth, measure
from structured_init.checks.records import Record, records_of
from structured_init.checks.table import EVERY, OF_A_PASS, make
from structured_init.hosts.registry import idle, selects
from structured_init.storage import refuse_unreadable
from structured_init.util.arguments import check_known, check_whole
from structured_init.util.errors import StructuredInitError, nearest

CHECKS = tuple(EVERY)
HINTS = {  # by the check that fails
    "seeds": "where build fixes a seed, leave that to its caller (initialize takes seed=torch.initial_seed()); where"
    " weights are loaded, say which are drawn, as in where='classifier'",
    "meta": "a model that nobody builds on the meta device needs neither meta nor own: skip them",
    "snapshot": "what was meant to change is accepted by pytest --update-snapshot, or update_snapshot=True",
}


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
        return left_out(self.checks)

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
    failed = [check.name for check in checked.checks if check.failures]
    if failed:
        first = f"{checked.model} does not begin as it should ({', '.join(failed)}):"
        lines = [first, *checked.failures, *checked.left_out]
        lines += [HINTS[name] for name in failed if name in HINTS]
        raise AssertionError("\n  ".join(lines))
    return checked


def check_initialized(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any = None,
    *,
    skip: str | Collection[str] = (),
    where: str | list[str] | None = None,
    classes: int | None = None,
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
            names, or of modules around them. ``seeds``, ``own`` and ``copies`` check these alone.
        classes: number of classes or words, the length of the last axis of the logits, or of axis 1 as in segmentation,
            where the model does not say it by ``num_classes``, or a linear layer of its own called ``head``,
            ``classifier``, ``fc`` or ``lm_head``.
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
    wanted = _wanted(skip).difference(["snapshot"] if snapshot is None else [])
    builds, fresh, fixed = None, model, set()
    if not isinstance(model, nn.Module):
        builds = Builds(model, seed, where)
        fresh, fixed = builds.model, builds.fixed
    refuse_unreadable(fresh)
    records = records_of(fresh, fixed)
    chosen = _chosen(records, where)
    if builds is not None:
        builds.write_zeros_for_nan()
    depth = measure(fresh, batch, seed, classes) if wanted & OF_A_PASS.keys() else Depth()
    measured = Measured(
        fresh,
        records,
        chosen,
        depth,
        builds,
        seed,
        frozen=frozen,
        unused=unused,
        snapshot=Path(snapshot or ""),
        update_snapshot=update_snapshot,
    )
    return Checked(type(fresh).__name__, tuple(make(name, measured) for name in CHECKS if name in wanted))


def _wanted(skip: str | Collection[str]) -> set[str]:
    names = skip.replace(",", " ").split() if isinstance(skip, str) else skip
    for name in names:
        check_known("check", name, CHECKS)
    return set(CHECKS).difference(names)


def _chosen(records: list[Record], where: str | list[str] | None) -> list[Record]:
    wrong = idle(where, [each.name for each in records])
    if wrong:
        near = nearest(wrong[0], {each.name.rpartition(".")[0] or each.name for each in records})
        raise StructuredInitError(f"where={wrong[0]!r} selects no parameter: {near}")
    return [each for each in records if selects(where, each.name, each)]
