"""What is refused before it fails in the middle of a step: one line each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lightning_modules.networks.transformers_network import number_of_positions
from structured_init.errors import StructuredInitError, nearest

OBJECTIVES = ("causal", "masked")


def check_language_arguments(
    objective: str,
    label_smoothing: float,
    z_loss: float,
    sample_tokens: int,
    sample_temperature: float,
    sample_top_k: int | None,
) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        StructuredInitError: names the argument.
    """
    if objective not in OBJECTIVES:
        raise StructuredInitError(f"unknown objective '{objective}': {nearest(objective, OBJECTIVES)}")
    if not 0 <= label_smoothing < 1:
        raise StructuredInitError(f"label_smoothing must be in [0, 1), not {label_smoothing}")
    for name, value in {
        "z_loss": z_loss,
        "sample_tokens": sample_tokens,
        "sample_temperature": sample_temperature,
    }.items():
        if value < 0:
            raise StructuredInitError(f"{name} must be 0 or positive, not {value}")
    if sample_top_k is not None and sample_top_k < 1:
        raise StructuredInitError(f"sample_top_k must be at least 1, or null, not {sample_top_k}")
    if sample_tokens and objective == "masked":
        raise StructuredInitError("a masked model does not continue text: set sample_tokens to 0")


def check_data(model: Any, data: Any) -> None:
    """Compare what data and model say of themselves.

    Args:
        model: a task.
        data: its data; what it does not say is not compared.

    Raises:
        StructuredInitError: names the first argument that differs, and both values.
    """
    for name in ("objective", "num_classes"):
        ours, theirs = getattr(model, name, None), getattr(data, name, None)
        if None not in (ours, theirs) and ours != theirs:
            raise StructuredInitError(f"the data has {name} {theirs}, the model {ours}: set {name}")
    for name in ("vocab_size", "block_size"):
        ours, theirs = getattr(model, name, None), getattr(data, name, None)
        if None not in (ours, theirs) and theirs > ours:
            raise StructuredInitError(f"the data has {name} {theirs}, more than the model's {ours}: set {name}")


def check_batch(batch: dict[str, Tensor], network: nn.Module) -> None:
    """Look at the first batch: reading token numbers waits for the device.

    Raises:
        StructuredInitError: it is no dictionary of what a task takes, or does not fit the network.
    """
    for name in ("input_ids", "labels"):
        if not isinstance(batch, dict) or name not in batch:
            has = ", ".join(batch) if isinstance(batch, dict) else type(batch).__name__
            raise StructuredInitError(f"a batch is a dictionary with input_ids and labels, this one has {has}")
    tokens = batch["input_ids"]
    positions = number_of_positions(network)
    if positions is not None and tokens.shape[1] > positions:
        raise StructuredInitError(
            f"a block of {tokens.shape[1]} tokens is longer than the {positions} positions of the network: "
            "set block_size"
        )
    embedding = getattr(network, "get_input_embeddings", lambda: None)()
    rows = getattr(embedding, "num_embeddings", None)
    if rows is not None and not 0 <= int(tokens.min()) <= int(tokens.max()) < rows:
        raise StructuredInitError(
            f"the tokens run from {int(tokens.min())} to {int(tokens.max())}, the embedding has {rows} rows: "
            "set vocab_size"
        )


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Refuse classes that the network has not, before it fails in a device kernel.

    Raises:
        StructuredInitError: names their range.
    """
    if not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise StructuredInitError(
            f"the labels run from {int(labels.min())} to {int(labels.max())}, the network has {num_classes} classes"
        )
