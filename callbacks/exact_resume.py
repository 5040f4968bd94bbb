"""`ExactResume`: a run that was killed anywhere and resumed equals the undisturbed one, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torchmetrics import Metric

from callbacks.lightning_private import (
    State,
    continue_loops,
    detached,
    end_restart,
    finish_batch,
    load_positions,
    loaders_without_state,
    logged_state,
    moment_of,
    moved,
    reset_next,
    restore_logged,
    row_to_come,
    show_metrics,
    shown_metrics,
)


class ExactResume(L.Callback):
    """Saves what Lightning's checkpoints leave out, so that a resumed run is the undisturbed one, bit for bit.

    In every checkpoint, for every rank: the python, numpy, torch and CUDA random states, the metrics accumulated in
    the epoch so far (torchmetrics and logged values), and the gradients in the middle of an accumulation; whether a
    validation was due right after it, and the row of metrics that loggers get right after it: a run that is killed in
    between has lost it, so a resumed run logs it first, on rank 0, whose row it is. A logger with `state_dict` and
    `load_state_dict` gets its own state back before. The position in the epoch is the train loader's own state
    (`ResumableLoader`), which Lightning saves. Where a loader has no `state_dict` and `load_state_dict`, such as a
    plain `DataLoader`, a run is exact from the end of an epoch, and a warning says that inside of one it is not.

    Exact means the same hardware, the same number of threads and processes, and checkpoints that Lightning makes
    between two steps (not in an exception). What a module draws in its own `on_train_start` comes a second time.

    Attributes:
        exact: whether checkpoints inside of an epoch are exact; known from the start of training on.

    Raises:
        StructuredInitError: by the loader, when it is not the one that the checkpoint was made with.
    """

    def __init__(self) -> None:
        self._loaded: State | None = None
        self.exact = True

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        moment = moment_of(trainer)
        checkpoint["callbacks"][self.state_key] = {
            "threads": torch.get_num_threads(),
            "moment": moment,
            "metrics": shown_metrics(trainer),
            "row": row_to_come(trainer, moment),
            "loggers": [each.state_dict() if hasattr(each, "state_dict") else {} for each in trainer.loggers],
            "ranks": _gather(_rank_state(trainer, pl_module, moment)),
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Keep the state for `on_train_start`, and let Lightning's loops go on where they were."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._loaded = checkpoint["callbacks"].get(self.state_key)
        if self._loaded is None:
            rank_zero_warn("The checkpoint was made without ExactResume: the resumed run is not exact.")
            return
        finish_batch(checkpoint["loops"]["fit_loop"], self._loaded["moment"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore everything: after the sanity check, before the first batch is asked for."""
        load_positions(trainer)
        self.exact = not loaders_without_state(trainer)
        if not self.exact:
            rank_zero_warn(
                "The train loader has no state_dict: a run resumed inside an epoch will not be exact."
                " lightning_modules.data.ResumableLoader has one."
            )
        if self._loaded is None:
            return
        state, self._loaded = self._loaded, None
        then = f"{state['threads']} threads in {len(state['ranks'])} processes"
        now = f"{torch.get_num_threads()} threads in {trainer.world_size} processes"
        if then != now:
            rank_zero_warn(f"The checkpoint was made with {then}, now there are {now}: the run is not exact.")
        show_metrics(trainer, state["metrics"])
        if trainer.global_rank < len(state["ranks"]):
            _restore_rank(trainer, pl_module, state["ranks"][trainer.global_rank])
        continue_loops(trainer, state["moment"])
        # Loggers get their states back, and those of rank 0 the row that came right after the checkpoint.
        for logger, known in zip(trainer.loggers, state["loggers"], strict=False):
            if known:
                logger.load_state_dict(known)
        if state["row"] and trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(**state["row"])
                logger.save()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let schedulers that watch a metric step at the end of a resumed epoch too: their metrics are here."""
        end_restart(trainer)


def random_state(device: torch.device) -> State:
    """Return the python, numpy, torch and, on a CUDA device, CUDA random states."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: State, device: torch.device) -> None:
    """Set what `random_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def _rank_state(trainer: L.Trainer, module: L.LightningModule, moment: State) -> State:
    """Return a rank's state. Of torchmetrics those are left out that Lightning resets right after this moment."""
    parameters = module.named_parameters() if moment["accumulating"] else ()
    left_out = reset_next(trainer, moment["epoch_end"])
    return {
        "random": random_state(trainer.strategy.root_device),
        "torchmetrics": {
            name: {"update_count": metric._update_count, "values": detached(metric.metric_state)}
            for name, metric in module.named_modules()
            if isinstance(metric, Metric) and id(metric) not in left_out
        },
        "logged": [] if moment["epoch_end"] else logged_state(trainer),
        "gradients": {name: value.grad.detach().cpu() for name, value in parameters if value.grad is not None},
        "generators": [generator.get_state() for generator in _loader_generators(trainer)],
    }


def _restore_rank(trainer: L.Trainer, module: L.LightningModule, state: State) -> None:
    parameters, modules = dict(module.named_parameters()), dict(module.named_modules())
    for name, gradient in state["gradients"].items():
        parameters[name].grad = gradient.to(parameters[name])
    for name, known in state["torchmetrics"].items():
        metric = modules.get(name)
        if isinstance(metric, Metric):
            for key, value in known["values"].items():
                setattr(metric, key, moved(value, metric.device))
            metric._update_count = known["update_count"]
            metric._computed = None
    restore_logged(trainer, module, state["logged"])
    for generator, known in zip(_loader_generators(trainer), state["generators"], strict=False):
        generator.set_state(known.cpu())
    set_random_state(state["random"], trainer.strategy.root_device)


def _loader_generators(trainer: L.Trainer) -> list[torch.Generator]:
    """Return the generators that train loaders without a state of their own, or their samplers, were given."""
    generators = []
    for loader in loaders_without_state(trainer):
        for owner in (loader, getattr(loader, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generators.append(generator)
    return generators


def _gather(state: State) -> list[State]:
    """Return the states of all ranks; every rank takes part in a checkpoint."""
    if not torch.distributed.is_initialized():
        return [state]
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, state)
    return states
