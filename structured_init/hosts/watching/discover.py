"""Finding attention in any model by watching one forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import NoneType

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.hosts.layout import PARTS, AttentionLayout, JoinedProjection, overlap
from structured_init.hosts.watching.assemble import Watched, assemble, common
from structured_init.hosts.watching.evidence import TOLERANCE, Evidence, FoundAttention, evidence, rotation_of, worst
from structured_init.hosts.watching.forward_pass import watching
from structured_init.hosts.watching.records import ROWS, agreed, tensors
from structured_init.inputs import (
    Inputs,
    as_inputs,
    explain_failure,
    find_runnable,
    first_samples,
    for_one_pass,
    host_inputs,
)
from structured_init.model_view import Seen
from structured_init.storage import not_finite
from structured_init.undisturbed import cpu_by_default, undisturbed
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules, plain_name
from structured_init.weights import Weights

SAMPLES = 2  # one does not tell heads from samples
PLAIN = (Tensor, int, float, str, NoneType)  # anything else, such as a cache, may be filled by a pass


def discover_attention(model: nn.Module, batch: object = None) -> list[FoundAttention]:
    """Run a model once, watch which linear maps its attention is made of, and check what was found.

    Attention is a softmax between a product of queries and keys and one with values, however it is written: fused,
    by einsum, in a custom autograd function that calls torch. Which output channels of which linear map (or slice of
    a fused one, or convolution of kernel 1) become which head is followed number by number, so names do not matter.
    What cannot be described by four matrices per head has a reason in place of a layout. The model is left as it was.

    Args:
        model: any network, with at least two tokens per sample.
        batch: what it takes: a tensor, a tuple of arguments or a dictionary of them. Two samples of it are run, or all
            where these do not tell; activations of the pass are held. Without it, what the host library offers
            (``dummy_inputs`` of transformers, the input size of timm).

    Returns:
        The layers in calling order, those that run several times once.

    Raises:
        StructuredInitError: there is no batch, and the host offers none; the model fails on it.

    Example:
        >>> [layer] = discover_attention(nn.MultiheadAttention(8, 2), (tokens, tokens, tokens))
        >>> layer.name, layer.layout.query.heads, layer.evidence.error < 1e-5
        ('', 2, True)
    """
    return watch_model(model, batch).layers


@cpu_by_default()
@torch.no_grad()  # learned tokens are parameters
def watch_model(model: nn.Module, batch: object = None) -> Seen:
    """Return what a forward pass over two samples shows; see :func:`discover_attention`.

    All are run beside a cache, which a pass fills; where the model fails on two, or no layer has a layout; and where
    one looks at no more than two tokens: then the first axis may be that of tokens.
    """
    inputs = host_inputs(model, batch=1) if batch is None else as_inputs(batch)
    if inputs is None:
        raise StructuredInitError(
            f"{type(model).__name__} does not say what it takes: give a batch, one or two samples, as batch=…"
        )
    few = first_samples(inputs, SAMPLES)
    fewer = [each.shape for each in tensors(few)] != [each.shape for each in tensors(inputs)]
    if fewer and all(isinstance(leaf, PLAIN) for leaf in tree_leaves(inputs)):
        with suppress(StructuredInitError):
            seen = _watch_pass(model, few, given=True)
            if min((layer.length for layer in seen.layers if layer.layout), default=0) > SAMPLES:
                return seen
    return _watch_pass(model, inputs, given=batch is not None)


def _watch_pass(model: nn.Module, inputs: Inputs, *, given: bool) -> Seen:
    """Run a model once and return what is seen; ``given`` says whether somebody chose what it is run on."""
    weights, (args, kwargs) = Weights(model), for_one_pass(inputs)
    floating = [each for each in tensors((args, kwargs)) if each.is_floating_point()]
    with explain_failure(model, given=given, bugs=True), undisturbed(model), watching(model) as seen:
        find_runnable(model)(*args, **kwargs)
    owners = {id(p): name for name, module in named_plain_modules(model) for p in module._parameters.values()}
    layers = [(watched, checked(watched, weights)) for watched in assemble(seen, owners)]
    widths = {layer.layout.query.width for _, layer in layers if layer.layout is not None}
    tables = seen.tables
    found = with_own_names(join_heads(layers), model)
    return Seen(found, tables.settle(floating, widths), tables.resized, tables.one_row, seen.ran)


def checked(watched: Watched, weights: Weights) -> FoundAttention:
    """Check what was watched; a layout that its own evidence contradicts is refused."""
    known = FoundAttention(
        watched.name, None, None, watched.reason, watched.calls, maps=watched.maps, tables=watched.tables
    )
    if watched.layout is None:
        return known
    call, proof = watched.parts[0], evidence(watched, weights)
    tolerance = TOLERANCE.get(call.linears[0].y.dtype, 1e-3)
    reason = _contradiction(watched.layout, proof, tolerance, weights)
    if reason is not None:
        return replace(known, evidence=proof, reason=reason)
    between = watched.layout.between
    if abs(proof.value_factor - 1) > tolerance:
        words = f"a factor of {proof.value_factor:.3g} on the values"
        between = f"{between}, {words}" if between else words
    scale = _without_rounding(proof.factor, watched.layout.query.head_dim)
    inputs = [linear.x.flatten(0, -2) for linear in call.linears[:3]]
    return replace(
        known,
        layout=replace(watched.layout, scale=scale, between=between),
        evidence=proof,
        length=call.product.key.tag.codes.shape[1],
        tokens=tuple(x[:: max(1, len(x) // ROWS)][:ROWS].double().cpu() for x in inputs),
        turns=rotation_of(watched, proof.asking),
        queries=call.product.query.tag.codes.shape[1],
        rows=len(inputs[0]),
    )


def _without_rounding(factor: float | None, head_dim: int) -> float | None:
    """Return 1/√k where a batch shows a scale of about it, else five digits: what float32 rounds differs by batch."""
    if factor is None:
        return None
    usual = head_dim**-0.5
    return usual if math.isclose(factor, usual, rel_tol=1e-5) else float(f"{factor:.5g}")


def _contradiction(layout: AttentionLayout, proof: Evidence, tolerance: float, weights: Weights) -> str | None:
    """Say how the evidence contradicts a layout; ``None`` where it does not."""
    if not math.isfinite(proof.error):
        return not_finite(weights.model) or "its queries, keys or values are not finite"
    if not proof.error <= tolerance:
        return (
            f"what its matrices predict is not what came out: relative error {proof.logits:.2g} "
            f"(compared: {proof.how}), and {proof.outputs:.2g} of the outputs"
        )
    if proof.factor is not None and proof.factor < 0:
        return "its softmax is taken of −q·k"
    if any(overlap(part, layout.output) for part in (layout.query, layout.key, layout.value)):
        return "its values and its output are the same numbers"
    return None


# Heads that are modules of their own, put together to the layer that they are; and a name for every layer.


def join_heads(layers: Iterable[tuple[Watched, FoundAttention]]) -> list[FoundAttention]:
    """Return layers, those whose outputs one linear map takes together as one."""
    groups: dict[int, list[tuple[Watched, FoundAttention]]] = {}
    for watched, found in layers:
        key = id(watched.parts[0].linears[3]) if watched.parts else id(found)
        groups.setdefault(key, []).append((watched, found))
    return [_together([found for _, found in group]) for group in groups.values()]


def _together(heads: list[FoundAttention]) -> FoundAttention:
    """Return the layer of several heads, or of several groups of them; without a layout where one has none."""
    if len(heads) == 1:
        return heads[0]
    maps = tuple(sum(parts, ()) for parts in zip(*(each.maps for each in heads), strict=False))
    first = replace(heads[0], name=common([each.name for each in heads]), maps=maps)
    reasons = [each.reason for each in heads if each.reason]
    layouts = [each.layout for each in heads if each.layout is not None]
    if len({(each.query.head_dim, each.value.head_dim, each.query.heads // each.key.heads) for each in layouts}) > 1:
        reasons.append("its heads are of different sizes")
    if reasons:
        blank = FoundAttention(first.name, None, None, reasons[0], first.calls)
        return replace(blank, maps=maps, tables=first.tables)
    matrices = {part: JoinedProjection(tuple(getattr(each, part) for each in layouts)) for part in PARTS}
    layout = replace(first.layout, **matrices, causal=agreed(each.causal for each in layouts))
    proofs = [each.evidence for each in heads]
    logits, outputs = worst(*(proof.logits for proof in proofs)), worst(*(proof.outputs for proof in proofs))
    return replace(first, layout=layout, evidence=Evidence(logits, outputs, proofs[0].factor, proofs[0].how))


def with_own_names(found: list[FoundAttention], model: nn.Module) -> list[FoundAttention]:
    """Return layers with a name of its own for each: of several in one module, that of their query's parameter.

    Names are what draws depend on, so two layers of one name would get the same numbers.
    """
    names = [each.name for each in found if each.layout is not None]
    parameters = {id(parameter): plain_name(name, model) for name, parameter in model.named_parameters()}
    result, used = [], set()
    for each in found:
        name = each.name
        if each.layout is not None:
            if names.count(name) > 1:
                name = parameters[id(each.layout.query.weight)].removesuffix(".weight")
            several = sum(other.partition("[")[0] == name for other in used)
            name = f"{name}[{several}]" if several else name
            used.add(name)
        result.append(replace(each, name=name))
    return result
