"""Small networks of host libraries, and attention of nobody's library, for the tests of every room."""

from __future__ import annotations

import torch
import transformers
from torch import nn

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
