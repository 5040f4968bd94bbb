"""AlphaScheduleCallback: how α of the token-softmax values moves during training."""

from __future__ import annotations

import math
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from structured_init.arguments import check_choice
from structured_init.errors import StructuredInitError, nearest
from structured_init.layers import TokenSoftmaxValue
from structured_init.layers.token_softmax import check_alpha

CURVES = ("constant", "linear", "cosine", "step")


class AlphaScheduleCallback(Callback):
    """Set α of every :class:`TokenSoftmaxValue` of the model before each step or epoch, and log it as ``alpha``.

    α is a function of the step or epoch alone, so a resumed run has it where it was.

    Args:
        curve: ``constant`` (``start`` all along), ``linear``, ``cosine`` (half a cosine, flat at both ends), or
            ``step`` (``stairs`` equal jumps, the last at ``until``).
        start: α until ``begin``, in [0, 1].
        end: α from ``until`` on, in [0, 1]; leave it out for a constant.
        begin: the step or epoch at which α starts to move.
        until: the step or epoch at which it has arrived; the last one of the training when None.
        interval: ``step`` (an optimizer step) or ``epoch``: how often α is set, and what ``begin`` and ``until`` count.
        stairs: jumps of the ``step`` curve.

    Raises:
        StructuredInitError: an unknown curve or interval, α outside of [0, 1]; when training starts, a schedule that
            ends after the training, a model without an α that can be set.
    """

    def __init__(
        self,
        curve: Literal["constant", "linear", "cosine", "step"] = "linear",
        start: float = 0.0,
        end: float = 1.0,
        begin: int = 0,
        until: int | None = None,
        interval: Literal["step", "epoch"] = "step",
        stairs: int = 4,
    ) -> None:
        if curve not in CURVES:
            raise StructuredInitError(
                f"unknown curve '{curve}' of AlphaScheduleCallback: {nearest(str(curve), CURVES)}"
            )
        check_choice("AlphaScheduleCallback", interval=(interval, Literal["step", "epoch"]))
        check_alpha(start)
        check_alpha(end)
        if stairs < 1 or begin < 0 or (until is not None and until < begin):
            raise StructuredInitError(
                f"AlphaScheduleCallback: stairs must be at least 1 and 0 <= begin <= until, got stairs={stairs}, "
                f"begin={begin}, until={until}"
            )
        self.curve, self.start, self.end = curve, start, end
        self.begin, self.until, self.interval, self.stairs = begin, until, interval, stairs

    def alpha(self, now: int, last: int) -> float:
        """Return α at a step or epoch, counted from 0, of a training whose last one is ``last``."""
        if self.curve == "constant":
            return self.start
        until = last if self.until is None else self.until
        progress = 0.0 if now < self.begin else 1.0 if now >= until else (now - self.begin) / (until - self.begin)
        if self.curve == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        elif self.curve == "step":
            progress = math.floor(progress * self.stairs) / self.stairs
        return self.start + (self.end - self.start) * progress

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the values and the end of the training; refuse what cannot be followed, before the first step."""
        self._values = settable_values(pl_module)
        epochs = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs
        last = (trainer.estimated_stepping_batches if self.interval == "step" else epochs) - 1
        furthest = max(self.begin, self.until or 0)
        if not math.isfinite(last) and self.until is None and self.curve != "constant":
            raise StructuredInitError("alpha needs the end of its schedule: give until, or trainer.max_epochs")
        if furthest > last:
            raise StructuredInitError(
                f"the schedule of alpha ends at {self.interval} {furthest}, the training at {int(last)} (counted from "
                "0): set until, or train longer"
            )
        self._last = int(last) if math.isfinite(last) else furthest

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        by_step = self.interval == "step"
        alpha = self.alpha(trainer.global_step if by_step else trainer.current_epoch, self._last)
        for values in self._values:
            values.set_alpha(alpha)
        pl_module.log("alpha", alpha, on_step=by_step, on_epoch=not by_step)


def settable_values(model: LightningModule) -> list[TokenSoftmaxValue]:
    """Return the values of a model whose α can be set; refuse one that has none."""
    found = [module for module in model.modules() if isinstance(module, TokenSoftmaxValue)]
    settable = [module for module in found if module.alpha is not None and not module.learnable]
    if not found:
        raise StructuredInitError(
            "AlphaScheduleCallback: the model has no TokenSoftmaxValue: give the network token_softmax or pool_softmax"
        )
    if not settable:
        what = "is learned" if any(module.learnable for module in found) else "does not exist in mode 'replace'"
        raise StructuredInitError(
            f"AlphaScheduleCallback: alpha of this model {what}, so that nothing can be scheduled"
        )
    return settable
