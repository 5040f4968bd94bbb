"""Convolutions that people build in so that a network sees neighbouring tokens before attention does.

They change the network, where an initialization changes its first weights alone: the mark against which
``PreviousToken`` and ``Induction`` are measured. In a block of several documents they look across the border, as their
sources do.

Letters: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from structured_init.hosts import AttentionSite, attention_sites
from structured_init.hosts.layout import outputs_axis, pieces
from structured_init.hosts.mlp import mlps
from structured_init.util.arguments import check_known
from structured_init.util.errors import StructuredInitError

KINDS = ("short_convolution", "canon")
NAME = "token_mixing"  # of the module inside each layer that is changed


class ShortConvolution(nn.Module):
    """x + conv(x), depthwise and causal over the last four tokens, initialized as PyTorch does.

    Source: the kernel of 4 is that of Mamba, 2312.00752. Without a bias and before attention it is the layer Canon-A of
    Allen-Zhu, 2512.17351 (facebookresearch/PhysicsLM4, ``huggingface/canon_helper.py``: ``create_canon``).
    """

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, 4, groups=width, padding=3, bias=bias)

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the tokens, each with a weighted sum of itself and the three before it."""
        return tokens + self.convolution(tokens.mT)[..., : tokens.shape[1]].mT


def mix_tokens(network: nn.Module, kind: str) -> None:
    """Let a causal network mix each token with those before it, in place.

    What is drawn comes from a seed of its own, made from the global one, and the global random state stays as it is:
    the network and all that is drawn later are those of a run without a mixing.

    Args:
        network: each layer that is changed gets a module ``token_mixing`` and a hook that calls it.
        kind: ``short_convolution`` before each attention layer, or ``canon`` at four places of each block.

    Raises:
        StructuredInitError: there is no such kind; the network attends to a grid of patches; or it lacks what the
            mixing works on (attention or an MLP that is known, linear layers of their own).
    """
    check_known("token_mixing", kind, KINDS)
    sites = attention_sites(network)
    if not sites:
        raise StructuredInitError(f"token_mixing: {type(network).__name__} has no attention layer that is known")
    for site in sites:
        if site.grid is not None:
            raise StructuredInitError(f"token_mixing is for causal sequences: '{site.name}' sees a grid of patches")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((torch.initial_seed() + 1_000_003) % 2**63)
        if kind == "canon":
            _add_canon(network, sites)
            return
        for site in sites:
            _mix_before(site.module, ShortConvolution(site.embed_dim))


def _add_canon(network: nn.Module, sites: list[AttentionSite]) -> None:
    """Put x + conv(x) before attention (A), behind its projections (B), before the MLP (C) and behind its first (D).

    Source: Allen-Zhu, 2512.17351; facebookresearch/PhysicsLM4, ``huggingface/modeling_llama_canon.py`` (``canonA`` to
    ``canonD``: kernel of 4, no bias, no activation; D before the activation of the MLP).
    """
    weights: list[Tensor] = []
    attending: list[nn.Parameter] = []
    for site in sites:
        for matrices in (site.layout.query, site.layout.key, site.layout.value):
            weights += [piece.weight for piece in pieces(matrices)]
        attending += site.layout.parameters()
    widths = {site.embed_dim for site in sites}
    blocks = [mlp for mlp in mlps(dict(network.named_modules()), attending).values() if mlp.width in widths]
    for mlp in blocks:
        weights += mlp.up
    owners: dict[Tensor, tuple[nn.Module, int]] = {}
    for module in network.modules():
        axis = outputs_axis(module)
        if axis is not None:
            owners[module.weight] = module, axis
    if not blocks or any(weight not in owners for weight in weights):
        raise StructuredInitError(
            f"token_mixing 'canon': {type(network).__name__} has no MLP that is known, or keeps its weights in no "
            "linear layers of their own"
        )
    for weight in dict.fromkeys(weights):  # that of a fused layer once
        layer, axis = owners[weight]
        _mix_after(layer, ShortConvolution(weight.shape[axis], bias=False))
    for site in sites:
        _mix_before(site.module, ShortConvolution(site.embed_dim, bias=False))
    for mlp in blocks:
        _mix_before(mlp.module, ShortConvolution(mlp.width, bias=False))


def _mix_before(module: nn.Module, mixing: nn.Module) -> None:
    """Let a module read its tokens through a mixing."""
    module.add_module(NAME, mixing.to(next(module.parameters())))
    module.register_forward_pre_hook(_mix_input, with_kwargs=True)


def _mix_after(module: nn.Module, mixing: nn.Module) -> None:
    """Let a mixing change what a module puts out."""
    module.add_module(NAME, mixing.to(next(module.parameters())))
    module.register_forward_hook(_mix_output)


def _mix_input(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Replace the tokens that a layer is called with, its first argument or the one called ``hidden_states``."""
    mixing = module.get_submodule(NAME)  # of this module: a copy has one of its own
    if args:
        return (mixing(args[0]), *args[1:]), dict(kwargs)
    return args, {**kwargs, "hidden_states": mixing(kwargs["hidden_states"])}


def _mix_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    """Replace what a layer puts out."""
    return module.get_submodule(NAME)(output)
