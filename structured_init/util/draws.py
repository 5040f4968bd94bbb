"""Named random draws: a draw depends on the seed and on its own name, and on nothing else."""

from __future__ import annotations

import hashlib
import operator

import torch

from structured_init.util.errors import StructuredInitError


class Draws:
    """A source of one generator per (seed, name, part).

    Because no draw is taken from a running stream, adding a part, restricting the layers or sharding the model
    changes no other draw, and two ablations of one seed stay paired.

    Args:
        seed: a whole number from 0.

    Raises:
        StructuredInitError: it is none: 0.9 would be 0, and two seeds the same. The command line refuses -1 as well.
    """

    def __init__(self, seed: int) -> None:
        try:
            self.seed = operator.index(seed)
        except TypeError:
            self.seed = -1
        if self.seed < 0:
            raise StructuredInitError(f"seed must be a whole number from 0, got {seed!r}")

    def generator(self, name: str, part: str) -> torch.Generator:
        """Return a fresh CPU generator, seeded by a hash that is the same on every machine and Python version.

        Args:
            name: the name of the site or parameter, e.g. ``"blocks.0.attn"``.
            part: what is drawn there, e.g. ``"query_key"``.
        """
        digest = hashlib.blake2b(f"{self.seed}\0{name}\0{part}".encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
