"""What attention's weight products look like, layer by layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from structured_init.analysis.weight_products import weight_products
from structured_init.hosts.attention import AttentionSite, attention_sites, left_unknown
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import folded_name
from structured_init.weights import Weights

LARGEST = 2**28  # numbers in the products of one layer, 2 GiB in float64
ALIGNED = 6.0  # standard errors of a mean diagonal, beyond which it is no chance
SIGNS = {"query_key": "W_q W_kᵀ", "value_output": "W_v W_o"}


def product_diagonals(model: nn.Module, batch: object = None) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return layer → numbers, and a line for each layer that is left out, or whose attention is not known.

    The model is watched on a batch, if there is one that it runs on without gradients. Of ``query_key`` and
    ``value_output`` each, means over heads: ``…_diagonal`` and ``…_off_diagonal_std``, and ``…_z``, the diagonal in
    standard errors of chance.
    """
    weights = Weights(model, batch=batch)
    try:
        sites = attention_sites(weights)
    except StructuredInitError as error:
        if error.__cause__ is None:  # it runs, and a layout that was registered contradicts it
            raise
        weights = Weights(model)
        sites = attention_sites(weights)
    found: dict[str, dict[str, float]] = {}
    left: list[str] = []
    for site in sites:
        if site.num_heads * site.embed_dim**2 > LARGEST:
            left.append(f"{site.name}: products of {site.num_heads} heads {site.embed_dim} wide are left out")
            continue
        try:
            found[site.name] = _numbers(site)
        except StructuredInitError as error:
            left.append(f"{site.name}: no products: {error}")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, why in left_unknown(weights).items():
        reasons[why].append(name or type(model).__name__)
    why_not = f" ({weights.seen.why_not})" if weights.seen.why_not else ""
    left += [f"{folded_name(names)}: no products: {why}{why_not}" for why, names in reasons.items()]
    return found, left


def _numbers(site: AttentionSite) -> dict[str, float]:
    summary = weight_products(site).summary()
    head_dims = {"query_key": min(site.query.shape[1], site.key.shape[1])}
    head_dims["value_output"] = min(site.value.shape[1], site.output.shape[1])
    numbers = {}
    for product, head_dim in head_dims.items():
        diagonal = np.atleast_1d(summary[f"{product}_diagonal"])  # of each head, or of all
        spread = float(np.mean(summary[f"{product}_off_diagonal_std"]))
        error = spread / math.sqrt(diagonal.size * head_dim)
        numbers[f"{product}_diagonal"] = float(diagonal.mean())
        numbers[f"{product}_off_diagonal_std"] = spread
        numbers[f"{product}_z"] = numbers[f"{product}_diagonal"] / error if error else 0.0
    return numbers


def aligned(numbers: dict[str, float]) -> list[str]:
    """Say which diagonals stand out from chance; nothing where none does."""
    far = [product for product in SIGNS if abs(numbers[f"{product}_z"]) > ALIGNED]
    return [f"{SIGNS[product]} diagonal {numbers[f'{product}_diagonal']:+.2g}" for product in far]


def in_tokens(half_lives: Iterable[Tensor]) -> str:
    """Say from which to which half-life the states of state spaces have, and the median."""
    lives = torch.cat([each.flatten() for each in half_lives])
    said = [f"{each:,.0f}" if each >= 10 else f"{each:.2g}" for each in (lives.min(), lives.max(), lives.quantile(0.5))]
    return f"{said[0]} to {said[1]} tokens, median {said[2]}" if said[0] != said[1] else f"{said[0]} tokens"
