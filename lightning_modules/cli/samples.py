"""Two samples of the data, for commands that build a model and do not train it."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from callbacks.probe_batch import collect, first_loader, inputs_of
from structured_init.errors import StructuredInitError

WHO = "the search for attention"
SAMPLES = 2


def two_samples(model: LightningModule, datamodule: LightningDataModule | None) -> Any:
    """Return what the module takes of two training samples, on which attention is found by watching.

    Args:
        model: says with ``probe_inputs(batch)`` what its forward takes; its first element where it says nothing.
        datamodule: is set up, and its dataset read; no loader is iterated.

    Raises:
        StructuredInitError: there is no data.
    """
    if datamodule is None:
        raise StructuredInitError(f"{WHO} needs samples, and there is no datamodule to take them from")
    datamodule.prepare_data()
    datamodule.setup("fit")
    batch, _ = collect(first_loader(datamodule.train_dataloader()), SAMPLES, 0, WHO, to_train=True)
    return inputs_of(model, batch)
