"""What numbers a model holds that no library builds: trained ones, memory that nobody wrote to, and not finite ones."""

from __future__ import annotations

from torch import nn

from structured_init.storage import not_finite, uninitialized
from structured_init.util.names import block_of
from structured_init.weights import Weights
from structured_init.writer import full_value


def odd_weights(weights: Weights) -> list[str]:
    """Return a warning for each kind of odd numbers beside those that were set; none where nothing was set."""
    set_in = {block_of(weights.names(update.target)[0]) for update in weights.updates.values() if update.by}
    if not set_in:
        return []
    warnings = []
    uneven = _uneven_norms(weights)
    bare = [name for name, why in uneven.items() if why]
    trained = [name for name, why in uneven.items() if not why]
    fresh = {block_of(f"{name}.weight") for name in _norms(weights)} - set(map(block_of, trained))
    if trained and not set_in <= fresh:  # else what is set stands in blocks of which nothing was trained
        warnings.append(
            f"the weights look trained ('{trained[0]}' is not constant, as libraries build it, unless nobody wrote to "
            "it since to_empty); what is set replaces trained weights"
        )
    if bare:
        beside = f", and {len(bare) - 1} more" if len(bare) > 1 else ""
        warnings.append(f"'{bare[0]}'{beside} was never initialized, as after to_empty: {uneven[bare[0]]}")
    elif why := not_finite(weights.model, weights.updates):
        warnings.append(f"{why}: it was not set, and what the model gives may not be finite either")
    return warnings


def trained_norm(weights: Weights) -> str | None:
    """Return the first normalization weight that is not constant, though somebody has written to it."""
    return next((name for name, why in _uneven_norms(weights).items() if not why), None)


def _uneven_norms(weights: Weights) -> dict[str, str]:
    """Return the normalization weights that are not constant, each with why it looks like bare memory, where it does.

    Beside a bias of zeros they were drawn, as DCGAN draws them about 1: training would have moved both, unless frozen.
    """
    uneven = {}
    for name, module in _norms(weights).items():
        value = full_value(module.weight, f"{name}.weight").flatten().to(module.weight.dtype)
        if not (value != value[:1]).any():
            continue
        bias = getattr(module, "bias", None)
        moves = isinstance(bias, nn.Parameter) and bias.requires_grad
        drawn = moves and not full_value(bias, f"{name}.bias").any()
        why = uninitialized(value) or ""
        if why or not drawn:
            uneven[f"{name}.weight"] = why
    return uneven


def _norms(weights: Weights) -> dict[str, nn.Module]:
    """Return the normalization layers with one number per channel, but for those that were set here."""
    found = {}
    for name, module in weights.modules.items():
        weight = getattr(module, "weight", None)
        if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter) or weight.is_meta:
            continue
        if weight.numel() == max(weight.shape, default=0) and id(weight) not in weights.updates:
            found[name] = module
    return found
