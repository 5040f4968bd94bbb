"""Selecting whole heads: which rows of a teacher's projection the rows of a student's take.

Letters: H heads, Hkv key–value heads, k head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layout import PARTS, Projection
from structured_init.names import plain_name
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite, attention_sites
from structured_init.transfer.elements import uniform_indices

Rows = Mapping[int, Int64[Tensor, " size"]]  # axis → the teacher's index at each of the student's


def head_indices(
    student: tuple[int, int], teacher: tuple[int, int]
) -> tuple[Int64[Tensor, " heads"], Int64[Tensor, " kv_heads"]]:
    """Return the teacher's head for each query head and for each key–value head of the student.

    Key–value heads are taken uniformly, and so are the query heads inside each group: a query head goes on asking the
    key that it asked in the teacher.

    Args:
        student: (H, Hkv).
        teacher: (H, Hkv), with at least as many key–value heads, and query heads to each of them.

    Raises:
        ValueError: the teacher has fewer.
    """
    (heads, groups), (its_heads, its_groups) = student, teacher
    key = uniform_indices(groups, its_groups)
    inside = uniform_indices(heads // groups, its_heads // its_groups)
    return (key[:, None] * (its_heads // its_groups) + inside).flatten(), key


def head_rows(weights: Weights, teacher: nn.Module, names: Mapping[int, str]) -> dict[int, Rows]:
    """Return, by the id of the student's tensor, the rows to take so that heads stay whole and their parts together.

    Args:
        weights: the student.
        teacher: a model with attention of known classes.
        names: the teacher's name for each of the student's tensors, by their ids.

    Raises:
        StructuredInitError: an attention layer has no counterpart, or one with fewer or smaller heads.
    """
    theirs = {id(site.layout.query.weight): site for site in attention_sites(teacher, cross=True)}
    named = teacher.named_parameters(remove_duplicate=False)
    tensors = {plain_name(name, teacher): id(tensor) for name, tensor in named}
    found: dict[int, Rows] = {}
    for site in attention_sites(weights, cross=True):
        name = names.get(id(site.layout.query.weight), "")
        other = theirs.get(tensors.get(name, 0))
        if other is None:
            raise StructuredInitError(f"WeightSelection: per_head finds no attention like '{site.name}' in the teacher")
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
        rows, taken = _places(ours, torch.arange(ours.heads), torch.arange(ours.head_dim)), _places(its, heads, inside)
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


def _places(projection: Projection, heads: Tensor, inside: Tensor) -> Int64[Tensor, " size"]:
    """Return the rows that hold those coordinates of those heads, head after head."""
    step = projection.step or projection.head_dim
    return (projection.start + heads[:, None] * step + inside).flatten()
