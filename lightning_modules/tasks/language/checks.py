"""What is refused before it fails in the middle of a step, one line each, and what only some networks can do."""

from __future__ import annotations

from torch import Tensor, nn

from lightning_modules.networks.transformers_network import number_of_positions
from structured_init.errors import StructuredInitError


def check_batch(batch: dict[str, Tensor], network: nn.Module) -> None:
    """Refuse a first batch that the task or the network cannot take; a look at each would wait for the device."""
    for name in ("input_ids", "labels"):
        if not isinstance(batch, dict) or name not in batch:
            has = ", ".join(batch) if isinstance(batch, dict) else type(batch).__name__
            raise StructuredInitError(f"a batch is a dictionary with input_ids and labels, this one has {has}")
    tokens = batch["input_ids"]
    positions = number_of_positions(network)
    if positions is not None and tokens.shape[1] > positions:
        raise StructuredInitError(
            f"a block of {tokens.shape[1]} tokens is longer than the {positions} positions of the network: "
            "shorten the data's block_size"
        )
    embedding = getattr(network, "get_input_embeddings", lambda: None)()
    tables = (each.num_embeddings for each in network.modules() if isinstance(each, nn.Embedding))
    rows = max(tables, default=None) if embedding is None else getattr(embedding, "num_embeddings", None)
    if rows is not None and not 0 <= int(tokens.min()) <= int(tokens.max()) < rows:
        raise StructuredInitError(
            f"the tokens run from {int(tokens.min())} to {int(tokens.max())}, the embedding has {rows} rows: "
            "set vocab_size"
        )


def enable_gradient_checkpointing(network: nn.Module) -> None:
    """Let the layers compute their activations again in the backward pass; refuse a network that cannot do it."""
    newer = getattr(network, "activation_checkpointing_enable", None)  # transformers 5.23 at the latest
    enable = newer or getattr(network, "gradient_checkpointing_enable", None)
    if enable is None or not getattr(network, "supports_gradient_checkpointing", True):
        raise StructuredInitError(
            f"gradient_checkpointing: {type(network).__name__} cannot do it: leave it out, or give the network a "
            "method gradient_checkpointing_enable"
        )
    kind = "activation" if newer else "gradient"
    enable(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})  # the other kind cannot follow unused inputs
