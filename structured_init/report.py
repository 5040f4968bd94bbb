"""The report: accounts for every parameter of a model after it was initialized."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.files import write_json
from structured_init.names import named_plain_modules, plain_name
from structured_init.plan import Statistics, Weights
from structured_init.shared import note_shared, stale_magnitudes

UNTOUCHED = "as the host built it"


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


@dataclass
class InitReport:
    """What an initializer did to a model.

    Attributes:
        initializer: its ``repr``.
        seed: the seed of its draws.
        entries: every parameter in the order of the model, then the buffers that were set.
        skipped: sites that were left alone, and why.
        notes: sites where the host changes what an initialization means (a norm that erases its scale, …).
        warnings: what the user should look at.
        trainable_parameters: how many of the model's numbers are trained; tied ones count once, buffers do not.
        total_parameters: how many there are.
        measures: site → quantity → (before, after), where an initialization has effects of its own to show.
        attention: attention layers that an initializer's ``where`` selects → whether one wrote to them.
    """

    initializer: str
    seed: int
    entries: list[Entry]
    skipped: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    trainable_parameters: int = 0
    total_parameters: int = 0
    measures: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    attention: dict[str, bool] = field(default_factory=dict)

    @property
    def changed(self) -> list[Entry]:
        """The entries that were set."""
        return [entry for entry in self.entries if entry.set_by]

    @property
    def left(self) -> list[str]:
        """The attention layers that were selected and left alone; ``skipped`` says why."""
        return [name for name, taken in self.attention.items() if not taken]

    def table(self) -> str:
        """Return a Markdown table with a row per parameter; then what was measured, skipped, noted and warned of."""
        rows = [
            "| parameter | shape | set by | mean before → after | std before → after |",
            "|---|---|---|---|---|",
            *(_row(entry) for entry in self.entries),
        ]
        lists = [
            *(f"skipped {name}: {why}" for name, why in self.skipped.items()),
            *(f"note {name}: {what}" for name, what in self.notes.items()),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        counts = f"{self.trainable_parameters:,} of {self.total_parameters:,} parameters are trained"
        measured = _measured(self.measures)
        return "\n".join([self.summary(), counts, "", *rows, *measured, *([""] if lists else []), *lists])

    def summary(self) -> str:
        """Return one line: what was applied, how much of the model it set and which attention it left alone."""
        count = sum(_size(entry.shape) for entry in self.changed)
        total = sum(_size(entry.shape) for entry in self.entries)
        frozen = sum(not entry.trainable for entry in self.entries)
        return (
            f"{self.initializer}, seed {self.seed}: set {len(self.changed)} of {len(self.entries)} tensors "
            f"({count:,} of {total:,} numbers){f', {frozen} frozen' if frozen else ''}"
            f"{f'; {left_alone(self)}' if self.left else ''}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        return json.loads(json.dumps(asdict(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON; an older file is replaced only when the new one is whole."""
        write_json(path, self.to_dict())

    def __str__(self) -> str:
        return self.table()


def left_alone(report: InitReport, limit: int = 3) -> str:
    """Say how much of the attention was left alone, and name the first few layers with the reason."""
    few = [f"{name} ({report.skipped.get(name, 'skipped')})" for name in report.left[:limit]]
    more = ", …" if len(report.left) > limit else ""
    return f"{len(report.left)} of {len(report.attention)} attention layers left alone: {', '.join(few)}{more}"


def build_report(
    weights: Weights, initializer: object, seed: int, changes: Iterable[tuple[Tensor, bool]] = ()
) -> InitReport:
    """Account for every parameter of the overlay's model, and for the buffers that were set."""
    future = {id(tensor): trainable for tensor, trainable in changes}
    sizes = [(each.numel(), future.get(id(each), each.requires_grad)) for each in weights.model.parameters()]
    note_shared(weights)
    warnings = [*weights.warnings, *stale_magnitudes(weights)]
    if any(update.by for update in weights.updates.values()) and (name := trained_norm(weights)):
        warnings.append(f"the weights look trained ('{name}' is not as a library builds it) and were overwritten")
    report = InitReport(
        initializer=repr(initializer),
        seed=seed,
        entries=[_entry(weights, tensor, names, future) for tensor, names in _accounted(weights)],
        # What one part of a Compose leaves alone and another writes is not skipped.
        skipped={name: why for name, why in weights.skipped.items() if not weights.attention.get(name, False)},
        notes=dict(weights.notes),
        warnings=warnings,
        trainable_parameters=sum(size for size, trainable in sizes if trainable),
        total_parameters=sum(size for size, _ in sizes),
        measures={name: dict(values) for name, values in weights.measures.items()},
        attention=dict(weights.attention),
    )
    if 2 * len(report.left) > len(report.attention):
        report.warnings.append(left_alone(report))
    return report


def trained_norm(weights: Weights) -> str | None:
    """Return the first normalization weight that is not constant: every library builds them constant."""
    for name, module in named_plain_modules(weights.model):
        weight = getattr(module, "weight", None)
        if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter) or weight.is_meta:
            continue
        set_by_us = id(weight) in weights.updates
        if weight.numel() > 1 and not set_by_us and bool((weight.detach() != weight.detach().flatten()[0]).any()):
            return f"{name}.weight"
    return None


def _accounted(weights: Weights) -> Iterable[tuple[Tensor, tuple[str, ...]]]:
    for parameter in weights.model.parameters():
        yield parameter, weights.names(parameter)
    for name, buffer in weights.model.named_buffers():
        if id(buffer) in weights.updates:
            yield buffer, (plain_name(name, weights.model),)


def _entry(weights: Weights, tensor: Tensor, names: tuple[str, ...], future: dict[int, bool]) -> Entry:
    update = weights.updates.get(id(tensor))
    trainable = future.get(id(tensor), tensor.requires_grad)
    if update is None:
        return Entry(names, tuple(tensor.shape), (), None, None, trainable)
    return Entry(names, tuple(tensor.shape), tuple(update.by), update.before, update.after, trainable)


def _row(entry: Entry) -> str:
    name = " = ".join(entry.names) + ("" if entry.trainable else " (frozen)")
    shape = "×".join(map(str, entry.shape)) or "scalar"
    if entry.before is None or entry.after is None:
        return f"| {name} | {shape} | {UNTOUCHED} | | |"
    mean = f"{entry.before.mean:.3g} → {entry.after.mean:.3g}"
    std = f"{entry.before.std:.3g} → {entry.after.std:.3g}"
    return f"| {name} | {shape} | {'; '.join(entry.set_by)} | {mean} | {std} |"


def _measured(measures: dict[str, dict[str, tuple[float, float]]]) -> list[str]:
    """Return a Markdown table with a row per site and quantity; nothing where nothing was measured."""
    rows = [
        f"| {site} | {quantity} | {before:.4g} → {after:.4g} |"
        for site, values in measures.items()
        for quantity, (before, after) in values.items()
    ]
    return ["", "| site | measure | before → after |", "|---|---|---|", *rows] if rows else []


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
