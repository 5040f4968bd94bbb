"""The report: accounts for every parameter of a model after it was initialized, as a table, text, HTML and JSON."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from torch import Tensor, nn

from structured_init.hosts.positions import NOT_IN_ORDER, position_sites
from structured_init.hosts.shared import note_shared
from structured_init.inputs import not_finite
from structured_init.storage import uninitialized
from structured_init.util.errors import missing_extra
from structured_init.util.files import made_by, write_json
from structured_init.util.names import folded_name, named_plain_modules, plain_name, short_names, wrapped
from structured_init.weights import Statistics, Weights
from structured_init.writer import full_value

BLOCK = re.compile(r"^(.*?\.\d+)\.(.+)$")  # up to the first number: blocks.0, transformer.h.3
OWN = re.compile(r"^(.+)\.(?:weight|bias)$")
MANY = 1_000  # numbers, whose mean is not chance


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
        changed: how many of its numbers were changed; a part of a tensor may be set, such as some heads of one. Of a
            sharded tensor it is all of them.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    set_by: tuple[str, ...]
    before: Statistics | None
    after: Statistics | None
    trainable: bool | None
    changed: int = 0

    @property
    def writers(self) -> list[dict[str, str]]:
        """Who set it, in order: ``initializer``, a class, and which ``part`` of it; empty where it has no parts."""
        pairs = (text.partition(":")[::2] for text in self.set_by)
        return [{"initializer": name.partition("(")[0].strip(), "part": part.strip()} for name, part in pairs]


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

    def left_alone(self, limit: int = 3) -> str:
        """Say how much of the attention was left alone, and name the first few layers with the reason."""
        first = [f"{name} ({self.skipped.get(name, 'skipped')})" for name in self.left[:limit]]
        more = ", …" if len(self.left) > limit else ""
        return f"{len(self.left)} of {len(self.attention)} attention layers left alone: {', '.join(first)}{more}"

    def summary(self, limit: int = 3) -> str:
        """Return one line: what was applied, how much of the model each part of it set, warnings, and what was left."""
        line = self._set()
        if self.warnings:
            line += f"; {len(self.warnings)} warning{'s' * (len(self.warnings) > 1)}: {self.warnings[0]}"
        others = [f"{name} ({why})" for name, why in self.skipped.items() if name not in self.left]
        if self.left:
            line += f"; {self.left_alone()}"
        if others:
            more = f", … {len(others) - limit} more" if len(others) > limit else ""
            line += f"; skipped {', '.join(others[:limit])}{more}"
        if self.unset_positions:
            line += f"; positions left as they were: {', '.join(self.unset_positions)}"
        return line

    def _set(self) -> str:
        """Return the first part of the summary, which nothing else of the report repeats."""
        count, total = (sum(math.prod(entry.shape) for entry in some) for some in (self.changed, self.entries))
        frozen = sum(entry.trainable is False for entry in self.entries)
        line = f"{self.differs or self.initializer}, seed {self.seed}: set {len(self.changed)} of {len(self.entries)}"
        line += f" tensors ({count:,} of {total:,} numbers{_in_part(self.changed, ', {0:,} of them changed')})"
        line += f", {frozen} frozen" if frozen else ""
        owners: dict[str, list[str]] = {}
        for part, number in Counter(part for entry in self.changed for part in entry.set_by).items():
            owner, _, name = part.rpartition(": ")
            owners.setdefault(owner, []).append(f"{name} in {number}")
        return line + "".join(f"; {owner}{': ' * bool(owner)}{', '.join(parts)}" for owner, parts in owners.items())

    def table(self) -> str:
        """Return a Markdown table with a row per parameter; then what was measured, skipped, noted and warned of."""
        rows = ["| parameter | shape | set by | mean before → after | std before → after |", "|---|---|---|---|---|"]
        for entry in self.entries:
            name = " = ".join(entry.names) + " (frozen)" * (entry.trainable is False)
            shape = "×".join(map(str, entry.shape)) or "scalar"
            if entry.before is None or entry.after is None:
                rows.append(f"| {name} | {shape} | left as it was | | |")
                continue
            mean = f"{entry.before.mean:.3g} → {entry.after.mean:.3g}"
            std = f"{entry.before.std:.3g} → {entry.after.std:.3g}"
            rows.append(f"| {name} | {shape} | {'; '.join(entry.set_by)} | {mean} | {std} |")
        if any(self.measures.values()):
            rows += ["", "| site | measure | before → after |", "|---|---|---|"]
        for site, values in self.measures.items():
            rows += [f"| {site} | {name} | {old:.4g} → {new:.4g} |" for name, (old, new) in values.items()]
        lists = [
            *(f"skipped {name}: {why}" for name, why in self.skipped.items()),
            *(f"note {name}: {what}" for name, what in self.notes.items()),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join([self._set(), self._trained(), "", *rows, *([""] if lists else []), *lists])

    def plot(self) -> Any:
        """Return a figure of the root mean square of every tensor that was set, before and after, by who set it.

        Raises:
            MissingExtraError: matplotlib is not installed; the extra ``lightning`` brings it.
        """
        try:
            from matplotlib.figure import Figure
            from matplotlib.ticker import FuncFormatter, SymmetricalLogLocator
        except ModuleNotFoundError as error:
            raise (missing_extra(error, "InitReport.plot", "lightning") or error) from None
        figure = Figure(figsize=(max(6.0, min(16.0, 0.16 * len(self.changed) + 3)), 4), layout="constrained")
        axis, groups = figure.add_subplot(), {}
        for place, entry in enumerate(self.changed):
            groups.setdefault("; ".join(entry.set_by), []).append((place, entry.after.rms))
        before = [entry.before.rms for entry in self.changed]
        axis.plot(range(len(before)), before, "o", color="0.6", markersize=4, label="before")
        for who, points in groups.items():
            axis.plot(*zip(*points, strict=True), "D", markersize=4, label=who)
        blocks = [_block(entry.names[0]) for entry in self.changed]
        first = {block: place for place, block in reversed(list(enumerate(blocks)))}
        ticks = sorted(first.items(), key=lambda each: each[1])[:: max(1, len(first) // 24)]
        names = short_names([block for block, _ in ticks])  # whole, those of transformers leave no room for the axis
        axis.set_xticks([place for _, place in ticks], names, rotation=90, fontsize=7)
        sizes = [*before, *(entry.after.rms for entry in self.changed)]
        least = min(filter(None, sizes), default=1.0) / 2
        most = 2 * max(sizes, default=1.0)
        axis.set_yscale("symlog", linthresh=least)
        axis.set_ylim(0 if 0 in sizes else least, most)
        subs = (1, 2, 3, 5) if most < 100 * least else (1,)  # of which two lie between any number and its fourfold
        axis.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=subs))
        written = lambda value, _: "" if 0 < value < least else f"{value:g}"  # noqa: E731
        axis.yaxis.set_major_formatter(FuncFormatter(written))
        axis.set_ylabel("root mean square")
        axis.set_title(f"{self.differs or self.initializer}, seed {self.seed}", fontsize=9, wrap=True)
        if groups:
            axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        else:
            axis.text(0.5, 0.5, "nothing was set", transform=axis.transAxes, ha="center")
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        entries = [{**asdict(entry), "writers": entry.writers} for entry in self.entries]
        return json.loads(json.dumps({**asdict(self), "entries": entries}))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, with what made it; an older file is replaced only when the new one is whole."""
        write_json(path, {"made_by": made_by(), **self.to_dict()})

    def __str__(self) -> str:
        lines, remarks = block_lines(self.entries), self._remarks()
        width = min(32, max((len(name) for name, _ in lines), default=0))
        rows = [f"{name:<{width}}  {what}" for name, what in lines]
        body = [*([""] if rows else []), *rows, *([""] if remarks else []), *remarks]
        return wrapped("\n".join([self._set(), self._trained(), *body]))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(what)}</td></tr>"
            for name, what in block_lines(self.entries)
        )
        items = "".join(f"<li>{escape(remark)}</li>" for remark in self._remarks())
        table = f"<p>{escape(self._set())}</p><table><tbody>{rows}</tbody></table>"
        return table + (f"<ul>{items}</ul>" if items else "")

    def _trained(self) -> str:
        trained, total = self.trainable_parameters, self.total_parameters
        return f"{f'all {total:,}' if trained == total else f'{trained:,} of {total:,}'} parameters are trained"

    def _remarks(self) -> list[str]:
        """Return what was not set, is frozen, was measured, skipped, noted and warned of; equal remarks as one."""
        was_set: dict[str, bool] = {}
        for entry in self.entries:
            block = _block(entry.names[0])
            was_set[block] = was_set.get(block, False) or bool(entry.set_by)
        unset = [name for name, _ in _once({block: "" for block, was in was_set.items() if not was})]
        frozen = _names(entry.names[0] for entry in self.entries if entry.trainable is False)
        measured = {
            site: "; ".join(f"{quantity} {before:.4g} → {after:.4g}" for quantity, (before, after) in values.items())
            for site, values in self.measures.items()
        }
        return [
            *([f"left as they were: {', '.join(unset)}"] if unset else []),
            *([f"frozen: {frozen}"] if frozen else []),
            *(f"measured {site}: {what}" for site, what in measured.items()),
            *(f"skipped {name}: {why}" for name, why in _once(self.skipped)),
            *(f"note {name}: {what}" for name, what in _once(self.notes)),
            *(f"warning: {warning}" for warning in self.warnings),
        ]


def parts_of(initializer: object) -> Iterator[object]:
    """Yield an initializer and those that it is composed of or a control of."""
    yield initializer
    for part in (*getattr(initializer, "initializers", ()), getattr(initializer, "initializer", None)):
        if part is not None:
            yield from parts_of(part)


def build_report(
    weights: Weights, initializer: object, seed: int, changes: Iterable[tuple[Tensor, bool]] = ()
) -> InitReport:
    """Account for every parameter of the overlay's model, and for the buffers that were set."""
    future = {id(tensor): trainable for tensor, trainable in changes}
    parameters = list(weights.model.parameters())
    note_shared(weights)
    warnings = list(weights.warnings)
    if any(update.by for update in weights.updates.values()):
        warnings += _odd_weights(weights)
    buffers = [(name, buffer) for name, buffer in weights.model.named_buffers() if id(buffer) in weights.updates]
    tensors = [
        *((parameter, weights.names(parameter)) for parameter in parameters),
        *((buffer, (plain_name(name, weights.model),)) for name, buffer in buffers),
    ]
    entries = []
    for tensor, names in tensors:
        update, buffer = weights.updates.get(id(tensor)), not isinstance(tensor, nn.Parameter)
        trainable = None if buffer else future.get(id(tensor), tensor.requires_grad)
        did = ((), None, None) if update is None else (tuple(update.by), update.before, update.after)
        entries.append(Entry(names, tuple(tensor.shape), *did, trainable, 0 if update is None else update.changed))
    report = InitReport(
        initializer=repr(initializer),
        seed=seed,
        entries=entries,
        # What one part of a Compose leaves alone and another writes is not skipped.
        skipped={name: why for name, why in weights.skipped.items() if not weights.attention.get(name, False)},
        notes=dict(weights.notes),
        warnings=warnings,
        trainable_parameters=sum(each.numel() for each in parameters if future.get(id(each), each.requires_grad)),
        total_parameters=sum(each.numel() for each in parameters),
        measures={name: dict(values) for name, values in weights.measures.items()},
        attention=dict(weights.attention),
    )
    # Of positions it is only said that they were not set where attention was; asking for them adds to the notes.
    positions = position_sites(weights) if any(weights.attention.values()) else []
    refused = [name for name, why in weights.skipped.items() if why == NOT_IN_ORDER]
    report.unset_positions += [site.name for site in positions if id(site.tensor) not in weights.updates] + refused
    if 2 * len(report.left) > len(report.attention):
        report.warnings.append(report.left_alone())
    return report


def trained_norm(weights: Weights) -> str | None:
    """Return the first normalization weight that is not constant, though somebody has written to it."""
    return next((name for name, why in _uneven_norms(weights) if why is None), None)


def _odd_weights(weights: Weights) -> Iterator[str]:
    """Say what normalization weights are that are not as a library builds them, and where numbers are not finite."""
    trained = {_block(name) for name, why in _uneven_norms(weights) if why is None}
    fresh = {_block(f"{name}.weight") for name, _ in _norms(weights)} - trained
    set_in = {_block(weights.names(update.target)[0]) for update in weights.updates.values() if update.by}
    if trained and not set_in <= fresh:  # else what is set stands in blocks of which nothing was trained
        yield (
            f"the weights look trained ('{trained_norm(weights)}' is not constant, as libraries build it, unless "
            "nobody wrote to it since to_empty); what is set replaces trained weights"
        )
    bare = {name: why for name, why in _uneven_norms(weights) if why is not None}
    if bare:
        first, why = next(iter(bare.items()))
        beside = f", and {len(bare) - 1} more" if len(bare) > 1 else ""
        yield f"'{first}'{beside} was never initialized, as after to_empty: {why}"
    elif why := not_finite(weights.model, weights.updates):
        yield f"{why}: it was not set, and what the model gives may not be finite either"


def _uneven_norms(weights: Weights) -> Iterator[tuple[str, str | None]]:
    """Yield normalization weights that are not constant, and why they look like bare memory, where they do.

    Beside a bias of zeros they were drawn, as DCGAN draws them about 1: training would have moved both, unless frozen.
    """
    for name, module in _norms(weights):
        value = full_value(module.weight, f"{name}.weight").flatten().to(module.weight.dtype)
        if bool((value != value[:1]).any()):
            why, bias = uninitialized(value), getattr(module, "bias", None)
            drawn = isinstance(bias, nn.Parameter) and bias.requires_grad and not full_value(bias, f"{name}.bias").any()
            if why is not None or not drawn:
                yield f"{name}.weight", why


def _norms(weights: Weights) -> Iterator[tuple[str, nn.Module]]:
    """Yield the normalization layers, but for tables and what was set here."""
    for name, module in named_plain_modules(weights.model):
        weight = getattr(module, "weight", None)
        if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter) or weight.is_meta:
            continue
        if weight.numel() == max(weight.shape, default=0) and id(weight) not in weights.updates:
            yield name, module


def block_lines(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return (block, what was set in it); neighbouring blocks that were treated alike are one."""
    blocks: dict[str, list[Entry]] = {}
    for entry in entries:
        blocks.setdefault(_block(entry.names[0]), []).append(entry)
    runs: list[list[str]] = []
    for name, inside in blocks.items():
        if not any(entry.set_by for entry in inside):
            continue
        if runs and _treatment(runs[-1][0], blocks[runs[-1][0]]) == _treatment(name, inside):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [(folded_name(run), _what_was_set({name: blocks[name] for name in run})) for run in runs]


def _in_part(entries: Collection[Entry], text: str) -> str:
    """Say how many numbers of tensors that were set are others now, and of how many; nothing where all are.

    Of ten million that are drawn anew one is the same by chance.
    """
    changed, size = sum(entry.changed for entry in entries), sum(math.prod(entry.shape) for entry in entries)
    return text.format(changed, size) if changed < size - size // 1_000_000 else ""


def _block(name: str) -> str:
    """Return the block of a parameter: ``blocks.0`` of ``blocks.0.attn.qkv.weight``, ``head`` of ``head.bias``."""
    match = BLOCK.match(name) or OWN.match(name)
    return match[1] if match else name


def _treatment(block: str, entries: Sequence[Entry]) -> tuple:
    """Return all in which blocks of one line agree."""
    inside = tuple((_inside(entry, block), entry.shape, entry.set_by) for entry in entries)
    return re.sub(r"\d+", "#", block), inside


def _inside(entry: Entry, block: str) -> str:
    return entry.names[0].removeprefix(block).lstrip(".").removesuffix(".weight")


def _what_was_set(blocks: Mapping[str, Sequence[Entry]]) -> str:
    """Say what was set in blocks that were treated alike, grouped by who set it."""
    groups: dict[tuple[str, ...], dict[str, list[Entry]]] = {}  # → name inside → of every block
    for block, entry in ((block, entry) for block, entries in blocks.items() for entry in entries if entry.set_by):
        groups.setdefault(entry.set_by, {}).setdefault(_inside(entry, block), []).append(entry)
    texts = []
    for set_by, named in groups.items():
        every = [entry for entries in named.values() for entry in entries]
        before = _span([entry.before.std for entry in every if entry.before])
        after = _span([entry.after.std for entry in every if entry.after])
        values: dict[str, list[str]] = {}  # what is constant → names
        for name, entries in named.items():
            before_after = [[each.before for each in entries], [each.after for each in entries]]
            steady = [all(a and a.std <= 1e-12 * abs(a.mean) for a in of_all) for of_all in before_after]
            if steady[1]:
                means = [_span([a.mean for a in of_all]) for of_all in before_after[1 - steady[0] :]]
                values.setdefault(" → ".join(means), []).append(name)
        large = [each.after for each in every if each.after and math.prod(each.shape) >= MANY and not values]
        shifted = [each.mean for each in large if 0.25 * each.std < abs(each.mean)]
        told = [f"mean {_span(shifted)}"] if shifted else []
        told += [f"constant {value}{f': {_names(own)}' * (len(own) < len(named))}" for value, own in values.items()]
        after += f" ({'; '.join(told)})" if told else ""
        parts: dict[str, list[str]] = {}  # "Mimetic: query_key, value_output" instead of the name twice
        for each in set_by:
            initializer, _, part = each.partition(": ")
            parts.setdefault(initializer, []).extend([part] if part else [])
        who = " + ".join(f"{name}: {', '.join(inside)}" if inside else name for name, inside in parts.items())
        after += _in_part(every, ", {0:,} of {1:,} numbers changed")
        texts.append(f"{_names(named)} [{who}] std {before} → {after}".strip())
    rest = sum(not entry.set_by for entry in next(iter(blocks.values())))
    return "; ".join([*texts, *([f"{rest} more left as they were"] if rest else [])])


def _names(names: Iterable[str]) -> str:
    return ", ".join(name for name, _ in _once(dict.fromkeys(filter(None, names), "")))


def _span(values: Sequence[float]) -> str:
    low, high = (f"{value:.2g}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def _once(remarks: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give each remark once, with the sites that it is about: those whose names differ in a number."""
    sites: dict[tuple[str, str], list[str]] = {}
    for name, what in remarks.items():
        sites.setdefault((re.sub(r"\d+", "#", name), what), []).append(name)
    return [(folded_name(names), what) for (_, what), names in sites.items()]
