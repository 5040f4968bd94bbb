"""Folders of Lightning's ``CSVLogger``, read into one table: ``metrics.csv`` for each run, its settings beside it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from comparison.runs.elsewhere.cells import WHOLE
from comparison.runs.elsewhere.tables import STEPS, TABLES, Key, csv_rows, few_valued, key_of, last_part
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import read_text

METRICS, SETTINGS = "metrics.csv", ("hparams.yaml", "config.yaml")
SEEDS = ("seed", "seed_everything", "random_seed", "random_state", "manual_seed")  # settings that are one
RESUMING = "ckpt_path"  # in it, a run differs from the one that it goes on with
MOST_SETTINGS = 10_000


def read_logs(path: Path, pattern: str | None, seed: str | None, arm: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Return the logs of runs with a row per value, and which folders were left out, a sentence each."""
    names = {log.parent: log.parent.relative_to(path).as_posix() for log in sorted(path.rglob(METRICS))}
    if not names:
        raise StructuredInitError(
            f"'{path}' cannot be read as results: give the folder of a comparison, a table ({', '.join(TABLES)}) with "
            "the columns arm, seed and a metric, or a folder of Lightning's CSVLogger; of what TensorBoard and MLflow "
            "hold, five lines in docs/compare.md make a table"
        )
    settings = {folder: _settings(folder) for folder in names}
    keys = {folder: _key_of_log(path, name, settings[folder], pattern, seed, arm) for folder, name in names.items()}
    if not arm and len({label for label, _ in keys.values()}) == 1:
        others = pd.DataFrame(settings.values()).fillna("")
        likely = few_valued(others[[name for name in others if last_part(name) not in SEEDS]])
        if likely:
            raise StructuredInitError(f"the folders of '{path}' tell no arms apart: name a setting with --arm{likely}")
    parts: list[pd.DataFrame] = []
    left_out: list[str] = []
    for key in dict.fromkeys(keys.values()):
        folders = [folder for folder, own in keys.items() if own == key]
        joined = _joined([_log(folder) for folder in folders])
        if joined is None or any(settings[folder] != settings[folders[0]] for folder in folders):
            said = ", ".join(f"'{names[folder]}'" for folder in folders)
            why = f"Left out, as all of them are {key[0]} seed {key[1]} and none goes on with another"
            left_out.append(f"{why}: {said}. Move away those that do not count.")
        else:
            parts.append(joined.assign(arm=key[0], seed=key[1]))
    if not parts:
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    return pd.concat(parts), left_out


def _log(folder: Path) -> pd.DataFrame:
    """Return a log with a row per value; without its last line where that is still being written."""
    file = folder / METRICS
    text = read_text(file)
    rows = csv_rows(file, text[: text.rfind("\n") + 1])
    if "step" not in rows:
        raise StructuredInitError(f"'{file}' has no column 'step', so it is no log of CSVLogger")
    rows.index = f"{folder.name}/{METRICS}, " + rows.index
    table = rows.melt("step", rows.columns.difference(STEPS, sort=False), "metric", "value", ignore_index=False)
    return table[table["value"] != ""].drop_duplicates(["metric", "step"], keep="last")


def _joined(logs: list[pd.DataFrame]) -> pd.DataFrame | None:
    """Return the log of one run, of which each part goes on with another; None where they are several runs.

    A part goes on with another if its first step of each metric that both have comes later than the other's first.
    """
    first, *others = sorted(logs, key=lambda log: log["step"].astype(float).min())
    for log in others:
        begins = log["step"].astype(float).groupby(log["metric"]).min()
        steps = first["step"].astype(float)
        before = steps.groupby(first["metric"]).min()
        if (begins.reindex(before.index) <= before).any():
            return None
        first = pd.concat([first[~(steps >= first["metric"].map(begins))], log])
    return first


def _settings(folder: Path) -> dict[str, str]:
    """Return the settings of a run as texts, by their dotted names."""
    found: dict[str, str] = {}
    for file in (folder / name for name in SETTINGS):
        if file.exists():
            try:
                # As texts, without making what a tag names. A few lines of references can stand for billions.
                content = yaml.load(read_text(file), Loader=yaml.BaseLoader)
                found.update(itertools.islice(_leaves("", content or {}), MOST_SETTINGS))
            except (yaml.YAMLError, RecursionError) as error:
                raise StructuredInitError(f"cannot read '{file}': {error}") from None
    return found


def _leaves(prefix: str, content: Any) -> Iterator[tuple[str, str]]:
    pairs = content.items() if isinstance(content, Mapping) else enumerate(content)
    for name, value in pairs:
        if isinstance(value, (Mapping, list)):
            yield from _leaves(f"{prefix}{name}.", value)
        elif name != RESUMING:
            yield f"{prefix}{name}", value


def _key_of_log(
    path: Path, name: str, settings: Mapping[str, str], pattern: str | None, seed: str | None, arm: str | None
) -> Key:
    """Return arm and seed: those that the pattern or settings say; else the arm is the folder's name."""
    bare = re.sub(r"(^|/)version_\d+$", "", name)
    told = {key: text for key, text in settings.items() if last_part(key) in SEEDS and re.fullmatch(WHOLE, text)}
    if seed:
        told = {seed: _setting(seed, settings, path / name)}
    elif len({*told.values()}) > 1:
        raise StructuredInitError(f"{' and '.join(told)} of '{path / name}' differ: name the seed with --seed")
    if told and not pattern:
        label, number = re.sub(r"(^|/)seed_\d+$", "", bare) or path.resolve().name, next(iter(told.values()))
    else:
        label, number = key_of(name if pattern else f"{path.resolve().name}/{bare}", pattern)
        number = number if label else name
    return (_setting(arm, settings, path / name) if arm else label), number


def _setting(wanted: str, settings: Mapping[str, str], folder: Path) -> str:
    """Return a setting by its dotted name or, where no other ends so, by the last part of it."""
    names = {name.removesuffix(".class_path"): text for name, text in settings.items()}
    found = [wanted] if wanted in names else [name for name in names if last_part(name) == wanted]
    if len(found) != 1:
        near = f"there are {' and '.join(found)}" if found else nearest(wanted, names)
        raise StructuredInitError(f"no setting of '{folder}' is called '{wanted}': {near}")
    return names[found[0]]
