"""What the network is run on while heads are measured: the batch, or random tokens of the host's vocabulary.

Letters: B samples, T tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.planned_run import what_the_host_offers
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.watched import cannot_run, same_attention
from structured_init.inputs import Inputs, as_inputs, first_samples, numbered, tokens_in
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights

MOST = 2**25  # numbers in the maps of a layer: 128 MiB of float32
SAMPLES, TOKENS = 2, 1024  # that are measured: at least so many samples, and of short ones so many tokens


class Trial(NamedTuple):
    """What the network is run on."""

    part: nn.Module  # the model, or the part of it that the host library has inputs for
    inputs: Inputs
    on: str  # how the report calls it


def choose_trial(weights: Weights, site: AttentionSite, length: int, *, twice: bool = False) -> Trial:
    """Choose the batch where its texts are as long, else what the host library offers, else the batch.

    No more samples are taken than give ``TOKENS``. Random tokens are as many as asked for, or half, a quarter, … of
    these where maps would not fit. ``twice`` asks for tokens that will be drawn anew, for which the host library comes
    first.

    Raises:
        StructuredInitError: nothing says what the model takes.
    """
    while length > 2 and site.num_heads * length**2 > MOST:
        length //= 2
    samples = max(SAMPLES, TOKENS // length)
    offered = what_the_host_offers(weights, length + site.prefix_tokens, samples)
    batch = weights.ask() if offered is None else weights.batch
    beside = ""
    if batch is not None:
        seen = same_attention(site, weights.seen.layers)
        texts = seen is not None and tokens_in(as_inputs(batch))
        there = seen.length if texts else length
        if offered is None or (there >= length and not twice):
            return Trial(weights.model, first_samples(as_inputs(batch), samples), "the batch")
        beside = "" if twice else f", as the batch has {there} of {length}"
    if offered is None:
        why = cannot_run(weights.model) or "nothing says what the model takes: give a batch, as batch=…"
        raise StructuredInitError(f"its heads are measured in a run, and {why}")
    part, inputs = offered
    if tokens_in(inputs):
        return Trial(part, inputs, f"random tokens{beside}")
    # Images and sounds cost more than their tokens.
    return Trial(part, first_samples(inputs, SAMPLES), f"random inputs{beside}")


def texts_in(inputs: Inputs) -> list[Int[Tensor, "B T"]]:
    """Return the token numbers in what a model is called with, masks apart."""
    return [leaf for leaf in tree_leaves(inputs) if numbered(leaf) and leaf.max() > 1]


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
