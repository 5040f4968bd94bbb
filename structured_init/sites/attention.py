"""Attention sites: every attention layer of any model, behind one convention.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.block import is_cross_attention, layer_scale
from structured_init.sites.caveats import query_key_caveats, value_output_caveats
from structured_init.sites.geometry import checked_layout
from structured_init.sites.layout import AttentionLayout, Projection, TokenLayout
from structured_init.sites.position import token_layouts
from structured_init.sites.registry import Registry, what_the_model_has
from structured_init.sites.select import Where, selects
from structured_init.sites.unknown import WAY_OUT, unknown_attention

ATTENTION: Registry[tuple[AttentionLayout, TokenLayout | None]] = Registry()

Describe = Callable[[nn.Module], AttentionLayout]


class AttentionSite:
    """One attention layer, seen through an overlay.

    Reading ``query``, ``key``, ``value`` or ``output`` gives the present value, assigning writes it into the overlay.
    How the host stores them (fused, transposed, with grouped queries) does not show.

    Attributes:
        name: the module's name in the model, e.g. ``"blocks.0.attn"``.
        module: the host's module.
        grid: (rows, columns) of the tokens, or ``None``.
        prefix_tokens: tokens before the grid.
        branch_scale: the mean |LayerScale| on its way into the residual stream; ``None`` where there is none.
    """

    branch_scale: float | None = None

    def __init__(
        self, name: str, module: nn.Module, layout: AttentionLayout, tokens: TokenLayout | None, weights: Weights
    ) -> None:
        self.name = name
        self.module = module
        self.layout = layout
        self.grid = tokens.grid if tokens else None
        self.prefix_tokens = tokens.prefix_tokens if tokens else 0
        self._weights = weights
        self._by = "assignment"

    def by(self, who: str) -> AttentionSite:
        """Return this site under the name of a writer, for the report."""
        site = copy(self)
        site._by = who
        return site

    @property
    def num_heads(self) -> int:
        """H, the number of query heads."""
        return self.layout.query.heads

    @property
    def num_key_value_heads(self) -> int:
        """Hkv; smaller than H under grouped queries."""
        return self.layout.key.heads

    @property
    def cross(self) -> bool:
        """Whether keys and values come from other tokens than queries."""
        return self.layout.cross

    @property
    def head_dim(self) -> int:
        """k, the width of one query or key head."""
        return self.layout.query.head_dim

    @property
    def embed_dim(self) -> int:
        """D, the width of the tokens that come in."""
        return self.layout.query.width

    @property
    def scale(self) -> float:
        """The factor on q·k before the softmax."""
        return self.head_dim**-0.5 if self.layout.scale is None else float(self.layout.scale)

    @property
    def query(self) -> Float[Tensor, "heads embed_dim head_dim"]:
        """W_q per head, (H, D, k)."""
        return self.layout.query.get(self._weights).mT

    @query.setter
    def query(self, value: Float[Tensor, "heads embed_dim head_dim"]) -> None:
        self._set(self.layout.query, value.mT)

    @property
    def key(self) -> Float[Tensor, "kv_heads embed_dim head_dim"]:
        """W_k per head, (Hkv, D, k); in cross-attention, D is the width of the tokens it looks at."""
        return self.layout.key.get(self._weights).mT

    @key.setter
    def key(self, value: Float[Tensor, "kv_heads embed_dim head_dim"]) -> None:
        self._set(self.layout.key, value.mT)

    @property
    def value(self) -> Float[Tensor, "kv_heads embed_dim value_dim"]:
        """W_v per head, (Hkv, D, kv)."""
        return self.layout.value.get(self._weights).mT

    @value.setter
    def value(self, value: Float[Tensor, "kv_heads embed_dim value_dim"]) -> None:
        self._set(self.layout.value, value.mT)

    @property
    def output(self) -> Float[Tensor, "heads value_dim out_dim"]:
        """W_o per head, (H, kv, D)."""
        return self.layout.output.get(self._weights)

    @output.setter
    def output(self, value: Float[Tensor, "heads value_dim out_dim"]) -> None:
        self._set(self.layout.output, value)

    def note(self, what: str) -> None:
        """Record in the report what this host does to an initialization."""
        self._weights.note(self.name, what)

    def note_query_key(self) -> None:
        """Record in the report what this host does to a query–key initialization."""
        for caveat in query_key_caveats(self.layout):
            self.note(caveat)

    def note_value_output(self, *, residual_scale: str = "replace") -> None:
        """Record in the report what this host does to a value–output initialization, and what became of its scale."""
        for caveat in value_output_caveats(self.layout, self.branch_scale, residual_scale):
            self.note(caveat)

    def _set(self, projection: Projection, value: Tensor) -> None:
        projection.set(self._weights, value, self._by)

    def __repr__(self) -> str:
        return (
            f"AttentionSite('{self.name}', heads={self.num_heads}, embed_dim={self.embed_dim}, "
            f"head_dim={self.head_dim}, grid={self.grid}, prefix_tokens={self.prefix_tokens})"
        )


def register_attention(
    cls: type[nn.Module] | str, *, grid: tuple[int, int] | None = None, prefix_tokens: int = 0
) -> Callable[[Describe], Describe]:
    """Make an attention class known, by decorating the function that says where it keeps its matrices.

    Args:
        cls: the class, or its path ``"package.module.Class"`` so that the package need not be imported.
        grid: (rows, columns) of its tokens, where the model around it does not tell.
        prefix_tokens: tokens before the grid.

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
    tokens = TokenLayout(grid, prefix_tokens) if grid is not None or prefix_tokens else None

    def decorate(describe: Describe) -> Describe:
        ATTENTION.add(cls, lambda module: (checked_layout(describe(module), module), tokens))
        return describe

    return decorate


def attention_sites(model: nn.Module | Weights, where: Where = None, *, cross: bool = False) -> list[AttentionSite]:
    """Find every attention layer of a known class, in the order of the model.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.sites.select.selects`.
        cross: take also those whose keys and values come from other tokens than their queries.

    Returns:
        The sites; an empty list where the model has none.
    """
    weights = model if isinstance(model, Weights) else Weights(model)
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
        if layout.cross and not cross:
            continue
        site = AttentionSite(name, module, layout, layout.tokens or _completed(own, around), weights)
        site.branch_scale = layer_scale(block)
        if selects(where, name, site):
            sites.append(site)
    return sites


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
    chosen = attention_sites(weights, where, cross=True)
    sites = [site for site in chosen if cross or not site.cross]
    unknown = {} if callable(where) else unknown_attention(weights.model, ATTENTION)
    unknown = {name: kind for name, kind in unknown.items() if selects(where, name, None)}
    if not sites:
        raise StructuredInitError(_why_none(weights, where, who, chosen, unknown))
    for site in chosen:
        if site not in sites:
            weights.skip(site.name, "cross-attention is left alone unless asked for: cross=True")
    for name, kind in unknown.items():
        weights.skip(name, f"{kind} is not known: {WAY_OUT}")
    weights.sought([site.name for site in sites], [*(site.name for site in chosen), *unknown])
    return sites


def _why_none(weights: Weights, where: Where, who: str, chosen: list[AttentionSite], unknown: dict[str, str]) -> str:
    """Say in one line why no attention layer is left to write to, and the way out."""
    kinds = ", ".join(sorted(set(unknown.values())))
    if chosen:
        beside = f"; the model also has {kinds}: {WAY_OUT}" if kinds else ""
        found = f"{who} found nothing but cross-attention ({_few(chosen)}), which is left alone unless cross=True"
        return found + beside
    if where is not None and (everywhere := attention_sites(weights, cross=True)):
        return f"{who}: where={where!r} selects none of the {len(everywhere)} attention layers ({_few(everywhere)})"
    if kinds := ", ".join(sorted(set(unknown_attention(weights.model, ATTENTION).values()))):
        has = f"the model has {kinds}: {WAY_OUT}"
    else:
        has = what_the_model_has(weights.model)
    return f"{who} found no attention layer that it knows; {has}"


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
