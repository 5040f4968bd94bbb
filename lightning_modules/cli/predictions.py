"""What ``structured-init predict`` writes: a table with the class of each sample."""

from __future__ import annotations

import csv
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor


class PredictionTable(Callback):
    """Write class and probability of each sample that `predict` reads to ``predictions.csv`` in the run's folder.

    The datamodule has ``class_names``, and ``predicted``, a name for each sample. The table takes a name that is not
    taken.
    """

    def __init__(self, data: Any) -> None:
        self.data, self.rows = data, []

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *batch: Any) -> None:
        """Keep the likeliest class of a batch of class probabilities (B, classes)."""
        if not isinstance(outputs, Tensor) or outputs.shape[1:] != (len(getattr(self.data, "class_names", ())),):
            return
        if outputs.min() >= 0 and (outputs.float().sum(1) - 1).abs().max() < 0.01:
            shares, labels = outputs.float().max(1)
            self.rows += zip(shares.tolist(), labels.tolist(), strict=True)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table, or say why there is none."""
        if not trainer.is_global_zero:
            return
        if not self.rows or trainer.world_size > 1:
            why = "several processes compute them" if self.rows else "they are not class probabilities of a datamodule"
            print(f"predictions were not written: {why}; a BasePredictionWriter in trainer.callbacks writes any")
            return
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "predictions.csv"
        for number in count(1):
            if not path.exists():
                break
            path = folder / f"predictions_{number}.csv"
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sample", "class", "probability"])
            for name, (share, label) in zip(self.data.predicted, self.rows, strict=False):
                table.writerow([name, self.data.class_names[label], f"{share:.6g}"])
        print(f"written: {path} (class and probability of {len(self.rows)} samples)")
