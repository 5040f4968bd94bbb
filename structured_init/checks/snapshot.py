"""What a model's tensors were when somebody accepted them, in a small file, and what has moved since.

A file has an entry for each tensor, or one for those of equal blocks in a list, whose place is ``#``: its role, what it
is tied to, whether it is frozen, its dtype where that is not float32, and what its numbers are.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from structured_init.checks.builds import tensors
from structured_init.checks.entries import Entry, difference, entry_of, rounded
from structured_init.checks.findings import Finding, LeftOut, folded
from structured_init.checks.records import InLists, Record
from structured_init.util.errors import StructuredInitError
from structured_init.weights import tensor_names


def compare_snapshot(
    model: nn.Module, records: Iterable[Record], fixed: Collection[str], file: str | Path, update: bool
) -> Iterator[Finding | LeftOut]:
    """Compare a model with a file, or write the file where there is none yet, or where it is to be updated.

    Raises:
        StructuredInitError: the file is no snapshot.
    """
    path, now, lists = Path(file), _entries(model, records, fixed), InLists(model)
    if update or not path.exists():
        shared = _shared(now, lists)
        lines = [f"{json.dumps(name)}: {json.dumps(shared[name])}" for name in sorted(shared)]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        yield LeftOut("snapshot", f"there was none, and {path} was written: commit it")
        return
    try:
        before = {name: dict(entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StructuredInitError(f"{path} is no snapshot, {error}: remove it, and it is written anew") from None
    found = []
    seen: Counter[str] = Counter()
    for name, entry in now.items():
        shared_name = lists.folded(name)
        many = seen[shared_name] < before.get(shared_name, {}).get("blocks", 0)
        key = shared_name if name not in before and many else name
        seen[key] += 1
        text = difference(entry, before[key]) if key in before else "is new"
        if text:
            found.append((name, text))
    for key, old in before.items():
        if seen[key] < old.get("blocks", 1):
            found.append((key, f"is there {seen[key]} times; the snapshot has {old.get('blocks', 1)}"))
    yield from folded("snapshot", found)


def _entries(model: nn.Module, records: Iterable[Record], fixed: Collection[str]) -> dict[str, Entry]:
    """Return an entry for each parameter and buffer."""
    described = {each.name: each for each in records}
    names = {own[0]: own for own in tensor_names(model).values()}
    found = {}
    for name, value in tensors(model).items():
        record = described.get(name)
        entry: Entry = {"role": record.role if record else "buffer"}
        if len(names[name]) > 1:
            entry["tied"] = ", ".join(names[name][1:])
        if record and not record.trainable:
            entry["frozen"] = True
        if value.dtype != torch.float32:
            entry["dtype"] = str(value.dtype).removeprefix("torch.")
        found[name] = entry | entry_of(value, record, name in fixed)
    return found


def _shared(entries: dict[str, Entry], lists: InLists) -> dict[str, Entry]:
    """Return one entry, with means, for all blocks of lists that have no difference."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in entries:
        groups[lists.folded(name)].append(name)
    shared: dict[str, Entry] = {}
    for key, names in groups.items():
        some = [entries[name] for name in names]
        middle = dict(some[0])
        for what in ("mean", "rms", "kurtosis"):
            if all(what in each for each in some):
                middle[what] = rounded(sum(each[what] for each in some) / len(some))
        if len(names) > 1 and not any(difference(each, middle) for each in some):
            shared[key] = middle | {"blocks": len(names)}
        else:
            shared |= {name: entries[name] for name in names}
    return shared
