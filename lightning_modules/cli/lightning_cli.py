"""LightningCLI with sections for the initialization, the attention and the filters."""

from __future__ import annotations

import csv
import inspect
import os
import shlex
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from lightning_modules.cli.configurations import KEY, SECTIONS, without
from lightning_modules.cli.mistakes import check_trainer, explain, original_error, refuse_unwritable
from lightning_modules.cli.show import Runner
from lightning_modules.tasks.checkpoint import (
    WholeCheckpoints,
    checkpoints_in,
    newest_checkpoint,
    read_checkpoint,
    refuse_best,
)
from structured_init import Default, StructuredInitError
from structured_init.util.errors import begin_writing, one_line
from structured_init.util.files import DamagedFileError

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # lightning 2.6 calls it by its older names
import callbacks
import callbacks.figures
import lightning_modules
import lightning_modules.data
import structured_init
from callbacks.lightning_private import CommandLine

# A class resolves in YAML by its bare name once it is imported; the packages import theirs when they are asked for.
for package in (structured_init, callbacks, lightning_modules, lightning_modules.data):
    for public in package.__all__:
        getattr(package, public)

ABOUT = "Train, evaluate and look at a network with the initialization of the section init."
PARTS = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}  # of the data, by command
SETTINGS = "experiment.yaml"  # of a run, in its folder
WRITTEN = {"report of the initialization": "init_report.json", "attention": "attention/*", "filters": "filters/*"}
WRITTEN |= {"figures": "*/*.png", "metrics": "metrics.csv", "checkpoints": "checkpoints/*"}
OF_ONE_COMMAND = {"ckpt_path", "weights_only", "verbose", "return_predictions"}  # keys of it that others do not take
FROM_THE_DATA = ("num_classes", "in_channels", "image_size", "vocab_size", "block_size", "objective")


class Parser(LightningArgumentParser):
    """A parser that raises, for ``main`` to print one line, and guesses no abbreviated key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"exit_on_error": False, "allow_abbrev": False, **kwargs})

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Namespace:
        """Parse a configuration without its ``layers``, given before it, and what a run's says of another command."""
        others = OF_ONE_COMMAND.difference(action.dest for action in self._actions)
        return super().parse_string(without(content, KEY, *others), *args, **kwargs)


class CLI(CommandLine, LightningCLI):
    """LightningCLI with an initialization, captures of attention and filters, and an exact resumption in every run."""

    def __init__(self, args: list[str]) -> None:
        self._args, self._sections = args, []
        super().__init__(
            trainer_class=Runner,
            save_config_kwargs={"config_filename": SETTINGS, "overwrite": True},
            seed_everything_default=0,
            parser_kwargs={"description": ABOUT},
            parser_class=Parser,
            auto_configure_optimizers=False,
            args=args,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the command that is asked for, with what is not asked of the user: each has a parser of its own."""
        ours = {"model", "datamodule", "initializer", "seed", "samples", "figures"}
        known = {**LightningCLI.subcommands(), "show": ours, "audit": ours}
        return {self._args[0]: known[self._args[0]]}

    @property
    def _section(self) -> LightningArgumentParser:
        """The parser of the command that is asked for; the last one's where none is known."""
        return self._sections[-1]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``init:``, ``attention:`` and ``filters:``, apart from ``trainer.callbacks``: YAML replaces lists."""
        parser.add_lightning_class_args(callbacks.InitCallback, "init")
        parser.add_lightning_class_args(callbacks.AttentionMapCallback, "attention")
        parser.add_lightning_class_args(callbacks.FilterCallback, "filters")
        initializer = {"class_path": f"{Default.__module__}.{Default.__name__}"}
        parser.set_defaults({"init.initializer": initializer, "attention.on_missing": "skip"})
        self._sections.append(parser)
        for name in FROM_THE_DATA:
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse without Lightning's warning of arguments given twice; a mistake is a line, not jsonargparse's usage."""
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            known_keys = list(self._section.get_defaults().keys(branches=True))
            raise StructuredInitError(explain(str(error), known_keys)) from error
        section = self.config.get(self.config.get("subcommand")) or Namespace()
        for key in ("seed_everything", "init.seed"):
            seed = section.get(key) if isinstance(section.get("init"), Namespace) else None
            if seed is not None and not 0 <= seed < 2**32:
                raise StructuredInitError(f"{key} is {seed}: a seed must be a whole number from 0 to {2**32 - 1}")

    def check_checkpoint(self) -> None:
        """Check the file only: ``Task.on_load_checkpoint`` compares the arguments and refuses a difference.

        Lightning's own method would let the checkpoint's arguments silently replace the user's.
        """
        section = self.config[self.config.subcommand]
        path = section.get("ckpt_path")
        refuse_best(path, self.config.subcommand, section.get("trainer.default_root_dir"))
        if path and path not in ("last", "best", "hpc", "registry") and "://" not in str(path):
            if section.get("weights_only") is False and os.path.exists(path):
                return  # trusted: Lightning runs what it holds
            try:
                checkpoint = read_checkpoint(path)
            except StructuredInitError as error:
                raise StructuredInitError(f"{error}{_way_out(Path(path), error)}") from error
            weights = "state_dict" in checkpoint  # not read of a sharded one
            if self.config.subcommand == "fit" and weights and "optimizer_states" not in checkpoint:
                raise StructuredInitError(f"'{path}' holds only weights: training cannot be resumed from it")

    def before_instantiate_classes(self) -> None:
        """Run no code of a checkpoint unasked, refuse a section that is no keys, and watch networks being built."""
        self.parser.add_instantiator(self._build, nn.Module)
        section = self.config[self.subcommand]
        for name in SECTIONS[:4]:
            if not isinstance(section[name], Namespace):
                keys = ", ".join([*vars(self._section.get_defaults()[name])][:6])
                raise StructuredInitError(f"'{name}' is a section with keys such as {keys}, got {section[name]}")
        check_trainer(section.trainer)
        if "weights_only" in section and section.weights_only is None:
            section.weights_only = True

    def _build(self, cls: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
        """Build a network, keeping what goes wrong: jsonargparse answers an error in a choice of types with its own."""
        try:
            return cls(*args, **kwargs)
        except Exception as error:
            if cls.__module__.partition(".")[0] in ("timm", "torchvision", "transformers"):  # no code of the user's
                said = ": ".join(filter(None, [type(error).__name__, one_line(error)]))
                error = StructuredInitError(f"{cls.__name__} cannot be built from its init_args: {said}")
            self._failure = self._failure or error
            raise error

    def instantiate_classes(self) -> None:
        """Build everything; an error in a constructor is raised as it was, with the traceback into the user's code."""
        self._failure: Exception | None = None
        try:
            # jsonargparse prints a datamodule that lacks an attribute, and Lightning can print none with such loaders.
            with patch.object(LightningDataModule, "__str__", object.__repr__):
                super().instantiate_classes()
        except ValueError as error:
            original = self._failure or original_error(error)
            raise original from original.__cause__

    def after_instantiate_classes(self) -> None:
        """Refuse what the user gave and the data knows better, with both values: the link has replaced it silently."""
        part = PARTS.get(self.subcommand)
        if part and self.datamodule is None and not is_overridden(f"{part}_dataloader", self.model):
            raise StructuredInitError("no data is given: add a configuration with -c, such as data/digits, or --data")
        given = (self.config[self.subcommand].model or {}).get("init_args", {})
        signatures = [inspect.signature(base.__init__).parameters for base in type(self.model).__mro__[:-1]]
        for name in FROM_THE_DATA:
            known = getattr(self.datamodule, name, None) if name in given else None
            defaults = (found[name].default for found in signatures if name in found)  # maybe below **kwargs
            if known is not None and given[name] not in (next(defaults, None), known):
                raise StructuredInitError(
                    f"model.init_args.{name} is {given[name]}, but the data has {known}: leave it to the data"
                )

    def instantiate_trainer(self, **kwargs: Any) -> Runner:
        """Add what every run needs: a checkpoint to resume from, exact resumption, and a log that works offline."""
        trainer = self.config_init[self.subcommand].trainer
        always: list[Any] = [callbacks.ExactResume()]
        given = trainer.callbacks or []
        given = given if isinstance(given, list) else [given]
        checkpoints = [each for each in given if isinstance(each, ModelCheckpoint)]
        if checkpoints and all(each.save_last is None for each in checkpoints):
            checkpoints[0].save_last = True  # a second callback of the class would share its state
        elif not checkpoints and trainer.enable_checkpointing is not False:
            always.append(ModelCheckpoint(save_last=True))
        if self.subcommand == "predict" and not any(isinstance(each, BasePredictionWriter) for each in given):
            always.append(PredictionTable(self.datamodule))
        if self.subcommand == "fit" and self.config[self.subcommand].get("ckpt_path") == "last":
            always.append(StartingAnew(newest_checkpoint(trainer.default_root_dir)))
        trainer.callbacks = [*given, *always]
        if trainer.logger in (None, True):
            trainer.logger = CSVLogger(trainer.default_root_dir or ".", name="lightning_logs")
        elif trainer.logger is False and self.subcommand == "fit":  # a folder of its own, as with a logger
            trainer.default_root_dir = CSVLogger(trainer.default_root_dir or ".", name="lightning_logs").log_dir
        if self.subcommand in PARTS and self.subcommand != "fit":  # which is given a run's own settings to look at it
            loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
            folders = [Path((each and each.log_dir) or trainer.default_root_dir or ".") for each in loggers]
            kept = [each for each, into in zip(loggers, folders, strict=True) if not (into / SETTINGS).is_file()]
            if len(kept) < len(loggers):
                self.save_config_callback, trainer.logger = None, kept or False
        runner = super().instantiate_trainer(**kwargs)
        if type(runner.strategy.checkpoint_io) is TorchCheckpointIO:  # nobody has asked for another
            runner.strategy.checkpoint_io = WholeCheckpoints()
        for folder in {runner.default_root_dir, *(logger.save_dir for logger in runner.loggers)} - {None}:
            refuse_unwritable(folder)
        return runner

    def run_subcommand(self, subcommand: str) -> None:
        """Run the command; one that Ctrl-C ends says how to go on."""
        begin_writing()
        try:
            super().run_subcommand(subcommand)
        except (SystemExit, KeyboardInterrupt):  # Lightning answers the second by the first
            if subcommand == "fit" and self.trainer.interrupted and self.trainer.is_global_zero:
                print(resuming(self.trainer, self._args), file=sys.stderr)
                raise SystemExit(130) from None
            raise

    def after_fit(self) -> None:
        """Say where the run is, and what there is of it."""
        folder = self.trainer.log_dir  # a collective: every rank asks
        if self.trainer.is_global_zero and not self.trainer.fast_dev_run:
            there = [what for what, files in WRITTEN.items() if any(Path(folder or ".").glob(files))]
            last = Path(folder or ".", "checkpoints", "last.ckpt").is_file()
            there = [*there[:-1], "checkpoints/last.ckpt"] if last else there
            print(f"written: {folder} ({', '.join(there)})")

    def _say_what_is_evaluated(self) -> None:
        """A fit alone applies an initialization: without a checkpoint the weights are those of the host library."""
        if not self.config_init[self.subcommand].get("ckpt_path") and self.trainer.is_global_zero:
            print("structured-init: no --ckpt_path was given: these are untrained weights", file=sys.stderr)

    before_validate = before_test = before_predict = _say_what_is_evaluated

    def show(self, **kwargs: Any) -> None:
        """Run ``structured-init show`` or ``audit`` with the initializer and the seed of the ``init`` section."""
        init = self.config_init[self.subcommand].init
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if init.seed is None else init.seed
        given = {"initializer": init.initializer, "seed": seed, "samples": init.samples, "figures": callbacks.figures}
        getattr(self.trainer, self.subcommand)(**given, **kwargs)

    audit = show


class BuildOnly(CLI):
    """Builds everything that a command line asks for, and runs nothing."""

    def run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


class StartingAnew(Callback):
    """Say in one line that ``last`` has found no checkpoint; with one it says nothing.

    Lightning goes on without one, so that a job can be submitted with the same command the first time and later; its
    own warning is one among many, and names no file. ``newest`` is a checkpoint of another run, which may have been
    meant.
    """

    def __init__(self, newest: Path | None = None) -> None:
        self.newest = newest

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at what Lightning has made of ``last``."""
        if trainer.ckpt_path is None and trainer.is_global_zero:
            meant = f"; to resume another run, give its file, such as '{self.newest}'" if self.newest else ""
            print(
                "structured-init: --ckpt_path last: there is no checkpoint of this run to resume from: the training"
                f" starts anew{meant}",
                file=sys.stderr,
            )


class PredictionTable(Callback):
    """Write class and probability of each sample that `predict` reads to ``predictions.csv`` in the run's folder.

    The datamodule has ``class_names``, and ``predicted``, a name for each sample.
    """

    def __init__(self, data: Any) -> None:
        self.data, self.rows, self.heading = data, [], "probability"

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *batch: Any) -> None:
        """Keep the likeliest class of a batch of class probabilities (B, classes), or of scores that are none."""
        if isinstance(outputs, Tensor) and outputs.shape[1:] == (len(getattr(self.data, "class_names", ())),):
            if outputs.min() < 0 or (outputs.float().sum(1) - 1).abs().max() > 0.01:
                self.heading = "score"
            self.rows += zip(*(each.tolist() for each in outputs.float().max(1)), strict=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table under a name that is not taken, or say why there is none."""
        if not trainer.is_global_zero:
            return
        if not self.rows or trainer.world_size > 1:
            why = "several processes compute them" if self.rows else "they are not class probabilities of a datamodule"
            print(f"predictions were not written: {why}; a BasePredictionWriter in trainer.callbacks writes any")
            return
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        names = (folder / f"predictions{number}.csv" for number in ("", *(f"_{n}" for n in range(1, 10_000))))
        path = next(each for each in names if not each.exists())
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sample", "class", self.heading])
            for name, (share, label) in zip(self.data.predicted, self.rows, strict=False):
                table.writerow([name, self.data.class_names[label], f"{share:.6g}"])
        print(f"written: {path} (class and {self.heading} of {len(self.rows)} samples)")


def resuming(trainer: Trainer, args: Sequence[str]) -> str:
    """Return one line with the command that resumes an ended training, or says that nothing is there to resume from."""
    saved = [each.last_model_path or each.best_model_path for each in trainer.checkpoint_callbacks
             if isinstance(each, ModelCheckpoint)]  # fmt: skip
    last = next((os.path.relpath(path) for path in saved if path), None)
    if last is None:
        return "structured-init: stopped before the first checkpoint: the same command begins again"
    option = "--ckpt_path"
    kept = [each for before, each in pairwise(["", *args]) if option not in (before, each.partition("=")[0])]
    command = shlex.join(["structured-init", *kept, option, last])
    return f"structured-init: stopped; this goes on from the last checkpoint: {command}"


def _way_out(path: Path, error: StructuredInitError) -> str:
    """Say what else there is than a checkpoint that cannot be read."""
    if isinstance(error, DamagedFileError):
        whole = [each for each in checkpoints_in(path.parent)[0] if each != path]
        return f"; '{whole[0]}' is whole" if whole else ""
    return "; if you trust it, add --weights_only false" if "Python objects" in str(error) else ""
