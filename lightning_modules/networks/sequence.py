"""The networks that recall is compared on, by name."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from lightning_modules.networks.state_space import mamba_ssm_network, use_chunked_scan
from lightning_modules.networks.transformers_network import transformers_network
from structured_init.util.arguments import check_choice, check_known
from structured_init.util.errors import StructuredInitError

Host = Literal["transformers", "mamba_ssm"]


def create_backbone(name: str, vocab_size: int, block_size: int, **network_args: Any) -> nn.Module:
    """Build a causal network by its name.

    Args:
        name: one of ``BACKBONES``: ``mamba``, ``mamba2``, ``gpt2``, ``llama``.
        vocab_size: token numbers.
        block_size: the longest input.
        network_args: of the function of that name, and every field of transformers' config.

    Raises:
        StructuredInitError: unknown name or argument, sizes that do not fit, positions that end before the input does.
    """
    check_known("network", name, BACKBONES)
    return BACKBONES[name](vocab_size=vocab_size, block_size=block_size, **network_args)


def mamba(
    vocab_size: int,
    block_size: int,
    hidden_size: int = 64,
    num_hidden_layers: int = 2,
    state_size: int = 16,
    host: Host = "transformers",
    **fields: Any,
) -> nn.Module:
    """Mamba. Its fields are those of transformers' ``MambaConfig``, or of mamba-ssm's layer."""
    check_choice("network 'mamba'", host=(host, Host))
    if host == "mamba_ssm":
        return mamba_ssm_network("Mamba1", vocab_size, hidden_size, num_hidden_layers, d_state=state_size, **fields)
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers, "state_size": state_size}
    return use_chunked_scan(_causal("mamba", vocab_size, block_size, {**sizes, **fields}))


def mamba2(
    vocab_size: int,
    block_size: int,
    hidden_size: int = 64,
    num_hidden_layers: int = 2,
    state_size: int = 16,
    head_dim: int = 32,
    host: Host = "transformers",
    **fields: Any,
) -> nn.Module:
    """Mamba-2. Its fields are those of transformers' ``Mamba2Config``, or of mamba-ssm's layer."""
    check_choice("network 'mamba2'", host=(host, Host))
    if host == "mamba_ssm":
        sizes = {"d_state": state_size, "headdim": head_dim}
        return mamba_ssm_network("Mamba2", vocab_size, hidden_size, num_hidden_layers, **sizes, **fields)
    inner = int(fields.get("expand", 2) * hidden_size)
    if inner % head_dim:
        raise StructuredInitError(
            f"network 'mamba2': an inner width of {inner} does not divide into heads of {head_dim}"
        )
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers, "state_size": state_size}
    heads = {"head_dim": head_dim, "num_heads": inner // head_dim, "n_groups": 1, "chunk_size": 32}
    return use_chunked_scan(_causal("mamba2", vocab_size, block_size, {**sizes, **heads, **fields}))


def gpt2(vocab_size: int, block_size: int, **fields: Any) -> nn.Module:
    """GPT-2, with learned positions: as many as the longest input has, unless the fields say."""
    return _causal("gpt2", vocab_size, block_size, {**SMALL, **fields})


def llama(vocab_size: int, block_size: int, hidden_size: int = 64, **fields: Any) -> nn.Module:
    """Llama, with RoPE; an MLP four times as wide, unless the fields say."""
    sizes = {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size}
    return _causal("llama", vocab_size, block_size, {**SMALL, **sizes, **fields})


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
BACKBONES = {build.__name__: build for build in (mamba, mamba2, gpt2, llama)}


def _causal(name: str, vocab_size: int, block_size: int, fields: dict[str, Any]) -> nn.Module:
    return transformers_network(name, tokenizer_size=vocab_size, block_size=block_size, **fields)
