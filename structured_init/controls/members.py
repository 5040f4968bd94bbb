"""What an initialization consists of: the literature's baselines and positions, and what is structured in it."""

from __future__ import annotations

from collections.abc import Iterator

from structured_init.attention.baseline import Default, KaimingUniform, TruncatedNormal, UniformProjections
from structured_init.attention.position import Positions
from structured_init.errors import StructuredInitError
from structured_init.initializer import Compose, Initializer

PLAIN = (Default, KaimingUniform, UniformProjections, TruncatedNormal, Positions)


def members(initializer: Initializer) -> Iterator[Initializer]:
    """Yield the initializers that a composition applies, in order; of any other one, itself."""
    if isinstance(initializer, Compose):
        for each in initializer.initializers:
            yield from members(each)
    else:
        yield initializer


def is_structured(initializer: Initializer) -> bool:
    """Tell whether an initialization writes more than a baseline and positions, so that it needs controls."""
    return not all(isinstance(each, (*PLAIN, Control)) for each in members(initializer))


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
