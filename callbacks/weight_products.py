"""WeightProductsCallback: keep W_q W_kᵀ and W_v W_o of every attention layer before and after training."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from safetensors.torch import save_file

from callbacks.attention_map import is_sharded
from callbacks.before_after import BeforeAndAfter, write_on_rank_zero
from structured_init.analysis import WeightProducts, weight_products
from structured_init.errors import StructuredInitError
from structured_init.files import replacing, write_json
from structured_init.sites import AttentionSite, attention_sites

CORNER = 64  # rows and columns of a product that are kept


class WeightProductsCallback(BeforeAndAfter):
    """Write the weight products of every attention layer, before and after training.

    Into ``<log_dir>/weight_products`` (``default_root_dir`` without a logger) go ``before.safetensors`` and
    ``after.safetensors``: per layer ``<layer>:query_key`` (H, c, c) and ``<layer>:value_output`` (c, c) in float32, the
    upper left corners of the products, c at most 64; and ``summary.json``: moment → layer → mean diagonal and standard
    deviation off the diagonal of the whole products, with the layers in the order of the model. A number that is not
    finite is null there.

    Nothing but weights is read, so training is bit-identical with and without the callback. ``before`` is taken when
    training starts at step 0; its path travels in the checkpoint, and a resumed run that writes elsewhere gets a copy.
    A model without attention gives no files and no message. A layer whose projections cannot be read is left out, in a
    line. Under a strategy that shards the weights nothing is written, since no rank holds all of them.

    Args:
        enabled: false does nothing at all.

    Attributes:
        before: path of the products before training, None where there are none.

    Raises:
        StructuredInitError: before training, the files cannot be written. What goes wrong otherwise is a warning and
            an entry in ``missing.json``.
    """

    def capture(self, phase: str, trainer: Trainer, pl_module: LightningModule) -> str | None:
        """Write on rank zero, and tell every rank how it went."""
        folder = Path(trainer.log_dir or trainer.default_root_dir) / "weight_products"  # a collective: every rank asks
        if is_sharded(trainer):
            if phase == "before" and attention_sites(pl_module):
                name = type(trainer.strategy).__name__
                rank_zero_info(f"weight products are not written: no rank holds all of them under {name}")
            return None
        return write_on_rank_zero(
            trainer,
            "weight products",
            phase,
            lambda: attention_sites(pl_module),
            lambda sites: self._write(phase, folder, sites),
        )

    def _write(self, phase: str, folder: Path, sites: list[AttentionSite]) -> str | None:
        tensors, summaries = {}, {}
        for site in sites:
            try:
                products = weight_products(site)
            except StructuredInitError as error:
                rank_zero_info(f"weight products: '{site.name}' is left out: {error}")
                continue
            # Only the corner of one layer at a time stays in memory.
            corner = WeightProducts(*(each[..., :CORNER, :CORNER].clone() for each in products))
            tensors |= {f"{site.name}:{name}": value for name, value in corner._asdict().items()}
            summaries[site.name] = {name: _finite(value) for name, value in products.summary().items()}
        if not tensors:
            return None
        final = folder / f"{phase}.safetensors"
        with replacing(final) as temporary:
            save_file(tensors, temporary)
        known = self._bring_before(folder) if phase == "after" else {}
        write_json(folder / "summary.json", {**known, phase: summaries})
        return str(final.absolute())

    def _bring_before(self, folder: Path) -> dict[str, Any]:
        """Return the summary before training; copy the products too, where they were written to another folder."""
        before = Path(self.before) if self.before is not None else None
        if before is None or not before.is_file():
            return {}
        if not (folder / before.name).exists():
            with replacing(folder / before.name) as temporary:
                shutil.copyfile(before, temporary)
        summary = before.with_name("summary.json")
        known: Mapping[str, Any] = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
        return {name: of_layers for name, of_layers in known.items() if name == "before"}


def _finite(value: float | list[float]) -> float | list[float | None] | None:
    """Return what JSON can hold: null for nan and infinity."""
    if isinstance(value, list):
        return [each if math.isfinite(each) else None for each in value]
    return value if math.isfinite(value) else None
