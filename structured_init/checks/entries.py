"""What a tensor's numbers are, in an entry that is small and the same for every seed, and in what two entries differ.

Kept are mean, root mean square and kurtosis of a draw, and two numbers that tell a table from others.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from structured_init.checks.distribution import FEWEST, Sample
from structured_init.checks.records import Record

ERRORS = 6.0  # standard errors that two draws may differ by
CLOSE = 0.02  # relative difference of two scales that is none, beside these
ROUNDING = 2e-3  # of what is written, and of tables that two machines compute
KURTOSIS_FROM = 1000  # of fewer numbers it tells little
HEAVY = 4.0  # a kurtosis beyond which its own error is not known
EXACT = ("shape", "role", "kind", "tied", "frozen", "dtype", "coarse")
SCALES = {"mean": "mean", "rms": "root mean square", "kurtosis": "kurtosis", "table": "table"}
Entry = dict[str, Any]


def entry_of(value: Tensor, record: Record | None, fixed: bool) -> Entry:
    """Return what a tensor's numbers are, of a few that are drawn nothing but this.

    ``fixed`` says that they are the same under every seed; ``record`` is that of a parameter.
    """
    shape = {"shape": "x".join(map(str, value.shape))}
    if value.is_meta or value.is_complex() or not value.numel():
        return shape | {"kind": "unread"}
    sample = Sample(value.double().cpu())
    rms = math.hypot(sample.mean, sample.std)
    entry: Entry = shape | {"mean": rounded(sample.mean), "rms": rounded(rms)}
    if fixed and sample.std <= 1e-6 * rms:
        return entry | {"kind": "constant"}
    if fixed:
        place = torch.arange(sample.count, dtype=torch.float64)
        waves = (torch.cos(0.7548776662 * place), torch.sin(0.5698402910 * place))  # of irrational frequencies
        if value.is_floating_point() and torch.equal(value.bfloat16().to(value.dtype), value):
            entry["coarse"] = True  # all its numbers are those of bfloat16, as of a table that was cast once
        table = [rounded((sample.flat @ wave).item() / rms / sample.count**0.5) for wave in waves]
        return entry | {"kind": "table", "table": table}
    if record and record.structure:
        return entry | {"kind": record.structure.kind}
    if sample.count < FEWEST or not sample.std:
        return shape | {"kind": "drawn"}
    if sample.count >= KURTOSIS_FROM:
        entry["kurtosis"] = rounded(sample.kurtosis)
    return entry | {"kind": "drawn"}


def rounded(value: float) -> float:
    """Return three digits, and no difference between zeros."""
    return float(f"{value:.3g}") + 0.0


def difference(now: Entry, old: Entry, whose: str = "the snapshot") -> str:
    """Say in what a tensor differs from an older entry; nothing where chance allows it."""
    changed = []
    for what in EXACT:
        if now.get(what) != old.get(what):
            changed.append(f"{what} is {now.get(what, 'as usual')}; {whose} has {old.get(what, 'as usual')}")
    for what, name in SCALES.items():
        if not changed and what in now and what in old and _far(now, old, what):
            changed.append(f"{name} {now[what]}; {whose} has {old[what]}")
    return "; ".join(changed)


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
