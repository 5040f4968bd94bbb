"""What initialization a model really has: of every parameter, through depth, and what is suspicious about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from structured_init.checks.findings import Finding, first_names, left_out
from structured_init.checks.lines import Line, block_lines, describe
from structured_init.checks.measured import Measured
from structured_init.checks.one_pass import BlockScale, measure
from structured_init.checks.records import Record, records_of
from structured_init.checks.references import equal_references
from structured_init.checks.table import OF_NUMBERS, make
from structured_init.odd_weights import trained_norm
from structured_init.storage import refuse_unreadable
from structured_init.undisturbed import evaluating
from structured_init.util.arguments import check_whole
from structured_init.util.errors import StructuredInitError, missing_extra
from structured_init.util.names import wrapped
from structured_init.weights import Weights

if TYPE_CHECKING:
    from pandas import DataFrame

UNKNOWN = ("unclear", "other", "memory", "unreadable")


def audit(
    model: nn.Module, batch: Any = None, *, classes: int | None = None, max_samples: int | None = 8, seed: int = 0
) -> Audit:
    """Say what initialization a model really has, from its numbers alone. The model is left as it was.

    Args:
        model: any module.
        batch: what it is called with: a tensor, a tuple of arguments, or a dictionary of named ones. Without it, what
            the host library names: ``dummy_inputs`` of transformers, the image size of timm. Where there is neither,
            activations and gradients are left out, and ``notes`` says so.
        classes: number of classes or words, for the first loss, where the model does not say it: the length of the
            last axis of the logits, or of axis 1 as in segmentation.
        max_samples: at most so many samples of the batch, the first along axis 0; all when None.
        seed: of the draws of such inputs, and of the direction in which the output is differentiated.

    Raises:
        StructuredInitError: the model has no parameters, or none with memory; one is lazy; it fails on the batch.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from structured_init.analysis import audit
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, batch_first=True), num_layers=2)
        >>> print(str(audit(encoder, torch.randn(2, 8, 32)).findings[0]).partition(",")[0])
        problem: layers.0–1.self_attn.in_proj_weight
    """
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"audit needs a model, an nn.Module, got {type(model).__name__}")
    check_whole("audit", least=2, null=True, classes=classes)
    check_whole("audit", null=True, max_samples=max_samples)
    refuse_unreadable(model)
    parameters = list(model.parameters())
    if not parameters:
        raise StructuredInitError(f"{type(model).__name__} has no parameters: there is nothing to audit")
    if all(parameter.is_meta for parameter in parameters):
        raise StructuredInitError(f"{type(model).__name__} is on the meta device: its parameters have no values yet")
    with evaluating(model):
        depth = measure(model, batch, seed, classes, max_samples)
        records = records_of(model)
        trained = trained_norm(Weights(model))
    measured = Measured(model, records, records, depth)
    rows = [make(name, measured) for name in ("memory", *OF_NUMBERS, "depth", "stuck", "blind")]
    notes = [f"{each.name}: its {each.dtype} numbers cannot be read" for each in records if each.kind == "unreadable"]
    if trained is None:
        rows.append(make("loss", measured))  # what was trained does not guess
    else:
        notes.append(f"the weights look trained: '{trained}' is not constant")
    findings = [each for row in rows for each in row.findings]
    notes += left_out(rows)
    unmoved = [each.name for each in measured.unmoved()]
    if unmoved:
        notes.append(f"{first_names(unmoved)}: no gradient on this batch")
    return Audit(type(model).__name__, records, findings, depth.blocks, depth.gradients, notes, depth.loss)


@dataclass
class Audit:
    """What initialization a model has.

    Attributes:
        model: its class.
        records: every parameter, in the order of the model; tied ones have one record.
        findings: what is suspicious.
        blocks: scale of activations after every block; empty without a batch.
        gradients: parameter → root mean square of its gradient; empty without a batch.
        notes: what was left out and why, and what else is to be known.
        loss: first loss in nats, as the cross-entropy that uniform targets are expected to have, and the number of
            classes C; guessing has ln C. ``None`` where no logits were seen.
    """

    model: str
    records: list[Record]
    findings: list[Finding]
    blocks: list[BlockScale]
    gradients: dict[str, float]
    notes: list[str]
    loss: tuple[float, int] | None

    def lines(self) -> list[Line]:
        """Return a line per block, those that are alike folded."""
        return block_lines(self.records, self.blocks)

    def headline(self) -> str:
        """Return one line: the model, its size and how much of it was recognized."""
        size = sum(record.size for record in self.records)
        known = [each for each in self.records if each.kind not in UNKNOWN or equal_references(each)]
        line = f"{self.model}: {size:,} numbers in {len(self.records)} parameters, {len(known)} of them recognized"
        if self.loss is None:
            return line
        found, classes = self.loss
        return f"{line}; first loss {found:.3g}, ln {classes:,} = {math.log(classes):.3g}"

    def summary(self) -> str:
        """Return a line per block, the findings and what was left out, as text."""
        lines = self.lines()
        width = max(len(line.name) for line in lines)
        body = [f"{line.name:{width}}  {line.text}" for line in lines]
        said = [*map(str, self.findings or ["nothing suspicious was found"]), *self.notes]
        return "\n".join([self.headline(), "", *body, "", *said])

    def markdown(self) -> str:
        """Return the same as a page of Markdown."""
        return f"# Audit of {self.model}\n\n```\n{self}\n```\n"

    def table(self) -> DataFrame:
        """Return a row per parameter as a pandas ``DataFrame``."""
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise (missing_extra(error, "Audit.table()", "compare") or error) from None
        return DataFrame([self._row(record) for record in self.records])

    def _row(self, record: Record) -> dict[str, Any]:
        return {
            "parameter": " = ".join(record.names),
            "block": record.block,
            "role": record.role,
            "shape": "×".join(map(str, record.shape)) or "scalar",
            "kind": record.kind,
            "description": describe(record),
            "scale": record.distribution.scale,
            "mean": record.mean,
            "std": record.std,
            "largest": record.largest,
            "kurtosis": record.kurtosis,
            "equals": "; ".join(equal_references(record)),
            "gradient": self.gradients.get(record.name, math.nan),
            "trainable": record.trainable,
            "dtype": record.dtype,
        }

    def __str__(self) -> str:
        return wrapped(self.summary())
