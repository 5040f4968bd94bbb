"""Logs: of Lightning's ``CSVLogger``, of TensorBoard, and of MLflow.

- Lightning: ``lightning_logs/version_0/``, each with ``metrics.csv`` and the settings of the run. Arms are what differs
  in the folders' names and in the settings (``hparams.yaml``, and what a command line saved beside it); what differs
  with the seed alone, or in every run, tells no arms apart.
- TensorBoard's event files, read by TensorBoard: a folder per run.
- MLflow: files below ``mlruns/<experiment>/<run>/``, or the SQLite database ``mlflow.db``.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from comparison.results.elsewhere.runs import SEEDS, Key, Logged, Runs, by_name, collected, last, named, setting, whole
from structured_init.errors import StructuredInitError, nearest
from structured_init.files import refuse_endless
from structured_init.presets import split_outside_brackets

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
METRICS, SETTINGS_FILES = "metrics.csv", ("hparams.yaml", "config.yaml", "experiment.yaml")
COUNTED = "tensors_set"  # of the hyperparameters; what an initializer did is no setting
PLACE = ""  # the setting that is the folder's name, without its version
MOST_SETTINGS = 10_000
Settings = dict[str, str]
EVENTS = "*tfevents*"
META = "meta.yaml"
SQLITE = b"SQLite format 3\0"


class _UntaggedLoader(yaml.SafeLoader):
    """Reads what a tag stands before as what it is written as: hparams.yaml has tuples, and may have any class."""


def _untagged(loader: _UntaggedLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


_UntaggedLoader.add_multi_constructor("", _untagged)


def read_lightning(path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None) -> Runs:
    """Return the runs of a folder: every folder in it that holds ``metrics.csv`` is one."""
    folders = {file.parent.relative_to(path).as_posix(): file.parent for file in sorted(path.rglob(METRICS))}
    settings = {name: _run_settings(folder, name) for name, folder in folders.items()}
    keys = _by_settings(settings, path, seed, pattern)
    if arm is not None:
        keys = {name: (setting(arm, settings[name], str(path / name)), key[1]) for name, key in keys.items()}
    return collected(((name, keys[name], _logged(folder / METRICS)) for name, folder in folders.items()))


def _by_settings(settings: Mapping[str, Settings], path: Path, seed: str | None, pattern: str | None) -> dict[str, Key]:
    """Return the arm and the seed of every run."""
    seeds = {
        name: next((found for key in own if _is_seed(key, seed) and (found := whole(own[key])) is not None), None)
        for name, own in settings.items()
    }
    if pattern or None in seeds.values():
        named = {name: by_name(f"{path.resolve().name}/{name}" if not pattern else name, pattern) for name in settings}
        lost = next((name for name, key in named.items() if key is None), None)
        if lost is not None:
            every = {key for own in settings.values() for key in own if key != PLACE}
            known = f" ({nearest(seed, every)})" if seed else ""
            if pattern and None not in seeds.values():
                raise StructuredInitError(f"--runs '{pattern}' fits no folder '{lost}' in '{path}'")
            raise StructuredInitError(
                f"cannot tell the seed of '{path / lost}': no setting is called {seed or 'seed'}{known}. Name the "
                "setting with --seed, or say how folders are named, as in --runs '{arm}/version_{seed}'"
            )
        return {name: key for name, key in named.items() if key is not None}
    arms = _arms(settings, {name: each for name, each in seeds.items() if each is not None}, seed)
    return {name: (arms[name] or path.resolve().name, each) for name, each in seeds.items() if each is not None}


def _arms(settings: Mapping[str, Settings], seeds: Mapping[str, int], seed: str | None) -> dict[str, str]:
    """Return the label of every run's arm: the values of as few settings as tell all of them apart, words first."""
    labels: dict[str, list[str]] = {name: [] for name in settings}
    short: dict[str, list[str]] = {name: [] for name in settings}  # without what a run has no setting of
    differing: dict[str, dict[str, str]] = {}
    for key in dict.fromkeys(key for own in settings.values() for key in own):
        values = {name: own.get(key, "none") for name, own in settings.items()}
        kinds, pairs = len(set(values.values())), len({(values[name], seeds[name]) for name in settings})
        many = len(set(seeds.values()))
        with_seed = many > 1 and (kinds == many == pairs or kinds == len(settings))
        if not (kinds == 1 or _is_seed(key, seed) or with_seed or last(key) == COUNTED):
            differing[key] = values
    numbers = {key for key, of in differing.items() if all(map(NUMBER.fullmatch, of.values()))}
    words = {name: tuple(of[name] for key, of in differing.items() if key not in numbers) for name in settings}
    for key, values in differing.items():
        before = len({tuple(label) for label in labels.values()})
        after = len({(*labels[name], values[name]) for name in settings})
        told = key in numbers and len({(*words[name], values[name]) for name in settings}) == len({*words.values()})
        if after == before or told:  # a rate that goes with an optimizer
            continue
        for name, value in values.items():
            plain = key == PLACE or key.endswith("class_path")
            text = value.rpartition(".")[2] if plain and key else f"{last(key)}={value}" if key else value
            labels[name].append(text)
            short[name].append("" if key not in settings[name] and any(short[name]) else text)
    whole, brief = ({name: ", ".join(filter(None, each)) for name, each in of.items()} for of in (labels, short))
    return brief if len({*brief.values()}) == len({*whole.values()}) else whole


def _is_seed(key: str, seed: str | None) -> bool:
    return (seed in (key, last(key))) if seed else last(key) in SEEDS


def _run_settings(folder: Path, name: str) -> Settings:
    """Return the settings of a run as texts, by their dotted names."""
    found = {PLACE: re.sub(r"((^|/)(version|seed)_\d+)+$", "", name)}
    for file in (folder / each for each in SETTINGS_FILES):
        try:
            content = yaml.load(file.read_text(encoding="utf-8"), Loader=_UntaggedLoader) if file.is_file() else {}
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
        elif (called := _call(value)) is not None:  # as an initializer in the hyperparameters
            yield f"{prefix}{key}.class_path", called[0]
            yield from ((f"{prefix}{key}.{name}", text[:60]) for name, text in called[1] if name not in SEEDS)
        else:
            yield f"{prefix}{key}", str(value)[:60]


def _call(value: Any) -> tuple[str, list[tuple[str, str]]] | None:
    """Take ``Mimetic(qk_alpha=0.7, vo_beta=0.2)`` apart; ``None`` for what is no call with named arguments alone."""
    called = re.fullmatch(r"([A-Za-z]\w*)\((.*)\)", value, re.DOTALL) if isinstance(value, str) else None
    try:
        pairs = [] if called is None else [each.strip().partition("=") for each in split_outside_brackets(called[2])]
    except StructuredInitError:  # brackets that do not match
        return None
    if called is None or not all(equals and name.isidentifier() for name, equals, _ in pairs):
        return None
    return called[1], [(name, text) for name, _, text in pairs]


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
    return found


def read_tensorboard(path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None) -> Runs:
    """Return the runs of a folder: every folder in it that holds event files is one.

    ``SummaryWriter.add_hparams`` writes into a folder of its own inside that of the run, to which it is added.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise StructuredInitError(
            "TensorBoard's event files need the package tensorboard: pip install 'structured-init[tensorboard]'"
        ) from None
    found: dict[Path, tuple[Logged, dict[str, str]]] = {}
    for folder in sorted({file.parent for file in path.rglob(EVENTS) if file.is_file()}):
        events = EventAccumulator(str(folder), size_guidance={SCALARS: 0, TENSORS: 0})
        events.Reload()
        tags = events.Tags()
        logged: Logged = {
            tag: [(float(each.step), float(each.value)) for each in events.Scalars(tag)] for tag in tags[SCALARS]
        }
        for tag in tags[TENSORS]:  # where TensorFlow 2 has written scalars
            values = [(float(each.step), make_ndarray(each.tensor_proto)) for each in events.Tensors(tag)]
            if all(value.shape == () and value.dtype.kind in "fiu" for _, value in values):
                logged[tag] = [(step, float(value)) for step, value in values]
        settings = _settings(events)
        if settings and folder.parent in found:  # the curves of the run count before what was added at its end
            before, known = found[folder.parent]
            found[folder.parent] = {**logged, **before}, {**settings, **known}
        else:
            # Perhaps also of hparams.yaml, which Lightning's logger writes beside the events.
            found[folder] = logged, {**(_run_settings(folder, "") if seed or arm else {}), **settings}
    runs = collected(
        (name, named(path.resolve().name if name == "." else name, pattern, settings, seed, arm), logged)
        for folder, (logged, settings) in found.items()
        if logged and (name := folder.relative_to(path).as_posix())
    )
    if not runs:
        raise StructuredInitError(f"the event files of '{path}' hold no scalars")
    return runs


def _settings(events: EventAccumulator) -> dict[str, str]:
    """Return the hyperparameters that were logged with a run; empty where none were."""
    from tensorboard.plugins.hparams import metadata

    try:
        content = events.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    except KeyError:
        return {}
    values = metadata.parse_session_start_info_plugin_data(content).hparams.items()
    return {name: str(getattr(value, value.WhichOneof("kind") or "string_value")) for name, value in values}


def read_mlflow(path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None) -> Runs:
    """Return the runs of an experiment."""
    found = [folder for folder in mlflow_runs(path) if _meta(folder).get("lifecycle_stage", "active") != "deleted"]
    experiments = sorted({folder.parent for folder in found})
    if len(experiments) > 1:
        listed = ", ".join(f"'{folder}' ({_meta(folder).get('name', 'without a name')})" for folder in experiments)
        raise StructuredInitError(
            f"'{path}' holds {len(experiments)} experiments: give the folder of one, such as {listed}"
        )
    runs = map(_mlflow_run, found)
    return collected((name, named(name, pattern, settings, seed, arm), logged) for name, settings, logged in runs)


def _mlflow_run(folder: Path) -> tuple[str, Settings, Logged]:
    """Return name, settings and values of a run: a file of a metric has a line per value: a time, the value, a step."""
    tags, params = ({name: text.strip() for name, text in _texts(folder / of)} for of in ("tags", "params"))
    name = str(_meta(folder).get("run_name") or tags.get("mlflow.runName") or folder.name)
    logged: Logged = {}
    for metric, text in _texts(folder / "metrics"):
        for number, line in enumerate(text.splitlines(), start=1):
            parts = line.split()
            try:
                value = (float(parts[2]) if len(parts) > 2 else None, float(parts[1]))
            except (IndexError, ValueError):
                raise StructuredInitError(
                    f"cannot read '{folder / 'metrics' / metric}', line {number}: expected a time, a value and a step, "
                    f"got '{line}'"
                ) from None
            logged.setdefault(metric, []).append(value)
    return name, {**tags, **params}, logged


def mlflow_runs(path: Path) -> list[Path]:
    """Return the folders of the runs of MLflow in a folder."""
    return sorted(file.parent for file in path.glob(f"**/{META}") if (file.parent / "metrics").is_dir())


def _meta(folder: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise StructuredInitError(f"cannot read '{folder / META}': {error}") from None
    return content if isinstance(content, dict) else {}


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every file of a folder."""
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        refuse_endless(file)
        yield file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8", errors="replace")


def is_database(path: Path) -> bool:
    """Tell whether a file is a database, as MLflow writes one."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def read_mlflow_database(
    path: Path, pattern: str | None = None, seed: str | None = None, arm: str | None = None
) -> Runs:
    """Return the active runs of a database of MLflow; of several experiments, each run is named ``experiment/run``."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(
                "SELECT run_uuid, runs.name, experiments.name FROM runs JOIN experiments USING (experiment_id) "
                "WHERE runs.lifecycle_stage = 'active' ORDER BY start_time, run_uuid"
            ).fetchall()
            pairs = [
                row
                for table in ("tags", "params")
                for row in database.execute(f"SELECT run_uuid, key, value FROM {table}").fetchall()
            ]
            values = database.execute("SELECT run_uuid, key, step, value, is_nan FROM metrics ORDER BY timestamp")
            logged: dict[str, Logged] = {}
            for run, key, step, value, is_nan in values:
                number = math.nan if is_nan else float(value)
                logged.setdefault(run, {}).setdefault(str(key), []).append((float(step), number))
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise StructuredInitError(f"cannot read '{path}' as a database of MLflow: {error}") from None
    several = len({experiment for _, _, experiment in found}) > 1
    called = {run: f"{experiment}/{own or run}" if several else str(own or run) for run, own, experiment in found}
    settings: dict[str, dict[str, str]] = {}
    for run, key, value in pairs:
        settings.setdefault(run, {})[key] = str(value)
    return collected(
        (name, named(name, pattern, settings.get(run), seed, arm), logged.get(run, {})) for run, name in called.items()
    )
