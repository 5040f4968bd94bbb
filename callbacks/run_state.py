"""What a run holds beside weights and optimizer: random states and metrics, as plain states and back.

Lightning keeps what `self.log` accumulates in `_ResultCollection`, which has had no state of its own since Lightning
2.0; the private names used here are those of 2.6, and `tests/callbacks/test_exact_resume.py` shows when they change.
"""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric

State = dict[str, Any]  # tensors, numbers, strings, lists and dicts: what `torch.load(weights_only=True)` takes


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


def torchmetrics_state(trainer: L.Trainer, module: L.LightningModule, epoch_end: bool) -> State:
    """Return what the module's torchmetrics have accumulated, by name.

    Left out are those that Lightning resets right after this moment: the validation's while it ends, the training's
    while the epoch ends (``epoch_end``).
    """
    loop = trainer.fit_loop.epoch_loop
    ending = loop.val_loop._results if trainer.validating else {}
    if epoch_end:
        ending = loop._results
    reset_next = {id(result.value) for result in ending.values() if not result.is_tensor}
    return {
        name: {"update_count": metric._update_count, "values": _detached(metric.metric_state)}
        for name, metric in module.named_modules()
        if isinstance(metric, Metric) and id(metric) not in reset_next
    }


def restore_torchmetrics(module: L.LightningModule, states: State) -> None:
    """Set what `torchmetrics_state` returned."""
    metrics = dict(module.named_modules())
    for name, state in states.items():
        metric = metrics.get(name)
        if isinstance(metric, Metric):
            for key, value in state["values"].items():
                setattr(metric, key, _to(value, metric.device))
            metric._update_count = state["update_count"]
            metric._computed = None


def logged_state(trainer: L.Trainer) -> list[State]:
    """Return what `self.log` has accumulated in this epoch."""
    return [
        {
            "key": key,
            "fx": result.meta.fx,
            "name": result.meta.name,
            "prog_bar": result.meta.prog_bar,
            "logger": result.meta.logger,
            "on_step": result.meta.on_step,
            "on_epoch": result.meta.on_epoch,
            "reduce_fx": result.meta.reduce_fx.__name__,
            "enable_graph": result.meta.enable_graph,
            "add_dataloader_idx": result.meta.add_dataloader_idx,
            "dataloader_idx": result.meta.dataloader_idx,
            "metric_attribute": result.meta.metric_attribute,
            "sync": [result.meta.sync.should, result.meta.sync.rank_zero_only],
            "is_tensor": result.is_tensor,
            "has_reset": result.has_reset,
            "update_count": result._update_count,
            "values": _detached(result.metric_state) if result.is_tensor else {},
            "last": _detached(result._forward_cache) if isinstance(result._forward_cache, torch.Tensor) else None,
        }
        for key, result in trainer.fit_loop.epoch_loop._results.items()
    ]


def restore_logged(trainer: L.Trainer, module: L.LightningModule, states: list[State]) -> None:
    """Set what `logged_state` returned."""
    device = trainer.strategy.root_device
    for state in states:
        kept = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
                "dataloader_idx", "metric_attribute")  # fmt: skip
        meta = _Metadata(**{name: state[name] for name in kept}, reduce_fx=getattr(torch, state["reduce_fx"]))
        should, rank_zero_only = state["sync"]
        meta.sync = _Sync(_should=should, fn=trainer.strategy.reduce, rank_zero_only=rank_zero_only)
        result = _ResultMetric(meta, state["is_tensor"])
        if not state["is_tensor"]:
            result.value = module.get_submodule(state["metric_attribute"])
        for key, value in state["values"].items():
            setattr(result, key, _to(value, device))
        result.has_reset = state["has_reset"]
        result._update_count = state["update_count"]
        result._forward_cache = _to(state["last"], device)
        trainer.fit_loop.epoch_loop._results[state["key"]] = result


def shown_metrics(trainer: L.Trainer) -> State:
    """Return the latest metrics: a monitor may look at a validation that lies before the checkpoint."""
    return {
        "callback": _detached(trainer.callback_metrics),
        "logged": _detached(trainer.logged_metrics),
        "progress_bar": _detached(trainer.progress_bar_metrics),
    }


def show_metrics(trainer: L.Trainer, metrics: State) -> None:
    """Set what `shown_metrics` returned."""
    for name, values in metrics.items():
        getattr(trainer._logger_connector, f"_{name}_metrics").update(values)


def _detached(value: Any) -> Any:
    """Return a copy, on the CPU, of tensors in lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _detached(item) for key, item in value.items()}
    return [_detached(item) for item in value] if isinstance(value, list) else value


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_to(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value
