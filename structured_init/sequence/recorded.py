"""A layer's call, recorded once and repeated with other weights: what the layer reads, and where its heads look.

The network is run with everything planned so far, up to the layer. Watching its call once tells which products of the
call weight the values with the maps of which head. After that a repetition costs one call.

Letters: S samples (windows count as such), H heads, N tokens behind a prefix, T all tokens of all samples, D embed_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves

from structured_init.attention.planned_run import owner_of, planned_maps, run_planned
from structured_init.attention.stream_share import tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import pieces
from structured_init.hosts.watched import same_attention, unpadded
from structured_init.hosts.watching import discover_attention
from structured_init.hosts.watching.records import MapAt
from structured_init.inputs import Inputs, as_batch, explain_failure
from structured_init.sequence.layer import Layer, Trial, texts_in
from structured_init.util.errors import StructuredInitError
from structured_init.weights import TrialWeights, Weights

Looks = Bool[Tensor, "S asking asked"]  # the places of its maps, without prefix tokens, where a head is to look


class Reached(Exception):
    """What was waited for is about to run."""


def record_call(layer: Layer, needs: Sequence[Tensor]) -> tuple[Trial, Float64[Tensor, "T D"]]:
    """Run the network up to a layer; return the call that can be repeated, and x̂ of all tokens, what queries read.

    What is repeated is the module of the layer; or all that is run, where the layer is not called as a module, or where
    what reads queries or a tensor that the layer ``needs`` lies outside of it.

    Raises:
        StructuredInitError: the model fails; what the layer reads is not seen.
    """
    site, weights, call = layer.site, layer.weights, layer.trial
    # Its module may use weights without calling the module that holds them; then what it is given is what it reads.
    reader = owner_of(pieces(site.layout.query)[0].weight, weights.modules.values(), site.module)
    given = run_to(weights, call, site.module)
    inside = {id(each) for each in (*site.module.modules(), *site.module.parameters(), *site.module.buffers())}
    if given is not None and inside.issuperset(map(id, (reader, *needs))):
        call = Trial(site.module, given, call.on)
    seen = [*tensors(tree_leaves((run_to(weights, call, reader), given)))]
    fitting = [each for each in seen if each.shape[-1] == site.embed_dim]
    if not fitting:
        raise StructuredInitError(f"what '{site.name}' reads is not seen on {call.on}")
    return call, fitting[0].detach().reshape(-1, site.embed_dim).to("cpu", torch.float64)


def run_to(weights: Weights, call: Trial, module: nn.Module) -> Inputs | None:
    """Run with everything planned so far up to a module, and return what it is called with; ``None`` if it is not.

    An exception is all that stops a forward pass: to run the layers behind would cost most of the pass, each time.
    """

    def stop(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        raise Reached(args, kwargs)

    explained = explain_failure(call.part, given=weights.batch is not None, bugs=True)
    with module.register_forward_pre_hook(stop, with_kwargs=True), explained:
        try:
            run_planned(weights, call.fresh(), call.part)
        except Reached as reached:
            return reached.args
    return None


def find_maps(site: AttentionSite, call: Trial) -> tuple[MapAt, ...]:
    """Watch a call once, and return where it computes the maps of its layer.

    Raises:
        StructuredInitError: they are not seen.
    """
    seen = [each for each in discover_attention(call.part, as_batch(call.part, call.fresh())) if each.maps]
    found = same_attention(site, seen) or (seen[0] if len(seen) == 1 else None)
    if found is None:
        raise StructuredInitError(f"the attention maps of '{site.name}' were not seen on {call.on}")
    return found.maps[0]


def repeat_call(weights: Weights, call: Trial, places: Sequence[MapAt]) -> Float[Tensor, "S H queries keys"]:
    """Repeat a call with everything planned so far, and return its maps."""
    return planned_maps(weights, {"": places}, call.fresh(), call.part)[""]


def find_tokens(layer: Layer, call: Trial, places: Sequence[MapAt]) -> Bool[Tensor, "S N"]:
    """Tell which tokens are no padding: the layer looks at them, and no table has a row of padding for them.

    The call is repeated with queries of zero: equal logits tell what is hidden from what a sharp softmax leaves out.
    """
    overlay = TrialWeights(layer.weights)
    layer.site.through(overlay).query = torch.zeros_like(layer.site.query)
    real = unpadded(repeat_call(overlay, call, places))[:, layer.site.prefix_tokens :]
    padding = {getattr(each, "padding_idx", None) for each in layer.weights.modules.values()} - {None}
    for text in texts_in(layer.trial.inputs, real.shape):
        told = ~torch.isin(text, torch.tensor(sorted(padding), dtype=text.dtype))
        # The same number between other tokens is no padding.
        real &= (told.cumsum(dim=1) > 0) & (told.flip(1).cumsum(dim=1).flip(1) > 0)
    return real


def keys_at_offset(real: Bool[Tensor, "S N"], size: tuple[int, int], offset: tuple[int, int]) -> Looks:
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
    row, column = torch.arange(real.shape[1]) // columns, torch.arange(real.shape[1]) % columns
    apart = (row[:, None] - row == up) & (column[:, None] - column == left)
    asked = real & (real.cumsum(dim=1) > before)
    return apart & asked[:, :, None] & real[:, None, :]


def keys_behind_equals(texts: Int[Tensor, "S N"]) -> Looks:
    """Return where a head looks at what followed an equal token before: of the second half of every text."""
    equal = texts[:, :, None] == texts[:, None, :-1]
    behind = pad(equal, (1, 0)).tril(-1)  # the token before the key equals that of the query
    behind[:, : texts.shape[1] // 2] = False
    return behind


def measure_shares(
    maps: Float[Tensor, "S H queries keys"], wanted: dict[int, Looks], prefix: int
) -> Float64[Tensor, " heads"]:
    """Return the share of attention that each head puts where it is wanted to look, of queries that have such a key."""
    shares = []
    for head, looks in wanted.items():
        asked = looks.any(dim=2).sum().clamp(min=1)
        shares.append(maps[:, head, prefix:, prefix:][looks].double().sum() / asked)
    return torch.stack(shares)
