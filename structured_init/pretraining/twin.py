"""The copy of a model that is trained in its place.

Letters: B samples, N tokens, D embed_dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from structured_init.plan import Weights
from structured_init.pretraining.host import Host, as_output, as_tokens, first_tensor, pairs

Replace = Callable[[Tensor], Tensor]
HALVES = (torch.float16, torch.bfloat16)


class Twin:
    """A copy of a host in training mode, with the overlay's values, in float32 where the host is in half precision.

    Args:
        host: what is copied.
        weights: the overlay.

    Attributes:
        module: the copy.
        entrance: its entrance.
        device: where it is.
    """

    def __init__(self, host: Host, weights: Weights) -> None:
        self.host = host
        self.module = deepcopy(host.module)
        if any(parameter.dtype in HALVES for parameter in self.module.parameters()):
            self.module.float()
        with torch.no_grad():
            for original, copy in pairs(host.module, self.module):
                if original.is_floating_point():
                    copy.copy_(weights.read(original))
        self.module.requires_grad_(False).train()
        place = {id(part): number for number, part in enumerate(host.module.modules())}
        parts = list(self.module.modules())
        self.entrance = parts[place[id(host.entrance)]]
        last = parts[place[id(list(host.layers.children())[-1])]]
        self.entrance.register_forward_hook(self._enter)
        last.register_forward_hook(self._leave)
        self.device = next(self.module.parameters()).device
        self._replace: Replace = lambda tokens: tokens
        self._left: Tensor | None = None
        self._copies = dict(zip(map(id, host.module.parameters()), self.module.parameters(), strict=True))

    def of(self, parameter: Tensor) -> Tensor:
        """Return the copy of one of the host's parameters."""
        return self._copies[id(parameter)]

    def given(self, inputs: Tensor) -> Tensor:
        """Return inputs on the copy's device and, where they are no whole numbers, of its precision."""
        return inputs.to(self.device, next(self.module.parameters()).dtype if inputs.is_floating_point() else None)

    def run(
        self, inputs: Tensor, replace: Replace | None = None, mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens embed_dim"]:
        """Return the tokens (B, N, D) that leave the last layer, class and register tokens left out.

        Args:
            inputs: what the host takes.
            replace: makes of the tokens (B, N, D) that the entrance gives those that go on.
            mask: (B, N) of padded texts, for hosts that take an ``attention_mask``.
        """
        self._replace = replace or (lambda tokens: tokens)
        takes = "attention_mask" in inspect.signature(self.module.forward).parameters
        self.module(inputs, **({"attention_mask": mask} if takes and mask is not None else {}))
        out, self._left = self._left, None
        return out[:, out.shape[1] - self._count(inputs) :]

    def _count(self, inputs: Tensor) -> int:
        return self.host.tokens if isinstance(self.entrance, nn.Conv2d) else inputs.shape[1]

    def _enter(self, entrance: nn.Module, _: tuple, output: Tensor) -> Tensor:
        return as_output(self._replace(as_tokens(output, entrance)), output, entrance)

    def _leave(self, _: nn.Module, __: tuple, output: object) -> None:
        self._left = first_tensor(output)
