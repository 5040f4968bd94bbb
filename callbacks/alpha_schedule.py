"""AlphaScheduleCallback: how α of the token-softmax values moves during training."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from structured_init.layers import TokenSoftmaxValue
from structured_init.layers.token_softmax import check_alpha
from structured_init.util.arguments import check_choice
from structured_init.util.errors import StructuredInitError

Curve = Literal["linear", "cosine"]


class AlphaScheduleCallback(Callback):
    """Set α of every :class:`TokenSoftmaxValue` of the model before each optimizer step, and log it as ``alpha``.

    α is a function of the step alone, so a resumed run has it where it was.

    Args:
        curve: ``linear``, or ``cosine`` (half a cosine, flat at both ends).
        start: α until ``begin``, in [0, 1].
        end: α from ``until`` on, in [0, 1].
        begin: the step at which α starts to move.
        until: the step at which it has arrived; the last one of the training when None.

    Raises:
        StructuredInitError: an unknown curve, α outside of [0, 1]; when training starts, a schedule that ends after the
            training, a model without an α that can be set.
    """

    def __init__(
        self, curve: Curve = "linear", start: float = 0.0, end: float = 1.0, begin: int = 0, until: int | None = None
    ) -> None:
        check_choice("AlphaScheduleCallback", curve=(curve, Curve))
        check_alpha(start)
        check_alpha(end)
        if begin < 0 or (until is not None and until < begin):
            raise StructuredInitError(
                f"AlphaScheduleCallback: 0 <= begin <= until must hold, got begin={begin}, until={until}"
            )
        self.curve, self.start, self.end, self.begin, self.until = curve, start, end, begin, until

    def alpha(self, step: int, until: int) -> float:
        """Return α at a step, counted from 0, where it arrives at ``until``."""
        progress = float(np.interp(step, (self.begin, until), (0, 1)))
        if self.curve == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.start + (self.end - self.start) * progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the values and the end of the training; refuse what cannot be followed, before the first step."""
        self._values = settable_values(pl_module)
        last = trainer.estimated_stepping_batches - 1
        until = last if self.until is None else self.until
        if not math.isfinite(until):
            raise StructuredInitError("alpha needs the end of its schedule: give until, or trainer.max_epochs")
        if max(self.begin, until) > last:
            raise StructuredInitError(
                f"the schedule of alpha ends at step {max(self.begin, until)}, the training at {last} (counted from 0):"
                " set until, or train longer"
            )
        self._until = int(until)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        alpha = self.alpha(trainer.global_step, self._until)
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
