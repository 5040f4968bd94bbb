"""Small networks of host libraries, and attention of nobody's library, for the tests of every room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
import transformers
from torch import nn

from structured_init import Draws, Initializer, Weights


class Does(Initializer):
    """Plans what a function does with the overlay."""

    def __init__(self, does: Callable[[Weights], None]) -> None:
        self.does = does

    def plan(self, weights: Weights, *, rng: Draws, batch: object = None) -> None:
        self.does(weights)


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of every parameter and buffer."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def differing(before: dict[str, torch.Tensor], model: nn.Module) -> set[str]:
    """Return the names of what is not as it was."""
    return {name for name, tensor in model.state_dict().items() if not torch.equal(before[name], tensor)}


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a model in evaluation mode that is the same each time, with the global random state left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def alone(attention: nn.Module) -> nn.Module:
    """Return a model of one layer, ``attn``."""
    return nn.Sequential(OrderedDict(attn=attention))


TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def of_transformers(name: str, seed: int | None = None, **sizes: object) -> nn.Module:
    """Return a model of transformers by the name of its class, built with these settings of its configuration.

    Without a seed it is drawn from the global random state, as any model is.
    """
    cls = getattr(transformers, name)
    config = cls.config_class(**sizes)
    if seed is None:
        return cls(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(config)


SMALL_MAMBA = {"vocab_size": 11, "hidden_size": 12, "num_hidden_layers": 3, "state_size": 4}
SMALL_MAMBA2 = {**SMALL_MAMBA, "num_heads": 4, "head_dim": 6, "n_groups": 2, "chunk_size": 4}


def mamba(**changes: object) -> nn.Module:
    """Return a Mamba that is the same each time."""
    return of_transformers("MambaForCausalLM", 0, **{**SMALL_MAMBA, **changes})


def mamba2(**changes: object) -> nn.Module:
    """Return a Mamba-2 that is the same each time."""
    return of_transformers("Mamba2ForCausalLM", 0, **{**SMALL_MAMBA2, **changes})
