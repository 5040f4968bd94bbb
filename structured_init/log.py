"""What initializers say of what they did, for the report: what was left alone, what hosts do, what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Log:
    """What is recorded during one initialization."""

    def __init__(self) -> None:
        self.skipped: dict[str, str] = {}  # site → why it was left alone
        self.attention: dict[str, bool] = {}  # attention layer that was looked for → whether an initializer takes it
        self.said: list[tuple[str, str]] = []  # site, what its host does that changes what an initializer means there
        self.about = ""  # what notes and warnings begin with at present
        self.warnings: list[str] = []  # what the user should look at
        self.short: list[str] = []  # of these, those that say that less was reached than was asked for
        self.measures: dict[str, dict[str, tuple[float, float]]] = {}  # site → quantity → (before, after)
        self.written: list[int] = []  # identities of tensors that were written, in order and as often
        self.assignments: list[tuple[str, str]] = []  # layers, and which of their matrices were written, in order
        # identity of a parameter → (layer, matrix) that was written in it → its ``hosts.shared.Role``
        self.roles: dict[int, dict[tuple[str, str], Any]] = {}
        self.refused: dict[str, str] = {}  # who → why a part of it could not be written to some layer

    def skip(self, name: str, why: str) -> None:
        """Record a site that was left alone and why."""
        self.skipped[name] = why

    def sought(self, taken: Iterable[str], selected: Iterable[str]) -> None:
        """Record which attention layers an initializer takes, of those that its ``where`` selects."""
        for name in selected:
            self.attention.setdefault(name, False)
        self.attention.update(dict.fromkeys(taken, True))

    def note(self, name: str, what: str) -> None:
        """Record something the host does that changes what an initializer means there."""
        self.said.append((name, self.about + what))

    @property
    def notes(self) -> dict[str, str]:
        """Site → all that was noted of it, each once."""
        notes: dict[str, list[str]] = {}
        for name, what in dict.fromkeys(self.said):
            notes.setdefault(name, []).append(what)
        return {name: "; ".join(each) for name, each in notes.items()}

    def warn(self, what: str) -> None:
        """Record what the user should look at."""
        if self.about + what not in self.warnings:
            self.warnings.append(self.about + what)

    def fall_short(self, what: str) -> None:
        """Warn that much less was reached than was asked for, which ``strict`` refuses."""
        self.warn(what)
        self.short.append(what)

    def assign(self, name: str, matrix: str) -> None:
        """Record that a matrix of a layer was written: ``"query"``, ``"value"``, …, of a state space ``"B"``."""
        self.assignments.append((name, matrix))
        self.attention.update({name: True} if name in self.attention else {})

    def assigned(self) -> set[str]:
        """Return the layers of which a matrix was written."""
        return {name for name, _ in self.assignments}

    def measure(self, name: str, values: Mapping[str, tuple[float, float]]) -> None:
        """Record what an initialization did to a site beyond its entries' statistics: quantity → (before, after)."""
        earlier = self.measures.setdefault(name, {})
        for quantity, (before, after) in values.items():
            earlier[quantity] = (earlier.get(quantity, (before,))[0], after)
