"""Controls made of another initialization, and SamePositions: its positions alone."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from structured_init.attention import Positions
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import attention_sites
from structured_init.hosts.attention_positions import relative_bias
from structured_init.hosts.positions import sought_position_sites
from structured_init.initializer import Initializer, members
from structured_init.overlay import Above, Weights


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
    def samples_to_watch(self) -> int:
        return self.initializer.samples_to_watch

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
