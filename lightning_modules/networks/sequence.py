"""The networks that recall is compared on, by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_modules.networks.state_space import use_chunked_scan
from lightning_modules.networks.transformers_network import transformers_network
from structured_init.util.arguments import check_known

SMALL = {"hidden_size": 64, "num_hidden_layers": 2}
# Fields of transformers' config that a network has unless it is given others.
BACKBONES: dict[str, dict[str, int]] = {
    "mamba": {**SMALL, "state_size": 16},
    "mamba2": {**SMALL, "state_size": 16, "head_dim": 32, "n_groups": 1, "chunk_size": 32},
    "gpt2": {**SMALL, "num_attention_heads": 2},
    "llama": {**SMALL, "num_attention_heads": 2},
}


def create_backbone(name: str, vocab_size: int, block_size: int, **network_args: Any) -> nn.Module:
    """Build a causal network by its name.

    Args:
        name: one of ``BACKBONES``: ``mamba``, ``mamba2``, ``gpt2``, ``llama``.
        vocab_size: token numbers.
        block_size: the longest input.
        network_args: fields of transformers' config. Unless they say, the MLP of a Llama is four times as wide as its
            tokens, and Mamba-2 has as many heads as fit.

    Raises:
        StructuredInitError: unknown name or argument, sizes that do not fit, positions that end before the input does.
    """
    check_known("network", name, BACKBONES)
    fields = {**BACKBONES[name], **network_args}
    if name == "llama":
        fields.setdefault("intermediate_size", 4 * fields["hidden_size"])
    if name == "mamba2":
        inner = int(fields.get("expand", 2) * fields["hidden_size"])
        fields.setdefault("num_heads", inner // fields["head_dim"])
    network = transformers_network(name, tokenizer_size=vocab_size, block_size=block_size, **fields)
    return use_chunked_scan(network)
