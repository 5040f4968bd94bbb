"""A layer's call, recorded once and repeated with other weights: what the layer reads, and where its heads look.

The network is run with everything planned so far, up to the layer. Watching its call once tells which products of the
call weight the values with the maps of which head. After that a repetition costs one call.

Letters: S samples (windows count as such), H heads, T all tokens, N queries, M keys, D embed_dim.
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
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.planned_run import owner_of, run_planned, what_the_host_offers
from structured_init.attention.stream_share import tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import pieces
from structured_init.hosts.watched import cannot_run, same_attention, unpadded
from structured_init.hosts.watching import discover_attention
from structured_init.hosts.watching.mode import passing
from structured_init.hosts.watching.records import MapAt
from structured_init.hosts.watching.taps import MapTap
from structured_init.inputs import Inputs, as_batch, as_inputs, explain_failure, first_samples, numbered, tokens_in
from structured_init.util.errors import StructuredInitError
from structured_init.weights import TrialWeights, Weights

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
    if offered is None:
        batch = weights.ask()
        if batch is None:
            why = cannot_run(weights.model) or "nothing says what the model takes: give a batch, as batch=…"
            raise StructuredInitError(f"its heads are measured in a run, and {why}")
        return Trial(weights.model, first_samples(as_inputs(batch), samples), "the batch")
    said = ""
    if weights.batch is not None and not twice:
        batch = as_inputs(weights.batch)
        seen = same_attention(site, weights.seen.layers)
        there = seen.length if seen is not None and tokens_in(batch) else length
        if there >= length:
            return Trial(weights.model, first_samples(batch, samples), "the batch")
        said = f", as the batch has {there} of {length}"
    part, inputs = offered
    if tokens_in(inputs):
        return Trial(part, inputs, f"random tokens{said}")
    # Images and sounds cost more than their tokens.
    return Trial(part, first_samples(inputs, SAMPLES), f"random inputs{said}")


class Reached(Exception):
    """What was waited for is about to run."""


@dataclass
class LayerCall:
    """One attention layer's call, which can be repeated."""

    weights: Weights
    trial: Trial
    module: nn.Module  # that is called
    inputs: Inputs  # what it was called with
    read: Float64[Tensor, "T D"] | None  # x̂ of all tokens, what queries are read from; ``None`` where it is not seen

    def maps(self, places: Sequence[MapAt], weights: Weights | None = None) -> Float[Tensor, "S H N M"]:
        """Repeat the call with the planned weights, or others, and return its maps."""
        tap = MapTap({place.product: place.is_left for place in places})
        run_planned(weights or self.weights, self.fresh_inputs(), self.module, passing(self.module, tap))
        return torch.cat([place.arranged(tap.maps[place.product]) for place in places], dim=1).cpu()

    def fresh_inputs(self) -> Inputs:
        """Return what it was called with, with a cache of its own, which the module fills."""
        return copy.deepcopy(self.inputs)


def record_call(weights: Weights, site: AttentionSite, trial: Trial, table: Tensor | None = None) -> LayerCall:
    """Run the network up to where the first call of a layer reads its queries.

    What is repeated is the module of the layer, or the whole part where it is not called as a module, or where the
    ``table`` that is to be written lies outside of it.

    Raises:
        StructuredInitError: the model fails.
    """
    calls: list[Inputs] = []
    read: list[Tensor] = []

    def keep(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    def look(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        for each in tensors((args, *kwargs.values())):
            if each.shape[-1] == site.embed_dim:
                read.append(each.reshape(-1, site.embed_dim).detach().to("cpu", torch.float64, copy=True))
                raise Reached

    reader = owner_of(pieces(site.layout.query)[0].weight, weights.modules.values(), site.module)
    with ExitStack() as hooks:
        hooks.callback(site.module.register_forward_pre_hook(keep, with_kwargs=True).remove)
        hooks.callback(reader.register_forward_pre_hook(look, with_kwargs=True).remove)
        run_until_reached(weights, trial)
    inside = [*site.module.parameters(), *site.module.buffers()]
    module, inputs = trial.part, trial.inputs
    if calls and (table is None or any(table is each for each in inside)):
        module, inputs = site.module, calls[0]
    return LayerCall(weights, trial, module, inputs, read[0] if read else None)


def find_maps(call: LayerCall, site: AttentionSite) -> tuple[MapAt, ...]:
    """Watch a call once, and return where it computes the maps of a layer.

    Raises:
        StructuredInitError: they are not seen.
    """
    batch = as_batch(call.module, call.fresh_inputs())
    seen = [each for each in discover_attention(call.module, batch) if each.maps]
    found = same_attention(site, seen) or (seen[0] if len(seen) == 1 else None)
    if found is None:
        raise StructuredInitError(f"the attention maps of '{site.name}' were not seen on {call.trial.on}")
    return found.maps[0]


def run_until_reached(weights: Weights, trial: Trial, inside: AbstractContextManager[object] | None = None) -> None:
    """Run the network with everything planned so far, until a hook raises :class:`Reached`.

    An exception is all that stops a forward pass: to run the layers behind would cost most of the pass, each time.
    """
    with explain_failure(trial.part, given=weights.batch is not None, bugs=True), suppress(Reached):
        run_planned(weights, trial.inputs, trial.part, inside)


class Looks(NamedTuple):
    """Where a layer's maps are computed, which tokens are there, and which of them each head may look at."""

    places: tuple[MapAt, ...]
    real: Bool[Tensor, "S M"]  # which keys are no padding
    visible: Bool[Tensor, "S H N M"]


def what_heads_see(call: LayerCall, site: AttentionSite) -> Looks:
    """Repeat a call with queries of zero: equal logits tell what is hidden from what a sharp softmax leaves out.

    Padding is what no query looks at, and the number at the ends of a text for which a table has a row of padding.
    """
    places = find_maps(call, site)
    above = TrialWeights(call.weights)
    site.through(above).query = torch.zeros_like(site.query)
    maps = call.maps(places, above)
    real = unpadded(maps)
    for table in call.weights.modules.values():
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            for text in texts_in(call.trial.inputs):
                told = (text != table.padding_idx).cpu()
                told = (told.cumsum(dim=1) > 0) & (told.flip(1).cumsum(dim=1).flip(1) > 0)
                tokens = real[:, site.prefix_tokens :]
                if tokens.shape == told.shape:
                    tokens &= told
    return Looks(places, real, maps > 0)


def texts_in(inputs: Inputs) -> list[Int[Tensor, "S N"]]:
    """Return the token numbers in what a model is called with, masks apart."""
    return [leaf for leaf in tree_leaves(inputs) if numbered(leaf) and leaf.max() > 1]


class Wanted(NamedTuple):
    """The places of its maps where a head is to look; their attention is summed and divided by the number asked."""

    samples: Int[Tensor, " P"]
    queries: Int[Tensor, " P"]
    keys: Int[Tensor, " P"]
    asked: int  # queries
    hidden: bool  # whether no such place is there, or a mask hides most


def measure_shares(call: LayerCall, looks: Looks, wanted: dict[int, Wanted]) -> Float64[Tensor, " heads"]:
    """Repeat a call and return the share of attention that each head puts where it is wanted to look."""
    maps = call.maps(looks.places)
    shares = []
    for head, places in wanted.items():
        looks = maps[places.samples, head, places.queries, places.keys]
        shares.append(looks.double().sum() / max(places.asked, 1))
    return torch.stack(shares)


def keys_at_offset(looks: Looks, head: int, prefix: int, size: tuple[int, int], offset: tuple[int, int]) -> Wanted:
    """Return where a head looks at its offset.

    Asked are all tokens of a grid that have one at the offset. Of sequences these are the tokens in the second half of
    the longest text, padding apart, and those of other texts that have as many tokens before them.
    """
    real = looks.real[:, prefix:]
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
    return _wanted(looks, head, samples, queries[chosen] + prefix, keys[chosen] + prefix, len(samples))


def keys_behind_equals(looks: Looks, head: int, prefix: int, texts: Int[Tensor, "S N"]) -> Wanted:
    """Return where a head looks at what followed an equal token before: of the second half of every text."""
    equal = texts[:, :, None] == texts[:, None, :-1]
    behind = pad(equal, (1, 0)).tril(-1)  # (S, queries, keys): the token before the key equals that of the query
    behind[:, : texts.shape[1] // 2] = False
    samples, queries, keys = behind.nonzero(as_tuple=True)
    return _wanted(looks, head, samples, queries + prefix, keys + prefix, int(behind.any(dim=2).sum()))


def _wanted(looks: Looks, head: int, samples: Tensor, queries: Tensor, keys: Tensor, asked: int) -> Wanted:
    seen = looks.visible[samples, head, queries, keys].double()
    return Wanted(samples, queries, keys, asked, hidden=not seen.mean() >= 0.5)  # also where there are none


def draw_twice(trial: Trial, generator: torch.Generator) -> Trial:
    """Return texts of random tokens of those that are there, each twice at random places, with nothing masked.

    Where there are fewer than half of a text, they are drawn from the numbers between the least and the largest. Texts
    are as long as they were, an encoder's and a decoder's; of an odd number a token stands alone.

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
        vocabulary, half = leaf.unique().cpu(), (length + 1) // 2
        if len(vocabulary) <= 2:  # a mask
            return leaf.new_full((samples, length), int(vocabulary[-1]))
        if len(vocabulary) < half:  # what lies between is in the table of the model, too
            vocabulary = torch.arange(int(vocabulary[0]), int(vocabulary[-1]) + 1)
        times = -(-half // len(vocabulary))  # how often each has to be there
        picked = torch.rand(samples, times * len(vocabulary), generator=generator).argsort(dim=1)[:, :half]
        return vocabulary.repeat(times)[picked.repeat(1, 2).gather(1, orders[length])].to(leaf.device)

    inputs = tree_map(draw, trial.inputs)
    on = "random tokens of the batch" if trial.on == "the batch" else trial.on
    return Trial(trial.part, inputs, f"{on} that come twice")
