"""TokenSoftmaxValue: what attention or pooling takes in place of its values."""

from __future__ import annotations

import warnings
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError, nearest
from structured_init.layers.token_softmax import mix_values, token_softmax_attention

Mode = Literal["replace", "add", "subtract", "remix"]
MODES = ("replace", "add", "subtract", "remix")
COARSE = (torch.bfloat16, torch.float16)


class TokenSoftmaxValue(nn.Module):
    """Values V mixed with softmaxᵀ(V), their softmax over tokens for every coordinate.

    ========  =================================
    mode      in place of V
    ========  =================================
    replace   scale·softmaxᵀ(V)
    add       V + α·scale·softmaxᵀ(V)
    subtract  V − α·scale·softmaxᵀ(V)
    remix     (1 − α)·V + α·scale·softmaxᵀ(V)
    ========  =================================

    Without V, that is in ``replace`` and in ``remix`` towards α = 1, attention that looks everywhere returns 1/M in
    every coordinate: at the published initialization of CCT-2/3x2 it differs from that by 3e-4 of it. bfloat16 and
    float16 round this away, of which both modes warn, except under ``torch.compile``.

    Args:
        mode: one of these.
        scale: factor on softmaxᵀ(V), whose mean over M tokens is 1/M.
        alpha: α at the start, in [0, 1].
        learnable: α is a parameter, which may leave [0, 1]; else a buffer, which ``AlphaScheduleCallback`` may move.
        num_heads: how many α there are: the value heads for one each, 1 for a shared one.

    Attributes:
        alpha: (num_heads,); ``None`` for ``replace``, which has none.

    Raises:
        StructuredInitError: an unknown mode, α outside of [0, 1], an α for ``replace``.

    Source: anhinga/JuliaCon2021-poster, "request for plot"; the grid V ± α·softmaxᵀ(V) was suggested in its discussion.
    """

    alpha: Tensor | None

    def __init__(
        self,
        mode: Mode = "replace",
        scale: float = 1.0,
        alpha: float = 1.0,
        learnable: bool = False,
        num_heads: int = 1,
    ) -> None:
        if mode not in MODES:
            raise StructuredInitError(f"unknown mode '{mode}' of TokenSoftmaxValue: {nearest(str(mode), MODES)}")
        check_alpha(alpha)
        if mode == "replace" and (learnable or alpha != 1):
            raise StructuredInitError("mode 'replace' has no alpha: use 'remix', which is the same at alpha = 1")
        super().__init__()
        self.mode, self.scale, self.learnable = mode, float(scale), learnable
        start = torch.full((num_heads,), float(alpha))
        if mode == "replace":
            self.alpha = None
        elif learnable:
            self.alpha = nn.Parameter(start)
        else:
            self.register_buffer("alpha", start)

    def forward(
        self, values: Float[Tensor, "*batch tokens value_dim"], visible: Bool[Tensor, ...] | None = None
    ) -> Float[Tensor, "*batch tokens value_dim"]:
        """Mix values (B, tokens, D) or (B, H, tokens, d); ``visible`` (…, tokens) is true for tokens that count."""
        self._warn_of_rounding(values)
        return mix_values(values, *self.factors(), visible).to(values.dtype)

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens value_dim"],
        mask: Tensor | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Attend to the mixed values; the softmax of each query runs over the tokens that it may see.

        The arguments are those of :func:`~structured_init.layers.token_softmax.token_softmax_attention`.
        """
        self._warn_of_rounding(value)
        return token_softmax_attention(
            query, key, value, *self.factors(), mask, is_causal, dropout_p, scale, enable_gqa
        )

    def factors(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the factors on V and on softmaxᵀ(V), numbers or (num_heads, 1, 1)."""
        if self.alpha is None:
            return 0.0, self.scale
        alpha = self.alpha.view(-1, 1, 1)
        if self.mode == "remix":
            return 1 - alpha, alpha * self.scale
        return 1.0, alpha * (self.scale if self.mode == "add" else -self.scale)

    def _warn_of_rounding(self, values: Tensor) -> None:
        if self.mode not in ("replace", "remix") or torch.compiler.is_compiling():
            return
        device = values.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else values.dtype
        if dtype in COARSE:
            name = str(dtype).removeprefix("torch.")
            warnings.warn(
                f"softmaxᵀ(V) in {name}: while values are small and α is near 1, it comes out close to "
                f"1/{values.shape[-2]} everywhere, and what differs is rounded away; precision 32-true keeps it",
                stacklevel=2,
            )

    @torch.no_grad()
    def set_alpha(self, alpha: float) -> None:
        """Set α of every head, in [0, 1].

        Raises:
            StructuredInitError: it is learned, there is none, or it is out of its range.
        """
        check_alpha(alpha)
        if self.alpha is None or self.learnable:
            why = "is learned" if self.learnable else "does not exist in mode 'replace'"
            raise StructuredInitError(f"alpha of TokenSoftmaxValue {why}: it cannot be set")
        self.alpha.fill_(alpha)

    def extra_repr(self) -> str:
        return f"mode={self.mode}, scale={self.scale:g}, learnable={self.learnable}"


def check_alpha(alpha: float) -> None:
    """Refuse an α outside of [0, 1].

    Raises:
        StructuredInitError: it is.
    """
    if not 0 <= alpha <= 1:
        raise StructuredInitError(f"alpha must be in [0, 1], not {alpha}")
