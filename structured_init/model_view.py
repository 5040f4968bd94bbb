"""A model as its overlays see it: its modules, what it can be run on, and what one forward pass has shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor, nn

from structured_init.util.names import named_plain_modules

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """What one forward pass has shown of a model; nothing where there could be none.

    Attributes:
        layers: its attention, each a ``hosts.watching.FoundAttention``, in calling order.
        added: tables with a row for every token that were added to tokens, each an ``Added``.
        resized: tables that were resized to other numbers before they were added.
        one_row: tables that were looked up, by identity → whether all tokens got one row.
        ran: the modules that it ran; ``None`` where there was no pass.
        why_not: why there was none.
    """

    layers: list = field(default_factory=list)
    added: list = field(default_factory=list)
    resized: list[Tensor] = field(default_factory=list)
    one_row: Mapping[int, bool] = field(default_factory=dict)
    ran: set[str] | None = None
    why_not: str | None = None


class ModelView:
    """What all overlays of a model share.

    Args:
        model: any module.
        batch: what it takes; or a function that gives it, which is called only when it is needed.

    Attributes:
        seen: what a forward pass has shown; ``None`` before anybody asked for one.
    """

    def __init__(self, model: nn.Module, batch: object = None) -> None:
        self.model = model
        self._given = batch
        self.seen: Seen | None = None
        self._kept: dict[str, tuple[object, Any]] = {}

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """Every module by its plain name, in order."""
        return dict(named_plain_modules(self.model))

    @property
    def batch(self) -> object:
        """What the model takes; ``None`` where nobody gave it, or it is only offered."""
        return None if callable(self._given) else self._given

    @property
    def can_ask(self) -> bool:
        """Whether a batch was given, or somebody is there to be asked for one."""
        return self._given is not None

    def ask(self) -> object:
        """Return the batch, and ask for it where it is only offered; ``None`` where there is none to be had.

        Raises:
            StructuredInitError: whoever was asked has none.
        """
        if callable(self._given):
            self._given = self._given()
        return self._given

    def search_once(self, what: str, known: Callable[[], object], search: Callable[[], T]) -> T:
        """Return what a search has found, which is made again when what is ``known`` is no longer what it was."""
        if what not in self._kept or self._kept[what][0] != known():
            found = search()
            self._kept[what] = known(), found  # the search itself may have run the model
        return self._kept[what][1]
