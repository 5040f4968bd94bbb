"""FilterCallback: see the depthwise filters of a model before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from callbacks.before_after import BeforeAndAfter, null_for_nan, refuse_sharded, show_figures
from callbacks.figures import covariance_figure, filter_figure, variance_figure
from structured_init.analysis.filters import depthwise_filters, filter_change, filter_statistics
from structured_init.util.files import write_json


class FilterCallback(BeforeAndAfter):
    """Write every depthwise convolution's filters before and after training, with statistics and figures.

    Into ``<log_dir>/filters`` (``default_root_dir`` without a logger) go ``before.safetensors`` and
    ``after.safetensors`` (a tensor (F, h, w) per layer, float32), ``statistics.json`` (per moment and layer, and what
    changed), and the figures ``covariances.png``, ``filters.png`` and ``variances.png``, which TensorBoard and W&B get
    as well. Nothing but weights is read. A model without depthwise convolutions gives no files and no message. For
    resumed runs and errors see :class:`BeforeAndAfter`.

    Args:
        enabled: false does nothing at all.
        figures: whether to draw.
    """

    what = "filters"

    def __init__(self, enabled: bool = True, figures: bool = True) -> None:
        super().__init__(enabled)
        self.figures = figures

    def look(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        refuse_sharded(trainer)
        return depthwise_filters(pl_module)

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: dict[str, Tensor]) -> dict[str, Any] | None:
        if not seen:
            return None
        record = self.save(phase, folder, seen)
        moments = {**self.read_before(seen), phase: seen}
        tables = {}
        for moment, layers in moments.items():
            tables[moment] = {name: filter_statistics(filters) for name, filters in layers.items()}
        if len(moments) > 1:
            before = moments["before"].items()
            tables["change"] = {name: filter_change(filters, seen[name]) for name, filters in before}
        write_json(folder / "statistics.json", null_for_nan(tables))
        if phase == "after" and self.figures:
            draw = {"covariances": covariance_figure, "filters": filter_figure, "variances": variance_figure}
            show_figures(trainer, folder, {name: figure(moments) for name, figure in draw.items()})
        return record
