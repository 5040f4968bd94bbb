"""What attention's weight products and the states of a state space look like, layer by layer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.weight_products import weight_products
from structured_init.hosts.attention import AttentionSite, attention_sites, left_unknown
from structured_init.hosts.state_space import state_space_sites
from structured_init.inputs import Inputs, undisturbed
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import folded_name
from structured_init.weights import Weights

LARGEST = 2**28  # numbers in the products of one layer, 2 GiB in float64
ALIGNED = 6.0  # standard errors of a mean diagonal, beyond which it is no chance
SIGNS = {"query_key": "W_q W_kᵀ", "value_output": "W_v W_o"}

FLOAT64 = {"dtype": torch.float64, "device": "cpu"}  # whatever the default device


def product_diagonals(model: nn.Module, *batches: object) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return layer → numbers, and a line for each layer that is left out, or whose attention is not known.

    The model is watched on the first of some batches that it runs on without gradients, if there is one.
    Of ``query_key`` and ``value_output`` each, means over heads: ``…_diagonal`` and ``…_off_diagonal_std``; ``…_z``,
    the diagonal in standard errors of chance; ``…_largest_factor``, the largest magnitude in both factors.
    """
    found: dict[str, dict[str, float]] = {}
    left: list[str] = []
    for batch in (*batches, None):
        weights = Weights(model, batch=batch)
        try:
            sites = attention_sites(weights)
            break
        except StructuredInitError as error:
            if error.__cause__ is None:  # it runs, and a layout that was registered contradicts it
                raise
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
    factors = {"query_key": (site.query, site.key), "value_output": (site.value, site.output)}
    numbers = {}
    for product, (first, second) in factors.items():
        diagonal = torch.tensor(summary[f"{product}_diagonal"], **FLOAT64)  # of each head, or of all
        spread = torch.tensor(summary[f"{product}_off_diagonal_std"], **FLOAT64).mean().item()
        mean = diagonal.mean().item()
        error = spread / math.sqrt(diagonal.numel() * min(first.shape[1], second.shape[1]))
        numbers[f"{product}_diagonal"] = mean
        numbers[f"{product}_off_diagonal_std"] = spread
        numbers[f"{product}_z"] = mean / error if error else 0.0
        numbers[f"{product}_largest_factor"] = max(first.abs().max().item(), second.abs().max().item())
    return numbers


def aligned(numbers: dict[str, float]) -> list[str]:
    """Say which diagonals stand out from chance; nothing where none does."""
    far = [product for product in SIGNS if abs(numbers[f"{product}_z"]) > ALIGNED]
    return [f"{SIGNS[product]} diagonal {numbers[f'{product}_diagonal']:+.2g}" for product in far]


def half_lives_on(model: nn.Module, inputs: Inputs, seed: int = 0) -> dict[str, Tensor]:
    """Return state-space layer → half-lives in tokens, (H, N) or (H, 1), at the mean Δ of a batch's tokens.

    Tokens that an ``attention_mask`` among the inputs calls padding do not count; of a layer that runs several times
    all passes do.
    """
    sites = {site.module: site for site in state_space_sites(model) if site.layout.select is not None}
    args, named = inputs
    mask = named.get("attention_mask")
    seen: dict[nn.Module, list[Tensor]] = defaultdict(list)  # layer → steps of all tokens, (tokens, H)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
        leaves = (each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        hidden = next((each.detach() for each in leaves if each.is_floating_point()), None)
        if hidden is None:
            return
        real = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        if isinstance(mask, Tensor) and mask.shape == hidden.shape[:2]:
            real = mask.to(hidden.device) != 0
        step = sites[module].selection(hidden * real[..., None]).step.double()  # as the host does
        seen[module].append(step[real.cpu()])

    with ExitStack() as hooks, undisturbed(model, seed):
        for module in sites:
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if sites:
            model(*args, **named)
    lives = {}
    for module, steps in seen.items():
        step = torch.cat(steps).mean(0)
        lives[sites[module].name] = math.log(2) / (step[:, None] * sites[module].A_log.double().exp().cpu())
    return lives


def in_tokens(half_lives: Iterable[Tensor]) -> str:
    """Say from which to which half-life states have, and the median."""
    lives = torch.cat([each.flatten() for each in half_lives])
    said = [f"{each:,.0f}" if each >= 10 else f"{each:.2g}" for each in (lives.min(), lives.max(), lives.quantile(0.5))]
    return f"{said[0]} to {said[1]} tokens, median {said[2]}" if said[0] != said[1] else f"{said[0]} tokens"
