"""Folders of Lightning's ``CSVLogger``, read into one table: ``metrics.csv`` for each run, its settings beside it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from comparison.runs.elsewhere.tables import STEPS, TABLES, Cells, Wanted, few_valued, key_of, last_part, read_csv
from comparison.runs.records import last_logged
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.files import read_text

METRICS, SETTINGS = "metrics.csv", ("hparams.yaml", "config.yaml")
SEEDS = ("seed", "seed_everything")  # settings that are one
RESUMING = "ckpt_path"  # in it, a run differs from the one that it goes on with
MOST_SETTINGS = 10_000  # a few lines of references can stand for billions


def read_logs(path: Path, wanted: Wanted) -> Cells:
    """Return the cells of the logs of runs."""
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
        logs = sorted(map(_log, folders), key=lambda log: log["step"].astype(float).min())
        is_same = all(settings[folder] == settings[folders[0]] for folder in folders)
        if is_same and _go_on(logs):
            parts.append(last_logged(pd.concat(logs)).assign(arm=arm, seed=seed, state=""))
        else:
            said = ", ".join(f"'{names[folder]}'" for folder in folders)
            why = f"Left out, as all of them are {arm} seed {seed} and none goes on with another"
            left_out.append(f"{why}: {said}. Move away those that do not count.")
    if not parts:
        raise StructuredInitError(f"'{path}' has no run that counts: {' '.join(left_out)}")
    return Cells(pd.concat(parts), "step", left_out)


def _log(folder: Path) -> pd.DataFrame:
    """Return a log with a row per value; without its last line where that is still being written."""
    file = folder / METRICS
    text = read_text(file)
    rows = read_csv(file, text[: text.rfind("\n") + 1])
    if "step" not in rows:
        raise StructuredInitError(f"'{file}' has no column 'step', so it is no log of CSVLogger")
    rows.index = f"{folder.name}/{METRICS}, " + rows.index
    table = rows.melt("step", rows.columns.difference(STEPS, sort=False), "metric", "text", ignore_index=False)
    return table[table["text"] != ""]


def _go_on(logs: list[pd.DataFrame]) -> bool:
    """Tell whether each log goes on with the one before: it begins later, with every metric that both have."""
    begins = [log["step"].astype(float).groupby(log["metric"]).min() for log in logs]
    steps = pd.concat(begins)
    return not (steps.groupby(level="metric").diff() <= 0).any()


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
    """Return arm and seed: as settings say, else as the folder is called."""
    arm, seed = key_of(re.sub(r"(^|/)version_\d+$", "", name))
    if wanted.arm:
        arm = _setting(wanted.arm, settings, path / name)
    seed = _told_seed(path / name, settings, wanted.seed) or seed or name  # the last is refused: it is no number
    return arm or path.resolve().name, seed


def _told_seed(folder: Path, settings: Mapping[str, str], wanted: str | None) -> str:
    """Return the seed that settings tell; empty where none does."""
    if wanted:
        return _setting(wanted, settings, folder)
    told = {key: text for key, text in settings.items() if last_part(key) in SEEDS}
    if len({*told.values()}) > 1:
        raise StructuredInitError(f"{' and '.join(told)} of '{folder}' differ: name the seed with --seed")
    return next(iter(told.values()), "")


def _setting(name: str, settings: Mapping[str, str], folder: Path) -> str:
    """Return a setting by its dotted name or, where no other ends so, by the last part of it."""
    texts = {key.removesuffix(".class_path"): text for key, text in settings.items()}
    found = [name] if name in texts else [key for key in texts if last_part(key) == name]
    if len(found) != 1:
        near = f"there are {' and '.join(found)}" if found else nearest(name, texts)
        raise StructuredInitError(f"no setting of '{folder}' is called '{name}': {near}")
    return texts[found[0]]
