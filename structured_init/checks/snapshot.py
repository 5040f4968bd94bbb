"""What a model's tensors were when somebody accepted them, in a small file, and what has moved since.

A file has an entry for each tensor, or one for those of equal blocks in a list, whose place is ``#``: its role, what it
is tied to, whether it is frozen, its dtype where that is not float32, and what its numbers are: mean, root mean square
and kurtosis of a draw, and two numbers that tell a table from others. An entry is the same for every seed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structured_init.checks.distribution import FEWEST, KURTOSIS_FROM, Sample
from structured_init.checks.findings import Found, NotMade
from structured_init.checks.measured import Measured
from structured_init.checks.records import Record, in_lists, lists_of
from structured_init.checks.structure import STRUCTURES
from structured_init.util.errors import StructuredInitError
from structured_init.weights import tensor_names

ERRORS = 6.0  # standard errors that two draws may differ by
CLOSE = 0.02  # relative difference of two scales that is none, beside these
ROUNDING = 2e-3  # of what is written, and of tables that two machines compute
HEAVY = 4.0  # a kurtosis beyond which its own error is not known
EXACT = ("shape", "role", "kind", "tied", "frozen", "dtype", "coarse")
SCALES = {"mean": "mean", "rms": "root mean square", "kurtosis": "kurtosis", "table": "table"}
Entry = dict[str, Any]


def snapshot(measured: Measured) -> Found:
    """Compare a model with a file, or write the file where there is none yet, or where it is to be updated.

    Raises:
        StructuredInitError: the file is no snapshot, or there is none in continuous integration, which sets ``CI``.
    """
    path, update = measured.snapshot, measured.update_snapshot
    now, lists = _entries(measured), lists_of(measured.model)
    if update or not path.exists():
        if os.environ.get("CI") and not update:
            raise StructuredInitError(f"there is no snapshot '{path}': write it on your machine, and commit it")
        shared = _shared(now, lists)
        lines = [f"{json.dumps(name)}: {json.dumps(shared[name])}" for name in sorted(shared)]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        raise NotMade(f"{path} was written: commit it")
    try:
        before = {name: dict(entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StructuredInitError(f"{path} is no snapshot, {error}: remove it, and it is written anew") from None
    seen: Counter[str] = Counter()
    for name, entry in now.items():
        key = name if name in before else in_lists(name, lists)
        seen[key] += 1
        new = key not in before or seen[key] > before[key].get("blocks", 1)
        text = "is new" if new else difference(entry, before[key])
        if text:
            yield name, text
    for key, old in before.items():
        blocks = old.get("blocks", 1)
        if seen[key] < blocks:
            yield key, f"is there {seen[key]} times; the snapshot has {blocks}"


def _entries(measured: Measured) -> dict[str, Entry]:
    """Return an entry for each parameter and buffer."""
    records = {each.name: each for each in measured.records}
    names = {own[0]: own for own in tensor_names(measured.model).values()}
    fixed = measured.builds.fixed if measured.builds else ()
    found = {}
    for name, value in measured.tensors.items():
        record = records.get(name)
        entry: Entry = {"role": record.role if record else "buffer"}
        if len(names[name]) > 1:
            entry["tied"] = ", ".join(names[name][1:])
        if record and not record.trainable:
            entry["frozen"] = True
        if value.dtype != torch.float32:
            entry["dtype"] = str(value.dtype).removeprefix("torch.")
        found[name] = entry | entry_of(value, record, name in fixed)
    return found


def _shared(entries: dict[str, Entry], lists: set[str]) -> dict[str, Entry]:
    """Return one entry, that of the first, for all blocks of lists that have no difference."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in entries:
        groups[in_lists(name, lists)].append(name)
    shared: dict[str, Entry] = {}
    for key, names in groups.items():
        first = entries[names[0]]
        if len(names) > 1 and not any(difference(entries[name], first) for name in names):
            shared[key] = first | {"blocks": len(names)}
        else:
            shared |= {name: entries[name] for name in names}
    return shared


def entry_of(value: Tensor, record: Record | None, fixed: bool) -> Entry:
    """Return what a tensor's numbers are, of a few that are drawn nothing but this.

    ``fixed`` says that they are the same under every seed; ``record`` is that of a parameter.
    """
    shape = {"shape": "x".join(map(str, value.shape))}
    if value.is_meta or value.is_complex() or not value.numel():
        return shape | {"kind": "unread"}
    sample = Sample(value.double().cpu())
    rms = math.hypot(sample.mean, sample.std)
    entry: Entry = shape | {"mean": _rounded(sample.mean), "rms": _rounded(rms)}
    if fixed:
        if sample.std <= 1e-6 * rms:
            return entry | {"kind": "constant"}
        place = torch.arange(sample.count, dtype=torch.float64)
        waves = (torch.cos(0.7548776662 * place), torch.sin(0.5698402910 * place))  # of irrational frequencies
        if value.is_floating_point() and torch.equal(value.bfloat16().to(value.dtype), value):
            entry["coarse"] = True  # all its numbers are those of bfloat16, as of a table that was cast once
        table = [_rounded((sample.flat @ wave).item() / rms / sample.count**0.5) for wave in waves]
        return entry | {"kind": "table", "table": table}
    if record and record.kind in STRUCTURES:
        return entry | {"kind": record.kind}
    if sample.count < FEWEST or not sample.std:
        return shape | {"kind": "drawn"}
    if sample.count >= KURTOSIS_FROM:
        entry["kurtosis"] = _rounded(sample.kurtosis)
    return entry | {"kind": "drawn"}


def _rounded(value: float) -> float:
    """Return three digits, and no difference between zeros."""
    return float(f"{value:.3g}") + 0.0


def difference(now: Entry, old: Entry, whose: str = "the snapshot") -> str:
    """Say in what a tensor differs from an older entry; nothing where chance allows it."""
    changed = []
    for what in EXACT:
        if now.get(what) != old.get(what):
            changed.append(f"{what} is {now.get(what, 'as usual')}; {whose} has {old.get(what, 'as usual')}")
    if not changed:
        for what, allowed in _allowed(now, old).items():
            if not np.allclose(now[what], old[what], rtol=0, atol=allowed, equal_nan=True):
                changed.append(f"{SCALES[what]} {now[what]}; {whose} has {old[what]}")
    return "; ".join(changed)


def _allowed(now: Entry, old: Entry) -> dict[str, float]:
    """Return by how much numbers may differ: by rounding, and by the sampling error of two draws."""
    small, large = sorted((now.get("rms", 0.0), old.get("rms", 0.0)))
    allowed = {"mean": ROUNDING * large, "rms": ROUNDING * small, "table": ROUNDING}
    if now["kind"] not in ("constant", "table"):
        size = math.prod(map(int, re.findall(r"\d+", now["shape"])))
        chance = ERRORS * math.sqrt(2 / max(size, 1))
        kurtosis = max(now.get("kurtosis", HEAVY), old.get("kurtosis", HEAVY))
        allowed["mean"] += chance * large
        allowed["rms"] = (CLOSE + chance * math.sqrt((kurtosis - 1) / 4)) * small
        allowed["kurtosis"] = CLOSE + chance * math.sqrt(24) if kurtosis < HEAVY else math.inf
    return {what: far for what, far in allowed.items() if what in now and what in old}
