"""The initializations that are timed, and what each holds in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.memory import hand_back, peak
from benchmarks.timing import SEED
from structured_init import Impulse, Initializer, Mimetic, initialize

INITIALIZATIONS: dict[str, Initializer] = {
    "mimetic, float32": Mimetic(positions="keep", precision="float32"),
    "mimetic": Mimetic(positions="keep"),
    "separable": Impulse(solver="separable"),
    "svd": Impulse(solver="svd"),
}


def blank(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model and fill it with a constant: it takes as long to initialize, and a large one is there at once."""
    with torch.device("meta"):
        model = build()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(0.02 if tensor.is_floating_point() else 0)
    return model


def held(build: Callable[[], nn.Module], initializer: Initializer) -> int:
    """Return the bytes that are held beyond the model at the peak, without those that malloc keeps."""
    hand_back()
    model = blank(build)
    initialize(model, initializer, seed=SEED)
    return peak(lambda: initialize(model, initializer, seed=SEED))
