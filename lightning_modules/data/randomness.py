"""Randomness that belongs to a sample and not to a running stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive_seeds(*parts: ArrayLike) -> NDArray[np.uint64]:
    """Return one 64-bit seed per element of the broadcast ``parts``, e.g. ``derive_seeds(seed, epoch, indices)``.

    Sums such as ``seed + epoch`` would give seed 0 in epoch 1 the order of seed 1 in epoch 0; a hash does not.

    Args:
        parts: whole numbers or arrays of them, of shapes that broadcast.

    Returns:
        Seeds of the broadcast shape, at least one-dimensional.

    Source:
        splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = state + np.atleast_1d(np.asarray(part, dtype=np.int64)).view(np.uint64) + _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def seed_here(seed: int) -> None:
    """Seed python, numpy and torch's CPU generator, and leave the accelerators' generators alone."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give the global python, numpy and torch CPU generators back as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
