"""What a run made elsewhere is: an arm, a seed, and what it logged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from structured_init.errors import StructuredInitError

Key = tuple[str, int]  # arm and seed
Values = list[tuple[float | None, float]]  # (step, value) in their order; no step where none is known
Logged = dict[str, Values]  # by metric

SEEDS = ("seed", "random_seed", "seed_everything", "random_state", "manual_seed")  # settings that are one
STATES = ("finished", "running", "pending", "crashed", "failed", "killed")  # of a run, as Weights & Biases has them
HOW = "name runs as in mimetic_seed_0, or say how they are named, as in --runs '{arm}/{seed}'"


class Runs(dict[Key, Logged]):
    """What each run logged, by arm and seed; which were left out, and why; which ended with empty cells, and when."""

    def __init__(self, runs: Mapping[Key, Logged] | None = None) -> None:
        super().__init__(runs or {})
        self.left_out: dict[Key, str] = {}
        self.emptied: dict[str, dict[Key, float]] = {}  # by metric


def collected(found: Iterable[tuple[str, Key, Logged]]) -> Runs:
    """Return the runs of (name, arm and seed, what was logged), none of them twice, their values in order."""
    names: dict[Key, str] = {}
    runs = Runs()
    for name, key, logged in found:
        if key in names:
            raise StructuredInitError(f"'{names[key]}' and '{name}' are both arm '{key[0]}', seed {key[1]}: {HOW}")
        names[key], runs[key] = name, {metric: in_order(values) for metric, values in logged.items()}
    return runs


def named(name: str, pattern: str | None = None, settings: Mapping[str, str] | None = None) -> Key:
    """Return arm and seed of a run, by its settings and its name."""
    last = {key.rpartition(".")[2].rpartition("/")[2]: value for key, value in (settings or {}).items()}
    seed = next((whole(last[key]) for key in SEEDS if whole(last.get(key, "")) is not None), None)
    parts = by_name(name, pattern)
    if "arm" in last and seed is not None:
        return last["arm"], seed
    if parts is None and seed is not None:
        return name, seed
    if parts is None:
        raise StructuredInitError(f"cannot tell the arm and the seed of the run '{name}': {HOW}")
    return last.get("arm", parts[0]), parts[1] if seed is None else seed


def by_name(name: str, pattern: str | None = None) -> Key | None:
    """Return arm and seed as a name alone tells them; None where it does not.

    Without a pattern it is ``seed`` with a number from anywhere in the name, or a number from its end.
    """
    if pattern:
        wanted = re.escape(pattern).replace(r"\{arm\}", "(?P<arm>.+)").replace(r"\{seed\}", r"(?P<seed>\d{1,18})")
        match = re.fullmatch(wanted.replace(r"\*", ".*"), name)
        return (match["arm"], int(match["seed"])) if match else None
    bare = re.sub(r"/version_\d+$", "", name)  # Lightning's loggers add it
    match = re.search(r"(?:^|[/_\-. ,])seed[_\-= ]?(\d{1,18})(?=$|[/_\-. ,])", bare, re.IGNORECASE)
    match = match or re.search(r"[/_\-. ]s?(\d{1,18})$", bare)
    if match is None:
        return None
    arm = f"{bare[: match.start()]}/{bare[match.end() :]}".strip("/_-. ,")
    return (arm, int(match[1])) if arm else None


def whole(text: str) -> int | None:
    """Return a whole number, also one that a table has as ``3.0``; None where it is none, or of over 18 digits."""
    match = re.fullmatch(r"\s*([+-]?\d{1,18})(?:\.0*)?\s*", str(text))
    return int(match[1]) if match else None


def in_order(values: Values) -> Values:
    """Return logged values by their steps; where a step was logged again, the later value counts."""
    if any(step is None for step, _ in values):
        return values
    return sorted(dict(values).items(), key=lambda pair: pair[0] or 0.0)
