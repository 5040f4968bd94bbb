"""Everything that is taken from Lightning's private interface, and nothing else.

Exact resumption needs three things for which Lightning 2.6 has no public name: where its loops are inside an epoch,
what `self.log` has accumulated (`_ResultCollection` has had no state of its own since 2.0), and the metrics that it
shows. No other file uses a private name of Lightning. `tests/callbacks/test_lightning_private.py` names each one and
says what breaks without it; the upper bound of `lightning` in `pyproject.toml` stands for this file alone.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torch.utils._pytree import tree_map_only

State = dict[str, Any]  # tensors, numbers, strings, lists and dicts: what `torch.load(weights_only=True)` takes
KEPT = (  # of what `self.log` was told
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)


def moment_of(trainer: L.Trainer) -> State:
    """Say between which two of Lightning's steps a training is, such as when a checkpoint is made.

    `on_train_batch_end` comes before the batch is counted as completed and before the validation that may be due,
    `on_train_epoch_end` before the epoch is counted as completed and before schedulers that watch a metric step.
    """
    loop = trainer.fit_loop
    batches = loop.epoch_loop.batch_progress
    batch_end = batches.current.completed == batches.current.processed - 1
    inside_epoch = loop.epoch_progress.current.ready > loop.epoch_progress.current.processed
    return {
        "batch_end": batch_end,
        "last_batch": batch_end and loop.epoch_loop._num_ready_batches_reached(),
        "validation_due": batch_end and loop.epoch_loop._should_check_val_fx(loop._data_fetcher),
        "epoch_end": loop.epoch_progress.current.completed == loop.epoch_progress.current.processed - 1,
        "inside_epoch": inside_epoch,
        "accumulating": inside_epoch and loop._should_accumulate(),
    }


def finish_batch(loops: State, moment: State) -> None:
    """Count the last batch of a checkpoint as completed where something of its epoch is left to do.

    Lightning would take a validation that was due for done, and an epoch whose last batch is done for ended, without
    its validation, its hooks and its metrics. ``loops`` are those of the fit loop in the checkpoint.
    """
    if not (moment["validation_due"] or moment["last_batch"]):
        return
    progress = loops["epoch_loop.batch_progress"]
    progress["total"]["completed"] += 1
    progress["current"]["completed"] += 1
    if not moment["validation_due"]:  # then Lightning leaves the epoch before it counts the step for the loggers
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def continue_loops(trainer: L.Trainer, moment: State) -> None:
    """Let the loops go on exactly where a checkpoint was made."""
    loop = trainer.fit_loop
    if moment["inside_epoch"]:
        trainer._logger_connector._first_loop_iter = True  # else the first batch would reset what was logged before it
    if moment["last_batch"] and not moment["validation_due"]:
        loop.epoch_loop.val_loop._has_run = True  # else one more batch is asked for, and a loader may begin anew
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
        if loaders_without_state(trainer):
            loop._resuming_from_checkpoint = False  # else the epoch gets an iterator from before random states were set


def end_restart(trainer: L.Trainer) -> None:
    """Take a resumed training for an ordinary one from here on."""
    for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop):
        loop._restarting = False
        loop.reset_restart_stage()


class _FinishingLoop(_FitLoop):
    @property
    def skip(self) -> bool:
        return self.trainer.limit_train_batches == 0


def finish_when_done(trainer: L.Trainer) -> None:
    """Let a training that was killed after its last checkpoint do what comes at its end, which Lightning would skip."""
    trainer.fit_loop.__class__ = _FinishingLoop


def loaders_without_state(trainer: L.Trainer) -> list[Any]:
    """Return the train loaders, however they are nested, that cannot go on where they were."""
    return [each for each in trainer.fit_loop._combined_loader.flattened if not hasattr(each, "load_state_dict")]


def load_positions(trainer: L.Trainer) -> None:
    """Hand the train loaders the positions that a checkpoint has for them, once.

    Lightning does so only while it sets the loaders up, which a module's `configure_optimizers` has already caused
    when it asked for `estimated_stepping_batches`: before there was any state to hand over.
    """
    trainer.fit_loop._load_combined_loader_states()


def training_source(trainer: L.Trainer) -> Any:
    """Return what the train loaders come from: an object with `instance`, `is_defined()` and `dataloader()`."""
    return trainer.fit_loop._data_source


def averaged_model(callback: L.Callback) -> Any:
    """Return the averaged copy that a `WeightAveraging` keeps, if there is one already."""
    return getattr(callback, "_average_model", None)


def reset_next(trainer: L.Trainer, epoch_end: bool) -> set[int]:
    """Return the ids of the torchmetrics that Lightning resets right after this moment.

    Those are the validation's while it ends, the training's while the epoch ends (``epoch_end``).
    """
    loop = trainer.fit_loop.epoch_loop
    ending = loop.val_loop._results if trainer.validating else {}
    if epoch_end:
        ending = loop._results
    return {id(result.value) for result in ending.values() if not result.is_tensor}


def logged_state(trainer: L.Trainer) -> list[State]:
    """Return what `self.log` has accumulated in this epoch."""
    return [
        {
            "key": key,
            **{name: getattr(result.meta, name) for name in KEPT},
            "reduce_fx": result.meta.reduce_fx.__name__,
            "sync": [result.meta.sync.should, result.meta.sync.rank_zero_only],
            "is_tensor": result.is_tensor,
            "has_reset": result.has_reset,
            "update_count": result._update_count,
            "values": detached(result.metric_state) if result.is_tensor else {},
            "last": detached(result._forward_cache) if isinstance(result._forward_cache, torch.Tensor) else None,
        }
        for key, result in trainer.fit_loop.epoch_loop._results.items()
    ]


def restore_logged(trainer: L.Trainer, module: L.LightningModule, states: list[State]) -> None:
    """Set what `logged_state` returned."""
    device = trainer.strategy.root_device
    for state in states:
        meta = _Metadata(**{name: state[name] for name in KEPT}, reduce_fx=getattr(torch, state["reduce_fx"]))
        should, rank_zero_only = state["sync"]
        meta.sync = _Sync(_should=should, fn=trainer.strategy.reduce, rank_zero_only=rank_zero_only)
        result = _ResultMetric(meta, state["is_tensor"])
        if not state["is_tensor"]:
            result.value = module.get_submodule(state["metric_attribute"])
        for key, value in state["values"].items():
            setattr(result, key, moved(value, device))
        result.has_reset = state["has_reset"]
        result._update_count = state["update_count"]
        result._forward_cache = moved(state["last"], device)
        trainer.fit_loop.epoch_loop._results[state["key"]] = result


def shown_metrics(trainer: L.Trainer) -> State:
    """Return the latest metrics: a monitor may look at a validation that lies before the checkpoint."""
    return {name: detached(getattr(trainer, f"{name}_metrics")) for name in ("callback", "logged", "progress_bar")}


def show_metrics(trainer: L.Trainer, metrics: State) -> None:
    """Set what `shown_metrics` returned."""
    for name, values in metrics.items():
        getattr(trainer._logger_connector, f"_{name}_metrics").update(values)


def row_to_come(trainer: L.Trainer, moment: State) -> State | None:
    """Return the row that Lightning gives to the loggers right after a checkpoint, ``None`` where none is due.

    `on_train_batch_end` and `on_train_epoch_end`, where checkpoints are made, come before the values of the step and
    of the epoch are logged. All ranks must call: values may be reduced over them. What a module logs in its own
    `on_train_batch_end` comes after the callbacks' and is not in it.
    """
    connector, stepped = trainer._logger_connector, trainer.fit_loop.epoch_loop._batches_that_stepped
    if moment["epoch_end"]:
        stepped -= 1
    elif not moment["batch_end"] or moment["accumulating"] or not connector.should_update_logs:
        return None
    values = {name: float(value) for name, value in connector.metrics["log"].items()}
    step = values.pop("step", stepped)  # a metric of this name is the number that loggers are told
    return {"metrics": {"epoch": trainer.current_epoch, **values}, "step": int(step)} if values else None


class CommandLine:
    """Gives two steps of `LightningCLI` that a subclass replaces names of their own; a base that stands before it."""

    def check_checkpoint(self) -> None:
        """Is called once the arguments are parsed, where Lightning lets a checkpoint's replace the user's."""
        super()._parse_ckpt_path()  # type: ignore[misc]

    def run_subcommand(self, subcommand: str) -> None:
        super()._run_subcommand(subcommand)  # type: ignore[misc]

    def _parse_ckpt_path(self) -> None:
        self.check_checkpoint()

    def _run_subcommand(self, subcommand: str) -> None:
        self.run_subcommand(subcommand)


def detached(value: Any) -> Any:
    """Return a copy, on the CPU, of tensors in lists and dicts."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu().clone(), value)


def moved(value: Any, device: torch.device) -> Any:
    """Return tensors in lists on a device."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)
