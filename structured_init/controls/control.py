"""Controls made of another initialization: SamePositions, its positions alone; RandomOffset, which looks elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from structured_init.attention import Impulse, Positions, PreviousToken
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import AttentionSite, attention_sites
from structured_init.hosts.attention_positions import relative_bias
from structured_init.hosts.positions import sought_position_sites
from structured_init.initializer import Initializer, members
from structured_init.overlay import Above, Weights
from structured_init.running import as_inputs, tokens_in


def is_structured(initializer: Initializer) -> bool:
    """Tell whether an initialization writes more than a baseline and positions, so that it needs controls."""
    return not all(each.baseline or isinstance(each, (Positions, Control)) for each in members(initializer))


class Control(Initializer):
    """An initialization made of another one.

    Args:
        initializer: the other one, with anything structured in it.

    Raises:
        StructuredInitError: at construction, ``initializer`` is none, or has nothing but a baseline and positions.
    """

    def __init__(self, initializer: Initializer) -> None:
        name = type(self).__name__
        if not isinstance(initializer, Initializer):
            raise StructuredInitError(f"{name} takes an Initializer object such as Mimetic(), got {initializer!r}")
        if not is_structured(initializer):
            raise StructuredInitError(
                f"{name}: {initializer!r} writes only a baseline and positions, so there is nothing to control for"
            )
        self.initializer = initializer

    @property
    def needs_batch(self) -> bool:
        return self.initializer.needs_batch

    @property
    def needs_batches(self) -> int:
        return self.initializer.needs_batches

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        return self.initializer.freezing(weights)


class SamePositions(Control):
    """The positions that another initializer writes, with the host's matrices: the control for positions.

    Positions alone give much of what is published for structured attention. This one draws exactly the positions that
    the other initializer draws, and the baseline of the same ``Compose``, and leaves the rest to the host. Token
    embeddings count as positions where the other one writes them (``PreviousToken`` under rotary positions).

    Args:
        initializer: the other one.

    Raises:
        StructuredInitError: at construction, ``initializer`` has nothing structured in it; at :meth:`plan`, it wrote no
            positions.

    Example:
        >>> report = initialize(model, SamePositions(PreviousToken()), seed=0)

    Source: ours.
    """

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        above, kept = Above(weights), 0
        kinds = {id(tensor) for tensor in _positions(weights)}
        for member in members(self.initializer):
            if not is_structured(member):
                member.plan(weights, rng=rng, batch=batch)
                kept += isinstance(member, Positions)
                continue
            before = {key: len(update.by) for key, update in above.updates.items()}
            member.plan(above, rng=rng, batch=batch)
            tables = _tables(above)  # of relative positions: what a head looks at is written into them
            for key, update in above.updates.items():
                if key in kinds - tables and len(update.by) > before.get(key, 0):
                    weights.write(update.target, update.value, f"SamePositions: of {type(member).__name__}")
                    kept += 1
            weights.flush()
        if not kept:
            why = "writes no positions of this model: it has no such control"
            raise StructuredInitError(f"SamePositions: {self.initializer!r} {why}")

    def freezing(self, weights: Weights) -> Iterable[tuple[Tensor, bool]]:
        kinds = {id(tensor) for tensor in _positions(weights)}
        for member in members(self.initializer):
            for tensor, trainable in member.freezing(weights):
                if not is_structured(member) or id(tensor) in kinds:
                    yield tensor, trainable


def _positions(weights: Weights) -> list[Tensor]:
    """Return what an initializer may say about positions with: position and token embeddings."""
    tensors = [site.tensor for site in sought_position_sites(weights)]
    return tensors + [each.weight for each in weights.modules.values() if isinstance(each, nn.Embedding)]


def _tables(weights: Weights) -> set[int]:
    """Return the ids of relative-bias tables, which some hosts keep as embeddings."""
    sites = attention_sites(weights) if weights.attention else []  # none where nobody looked for attention
    found = (relative_bias(site, weights) for site in sites)
    return {id(each.table) for each in found if each is not None}


class RandomOffset(Control):
    """Heads of another initializer that look at offsets, at others drawn at random: the control for where they look.

    ``Impulse`` lets each head look at a neighbour on the grid, ``PreviousToken`` at the tokens before. This one is the
    same initialization with the same solver, positions and values, and heads that look elsewhere. Each head draws an
    offset of its own, uniformly, of at most half of the tokens along each axis (of a text, also of half of those that
    the batch has, where one is given); those that the other initializer may take are left out. Under a causal mask,
    offsets lead back. A query whose target lies outside of the grid looks at the last position inside, so that
    attention stays sharp.

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
                member = _Elsewhere(member)
            member.plan(weights, rng=rng, batch=batch)


class _RandomImpulse(Impulse):
    """An ``Impulse`` whose heads draw from the whole grid, what lies in the other's kernel apart."""

    def __init__(self, other: Impulse) -> None:
        self.__dict__.update(vars(other))
        self.border = "clamp"

    def head_offsets(self, site: AttentionSite, rng: Draws) -> Int[Tensor, "heads 2"]:
        rows, columns = (size // 2 for size in site.grid or (0, 0))
        near = self.kernel_size // 2
        every = product(range(-rows, rows + 1), range(-columns, columns + 1))
        far = [offset for offset in every if max(map(abs, offset)) > near]
        return torch.tensor(_drawn(far, site.num_heads, rng.generator(self._name(site), "RandomOffset"), site))


class _Elsewhere(PreviousToken):
    """A ``PreviousToken`` with an offset drawn for each head that the other one writes, layer by layer."""

    def __init__(self, other: PreviousToken) -> None:
        self.__dict__.update(vars(other))

    def layers(self, weights: Weights, rng: Draws) -> list[Any]:
        drawn: dict[object, list[tuple[int, int] | None]] = {}  # layers that share a table look at the same tokens
        found = []
        for layer in super().layers(weights, rng):
            if layer.kind == "alibi":
                raise StructuredInitError(
                    f"RandomOffset: ALiBi decays with distance: heads of '{layer.site.name}' can look at offset 1 alone"
                )
            table = layer.positions.relative
            key = layer.site.name if table is None else id(table.table)
            if key not in drawn:
                drawn[key] = _elsewhere(layer, weights, rng)
            found.append(replace(layer, offsets=drawn[key], gain=self.gain_in(layer)))  # positions are the other one's
        return found


def _elsewhere(layer: Any, weights: Weights, rng: Draws) -> list[tuple[int, int] | None]:
    """Draw an offset for each head of a layer that is written, at none of those that are asked for."""
    rows, columns = (size // 2 for size in layer.size)
    taken, far = {*layer.offsets, (0, 0)}, []
    seen = tokens_in(as_inputs(weights.batch)) // 2 if rows == 0 and weights.batch is not None else 0
    for most in (min(seen or columns, columns), columns):  # what a short batch leaves, else what the context does
        every = product(range(-rows, rows + 1), range(1 if layer.causal else -most, most + 1))
        far = far or [offset for offset in every if offset not in taken]
    drawn = iter(_drawn(far, len(layer.offsets), rng.generator(layer.site.name, "RandomOffset"), layer.site))
    return [None if each is None else next(drawn) for each in layer.offsets]


def _drawn(
    offsets: list[tuple[int, int]], number: int, generator: torch.Generator, site: AttentionSite
) -> list[tuple[int, int]]:
    """Draw offsets uniformly, with replacement."""
    if not offsets:
        raise StructuredInitError(f"RandomOffset: the tokens of '{site.name}' leave no other offset to look at")
    chosen = torch.randint(0, len(offsets), (number,), generator=generator)
    return [offsets[index] for index in chosen.tolist()]
