"""Sharpened: Scrambled, with attention as sharp as that of what is scrambled.

Letters: B batch, H heads, Hkv key–value heads, N query tokens, M key tokens, k head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from structured_init.attention.forward import run_planned
from structured_init.controls.scrambled import PAIRS, Scrambled
from structured_init.draws import Draws
from structured_init.errors import StructuredInitError
from structured_init.host_inputs import Inputs, as_inputs
from structured_init.initializer import Initializer
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.bias import projection_bias

LARGEST = 12.0  # powers of two by which logits may be scaled up or down
HALVINGS = 40
CLOSE = 0.02  # nats
SAMPLES = 16  # on which entropies are measured, where there are training data

Entropies = Callable[[Tensor], Float[Tensor, " heads"]]


def row_entropy(logits: Float[Tensor, "... queries keys"]) -> Tensor:
    """Return the mean over queries of −Σ_j A_ij ln A_ij, in nats, of A = softmax(logits); −∞ is masked."""
    logs = logits.double().log_softmax(dim=-1)
    return -(logs.exp() * logs.clamp_min(-1e300)).sum(dim=-1).mean(dim=-1)


def matching_factor(entropies: Entropies, target: Float[Tensor, " heads"]) -> Float[Tensor, " heads"]:
    """Return the factor on each head's logits at which its entropy is the target, or as near as 2^±12 brings it.

    Bisection: under a mask alone, entropy falls as logits grow (dH/df = −f·Var, never positive).

    Args:
        entropies: from factors (H,) to entropies (H,).
        target: entropies wanted.
    """
    low, high = torch.full_like(target, -LARGEST), torch.full_like(target, LARGEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_flat = entropies(2**middle) > target
        low, high = torch.where(too_flat, middle, low), torch.where(too_flat, high, middle)
    return 2 ** ((low + high) / 2)


class Sharpened(Scrambled):
    """What another initializer writes, turned at random, with attention as sharp as it had: the control for sharpness.

    Alignment with positions and tokens makes attention sharp, so ``Scrambled`` loses sharpness with it. This one scales
    queries and keys (under grouped queries, queries alone) of each head, layer after layer in one network, until the
    mean entropy of its attention on real inputs is that of the other initializer. What is left between the two is what
    attention looks at.

    Args:
        initializer: the other one.

    Raises:
        StructuredInitError: as :class:`Scrambled`; at :meth:`plan`, there are no inputs, the other one writes no
            queries and keys, or a layer does not compute its attention by ``F.scaled_dot_product_attention``.

    What norms of queries and keys erase cannot be matched; the report gives the entropies that were reached.

    Example:
        >>> report = initialize(model, Sharpened(Mimetic()), seed=0, batch=images)

    Source: ours.
    """

    def __init__(self, initializer: Initializer) -> None:
        super().__init__(initializer)

    @property
    def needs_batches(self) -> int:
        return max(SAMPLES, self.initializer.needs_batches)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        if weights.batches is None and not weights.can_ask:
            raise StructuredInitError("Sharpened measures attention on real inputs: give batch=… or batches=…")
        super().plan(weights, rng=rng, batch=batch)

    def _attention(self, weights: Weights, sites: list[AttentionSite], rng: Draws, written: set[int]) -> int:
        chosen = [site for site in sites if weights.assigned.get(site.name, set()) & {*PAIRS["query_key"]}]
        if not chosen:
            raise StructuredInitError(f"Sharpened: {self.initializer!r} writes no queries and keys of this model")
        inputs = as_inputs(weights.ask() if weights.batches is None else next(iter(weights.batches)))

        def measured() -> dict[str, Entropies]:
            return _measured(weights, chosen, inputs)

        wanted = {name: each(torch.ones(())) for name, each in measured().items()}
        taken = super()._attention(weights, sites, rng, written)
        for site in weights.each(chosen):
            factor = matching_factor(measured()[site.name], wanted[site.name])
            _scale(site.by("Sharpened: query_key"), factor, weights)
        reached = {name: each(torch.ones(())) for name, each in measured().items()}
        for site in chosen:
            off = (reached[site.name] - wanted[site.name]).abs().max().item()
            given = f"entropy {wanted[site.name].mean():.3g} nats, as in what is scrambled"
            site.note(given if off < CLOSE else f"{given}, could not be matched: up to {off:.2g} nats off")
        return taken


def _scale(site: AttentionSite, factor: Float[Tensor, " heads"], weights: Weights) -> None:
    """Multiply the logits of every head by its factor, through queries and keys and their biases."""
    alone = site.num_heads != site.num_key_value_heads  # a shared key would scale other heads as well
    root = factor if alone else factor.sqrt()
    for part in ("query",) if alone else ("query", "key"):
        value = getattr(site, part)
        setattr(site, part, value.double() * root[:, None, None])
        bias = projection_bias(site.module, getattr(site.layout, part))
        if bias is not None:
            bias.set(weights, bias.get(weights) * root[:, None], "Sharpened: query_key")


def _measured(weights: Weights, sites: Sequence[AttentionSite], inputs: Inputs) -> dict[str, Entropies]:
    """Return, by layer, from factors on its logits to the entropy of each head, in one run of the planned network."""
    tap = _Tap({site.name: site.module for site in sites})
    with tap:
        run_planned(weights, inputs)
    missing = next((site.name for site in sites if site.name not in tap.found), None)
    if missing is not None:
        raise StructuredInitError(
            f"Sharpened: '{missing}' does not compute its attention by F.scaled_dot_product_attention, so its sharpness"
            " cannot be measured"
        )
    return tap.found


class _Tap(TorchFunctionMode):
    """Keep what layers compute their attention from; calls pass through unchanged."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        super().__init__()
        self.modules, self.running, self.handles = modules, list[str](), list[Any]()
        self.found: dict[str, Entropies] = {}

    def __enter__(self) -> _Tap:
        for name, module in self.modules.items():
            self.handles.append(module.register_forward_pre_hook(lambda *_, name=name: self.running.append(name)))
            self.handles.append(module.register_forward_hook(lambda *_: self.running.pop() and None, always_call=True))
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        for handle in self.handles:
            handle.remove()

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        if func is F.scaled_dot_product_attention and self.running:
            self.found[self.running[-1]] = _entropies(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _entropies(
    query: Float[Tensor, "batch heads queries k"],
    key: Float[Tensor, "batch kv_heads keys k"],
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Entropies:
    """Return, from factors on q·k, the mean entropy of every head; arguments are those of torch's attention."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    products = (query.float() @ key.float().mT) * (query.shape[-1] ** -0.5 if scale is None else scale)
    added = torch.zeros(products.shape[-2:], device=products.device)
    if is_causal:
        added = added.masked_fill(torch.ones_like(added, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        added = added + torch.zeros_like(attn_mask, dtype=torch.float32).masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        added = added + attn_mask.float()

    def entropies(factor: Tensor) -> Tensor:
        factors = factor.to(products).reshape(-1, 1, 1)
        return row_entropy(factors * products + added).mean(dim=0).cpu()

    return entropies
