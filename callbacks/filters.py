"""FilterCallback: see the depthwise filters of a model before and after training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import load_file, save_file
from torch import Tensor

from callbacks.attention_figures import Drawn, send
from callbacks.attention_map import is_sharded
from callbacks.before_after import BeforeAndAfter, write_on_rank_zero
from callbacks.figures import covariance_figure, filter_figure, save_figure, variance_figure
from structured_init.analysis.filters import depthwise_filters, filter_change, filter_statistics
from structured_init.files import replacing, write_json
from structured_init.sites.depthwise import depthwise_conv_sites


class FilterCallback(BeforeAndAfter):
    """Write every depthwise convolution's filters before and after training, with statistics and figures.

    Into ``<log_dir>/filters`` (``default_root_dir`` without a logger) go ``before.safetensors`` and
    ``after.safetensors`` (a tensor (F, h, w) per layer, float32), ``statistics.json`` (per moment and layer, and what
    changed), and the figures ``covariances.png``, ``filters.png`` and ``variances.png``, which TensorBoard and W&B get
    as well. Nothing but weights is read, so training is bit-identical with and without the callback. ``before`` is
    taken when training starts at step 0; its path travels in the checkpoint, and a resumed run that writes elsewhere
    gets a copy. A model without depthwise convolutions gives no files and no message.

    Args:
        enabled: false does nothing at all.
        figures: whether to draw.

    Attributes:
        before: path of the filters before training, None where there are none.

    Raises:
        StructuredInitError: before training, the files cannot be written. What goes wrong otherwise is a warning and
            an entry in ``missing.json``.
    """

    def __init__(self, enabled: bool = True, figures: bool = True) -> None:
        super().__init__(enabled)
        self.figures = figures

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> str | None:
        """Write on rank zero, and tell every rank how it went."""
        folder = Path(trainer.log_dir or trainer.default_root_dir) / "filters"  # a collective: every rank asks
        if is_sharded(trainer):
            if phase == "before" and depthwise_conv_sites(pl_module):
                rank_zero_info(
                    f"filters are not written: no rank holds all of them under {type(trainer.strategy).__name__}"
                )
            return None
        return write_on_rank_zero(
            trainer,
            "filters",
            phase,
            lambda: depthwise_filters(pl_module),
            lambda filters: self._write(phase, folder, trainer, filters),
        )

    def _write(self, phase: str, folder: Path, trainer: Trainer, filters: dict[str, Tensor]) -> str | None:
        if not filters:
            return None
        _save(folder / f"{phase}.safetensors", filters)
        moments = {phase: filters}
        if phase == "after" and self.before is not None and Path(self.before).is_file():
            before = load_file(self.before)
            moments = {"before": {name: before[name] for name in filters if name in before}, **moments}
            if not (folder / "before.safetensors").exists():
                _save(folder / "before.safetensors", moments["before"])
        write_json(folder / "statistics.json", described(moments))
        if phase == "after" and self.figures:
            send(trainer.loggers, draw_filters(moments, folder), trainer.global_step, "filters")
        return str((folder / f"{phase}.safetensors").absolute())


def described(moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return statistics per moment and layer, and under ``change`` what lies between ``before`` and ``after``.

    Args:
        moments: label → layer → filters (F, h, w).
    """
    numbers = {
        label: {name: filter_statistics(filters) for name, filters in layers.items()}
        for label, layers in moments.items()
    }
    if {"before", "after"} <= moments.keys():
        numbers["change"] = {
            name: filter_change(filters, moments["after"][name]) for name, filters in moments["before"].items()
        }
    return {
        label: {name: {key: _plain(value) for key, value in row.items()} for name, row in layers.items()}
        for label, layers in numbers.items()
    }


def draw_filters(moments: Mapping[str, Mapping[str, Tensor]], folder: Path) -> Drawn:
    """Draw and save covariances, filters and variances.

    Args:
        moments: label → layer → filters (F, h, w).
        folder: where the PNG files go.

    Returns:
        Name → (figure, path).
    """
    functions = {"covariances": covariance_figure, "filters": filter_figure, "variances": variance_figure}
    drawn = {name: (draw(moments), folder / f"{name}.png") for name, draw in functions.items()}
    for figure, path in drawn.values():
        save_figure(figure, path)
    return drawn


def _save(path: Path, filters: Mapping[str, Tensor]) -> None:
    with replacing(path) as temporary:
        save_file({name: layer.contiguous() for name, layer in filters.items()}, temporary)


def _plain(value: float) -> float | None:
    """Return a number that JSON has: null for nan and infinity."""
    return value if math.isfinite(value) else None
