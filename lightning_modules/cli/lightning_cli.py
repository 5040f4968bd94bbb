"""LightningCLI with sections for the initialization, the attention and the filters."""

from __future__ import annotations

import json
import os
import shlex
import sys
from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO

from lightning_modules.cli.configurations import CONFIG
from lightning_modules.cli.mistakes import errors_of_constructors, explain, refuse_unwritable
from lightning_modules.cli.predictions import PredictionTable
from lightning_modules.cli.show import Runner
from lightning_modules.tasks.checkpoint import WholeCheckpoints, read_checkpoint, refuse_best
from structured_init import StructuredInitError
from structured_init.util.errors import begin_writing

os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # lightning 2.6 calls it by its older names
import callbacks
import lightning_modules
import lightning_modules.data
import structured_init
from callbacks.lightning_private import CommandLine

# A class resolves in YAML by its bare name once it is imported; the packages import theirs when they are asked for.
for package in (structured_init, callbacks, lightning_modules, lightning_modules.data):
    for public in package.__all__:
        getattr(package, public)

ABOUT = "Train, evaluate and look at a network with the initialization of the section init."
SETTINGS = "experiment.yaml"  # of a run, in its folder
FROM_THE_DATA = ("num_classes", "in_channels", "image_size", "vocab_size", "block_size", "objective")


class Parser(LightningArgumentParser):
    """A parser that raises, for ``main`` to print one line, and guesses no abbreviated key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"exit_on_error": False, "allow_abbrev": False, **kwargs})


class CLI(CommandLine, LightningCLI):
    """LightningCLI with an initialization, captures of attention and filters, and an exact resumption in every run.

    Args:
        args: the command line, as ``expand`` returns it.
        typed: the same as it was typed, which a stopped training shows.
    """

    def __init__(self, args: list[str], typed: Sequence[str] = ()) -> None:
        self._args, self._typed = args, typed
        super().__init__(
            trainer_class=Runner,
            trainer_defaults={"callbacks": [callbacks.ExactResume()]},
            save_config_kwargs={"config_filename": SETTINGS, "overwrite": True},
            seed_everything_default=0,
            parser_kwargs={"description": ABOUT},
            parser_class=Parser,
            auto_configure_optimizers=False,
            args=args,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Return the command that is asked for, with what is not asked of the user: each has a parser of its own."""
        ours = {"model", "datamodule", "initializer", "seed", "samples"}
        known = {**LightningCLI.subcommands(), "show": ours, "audit": ours}
        return {self._args[0]: known[self._args[0]]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``init:``, ``attention:`` and ``filters:``, apart from ``trainer.callbacks``: YAML replaces lists."""
        parser.add_lightning_class_args(callbacks.InitCallback, "init")
        parser.add_lightning_class_args(callbacks.AttentionMapCallback, "attention")
        parser.add_lightning_class_args(callbacks.FilterCallback, "filters")
        parser.set_defaults({"attention.on_missing": "skip"})
        self._section = parser
        for name in FROM_THE_DATA:
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse without Lightning's warning of arguments given twice; a mistake is a line, not jsonargparse's usage."""
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            known_keys = list(self._section.get_defaults().keys(branches=True))
            raise StructuredInitError(explain(error, known_keys)) from error

    def check_checkpoint(self) -> None:
        """Check the file only, and let no code of it be run unasked.

        ``Task.on_load_checkpoint`` compares the arguments and refuses a difference. Lightning's own method would let
        the checkpoint's arguments silently replace the user's.
        """
        section = self.config[self.config.subcommand]
        path = section.get("ckpt_path")
        refuse_best(path, self.config.subcommand)
        if "weights_only" in section and section.weights_only is None:
            section.weights_only = True
        trusted = section.get("weights_only") is False  # Lightning runs what it holds
        if path not in (None, "last") and not trusted and "://" not in path:
            read_checkpoint(path)

    def instantiate_classes(self) -> None:
        """Build everything; an error in a constructor is raised as it was, with the traceback into the user's code."""
        # jsonargparse prints a datamodule that lacks an attribute, for which Lightning would ask for its loaders.
        with errors_of_constructors(self.parser), patch.object(LightningDataModule, "__str__", object.__repr__):
            super().instantiate_classes()

    def after_instantiate_classes(self) -> None:
        """Refuse what the data knows better, and say what a class has lost that replaces another: both were silent."""
        given = self.parser.parse_args(self._args, defaults=False)[self.subcommand]  # what was said, and no default
        for name in FROM_THE_DATA:
            said = given.get(f"model.init_args.{name}")
            known = getattr(self.datamodule, name, None)
            if None not in (said, known) and said != known:
                raise StructuredInitError(
                    f"model.init_args.{name} is {said}, but the data has {known}: leave it to the data"
                )
        left_out: dict[str, None] = {}
        for option, word in pairwise(self._args):
            if option == CONFIG:
                left_out |= dict.fromkeys(keys_left_out(json.loads(word), given))
        for key in left_out:
            print(f"structured-init: {key} is left out: a later class does not take it", file=sys.stderr)

    def instantiate_trainer(self, **kwargs: Any) -> Runner:
        """Add what every run needs: a checkpoint to resume from, exact resumption, and a log that works offline."""
        trainer = self.config_init[self.subcommand].trainer
        own = CSVLogger(trainer.default_root_dir or ".", name="lightning_logs")
        if trainer.logger in (None, True):
            trainer.logger = own
        elif trainer.logger is False and self.subcommand == "fit":  # a folder of its own, as with a logger
            trainer.default_root_dir = own.log_dir
        if self.subcommand != "fit":  # a run's own settings write nothing into its folder
            self.save_config_callback = None
            loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
            trainer.logger = [each for each in loggers if each and not Path(each.log_dir or ".", SETTINGS).is_file()]
        runner = super().instantiate_trainer(**kwargs)
        refuse_unwritable(runner.default_root_dir)
        saving = [each for each in runner.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
        if saving and all(each.save_last is None for each in saving):
            saving[0].save_last = True  # a second callback of the class would share its state
        writes = any(isinstance(each, BasePredictionWriter) for each in runner.callbacks)
        if self.subcommand == "predict" and not writes:
            runner.callbacks.append(PredictionTable(self.datamodule))
        if type(runner.strategy.checkpoint_io) is TorchCheckpointIO:  # nobody has asked for another
            runner.strategy.checkpoint_io = WholeCheckpoints()
        return runner

    def run_subcommand(self, subcommand: str) -> None:
        """Run the command; one that Ctrl-C ends says how to go on."""
        begin_writing()
        try:
            super().run_subcommand(subcommand)
        except (SystemExit, KeyboardInterrupt):  # Lightning answers the second by the first
            if subcommand == "fit" and self.trainer.interrupted and self.trainer.is_global_zero:
                print(resuming(self.trainer, self._typed), file=sys.stderr)
                raise SystemExit(130) from None
            raise

    def after_fit(self) -> None:
        """Say where the run is."""
        folder = self.trainer.log_dir  # a collective: every rank asks
        if self.trainer.is_global_zero and not self.trainer.fast_dev_run:
            print(f"written: {folder}")

    def _say_what_is_evaluated(self) -> None:
        """A fit alone applies an initialization: without a checkpoint the weights are those of the host library."""
        if not self.config_init[self.subcommand].get("ckpt_path") and self.trainer.is_global_zero:
            print("structured-init: no --ckpt_path was given: these are untrained weights", file=sys.stderr)

    before_validate = before_test = before_predict = _say_what_is_evaluated

    def show(self, **kwargs: Any) -> None:
        """Run ``structured-init show`` or ``audit`` with the initializer and the seed of the ``init`` section."""
        init = self.config_init[self.subcommand].init
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if init.seed is None else init.seed
        run = getattr(self.trainer, self.subcommand)
        run(initializer=init.initializer, seed=seed, samples=init.samples, **kwargs)

    audit = show


class BuildOnly(CLI):
    """Builds everything that a command line asks for, and runs nothing."""

    def run_subcommand(self, subcommand: str) -> None:
        """Run nothing."""


def keys_left_out(said: Mapping[str, Any], given: Namespace, before: str = "") -> Iterator[str]:
    """Yield the dotted names of what a configuration says and the parser has not kept.

    ``given`` is what the parser has. A section may name an argument of its class without ``init_args``.
    """
    for key, value in said.items():
        place = key if key in given else f"init_args.{key}"
        if place not in given:
            yield before + key
        elif isinstance(value, Mapping) and isinstance(given[place], Namespace):
            yield from keys_left_out(value, given[place], f"{before}{key}.")


def resuming(trainer: Trainer, args: Sequence[str]) -> str:
    """Return one line with the command that resumes an ended training, or says that nothing is there to resume from."""
    last = getattr(trainer.checkpoint_callback, "last_model_path", "")
    if not last:
        return "structured-init: stopped before the first checkpoint: the same command begins again"
    command = shlex.join(["structured-init", *args, "--ckpt_path", os.path.relpath(last)])  # the last of two counts
    return f"structured-init: stopped; this goes on from the last checkpoint: {command}"
