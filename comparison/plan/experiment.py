"""What a command line asks for, found out before anything runs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import MetricCollection

from callbacks import InitCallback
from comparison.runs.records import leaves
from lightning_modules.cli.configurations import expand
from lightning_modules.cli.lightning_cli import CLI, BuildOnly, Parser
from lightning_modules.cli.mistakes import errors_of_constructors
from structured_init import Initializer

# For what is built on a machine that need not have the devices of those that train.
ANYWHERE = [
    f"--trainer.{key}" for key in ("accelerator=cpu", "devices=1", "num_nodes=1", "strategy=auto", "precision=32")
]
NOT_THE_EXPERIMENT = ("seed_everything", "ckpt_path", "weights_only", "trainer.logger")


class ParseOnly(BuildOnly):
    """Parses a command line, checks it, and builds nothing."""

    def instantiate_classes(self) -> None:
        """Build nothing."""

    def after_instantiate_classes(self) -> None:
        """Compare nothing: nothing is built."""


def parse(arguments: Sequence[str]) -> ParseOnly:
    """Parse the arguments of ``fit``, and build nothing."""
    with _quiet():
        return ParseOnly(expand(["fit", *arguments]))


def values_of(parsed: ParseOnly) -> dict[str, Any]:
    """Return every value that a ``fit`` would have, by its dotted name, as plain types."""
    values = yaml.safe_load(parsed.parser.dump(parsed.config, skip_none=False, skip_validation=True))["fit"]
    return dict(sorted(leaves("", values)))


def experiment_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that make the experiment: all but the initialization, the seed and where things are written."""
    return {
        key: value
        for key, value in values.items()
        if not any(key == name or key.startswith(f"{name}.") for name in (*NOT_THE_EXPERIMENT, "init"))
    }


def build(arguments: Sequence[str]) -> CLI:
    """Build trainer, model and data for ``fit``, so that what only they can find wrong shows now."""
    with _quiet():
        return BuildOnly(expand(["fit", *arguments]))


def initializer_of(parsed: ParseOnly) -> Initializer:
    """Build the initializer alone."""
    with _quiet():
        parser = Parser()
        parser.add_lightning_class_args(InitCallback, "init")
        with errors_of_constructors(parser):
            built = parser.instantiate_classes(parser.parse_object({"init": parsed.config.fit.init.as_dict()}))
    return built.init.initializer


def headline(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the metric that a task is judged by, and whether more or less of it is better."""
    module, _, name = str(values["model.class_path"]).rpartition(".")
    return getattr(getattr(importlib.import_module(module), name), "headline", ("loss", "min"))


def metric_names(cli: CLI) -> set[str]:
    """Return the names that the task's metric collections, or those of recall, log; none where it has neither."""
    collections = (each for each in cli.model.modules() if isinstance(each, MetricCollection))
    recall = cli.model.recall_of(cli.datamodule) if hasattr(cli.model, "recall_of") else {}
    of_recall = {f"{part}/{name}" for part, each in recall.items() for name in ("loss", *each.names)}
    return {str(name) for each in collections for name in each.keys(keep_base=False)} | of_recall


def lacks(cli: CLI, split: str) -> str:
    """Say what a task lacks to be run on a split, ``"test"`` or ``"val"``; an empty text where it lacks nothing."""
    data = cli.datamodule or cli.model
    if split == "test" and not getattr(data, "has_test", True):
        return "the data has no split to test on"
    # A module may log on the validation split without a validation_step.
    step = split == "test" or is_overridden("validation_step", cli.model)
    for name, part, needed in ((f"{split}_step", cli.model, split == "test"), (f"{split}_dataloader", data, step)):
        if needed and not is_overridden(name, part):
            return f"{type(part).__name__} has no {name}"
    return ""


def missing_callbacks(values: Mapping[str, Any], wanted: Sequence[type[Callback]]) -> list[str]:
    """Return the names of the callbacks that an experiment does not have yet."""
    said = repr([value for key, value in values.items() if key.startswith("trainer.callbacks")])
    return [each.__name__ for each in wanted if f".{each.__name__}'" not in said]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's remarks and the seed that it leaves in the environment out of this process."""
    seed = {name: value for name, value in os.environ.items() if name == "PL_GLOBAL_SEED"}
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(os.environ.update, seed)
        afterwards.callback(os.environ.pop, "PL_GLOBAL_SEED", None)
        for logger in map(logging.getLogger, ("lightning.pytorch", "lightning.fabric")):
            afterwards.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield
