"""RandomOffset: what looks at offsets, at others drawn at random: as sharp and as regular, and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import torch
from jaxtyping import Int
from torch import Tensor

from structured_init.attention import Impulse, PreviousToken
from structured_init.controls.control import Control, members
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import AttentionSite
from structured_init.initializer import Initializer
from structured_init.overlay import Weights


class RandomOffset(Control):
    """Heads of another initializer that look at offsets, at others drawn at random: the control for where they look.

    ``Impulse`` lets each head look at a neighbour on the grid, ``PreviousToken`` at the tokens before. This one is the
    same initialization with the same solver, positions and values, and heads that look elsewhere. Each head draws an
    offset of its own, uniformly, of at most half of the tokens along each axis; those that the other initializer may
    take are left out. Under a causal mask, offsets lead back. A query whose target lies outside of the grid looks at
    the last position inside, so that attention stays sharp.

    Args:
        initializer: the other one: ``Impulse`` or ``PreviousToken``, or a ``Compose`` with one of them, whose other
            members write what they always do.

    Raises:
        StructuredInitError: at construction, ``initializer`` has no such heads; at :meth:`plan`, the tokens leave no
            other offset, or the host cannot look at any (ALiBi).

    Example:
        >>> report = initialize(model, RandomOffset(PreviousToken()), seed=0)

    Source: ours.
    """

    def __init__(self, initializer: Initializer) -> None:
        super().__init__(initializer)
        if not any(isinstance(each, Impulse | PreviousToken) for each in members(initializer)):
            raise StructuredInitError(
                f"RandomOffset: {initializer!r} has no heads that look at offsets, as Impulse and PreviousToken have"
            )

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        for member in members(self.initializer):
            if isinstance(member, Impulse):
                member = _RandomImpulse(member)
            elif isinstance(member, PreviousToken):
                member = _looking_elsewhere(member, weights, rng)
            member.plan(weights, rng=rng, batch=batch)

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return self.initializer.freezing(weights)


class _RandomImpulse(Impulse):
    """An ``Impulse`` whose heads draw from the whole grid, what lies in the other's kernel apart."""

    def __init__(self, other: Impulse) -> None:
        self.__dict__.update(vars(other))
        self.border = "clamp"

    def head_offsets(self, site: AttentionSite, rng: Draws) -> Int[Tensor, "heads 2"]:
        rows, columns = (size // 2 for size in site.grid or (0, 0))
        near = self.kernel_size // 2
        far = [
            (row, column)
            for row in range(-rows, rows + 1)
            for column in range(-columns, columns + 1)
            if max(abs(row), abs(column)) > near
        ]
        return torch.tensor(_drawn(far, site.num_heads, rng.generator(self._name(site), "RandomOffset"), site))


def _looking_elsewhere(other: PreviousToken, weights: Weights, rng: Draws) -> PreviousToken:
    """Return a ``PreviousToken`` with an offset drawn for each head that the other one writes."""
    layer, *_ = other.layers(weights, rng)
    rows, columns = (size // 2 for size in layer.size)
    taken = {*layer.offsets, (0, 0)}
    far = [
        (row, column)
        for row in range(-rows, rows + 1)
        for column in range(1 if layer.causal else -columns, columns + 1)
        if (row, column) not in taken
    ]
    drawn = iter(_drawn(far, len(layer.offsets), rng.generator(layer.site.name, "RandomOffset"), layer.site))
    elsewhere = copy(other)
    elsewhere.offsets = [None if each is None else list(next(drawn)) for each in layer.offsets]
    return elsewhere


def _drawn(
    offsets: list[tuple[int, int]], number: int, generator: torch.Generator, site: AttentionSite
) -> list[tuple[int, int]]:
    """Draw offsets uniformly, with replacement."""
    if not offsets:
        raise StructuredInitError(f"RandomOffset: the tokens of '{site.name}' leave no other offset to look at")
    chosen = torch.randint(0, len(offsets), (number,), generator=generator)
    return [offsets[index] for index in chosen.tolist()]
