"""What a model's tensors were when somebody accepted them, in a small file, and what has moved since.

A file has an entry for each tensor, or for those of equal blocks in a list, whose place is ``#``: its shape and role,
mean, root mean square and kurtosis (two numbers that tell a table from others), the kind of its distribution, what it
is tied to, whether it is frozen, and its dtype where that is not float32.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.checks.builds import tensors
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.records import InLists, Record
from structured_init.util.errors import StructuredInitError
from structured_init.weights import tensor_names

ERRORS = 6.0  # standard errors that two draws may differ by
CLOSE = 0.02  # relative difference of two scales that is none, beside these
ROUNDING = 2e-3  # of what is written, and of tables that two machines compute
FEWEST = 24  # numbers of a draw that are compared
KURTOSIS_FROM = 1000  # of fewer numbers it tells little
HEAVY = 4.0  # a kurtosis beyond which its own error is not known
SCALES = ("mean", "rms", "kurtosis", "table")  # what may differ from block to block
Entry = dict[str, Any]


def compare_snapshot(
    model: nn.Module, records: Iterable[Record], fixed: Collection[str], file: str | Path, update: bool
) -> Iterator[Finding | LeftOut]:
    """Compare a model with a file, or write the file where there is none yet, or where it is to be updated.

    Raises:
        StructuredInitError: the file is no snapshot.
    """
    path, now, lists = Path(file), _entries(model, records, fixed), InLists(model)
    if update or not path.exists():
        lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(_shared(now, lists).items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        yield LeftOut("snapshot", f"{path} was written: commit it", partly=True)
        return
    try:
        before = {name: dict(entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StructuredInitError(f"{path} is no snapshot, {error}: remove it, and it is written anew") from None
    lines = []
    seen: Counter[str] = Counter()
    for name, entry in now.items():
        names = (name, lists.folded(name, innermost=True), lists.folded(name))
        key = next((each for each in names if each in before and seen[each] < before[each].get("blocks", 1)), name)
        if key in before:
            lines += [(name, text) for text in _differences(entry, before[key], seen[key])]
        else:
            lines.append((name, "is new"))
        seen[key] += 1
    for key, old in before.items():
        if seen[key] < old.get("blocks", 1):
            lines.append((key, f"is there {seen[key]} times; the snapshot has {old.get('blocks', 1)}"))
    yield from folded("snapshot", lines)


def _entries(model: nn.Module, records: Iterable[Record], fixed: Collection[str]) -> dict[str, Entry]:
    """Return an entry for each parameter and buffer."""
    described = {each.name: each for each in records}
    trained = {names[0]: names for names in tensor_names(model).values()}
    found = {}
    for name, value in tensors(model).items():
        record = described.get(name)
        entry: Entry = {"shape": "x".join(map(str, value.shape)), "role": record.role if record else "buffer"}
        if len(trained[name]) > 1:
            entry["tied"] = ", ".join(trained[name][1:])
        if record and not record.trainable:
            entry["frozen"] = True
        if value.dtype != torch.float32:
            entry["dtype"] = str(value.dtype).removeprefix("torch.")
        found[name] = entry | _numbers(value, record, name in fixed)
    return found


def _numbers(value: Tensor, record: Record | None, fixed: bool) -> Entry:
    """Return what a tensor's numbers are; of a few that are drawn nothing but this."""
    if value.is_meta or value.is_complex() or not value.numel():
        return {"kind": "unread"}
    numbers = value.double().flatten().cpu()
    count, mean, std = numbers.numel(), numbers.mean().item(), numbers.std(correction=0).item()
    rms = math.hypot(mean, std)
    entry = {"mean": _rounded(mean), "rms": _rounded(rms)}
    if fixed and std <= 1e-6 * rms:
        return entry | {"kind": "constant"}
    if fixed and rms:
        place = torch.arange(count, dtype=torch.float64)
        waves = (torch.cos(0.7548776662 * place), torch.sin(0.5698402910 * place))  # of irrational frequencies
        if value.is_floating_point() and torch.equal(value.bfloat16().to(value.dtype), value):
            entry["coarse"] = True  # all its numbers are those of bfloat16, as of a table that was cast once
        return entry | {"kind": "table", "table": [_rounded((numbers @ w).item() / rms / count**0.5) for w in waves]}
    if record and record.structure:
        return entry | {"kind": record.structure.kind}
    if count < FEWEST or not std:
        return {"kind": "drawn"}
    entry["kind"] = "drawn"
    kurtosis = ((numbers - mean) / std).pow(4).mean().item()
    if count >= KURTOSIS_FROM:
        entry["kurtosis"] = _rounded(kurtosis)
    return entry


def _rounded(value: float) -> float:
    """Return three digits, and no difference between zeros."""
    return float(f"{value:.3g}") + 0.0


def _shared(entries: dict[str, Entry], lists: InLists) -> dict[str, Entry]:
    """Return one entry for the blocks of lists, or of one, that differ in scales alone; these are listed then."""
    shared: dict[str, Entry] = {}
    left = dict(entries)
    for innermost in (False, True):
        groups: dict[str, dict[str, Entry]] = defaultdict(dict)
        for name, entry in left.items():
            groups[lists.folded(name, innermost)][name] = entry
        for key, group in groups.items():
            plain = [{what: each[what] for what in each if what not in SCALES} for each in group.values()]
            if len(group) > 1 and all(each == plain[0] for each in plain):
                scales = {what: _one_or_all([*group.values()], what) for what in SCALES if what in group[min(group)]}
                shared[key] = plain[0] | scales | {"blocks": len(group)}
                left = {name: entry for name, entry in left.items() if name not in group}
    return shared | left


def _one_or_all(entries: list[Entry], what: str) -> Any:
    first, values = entries[0], [each[what] for each in entries]
    one = values[0] if what == "table" else _rounded(sum(values) / len(values))
    alike = all(not _far(first | {what: each}, first | {what: one}, what) for each in values)
    return one if alike else {"all": values}


def _differences(now: Entry, before: Entry, place: int) -> Iterator[str]:
    """Say in what a tensor differs from its entry, of which it is the block at a place."""
    old = {key: each["all"][place] if isinstance(each, dict) else each for key, each in before.items()}
    changed = False
    for what in ("shape", "role", "kind", "tied", "frozen", "dtype", "coarse"):
        if now.get(what) != old.get(what):
            changed = True
            yield f"{what} is {now.get(what, 'as usual')}; the snapshot has {old.get(what, 'as usual')}"
    for what in SCALES if not changed else ():
        if what in now and what in old and _far(now, old, what):
            name = "root mean square" if what == "rms" else what
            yield f"{name} {now[what]}; the snapshot has {old[what]}"
            return


def _far(now: Entry, old: Entry, what: str) -> bool:
    """Tell whether two numbers differ by more than rounding, and the sampling error of two draws."""
    one, other = now[what], old[what]
    if what == "table":
        return any(abs(x - y) > ROUNDING for x, y in zip(one, other, strict=True))
    if not math.isfinite(one + other):
        return str(one) != str(other)
    count = math.prod(int(size) for size in now["shape"].split("x") if size)
    drawn = now["kind"] not in ("constant", "table")
    chance = ERRORS * math.sqrt(2 / count) if drawn else 0.0
    if what == "mean":
        spread = math.sqrt(max(old["rms"] ** 2 - other**2, now["rms"] ** 2 - one**2, 0))
        return abs(one - other) > chance * spread + ROUNDING * max(old["rms"], now["rms"])
    if what == "kurtosis":
        return max(one, other) < HEAVY and abs(one - other) > chance * math.sqrt(24) + CLOSE
    slack = chance * math.sqrt((now.get("kurtosis", HEAVY) - 1) / 4) + (CLOSE if drawn else ROUNDING)
    return one != other and (min(one, other) <= 0 or abs(math.log(one / other)) > slack)
