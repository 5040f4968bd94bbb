"""Folders of Lightning's ``CSVLogger``, read into one table: ``metrics.csv`` for each run, its settings beside it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from comparison.runs.elsewhere.tables import STEPS, TABLES, Wanted, few_valued, key_of, last_part, read_csv
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import read_text

METRICS, SETTINGS = "metrics.csv", ("hparams.yaml", "config.yaml")
SEEDS = ("seed", "seed_everything")  # settings that are one
RESUMING = "ckpt_path"  # in it, a run differs from the one that it goes on with
MOST_SETTINGS = 10_000  # a few lines of references can stand for billions


def read_logs(path: Path, wanted: Wanted) -> tuple[pd.DataFrame, list[str]]:
    """Return the logs of runs with a row per value, and which folders were left out, a sentence each."""
    names = {log.parent: log.parent.relative_to(path).as_posix() for log in sorted(path.rglob(METRICS))}
    if not names:
        raise StructuredInitError(
            f"'{path}' cannot be read as results: give the folder of a comparison, a table ({', '.join(TABLES)}) with "
            "the columns arm, seed and a metric, or a folder of Lightning's CSVLogger; of what TensorBoard and MLflow "
            "hold, five lines in docs/compare.md make a table"
        )
    settings = {folder: _settings(folder) for folder in names}
    folders_of: dict[tuple[str, str], list[Path]] = {}
    for folder, name in names.items():
        folders_of.setdefault(_key(path, name, settings[folder], wanted), []).append(folder)
    if not wanted.arm and len({arm for arm, _ in folders_of}) == 1:
        likely = few_valued(pd.DataFrame(settings.values()).fillna(""))
        if likely:
            raise StructuredInitError(f"the folders of '{path}' tell no arms apart: name a setting with --arm{likely}")
    parts: list[pd.DataFrame] = []
    left_out: list[str] = []
    for (arm, seed), folders in folders_of.items():
        joined = _joined([_log(folder) for folder in folders])
        if joined is None or any(settings[folder] != settings[folders[0]] for folder in folders):
            said = ", ".join(f"'{names[folder]}'" for folder in folders)
            why = f"Left out, as all of them are {arm} seed {seed} and none goes on with another"
            left_out.append(f"{why}: {said}. Move away those that do not count.")
        else:
            parts.append(joined.assign(arm=arm, seed=seed))
    if not parts:
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    return pd.concat(parts), left_out


def _log(folder: Path) -> pd.DataFrame:
    """Return a log with a row per value; without its last line where that is still being written."""
    file = folder / METRICS
    text = read_text(file)
    rows = read_csv(file, text[: text.rfind("\n") + 1])
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
                content = yaml.load(read_text(file), Loader=yaml.BaseLoader)  # it makes nothing that a tag names
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


def _key(path: Path, name: str, settings: Mapping[str, str], wanted: Wanted) -> tuple[str, str]:
    """Return arm and seed: as settings or the pattern say, else as the folder is called."""
    if wanted.runs:
        arm, seed = key_of(name, wanted.runs)
    else:
        bare = re.sub(r"(^|/)version_\d+$", "", name)
        arm, seed = key_of(f"{path.resolve().name}/{bare}")
        told = {key: text for key, text in settings.items() if last_part(key) in SEEDS}
        if wanted.seed:
            told = {wanted.seed: _setting(wanted.seed, settings, path / name)}
        if len({*told.values()}) > 1:
            raise StructuredInitError(f"{' and '.join(told)} of '{path / name}' differ: name the seed with --seed")
        if told:
            arm, seed = re.sub(r"(^|/)seed_\d+$", "", bare) or path.resolve().name, next(iter(told.values()))
        elif not arm:
            seed = name
    return (_setting(wanted.arm, settings, path / name) if wanted.arm else arm), seed


def _setting(name: str, settings: Mapping[str, str], folder: Path) -> str:
    """Return a setting by its dotted name or, where no other ends so, by the last part of it."""
    texts = {key.removesuffix(".class_path"): text for key, text in settings.items()}
    found = [name] if name in texts else [key for key in texts if last_part(key) == name]
    if len(found) != 1:
        near = f"there are {' and '.join(found)}" if found else nearest(name, texts)
        raise StructuredInitError(f"no setting of '{folder}' is called '{name}': {near}")
    return texts[found[0]]
