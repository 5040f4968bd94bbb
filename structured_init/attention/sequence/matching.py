"""The second half of induction: heads that find the token after an earlier occurrence of the present one.

They are solved on what the second layer reads, recorded in a forward pass of the whole network.

Letters: B samples, N tokens, D embed_dim, k head_dim, v value width, c coordinates of a head that match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.attention.planned_run import owner_of
from structured_init.attention.residual import Made, Residuals
from structured_init.attention.sequence.heads import Layer, Share, normed, visible
from structured_init.attention.sequence.measured import Enough, drawn_twice, run_until_enough, to_run
from structured_init.attention.sequence.rotary import turn
from structured_init.attention.stream_share import last_module, tensors
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import pieces
from structured_init.running import Inputs, numbered

TOKENS = 2048  # in all samples
SLOW = 1.0  # radians by which a pair that matches may be turned over the whole context
SAME = 1e-2  # of what attention adds, up to which a difference is rounding
SCALES = frozenset({"native_layer_norm", "_fused_rms_norm", "mul", "mul_", "div", "div_"})


class Match(NamedTuple):
    """W_q and W_k (D, k) of unit strength, in what attention reads after its norm."""

    query: Float64[Tensor, "D k"]
    key: Float64[Tensor, "D k"]


def matching_coordinates(layer: Layer) -> Int[Tensor, " c"]:
    """The coordinates of a head that can match tokens over all distances, the best first.

    All of them, but under rotary positions those of no pair, and of pairs that turn by less than ``SLOW`` over the
    context, the slowest first; where there are fewer than four, those of the two slowest pairs.
    """
    rotary, head_dim = layer.positions.rotary, layer.site.head_dim
    if rotary is None:
        return torch.arange(head_dim)
    slow = rotary.frequencies * layer.length < SLOW
    order = rotary.frequencies.argsort()[: max(int(slow.sum()), 2)]
    unturned = torch.ones(head_dim, dtype=torch.bool)
    unturned[rotary.pairs.flatten()] = False
    return torch.cat([unturned.nonzero()[:, 0], rotary.pairs[order].flatten()])


def matched(
    layer: Layer,
    seen: Recorded,
    read: Float64[Tensor, "D v"],
    write: Float64[Tensor, "v D"],
    coordinates: Int[Tensor, " c"],
) -> Match:
    """Return queries and keys that hold what a head read, V, against where it wrote, O: W_q = V R and W_k = Oᵀ R.

    R (v, c) has orthonormal columns beside the means of x̂ V and x̂ Oᵀ over all tokens. What is common to all tokens,
    such as a direction that was added to their embeddings and what the network answers to it, would be the largest part
    of queries and keys, and tell nothing.
    """
    one, other = layer.through_norm(read), layer.through_norm(write.mT)
    means = torch.stack([(seen.read @ each).mean(dim=(0, 1)) for each in (one, other)], dim=1)
    beside = torch.linalg.qr(torch.cat([means, torch.eye(len(means), dtype=means.dtype)], dim=1)).Q[:, 2:]
    count = min(len(coordinates), beside.shape[1])
    match = Match(*torch.zeros(2, layer.site.embed_dim, layer.site.head_dim, dtype=torch.float64))
    for weight, subspace in ((match.query, one), (match.key, other)):
        weight[:, coordinates[:count]] = subspace @ beside[:, :count]
    return match


def share_of_matches(layer: Layer, seen: Recorded, match: Match, head: int) -> Share:
    """Return which share of attention a token puts on what followed it before, as a function of the head's strength.

    Of what was recorded, the last half of the tokens are asked, where the same one came before.
    """
    length, found = seen.read.shape[1], []
    tokens = torch.arange(length)
    for sample, places in zip(seen.read, seen.other, strict=True):
        query, key = (normed(layer, sample @ each) for each in match)
        if layer.positions.rotary is not None:
            query, key = (turn(each, tokens, layer.positions.rotary) for each in (query, key))
        queries = tokens[(places < tokens - 1) & (tokens >= length // 2)]
        if len(queries):  # of a short text there may be none
            found.append((query[queries] @ key.mT, places[queries] + 1, queries))
    if not found:
        return lambda strength: 0.0
    logits, targets, queries = map(torch.cat, zip(*found, strict=True))
    counts = [len(each) for *_, each in found]
    alibi = layer.positions.alibi
    added = 0.0 if alibi is None else -alibi.slopes[head] * (queries[:, None] - tokens)
    unseen = ~visible(queries, length, causal=True)

    def share(strength: float) -> float:
        strength = layer.site.scale if layer.site.layout.query_key_norm else strength  # which norms would take out
        attention = (strength * logits + added).masked_fill(unseen, -math.inf).softmax(dim=-1)
        asked = attention[torch.arange(len(targets)), targets]
        return sum(each.mean().item() for each in asked.split(counts)) / len(counts)

    return share


@dataclass(frozen=True)
class Recorded:
    """One pass over random tokens of which each comes twice, at random places."""

    other: Int[Tensor, "B N"]  # the place of each token's other occurrence (B, N)
    read: Float64[Tensor, "B N D"]  # x̂, what the attention of the second layer reads (B, N, D)
    stream: float  # root mean square of what enters the first layer
    heads: float  # that of what its heads add, copies apart; where a norm is behind them, what the norm is given
    rest: float  # that of what else is added before the second layer, by an MLP mostly; NaN where the stream is normed
    between: list[nn.Module]  # those of the ``lasts`` whose outputs are in the rest


def record(first: Layer, second: Layer, lasts: Sequence[nn.Module] = ()) -> Recorded:
    """Run the network with everything planned so far, up to where the attention of the second layer is added."""
    weights, site = first.weights, first.site
    try:
        part, inputs, known = to_run(second, second.length, -(-TOKENS // second.length), True)
    except StructuredInitError as error:
        raise StructuredInitError(f"Induction is solved on what the network computes: {error}") from error
    inputs, others = _each_twice(inputs, first.draw("tokens that come twice"))
    modules = weights.modules
    seen: dict[str, Tensor] = {}
    into: dict[str, Made] = {}
    put_out: dict[nn.Module, Made] = {}  # by the ``lasts``

    def read(name: str, _: nn.Module, args: tuple, kwargs: dict) -> None:
        seen[f"read by {name}"] = _of_tokens((args, *kwargs.values()), site, others)

    def leave(name: str, _: nn.Module, __: tuple, output: Any) -> None:
        if name == silent:
            next(tensors(output)).zero_()
        seen[f"put out by {name}"] = _of_tokens(output, site, others)
        mode.puts_out(name, next(tensors(output)))

    def enter(name: str, stream: Tensor, _: Made, added: Callable[[], Tensor]) -> None:
        seen[f"the stream before {name}"], into[name] = _of_tokens(stream, site, others), mode.made(stream)
        seen[f"added by {name}"] = _of_tokens(added(), site, others)
        if name == second.site.name:
            raise Enough

    mode, wanted, silent = Residuals(enter), [], ""
    with ExitStack() as stack:
        for each in (site, second.site):
            query = pieces(each.layout.query)[0].weight  # x̂ is read by its module, or by the layer where it is in none
            reader = owner_of(query, modules.values(), each.module)
            stack.callback(reader.register_forward_pre_hook(partial(read, each.name), with_kwargs=True).remove)
            stack.callback(last_module(each, modules).register_forward_hook(partial(leave, each.name)).remove)
            wanted += [f"{what} {each.name}" for what in ("read by", "put out by", "the stream before")]
        for last in lasts:
            hook = lambda module, _, output: put_out.update({module: mode.made(next(tensors(output)))})  # noqa: E731
            stack.callback(last.register_forward_hook(hook).remove)
        run_until_enough(weights, inputs, part, known, mode, who="Induction: ")
        whole, silent = dict(seen), site.name
        attention, put_out_by = (whole.get(f"{what} by {site.name}") for what in ("added", "put out"))
        if gated := attention is not None and not torch.equal(attention, put_out_by):
            run_until_enough(weights, inputs, part, known, mode, who="Induction: ")
            attention = attention - seen[f"added by {site.name}"]  # what else was added with it, as a parallel MLP is
        seen = whole
    if missing := [what for what in wanted if what not in seen]:
        raise StructuredInitError(
            f"Induction: {missing[0]} was not seen on {known}: a layer must run as a module, and what it puts out must"
            " be added to what it was made of"
        )
    value, output, copies = site.value.double(), site.output.double(), 0.0
    for head, number, _ in first.heads:
        copied = seen[f"read by {site.name}"] @ value[number]
        before = torch.nn.functional.pad(copied[:, :-1], (0, 0, 1, 0))  # what stood at the token before
        copies = copies + before @ output[head]
    heads = put_out_by - copies
    if gated:
        gate = (attention * put_out_by).sum(dim=(0, 1)) / put_out_by.square().sum(dim=(0, 1)).clamp_min(1e-30)
        linear = (attention - gate * put_out_by).norm() <= SAME * attention.norm()
        heads = gate * heads if linear else heads
    stream = seen[f"the stream before {site.name}"]
    parts = stream, heads, seen[f"the stream before {second.site.name}"] - stream - attention
    stream, heads, rest = (each.square().mean().sqrt().item() for each in parts)
    before, after = into[site.name], into[second.site.name]
    if after.kinds(after.steps_to(before) or []) & SCALES:  # it is no longer a sum with what was added
        rest = math.nan
    between = [last for last, made in put_out.items() if after.steps_to(made) and before.steps_to(made) is None]
    by_last = seen[f"read by {second.site.name}"]
    return Recorded(others[by_last.shape[1]], by_last, stream, heads, rest, between)


def _each_twice(inputs: Inputs, generator: torch.Generator) -> tuple[Inputs, dict[int, Tensor]]:
    """Return texts of random tokens, each twice at random places, and length → the place of a token's other occurrence.

    Texts are as long as they were, such as an encoder's and a decoder's; of an odd number a token stands alone.
    """
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    texts = [leaf for leaf in leaves if numbered(leaf)]
    longest = max((leaf.shape[1] for leaf in texts), default=0)
    if longest < 4:
        raise StructuredInitError(
            "Induction is solved on texts: the model must take token numbers of shape (B, T), T ≥ 4, and does not"
        )
    samples = -(-TOKENS // longest) if len(texts) == len(leaves) else len(texts[0])
    ranks, others = dict[int, Tensor](), dict[int, Tensor]()
    for length in dict.fromkeys(leaf.shape[1] for leaf in texts):
        # Of each place, in the list of tokens that is there twice.
        rank = torch.rand(samples, length, generator=generator).argsort(dim=1)
        again = (rank + (length + 1) // 2) % (length + length % 2)
        ranks[length] = rank
        others[length] = torch.gather(rank.argsort(dim=1), 1, torch.where(again < length, again, rank))
    return drawn_twice(inputs, ranks.__getitem__, generator=generator), others


def _of_tokens(given: Any, site: AttentionSite, others: Mapping[int, Tensor]) -> Float64[Tensor, "B N D"]:
    """Return the activations in what a module takes or returns, samples first, without tokens before the text."""
    samples = len(next(iter(others.values())))
    found = next((each for each in tensors(given) if each.shape[-1] == site.embed_dim), None)
    if found is not None and found.ndim == 2 and len(found) % samples == 0:
        found = found.view(samples, -1, site.embed_dim)
    if found is not None and found.ndim == 3 and found.shape[0] != samples and found.shape[1] == samples:
        found = found.transpose(0, 1)
    lengths = {length + site.prefix_tokens for length in others}
    if found is None or found.ndim != 3 or len(found) != samples or found.shape[1] not in lengths:
        raise StructuredInitError(
            f"Induction: what '{site.name}' reads is no text of {' or '.join(map(str, others))} tokens"
            + (f", but has {found.shape[1]}" if found is not None and found.ndim == 3 and len(found) == samples else "")
        )
    return found[:, site.prefix_tokens :].detach().to("cpu", torch.float64, copy=True)  # it may be added to in place
