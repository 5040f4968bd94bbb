"""Parameters with two roles, such as keys that are the values too: both are written right, or it is said.

The products W_q W_kᵀ of every head and W_v W_o are what is asked for. Where one parameter is two of the four matrices,
or one of two layers, it is written for one of the products, and the other is reached through its other matrix.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim, E out_dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.errors import StructuredInitError
from structured_init.hosts.layout import AttentionLayout, Matrices, coincide, overlap, pieces
from structured_init.names import plain_names, wrapped_child
from structured_init.overlay import Above, Weights
from structured_init.writer import full_value

PARTNER = {"query": "key", "key": "query", "value": "output", "output": "value"}
NAMES = {"query": "queries", "key": "keys", "value": "values", "output": "output projection"}
KEPT = 0.6  # cosine between a product and the one asked for, below which it is refused
SMALLEST = 0.1  # of singular values, over the largest, that are inverted: smaller ones would make W_o large

Pair = tuple[Tensor, Tensor]  # queries and keys, or values and outputs


@dataclass(frozen=True)
class Role:
    """One matrix of one layer that was written, ``"query"``, ``"key"``, ``"value"`` or ``"output"``."""

    name: str
    layout: AttentionLayout
    matrix: str
    together: bool = False  # of values and outputs, whether what counts is the sum of the heads' products

    @property
    def place(self) -> Matrices:
        """Where it is kept."""
        return getattr(self.layout, self.matrix)


def other_roles(weights: Weights, role: Role) -> list[Role]:
    """Return the roles in which numbers of a matrix were written before, other than its own.

    A layer that is shared as a whole, under two names, has no other role.
    """
    partner, found = getattr(role.layout, PARTNER[role.matrix]), {}
    for piece in pieces(role.place):
        for (name, matrix), other in weights.roles.get(id(piece.weight), {}).items():
            if (name, matrix) == (role.name, role.matrix) or not overlap(role.place, other.place):
                continue
            if matrix != role.matrix or not overlap(partner, getattr(other.layout, PARTNER[matrix])):
                found[name, matrix] = other
    return list(found.values())


def record_role(weights: Weights, role: Role) -> None:
    """Record that a matrix was written."""
    for piece in pieces(role.place):
        weights.roles.setdefault(id(piece.weight), {})[role.name, role.matrix] = role


def is_shared(weights: Weights, first: Role, second: Role) -> bool:
    """Say whether two matrices of a layer are the same numbers, or numbers that were written in another role."""
    return overlap(first.place, second.place) or any(other_roles(weights, role) for role in (first, second))


def reconciled(
    weights: Weights, first: Role, second: Role, asked: Pair
) -> tuple[list[tuple[Role, Tensor]], tuple[Role, Role], float]:
    """Return what is to be written for a product of two matrices that share numbers with others.

    Queries and keys are written as they are asked for, or as the nearest symmetric product where they are one matrix;
    outputs of values that go with them are solved anew. Everything else is solved for what is there already.

    Returns:
        Roles and their new matrices; which two roles one parameter has; and the least cosine between a product and that
        asked for: 0 where nothing can be solved.
    """
    new = dict(zip((first, second), asked, strict=True))
    others = {role: other_roles(weights, role) for role in (first, second)}
    attends = second.matrix == "key"
    fixed = [role for role in (first, second) if any(not (attends and o.matrix == "value") for o in others[role])]
    meeting = next(((role, other) for role in (first, second) for other in others[role]), (first, second))
    one = overlap(first.place, second.place)
    if fixed:
        [given, *more] = fixed
        solving = first if given is second else second
        if one or more or others[solving]:
            return [], meeting, 0.0
        shared = read(weights, given.layout, given.matrix)
        partner = solved(given.matrix, shared, asked, together=second.together)
        if partner is None:
            return [], meeting, 0.0
        reached = (partner, shared) if solving is first else (shared, partner)
        return [(solving, partner)], meeting, cosine(asked, reached, attends=attends, together=second.together)
    cosines = []
    if one:
        if not attends or not coincide(first.layout.query, first.layout.key):
            return [], meeting, 0.0
        new = dict.fromkeys(new, nearest_symmetric(*asked))
        cosines.append(cosine(asked, tuple(new.values()), attends=True))
    for role, value in list(new.items()):
        for other in others[role]:
            if not coincide(role.place, other.layout.value):
                return [], meeting, 0.0
            before = read(weights, other.layout, "value"), read(weights, other.layout, "output")
            outputs = solved("value", value, before, together=other.together)
            new[replace(other, matrix="output")] = outputs
            cosines.append(cosine(before, (value, outputs), together=other.together))
    return list(new.items()), meeting, min(cosines)


def in_words(weights: Weights, role: Role, other: Role) -> str:
    """Say which parameter has which two roles."""
    name = weights.names(role.place.weight)[0]
    first, second = NAMES[role.matrix], NAMES[other.matrix]
    of, other_of = (f"'{each.name}'" if each.name else "the model" for each in (role, other))
    if role.name == other.name:
        return f"'{name}' is both the {first} and the {second} of {of}"
    return f"'{name}' is both the {first} of {of} and the {second} of {other_of}"


def read(weights: Weights, layout: AttentionLayout, matrix: str) -> Tensor:
    """Return query, key or value as (heads, D, k), output as (H, k, E), in float64."""
    block = getattr(layout, matrix).get(weights).double()
    return block if matrix == "output" else block.mT


def nearest_symmetric(query: Tensor, key: Tensor) -> Float[Tensor, "heads D k"]:
    """Return S with S Sᵀ nearest to W_q W_kᵀ in every head: of its symmetric part, the largest positive eigenvalues."""
    basis = torch.linalg.qr(torch.cat([query, key], -1)).Q
    small = (basis.mT @ query) @ (basis.mT @ key).mT
    values, vectors = torch.linalg.eigh((small + small.mT) / 2)
    rank = query.shape[-1]
    return basis @ vectors[..., -rank:] * values[..., None, -rank:].clamp_min(0).sqrt()


def solved(fixed: str, shared: Tensor, asked: Pair, *, together: bool) -> Tensor | None:
    """Return the partner of a matrix that is given, for the product nearest to that asked for; ``None`` for outputs."""
    left, right = asked
    if fixed == "output" or (fixed == "query" and len(left) != len(right)):
        return None
    if fixed in ("query", "key"):
        group = len(left) // len(right)
        partner, other = (left, right) if fixed == "key" else (right, left)
        other, shared = (each.repeat_interleave(group, 0) for each in (other, shared))
        return partner @ (other.mT @ torch.linalg.pinv(shared).mT)
    group = len(right) // len(left)
    if not together:
        left, shared = (each.repeat_interleave(group, 0) for each in (left, shared))
        return torch.linalg.pinv(shared) @ left @ right
    (beside, heads), sums = (_beside(each) for each in (left, shared)), right.unflatten(0, (-1, group)).sum(1)
    outputs = torch.linalg.pinv(heads, rtol=SMALLEST) @ (beside @ sums.flatten(0, 1))
    return (outputs.view(len(sums), -1, right.shape[-1]) / group).repeat_interleave(group, 0)


def cosine(asked: Pair, reached: Pair, *, attends: bool = False, together: bool = False) -> float:
    """Return the cosine between two products, W_q W_kᵀ or W_v W_o, of all heads or of their sums."""

    def inner(one: Pair, two: Pair) -> float:
        (left, right), (left_2, right_2) = (_wide(*pair, attends=attends, together=together) for pair in (one, two))
        return float(((left.mT @ left_2) * (right @ right_2.mT)).sum())

    size = inner(asked, asked) * inner(reached, reached)
    return inner(asked, reached) / size**0.5 if size > 0 else float(inner(asked, asked) == inner(reached, reached))


def _wide(left: Tensor, right: Tensor, *, attends: bool, together: bool) -> Pair:
    """Return the factors L (H, D, k) and R (H, k, E) of every head's product, or those of their sum."""
    right = right.mT if attends else right
    left, right = (each.repeat_interleave(max(len(left), len(right)) // len(each), 0) for each in (left, right))
    return (_beside(left)[None], right.flatten(0, 1)[None]) if together else (left, right)


def _beside(heads: Float[Tensor, "heads D k"]) -> Float[Tensor, "D all"]:
    return heads.movedim(0, 1).flatten(1)


# What the report says of weights that several places share, and weights below adapters.

DORA = "lora_magnitude_vector"  # peft's DoRA: ‖W + ΔW‖ of each output, computed once, when the adapter is put in
LORA = "lora_B"  # the second factor of ΔW = B A


def note_shared(weights: Weights) -> None:
    """Note every tensor that was set and has several names."""
    for update in weights.updates.values():
        names = weights.names(update.target)
        if update.by and len(names) > 1 and not _several_roles(weights, update.target):
            weights.note(names[0], f"shared with {', '.join(names[1:])}: one tensor, so what is set holds for all")


def _several_roles(weights: Weights, target: Tensor) -> bool:
    """Say whether numbers of a tensor are two matrices of attention, such as keys and values: the site says so."""
    pairs = combinations(weights.roles.get(id(target), {}).values(), 2)
    return any(one.matrix != two.matrix and overlap(one.place, two.place) for one, two in pairs)


def with_adapters(weights: Weights, parameters: Iterable[Tensor]) -> Weights:
    """Return an overlay to read some parameters from: below peft's LoRA they are W + ΔW, as the model computes with.

    Raises:
        StructuredInitError: what an adapter in use does to a weight is no such sum (DoRA, IA³).
    """
    above, wanted, plain = Above(weights), {id(each) for each in parameters}, plain_names(weights.model)
    for name, layer in weights.model.named_modules():
        if wrapped_child(layer) != "base_layer" or layer.disable_adapters:
            continue
        below = [each for each in layer.base_layer.parameters() if id(each) in wanted]
        used = [each for each in layer.active_adapters if each not in layer.merged_adapters]
        if not below or not used:
            continue
        weight, factors = layer.base_layer._parameters.get("weight"), getattr(layer, LORA, None)
        adds = factors is not None and all(each is weight for each in below)
        if not adds or any(each in getattr(layer, more, ()) for each in used for more in (DORA, "lora_variant")):
            raise StructuredInitError(f"'{plain(name)}' has adapters: merge them first (merge_and_unload)")
        for each in used:
            if each in factors:
                above.edit(weight, LORA).add_(full_value(layer.get_delta_weight(each), name))
    return above
