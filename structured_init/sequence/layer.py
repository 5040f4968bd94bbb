"""What is asked of one layer, and what the network is run on meanwhile: the batch, or random tokens of the host.

Letters: B samples, T tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.planned_run import what_the_host_offers
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.attention_positions import AttentionPositions
from structured_init.hosts.watching import FoundAttention
from structured_init.inputs import Inputs, as_inputs, first_samples, numbered, tokens_in
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

Offset = tuple[int, int]
MOST = 2**25  # numbers in the maps of a layer: 128 MiB of float32
SAMPLES, TOKENS = 2, 1024  # that are measured: at least so many samples, and of short ones so many tokens


class Trial(NamedTuple):
    """What the network is run on."""

    part: nn.Module  # the model, or the part of it that the host library has inputs for
    inputs: Inputs
    on: str  # how the report calls it

    def fresh(self) -> Inputs:
        """Return the inputs with a cache of their own, which the module fills."""
        return copy.deepcopy(self.inputs)


@dataclass
class Layer:
    """What is asked for in one layer."""

    site: AttentionSite  # the layer, under the name of the writer
    positions: AttentionPositions  # those of its tokens
    kind: str  # those through which its heads look
    looking: dict[int, Offset]  # the heads that are written, and where each looks
    causal: bool  # whether later tokens are hidden
    size: tuple[int, int]  # rows and columns of the tokens, (1, context) of a sequence
    target: float  # the share of attention asked for
    weights: Weights  # the overlay
    rng: Draws  # named generators
    trial: Trial  # what the network is run on
    spare: Sequence[int] = ()  # coordinates that added positions leave to content: the first number with room

    def draw(self, part: str) -> torch.Generator:
        """Return the generator of a named part of this layer."""
        return self.rng.generator(self.site.name, f"PreviousToken: {part}")

    @property
    def group(self) -> int:
        """How many heads share a key."""
        return self.site.num_heads // self.site.num_key_value_heads

    @property
    def keys(self) -> list[int]:
        """Numbers of the keys of the heads that are written."""
        return sorted({head // self.group for head in self.looking})


def choose_trial(
    weights: Weights, site: AttentionSite, seen: FoundAttention | None, length: int, *, twice: bool = False
) -> Trial:
    """Choose the batch where its texts are as long, else what the host library offers, else the batch.

    No more samples are taken than give ``TOKENS``. Random tokens are as many as asked for, or as many as have maps that
    fit. ``seen`` is what a pass has shown of the layer. ``twice`` asks for tokens that will be drawn anew, for which
    the host library comes first.

    Raises:
        StructuredInitError: nothing says what the model takes.
    """
    length = min(length, math.isqrt(MOST // site.num_heads))
    samples = max(SAMPLES, TOKENS // length)
    offered = what_the_host_offers(weights, length + site.prefix_tokens, samples)
    batch = as_inputs(weights.batch)
    there = seen.length if seen is not None and tokens_in(batch) else length
    enough = there >= length and not twice
    if weights.batch is not None and (offered is None or enough):
        return Trial(weights.model, first_samples(batch, samples), "the batch")
    if offered is None:
        raise StructuredInitError(f"its heads are measured in a run, and {weights.seen.why_not}")
    part, inputs = offered
    if not tokens_in(inputs):  # Images and sounds cost more than their tokens.
        return Trial(part, first_samples(inputs, SAMPLES), "random inputs")
    beside = "" if enough or twice else f", as the batch has {there} of {length}"
    return Trial(part, inputs, f"random tokens{beside}")


def texts_in(inputs: Inputs, size: Sequence[int]) -> list[Int[Tensor, "B T"]]:
    """Return the token numbers of a size in what a model is called with, masks apart."""
    found = [leaf.cpu() for leaf in tree_leaves(inputs) if numbered(leaf) and leaf.shape == size]
    return [leaf for leaf in found if leaf.max() > 1]


def draw_twice(trial: Trial, generator: torch.Generator) -> Trial:
    """Return texts of random tokens of those that are there, each twice at random places, with nothing masked.

    Texts are as long as they were, an encoder's and a decoder's; of an odd number a token stands alone.

    Raises:
        StructuredInitError: the model takes no texts of four tokens.
    """
    longest = tokens_in(trial.inputs)
    if longest < 4:
        raise StructuredInitError("it takes texts: token numbers of shape (B, T), T ≥ 4, and the model takes none")
    given = [leaf for leaf in tree_leaves(trial.inputs) if isinstance(leaf, Tensor)]
    samples = max(SAMPLES, TOKENS // longest) if all(map(numbered, given)) else len(given[0])
    orders: dict[int, Tensor] = {}  # by length, so that all texts of one length repeat themselves alike

    def draw(leaf: Any) -> Any:
        if not numbered(leaf):
            return leaf
        length = leaf.shape[1]
        if length not in orders:
            orders[length] = torch.rand(samples, length, generator=generator).argsort(dim=1)
        vocabulary = leaf.unique().cpu()
        if len(vocabulary) <= 2:  # a mask
            return leaf.new_full((samples, length), int(vocabulary[-1]))
        half = _draw_tokens(vocabulary, (samples, (length + 1) // 2), generator)
        return half.repeat(1, 2).gather(1, orders[length]).to(leaf.device)

    on = "random tokens of the batch" if trial.on == "the batch" else trial.on
    return Trial(trial.part, tree_map(draw, trial.inputs), f"{on} that come twice")


def _draw_tokens(vocabulary: Tensor, size: tuple[int, int], generator: torch.Generator) -> Int[Tensor, "B T"]:
    """Draw texts of different tokens, as far as there are as many; of few, what lies between them is known, too."""
    samples, length = size
    if len(vocabulary) < length:
        vocabulary = torch.arange(int(vocabulary[0]), int(vocabulary[-1]) + 1)
    times = -(-length // len(vocabulary))  # how often each has to be there
    picked = torch.rand(samples, times * len(vocabulary), generator=generator).argsort(dim=1)[:, :length]
    return vocabulary.repeat(times)[picked]
