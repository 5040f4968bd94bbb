"""Parameters with two roles, such as keys that are the values too: the role that is written first keeps them.

The products W_q W_kᵀ of every head and W_v W_o are what is asked for. Where one parameter is two of the four matrices,
or one of two layers, the product that comes second is left alone, and the report says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from structured_init.hosts.layout import AttentionLayout, Matrices, overlap, pieces
from structured_init.weights import Weights

PARTNER = {"query": "key", "key": "query", "value": "output", "output": "value"}
NAMES = {"query": "queries", "key": "keys", "value": "values", "output": "output projection"}


@dataclass(frozen=True)
class Role:
    """One matrix of one layer, ``"query"``, ``"key"``, ``"value"`` or ``"output"``."""

    name: str
    layout: AttentionLayout
    matrix: str

    @property
    def place(self) -> Matrices:
        """Where it is kept."""
        return getattr(self.layout, self.matrix)


def other_role(weights: Weights, role: Role) -> Role | None:
    """Return another role than its own in which numbers of a matrix were written before.

    A layer that is shared as a whole, under two names, has no other role.
    """
    partner = getattr(role.layout, PARTNER[role.matrix])
    for piece in pieces(role.place):
        for (name, matrix), other in weights.roles.get(id(piece.weight), {}).items():
            if (name, matrix) == (role.name, role.matrix) or not overlap(role.place, other.place):
                continue
            if matrix != role.matrix or not overlap(partner, getattr(other.layout, PARTNER[matrix])):
                return other
    return None


def record_role(weights: Weights, role: Role) -> None:
    """Record that a matrix was written."""
    for piece in pieces(role.place):
        weights.roles.setdefault(id(piece.weight), {})[role.name, role.matrix] = role


def meeting(weights: Weights, first: Role, second: Role) -> tuple[Role, Role] | None:
    """Return which of two matrices of a layer shares numbers with what: with each other, or with an earlier role."""
    if overlap(first.place, second.place):
        return first, second
    for role in (first, second):
        if (other := other_role(weights, role)) is not None:
            return role, other
    return None


def describe_clash(weights: Weights, role: Role, other: Role) -> str:
    """Say which parameter has which two roles."""
    name = weights.names(role.place.weight)[0]
    first, second = NAMES[role.matrix], NAMES[other.matrix]
    of, other_of = (f"'{each.name}'" if each.name else "the model" for each in (role, other))
    if role.name == other.name:
        return f"'{name}' is both the {first} and the {second} of {of}"
    return f"'{name}' is both the {first} of {of} and the {second} of {other_of}"


# What the report says of weights that several places share.


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
