"""One line of a report."""

from __future__ import annotations

from dataclasses import dataclass

from structured_init.plan import Statistics


@dataclass(frozen=True)
class Entry:
    """One parameter, or one buffer that was set.

    Attributes:
        names: all its names; tied weights have several.
        shape: its full shape.
        set_by: who set it, in order; empty where it is as the host built it.
        before: statistics before; ``None`` where it was not set.
        after: statistics after; ``None`` where it was not set.
        trainable: whether it receives gradients.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    set_by: tuple[str, ...]
    before: Statistics | None
    after: Statistics | None
    trainable: bool
