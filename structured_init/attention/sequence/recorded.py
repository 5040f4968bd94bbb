"""A layer's call, recorded once and repeated with other weights: what the layer reads, and where its heads look.

The network is run with everything planned so far, up to the layer. Watching its call once tells which products of the
call weight the values with the maps of which head. After that a repetition costs one call.

Letters: S samples (windows count as such), H heads, N tokens behind a prefix, T all tokens of all samples, D embed_dim.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from structured_init.attention.planned_run import owner_of, planned_maps, run_planned
from structured_init.attention.sequence.trial import Trial, texts_in
from structured_init.attention.stream_share import tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import pieces
from structured_init.hosts.watched import same_attention, unpadded
from structured_init.hosts.watching import discover_attention
from structured_init.hosts.watching.records import MapAt
from structured_init.inputs import Inputs, as_batch, explain_failure
from structured_init.util.errors import StructuredInitError
from structured_init.weights import TrialWeights, Weights


class Reached(Exception):
    """What was waited for is about to run."""


@dataclass
class LayerCall:
    """One attention layer's call, which can be repeated."""

    weights: Weights
    site: AttentionSite
    trial: Trial
    module: nn.Module  # that is called
    inputs: Inputs  # what it was called with
    read: Float64[Tensor, "T D"]  # x̂ of all tokens, what queries are read from

    def fresh_inputs(self) -> Inputs:
        """Return what it was called with, with a cache of its own, which the module fills."""
        return copy.deepcopy(self.inputs)

    def maps(self, places: Sequence[MapAt], weights: Weights | None = None) -> Float[Tensor, "S H queries keys"]:
        """Repeat the call with the planned weights, or others, and return its maps."""
        return planned_maps(weights or self.weights, {"": places}, self.fresh_inputs(), self.module)[""]


def record_call(weights: Weights, site: AttentionSite, trial: Trial, table: Tensor | None = None) -> LayerCall:
    """Run the network up to where the first call of a layer reads its queries.

    What is repeated is the module of the layer, or the whole part where it is not called as a module, or where the
    ``table`` that is to be written lies outside of it.

    Raises:
        StructuredInitError: the model fails; what the layer reads is not seen.
    """
    calls: list[Inputs] = []
    read: list[Tensor] = []
    # Its module may use weights without calling the module that holds them; then what it is given is what it reads.
    reader = owner_of(pieces(site.layout.query)[0].weight, weights.modules.values(), site.module)

    def look(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if module is site.module:
            calls.append((args, kwargs))
        fitting = [each for each in tensors((args, *kwargs.values())) if each.shape[-1] == site.embed_dim]
        if fitting:
            tokens = fitting[0].detach().reshape(-1, site.embed_dim)
            read.append(tokens.to("cpu", torch.float64, copy=True))
        if module is reader:
            raise Reached

    with ExitStack() as hooks:
        for module in {site.module, reader}:
            hooks.enter_context(module.register_forward_pre_hook(look, with_kwargs=True))
        run_until_reached(weights, trial)
    if not read:
        raise StructuredInitError(f"what '{site.name}' reads is not seen on {trial.on}")
    inside = [*site.module.parameters(), *site.module.buffers()]
    if calls and (table is None or any(table is each for each in inside)):
        return LayerCall(weights, site, trial, site.module, calls[0], read[-1])
    return LayerCall(weights, site, trial, trial.part, trial.inputs, read[-1])


def run_until_reached(weights: Weights, trial: Trial, inside: AbstractContextManager[object] | None = None) -> None:
    """Run the network with everything planned so far, until a hook raises :class:`Reached`.

    An exception is all that stops a forward pass: to run the layers behind would cost most of the pass, each time.
    """
    with explain_failure(trial.part, given=weights.batch is not None, bugs=True), suppress(Reached):
        run_planned(weights, trial.inputs, trial.part, inside)


def find_maps(call: LayerCall) -> tuple[MapAt, ...]:
    """Watch a call once, and return where it computes the maps of its layer.

    Raises:
        StructuredInitError: they are not seen.
    """
    batch = as_batch(call.module, call.fresh_inputs())
    seen = [each for each in discover_attention(call.module, batch) if each.maps]
    found = same_attention(call.site, seen) or (seen[0] if len(seen) == 1 else None)
    if found is None:
        raise StructuredInitError(f"the attention maps of '{call.site.name}' were not seen on {call.trial.on}")
    return found.maps[0]


def find_tokens(call: LayerCall, places: Sequence[MapAt]) -> Bool[Tensor, "S N"]:
    """Tell which tokens are no padding: the layer looks at them, and no table has a row of padding for them.

    The call is repeated with queries of zero: equal logits tell what is hidden from what a sharp softmax leaves out.
    """
    overlay = TrialWeights(call.weights)
    call.site.through(overlay).query = torch.zeros_like(call.site.query)
    real = unpadded(call.maps(places, overlay))[:, call.site.prefix_tokens :]
    texts = [text.cpu() for text in texts_in(call.trial.inputs) if text.shape == real.shape]
    tables = [each for each in call.weights.modules.values() if isinstance(each, nn.Embedding)]
    for padding in {table.padding_idx for table in tables} - {None}:
        for text in texts:
            told = text != padding
            # The same number between other tokens is no padding.
            real &= (told.cumsum(dim=1) > 0) & (told.flip(1).cumsum(dim=1).flip(1) > 0)
    return real


class Wanted(NamedTuple):
    """The places of its maps where a head is to look; their attention is summed and divided by the number asked."""

    samples: Int[Tensor, " P"]
    queries: Int[Tensor, " P"]
    keys: Int[Tensor, " P"]
    asked: int  # queries


def keys_at_offset(real: Bool[Tensor, "S N"], size: tuple[int, int], offset: tuple[int, int]) -> Wanted:
    """Return where a head looks at its offset, among tokens of which some are padding.

    Asked are all tokens of a grid that have one at the offset. Of sequences these are the tokens in the second half of
    the longest text, padding apart, and those of other texts that have as many tokens before them.
    """
    (rows, columns), (up, left) = size, offset
    before = 0
    if rows == 1:
        columns = real.shape[1]
        longest = int(real.sum(dim=1).max())
        before = max(left, longest + min(left, 0) - (longest + 1) // 2, 0)
    row = torch.arange(max(up, 0), rows + min(up, 0))
    column = torch.arange(max(left, 0), max(columns + min(left, 0), 0))
    queries = (row[:, None] * columns + column).flatten()
    keys = queries - up * columns - left
    asked = real[:, queries] & real[:, keys] & (real.cumsum(dim=1)[:, queries] > before)
    samples, chosen = asked.nonzero(as_tuple=True)
    return Wanted(samples, queries[chosen], keys[chosen], len(samples))


def keys_behind_equals(texts: Int[Tensor, "S N"]) -> Wanted:
    """Return where a head looks at what followed an equal token before: of the second half of every text."""
    equal = texts[:, :, None] == texts[:, None, :-1]
    behind = pad(equal, (1, 0)).tril(-1)  # (S, queries, keys): the token before the key equals that of the query
    behind[:, : texts.shape[1] // 2] = False
    return Wanted(*behind.nonzero(as_tuple=True), int(behind.any(dim=2).sum()))


def measure_shares(call: LayerCall, places: Sequence[MapAt], wanted: dict[int, Wanted]) -> Float64[Tensor, " heads"]:
    """Repeat a call and return the share of attention that each head puts where it is wanted to look."""
    prefix = call.site.prefix_tokens
    maps = call.maps(places)[:, :, prefix:, prefix:]
    shares = []
    for head, at in wanted.items():
        looks = maps[at.samples, head, at.queries, at.keys]
        shares.append(looks.double().sum() / max(at.asked, 1))
    return torch.stack(shares)
