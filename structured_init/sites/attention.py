"""Attention sites: every attention layer of any model, behind one convention.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from torch import nn

from structured_init.arguments import check_grid, check_whole
from structured_init.errors import StructuredInitError
from structured_init.layout import PARTS, AttentionLayout, TokenLayout
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.attention_site import AttentionSite
from structured_init.sites.block import is_cross_attention, layer_scale
from structured_init.sites.geometry import checked_layout
from structured_init.sites.position import token_layouts
from structured_init.sites.registry import Registry, what_the_model_has
from structured_init.sites.select import Where, selects
from structured_init.sites.unexplained import may_attend
from structured_init.sites.unknown import WAY_OUT, unknown_attention
from structured_init.sites.watched import check_sites, watched_attention

ATTENTION: Registry[tuple[AttentionLayout, TokenLayout | None]] = Registry()

Describe = Callable[[Any], AttentionLayout]

GIVE_A_BATCH = "give `batch=…`, one or two samples, so that it is found by watching"


def register_attention(
    cls: type[nn.Module] | str, *, grid: tuple[int, int] | None = None, prefix_tokens: int = 0
) -> Callable[[Describe], Describe]:
    """Make an attention class known, by decorating the function that says where it keeps its matrices.

    Args:
        cls: the class, or its path ``"package.module.Class"`` so that the package need not be imported.
        grid: (rows, columns) of its tokens, where the model around it does not tell.
        prefix_tokens: tokens before the grid.

    Raises:
        StructuredInitError: the class is neither a class nor a path; the grid or the tokens before it are none.

    A layout that the module contradicts is refused when it is used: see ``sites.geometry.checked_layout``.

    Example:
        >>> @register_attention(MyAttention, grid=(8, 8))
        ... def my_attention(module):
        ...     heads, head_dim = module.num_heads, module.head_dim
        ...     return AttentionLayout(
        ...         query=Projection(module.to_q.weight, heads, head_dim),
        ...         key=Projection(module.to_k.weight, heads, head_dim),
        ...         value=Projection(module.to_v.weight, heads, head_dim),
        ...         output=Projection(module.to_out.weight, heads, head_dim, axis=1),
        ...     )
    """
    check_grid("register_attention", grid)
    check_whole("register_attention", least=0, prefix_tokens=prefix_tokens)
    tokens = TokenLayout(grid, prefix_tokens) if grid is not None or prefix_tokens else None

    def decorate(describe: Describe) -> Describe:
        @wraps(describe)
        def checked(module: nn.Module) -> tuple[AttentionLayout, TokenLayout | None]:
            return checked_layout(describe(module), module), tokens

        ATTENTION.add(cls, checked)
        return describe

    return decorate


def attention_sites(
    model: nn.Module | Weights, where: Where = None, *, cross: bool = False, batch: object = None
) -> list[AttentionSite]:
    """Find every attention layer of a known class, in the order of the model; with a batch, also of unknown ones.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.sites.select.selects`.
        cross: take also those whose keys and values come from other tokens than their queries.
        batch: what the model takes, to find attention of unknown classes by running the model once. An overlay has its
            own.

    Returns:
        The sites; an empty list where the model has none, or none of a known class and there is no batch.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import attention_sites
        >>> site = attention_sites(model, where="blocks.1.attn")[0]
        >>> tuple(site.query.shape)  # heads, embed_dim, head_dim
        (3, 192, 64)
    """
    weights = model if isinstance(model, Weights) else Weights(model, batch=batch)
    tokens = token_layouts(weights.model)
    sites = []
    modules = dict(named_plain_modules(weights.model))
    for name, module in modules.items():
        describe = ATTENTION.find(module)
        if describe is None:
            continue
        layout, own = describe(module)
        block, around = modules.get(name.rpartition(".")[0]), enclosing(tokens, name)
        layout = _in_its_place(layout, block, name, around)
        site = AttentionSite(name, module, layout, layout.tokens or _completed(own, around), weights)
        site.branch_scale = layer_scale(block)
        sites.append(site)
    sites = _in_order(sites + _watched_sites(weights, sites, tokens, modules), modules)
    return [site for site in sites if (cross or not site.cross) and selects(where, site.name, site)]


def _watched_sites(
    weights: Weights, written: list[AttentionSite], tokens: dict[str, TokenLayout], modules: dict[str, nn.Module]
) -> list[AttentionSite]:
    """Return the attention that watching finds beside what layouts were written for.

    A model is watched where a batch was given, where it has what is called attention and is of an unknown class, and
    where somebody can be asked for a batch and nothing is known, or linear maps are left that could be attention.
    A name alone never decides that there is none.
    """
    unwatched = weights.batch is None and weights.watched is None
    if unwatched and not unknown_attention(weights.model, ATTENTION) and not _worth_asking(weights, written):
        return []
    known = {id(getattr(site.layout, part).weight) for site in written for part in PARTS}
    sites = []
    for found in watched_attention(weights):
        if found.layout is None or id(found.layout.query.weight) in known:
            continue
        if any(found.name == site.name or found.name.startswith(f"{site.name}.") for site in written):
            continue
        around = _of_length(enclosing(tokens, found.name), found.length)
        site = AttentionSite(found.name, _module_of(found.name, modules), found.layout, around, weights)
        site.branch_scale = layer_scale(modules.get(found.name.rpartition(".")[0]))
        site.how, site.checked = "watched", True
        sites.append(site)
    return sites


def _worth_asking(weights: Weights, written: list[AttentionSite]) -> bool:
    """Say whether somebody can be asked for a batch, and there may be attention beside what layouts are written for."""
    return weights.can_ask and (not written or bool(may_attend(weights, [site.name for site in written])))


def _of_length(tokens: TokenLayout | None, length: int) -> TokenLayout | None:
    """Return the tokens of the model around attention, unless it was seen to look at others: windows, pooled tokens."""
    if tokens is None or tokens.grid is None or tokens.grid[0] * tokens.grid[1] + tokens.prefix_tokens == length:
        return tokens
    return replace(tokens, grid=None, prefix_tokens=0)


def _in_order(sites: list[AttentionSite], modules: dict[str, nn.Module]) -> list[AttentionSite]:
    """Return sites in the order of the model."""
    place = {id(module): number for number, module in enumerate(modules.values())}
    return sorted(sites, key=lambda site: place[id(site.module)])


def _module_of(name: str, modules: dict[str, nn.Module]) -> nn.Module:
    """Return the innermost module whose name a watched layer's begins with."""
    while name not in modules:
        name = name.rpartition(".")[0]
    return modules[name]


def _completed(own: TokenLayout | None, around: TokenLayout | None) -> TokenLayout | None:
    """Return what a class was registered with; where that leaves the grid open, the model around it says."""
    if own is None or around is None or own.grid is not None:
        return own or around
    return replace(around, prefix_tokens=own.prefix_tokens)


def required_attention_sites(weights: Weights, where: Where, who: str, *, cross: bool = False) -> list[AttentionSite]:
    """Return the attention sites, and raise one line that says what the model has where there is none.

    What ``where`` selects and is left alone all the same, because it is cross-attention or of a class that nobody
    described, is recorded as skipped: the report warns of it where it is more than what is written.
    """
    if not attention_sites(weights, cross=True):
        watched_attention(weights)  # the host library may say what the model takes, though nobody gave a batch
    chosen = attention_sites(weights, where, cross=True)
    sites = [site for site in chosen if cross or not site.cross]
    unknown = {} if callable(where) else left_unknown(weights)
    unknown = {name: kind for name, kind in unknown.items() if selects(where, name, None)}
    if not sites:
        raise StructuredInitError(_why_none(weights, where, who, chosen, unknown))
    for site in chosen:
        if site not in sites:
            weights.skip(site.name, "cross-attention is left alone unless asked for: cross=True")
    for name, kind in unknown.items():
        weights.skip(name, kind)
    if weights.watched is None and (others := may_attend(weights, [*(site.name for site in chosen), *unknown])):
        weights.warn(f"{', '.join(others)} may attend too, which only a forward pass can tell: {GIVE_A_BATCH}")
    check_sites(weights, sites, ATTENTION)
    weights.sought([site.name for site in sites], [*(site.name for site in chosen), *unknown])
    return sites


def left_unknown(weights: Weights) -> dict[str, str]:
    """Return name → what is known of every module that is called attention and holds no matrix of a site.

    A site may be named for a module around it: the innermost that holds all four of its matrices.
    """
    taken = {id(held) for site in attention_sites(weights, cross=True) for held in site.layout.parameters()}
    reasons = {found.name: found.reason for found in weights.watched or () if found.reason}
    modules = dict(named_plain_modules(weights.model))
    unknown = {}
    for name, kind in unknown_attention(weights.model, ATTENTION).items():
        if any(id(parameter) in taken for parameter in modules[name].parameters()):
            continue
        reason = next((why for inner, why in reasons.items() if _around(name, inner)), None)
        if reason is not None:
            unknown[name] = f"{kind} has no layout: {reason}"
        elif weights.ran is not None and not any(_around(name, each) for each in weights.ran):
            unknown[name] = (
                f"{kind} did not run on what the model was given: give a batch on which it does, or {WAY_OUT}"
            )
        else:
            unknown[name] = f"{kind} is not known: {WAY_OUT}"
    return unknown


def _around(name: str, inner: str) -> bool:
    """Say whether a module is another one, or holds it."""
    return inner == name or inner.startswith(f"{name}.")


def _why_none(weights: Weights, where: Where, who: str, chosen: list[AttentionSite], unknown: dict[str, str]) -> str:
    """Say in one line why no attention layer is left to write to, and the way out."""
    kinds = "; ".join(sorted(set(unknown.values())))
    if chosen:
        beside = f"; beside it, {kinds}" if kinds else ""
        found = f"{who} found nothing but cross-attention ({_few(chosen)}), which is left alone unless cross=True"
        return found + beside
    if where is not None and (everywhere := attention_sites(weights, cross=True)):
        return f"{who}: where={where!r} selects none of the {len(everywhere)} attention layers ({_few(everywhere)})"
    seen = [f"'{found.name}': {found.reason}" for found in weights.watched or () if found.reason]
    kinds = "; ".join(sorted(set(left_unknown(weights).values())))
    if weights.batch is not None and weights.unwatched:
        return f"{who}: {weights.unwatched}; so no attention was found" + (f" ({kinds})" if kinds else "")
    if kinds:
        has = kinds + (f" ({weights.unwatched})" if weights.unwatched else "")
    elif seen:
        has = "; ".join(seen)
    elif weights.batch is not None:  # nothing that attends was seen
        has = f"{what_the_model_has(weights.model)}, and none is seen on the batch: {WAY_OUT}"
    else:
        why = f" ({weights.unwatched})" if weights.can_ask else ""
        has = f"{what_the_model_has(weights.model)}{why}: {GIVE_A_BATCH}, or {WAY_OUT}"
    return f"{who} found no attention layer that it recognizes; {has}"


def _few(sites: list[AttentionSite], limit: int = 4) -> str:
    return ", ".join(site.name for site in sites[:limit]) + (", …" if len(sites) > limit else "")


def _in_its_place(
    layout: AttentionLayout, block: nn.Module | None, name: str, around: TokenLayout | None
) -> AttentionLayout:
    """Add what an attention module does not know by itself: whose tokens it is given, and whether with RoPE."""
    rope = layout.rope if around is None or around.rope is None else around.rope
    other_width = layout.query.width not in (layout.key.width, layout.value.width)
    return replace(layout, rope=rope, cross=layout.cross or other_width or is_cross_attention(name, block))


def enclosing(tokens: dict[str, TokenLayout], name: str) -> TokenLayout | None:
    """Return the token layout of the innermost module around ``name`` that has one."""
    around = [owner for owner in tokens if owner == "" or name.startswith(f"{owner}.")]
    return tokens[max(around, key=len)] if around else None
