"""The report: accounts for every parameter of a model after it was initialized, as text and JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from torch import Tensor, nn

from structured_init.hosts.positions import NOT_IN_ORDER, position_sites
from structured_init.hosts.shared import note_shared
from structured_init.odd_weights import odd_weights
from structured_init.util.files import made_by, write_json
from structured_init.util.names import block_of, folded_name, plain_name, wrapped
from structured_init.weights import Statistics, Update, Weights

NAMED = 3  # layers that a summary names of those that were left alone


@dataclass(frozen=True)
class Entry:
    """One parameter, or one buffer that was set.

    Attributes:
        names: all its names; tied weights have several.
        shape: its full shape.
        set_by: who set it, in order; empty where it was left as it was.
        before: statistics before; ``None`` where it was not set.
        after: statistics after; ``None`` where it was not set.
        trainable: whether it receives gradients; ``None`` for a buffer, which is not trained and not frozen.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    set_by: tuple[str, ...]
    before: Statistics | None
    after: Statistics | None
    trainable: bool | None

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass
class InitReport:
    """What an initializer did to a model.

    Attributes:
        initializer: its ``repr``, with every argument.
        differs: the same with the arguments alone that differ from their defaults, with which the text begins.
        seed: the seed of its draws.
        entries: every parameter in the order of the model, then the buffers that were set.
        skipped: sites that were left alone, and why.
        notes: sites where the host changes what an initialization means (queries and keys that are normalized, …).
        warnings: what the user should look at.
        trainable_parameters: how many of the model's numbers are trained; tied ones count once, buffers do not.
        total_parameters: how many there are.
        measures: site → quantity → (before, after), where an initialization has effects of its own to show.
        attention: attention layers that an initializer's ``where`` selects → whether one wrote to them.
        unset_positions: positions that an initialization of attention left as they were.
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
    differs: str = ""

    @property
    def changed(self) -> list[Entry]:
        """The entries that were set."""
        return [entry for entry in self.entries if entry.set_by]

    @property
    def left(self) -> list[str]:
        """The attention layers that were selected and left alone; ``skipped`` says why."""
        return [name for name, taken in self.attention.items() if not taken]

    def left_alone(self) -> str:
        """Say how much of the attention was left alone, and name the first few layers with the reason."""
        named = [f"{name} ({self.skipped.get(name, 'skipped')})" for name in self.left]
        return f"{len(self.left)} of {len(self.attention)} attention layers left alone: {_first(named)}"

    def summary(self) -> str:
        """Return one line: what was applied, how much of the model each part of it set, warnings, and what was left."""
        parts = [self._set()]
        if self.warnings:
            parts.append(f"{len(self.warnings)} warning{'s' * (len(self.warnings) > 1)}: {self.warnings[0]}")
        if self.left:
            parts.append(self.left_alone())
        others = [f"{name} ({why})" for name, why in self.skipped.items() if name not in self.left]
        if others:
            parts.append(f"skipped {_first(others)}")
        if self.unset_positions:
            parts.append(f"positions left as they were: {', '.join(self.unset_positions)}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        return json.loads(json.dumps(asdict(self)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, with what made it; an older file is replaced only when the new one is whole."""
        write_json(path, {"made_by": made_by(), **self.to_dict()})

    def __str__(self) -> str:
        blocks = block_lines(self.entries)
        width = min(32, max((len(name) for name, _ in blocks), default=0))
        rows = [f"{name:<{width}}  {text}" for name, text in blocks]
        touched = {block_of(entry.names[0]) for entry in self.changed}
        untouched = [block for entry in self.entries if (block := block_of(entry.names[0])) not in touched]
        frozen = [entry.names[0] for entry in self.entries if entry.trainable is False]
        remarks = []
        if untouched:
            remarks.append(f"left as they were: {_folded(untouched)}")
        if frozen:
            remarks.append(f"frozen: {_folded(frozen)}")
        sites: dict[tuple[str, str, str], list[str]] = {}  # the same remark of several layers is one line
        for kind, site, text in self._remarks():
            sites.setdefault((kind, _numberless(site), text), []).append(site)
        for (kind, _, text), named in sites.items():
            remarks.append(f"{kind} {folded_name(named)}".strip() + f": {text}")
        trained, total = self.trainable_parameters, self.total_parameters
        share = f"all {total:,}" if trained == total else f"{trained:,} of {total:,}"
        head = [self._set(), f"{share} parameters are trained"]
        paragraphs = ["\n".join(lines) for lines in (head, rows, remarks)]
        return wrapped("\n\n".join(filter(None, paragraphs)))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _set(self) -> str:
        """Return how much was set, and by each initializer in how many tensors."""
        of = f"set {len(self.changed)} of {len(self.entries)} tensors"
        numbers = f"{_size(self.changed):,} of {_size(self.entries):,} numbers"
        title = f"{self.differs or self.initializer}, seed {self.seed}: {of} ({numbers})"
        frozen = sum(entry.trainable is False for entry in self.entries)
        if frozen:
            title += f", {frozen} frozen"
        counts = Counter(part for entry in self.changed for part in entry.set_by)
        return "; ".join([title, *_by_initializer(f"{part} in {number}" for part, number in counts.items())])

    def _remarks(self) -> list[tuple[str, str, str]]:
        """Return what was measured, skipped, noted and warned of, each as kind, site and text."""
        remarks = []
        for site, values in self.measures.items():
            changes = [f"{quantity} {before:.4g} → {after:.4g}" for quantity, (before, after) in values.items()]
            remarks.append(("measured", site, "; ".join(changes)))
        remarks += [("skipped", site, why) for site, why in self.skipped.items()]
        remarks += [("note", site, what) for site, what in self.notes.items()]
        remarks += [("warning", "", what) for what in self.warnings]
        return remarks


def build_report(
    weights: Weights, initializer: str, differs: str, seed: int, changes: Iterable[tuple[Tensor, bool]] = ()
) -> InitReport:
    """Account for every parameter of the overlay's model, and for the buffers that were set.

    Args:
        weights: the overlay, flushed.
        initializer: the initializer with every argument.
        differs: the same with those that differ from their defaults.
        seed: of the draws.
        changes: parameters, and whether they will be trained, where the initializer says so.
    """
    future = {id(tensor): trainable for tensor, trainable in changes}
    parameters = list(weights.model.parameters())
    trained = [each for each in parameters if future.get(id(each), each.requires_grad)]
    note_shared(weights)
    warnings = [*weights.warnings, *odd_weights(weights)]
    # What one part of a Compose leaves alone and another writes is not skipped.
    skipped = {name: why for name, why in weights.skipped.items() if not weights.attention.get(name, False)}
    notes = dict(weights.notes)
    # Of positions it is only said that they were not set where attention was; asking for them adds to the notes.
    positions = position_sites(weights) if any(weights.attention.values()) else []
    unset = [site.name for site in positions if id(site.tensor) not in weights.updates]
    unset += [name for name, why in weights.skipped.items() if why == NOT_IN_ORDER]
    report = InitReport(
        initializer=initializer,
        differs=differs,
        seed=seed,
        entries=_entries(weights, future),
        skipped=skipped,
        notes=notes,
        warnings=warnings,
        trainable_parameters=sum(each.numel() for each in trained),
        total_parameters=sum(each.numel() for each in parameters),
        measures={name: dict(values) for name, values in weights.measures.items()},
        attention=dict(weights.attention),
        unset_positions=unset,
    )
    if 2 * len(report.left) > len(report.attention):
        report.warnings.append(report.left_alone())
    return report


def _entries(weights: Weights, future: Mapping[int, bool]) -> list[Entry]:
    """Return an entry for every parameter, then for every buffer that was set."""
    tensors = [(parameter, weights.names(parameter)) for parameter in weights.model.parameters()]
    for name, buffer in weights.model.named_buffers():
        if id(buffer) in weights.updates:
            tensors.append((buffer, (plain_name(name, weights.model),)))
    entries = []
    for tensor, names in tensors:
        update = weights.updates.get(id(tensor), Update(tensor, None))
        trainable = None
        if isinstance(tensor, nn.Parameter):
            trainable = future.get(id(tensor), tensor.requires_grad)
        shape, by = tuple(tensor.shape), tuple(update.by)
        entries.append(Entry(names, shape, by, update.before, update.after, trainable))
    return entries


def block_lines(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return (block, what was set in it); neighbouring blocks that were treated alike are one."""
    blocks: dict[str, list[Entry]] = {}
    for entry in entries:
        blocks.setdefault(block_of(entry.names[0]), []).append(entry)
    runs: list[tuple[object, list[str]]] = []
    for block, inside in blocks.items():
        if not any(entry.set_by for entry in inside):
            continue
        treated = [(_inside(entry, block), entry.shape, entry.set_by) for entry in inside]
        treatment = _numberless(block), treated
        if not runs or runs[-1][0] != treatment:
            runs.append((treatment, []))
        runs[-1][1].append(block)
    return [(folded_name(run), _what_was_set({block: blocks[block] for block in run})) for _, run in runs]


def _what_was_set(blocks: Mapping[str, Sequence[Entry]]) -> str:
    """Say what was set in blocks that were treated alike, grouped by who set it."""
    groups: dict[tuple[str, ...], list[tuple[str, Entry]]] = {}
    for block, entries in blocks.items():
        for entry in entries:
            groups.setdefault(entry.set_by, []).append((_inside(entry, block), entry))
    left = groups.pop((), [])
    texts = []
    for set_by, named in groups.items():
        names, entries = zip(*named, strict=True)
        before = _span([entry.before.std for entry in entries])
        after = _span([entry.after.std for entry in entries])
        text = f"{_folded(names)} [{' + '.join(_by_initializer(set_by))}] std {before} → {after}".strip()
        means = [entry.after.mean for entry in entries if _is_shifted(entry)]
        if means:
            text += f" (mean {_span(means)})"
        texts.append(text)
    if left:
        texts.append(f"{len(left) // len(blocks)} more left as they were")  # as many in every block
    return "; ".join(texts)


def _is_shifted(entry: Entry) -> bool:
    """Say whether the mean is as much of a tensor as its spread, and not by chance: some standard errors of it."""
    chance = 5 / math.sqrt(max(entry.size, 1))
    return abs(entry.after.mean) > (0.25 + chance) * entry.after.std


def _by_initializer(parts: Iterable[str]) -> list[str]:
    """Name each initializer once, with all of its parts: ``Mimetic: query_key, positions``."""
    inside: dict[str, list[str]] = {}
    for text in parts:
        initializer, colon, part = text.rpartition(": ")
        inside.setdefault(initializer + colon, []).append(part)
    return [initializer + ", ".join(names) for initializer, names in inside.items()]


def _size(entries: Iterable[Entry]) -> int:
    return sum(entry.size for entry in entries)


def _inside(entry: Entry, block: str) -> str:
    return entry.names[0].removeprefix(block).lstrip(".").removesuffix(".weight")


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _first(texts: Sequence[str]) -> str:
    more = [f"… {len(texts) - NAMED} more"] if len(texts) > NAMED else []
    return ", ".join([*texts[:NAMED], *more])


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low}–{high}"


def _folded(names: Iterable[str]) -> str:
    """Name several places in few words: those that differ in a number as a range of it."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(filter(None, names)):
        alike.setdefault(_numberless(name), []).append(name)
    return ", ".join(map(folded_name, alike.values()))
