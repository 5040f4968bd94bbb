"""What a run made elsewhere is: an arm, a seed, and what it logged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from structured_init.errors import StructuredInitError, nearest

Key = tuple[str, int]  # arm and seed
Values = list[tuple[float | None, float]]  # (step, value) in their order; no step where none is known
Logged = dict[str, Values]  # by metric

SEEDS = ("seed", "random_seed", "seed_everything", "random_state", "manual_seed")  # settings that are one
# Of a run, as Weights & Biases and MLflow have them.
STATES = ("finished", "running", "pending", "scheduled", "crashed", "failed", "killed")
HOW = (
    "name runs as in mimetic_seed_0, or say how they are named, as in --runs '{arm}/{seed}', or which columns of a "
    "table, or settings in logs of Lightning, TensorBoard and MLflow, tell, as in --arm init --seed seed"
)


class Runs(dict[Key, Logged]):
    """What each run logged, by arm and seed; which were left out, and why; which ended with empty cells, and when.

    ``counted`` is what steps are: ``"optimizer steps"`` or ``"epochs"``.
    """

    def __init__(self, runs: Mapping[Key, Logged] | None = None) -> None:
        super().__init__(runs or {})
        self.left_out: dict[Key, str] = {}
        self.emptied: dict[str, dict[Key, float]] = {}  # by metric
        self.counted = "optimizer steps"


def collected(found: Iterable[tuple[str, Key, Logged]]) -> Runs:
    """Return the runs of (name, arm and seed, what was logged), none of them twice, their values in order.

    Two that have no metric in common are one run: Lightning's ``fit`` and ``test`` write a folder each.
    """
    names: dict[Key, str] = {}
    runs = Runs()
    for name, key, logged in found:
        if not runs.get(key, {}).keys().isdisjoint(logged):
            raise StructuredInitError(
                f"'{names[key]}' and '{name}' are both arm '{key[0]}', seed {key[1]}: put runs that differ in "
                f"another setting into folders of their own; or {HOW}"
            )
        names.setdefault(key, name)
        runs.setdefault(key, {}).update({metric: in_order(values) for metric, values in logged.items()})
    return runs


def named(
    name: str,
    pattern: str | None = None,
    settings: Mapping[str, str] | None = None,
    seed: str | None = None,
    arm: str | None = None,
) -> Key:
    """Return arm and seed of a run, by its settings, of which two may be named, and its name."""
    settings = settings or {}
    own = {last(key): value for key, value in settings.items()} | {**settings}
    label = setting(arm, settings, name) if arm else own.get("arm")
    given = [setting(seed, settings, name)] if seed else [own[key] for key in SEEDS if key in own]
    number = next((n for text in given if (n := whole(text)) is not None), None)
    if seed and number is None:
        raise StructuredInitError(f"the setting '{seed}' of the run '{name}' is '{given[0]}', not a whole number")
    parts = by_name(name, pattern) or (None if number is None else (_bare(name), number))
    if parts is None:
        raise StructuredInitError(f"cannot tell the arm and the seed of the run '{name}': {HOW}")
    return label or parts[0], parts[1] if number is None else number


def setting(wanted: str, settings: Mapping[str, str], run: str) -> str:
    """Return the value of a setting, by its dotted name or, where no other ends so, by the last part of it."""
    names = {key.removesuffix(".class_path"): value for key, value in settings.items() if key}
    found = [wanted] if wanted in names else [key for key in names if last(key) == wanted]
    if len(found) != 1:
        near = f"there are {' and '.join(found)}" if found else nearest(wanted, list(names))
        raise StructuredInitError(f"no setting of '{run}' is called '{wanted}': {near}")
    return names[found[0]]


def last(key: str) -> str:
    """Return the last part of the name of a setting."""
    return re.split("[./]", key)[-1]


def by_name(name: str, pattern: str | None = None) -> Key | None:
    """Return arm and seed as a name alone tells them; None where it does not.

    Without a pattern it is ``seed`` with a number from anywhere in the name, or a number from its end.
    """
    if pattern:
        wanted = re.escape(pattern).replace(r"\{arm\}", "(?P<arm>.+)").replace(r"\{seed\}", r"(?P<seed>\d{1,18})")
        match = re.fullmatch(wanted.replace(r"\*", ".*"), name)
        return (match["arm"], int(match["seed"])) if match else None
    bare = _bare(name)
    match = re.search(r"(?:^|[/_\-. ,])seed[_\-= ]?(\d{1,18})(?=$|[/_\-. ,])", bare, re.IGNORECASE)
    # A decimal, a power of ten and a date end in no seed: lr_0.001, lr_1e-3, 2025-11-25.
    match = match or re.search(r"(?:[/_ ]|(?<!\d)\.|(?<!\d[eE])(?<!\d{4}-\d\d)-)s?(\d{1,18})$", bare)
    if match is None:
        return None
    arm = f"{bare[: match.start()]}/{bare[match.end() :]}".strip("/_-. ,")
    return (arm, int(match[1])) if arm else None


def _bare(name: str) -> str:
    return re.sub(r"/version_\d+$", "", name)  # Lightning's loggers add it


def whole(text: str) -> int | None:
    """Return a whole number, also one that a table has as ``3.0``; None where it is none, or of over 18 digits."""
    match = re.fullmatch(r"\s*([+-]?\d{1,18})(?:\.0*)?\s*", str(text))
    return int(match[1]) if match else None


def in_order(values: Values) -> Values:
    """Return logged values by their steps; where a step was logged again, the later value counts."""
    if any(step is None for step, _ in values):
        return values
    return sorted(dict(values).items(), key=lambda pair: pair[0] or 0.0)
