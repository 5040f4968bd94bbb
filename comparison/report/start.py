"""Weight products before and after training: the start is built again from a run's own configuration and seed.

Checkpoints hold trained weights only. A start is a function of configuration and seed, so it is rebuilt the way the
run built it, and believed only where the statistics in the run's init report come out again.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lightning_modules.tasks.checkpoint import read_checkpoint, refuse_other_weights
from structured_init import attention_sites, initialize
from structured_init.analysis import WeightProducts, weight_products
from structured_init.errors import StructuredInitError

CORNER = 64  # rows and columns of the products that are kept
# What a network is built from does not depend on where it was trained.
ANYWHERE = [
    *("--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.num_nodes", "1"),
    *("--trainer.strategy", "auto", "--trainer.precision", "null", "--trainer.logger", "false"),
    *("--trainer.callbacks", "null", "--trainer.plugins", "null", "--ckpt_path", "null"),
    *("--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"),
]

Layers = dict[str, WeightProducts]


@dataclass(frozen=True)
class RunProducts:
    """The weight products of a run.

    Attributes:
        corners: moment → layer → corners of the products.
        summaries: moment → layer → diagonal and spread of the whole products.
        problem: why a moment is missing, in one line; empty where none is.
    """

    corners: dict[str, Layers]
    summaries: dict[str, dict[str, dict[str, Any]]]
    problem: str


def run_products(run: Path) -> RunProducts:
    """Return the weight products of a complete run before and after training, as far as they can be had.

    Args:
        run: its folder.

    Raises:
        StructuredInitError: the network cannot be built again.
    """
    found, problem = RunProducts({}, {}, ""), ""
    model, initializer, seed = _built(run)
    if not attention_sites(model):
        return found
    try:
        report = initialize(model, initializer, seed=seed).to_dict()
        refuse_another_start(report, json.loads((run / "init_report.json").read_text(encoding="utf-8")))
        _add(found, "before", model)
    except (StructuredInitError, OSError) as error:
        problem = f"before training is not shown: {error}"
    checkpoint = run / "checkpoints" / "last.ckpt"
    if checkpoint.is_file():
        weights = read_checkpoint(checkpoint)["state_dict"]
        refuse_other_weights(weights, model.state_dict())
        model.load_state_dict(weights)
        _add(found, "after", model)
    else:
        problem = "; ".join(filter(None, [problem, "after training is not shown: there is no last checkpoint"]))
    return RunProducts(found.corners, found.summaries, problem)


def refuse_another_start(rebuilt: dict[str, Any], written: dict[str, Any]) -> None:
    """Raise one line where the start that was rebuilt is not the one that a run reported.

    Raises:
        StructuredInitError: names the first tensor whose statistics differ.
    """
    before = {tuple(entry["names"]): entry["after"] for entry in written["entries"]}
    for entry in rebuilt["entries"]:
        names, now = tuple(entry["names"]), entry["after"]
        was = before.get(names, {})
        if (was is None) != (now is None) or (
            was is not None
            and now is not None
            and any(not math.isclose(was.get(key, math.nan), now[key], rel_tol=1e-3, abs_tol=1e-6) for key in now)
        ):
            raise StructuredInitError(f"this version builds another '{names[0]}' than the run reported")


def _add(found: RunProducts, moment: str, model: nn.Module) -> None:
    found.corners[moment], found.summaries[moment] = {}, {}
    for site in attention_sites(model):
        products = weight_products(site)
        found.summaries[moment][site.name] = products.summary()
        found.corners[moment][site.name] = WeightProducts(*(each[..., :CORNER, :CORNER].clone() for each in products))


def _built(run: Path) -> tuple[nn.Module, Any, int]:
    """Build a run's module as its command did, without training, and return its initializer and seed too."""
    # Only here: the report needs the command line for nothing else.
    from lightning_modules.cli.lightning_cli import CLI

    class Builder(CLI):
        def _run_subcommand(self, subcommand: str) -> None:
            """Do nothing: what was wanted is the module."""

    experiment = run / "experiment.yaml"
    if not experiment.is_file():
        raise StructuredInitError(f"there is no '{experiment.name}'")
    with _quiet():
        try:
            cli = Builder(["fit", "-c", str(experiment), *ANYWHERE])
        except Exception as error:  # another machine, without the data or a library that the run had
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StructuredInitError(reason) from error
    start, seed = cli.config_init["fit"].init, cli.config["fit"].seed_everything
    seed = start.seed if start.seed is not None else seed
    return cli.model, start.initializer, 0 if isinstance(seed, bool) or seed is None else int(seed)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what building prints to itself, and leave the caller's random states as they are."""
    names = ("lightning.pytorch", "lightning.fabric")
    levels = {name: logging.getLogger(name).level for name in names}
    environment = {name: os.environ.get(name) for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")}
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        silent = io.StringIO()
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
