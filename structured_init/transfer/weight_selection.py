"""Weight selection: a network starts with entries taken from a larger trained one of its family.

Letters: S the size of a dimension in the student, T in the teacher; H heads, Hkv key–value heads, k head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.hosts.attention import AttentionSite, attention_sites
from structured_init.hosts.layout import PARTS, Projection
from structured_init.hosts.positions import position_sites
from structured_init.hosts.registry import idle, selects
from structured_init.initializer import Initializer
from structured_init.transfer.teacher import Teacher, beginnings, described, opened, tensors_of
from structured_init.util.arguments import check_choice
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.names import is_stack, named_plain_modules, plain_name, within
from structured_init.weights import Weights

HEADS = ("head", "head_dist", "heads", "lm_head", "classifier")
BEHIND = ("fc", "mlp_head", "output")  # heads where they stand beside the blocks, and else layers like others

Missing = Literal["error", "keep"]
Rows = Mapping[int, Int64[Tensor, " size"]]  # axis → the teacher's index at each of the student's


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


def select(
    tensor: Tensor, shape: tuple[int, ...], indices: Mapping[int, Int64[Tensor, " size"]] | None = None
) -> Tensor:
    """Select a tensor of ``shape`` from one no smaller, by dimension: uniform entries, or those of ``indices``."""
    if tensor.ndim != len(shape):
        raise ValueError(f"{tensor.ndim} dimensions are not {len(shape)}")
    for axis, size in enumerate(shape):
        own = None if indices is None else indices.get(axis)
        tensor = tensor.index_select(axis, uniform_indices(size, tensor.shape[axis]) if own is None else own)
    return tensor


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
    integers, what ``leave`` names, and buffers of another size that are in no norm are not. Nothing is drawn.

    Args:
        teacher: a path (``.safetensors``, a Lightning or PyTorch checkpoint), a model name of timm, whose pretrained
            weights are fetched, or, in Python, a module or a dictionary of tensors. It is opened when the start is
            planned.
        leave: patterns of names that stay as they are; ``None`` for classification heads outside of the blocks:
            ``head``, ``head_dist``, ``heads``, ``lm_head``, ``classifier``, ``fc``, ``mlp_head``, ``output``. Patterns
            stand in their place, and ``[]`` takes them as well.
        per_head: take whole heads of attention, and the same coordinates of queries and keys, and of values and
            outputs. The default, as published, selects over the whole fused dimension, which mixes neighbouring heads.
            Needs a teacher, as a module or a name of timm, whose attention is known or found on the batch.
        missing: what to do with a tensor that the teacher lacks, or has smaller: ``"error"``, or ``"keep"`` the
            student's own; the report lists what was kept.

    Raises:
        StructuredInitError: at construction, an unknown ``missing``; at :meth:`plan`, a teacher that cannot be opened,
            a pattern of ``leave`` that names no tensor, a tensor without counterpart, or ``per_head`` where heads are
            unknown or do not fit.

    Source: Xu et al., "Initializing Models with Larger Ones", 2311.18823 (ICLR 2024), and OscarXZQ/weight-selection.
    """

    def __init__(
        self, teacher: Teacher, leave: str | list[str] | None = None, per_head: bool = False, missing: Missing = "error"
    ) -> None:
        check_choice("WeightSelection", missing=(missing, Missing))
        self.teacher, self.leave, self.per_head = teacher, leave, per_head
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
        wanted = list(_wanted(weights))
        names = [name for _, every in wanted for name in every]
        for pattern in idle(self.leave, names):
            near = nearest(pattern.removesuffix(".*"), [*filter(None, weights.modules), *names])
            raise StructuredInitError(f"WeightSelection: leave: '{pattern}' names no tensor: {near}")
        stacks = [name for name, module in weights.modules.items() if is_stack(module)]
        norms = _buffers_of_norms(weights)
        tables = _tables(weights)
        ours, theirs = beginnings(names, tensors)
        for target, every in wanted:
            inside = [name for name in every if not self._leaves(stacks, name)]
            if not inside:
                weights.skip(every[0], "left as it is: WeightSelection takes no such tensor, see leave")
                continue
            counterparts = {name: theirs + name.removeprefix(ours) for name in inside}
            name = next((name for name, its in counterparts.items() if its in tensors), inside[0])
            counterpart = counterparts[name]
            source = tensors.get(counterpart, target)
            if not isinstance(target, nn.Parameter) and id(target) not in norms and source.shape != target.shape:
                weights.skip(name, f"a buffer that is {tuple(source.shape)} in the teacher, left as it is")
                continue
            why = _unfit(target, counterpart, tensors)
            if why and self.missing == "error":
                raise StructuredInitError(
                    f"WeightSelection: cannot take '{name}' {tuple(target.shape)} from {described(self.teacher)}: {why}"
                    " (missing: keep leaves such tensors as they are)"
                )
            if not why and id(target) in tables and source.shape[:-1] != target.shape[:-1]:
                weights.warn(
                    f"WeightSelection: '{name}' {tuple(target.shape)} takes rows at even distances of "
                    f"{tuple(source.shape)}: they belong to other words or places; resize the teacher's, or leave it"
                )
            yield Match(name, target, counterpart, why)

    def _leaves(self, stacks: Sequence[str], name: str) -> bool:
        """Say whether a tensor is to stay as it is, whatever the teacher has."""
        return _in_head(stacks, name) if self.leave is None else selects(self.leave, name, None)


def _buffers_of_norms(weights: Weights) -> set[int]:
    found = set()
    for module in weights.modules.values():
        if "norm" in type(module).__name__.lower():
            found.update(map(id, module.buffers()))
    return found


def _tables(weights: Weights) -> set[int]:
    """Return the tables with a row for each word or place; those of four axes are resized with the image."""
    words = {id(module.weight) for module in weights.modules.values() if isinstance(module, nn.Embedding)}
    return words | {id(site.tensor) for site in position_sites(weights) if site.tensor.ndim < 4}


def _in_head(stacks: Sequence[str], name: str) -> bool:
    """Say whether a name is that of a classification head, which lies in no list of blocks."""
    parts = name.split(".")[:-1]
    for place, part in enumerate(parts):
        around, here = ".".join(parts[:place]), ".".join(parts[: place + 1])
        if around in stacks:
            return False
        beside = any(within(stack, around) and not within(stack, here) for stack in stacks)
        if part in HEADS or (part in BEHIND and beside):
            return True
    return False


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
        return f"there is no '{name}'"
    if source.ndim != target.ndim:
        return f"there it has shape {tuple(source.shape)}"
    if any(its < ours for ours, its in zip(target.shape, source.shape, strict=True)):
        return f"there it is smaller, {tuple(source.shape)}"
    return ""


def head_indices(
    student: tuple[int, int], teacher: tuple[int, int]
) -> tuple[Int64[Tensor, " heads"], Int64[Tensor, " kv_heads"]]:
    """Return the teacher's head for each query head and for each key–value head of the student, both (H, Hkv).

    Key–value heads are taken uniformly, and so are the query heads inside each group: a query head goes on asking the
    key that it asked in the teacher.
    """
    (heads, groups), (its_heads, its_groups) = student, teacher
    key = uniform_indices(groups, its_groups)
    inside = uniform_indices(heads // groups, its_heads // its_groups)
    return (key[:, None] * (its_heads // its_groups) + inside).flatten(), key


def head_rows(weights: Weights, teacher: nn.Module, names: Mapping[int, str]) -> dict[int, Rows]:
    """Return, by the id of the student's tensor, the rows to take so that heads stay whole and their parts together."""
    larger = Weights(teacher, batch=weights.ask if weights.can_ask else None)
    theirs = {id(site.layout.query.weight): site for site in attention_sites(larger, cross=True)}
    named = teacher.named_parameters(remove_duplicate=False)
    tensors = {plain_name(name, teacher): id(tensor) for name, tensor in named}
    found: dict[int, Rows] = {}
    for site in attention_sites(weights, cross=True):
        name = names.get(id(site.layout.query.weight), "")
        other = theirs.get(tensors.get(name, 0))
        if other is None:
            why = f" ({larger.seen.why_not})" if larger.seen.why_not else ""
            raise StructuredInitError(
                f"WeightSelection: per_head finds no attention like '{site.name}' in the teacher{why}: describe its"
                " class with structured_init.register_attention"
            )
        found.update(_site_rows(site, other))
    return found


def _site_rows(site: AttentionSite, other: AttentionSite) -> dict[int, Rows]:
    """Fill the rows of each projection, and of the biases that belong to them."""
    blocks = all(isinstance(getattr(one.layout, part), Projection) for one in (site, other) for part in PARTS)
    if site.layout.value_norm or getattr(site.module, "q_proj_weight", None) is not None or not blocks:
        raise StructuredInitError(
            f"WeightSelection: '{site.name}' holds tensors that per_head does not know; use per_head: false"
        )
    found: dict[int, Rows] = {}
    parameters = dict(site.module.named_parameters())
    for part, ours, its, heads, inside in _parts(site, other):
        rows, taken = ours.rows.flatten(), its.rows[heads][:, inside].flatten()  # head after head
        sizes = (ours.weight.shape[ours.axis], its.weight.shape[its.axis])
        index = found.setdefault(id(ours.weight), {ours.axis: uniform_indices(*sizes)})[ours.axis]
        index[rows] = taken
        name = next(name for name, parameter in parameters.items() if parameter is ours.weight)
        bias = parameters.get(f"{name.removesuffix('weight')}bias")
        if part != "output" and bias is not None:
            found[id(bias)] = {0: index}
        own = parameters.get(f"{part[0]}_bias")  # BEiT and EVA: beside the fused weight
        if part != "output" and own is not None:
            found[id(own)] = {0: (heads[:, None] * its.head_dim + inside).flatten()}
    return found


def _parts(site: AttentionSite, other: AttentionSite) -> Iterator[tuple[str, Projection, Projection, Tensor, Tensor]]:
    """Yield each part: its name, both projections, the teacher's head for each head, its coordinate for each."""
    ours, theirs = site.layout, other.layout
    try:
        query, key = head_indices((ours.query.heads, ours.key.heads), (theirs.query.heads, theirs.key.heads))
        inside = uniform_indices(ours.query.head_dim, theirs.query.head_dim)
        value_inside = uniform_indices(ours.value.head_dim, theirs.value.head_dim)
    except ValueError:
        raise StructuredInitError(
            f"WeightSelection: '{site.name}' has more heads, wider heads or more queries per key than the teacher"
        ) from None
    yield "query", ours.query, theirs.query, query, inside
    yield "key", ours.key, theirs.key, key, inside
    yield "value", ours.value, theirs.value, key, value_inside
    yield "output", ours.output, theirs.output, query, value_inside
