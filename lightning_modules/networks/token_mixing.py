"""What people build in so that attention sees its neighbours: a token shift, a short or a depthwise convolution.

They change the network, where an initialization changes its first weights alone: the mark against which
``PreviousToken`` and ``Impulse`` are measured. Letters: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError, nearest
from structured_init.hosts import AttentionSite, attention_sites

NAME = "token_mixing"  # of the module inside each attention layer


class TokenShift(nn.Module):
    """The first half of the coordinates comes from the token before; zeros before the first. No parameters.

    Source: RWKV's time shift, BlinkDL/RWKV-LM, ``RWKV-v1``; Peng et al., 2305.13048, mixes with learned shares.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.half = width // 2

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, D) of the same shape."""
        before = nn.functional.pad(tokens[:, :-1, : self.half], (0, 0, 1, 0))
        return torch.cat([before, tokens[..., self.half :]], dim=-1)


class ShortConvolution(nn.Module):
    """x + conv(x), depthwise and causal over the last ``kernel_size`` tokens, initialized as PyTorch does.

    Source: the kernel of 4 is that of Mamba, 2312.00752; with a skip and before attention it is the Canon-A layer of
    Allen-Zhu, "Physics of Language Models: Part 4.1" (2025), as we know it from the abstract.
    """

    def __init__(self, width: int, kernel_size: int = 4) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel_size, groups=width, padding=kernel_size - 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, D) of the same shape."""
        return tokens + self.convolution(tokens.mT)[..., : tokens.shape[1]].mT


class DepthwiseConvolution(nn.Module):
    """x + conv(x), depthwise 3×3 over a grid of patches with zeros around it, initialized as PyTorch does.

    Tokens before the grid (class token, registers) stay as they are.

    Source: with a skip, the positional encoding generator of Chu et al., 2102.10882, which stands behind the first
    block alone.
    """

    def __init__(self, width: int, grid: tuple[int, int], prefix_tokens: int = 0) -> None:
        super().__init__()
        self.grid, self.prefix_tokens = grid, prefix_tokens
        self.convolution = nn.Conv2d(width, width, 3, groups=width, padding=1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, D) of the same shape."""
        prefix, patches = tokens[:, : self.prefix_tokens], tokens[:, self.prefix_tokens :]
        mixed = self.convolution(patches.mT.unflatten(-1, self.grid)).flatten(-2).mT
        return torch.cat([prefix, patches + mixed], dim=1)


SEQUENCES = {"token_shift": TokenShift, "short_convolution": ShortConvolution}
GRIDS = {"depthwise_convolution": DepthwiseConvolution}


def mix_before_attention(network: nn.Module, kind: str) -> None:
    """Let every attention layer read its tokens through a mixing of each with its neighbours.

    Args:
        network: whose attention layers are known; each gets a module ``token_mixing`` and a hook that calls it.
        kind: ``token_shift`` or ``short_convolution`` with the tokens before, for causal networks;
            ``depthwise_convolution`` with the patches around, for vision transformers.

    Raises:
        StructuredInitError: there is no such kind, no attention layer that is known, or a kind for sequences on a grid
            of patches, or the other way round.
    """
    if kind not in {*SEQUENCES, *GRIDS}:
        raise StructuredInitError(f"there is no token_mixing '{kind}': {nearest(kind, [*SEQUENCES, *GRIDS])}")
    sites = attention_sites(network)
    if not sites:
        raise StructuredInitError(f"token_mixing: {type(network).__name__} has no attention layer that is known")
    mixings = [_mixing(site, kind) for site in sites]
    for site, mixing in zip(sites, mixings, strict=True):
        site.module.add_module(NAME, mixing)
        site.module.register_forward_pre_hook(_mixed, with_kwargs=True)


def _mixing(site: AttentionSite, kind: str) -> nn.Module:
    if kind in SEQUENCES and site.grid is None:
        return SEQUENCES[kind](site.embed_dim)
    if kind in GRIDS and site.grid is not None:
        return GRIDS[kind](site.embed_dim, site.grid, site.prefix_tokens)
    tokens = "a sequence" if site.grid is None else "a grid of patches"
    fitting = " or ".join(SEQUENCES if site.grid is None else GRIDS)
    raise StructuredInitError(f"token_mixing '{kind}': '{site.name}' sees {tokens}, which takes {fitting}")


def _mixed(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Replace the tokens that a layer is called with, its first argument or the one called ``hidden_states``."""
    mixing = module.get_submodule(NAME)
    if args:
        return (mixing(args[0]), *args[1:]), dict(kwargs)
    return args, {**kwargs, "hidden_states": mixing(kwargs["hidden_states"])}
