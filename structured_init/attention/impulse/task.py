"""One solution that is asked for: a layer, the positions of its tokens, and where each head should look.

Letters: H heads, N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from structured_init.attention.impulse.basis import Basis, Factors
from structured_init.attention.impulse.inputs import layer_norm
from structured_init.attention.impulse.offsets import Border
from structured_init.attention.position import two_dimensional
from structured_init.errors import StructuredInitError
from structured_init.plan import Weights
from structured_init.sites.attention import AttentionSite
from structured_init.sites.position import PositionSite, position_sites, token_layouts


class GridPositions:
    """The positions of a model or tower; what is derived from them is computed once, for all its layers.

    Attributes:
        site: where they are kept.
        shifts: solutions of the separable solver so far; they depend on nothing else of a layer but their key.
    """

    def __init__(self, site: PositionSite) -> None:
        self.site = site
        self.shifts: dict[tuple, Factors] = {}

    @cached_property
    def value(self) -> Float64[Tensor, "tokens embed_dim"]:
        """The positions as planned so far (N, D)."""
        return self.site.value.double()

    @cached_property
    def basis(self) -> Basis:
        """The decomposition of the layer-normalized positions, as they come to attention where no content is."""
        return Basis.of(layer_norm(self.value))


@dataclass(frozen=True)
class Task:
    """What a solver is given.

    Attributes:
        site: the attention layer.
        positions: those of its tokens, or ``None`` where its model has none.
        offsets: (H, 2), rows and columns from query to target.
        border: what happens to a target outside the grid.
        first: whether this is the model's or tower's first layer.
        draw: gives the generator of a named part.
        weights: the overlay, for solvers that run the model.
        batch: real inputs, where the user gave some.
    """

    site: AttentionSite
    positions: GridPositions | None
    offsets: Int[Tensor, "heads 2"]
    border: Border
    first: bool
    draw: Callable[[str], torch.Generator]
    weights: Weights
    batch: Tensor | None

    @property
    def group(self) -> int:
        """G, how many query heads share a key."""
        return self.site.num_heads // self.site.num_key_value_heads

    @property
    def grid(self) -> tuple[int, int]:
        """(Gy, Gx)."""
        return grid_of(self.site)

    def known_positions(self) -> GridPositions:
        """Return the positions.

        Raises:
            StructuredInitError: there are none.
        """
        if self.positions is None:
            raise StructuredInitError(
                f"Impulse: no position embedding was recognized in the model of '{self.site.name}':"
                " build it with one, describe it with structured_init.register_positions, or use "
                "AdamSolver with pseudo_input 'U', 'G' or 'batch'"
            )
        return self.positions


def grid_of(site: AttentionSite) -> tuple[int, int]:
    """Return a site's grid, or raise one line where it has none."""
    if site.grid is None:
        raise StructuredInitError(f"Impulse: '{site.name}' sees a sequence, which has no rows and columns")
    return site.grid


def check(site: AttentionSite, positions: GridPositions | None, kernel_size: int) -> None:
    """Raise one line where a layer cannot hold an impulse initialization, whatever the solver."""
    rows, columns = grid_of(site)
    if positions is not None and two_dimensional(positions.site) != (rows, columns):
        raise StructuredInitError(
            f"Impulse: the {rows}×{columns} grid of '{site.name}' does not match the positions"
            f" '{positions.site.name}' on {'×'.join(map(str, two_dimensional(positions.site)))}"
        )
    if kernel_size > min(rows, columns):
        raise StructuredInitError(
            f"Impulse: a {kernel_size}×{kernel_size} kernel is larger than the {rows}×{columns} grid of '{site.name}'"
        )


def find_positions(sites: list[AttentionSite], weights: Weights) -> dict[str, GridPositions | None]:
    """Return, by the name of each attention layer, the positions of the innermost module around it that is known."""
    owners = {name: layout.positions for name, layout in token_layouts(weights.model).items()}
    known = {id(site.tensor): GridPositions(site) for site in position_sites(weights)}
    found = {}
    for site in sites:
        around = [name for name in owners if name == "" or site.name.startswith(f"{name}.")]
        found[site.name] = known.get(id(owners[max(around, key=len)])) if around else None
    return found
