"""Finding attention in any model by watching one forward pass."""

from __future__ import annotations

import math
from dataclasses import replace
from traceback import walk_tb

from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.host_inputs import as_inputs, host_inputs
from structured_init.layout import overlap
from structured_init.names import named_plain_modules, plain_name
from structured_init.plan import Weights
from structured_init.undisturbed import cpu_by_default, undisturbed
from structured_init.watch.assemble import Watched, assemble
from structured_init.watch.evidence import evidence
from structured_init.watch.found import TOLERANCE, FoundAttention
from structured_init.watch.join import joined, named
from structured_init.watch.mlp import FoundMlp, found_mlps
from structured_init.watch.records import ROWS
from structured_init.watch.turns import turns_of
from structured_init.watch.watching import watching


def discover_attention(model: nn.Module, batch: object = None) -> list[FoundAttention]:
    """Run a model once, watch which linear maps its attention is made of, and check what was found.

    Attention is a softmax between a product of queries and keys and one with values, however it is written: fused,
    by einsum, in a custom autograd function that calls torch. Which output channels of which linear map (or slice of
    a fused one, or convolution of kernel 1) become which head is followed number by number, so names do not matter.
    What cannot be described by four matrices per head has a reason in place of a layout. The model is left as it was.

    Args:
        model: any network, with at least two tokens per sample.
        batch: what it takes: a tensor, a tuple of arguments or a dictionary of them. One or two samples suffice: all
            activations of the pass are held. Without it, what the host library offers (``dummy_inputs`` of
            transformers, the input size of timm).

    Returns:
        The layers in calling order, those that run several times once.

    Raises:
        StructuredInitError: there is no batch, and the host offers none; the model fails on it.

    Example:
        >>> [layer] = discover_attention(nn.MultiheadAttention(8, 2), (tokens, tokens, tokens))
        >>> layer.name, layer.layout.query.heads, layer.evidence.error < 1e-5
        ('', 2, True)
    """
    return watch_model(model, batch)[0]


@cpu_by_default()
def watch_model(model: nn.Module, batch: object = None) -> tuple[list[FoundAttention], list[FoundMlp], set[str]]:
    """Return the attention layers, the MLPs and the modules that ran; see :func:`discover_attention`."""
    inputs = host_inputs(model, batch=1) if batch is None else as_inputs(batch)
    if inputs is None:
        raise StructuredInitError(
            f"{type(model).__name__} does not say what it takes: give a batch, one or two samples, as batch=…"
        )
    args, kwargs = inputs
    with undisturbed(model), watching(model) as seen:
        try:
            model(*args, **kwargs)
        except StructuredInitError:
            raise
        except Exception as error:
            what = "the host's own example" if batch is None else "the batch"
            why = _not_finite(model) or " ".join(str(error).split()) or type(error).__name__
            raise StructuredInitError(f"{type(model).__name__} fails on {what}: {why}{_where(error, model)}") from error
    owners = {id(p): name for name, module in named_plain_modules(model) for p in module._parameters.values()}
    weights = Weights(model)
    layers = [(watched, found(watched, weights)) for watched in assemble(seen, owners)]
    return named(joined(layers), model), found_mlps(seen, owners), seen.ran


def _where(error: Exception, model: nn.Module) -> str:
    """Name the innermost module that was running when an error was raised."""
    names = {id(module): name for name, module in named_plain_modules(model)}
    frames = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    inner = [names[id(owner)] for owner in frames if id(owner) in names]
    return f" (in '{inner[-1]}')" if inner and inner[-1] else ""


def _not_finite(model: nn.Module) -> str | None:
    """Name the first parameter that holds NaN or infinity."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.isfinite().all():
            return f"'{plain_name(name, model)}' holds numbers that are not finite"
    return None


def found(watched: Watched, weights: Weights) -> FoundAttention:
    """Check what was watched; a layout that its own evidence contradicts is refused."""
    calls = watched.calls
    if watched.layout is None:
        return FoundAttention(watched.name, None, None, watched.reason, calls)
    proof = evidence(watched, weights)
    tolerance = TOLERANCE.get(watched.parts[0].linears[0].y.dtype, 1e-3)
    if proof.factor is not None and proof.factor < 0 and proof.error <= tolerance:
        return FoundAttention(watched.name, None, proof, "its softmax is taken of −q·k", calls)
    own = watched.layout
    if any(overlap(part, own.output) for part in (own.query, own.key, own.value)):
        return FoundAttention(watched.name, None, proof, "its values and its output are the same numbers", calls)
    if not proof.error <= tolerance:
        reason = (
            f"what its matrices predict is not what came out: relative error {proof.logits:.2g} "
            f"(compared: {proof.how}), and {proof.outputs:.2g} of the outputs"
        )
        if not math.isfinite(proof.error):
            reason = _not_finite(weights.model) or "its queries, keys or values are not finite"
        return FoundAttention(watched.name, None, proof, reason, calls)
    tokens = tuple(_few(linear.x) for linear in watched.parts[0].linears[:3])
    layout, length = replace(watched.layout, scale=proof.factor), watched.parts[0].product.key.shape[1]
    if abs(proof.value_factor - 1) > tolerance:
        words = [layout.between, f"a factor of {proof.value_factor:.3g} on the values"]
        layout = replace(layout, between=", ".join(filter(None, words)))
    return FoundAttention(watched.name, layout, proof, None, calls, length, tokens, turns_of(watched))


def _few(x: Tensor) -> Tensor:
    x = x.reshape(-1, x.shape[-1])
    return x[:: max(1, len(x) // ROWS)][:ROWS].double().cpu()
