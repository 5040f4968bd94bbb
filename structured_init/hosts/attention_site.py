"""One attention layer of any model, behind one convention.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim. Row vectors: q = x W_q.
"""

from __future__ import annotations

import re
from copy import copy
from itertools import dropwhile
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from structured_init.hosts.layout import AttentionLayout, Matrices, TokenLayout, overlap
from structured_init.hosts.shared import NAMES, Role, describe_clash, meeting, other_role, record_role
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import outwards
from structured_init.weights import Weights

HIDDEN_BRANCH = 1e-3  # a LayerScale below this leaves nothing of the branch to see
# gamma_1: BEiT, EVA, CaiT; gamma1: XCiT; lambda_1: transformers' BEiT; layer_scale_parameter, gamma: ConvNeXt
SCALE = re.compile(r"(att\w*_)?(layer_?scale|ls|gamma|lambda)(_?(1|att\w*|parameter))?")
OF_THE_MLP = re.compile(r"\D2$|mlp|ff|feed")
CROSS = re.compile(r"cross_?(\w+_)?att|enc(oder)?_?dec(oder)?_?att")
WHOLE = re.compile(r"att(n|ns|ention|entions)?(_?(layers?|blocks?|modules?))?$")  # all that is in it is attention
BESIDE_SELF = re.compile(r"(encoder|enc|multihead|multi_head|memory|context)_att(n|ention)")


class AttentionSite:
    """One attention layer, seen through an overlay.

    Reading ``query``, ``key``, ``value`` or ``output`` gives the present value, assigning writes it into the overlay.
    How the host stores them (fused, transposed, with grouped queries) does not show.

    Attributes:
        name: the module's name in the model, e.g. ``"blocks.0.attn"``.
        module: the host's module.
        grid: (rows, columns) of the tokens, or ``None``.
        prefix_tokens: tokens before the grid.
        how: how its layout is known: ``"written"`` for its class, or ``"watched"`` in a forward pass.
    """

    how: Literal["written", "watched"] = "written"

    def __init__(
        self, name: str, module: nn.Module, layout: AttentionLayout, tokens: TokenLayout | None, weights: Weights
    ) -> None:
        self.name, self.module, self.layout = name, module, layout
        self.grid = tokens.grid if tokens else None
        self.prefix_tokens = tokens.prefix_tokens if tokens else 0
        self._weights, self._by = weights, "assignment"

    def by(self, who: str) -> AttentionSite:
        """Return this site under the name of a writer, for the report."""
        site = copy(self)
        site._by = who
        return site

    def through(self, weights: Weights) -> AttentionSite:
        """Return this site seen through an overlay of the same model."""
        site = copy(self)
        site._weights = weights
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
        scale = self.layout.scale() if callable(self.layout.scale) else self.layout.scale
        return self.head_dim**-0.5 if scale is None else float(scale)

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

        Where queries and keys are one parameter, or one of them was written as something else before, nothing is
        written and the report says why.
        """
        return self._write_product(("query", "key"), query, key)

    def write_value_output(self, value: Float[Tensor, "kv_heads D kv"], output: Float[Tensor, "heads kv E"]) -> bool:
        """Write W_v and W_o in the same way."""
        return self._write_product(("value", "output"), value, output)

    def _write_product(self, matrices: tuple[str, str], left: Tensor, right: Tensor) -> bool:
        weights = self._weights
        first, second = (Role(self.name, self.layout, matrix) for matrix in matrices)
        shared = meeting(weights, first, second)
        if shared is None:
            self._write(first, left)
            self._write(second, right)
            return True
        why = f"{describe_clash(weights, *shared)}: one matrix cannot be both"
        weights.skip(f"{self.name} ({NAMES[first.matrix]}, {NAMES[second.matrix]})", why)
        weights.refused.setdefault(self._by, why)
        if self.name in weights.attention and self.name not in weights.assigned():
            weights.attention[self.name] = False
        return False

    def note(self, what: str) -> None:
        """Record in the report what this host does to an initialization."""
        self._weights.note(self.name, what)

    def note_query_key(self) -> None:
        """Record in the report what this host does to a query–key initialization."""
        layout = self.layout
        if layout.query_key_norm:
            self.note("the host normalizes queries and keys: the strength of the query–key part has no effect")
        if layout.rope:
            self.note("RoPE turns queries and keys: the query–key product is exact at distance 0 and fades beyond it")
        if layout.mixes_heads:
            self.note("the host mixes its heads: no query–key product is a map of its own")
        if overlap(layout.key, layout.value):
            self.note("keys and values are one parameter: what is written as the keys changes the values")
        if layout.others:
            self.note(f"the host adds or subtracts the maps of other queries and keys, left alone: {layout.others}")

    def note_value_output(self) -> None:
        """Record in the report what this host does to a value–output initialization, and what became of its scale."""
        layout = self.layout
        if layout.value_norm:
            self.note("the host normalizes between values and output: the strength of the values has no effect")
        if layout.between:
            self.note(f"between values and output the host has {layout.between}: their product is no map of its own")
        if (group := layout.output.heads // layout.value.heads) > 1:
            rank = layout.value.heads * layout.value.head_dim
            self.note(f"{group} heads share a value: the rank of the value–output product is at most {rank}")
        if layout.residual_depth:
            drawn = f"the host draws the output projection 1/√{layout.residual_depth} smaller, for its depth"
            self.note(f"{drawn}: what is written is not made smaller")

    def _set(self, matrix: str, value: Tensor) -> None:
        role = Role(self.name, self.layout, matrix)
        if (other := other_role(self._weights, role)) is not None:
            clash = describe_clash(self._weights, role, other)
            raise StructuredInitError(f"{self._by}: {clash}, which was written before and would be undone")
        self._write(role, value)

    def _write(self, role: Role, value: Tensor) -> None:
        projection: Matrices = getattr(role.layout, role.matrix)
        heads, rows, columns = projection.heads, projection.width, projection.head_dim
        expected = (heads, columns, rows) if role.matrix == "output" else (heads, rows, columns)
        if tuple(value.shape) != expected:
            raise StructuredInitError(
                f"{self._by}: {role.matrix} of '{self.name}' has shape {expected}, got {tuple(value.shape)}"
            )
        projection.set(self._weights, value if role.matrix == "output" else value.mT, self._by)
        self._weights.assign(role.name, role.matrix)
        record_role(self._weights, role)
        note_hidden_branch(self._weights, self.name)

    def __repr__(self) -> str:
        return (
            f"AttentionSite('{self.name}', heads={self.num_heads}, embed_dim={self.embed_dim}, "
            f"head_dim={self.head_dim}, grid={self.grid}, prefix_tokens={self.prefix_tokens})"
        )


def is_cross_attention(name: str, block: nn.Module | None) -> bool:
    """Say whether attention looks at other tokens than its own, as far as its name and the block around it tell.

    It does where its name says so (``cross_attn``, ``EncDecAttention``), or that of a list or module around it; where
    it stands beside ``self_attn`` as ``encoder_attn`` or ``multihead_attn``, as in torch's and fairseq's decoders; and
    in a pooling head, where a parameter asks and the tokens answer. One class often serves both ways, so its own name
    says nothing.
    """
    child, *around = (part.lower() for part in reversed(name.split(".")))
    for part in (child, *around):
        if "self" in part and "att" in part:
            return False
        if "covariance" not in part and CROSS.search(part) and (part == child or WHOLE.search(part)):
            return True
    siblings = [] if block is None else [sibling.lower() for sibling, _ in block.named_children()]
    if BESIDE_SELF.fullmatch(child) and any("self" in sibling and "att" in sibling for sibling in siblings):
        return True
    pools = block is not None and "pool" in type(block).__name__.lower()
    return pools and next(block.parameters(recurse=False), None) is not None


def branch_scale(weights: Weights, name: str) -> float | None:
    """Return the mean |γ| of the first LayerScale in a layer or the innermost block around that has any; else ``None``.

    It is told by its class or name, and one named after attention, or after a convolution, counts before others there.
    A mere ``gamma`` beside attention may be that of the MLP alone, and does not count; nor does a whole model's.
    """
    attends = not isinstance(weights.modules.get(name), nn.Linear | _ConvNd)
    for place in outwards(name):
        block = weights.modules.get(place, nn.Identity())
        either = {"gamma"} if place != name and (attends or (not place and "." in name)) else ()
        factors = {key: each for key, each in block._parameters.items() if SCALE.fullmatch(key) and key not in either}
        for key, child in block.named_children():
            if "layerscale" in type(child).__name__.lower() or SCALE.fullmatch(key):
                other = OF_THE_MLP.search(key) or (attends and "conv" in key)
                factors |= {} if other else {key: next(child.parameters(recurse=False), None)}
        own = sorted(factors, key=lambda key: ("att" if attends else "conv") not in key)
        scales = (factors[key] for key in own if factors[key] is not None)
        factor = next((each for each in scales if each.numel() == max(each.shape, default=1)), None)  # no matrix (FiLM)
        if factor is not None:
            return None if factor.is_meta else factor.detach().abs().mean().item()
    return None


def note_hidden_branch(weights: Weights, name: str) -> None:
    """Record in the report that a LayerScale, or a norm that begins at zero, hides what a layer is initialized to."""
    scale = branch_scale(weights, name)
    if scale is not None and scale < HIDDEN_BRANCH:
        weights.note(name, f"LayerScale {scale:.0e} hides the branch: its initialization barely reaches the output")
    around, _, child = name.rpartition(".")
    behind = dropwhile(lambda each: each[0] != child, weights.modules.get(around, nn.Identity()).named_children())
    for norm, module in behind:  # the last one of a residual block: zero_init_last in timm
        if not isinstance(module, _BatchNorm) or module.weight is None:
            continue
        if not any(weights.read(each).any() for each in (module.weight, module.bias) if each is not None):
            weights.note(name, f"'{norm}' begins at zero and hides the branch before it")


def is_causal(site: AttentionSite) -> bool | None:
    """Say whether an attention layer hides the tokens behind each token; ``None`` where nothing tells.

    What its layout says comes first: of attention that ran in a forward pass, that is what its maps show. Then what
    its module says by ``is_causal``, as transformers' attention does.
    """
    if site.layout.causal is not None:
        return site.layout.causal
    said = getattr(getattr(site.module, "self", site.module), "is_causal", None)
    return said if isinstance(said, bool) else None
