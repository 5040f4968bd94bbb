"""The report: accounts for every parameter of a model after it was initialized."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.entry import Entry
from structured_init.files import write_json
from structured_init.made_by import made_by
from structured_init.names import named_plain_modules, plain_name
from structured_init.plan import Weights
from structured_init.report_lines import alike, html, set_lines, text, unset_blocks
from structured_init.shared import note_shared, stale_magnitudes
from structured_init.sites.position import position_sites
from structured_init.storage import uninitialized
from structured_init.writer import full_value

UNTOUCHED = "as the host built it"


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
        unset_positions: positions that the host built and that an initialization of attention left as they are.
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
    unset_positions: list[str] = field(default_factory=list)

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
        counts = _counts(self)
        measured = _measured(self.measures)
        return "\n".join([self.summary(), counts, "", *rows, *measured, *([""] if lists else []), *lists])

    def summary(self) -> str:
        """Return one line: what was applied, how much of the model it set, and what it skipped or left alone."""
        count = sum(_size(entry.shape) for entry in self.changed)
        total = sum(_size(entry.shape) for entry in self.entries)
        frozen = sum(not entry.trainable for entry in self.entries)
        return (
            f"{self.initializer}, seed {self.seed}: set {len(self.changed)} of {len(self.entries)} tensors "
            f"({count:,} of {total:,} numbers){f', {frozen} frozen' if frozen else ''}"
            f"{f'; {left_alone(self)}' if self.left else ''}{skipped_parts(self)}{unset_positions(self)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        return json.loads(json.dumps(asdict(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, with what made it; an older file is replaced only when the new one is whole."""
        write_json(path, {"made_by": made_by(), **self.to_dict()})

    def __str__(self) -> str:
        return text([self.summary(), _counts(self)], set_lines(self.entries), _remarks(self))

    def _repr_html_(self) -> str:
        return html(self.summary(), set_lines(self.entries), _remarks(self))


def left_alone(report: InitReport, limit: int = 3) -> str:
    """Say how much of the attention was left alone, and name the first few layers with the reason."""
    few = [f"{name} ({report.skipped.get(name, 'skipped')})" for name in report.left[:limit]]
    more = ", …" if len(report.left) > limit else ""
    return f"{len(report.left)} of {len(report.attention)} attention layers left alone: {', '.join(few)}{more}"


def skipped_parts(report: InitReport, limit: int = 3) -> str:
    """Name the first few sites that were skipped and are not attention left alone, with the reason."""
    others = [f"{name} ({why})" for name, why in report.skipped.items() if name not in report.left]
    more = f", … {len(others) - limit} more" if len(others) > limit else ""
    return f"; skipped {', '.join(others[:limit])}{more}" if others else ""


def unset_positions(report: InitReport) -> str:
    """Name the positions that an initialization of attention left to the host."""
    names = ", ".join(report.unset_positions)
    return f"; positions as the host built them: {names}" if names else ""


def build_report(
    weights: Weights, initializer: object, seed: int, changes: Iterable[tuple[Tensor, bool]] = ()
) -> InitReport:
    """Account for every parameter of the overlay's model, and for the buffers that were set."""
    future = {id(tensor): trainable for tensor, trainable in changes}
    sizes = [(each.numel(), future.get(id(each), each.requires_grad)) for each in weights.model.parameters()]
    note_shared(weights)
    warnings = [*weights.warnings, *stale_magnitudes(weights)]
    if any(update.by for update in weights.updates.values()):
        warnings += _odd_norms(weights)
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
        unset_positions=_unset_positions(weights),
    )
    if 2 * len(report.left) > len(report.attention):
        report.warnings.append(left_alone(report))
    return report


def _odd_norms(weights: Weights) -> Iterator[str]:
    """Say of normalization weights that are not as a library builds them what they are."""
    if (name := trained_norm(weights)) is not None:
        yield (
            f"the weights look trained ('{name}' is not constant, as libraries build it, or is memory that nobody "
            "wrote to, as after to_empty) and were overwritten"
        )
    bare = {name: why for name, why in _uneven_norms(weights) if why is not None}
    if bare:
        first, why = next(iter(bare.items()))
        beside = f", and {len(bare) - 1} more" if len(bare) > 1 else ""
        yield f"'{first}'{beside} was never initialized, as after to_empty: {why}"


def trained_norm(weights: Weights) -> str | None:
    """Return the first normalization weight that is not constant, though somebody has written to it."""
    return next((name for name, why in _uneven_norms(weights) if why is None), None)


def _uneven_norms(weights: Weights) -> Iterator[tuple[str, str | None]]:
    """Yield normalization weights that are not constant, and why they look like bare memory, where they do."""
    for name, module in named_plain_modules(weights.model):
        weight = getattr(module, "weight", None)
        if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter) or weight.is_meta:
            continue
        if weight.numel() != max(weight.shape, default=0) or id(weight) in weights.updates:  # a table, or set by us
            continue
        value = full_value(weight, f"{name}.weight").flatten().to(weight.dtype)
        if bool((value != value[:1]).any()):
            yield f"{name}.weight", uninitialized(value)


def _unset_positions(weights: Weights) -> list[str]:
    """Return the positions that no part wrote; none where no attention was written either."""
    if not any(weights.attention.values()):
        return []
    return [site.name for site in position_sites(weights) if id(site.tensor) not in weights.updates]


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


def _counts(report: InitReport) -> str:
    trained, total = report.trainable_parameters, report.total_parameters
    return f"{f'all {total:,}' if trained == total else f'{trained:,} of {total:,}'} parameters are trained"


def _remarks(report: InitReport) -> list[str]:
    """Return what was not set, measured, skipped, noted and warned of; equal remarks on several layers as one."""
    unset = unset_blocks(report.entries)
    measured = {
        site: "; ".join(f"{quantity} {before:.4g} → {after:.4g}" for quantity, (before, after) in values.items())
        for site, values in report.measures.items()
    }
    return [
        *([f"as the host built them: {', '.join(unset)}"] if unset else []),
        *(f"measured {site}: {what}" for site, what in measured.items()),
        *(f"skipped {name}: {why}" for name, why in alike(report.skipped)),
        *(f"note {name}: {what}" for name, what in alike(report.notes)),
        *(f"warning: {warning}" for warning in report.warnings),
    ]


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
