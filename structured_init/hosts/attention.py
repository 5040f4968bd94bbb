"""Every attention layer of a model: of known classes, and of others by watching."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from torch import nn

from structured_init.hosts.attention_site import AttentionSite, is_cross_attention
from structured_init.hosts.known import ATTENTION, described_attention
from structured_init.hosts.layout import TokenLayout
from structured_init.hosts.positions import TOKENS, enclosing, token_layouts
from structured_init.hosts.registry import Where, first_names, selects, warn_of_idle, what_the_model_has
from structured_init.hosts.suspected_attention import may_attend, unknown_attention
from structured_init.hosts.watched import (
    GIVE_A_BATCH,
    check_sites,
    compare_layout,
    same_attention,
    watched_attention,
)
from structured_init.hosts.watching.assemble import NO_SOFTMAX
from structured_init.hosts.watching.evidence import FoundAttention
from structured_init.util.errors import StructuredInitError, shown
from structured_init.util.names import outwards, within
from structured_init.weights import Weights

WAY_OUT = "describe it with structured_init.register_attention"


def attention_sites(
    model: nn.Module | Weights, where: Where = None, *, cross: bool = False, batch: object = None
) -> list[AttentionSite]:
    """Find every attention layer of a known class, in the order of the model; with a batch, also of unknown ones.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.hosts.registry.selects`.
        cross: take also those whose keys and values come from other tokens than their queries.
        batch: what the model takes, to find attention of unknown classes by running the model once. An overlay has its
            own.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10)
        >>> from structured_init import attention_sites
        >>> site = attention_sites(model, where="blocks.1.attn")[0]
        >>> tuple(site.query.shape)  # heads, embed_dim, head_dim
        (3, 192, 64)
    """
    weights = model if isinstance(model, Weights) else Weights(model, batch=batch)
    found = weights.view.search_once("attention", lambda: _known_so_far(weights), lambda: _search_attention(weights))
    sites = (site.through(weights) for site in found)
    return [site for site in sites if (cross or not site.cross) and selects(where, site.name, site)]


def _known_so_far(weights: Weights) -> tuple[object, ...]:
    """Return what a search for attention depends on; another means that it is to be made again."""
    return ATTENTION.version, TOKENS.version, weights.batch is None, weights.view.seen is None


def _search_attention(weights: Weights) -> list[AttentionSite]:
    """Look for every attention layer of a model, in its order."""
    sites = _written_sites(weights)
    if _worth_a_pass(weights, sites):
        watched_attention(weights)
        sites = _written_sites(weights)  # by the positions that the pass has shown
    for site in sites:
        _correct(site, weights)
    sites += [_watched_site(found, weights) for found in _seen_beside(weights, sites)]
    place = {id(module): number for number, module in enumerate(weights.modules.values())}
    return sorted(sites, key=lambda site: place[id(site.module)])


def _written_sites(weights: Weights) -> list[AttentionSite]:
    """Return the layers of known classes."""
    tokens, modules, sites = token_layouts(weights), weights.modules, []
    for name, module in modules.items():
        described = described_attention(module)
        if described is None:
            continue
        layout, own = described
        around, block = enclosing(tokens, name), modules.get(name.rpartition(".")[0])
        if own is None:
            own = around
        elif own.grid is None and around is not None:
            own = replace(around, prefix_tokens=own.prefix_tokens)
        # An attention module does not know by itself whose tokens it is given, and whether with RoPE.
        rope = layout.rope if around is None or around.rope is None else around.rope
        other_width = layout.query.width not in (layout.key.width, layout.value.width)
        layout = replace(layout, rope=rope, cross=layout.cross or other_width or is_cross_attention(name, block))
        sites.append(AttentionSite(name, module, layout, layout.tokens or own, weights))
    return sites


def _correct(site: AttentionSite, weights: Weights) -> None:
    """Correct what is said of a known class by what a pass has shown of the layer."""
    found, around = same_attention(site, weights.seen.layers), enclosing(token_layouts(weights), site.name)
    if found is None:
        return
    # Positions may be added to queries alone, so the tokens of a known class tell only by their number.
    across = found.layout.cross and found.queries != found.length
    site.layout = replace(site.layout, cross=site.cross or across)
    if around is None or (site.grid, site.prefix_tokens) != (around.grid, around.prefix_tokens):
        return
    added = any(each.parameter is around.positions for each in weights.seen.added)
    if added and _looks_at_others(around, found):
        site.grid, site.prefix_tokens = None, 0


def _watched_site(found: FoundAttention, weights: Weights) -> AttentionSite:
    """Return a layer that a pass has shown."""
    around = enclosing(token_layouts(weights), found.name)
    if around is not None and _looks_at_others(around, found):
        around = replace(around, grid=None, prefix_tokens=0)
    # Heads of one layer, or several layers of one module, have names of their own.
    inner = next(name for name in outwards(found.name) if name in weights.modules)
    site = AttentionSite(found.name, weights.modules[inner], found.layout, around, weights)
    site.how = "watched"
    return site


def _looks_at_others(around: TokenLayout, found: FoundAttention) -> bool:
    """Say whether attention looks at other tokens than those of the grid around it: windows, pooled tokens."""
    return around.grid is not None and prod(around.grid) + around.prefix_tokens != found.length


def _seen_beside(weights: Weights, written: list[AttentionSite]) -> list[FoundAttention]:
    """Return the attention that a pass has shown beside what layouts were written for."""
    known = {id(matrix.weight) for site in written for matrix in site.layout.matrices}
    seen = [each for each in weights.seen.layers if each.layout and id(each.layout.query.weight) not in known]
    return [each for each in seen if not any(within(each.name, site.name) for site in written)]


def _worth_a_pass(weights: Weights, written: list[AttentionSite]) -> bool:
    """Say whether a pass is asked for: a batch was given, something may attend that is not known, or both ways."""
    if weights.batch is not None or weights.view.seen is not None or unknown_attention(weights.modules):
        return True
    if not weights.can_ask:
        return False
    # torch's class serves both ways: unless its name says which, only a pass tells.
    either = [each for each in written if isinstance(each.module, nn.MultiheadAttention) and not each.cross]
    unsaid = any("self" not in site.name.rpartition(".")[2] for site in either)
    return not written or unsaid or bool(may_attend(weights, [site.name for site in written]))


def required_attention_sites(
    weights: Weights | nn.Module,
    where: Where = None,
    who: str = "required_attention_sites",
    *,
    cross: bool | None = None,
) -> list[AttentionSite]:
    """Return the attention sites, and raise one line that says what the model has where there is none.

    Cross-attention is taken with ``cross=True``; with ``False``, messages say that there is this choice. What ``where``
    selects and is left alone all the same, because it is cross-attention or of a class that nobody
    described, is recorded as skipped: the report warns of it where it is more than what is written.
    """
    weights = weights if isinstance(weights, Weights) else Weights(weights)
    chosen = sought_attention_sites(weights, where, cross=True)
    everywhere = [site.name for site in attention_sites(weights, cross=True)]
    sites = [site for site in chosen if cross or not site.cross]
    choice = "" if cross is None else " unless asked for: cross=True"
    unknown = {} if callable(where) else left_unknown(weights)
    unknown = {name: kind for name, kind in unknown.items() if selects(where, name, None)}
    if not sites:
        raise StructuredInitError(_why_none(weights, where, who, chosen, unknown, choice))
    warn_of_idle(weights, where, [*everywhere, *unknown], who, "attention layer")
    for site in chosen:
        if site not in sites:
            weights.skip(site.name, f"cross-attention is left alone{choice}")
    for name, kind in unknown.items():
        weights.skip(name, kind)
    if weights.seen.ran is None and (others := may_attend(weights, [*everywhere, *unknown])):
        way_out = weights.seen.why_not if weights.can_ask else GIVE_A_BATCH  # whoever was asked says why not
        weights.warn(f"{', '.join(others)} may attend too, which only a forward pass can tell: {way_out}")
    check_sites(weights, sites, ATTENTION)
    weights.sought([site.name for site in sites], [*(site.name for site in chosen), *unknown])
    return sites


def sought_attention_sites(weights: Weights, where: Where, *, cross: bool = False) -> list[AttentionSite]:
    """Return the attention sites; the model is run once where none is known, others may, or one is from elsewhere."""
    written = attention_sites(weights, where, cross=True)
    names = [site.name for site in attention_sites(weights, cross=True)]
    foreign = any(ATTENTION.foreign(site.module) for site in written)
    foreign = foreign or any(TOKENS.foreign(module) for module in weights.modules.values())
    if not names or foreign or may_attend(weights, names):
        watched_attention(weights)  # the host library may say what the model takes, though nobody gave a batch
    return attention_sites(weights, where, cross=cross)


def left_unknown(weights: Weights) -> dict[str, str]:
    """Return name → what is known of every module that is called attention and holds no matrix of a site.

    Modules in which a pass has seen attention with a softmax are named too, whatever they are called. A site may be
    named for a module around it: the innermost that holds all four of its matrices.
    """
    sites = attention_sites(weights, cross=True)
    taken = {id(held) for site in sites for held in site.layout.parameters()}

    def left(name: str) -> bool:
        return not any(id(parameter) in taken for parameter in weights.modules[name].parameters())

    reasons = {found.name: found.reason for found in weights.seen.layers if found.reason}
    unknown = {}
    for name, kind in unknown_attention(weights.modules).items():
        if left(name):
            unknown[name] = f"{kind} {_why_unknown(weights, name, reasons)}"
    for name, why in reasons.items():
        told = [*unknown, *(site.name for site in sites)]
        if why != NO_SOFTMAX and left(name) and not any(within(name, each) for each in told):
            unknown[name] = f"{type(weights.modules[name]).__name__} has no layout: {why}"
    return unknown


def _why_unknown(weights: Weights, name: str, reasons: dict[str, str]) -> str:
    """Say why a module that is called attention is not known, and the way out."""
    inside = [why for inner, why in reasons.items() if within(inner, name)]
    if inside:
        return f"has no layout: {inside[0]}"
    ran = weights.seen.ran
    if ran is not None and not any(within(each, name) for each in ran):
        return f"did not run on what the model was given: give a batch on which it does, or {WAY_OUT}"
    asked = weights.can_ask or ran is not None
    return f"is not known: {WAY_OUT if asked else f'{GIVE_A_BATCH}, or {WAY_OUT}'}"


def _why_none(
    weights: Weights, where: Where, who: str, chosen: list[AttentionSite], unknown: dict[str, str], choice: str
) -> str:
    """Say in one line why no attention layer is left to write to, and the way out."""
    if chosen:
        beside = "".join(f"; {why}" for why in sorted(set(unknown.values())))
        return f"{who} found nothing but cross-attention ({first_names(chosen)}), which is left alone{choice}{beside}"
    if where is not None and (everywhere := attention_sites(weights, cross=True)):
        names = f"{len(everywhere)} attention layers ({first_names(everywhere)})"
        left = "".join(f"; '{name}': {why}" for name, why in unknown.items())
        return f"{who}: where={shown(where)} selects none of the {names}{left}"
    seen = weights.seen
    reasons = sorted(set(left_unknown(weights).values()))
    reasons = reasons or [f"'{found.name}': {found.reason}" for found in seen.layers if found.reason]
    has = "; ".join(reasons)
    if not reasons and seen.ran is not None:  # nothing that attends was seen
        has = f"{what_the_model_has(weights.model)}, and none is seen in a forward pass: {WAY_OUT}"
    elif not reasons:
        has = f"{what_the_model_has(weights.model)}: {GIVE_A_BATCH}, or {WAY_OUT}"
    if seen.why_not and weights.can_ask:
        has += f" ({seen.why_not})"
    return f"{who} found no attention layer that it recognizes; {has}"


def check_attention(model: nn.Module, batch: object = None) -> dict[str, tuple[float, float]]:
    """Compare the four matrices of every attention layout with what one forward pass of the model computes.

    What a layout says beside its matrices (``scale``, ``causal``, norms) is not compared.

    Args:
        model: any network whose attention is known.
        batch: what it takes, as in :func:`discover_attention`.

    Returns:
        Name → relative errors of the logits x W_q W_kᵀ xᵀ and of the outputs x W_v W_o, over all heads. Layers that do
        not run, or that cannot be followed, are missing.

    Raises:
        StructuredInitError: a layout is not what the model computes; there is no batch, or the model fails on it; no
            attention was seen, or none that could be followed.

    Example:
        >>> check_attention(timm.create_model("vit_tiny_patch16_224"))["blocks.0.attn"]
        (0.0, 0.0)
    """
    weights = Weights(model, batch=batch)
    seen = watched_attention(weights)
    if weights.seen.why_not:
        raise StructuredInitError(weights.seen.why_not)
    errors = {}
    for site in attention_sites(weights, cross=True):
        found = same_attention(site, seen)
        if found is not None and site.how == "watched":
            errors[site.name] = (found.evidence.logits, found.evidence.outputs)
        elif found is not None:
            errors[site.name] = compare_layout(site, found, Weights(model))
    if not errors:
        reasons = "; ".join(dict.fromkeys(f"'{found.name}': {found.reason}" for found in seen if found.reason))
        raise StructuredInitError(f"no attention could be checked: {reasons or 'none was seen in the forward pass'}")
    return errors
