"""State-space sites: every selective state-space layer of any model, behind one convention.

Letters: D embed_dim, W width of what the projections read, N state_dim, H heads, P head_dim, G groups, K taps.
Row vectors: b = u W_B. In Mamba-1 every inner channel is a head of width 1, all in one group, and each of its N states
has a decay of its own; W is the inner width. In Mamba-2 a head of width P has one decay, and W is D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from structured_init.hosts.layout import Projection, StridedProjection, outside, overlap, projection_bias
from structured_init.hosts.registry import Registry, Where, first_names, selects, warn_of_idle, what_the_model_has
from structured_init.inputs import run_with
from structured_init.util.errors import StructuredInitError, shown
from structured_init.weights import Weights

WAY_OUT = "describe it with structured_init.register_state_space"


class Selection(NamedTuple):
    """What a layer's scan is given, for one batch of inputs.

    Attributes:
        values: x, (batch, tokens, heads, head_dim).
        step: Δ after softplus, (batch, tokens, heads).
        B: (batch, tokens, groups, state_dim).
        C: (batch, tokens, groups, state_dim).
    """

    values: Tensor
    step: Tensor
    B: Tensor
    C: Tensor


@dataclass(frozen=True)
class StateSpaceLayout:
    """Where one layer keeps its parameters.

    Attributes:
        A_log: log(−A), (H, N) or, with one decay per head, (H,).
        dt: W_Δ as blocks of H rows in sum; in Mamba-1 the second of its two factors.
        dt_bias: b_Δ, (H,).
        B: W_B, G blocks of N rows.
        C: W_C, G blocks of N rows.
        conv_weight: the short causal convolution, (channels, 1, K); its last tap looks at the token itself. ``None``
            where there is none.
        conv_bias: (channels,), or ``None``.
        D: the skip from the scan's input to its output, (H,) or (H·P,); ``None`` where the host has none.
        head_dim: P.
        dt_limit: the host cuts Δ to this interval.
        select: computes what the scan is given from the layer's input (batch, tokens, D); ``None`` where the implicit
            attention and the scale of the scan are not to be read.
        embed_dim: D, for ``select``; ``None`` where the scale of the scan is not to be read.
        normalized: the host normalizes the scan's output, so its scale does not reach the residual stream.
        match_norm: the host normalizes b and c, so the scale of W_B and W_C has no effect.
        delta: the scan is a delta rule, linear attention that corrects what is stored under a key: b is the key, c the
            query, and a rate of its own says how much is written, so Δ sets the decay alone.
    """

    A_log: nn.Parameter
    dt: Projection | StridedProjection
    dt_bias: nn.Parameter
    B: Projection
    C: Projection
    conv_weight: nn.Parameter | None
    conv_bias: nn.Parameter | None
    D: nn.Parameter | None
    head_dim: int = 1
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    select: Callable[[Tensor], Selection] | None = None
    embed_dim: int | None = None
    normalized: bool = False
    match_norm: bool = False
    delta: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no tensor, and blocks that a parameter does not hold or that lie over one another."""
        for name in ("A_log", "dt_bias"):
            if not isinstance(value := getattr(self, name), Tensor):
                raise StructuredInitError(
                    f"StateSpaceLayout: {name} is a parameter of the layer, got {value!r}; a gate that decays"
                    " otherwise, such as by a sigmoid, has no layout: write it with an initializer of your own"
                )
        for name in ("dt", "B", "C"):
            if problem := outside(getattr(self, name)):
                raise StructuredInitError(f"StateSpaceLayout: {name} {problem}")
        for one, other in combinations(("dt", "B", "C"), 2):
            if overlap(getattr(self, one), getattr(self, other)):
                raise StructuredInitError(f"StateSpaceLayout: {one} and {other} have entries of one weight in common")


Describe = Callable[[Any], StateSpaceLayout]
STATE_SPACE: Registry[StateSpaceLayout] = Registry()


class StateSpaceSite:
    """One state-space layer, seen through an overlay: reading gives the present value, assigning writes it.

    Attributes:
        name: the module's name in the model, e.g. ``"backbone.layers.0.mixer"``.
        module: the host's module.
        layout: where it keeps its parameters.
    """

    def __init__(self, name: str, module: nn.Module, layout: StateSpaceLayout, weights: Weights) -> None:
        self.name, self.module, self.layout = name, module, layout
        self._weights, self._by = weights, "assignment"

    def by(self, who: str) -> StateSpaceSite:
        """Return this site under the name of a writer, for the report."""
        site = copy(self)
        site._by = who
        return site

    @property
    def num_heads(self) -> int:
        """H; in Mamba-1, the inner channels."""
        return self.layout.A_log.shape[0]

    @property
    def num_groups(self) -> int:
        """G: heads of a group share B and C."""
        return self.layout.B.heads

    @property
    def state_dim(self) -> int:
        """N, the states of one channel."""
        return self.layout.B.head_dim

    @property
    def width(self) -> int:
        """W, the width of what B and C are projected from."""
        return self.layout.B.width

    @property
    def A_log(self) -> Float[Tensor, "heads decays"]:
        """log(−A), (H, N) in Mamba-1 and (H, 1) in Mamba-2."""
        return self._weights.read(self.layout.A_log).reshape(self.num_heads, -1).clone()

    @A_log.setter
    def A_log(self, value: Float[Tensor, "heads decays"]) -> None:
        self._write("A_log", value)

    @property
    def dt_weight(self) -> Float[Tensor, "rank heads"]:
        """W_Δ, (D, H); in Mamba-1 (rank, H), the factor that maps the low-rank projection to the channels."""
        return self.layout.dt.get(self._weights).flatten(0, 1).mT

    @dt_weight.setter
    def dt_weight(self, value: Float[Tensor, "rank heads"]) -> None:
        dt = self.layout.dt
        self._weights.assign(self.name, "dt_weight")
        self.layout.dt.set(self._weights, value.mT.unflatten(0, (dt.heads, dt.head_dim)), self._by)

    @property
    def dt_bias(self) -> Float[Tensor, " heads"]:
        """b_Δ: Δ = softplus(u W_Δ + b_Δ), with what a bias of the linear layer of W_Δ adds to the layout's."""
        return self._weights.read(self.layout.dt_bias) + self._added_to_step()

    @dt_bias.setter
    def dt_bias(self, value: Float[Tensor, " heads"]) -> None:
        self._write("dt_bias", value - self._added_to_step())

    def _added_to_step(self) -> Tensor | float:
        bias = projection_bias(self.module, self.layout.dt)
        if bias is None or bias.tensors[0] is self.layout.dt_bias:
            return 0.0
        return bias.get(self._weights).flatten()

    @property
    def B(self) -> Float[Tensor, "groups width state_dim"]:
        """W_B per group, (G, W, N)."""
        return self.layout.B.get(self._weights).mT

    @B.setter
    def B(self, value: Float[Tensor, "groups width state_dim"]) -> None:
        self._weights.assign(self.name, "B")
        self.layout.B.set(self._weights, value.mT, self._by)

    @property
    def C(self) -> Float[Tensor, "groups width state_dim"]:
        """W_C per group, (G, W, N)."""
        return self.layout.C.get(self._weights).mT

    @C.setter
    def C(self, value: Float[Tensor, "groups width state_dim"]) -> None:
        self._weights.assign(self.name, "C")
        self.layout.C.set(self._weights, value.mT, self._by)

    @property
    def conv_weight(self) -> Float[Tensor, "channels taps"] | None:
        """The short convolution, (channels, K), the oldest token first; ``None`` where there is none."""
        weight = self.layout.conv_weight
        return None if weight is None else self._weights.read(weight)[:, 0].clone()

    @conv_weight.setter
    def conv_weight(self, value: Float[Tensor, "channels taps"]) -> None:
        self._write("conv_weight", value)

    @property
    def conv_bias(self) -> Float[Tensor, " channels"] | None:
        """The short convolution's bias; ``None`` where the host has none."""
        return None if self.layout.conv_bias is None else self._weights.read(self.layout.conv_bias).clone()

    @conv_bias.setter
    def conv_bias(self, value: Float[Tensor, " channels"]) -> None:
        self._write("conv_bias", value)

    @property
    def D(self) -> Float[Tensor, " skips"] | None:
        """The skip from the scan's input to its output, per head or per channel; ``None`` where the host has none."""
        return None if self.layout.D is None else self._weights.read(self.layout.D).clone()

    @D.setter
    def D(self, value: Float[Tensor, " skips"]) -> None:
        self._write("D", value)

    @property
    def step(self) -> Float[Tensor, " heads"]:
        """Δ of every head for an input that moves it nowhere: softplus(b_Δ), cut as the host cuts it."""
        return F.softplus(self.dt_bias.double()).clamp(*self.layout.dt_limit)

    @property
    def half_life(self) -> Float[Tensor, "heads decays"]:
        """Tokens after which half of a state is left, for such an input: ln 2 / (Δ |A|), with A = −exp(A_log)."""
        return math.log(2) / (self.step[:, None] * self.A_log.double().exp())

    def selection(self, hidden: Float[Tensor, "batch tokens embed_dim"]) -> Selection | None:
        """Return what the scan is given for some inputs, on the CPU; ``None`` where the layout does not say."""
        if self.layout.select is None:
            return None
        tensors = (*self.module.parameters(), *self.module.buffers())
        present = {id(tensor): self._weights.read(tensor) for tensor in tensors}
        inputs = hidden.to("cpu", self._weights.read(self.layout.B.weight).dtype)
        with torch.no_grad():
            return run_with(_Select(self.module, self.layout.select), present, ((inputs,), {}))

    def check(self) -> None:
        """Refuse a layout whose blocks are not what its ``select`` reads: written, each may change its own part alone.

        The model is not touched, and what else is planned does not count. Without ``select`` or ``embed_dim`` nothing
        is known to compare with.
        """
        if self.layout.select is None or self.layout.embed_dim is None:
            return
        fresh = partial(StateSpaceSite, self.name, self.module, self.layout)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(1, 8, self.layout.embed_dim, generator=generator)
        before = fresh(Weights(self.module)).selection(hidden)
        for block, part in {"B": "B", "C": "C", "dt_weight": "step", "dt_bias": "step"}.items():
            own = fresh(Weights(self.module))
            value = getattr(own, block)
            setattr(own, block, value + torch.randn(value.shape, generator=generator))
            pairs = zip(Selection._fields, before, own.selection(hidden), strict=True)
            changed = [name for name, one, other in pairs if not one.equal(other)]
            if changed != [part]:
                raise StructuredInitError(
                    f"the layout of '{self.name}' ({type(self.module).__name__}) is not what its select reads: other "
                    f"weights as {block} change {' and '.join(changed) or 'nothing'}, and should change {part}"
                )

    def note(self, what: str) -> None:
        """Record in the report what this host does to an initialization."""
        self._weights.note(self.name, what)

    def warn(self, what: str) -> None:
        """Record in the report what the user should look at."""
        self._weights.warn(f"'{self.name}': {what}")

    def _write(self, what: str, value: Tensor) -> None:
        tensor, present = getattr(self.layout, what), getattr(self, what)
        if tensor is None:
            raise StructuredInitError(f"'{self.name}' has no {what}")
        if value.shape != present.shape:
            expected, given = tuple(present.shape), tuple(value.shape)
            raise StructuredInitError(f"'{self.name}' takes {what} of shape {expected}, got {given}")
        self._weights.write(tensor, value.reshape(tensor.shape), self._by)

    def __repr__(self) -> str:
        return (
            f"StateSpaceSite('{self.name}', heads={self.num_heads}, head_dim={self.layout.head_dim}, "
            f"state_dim={self.state_dim}, groups={self.num_groups})"
        )


class _Select(nn.Module):
    """A layer whose forward pass is its selection, so that it can be computed with the overlay's values."""

    def __init__(self, module: nn.Module, select: Callable[[Tensor], Selection]) -> None:
        super().__init__()
        self.module = module
        self.select = select

    def forward(self, hidden: Tensor) -> Selection:
        return self.select(hidden)


def register_state_space(cls: type[nn.Module] | str) -> Callable[[Describe], Describe]:
    """Make a state-space class known, by decorating the function that returns its ``StateSpaceLayout``.

    The class may be given by its path, ``"package.module.Class"``, so that the package need not be imported.
    """
    return STATE_SPACE.adding(cls)


def state_space_sites(model: nn.Module | Weights, where: Where = None) -> list[StateSpaceSite]:
    """Find every state-space layer of a known class, in the order of the model.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.hosts.registry.selects`.
    """
    weights = model if isinstance(model, Weights) else Weights(model)
    known = ((name, module, STATE_SPACE.find(module)) for name, module in weights.modules.items())
    sites = [StateSpaceSite(name, module, describe(module), weights) for name, module, describe in known if describe]
    return [site for site in sites if selects(where, site.name, site)]


# Which state-space layers of a model are meant, and one line that says what it has where there is none.


def required_state_space_sites(
    weights: Weights, where: Where, layers: list[int] | None, who: str
) -> list[StateSpaceSite]:
    """Return the chosen sites, and raise one line that says what the model has where there is none.

    ``layers`` are numbers among the model's state-space layers, from 0; negative from the end.
    """
    everywhere = state_space_sites(weights)
    if not everywhere:
        has = what_the_model_has(weights.model)
        raise StructuredInitError(f"{who} found no state-space layer that it recognizes; {has}: {WAY_OUT}")
    count = len(everywhere)
    numbered = dict(zip(range(-count, count), 2 * everywhere, strict=True))
    if wrong := sorted(set(layers or ()) - numbered.keys()):
        raise StructuredInitError(
            f"{who}: layers={layers} names layer {wrong[0]}, but the model's {count} state-space layers are numbered "
            f"0 to {count - 1}"
        )
    chosen = everywhere if layers is None else list(dict.fromkeys(numbered[layer] for layer in layers))
    sites = [site for site in chosen if selects(where, site.name, site)]
    if not sites:
        names = f"{len(chosen)} state-space layers ({first_names(chosen)})"
        raise StructuredInitError(f"{who}: where={shown(where)} selects none of the {names}")
    unknown = unknown_state_spaces(weights.modules)
    warn_of_idle(weights, where, [*(site.name for site in everywhere), *unknown], who, "state-space layer")
    for site in {type(each.module): each for each in sites}.values():
        site.check()
    for name, kind in unknown.items():
        if not callable(where) and selects(where, name, None):
            weights.skip(name, f"{kind} is not known: {WAY_OUT}")
    return sites


def unknown_state_spaces(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return name → class of what keeps an ``A_log``, as selective state-space layers do, and is of no known class."""
    return {
        name: type(module).__name__
        for name, module in modules.items()
        if STATE_SPACE.find(module) is None and "A_log" in module._parameters
    }
