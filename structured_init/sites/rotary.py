"""Rotary positions: queries and keys turned, pair of coordinates by pair, by an angle that grows with the position.

Letters: k head_dim, r turned pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from structured_init.layout import pieces
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.watched import same_attention, watched_attention

TURNS = ("rotate_half", "rotate_every_two")  # what a file of transformers calls the quarter turn of every pair


@dataclass(frozen=True)
class Rotary:
    """How the heads of one attention layer are turned: the pair (a, b) of token t by the angle frequency · t.

    Attributes:
        frequencies: of each pair, in radians per token (r,).
        pairs: the two coordinates of each pair within a head (r, 2); those of no pair are not turned.
        scaling: the factor on the logits of turned coordinates (1 but for some stretched contexts).
    """

    frequencies: Float64[Tensor, " r"]
    pairs: Int[Tensor, "r 2"]
    scaling: float = 1.0

    @property
    def half_split(self) -> bool:
        """Whether coordinate i goes with i + r, as in Llama, rather than 2i with 2i + 1, as in GPT-J."""
        return len(self.pairs) > 1 and bool(self.pairs[0, 1] != 1)


def rotary(site: AttentionSite, weights: Weights) -> Rotary | None:
    """Find how a layer is turned: what its modules say, or else what a forward pass shows; ``None`` where neither does.

    The frequencies are the buffer ``inv_freq`` of the nearest module around the layer that has one. Which coordinates
    pair is read off the host's own ``rotate_half`` or ``rotate_every_two``, which is called on the numbers 1, 2, ….
    Where either is missing, queries before and after they are turned say both. They also do where the model was run
    already and shows other frequencies.
    """
    said = _said(site, weights)
    if said is not None and weights.watched is None:
        return said
    found = same_attention(site, watched_attention(weights))
    turns = None if found is None else found.turns
    if turns is None or (said is not None and _alike(said.frequencies, turns.frequencies)):
        return said
    places = [pieces(layout.query)[0].entries[0, :, 0].tolist() for layout in (found.layout, site.layout)]
    own = torch.tensor([places[1].index(place) for place in places[0]])  # channels as the site counts them
    return Rotary(turns.frequencies, own[turns.pairs], 1.0 if said is None else said.scaling)


def _alike(one: Tensor, two: Tensor) -> bool:
    return len(one) == len(two) and torch.allclose(one, two.to(one), rtol=1e-2, atol=1e-6)


def _said(site: AttentionSite, weights: Weights) -> Rotary | None:
    modules = dict(named_plain_modules(weights.model))
    turn = _quarter_turn(site.module)
    name = site.name
    while turn is not None:
        for child in (modules[name], *modules[name].children()):
            frequencies = getattr(child, "inv_freq", None)
            if isinstance(frequencies, Tensor) and frequencies.ndim == 1 and 2 * len(frequencies) <= site.head_dim:
                scaling = float(getattr(child, "attention_scaling", 1.0)) ** 2
                pairs = _pairs(turn, len(frequencies))
                return None if pairs is None else Rotary(weights.read(frequencies).double(), pairs, scaling)
        if not name:
            break
        name = name.rpartition(".")[0]
    return None


def _quarter_turn(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    for cls in type(module).__mro__:
        file = sys.modules.get(cls.__module__)
        for name in TURNS:
            if callable(turn := getattr(file, name, None)):
                return turn
    return None


def _pairs(turn: Callable[[Tensor], Tensor], count: int) -> Tensor | None:
    """Return (a, b) of each pair: a quarter turn takes (x_a, x_b) to (−x_b, x_a)."""
    turned = turn(torch.arange(1.0, 2 * count + 1)[None, None, None])[0, 0, 0].long()
    first = (turned < 0).nonzero()[:, 0]
    second = -turned[first] - 1
    if len(first) != count or not torch.equal(turned[second] - 1, first):
        return None
    return torch.stack([first, second], dim=1)
