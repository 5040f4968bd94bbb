"""The networks that recall is compared on, by name, and attention in the place of a state-space layer.

Letters: B batch, L tokens, D embed_dim, H heads, k head_dim.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lightning_modules.networks.state_space import mamba_ssm_network, use_chunked_scan
from lightning_modules.networks.transformers_network import transformers_network
from structured_init import AttentionLayout, Projection, register_attention
from structured_init.analysis import register_capture
from structured_init.arguments import check_choice, check_known, check_takes
from structured_init.errors import StructuredInitError


class Mixer(nn.Module):
    """Four projections, as attention has them; without positions, which the layers around bring.

    A number of heads H that does not divide the width D is refused.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise StructuredInitError(f"a width of {embed_dim} does not divide into {num_heads} heads")
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4)
        )

    def heads(self, hidden_states: Float[Tensor, "B L D"]) -> list[Float[Tensor, "B H L k"]]:
        """Return queries, keys and values."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        return [each(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in projections]

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "B H L k"]:
        """Return what every token takes from those before it."""
        raise NotImplementedError

    def forward(self, hidden_states: Float[Tensor, "B L D"], **state: Any) -> Float[Tensor, "B L D"]:
        """Return the mixed tokens; what a Mamba network passes besides is not used."""
        return self.o_proj(self.mix(*self.heads(hidden_states)).transpose(1, 2).flatten(2))


class AttentionMixer(Mixer):
    """Causal softmax attention."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class LinearAttentionMixer(Mixer):
    """Causal linear attention, y_i = Σ_{j ≤ i} (q_i · k_j) v_j / √k, without a feature map or a normalizer.

    It is what a state-space layer without decay computes: the reference point of 2410.11135.
    """

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return linear_maps(query, key) @ value


def linear_maps(query: Float[Tensor, "B H L k"], key: Float[Tensor, "B H L k"]) -> Float[Tensor, "B H L L"]:
    """Return the lower triangle of Q Kᵀ / √k."""
    return (query @ key.mT / query.shape[-1] ** 0.5).tril()


@register_attention(Mixer)
def _layout(module: Mixer) -> AttentionLayout:
    embed_dim, heads = module.q_proj.in_features, module.num_heads
    query, key, value = (
        Projection(each.weight, heads, embed_dim // heads) for each in (module.q_proj, module.k_proj, module.v_proj)
    )
    return AttentionLayout(query, key, value, Projection(module.o_proj.weight, heads, embed_dim // heads, axis=1))


@register_capture(LinearAttentionMixer)
def _linear_maps(module: LinearAttentionMixer, args: tuple, kwargs: dict, output: object) -> Tensor:
    """The moduli, every row summing to one, as for state-space layers."""
    query, key, _ = module.heads(args[0] if args else kwargs["hidden_states"])
    maps = linear_maps(query.float(), key.float()).abs()
    return maps / maps.sum(-1, keepdim=True).clamp(min=1e-30)


Host = Literal["transformers", "mamba_ssm"]


def create_backbone(name: str, vocab_size: int, block_size: int, **network_args: Any) -> nn.Module:
    """Build a causal network by its name.

    Args:
        name: one of ``BACKBONES``: ``mamba``, ``mamba2``, ``hybrid`` (Mamba or Mamba-2 with one attention layer),
            ``gpt2``, ``llama``, ``linear_attention``.
        vocab_size: token numbers.
        block_size: the longest input.
        network_args: of the function of that name; ``mamba``, ``mamba2``, ``gpt2`` and ``llama`` also take every field
            of transformers' config.

    Raises:
        StructuredInitError: unknown name or argument, sizes that do not fit, positions that end before the input does.
    """
    check_known("network", name, BACKBONES)
    build = BACKBONES[name]
    parameters = inspect.signature(build).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        known = [each for each in parameters if each not in ("vocab_size", "block_size")]
        check_takes(f"network '{name}'", network_args, known)
    return build(vocab_size=vocab_size, block_size=block_size, **network_args)


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


def hybrid(
    vocab_size: int,
    block_size: int,
    state_space: Literal["mamba", "mamba2"] = "mamba2",
    attention_layer: int = -1,
    num_heads: int = 2,
    hidden_size: int = 64,
    num_hidden_layers: int = 2,
    state_size: int = 16,
) -> nn.Module:
    """Mamba or Mamba-2 with one layer replaced by causal attention without positions."""
    check_choice("network 'hybrid'", state_space=(state_space, Literal["mamba", "mamba2"]))
    if not -num_hidden_layers <= attention_layer < num_hidden_layers:
        raise StructuredInitError(
            f"network 'hybrid': attention_layer={attention_layer} is none of its {num_hidden_layers} layers, which are "
            f"numbered 0 to {num_hidden_layers - 1}"
        )
    build = BACKBONES[state_space]
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers, "state_size": state_size}
    network = build(vocab_size=vocab_size, block_size=block_size, **sizes)
    network.backbone.layers[attention_layer].mixer = AttentionMixer(hidden_size, num_heads)
    return network


def linear_attention(
    vocab_size: int, block_size: int, num_heads: int = 1, hidden_size: int = 64, num_hidden_layers: int = 2
) -> nn.Module:
    """The network of Mamba, every layer replaced by linear attention."""
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers}
    network = mamba(vocab_size, block_size, **sizes)
    for layer in network.backbone.layers:
        layer.mixer = LinearAttentionMixer(hidden_size, num_heads)
    return network


def gpt2(vocab_size: int, block_size: int, **fields: Any) -> nn.Module:
    """GPT-2, with learned positions: as many as the longest input has, unless the fields say."""
    return _causal("gpt2", vocab_size, block_size, {**SMALL, **fields})


def llama(vocab_size: int, block_size: int, hidden_size: int = 64, **fields: Any) -> nn.Module:
    """Llama, with RoPE; an MLP four times as wide, unless the fields say."""
    sizes = {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size}
    return _causal("llama", vocab_size, block_size, {**SMALL, **sizes, **fields})


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
BACKBONES = {build.__name__: build for build in (mamba, mamba2, hybrid, gpt2, llama, linear_attention)}


def _causal(name: str, vocab_size: int, block_size: int, fields: dict[str, Any]) -> nn.Module:
    return transformers_network(name, tokenizer_size=vocab_size, block_size=block_size, **fields)
