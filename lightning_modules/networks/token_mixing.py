"""What people build in so that attention sees the token before: a token shift or a short convolution.

They change the network, where an initialization changes its first weights alone: the mark against which
``PreviousToken`` is measured. Letters: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError, nearest
from structured_init.sites import attention_sites

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


KINDS = {"token_shift": TokenShift, "short_convolution": ShortConvolution}


def mix_before_attention(network: nn.Module, kind: str) -> None:
    """Let every attention layer of a causal network read its tokens through a mixing of each with those before it.

    Args:
        network: whose attention layers are known; each gets a module ``token_mixing`` and a hook that calls it.
        kind: ``token_shift`` or ``short_convolution``.

    Raises:
        StructuredInitError: there is no such kind, or no attention layer that is known.
    """
    if kind not in KINDS:
        raise StructuredInitError(f"there is no token_mixing '{kind}': {nearest(kind, KINDS)}")
    sites = attention_sites(network)
    if not sites:
        raise StructuredInitError(f"token_mixing: {type(network).__name__} has no attention layer that is known")
    for site in sites:
        site.module.add_module(NAME, KINDS[kind](site.embed_dim))
        site.module.register_forward_pre_hook(_mixed, with_kwargs=True)


def _mixed(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Replace the tokens that a layer is called with, its first argument or the one called ``hidden_states``."""
    mixing = module.get_submodule(NAME)
    if args:
        return (mixing(args[0]), *args[1:]), dict(kwargs)
    return args, {**kwargs, "hidden_states": mixing(kwargs["hidden_states"])}
