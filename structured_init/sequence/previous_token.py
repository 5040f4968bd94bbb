"""PreviousToken: heads of the first layer look at the token before, or at other offsets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.attention_positions import attention_positions
from structured_init.hosts.attention_site import is_causal
from structured_init.hosts.registry import Where
from structured_init.hosts.watched import same_attention, watched_attention
from structured_init.initializer import Initializer
from structured_init.sequence.asked import (
    choose_kind,
    choose_offsets,
    choose_size,
    find_towers,
    heads_of,
    prepare_each,
    refuse_tokens_first,
)
from structured_init.sequence.layer import Layer, choose_trial, draw_twice
from structured_init.util.arguments import check_positive, check_share, check_whole
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights


@dataclass(eq=False, repr=False)
class PreviousToken(Initializer):
    """Heads of the first layer that look at the token before them, and at others of a given distance.

    They are written through whatever positions the host has: codes are written as **absolute** positions (GPT-2, OPT,
    BERT); entries of **relative** tables are raised (T5, BEiT, Swin); under **rotary** ones queries and keys get
    constant parts, as biases (Qwen2, GPT-NeoX) or read from a direction that is added to all token embeddings that are
    not zero (Llama). Under ALiBi alone (BLOOM, MPT) there is nothing to write.

    The network is run up to the layer, whose call is then repeated: each head gets the least strength that puts the
    share of attention on its offset, on average over the second half of the tokens. The report says what each head has,
    on the batch or on random tokens, and warns of heads with less than half of what was asked for.

    Args:
        offsets: where the first heads look, in tokens before; negative for tokens after, ``[rows, columns]`` up and
            left on a grid, ``null`` for a head that is left to the host, as are all heads without one, but for the key
            that they may share with one that is written. ``None``: 1, 2, 3, … over all heads; 1, −1, 2, −2, … where
            attention goes both ways; left, right, up, down, … on a grid.
        share: of attention that a head puts on its offset, between 0 and 1.
        context: tokens of the texts on which heads are searched; ``None``: the host's longest context, at most 1,024,
            or 512 where it has none. A batch with as many or more is taken as it is.
        causal: whether tokens are kept from seeing those after them; ``None``: as a forward pass on the batch shows, or
            else as the layout or the host's module says; of a host of which nothing says, no, with a note.
        where: which attention layers, by shell pattern; ``None``: the first of every tower. Absolute positions that
            several of them read are written for the first.

    Raises:
        StructuredInitError: at :meth:`plan`, no known attention layer or nothing but cross-attention; a host whose
            first layer cannot tell tokens apart (NoPE), or only by ALiBi, or on a grid of absolute positions; more
            offsets than heads; an offset of 0, outside of the context, or ahead under a causal mask; a model that
            cannot be run.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2Model
        >>> from structured_init import PreviousToken, initialize
        >>> _ = torch.manual_seed(0)
        >>> model = GPT2Model(GPT2Config(vocab_size=64, n_positions=64, n_embd=64, n_layer=1, n_head=4))
        >>> report = initialize(model, PreviousToken(offsets=[None, 1, None, None]), seed=0)
        >>> print(report.notes["h.0.attn"].partition(" (")[0])
        attention on offsets at the end of 64 tokens, measured: head 1 looks 1 token back: 0.90

    Source: ours; constructions and measurements in ``docs/previous_token.md``.
    """

    offsets: list[int | list[int] | None] | None = None
    share: float = 0.9
    context: int | None = None
    causal: bool | None = None
    where: Where = None

    samples_to_watch = 4  # on few tokens a share is known to a tenth

    def __post_init__(self) -> None:
        if self.offsets is not None and self.offsets.count(None) == len(self.offsets):
            raise StructuredInitError(
                "PreviousToken: every offset is null, so no head is written: give one, such as [1]"
            )
        for offset in self.offsets or ():
            parts = offset if isinstance(offset, list | tuple) else [offset]
            for part in parts:
                check_whole("PreviousToken", None, null=True, offsets=part)
            if set(parts) == {0}:
                raise StructuredInitError(
                    "PreviousToken: offset 0 is the token itself, not an earlier one: use null to leave a head as it is"
                )
        check_positive("PreviousToken", share=self.share)
        check_share("PreviousToken", share=self.share)
        check_whole("PreviousToken", least=2, null=True, context=self.context)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        groups = []
        for tower in find_towers("PreviousToken", weights, self.where):
            groups += [[site] for site in (tower[:1] if self.where is None else tower)]
        layers = prepare_each("PreviousToken", weights, groups, lambda sites: self.ask_layer(sites[0], weights, rng))
        for layer in weights.each(layers):
            heads = heads_of(layer)
            heads.search()
            heads.report()

    def ask_layer(self, site: AttentionSite, weights: Weights, rng: Draws, *, twice: bool = False) -> Layer:
        """Return what is to be done in one layer. ``twice``: texts are of random tokens that come twice.

        Raises:
            StructuredInitError: the layer cannot do it, or nothing says what the model can be run on.
        """
        seen = same_attention(site, watched_attention(weights))
        refuse_tokens_first(site, weights, seen)
        positions = attention_positions(site, weights)
        kind = choose_kind(site, positions, weights)
        known = is_causal(site) if self.causal is None else self.causal
        if known is None and seen is not None:
            known = seen.layout.causal
        causal = bool(known)
        size = choose_size(site, positions, kind, self.context)
        looking = choose_offsets(self.offsets, site, size, causal=causal)
        if known is None and size[0] == 1:
            site.note("taken for bidirectional; if it is causal, say causal=True")
        trial = choose_trial(weights, site, seen, size[0] * size[1], twice=twice)
        if twice:
            trial = draw_twice(trial, rng.generator(site.name, "PreviousToken: tokens that come twice"))
        site = site.by("PreviousToken: query_key")
        return Layer(site, positions, kind, looking, causal, size, self.share, weights, rng, trial)
