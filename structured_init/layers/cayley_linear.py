"""A linear layer whose matrix is orthogonal at every step."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from structured_init.layers.cayley_transform import cayley, cayley_apply
from structured_init.layers.orthogonal import CayleyLayer


class CayleyLinear(CayleyLayer):
    """y = Q x + b with Q = cayley(α W/‖W‖): QᵀQ = I where out ≥ in, Q Qᵀ = I where out ≤ in.

    Computed in float32 or better, whatever the precision outside; the output has the input's dtype. State dicts are
    those of the reference.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: add a bias.

    Source: 2104.07167; locuslab/orthogonal-convolutions, ``layers.py``, ``CayleyLinear``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.alpha = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias from U(±1/√in) and set α = ‖W‖, so that the first step sees W itself."""
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)
        with torch.no_grad():
            self.alpha.copy_(self.weight.norm())

    def forward(self, inputs: Shaped[Tensor, "*batch in"]) -> Shaped[Tensor, "*batch out"]:
        """Multiply.

        Raises:
            StructuredInitError: the parameters are float16.
        """
        dtype = self.precision(inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            vectors = inputs.to(dtype)
            bias = None if self.bias is None else self.bias.to(dtype)
            if self.may_keep:
                outputs = nn.functional.linear(vectors, self.kept(dtype), bias)
            else:
                rows = vectors.reshape(-1, self.in_features)
                outputs = cayley_apply(rows[None], self.direction(dtype).mT[None])[0]
                outputs = (outputs if bias is None else outputs + bias).reshape(*inputs.shape[:-1], -1)
        return outputs.to(inputs.dtype)

    def matrices(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """Return Q in the given precision."""
        return cayley(self.direction(dtype).mT[None])[0].mT.contiguous()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
