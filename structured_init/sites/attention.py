"""Attention sites: every attention layer of any model, behind one convention.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.plan import Weights, named_plain_modules
from structured_init.sites.layout import AttentionLayout, Projection, TokenLayout
from structured_init.sites.position import token_layouts
from structured_init.sites.registry import Registry, what_the_model_has
from structured_init.sites.select import Where, selects

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
        """W_k per head, (Hkv, D, k)."""
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
        """Record in the report what this host does to a start."""
        self._weights.note(self.name, what)

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
        ATTENTION.add(cls, lambda module: (describe(module), tokens))
        return describe

    return decorate


def attention_sites(model: nn.Module | Weights, where: Where = None) -> list[AttentionSite]:
    """Find every attention layer of a known class, in the order of the model.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.sites.select.selects`.

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
        site = AttentionSite(name, module, layout, own or _enclosing(tokens, name), weights)
        site.branch_scale = _layer_scale(modules.get(name.rpartition(".")[0]))
        if selects(where, name, site):
            sites.append(site)
    return sites


def required_attention_sites(weights: Weights, where: Where, who: str) -> list[AttentionSite]:
    """Return the attention sites, and raise one line that says what the model has where there is none."""
    sites = attention_sites(weights, where)
    if sites:
        return sites
    everywhere = attention_sites(weights) if where is not None else []
    if everywhere:
        names = ", ".join(site.name for site in everywhere[:4])
        raise StructuredInitError(
            f"{who}: where={where!r} selects none of the {len(everywhere)} attention layers ({names}, …)"
        )
    raise StructuredInitError(f"{who} found no attention layer that it knows; {_unknown_attention(weights.model)}")


def _unknown_attention(model: nn.Module) -> str:
    """Describe a model in which no known attention was found, and the way out where it has some."""
    unknown = {type(module).__name__ for module in model.modules() if "attention" in type(module).__name__.lower()}
    if unknown:
        return f"the model has {', '.join(sorted(unknown))}: describe it with structured_init.register_attention"
    return what_the_model_has(model)


def _enclosing(tokens: dict[str, TokenLayout], name: str) -> TokenLayout | None:
    """Return the token layout of the innermost module around ``name`` that has one."""
    around = [owner for owner in tokens if owner == "" or name.startswith(f"{owner}.")]
    return tokens[max(around, key=len)] if around else None


def _layer_scale(block: nn.Module | None) -> float | None:
    """Return the mean |γ| of the block's first LayerScale (timm's ``gamma``, transformers' ``lambda1``)."""
    for name, child in block.named_children() if block is not None else ():
        factor = getattr(child, "gamma", getattr(child, "lambda1", None))
        if "layerscale" in type(child).__name__.lower() and isinstance(factor, nn.Parameter) and name.endswith("1"):
            return None if factor.is_meta else factor.detach().abs().mean().item()
    return None
