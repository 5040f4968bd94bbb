"""Attention that no layout was written for, found by watching; and layouts checked against what the model computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from structured_init.hosts.attention_site import AttentionSite
from structured_init.hosts.layout import PARTS
from structured_init.hosts.registry import Registry
from structured_init.hosts.watching.discover import watch_model
from structured_init.hosts.watching.evidence import TOLERANCE, FoundAttention, difference, product_diagonal, worst
from structured_init.model_view import Seen
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import within
from structured_init.weights import Weights

ROUNDING = 1e-6  # of float32 maps, relative; less than this beyond uniform is no pattern
GIVE_A_BATCH = "give `batch=…`, one or two samples, so that it is found by watching"
UNASKED = 10**9  # parameters up to which a model is run on its host's own example


def watched_attention(weights: Weights) -> list[FoundAttention]:
    """Return what one forward pass shows of a model's attention; the pass is run once for an overlay.

    It is run on the overlay's batch, which is asked for now where it is only offered, or on what the host library
    names. Where there is neither, or the model fails on it, nothing is found, and ``weights.seen.why_not`` says why.
    A model that fails on a batch that was given is refused.
    """
    if weights.view.seen is None:
        weights.view.seen = _watch(weights)
    return weights.seen.layers


def _watch(weights: Weights) -> Seen:
    given, batch, unasked = weights.batch is not None, None, None
    if why := cannot_run(weights.model, asked=True):
        return Seen(why_not=why)
    try:
        batch = weights.ask()
    except StructuredInitError as error:
        unasked = str(error)
    if why := cannot_run(weights.model, asked=batch is not None):
        return Seen(why_not=unasked or why)
    try:
        return watch_model(weights.model, batch)
    except StructuredInitError as error:
        if given and error.__cause__ is not None:  # the model fails on what somebody gave for it
            raise
        return Seen(why_not=f"{unasked}; {error}" if unasked and error.__cause__ else unasked or str(error))


def cannot_run(model: nn.Module, *, asked: bool = False) -> str | None:
    """Say why a model cannot be run, on a batch that was given or (``asked`` false) on what its host offers."""
    if any(tensor.is_meta or hasattr(tensor, "full_tensor") for tensor in model.parameters()):
        return "a model on the meta device, or a sharded one, cannot be run"
    size = sum(parameter.numel() for parameter in model.parameters())
    if not asked and size > UNASKED:
        return f"{size:,} parameters are too many to run unasked: give a batch, as batch=…"
    return None


def check_sites(weights: Weights, sites: Iterable[AttentionSite], known: Registry) -> None:
    """Refuse a written layout that the model contradicts, wherever one sample is at hand, and see whether it is causal.

    Layouts of this library are checked where a batch was given, those of others also on what the host offers.
    """
    for site in sites:
        if site.how == "watched" or (weights.batch is None and not known.foreign(site.module)):
            continue
        found = same_attention(site, watched_attention(weights))
        if found is None:
            own = (each.reason for each in weights.seen.layers if within(each.name, site.name))
            why = weights.seen.why_not or next(own, None) or "its attention was not seen in the forward pass"
            weights.note(site.name, f"its layout was not compared with a forward pass: {why}")
        else:
            compare_layout(site, found, Weights(weights.model))
            if found.layout.causal is not None:
                site.layout = replace(site.layout, causal=found.layout.causal)


def compare_layout(site: AttentionSite, found: FoundAttention, weights: Weights) -> tuple[float, float]:
    """Return the relative errors of logits and outputs, and raise one line where they are more than rounding."""
    kind, ours, true = type(site.module).__name__, site.layout, found.layout
    for part, *both in zip(PARTS, ours.matrices, true.matrices, strict=True):
        said, real = ((matrix.heads, matrix.head_dim, matrix.width) for matrix in both)
        if said != real:
            raise StructuredInitError(
                f"the layout of {kind} ('{site.name}'): {part} is (heads, head_dim, width) = {said}, "
                f"in the model it is {real}"
            )
    logits, outputs = difference(ours, found, weights)
    tolerance = TOLERANCE.get(true.query.weight.dtype, 1e-3)
    if not worst(logits, outputs) <= tolerance:
        said, real = (product_diagonal(layout, weights) for layout in (ours, true))
        raise StructuredInitError(
            f"the layout of {kind} ('{site.name}') disagrees with what the model computes: the logits it predicts "
            f"differ by {logits:.2g}, the outputs by {outputs:.2g}; the mean diagonal of W_v W_o is {said:.3g} by "
            f"the layout and {real:.3g} in the model"
        )
    return logits, outputs


def same_attention(site: AttentionSite, found: Iterable[FoundAttention]) -> FoundAttention | None:
    """Return what was watched of a site: under its name, or with its parameters."""
    own = {id(matrix.weight) for matrix in site.layout.matrices}
    for each in (each for each in found if each.layout is not None):
        inside = each.name == site.name or each.name.startswith(f"{site.name}.")
        if inside or {id(matrix.weight) for matrix in each.layout.matrices} == own:
            return each
    return None


def unpadded(maps: Float[Tensor, "batch heads queries keys"]) -> Bool[Tensor, "batch keys"]:
    """Tell which keys of each sample are no padding: any query of any head looks at them.

    Tokens that look at each other have padding only where each of the others looks at itself and shares attention with
    another of them, as under a softmax: maps of zeros and ones, such as exact shifts, have none. Where padding comes
    first in a causal model, some libraries give its queries, which may look at nothing, the same share of all.
    """
    looks = (maps != 0).any(dim=1)
    if maps.is_meta or _even(maps[:, :, :1]).any():
        even = _even(maps)
        looks = looks & ~(even & even[:, :1] & ~even.all(dim=1, keepdim=True))
    keys = looks.any(dim=1)
    if maps.shape[-1] == maps.shape[-2] and (maps.is_meta or not keys.all()):
        others = looks & keys[:, :, None] & ~torch.eye(maps.shape[-1], dtype=torch.bool, device=maps.device)
        soft = looks.diagonal(dim1=-2, dim2=-1) & (others.any(dim=1) | others.any(dim=2))
        keys = keys | (keys & ~soft).any(dim=-1, keepdim=True)
    return keys


def _even(maps: Float[Tensor, "batch heads queries keys"]) -> Bool[Tensor, "batch queries 1"]:
    return ((maps * maps.shape[-1] - 1).abs() <= ROUNDING).all(dim=-1).all(dim=1)[..., None]
