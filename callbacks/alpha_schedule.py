"""AlphaScheduleCallback: how α of the token-softmax values moves during training."""

from __future__ import annotations

import math
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from structured_init.layers import TokenSoftmaxValue
from structured_init.layers.token_softmax import check_alpha
from structured_init.util.arguments import check_choice
from structured_init.util.errors import StructuredInitError

Curve = Literal["linear", "cosine"]


class AlphaScheduleCallback(Callback):
    """Set α of every :class:`TokenSoftmaxValue` of the model before each optimizer step, and log it as ``alpha``.

    α goes from ``start`` in the first step to ``end`` in the last. It is a function of the step alone, so a resumed run
    has it where it was.

    Args:
        curve: ``linear``, or ``cosine`` (half a cosine, flat at both ends).
        start: α in the first step, in [0, 1].
        end: α in the last step, in [0, 1].

    Raises:
        StructuredInitError: an unknown curve, α outside of [0, 1]; when training starts, a training without an end, a
            model without an α that can be set.
    """

    def __init__(self, curve: Curve = "linear", start: float = 0.0, end: float = 1.0) -> None:
        check_choice("AlphaScheduleCallback", curve=(curve, Curve))
        check_alpha(start)
        check_alpha(end)
        self.curve, self.start, self.end = curve, start, end

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the values and the end of the training; refuse what cannot be followed, before the first step."""
        self._values = settable_values(pl_module)
        self._last = trainer.estimated_stepping_batches - 1
        if not math.isfinite(self._last):
            raise StructuredInitError("alpha needs the end of its schedule: give trainer.max_epochs or max_steps")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        progress = trainer.global_step / max(self._last, 1)
        if self.curve == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        alpha = self.start + (self.end - self.start) * progress
        for values in self._values:
            values.set_alpha(alpha)
        pl_module.log("alpha", alpha, on_step=True, on_epoch=False)


def settable_values(model: LightningModule) -> list[TokenSoftmaxValue]:
    """Return the values of a model whose α can be set; refuse one that has none."""
    found = [module for module in model.modules() if isinstance(module, TokenSoftmaxValue)]
    settable = [module for module in found if module.alpha is not None and not module.learnable]
    if not settable:
        raise StructuredInitError(
            "AlphaScheduleCallback: the model has no TokenSoftmaxValue whose alpha can be set: give the network"
            " token_softmax or pool_softmax, with an alpha that is not learned and a mode other than replace"
        )
    return settable
