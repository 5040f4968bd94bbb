"""Weight selection: a network starts with entries taken from a larger trained one of its family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from structured_init.arguments import check_flag
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.initializer import Initializer
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.select import selects
from structured_init.transfer.elements import select
from structured_init.transfer.heads import Rows, head_rows
from structured_init.transfer.teacher import Teacher, beginnings, described, opened, tensors_of

HEADS = ("head.*", "head_dist.*", "heads.*", "lm_head.*", "classifier.*")

Missing = Literal["error", "keep"]


@dataclass(frozen=True)
class Match:
    """One tensor of the student, its name in the teacher, and why it cannot be taken, where that is so."""

    name: str
    target: Tensor
    counterpart: str
    why: str


class WeightSelection(Initializer):
    """Every tensor from that of the same name in a larger network: the first N layers, entries at even distances.

    Parameters and the buffers that a checkpoint would hold are taken, embeddings, positions and norms included;
    integers and what ``leave`` names are not. Nothing is drawn.

    Args:
        teacher: a path (``.safetensors``, a Lightning or PyTorch checkpoint), a model name of timm, whose pretrained
            weights are fetched, or, in Python, a module or a dictionary of tensors. It is opened when the start is
            planned.
        leave: patterns of names that stay as they are; ``None`` for classification heads: ``head.*``, ``head_dist.*``,
            ``heads.*``, ``lm_head.*``, ``classifier.*``. ``[]`` takes them as well.
        per_head: take whole heads of attention, and the same coordinates of queries and keys, and of values and
            outputs. The default, as published, selects over the whole fused dimension, which mixes neighbouring heads.
            Needs a teacher whose attention classes are known: a module, or a name of timm.
        missing: what to do with a tensor that the teacher lacks, or has smaller: ``"error"``, or ``"keep"`` the
            student's own; the report lists what was kept.

    Raises:
        StructuredInitError: at construction, an unknown ``missing``; at :meth:`plan`, a teacher that cannot be opened,
            a tensor without counterpart, or ``per_head`` where heads are unknown or do not fit.

    Source: Xu et al., "Initializing Models with Larger Ones", 2311.18823 (ICLR 2024), and OscarXZQ/weight-selection.
    """

    def __init__(
        self,
        teacher: Teacher,
        leave: str | list[str] | None = None,
        per_head: bool = False,
        missing: Missing = "error",
    ) -> None:
        if missing not in ("error", "keep"):
            raise StructuredInitError(f"WeightSelection: missing must be error or keep, got '{missing}'")
        if not isinstance(teacher, str | Path | nn.Module | Mapping):
            raise StructuredInitError(
                f"WeightSelection: teacher is a path, a model name of timm, a module or a dictionary, got {teacher!r}"
            )
        patterns = [leave] if isinstance(leave, str) else leave
        if patterns is not None and not (
            isinstance(patterns, list | tuple) and all(isinstance(each, str) for each in patterns)
        ):
            raise StructuredInitError(f"WeightSelection: leave is a name pattern or a list of them, got {leave!r}")
        check_flag("WeightSelection", per_head=per_head)
        self.teacher = teacher
        self.leave = leave
        self.per_head = per_head
        self.missing: Missing = missing

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        teacher = opened(self.teacher)
        tensors = tensors_of(teacher)
        matches = list(self._matches(weights, tensors))  # all, before the first is written
        rows: dict[int, Rows] = {}
        if self.per_head:
            if not isinstance(teacher, nn.Module):
                raise StructuredInitError(
                    f"WeightSelection: per_head needs to know the teacher's heads, which {described(self.teacher)} does"
                    " not tell: give a module or a model name of timm"
                )
            rows = head_rows(weights, teacher, {id(m.target): m.counterpart for m in matches if not m.why})
        for match in weights.each(matches):
            if match.why:
                weights.skip(match.name, f"kept: {match.why}")
            else:
                source = tensors[match.counterpart].cpu()
                value = select(source, tuple(match.target.shape), rows.get(id(match.target)))
                weights.write(match.target, value, f"WeightSelection: {described(self.teacher)}")

    def _matches(self, weights: Weights, tensors: dict[str, Tensor]) -> Iterator[Match]:
        """Pair every tensor that is wanted with the teacher's of the same name."""
        patterns = list(HEADS) if self.leave is None else self.leave
        wanted = list(_wanted(weights))
        ours, theirs = beginnings([name for _, every in wanted for name in every], tensors)
        for target, every in wanted:
            inside = [name for name in every if not selects(patterns, name, target)]
            if not inside:
                weights.skip(every[0], "left as it is: WeightSelection takes no such tensor, see leave")
                continue
            counterparts = {name: theirs + name.removeprefix(ours) for name in inside}
            name = next((name for name, its in counterparts.items() if its in tensors), inside[0])
            why = _unfit(target, counterparts[name], tensors)
            if why and self.missing == "error":
                raise StructuredInitError(
                    f"WeightSelection: cannot take '{name}' {tuple(target.shape)} from {described(self.teacher)}: {why}"
                    " (missing: keep leaves such tensors as they are)"
                )
            yield Match(name, target, counterparts[name], why)

    def __repr__(self) -> str:
        return (
            f"WeightSelection(teacher={described(self.teacher)}, leave={self.leave!r}, per_head={self.per_head}, "
            f"missing={self.missing!r})"
        )


def _wanted(weights: Weights) -> Iterator[tuple[Tensor, tuple[str, ...]]]:
    """Yield what a checkpoint of the student would hold, floating-point tensors only, each once with all its names."""
    seen = set()
    for _, module in named_plain_modules(weights.model):
        kept = {name: b for name, b in module._buffers.items() if name not in module._non_persistent_buffers_set}
        for tensor in (*module._parameters.values(), *kept.values()):
            if tensor is not None and tensor.is_floating_point() and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor, weights.names(tensor)


def _unfit(target: Tensor, name: str, tensors: dict[str, Tensor]) -> str:
    """Say why a tensor cannot be taken; nothing where it can."""
    source = tensors.get(name)
    if source is None:
        return f"there is no '{name}'{_shallower(name, tensors)}"
    if source.ndim != target.ndim:
        return f"there it has shape {tuple(source.shape)}"
    if any(its < ours for ours, its in zip(target.shape, source.shape, strict=True)):
        return f"there it is smaller, {tuple(source.shape)}"
    return ""


def _shallower(name: str, tensors: dict[str, Tensor]) -> str:
    """Say how deep the teacher is, where the number of a block in ``name`` is past its last one."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        before = "".join(f"{earlier}." for earlier in parts[:place])
        inside = {other.removeprefix(before).partition(".")[0] for other in tensors if other.startswith(before)}
        numbers = [int(number) for number in inside if number.isdecimal()]
        if part.isdecimal() and numbers and int(part) > max(numbers):
            return f", where '{before}*' ends at {max(numbers)}"
    return ""
