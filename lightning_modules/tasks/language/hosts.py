"""What networks of different origin have in common, and what they have not."""

from __future__ import annotations

import contextlib
import inspect
from contextlib import AbstractContextManager

import torch
from torch import nn

from structured_init.errors import StructuredInitError


def enable_gradient_checkpointing(network: nn.Module) -> None:
    """Let the layers compute their activations again in the backward pass.

    Raises:
        StructuredInitError: the network has no ``gradient_checkpointing_enable``, as models of transformers have it.
    """
    newer = getattr(network, "activation_checkpointing_enable", None)  # transformers 5.23 at the latest
    enable = newer or getattr(network, "gradient_checkpointing_enable", None)
    if enable is None or not getattr(network, "supports_gradient_checkpointing", True):
        raise StructuredInitError(
            f"gradient_checkpointing: {type(network).__name__} cannot do it: leave it out, or give the network a "
            "method gradient_checkpointing_enable"
        )
    kind = "activation" if newer else "gradient"
    enable(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})  # the other kind cannot follow unused inputs


def takes_segments(network: nn.Module) -> bool:
    """Tell whether a network can be told which tokens see each other and where each stands."""
    parameters = inspect.signature(network.forward).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return "attention_mask" in parameters and ("position_ids" in parameters or open_ended)


def uncompiled(network: nn.Module) -> AbstractContextManager[object]:
    """Run a compiled network as it was written: a text that grows would be compiled anew at every length."""
    if getattr(network, "_compiled_call_impl", None) is None:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
