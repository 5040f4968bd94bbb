"""One attention layer of any model, behind one convention.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

from copy import copy
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.layout import AttentionLayout, Matrices, TokenLayout
from structured_init.plan import Weights
from structured_init.sites.caveats import query_key_caveats, value_output_caveats
from structured_init.sites.roles import KEPT, NAMES, Role, held, reconciled, said, shares, take


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
        how: how its layout is known: ``"written"`` for its class, or ``"watched"`` in a forward pass.
        checked: whether its layout was compared with a forward pass and found right; ``False``: it was not compared.
    """

    branch_scale: float | None = None
    how: Literal["written", "watched"] = "written"
    checked: bool = False

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
        self._set("query", value)

    @property
    def key(self) -> Float[Tensor, "kv_heads embed_dim head_dim"]:
        """W_k per head, (Hkv, D, k); in cross-attention, D is the width of the tokens it looks at."""
        return self.layout.key.get(self._weights).mT

    @key.setter
    def key(self, value: Float[Tensor, "kv_heads embed_dim head_dim"]) -> None:
        self._set("key", value)

    @property
    def value(self) -> Float[Tensor, "kv_heads embed_dim value_dim"]:
        """W_v per head, (Hkv, D, kv)."""
        return self.layout.value.get(self._weights).mT

    @value.setter
    def value(self, value: Float[Tensor, "kv_heads embed_dim value_dim"]) -> None:
        self._set("value", value)

    @property
    def output(self) -> Float[Tensor, "heads value_dim out_dim"]:
        """W_o per head, (H, kv, D)."""
        return self.layout.output.get(self._weights)

    @output.setter
    def output(self, value: Float[Tensor, "heads value_dim out_dim"]) -> None:
        self._set("output", value)

    def write_query_key(self, query: Float[Tensor, "heads D k"], key: Float[Tensor, "kv_heads D k"]) -> bool:
        """Write W_q and W_k where their products count, and say whether that could be done.

        Where queries and keys are one parameter, or one of them is something else too, the nearest products are written
        and a note says how near they are. Where they are not near, nothing is written and the report says why.
        """
        return self._write_product(("query", "key"), query, key)

    def write_value_output(
        self, value: Float[Tensor, "kv_heads D kv"], output: Float[Tensor, "heads kv E"], *, together: bool = False
    ) -> bool:
        """Write W_v and W_o in the same way; ``together`` where what counts is the sum of the heads' products."""
        return self._write_product(("value", "output"), value, output, together=together)

    def _write_product(self, matrices: tuple[str, str], left: Tensor, right: Tensor, *, together: bool = False) -> bool:
        weights = self._weights
        first, second = (Role(self.name, self.layout, matrix, together) for matrix in matrices)
        if not shares(weights, first, second):
            self._write(first, left)
            self._write(second, right)
            return True
        new, meeting, kept = reconciled(weights, first, second, (left.double(), right.double()))
        shared = said(weights, *meeting)
        if kept < KEPT:
            why = f"{shared}: the nearest that it can be has a cosine of {kept:.2f} with what is asked for"
            weights.skip(f"{self.name} ({NAMES[first.matrix]}, {NAMES[second.matrix]})", why)
            weights.refused.setdefault(self._by, why)
            if self.name in weights.attention and not weights.assigned.get(self.name):
                weights.attention[self.name] = False
            return False
        for role, value in new:
            self._write(role, value)
        for role in (first, second):
            take(weights, role)
            weights.assign(self.name, role.matrix)
        self.note(f"{shared}: what is written has a cosine of {kept:.2f} with what is asked for")
        return True

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

    def _set(self, matrix: str, value: Tensor) -> None:
        role = Role(self.name, self.layout, matrix)
        if others := held(self._weights, role):
            raise StructuredInitError(
                f"{self._by}: {said(self._weights, role, others[0])}, which was written before and would be undone"
            )
        self._write(role, value)

    def _write(self, role: Role, value: Tensor) -> None:
        projection: Matrices = getattr(role.layout, role.matrix)
        projection.set(self._weights, value if role.matrix == "output" else value.mT, self._by)
        self._weights.assign(role.name, role.matrix)
        take(self._weights, role)

    def __repr__(self) -> str:
        return (
            f"AttentionSite('{self.name}', heads={self.num_heads}, embed_dim={self.embed_dim}, "
            f"head_dim={self.head_dim}, grid={self.grid}, prefix_tokens={self.prefix_tokens})"
        )
