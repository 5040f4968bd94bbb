"""What a run holds beside weights and optimizer: random states and torchmetrics, as plain states and back."""

from __future__ import annotations

import random

import lightning as L
import numpy as np
import torch
from torchmetrics import Metric

from callbacks.lightning_private import State, detached, moved, reset_next


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
    left_out = reset_next(trainer, epoch_end)
    return {
        name: {"update_count": metric._update_count, "values": detached(metric.metric_state)}
        for name, metric in module.named_modules()
        if isinstance(metric, Metric) and id(metric) not in left_out
    }


def restore_torchmetrics(module: L.LightningModule, states: State) -> None:
    """Set what `torchmetrics_state` returned."""
    metrics = dict(module.named_modules())
    for name, state in states.items():
        metric = metrics.get(name)
        if isinstance(metric, Metric):
            for key, value in state["values"].items():
                setattr(metric, key, moved(value, metric.device))
            metric._update_count = state["update_count"]
            metric._computed = None
