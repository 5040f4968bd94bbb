"""WeightProductsCallback: see W_q W_kᵀ and W_v W_o of every attention layer before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from callbacks.before_after import BeforeAndAfter, note_missing, null_for_nan, refuse_sharded
from callbacks.samples import probe_batch
from structured_init.analysis import weight_products
from structured_init.hosts import AttentionSite, attention_sites
from structured_init.hosts.attention import left_unknown
from structured_init.hosts.suspected_attention import may_attend
from structured_init.util.errors import StructuredInitError
from structured_init.util.files import write_json
from structured_init.util.names import within
from structured_init.weights import Weights

CORNER = 64  # rows and columns of a product that are kept


class WeightProductsCallback(BeforeAndAfter):
    """Write the weight products of every attention layer, before and after training.

    Into ``<log_dir>/weight_products`` (``default_root_dir`` without a logger) go ``before.safetensors`` and
    ``after.safetensors``: per layer ``<layer>:query_key`` (H, c, c) and ``<layer>:value_output`` (c, c) in float32, the
    upper left corners of the products, c at most 64; and ``summary.json``: moment → layer → mean diagonal and standard
    deviation off the diagonal of the whole products, with the layers in the order of the model. A number that is not
    finite is null there.

    Weights are read, and no sample where all attention is of known classes; else two samples are run, which shows the
    projections of the rest. A model without attention gives no files and no message. Attention whose projections cannot
    be read is left out, with a warning and an entry in ``missing.json``; so is what may be attention in a network that
    does not run on the samples. Under a strategy that shards the weights nothing is written, since no rank holds all of
    them. For resumed runs and errors see :class:`BeforeAndAfter`.

    Args:
        enabled: false does nothing at all.
    """

    what = "weight products"

    def look(self, trainer: Trainer, pl_module: LightningModule) -> tuple[list[AttentionSite], dict[str, str]]:
        """Return the attention layers, whose products are computed one at a time, and why those of others are not."""
        refuse_sharded(trainer)

        def samples() -> Any:
            probe = probe_batch(trainer, pl_module, 2, 0)
            return probe.named or probe.inputs

        weights = Weights(pl_module, batch=samples)
        with trainer.precision_plugin.forward_context():
            sites = attention_sites(weights)
        return sites, unread_attention(weights)

    def write(self, phase: str, folder: Path, trainer: Trainer, seen: Any) -> dict[str, Any] | None:
        sites, left_out = seen
        corners, summary = {}, {}
        for site in sites:
            try:
                products = weight_products(site)
            except StructuredInitError as error:
                left_out[site.name] = str(error)
                continue
            # Only the corner of one layer at a time stays in memory.
            for name, product in products._asdict().items():
                corners[f"{site.name}:{name}"] = product[..., :CORNER, :CORNER].clone()
            summary[site.name] = null_for_nan(products.summary())
        if left_out:
            reasons = StructuredInitError("; ".join(dict.fromkeys(left_out.values())))
            note_missing(trainer, folder.parent, f"{self.what} of {', '.join(left_out)}", phase, reasons)
        if not corners:
            return None
        record = {**self.save(phase, folder, corners), "summary": summary}
        records = {**self.records, phase: record}
        write_json(folder / "summary.json", {moment: known["summary"] for moment, known in records.items()})
        return record


def unread_attention(weights: Weights) -> dict[str, str]:
    """Return name → why of every layer that attends, or may attend, and is no attention site."""
    seen = [found.name for found in weights.seen.layers if found.reason]
    ran = weights.seen.ran or ()
    unread = {}
    for name, why in left_unknown(weights).items():
        # Of what is called attention and ran, the pass tells whether it attends.
        if name not in ran or any(within(each, name) for each in seen):
            unread[name] = why
    if weights.seen.why_not:  # the pass that would have told
        known = [site.name for site in attention_sites(weights, cross=True)]
        unread = dict.fromkeys([*unread, *may_attend(weights, [*known, *unread])], weights.seen.why_not)
    return unread
