"""Lightning's ``CSVLogger``: ``lightning_logs/version_0/``, each with ``metrics.csv`` and the settings of the run.

Arms are what differs in the folders' names and in the settings (``hparams.yaml``, and what a command line saved beside
it); what differs with the seed alone, or in every run, tells no arms apart.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from comparison.results.elsewhere.runs import SEEDS, Key, Logged, Runs, add, by_name, in_order, whole
from structured_init.errors import StructuredInitError, nearest

METRICS, SETTINGS = "metrics.csv", ("hparams.yaml", "config.yaml", "experiment.yaml")
PLACE = ""  # the setting that is the folder's name, without its version
MOST_SETTINGS = 10_000

Settings = dict[str, str]


class _Plain(yaml.SafeLoader):
    """Reads what a tag stands before as what it is written as: hparams.yaml has tuples, and may have any class."""


def _untagged(loader: _Plain, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_Plain.add_multi_constructor("", _untagged)


def is_lightning(path: Path) -> bool:
    """Tell whether a folder holds runs of a ``CSVLogger``."""
    return next(path.rglob(METRICS), None) is not None


def read_lightning(path: Path, pattern: str | None = None, seed: str | None = None) -> Runs:
    """Return the runs of a folder: every folder in it that holds ``metrics.csv`` is one.

    Args:
        path: of the folder.
        pattern: how runs are named, where names have to tell arm and seed.
        seed: the setting that is the seed, where it is not called so.

    Raises:
        StructuredInitError: a run's seed is not known, or a file is damaged.
    """
    folders = {file.parent.relative_to(path).as_posix(): file.parent for file in sorted(path.rglob(METRICS))}
    keys = _by_settings({name: _settings(folder, name) for name, folder in folders.items()}, path, seed, pattern)
    runs: Runs = {}
    names: dict[Key, str] = {}
    for name, folder in folders.items():
        add(runs, keys[name], _logged(folder / METRICS), name, names)
    return runs


def _by_settings(settings: Mapping[str, Settings], path: Path, seed: str | None, pattern: str | None) -> dict[str, Key]:
    """Return the arm and the seed of every run."""
    seeds = {name: _seed(own, seed) for name, own in settings.items()}
    if pattern or None in seeds.values():
        named = {name: by_name(f"{path.resolve().name}/{name}" if not pattern else name, pattern) for name in settings}
        lost = next((name for name, key in named.items() if key is None), None)
        if lost is not None:
            every = {key for own in settings.values() for key in own if key != PLACE}
            known = f" ({nearest(seed, every)})" if seed else ""
            raise StructuredInitError(
                f"cannot tell the seed of '{path / lost}': no setting is called {seed or 'seed'}{known}. Name the "
                "setting with --seed, or say how folders are named, as in --runs '{arm}/version_{seed}'"
            )
        return {name: key for name, key in named.items() if key is not None}
    arms = _arms(settings, {name: each for name, each in seeds.items() if each is not None}, seed)
    return {name: (arms[name] or path.resolve().name, each) for name, each in seeds.items() if each is not None}


def _arms(settings: Mapping[str, Settings], seeds: Mapping[str, int], seed: str | None) -> dict[str, str]:
    """Return the label of every run's arm: the values of as few settings as tell all of them apart."""
    labels: dict[str, list[str]] = {name: [] for name in settings}
    for key in dict.fromkeys(key for own in settings.values() for key in own):
        values = {name: own.get(key, "none") for name, own in settings.items()}
        kinds, pairs = len(set(values.values())), len({(values[name], seeds[name]) for name in settings})
        many = len(set(seeds.values()))
        with_seed = many > 1 and (kinds == many == pairs or kinds == len(settings))
        before = len({tuple(label) for label in labels.values()})
        after = len({(*labels[name], values[name]) for name in settings})
        if kinds == 1 or _is_seed(key, seed) or with_seed or after == before:
            continue
        for name, value in values.items():
            plain = key == PLACE or key.endswith("class_path")
            labels[name].append(
                value.rpartition(".")[2] if plain and key else f"{_last(key)}={value}" if key else value
            )
    return {name: ", ".join(filter(None, label)) for name, label in labels.items()}


def _seed(own: Settings, seed: str | None) -> int | None:
    return next((found for key in own if _is_seed(key, seed) and (found := whole(own[key])) is not None), None)


def _is_seed(key: str, seed: str | None) -> bool:
    return (seed in (key, _last(key))) if seed else _last(key) in SEEDS


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _settings(folder: Path, name: str) -> Settings:
    """Return the settings of a run as texts, by their dotted names."""
    found = {PLACE: re.sub(r"(^|/)version_\d+$", "", name)}
    for file in (folder / each for each in SETTINGS):
        try:
            content = yaml.load(file.read_text(encoding="utf-8"), Loader=_Plain) if file.is_file() else {}
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise StructuredInitError(f"cannot read '{file}': {error}") from None
        # As many as a run can have: a few lines of references can stand for billions.
        found.update(itertools.islice(_leaves("", content), MOST_SETTINGS))
    return found


def _leaves(prefix: str, content: Any) -> Iterator[tuple[str, str]]:
    pairs = content.items() if isinstance(content, Mapping) else enumerate(content)
    for key, value in pairs:
        if isinstance(value, (Mapping, list)):
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", str(value)[:60]


def _logged(file: Path) -> Logged:
    """Return the numbers of a log; a line that was being written has no step."""
    found: Logged = {}
    with file.open(newline="", encoding="utf-8", errors="replace") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            step = row.pop("step", None)
            for name, text in row.items():
                if not step or not text or name == "epoch":
                    continue
                try:
                    found.setdefault(str(name), []).append((float(step), float(text)))
                except (TypeError, ValueError):
                    raise StructuredInitError(
                        f"cannot read '{file}', line {reader.line_num}: '{text}' is not a number"
                    ) from None
    return {name: in_order(values) for name, values in found.items()}
