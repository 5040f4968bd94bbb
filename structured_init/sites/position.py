"""Position sites: the positions that a model adds to its tokens, parameter or buffer.

Letters: N grid tokens, D embed_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layout import TokenLayout
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.position_rule import layouts_by_rule
from structured_init.sites.registry import Registry, what_the_model_has
from structured_init.sites.select import Where, selects

TOKENS: Registry[TokenLayout | None] = Registry()
NO_POSITIONS = (
    "the model has no position embedding of a known class: describe it with structured_init.register_positions, or say "
    "positions='keep'"
)

Describe = Callable[[Any], TokenLayout | None]


class PositionSite:
    """The positions of one model or tower, seen through an overlay.

    Attributes:
        name: the parameter's or buffer's name, e.g. ``"pos_embed"``.
        tensor: the host's own parameter or buffer.
        grid: (rows, columns), or ``None`` for a sequence.
    """

    def __init__(self, name: str, layout: TokenLayout, weights: Weights) -> None:
        if layout.positions is None:
            raise ValueError("a position site needs positions")
        self.name = name
        self.tensor: Tensor = layout.positions
        self.grid = layout.grid
        self._first = layout.first
        self._features = layout.features
        self._weights = weights

    @property
    def num_tokens(self) -> int:
        """N, the tokens of the grid; prefix tokens are not counted."""
        return self.tensor.numel() // self.embed_dim - self._first

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold them; a buffer that is computed anew when a model is built is often left out."""
        owner, _, name = self.name.rpartition(".")
        module = dict(named_plain_modules(self._weights.model)).get(owner)
        return module is None or name not in module._non_persistent_buffers_set

    @property
    def embed_dim(self) -> int:
        """D."""
        return self.tensor.shape[self._features]

    @property
    def value(self) -> Float[Tensor, "tokens embed_dim"]:
        """The grid's positions, (N, D); rows of prefix tokens are not among them."""
        return self._rows(self._weights.read(self.tensor)).clone()

    def write(self, value: Float[Tensor, "tokens embed_dim"], by: str) -> None:
        """Write the grid's positions; rows of prefix tokens keep their value."""
        if tuple(value.shape) != (expected := (self.num_tokens, self.embed_dim)):
            raise StructuredInitError(f"'{self.name}' takes (tokens, embed_dim) = {expected}, got {tuple(value.shape)}")
        self._rows(self._weights.edit(self.tensor, by)).copy_(value)

    def _rows(self, full: Tensor) -> Tensor:
        return full.movedim(self._features, -1).view(-1, self.embed_dim)[self._first :]

    def __repr__(self) -> str:
        return f"PositionSite('{self.name}', grid={self.grid}, embed_dim={self.embed_dim})"


def register_positions(cls: type[nn.Module] | str) -> Callable[[Describe], Describe]:
    """Make a model class's tokens known, by decorating the function that returns its ``TokenLayout``.

    The function may return ``None`` for a module whose tokens are those of the model around it.
    """

    def decorate(describe: Describe) -> Describe:
        TOKENS.add(cls, describe)
        return describe

    return decorate


def token_layouts(model: nn.Module) -> dict[str, TokenLayout]:
    """Return the token layouts of a model by the modules' names: of known classes, and of others by rule."""
    modules = dict(named_plain_modules(model))
    found = ((name, module, TOKENS.find(module)) for name, module in modules.items())
    described = {name: describe(module) for name, module, describe in found if describe is not None}
    layouts = {name: layout for name, layout in described.items() if layout is not None}
    return layouts | layouts_by_rule(modules, list(described))


def position_sites(model: nn.Module | Weights, where: Where = None) -> list[PositionSite]:
    """Find the positions of a model, in its order.

    Args:
        model: a model, to read, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.sites.select.selects`.
    """
    weights = model if isinstance(model, Weights) else Weights(model)
    sites = []
    for layout in token_layouts(weights.model).values():
        if layout.positions is None:
            continue
        name = weights.names(layout.positions)[0]
        site = PositionSite(name, layout, weights)
        if selects(where, name, site):
            sites.append(site)
    return sites


def required_position_sites(weights: Weights, where: Where, who: str) -> list[PositionSite]:
    """Return the position sites, and raise one line that says what the model has where there is none."""
    sites = position_sites(weights, where)
    if sites:
        return sites
    if everywhere := ", ".join(site.name for site in position_sites(weights)):
        raise StructuredInitError(f"{who}: where={where!r} selects none of the model's positions ({everywhere})")
    if token_layouts(weights.model):
        raise StructuredInitError(f"{who} found no positions: the model was built without any")
    raise StructuredInitError(
        f"{who} found no position embedding that it recognizes; {what_the_model_has(weights.model)}:"
        " describe the model with structured_init.register_positions"
    )
