"""Weight selection: a network starts with entries taken from a larger trained one of its family.

Letters: S the size of a dimension in the student, T in the teacher.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.hosts.positions import position_sites
from structured_init.hosts.registry import idle, selects
from structured_init.initializer import Initializer
from structured_init.transfer.teacher import Teacher, beginnings, described, opened, tensors_of
from structured_init.util.arguments import check_choice
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.weights import Weights

HEADS = frozenset({"head", "head_dist", "heads", "lm_head", "classifier", "fc", "mlp_head", "output"})

Missing = Literal["error", "keep"]


def uniform_indices(student: int, teacher: int) -> Int64[Tensor, " student"]:
    """Return S of T ≥ S indices at even distances: i·T/S where that is whole for all i, else round(i·(T−1)/(S−1)).

    Source: OscarXZQ/weight-selection, ``weight_selection.py``, ``uniform_element_selection``; linspace in float32 as
    there.
    """
    if teacher < student:
        raise ValueError(f"cannot select {student} of {teacher}")
    if teacher % student == 0:
        return torch.arange(student) * (teacher // student)
    return torch.linspace(0, teacher - 1, student, dtype=torch.float32).round().long()


def select(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Select a tensor of ``shape`` from one that is no smaller in any dimension: entries at even distances."""
    for axis, size in enumerate(shape):
        tensor = tensor.index_select(axis, uniform_indices(size, tensor.shape[axis]))
    return tensor


class WeightSelection(Initializer):
    """Every tensor from that of the same name in a larger network: the first N layers, entries at even distances.

    Parameters and the buffers that a checkpoint would hold are taken, embeddings, positions and norms included;
    integers, what ``leave`` names, and buffers of another size that are in no norm are not. Nothing is drawn.

    Args:
        teacher: a path (``.safetensors``, a Lightning or PyTorch checkpoint), a model name of timm, whose pretrained
            weights are fetched, or, in Python, a module or a dictionary of tensors. It is opened when the start is
            planned.
        leave: patterns of names that stay as they are; ``None`` for classification heads: ``head``, ``head_dist``,
            ``heads``, ``lm_head``, ``classifier``, ``fc``, ``mlp_head``, ``output``, where no part before them in the
            name is a number. Patterns stand in their place, and ``[]`` takes them as well.
        missing: what to do with a tensor that the teacher lacks, or has smaller: ``"error"``, or ``"keep"`` the
            student's own; the report lists what was kept.

    Raises:
        StructuredInitError: at construction, an unknown ``missing``; at :meth:`plan`, a teacher that cannot be opened,
            a pattern of ``leave`` that names no tensor, or a tensor without counterpart.

    Source: Xu et al., "Initializing Models with Larger Ones", 2311.18823 (ICLR 2024), and OscarXZQ/weight-selection.
    """

    def __init__(self, teacher: Teacher, leave: str | list[str] | None = None, missing: Missing = "error") -> None:
        check_choice("WeightSelection", missing=(missing, Missing))
        self.teacher, self.leave = teacher, leave
        self.missing: Missing = missing

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        tensors = tensors_of(opened(self.teacher))
        pairs = list(self._pairs(weights, tensors))  # all, before the first is written
        for target, source in weights.each(pairs):
            value = select(source.cpu(), tuple(target.shape))
            weights.write(target, value, f"WeightSelection: {described(self.teacher)}")

    def _pairs(self, weights: Weights, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Pair every tensor that is wanted with the teacher's of the same name; report the others."""
        wanted = list(_wanted(weights))
        names = [name for _, every, _ in wanted for name in every]
        for pattern in idle(self.leave, names):
            near = nearest(pattern.removesuffix(".*"), [*filter(None, weights.modules), *names])
            raise StructuredInitError(f"WeightSelection: leave: '{pattern}' names no tensor: {near}")
        tables = _tables(weights)
        ours, theirs = beginnings(names, tensors)
        for target, every, resized in wanted:
            counterparts = {theirs + name.removeprefix(ours): name for name in every if not self._leaves(name)}
            if not counterparts:
                weights.skip(every[0], "left as it is: WeightSelection takes no such tensor, see leave")
                continue
            counterpart = next((each for each in counterparts if each in tensors), next(iter(counterparts)))
            name, source = counterparts[counterpart], tensors.get(counterpart)
            why = f"there is no '{counterpart}'" if source is None else _unfit(target, source)
            if source is not None and source.shape != target.shape and not resized:
                weights.skip(name, f"a buffer that is {tuple(source.shape)} in the teacher, left as it is")
            elif why and self.missing == "keep":
                weights.skip(name, f"kept: {why}")
            elif why:
                raise StructuredInitError(
                    f"WeightSelection: cannot take '{name}' {tuple(target.shape)} from {described(self.teacher)}: {why}"
                    " (missing: keep leaves such tensors as they are)"
                )
            else:
                if id(target) in tables and source.shape[:-1] != target.shape[:-1]:
                    weights.warn(
                        f"WeightSelection: '{name}' {tuple(target.shape)} takes rows at even distances of "
                        f"{tuple(source.shape)}: they belong to other words or places; resize the teacher's, or leave "
                        "it"
                    )
                yield target, source

    def _leaves(self, name: str) -> bool:
        """Say whether a tensor is to stay as it is, whatever the teacher has."""
        return _in_head(name) if self.leave is None else selects(self.leave, name, None)


def _tables(weights: Weights) -> set[int]:
    """Return the tables with a row for each word or place; those of four axes are resized with the image."""
    words = {id(module.weight) for module in weights.modules.values() if isinstance(module, nn.Embedding)}
    return words | {id(site.tensor) for site in position_sites(weights) if site.tensor.ndim < 4}


def _in_head(name: str) -> bool:
    """Say whether a name is that of a classification head: heads of attention stand behind the number of a block."""
    before_a_number = itertools.takewhile(lambda part: not part.isdecimal(), name.split(".")[:-1])
    return not HEADS.isdisjoint(before_a_number)


def _wanted(weights: Weights) -> Iterator[tuple[Tensor, tuple[str, ...], bool]]:
    """Yield what a checkpoint of the student would hold, once each, its names, and whether it may be resized.

    Only floating-point tensors; of buffers, those of norms have a number per channel.
    """
    seen = set()
    for module in weights.modules.values():
        in_norm = "norm" in type(module).__name__.lower()
        kept = [each for name, each in module._buffers.items() if name not in module._non_persistent_buffers_set]
        for tensor in (*module._parameters.values(), *kept):
            if tensor is not None and tensor.is_floating_point() and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor, weights.names(tensor), in_norm or isinstance(tensor, nn.Parameter)


def _unfit(target: Tensor, source: Tensor) -> str:
    """Say why a tensor of the teacher is none to select from; nothing where it is."""
    if source.ndim != target.ndim:
        return f"there it has shape {tuple(source.shape)}"
    if any(its < ours for ours, its in zip(target.shape, source.shape, strict=True)):
        return f"there it is smaller, {tuple(source.shape)}"
    return ""
