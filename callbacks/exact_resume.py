"""`ExactResume`: a run that was killed anywhere and resumed equals the undisturbed one, bit for bit."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from callbacks.run_state import (
    State,
    logged_state,
    random_state,
    restore_logged,
    restore_torchmetrics,
    set_random_state,
    show_metrics,
    shown_metrics,
    torchmetrics_state,
)


class ExactResume(L.Callback):
    """Saves what Lightning's checkpoints leave out, so that a resumed run is the undisturbed one, bit for bit.

    In every checkpoint, for every rank: the python, numpy, torch and CUDA random states, the metrics accumulated in
    the epoch so far (torchmetrics and logged values), and the gradients in the middle of an accumulation; and whether
    a validation was due right after it. The position in the epoch is the train loader's own state (`ResumableLoader`),
    which Lightning saves; another loader must have `state_dict` and `load_state_dict`, or a warning says so.

    Exact means the same hardware, the same number of threads and processes, and checkpoints that Lightning makes
    between two steps (not in an exception). What a module draws in its own `on_train_start` comes a second time.

    Raises:
        StructuredInitError: by the loader, when it is not the one that the checkpoint was made with.
    """

    def __init__(self) -> None:
        self._loaded: State | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Add the state of all ranks."""
        checkpoint["callbacks"][self.state_key] = {
            "threads": torch.get_num_threads(),
            "moment": _moment(trainer),
            "metrics": shown_metrics(trainer),
            "ranks": _gather(_rank_state(trainer, pl_module)),
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: State) -> None:
        """Keep the state for `on_train_start`, and let Lightning's loops go on where they were."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        self._loaded = checkpoint["callbacks"].get(self.state_key)
        if self._loaded is None:
            rank_zero_warn("The checkpoint was made without ExactResume: the resumed run is not exact.")
            return
        _finish_batch(checkpoint["loops"]["fit_loop"], self._loaded["moment"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Restore everything: after the sanity check, before the first batch is asked for."""
        # Lightning hands a loader its state only while it sets the loaders up, which a module's configure_optimizers
        # has already caused when it asked for estimated_stepping_batches: before there was any state to hand over.
        trainer.fit_loop._load_combined_loader_states()
        if not all(hasattr(loader, "load_state_dict") for loader in trainer.fit_loop._combined_loader.flattened):
            rank_zero_warn("The train loader has no state_dict: a run resumed inside an epoch will not be exact.")
        if self._loaded is None:
            return
        state, self._loaded = self._loaded, None
        _warn_of_differences(trainer, state)
        show_metrics(trainer, state["metrics"])
        if trainer.global_rank < len(state["ranks"]):
            _restore_rank(trainer, pl_module, state["ranks"][trainer.global_rank])
        _continue_loops(trainer, state["moment"])

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Let schedulers that watch a metric step at the end of a resumed epoch too: their metrics are here."""
        trainer.fit_loop._restarting = False


# Where the run is ---------------------------------------------------------------------------------------------------


def _moment(trainer: L.Trainer) -> State:
    """Say between which two of Lightning's steps the checkpoint is made.

    `on_train_batch_end` comes before the batch is counted as completed and before the validation that may be due,
    `on_train_epoch_end` before the epoch is counted as completed and before schedulers that watch a metric step.
    """
    loop = trainer.fit_loop
    batches = loop.epoch_loop.batch_progress
    batch_end = batches.current.completed == batches.current.processed - 1
    return {
        "batch_end": batch_end,
        "last_batch": batch_end and loop.epoch_loop._num_ready_batches_reached(),
        "validation_due": batch_end and loop.epoch_loop._should_check_val_fx(loop._data_fetcher),
        "epoch_end": loop.epoch_progress.current.completed == loop.epoch_progress.current.processed - 1,
        "inside_epoch": loop.epoch_progress.current.ready > loop.epoch_progress.current.processed,
    }


def _finish_batch(loops: State, moment: State) -> None:
    """Count the last batch as completed where something of its epoch is left to do.

    Lightning would take a validation that was due for done, and an epoch whose last batch is done for ended, without
    its validation, its hooks and its metrics.
    """
    if not (moment["validation_due"] or moment["last_batch"]):
        return
    progress = loops["epoch_loop.batch_progress"]
    progress["total"]["completed"] += 1
    progress["current"]["completed"] += 1
    if not moment["validation_due"]:  # then Lightning leaves the epoch before it counts the step for the loggers
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def _continue_loops(trainer: L.Trainer, moment: State) -> None:
    loop = trainer.fit_loop
    if moment["inside_epoch"]:
        trainer._logger_connector._first_loop_iter = True  # else the first batch would reset what was logged before it
    if moment["validation_due"]:
        loop.epoch_loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION
        loop.epoch_loop.val_loop.batch_progress.reset()
    if moment["epoch_end"]:
        epochs = loop.epoch_progress
        epochs.current.completed = epochs.current.processed - 1  # the schedulers count the epoch that has just ended
        loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        epochs.current.completed, epochs.total.completed = epochs.current.processed, epochs.total.processed
        for part in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):  # with max_steps, it would end this epoch again
            part._restarting = False
            part.reset_restart_stage()


def _warn_of_differences(trainer: L.Trainer, state: State) -> None:
    for what, then, now in (
        ("threads", state["threads"], torch.get_num_threads()),
        ("processes", len(state["ranks"]), trainer.world_size),
    ):
        if then != now:
            rank_zero_warn(f"The checkpoint was made with {then} {what}, now there are {now}: the run is not exact.")


# One rank -----------------------------------------------------------------------------------------------------------


def _rank_state(trainer: L.Trainer, module: L.LightningModule) -> State:
    loop = trainer.fit_loop
    accumulating = _moment(trainer)["inside_epoch"] and loop._should_accumulate()
    parameters = module.named_parameters() if accumulating else ()
    return {
        "random": random_state(trainer.strategy.root_device),
        "torchmetrics": torchmetrics_state(trainer, module, _moment(trainer)["epoch_end"]),
        "logged": [] if _moment(trainer)["epoch_end"] else logged_state(trainer),
        "gradients": {name: value.grad.detach().cpu() for name, value in parameters if value.grad is not None},
    }


def _restore_rank(trainer: L.Trainer, module: L.LightningModule, state: State) -> None:
    parameters = dict(module.named_parameters())
    for name, gradient in state["gradients"].items():
        parameters[name].grad = gradient.to(parameters[name])
    restore_torchmetrics(module, state["torchmetrics"])
    restore_logged(trainer, module, state["logged"])
    set_random_state(state["random"], trainer.strategy.root_device)


def _gather(state: State) -> list[State]:
    """Return the states of all ranks; every rank takes part in a checkpoint."""
    if not torch.distributed.is_initialized():
        return [state]
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, state)
    return states
