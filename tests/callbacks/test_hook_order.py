"""InitCallback stands on the order in which Lightning calls its hooks. As a script, this file is one of two ranks."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

BUILT = ["setup", "configure_model"]
STARTED = ["configure_optimizers", "on_fit_start"]
TRAINING = ["sanity_check", "on_train_start"]
RESTORED_EARLY = [*BUILT, "on_load_checkpoint", *STARTED, *TRAINING]
RESTORED_LATE = [*BUILT, *STARTED, "on_load_checkpoint", *TRAINING]


class Tracer(pl.Callback):
    """Notes each hook, and what holds in it: wrapped by DDP, restored from a checkpoint."""

    def __init__(self):
        self.trace: list[str] = []
        self.at_fit_start: dict[str, bool] = {}

    def setup(self, trainer, pl_module, stage):
        self.trace.append("setup")

    def on_fit_start(self, trainer, pl_module):
        self.trace.append("on_fit_start")
        self.at_fit_start = {
            "wrapped": trainer.model is not pl_module,
            "has_optimizer": bool(trainer.optimizers),
            "knows_checkpoint": trainer.ckpt_path is not None,
        }

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.trace.append("on_load_checkpoint")

    def on_sanity_check_start(self, trainer, pl_module):
        self.trace.append("sanity_check")

    def on_train_start(self, trainer, pl_module):
        self.trace.append("on_train_start")


class Traced(pl.LightningModule):
    def __init__(self, tracer):
        super().__init__()
        self.trace = tracer.trace
        self.layer = None

    def configure_model(self):
        self.trace.append("configure_model")
        if self.layer is None:
            self.layer = nn.Linear(4, 1)
            if self.device_mesh is not None:
                fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        self.trace.append("configure_optimizers")
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.layer(batch)


def trace(folder, devices, strategy=lambda: "auto"):
    """Fit, then resume; return what the second fit did."""
    data = DataLoader(torch.randn(4, 4))
    arguments = {"accelerator": "cpu", "logger": False, "default_root_dir": folder, "enable_checkpointing": False}
    arguments |= {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 1}
    trainer = pl.Trainer(max_epochs=1, devices=devices, strategy=strategy(), **arguments)
    trainer.fit(Traced(Tracer()), data, data)
    trainer.save_checkpoint(folder / "first.ckpt")
    tracer = Tracer()
    trainer = pl.Trainer(max_epochs=2, devices=devices, strategy=strategy(), callbacks=[tracer], **arguments)
    trainer.fit(Traced(tracer), data, data, ckpt_path=folder / "first.ckpt")
    return {"trace": tracer.trace, **tracer.at_fit_start}


def test_single_device_restores_before_fit_start_and_builds_optimizers_before_it(tmp_path):
    seen = trace(tmp_path, devices=1)
    assert seen["trace"] == RESTORED_EARLY
    assert seen["has_optimizer"]
    assert seen["knows_checkpoint"]


@pytest.mark.distributed
def test_ddp_wraps_and_restores_before_fit_start(two_processes):
    for rank in two_processes:
        assert rank["ddp"]["trace"] == RESTORED_EARLY
        assert rank["ddp"]["wrapped"]
        assert rank["ddp"]["has_optimizer"]
        assert rank["ddp"]["knows_checkpoint"]


@pytest.mark.distributed
def test_model_parallel_restores_after_fit_start(two_processes):
    for rank in two_processes:
        assert rank["model_parallel"]["trace"] == RESTORED_LATE
        assert rank["model_parallel"]["has_optimizer"]
        assert not rank["model_parallel"]["knows_checkpoint"]


def main():
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    gloo = {"process_group_backend": "gloo"}
    strategies = {
        "ddp": lambda: DDPStrategy(**gloo),
        "model_parallel": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, **gloo),
    }
    seen = {name: trace(folder / name, devices=2, strategy=make) for name, make in strategies.items()}
    (folder / f"{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
