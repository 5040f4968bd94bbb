"""MLP sites: the first layer of every MLP of any model, behind one convention.

Letters: D embed_dim, F hidden width. Row vectors: hidden = x W_1. A gated MLP has two first layers: the gate, which
goes through the activation, and the one that it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.mlp_rule import mlps_by_rule
from structured_init.sites.mlp_unknown import called_mlps, why_none
from structured_init.sites.registry import Registry, what_the_model_has
from structured_init.sites.select import Where, selects
from structured_init.sites.watched import watched_mlps
from structured_init.watch.mlp import FoundMlp

WAY_OUT = "describe it with structured_init.register_mlp"


@dataclass(frozen=True)
class FirstLayer:
    """Where an MLP keeps one matrix W_1: a block of a host's parameter.

    Attributes:
        weight: the host's parameter, (F, D) as ``nn.Linear`` stores it, (F, D, 1, 1) for a 1×1 convolution.
        axis: the axis of ``weight`` along which the hidden units lie; 1 for transformers' ``Conv1D``.
        start: where the block begins on that axis, when gate and values are stored in one parameter.
        size: F; ``None`` for all from ``start`` on.
    """

    weight: nn.Parameter
    axis: int = 0
    start: int = 0
    size: int | None = None

    def block(self, full: Tensor) -> Tensor:
        """Return a view of the full parameter, (F, D, …)."""
        hidden = full.movedim(self.axis, 0)
        return hidden.narrow(0, self.start, hidden.shape[0] - self.start if self.size is None else self.size)


@dataclass(frozen=True)
class MlpLayout:
    """Where one MLP keeps its first layer, and its gate if it has one."""

    first: FirstLayer
    gate: FirstLayer | None = None


Describe = Callable[[Any], MlpLayout]
MLP: Registry[MlpLayout] = Registry()


class MlpSite:
    """One MLP, seen through an overlay.

    Attributes:
        name: the module's name in the model, e.g. ``"blocks.0.mlp"``.
        module: the host's module.
        layout: where it keeps its first layer.
        how: how it is known: ``"written"`` for its class, by ``"rule"``, or ``"watched"``.
        checked: whether it was seen to be an MLP in a run of its module or of the model.
    """

    how: Literal["written", "rule", "watched"] = "written"
    checked: bool = False

    def __init__(self, name: str, module: nn.Module, layout: MlpLayout, weights: Weights) -> None:
        self.name = name
        self.module = module
        self.layout = layout
        self._weights = weights

    @property
    def first(self) -> Float[Tensor, "embed_dim hidden"]:
        """W_1, (D, F); in a gated MLP, that of the values that the gate multiplies."""
        return self._read(self.layout.first)

    @property
    def gate(self) -> Float[Tensor, "embed_dim hidden"] | None:
        """W_1 of the gate, (D, F); ``None`` where the MLP has none."""
        return None if self.layout.gate is None else self._read(self.layout.gate)

    def _read(self, layer: FirstLayer) -> Tensor:
        return layer.block(self._weights.read(layer.weight)).flatten(1).mT.clone()

    def add(self, mean: float, layer: FirstLayer, by: str) -> None:
        """Add a number to every entry of one of the site's first layers."""
        layer.block(self._weights.edit(layer.weight, by)).add_(mean)

    def __repr__(self) -> str:
        return f"MlpSite('{self.name}', gated={self.layout.gate is not None})"


def register_mlp(cls: type[nn.Module] | str) -> Callable[[Describe], Describe]:
    """Make an MLP class known, by decorating the function that says where it keeps its first layer.

    Args:
        cls: the class, or its path ``"package.module.Class"`` so that the package need not be imported.

    Example:
        >>> @register_mlp(MyMlp)
        ... def my_mlp(module):
        ...     return MlpLayout(FirstLayer(module.expand.weight))
    """

    def decorate(describe: Describe) -> Describe:
        MLP.add(cls, describe)
        return describe

    return decorate


def mlp_sites(model: nn.Module | Weights, where: Where = None) -> list[MlpSite]:
    """Find every MLP, in the order of the model.

    MLPs of known classes are found as they are, and others by their structure, which a run of their module alone on
    random tokens confirms (see :mod:`structured_init.sites.mlp_rule`). The whole model is watched in one forward pass
    (see :func:`structured_init.watch.mlp.found_mlps`) where a batch was given, or more of it is called an MLP.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.sites.select.selects`.

    Returns:
        The sites; an empty list where the model has none.
    """
    weights = model if isinstance(model, Weights) else Weights(model)
    modules = dict(named_plain_modules(weights.model))
    sites = mlp_sites_unwatched(weights)
    if weights.batch is not None or unknown_mlps(weights.model, [site.name for site in sites]):
        sites += _found(watched_mlps(weights), sites, weights, modules, "watched")
    place = {id(module): number for number, module in enumerate(modules.values())}
    sites = sorted(sites, key=lambda site: place[id(site.module)])
    return [site for site in sites if selects(where, site.name, site)]


def mlp_sites_unwatched(weights: Weights) -> list[MlpSite]:
    """Find the MLPs that are known without a pass of the whole model: by their class, then by their structure."""
    modules = dict(named_plain_modules(weights.model))
    sites = [
        MlpSite(name, module, describe(module), weights)
        for name, module in modules.items()
        if (describe := MLP.find(module)) is not None
    ]
    return sites + _found(_by_rule(weights, sites), sites, weights, modules, "rule")


def _by_rule(weights: Weights, written: list[MlpSite]) -> list[FoundMlp]:
    """Return the MLPs that their structure suggests beside what layouts were written for; modules are run once."""
    if weights.ruled_mlps is None:
        weights.ruled_mlps = mlps_by_rule(weights.model, [site.name for site in written])
    return weights.ruled_mlps


def _found(
    mlps: Iterable[FoundMlp], known: list[MlpSite], weights: Weights, modules: dict[str, nn.Module], how: str
) -> list[MlpSite]:
    """Return the sites of MLPs that were seen, of those whose first layer is not known otherwise."""
    weights_known = {id(site.layout.first.weight) for site in known}
    sites = []
    for found in mlps:
        if found.first is not None and id(found.first.weight) not in weights_known:
            layers = (
                None if each is None else FirstLayer(each.weight, each.axis, each.start, each.size)
                for each in (found.first, found.gate)
            )
            site = MlpSite(found.name, modules[found.name], MlpLayout(*layers), weights)
            site.how, site.checked = how, True
            sites.append(site)
    return sites


def required_mlp_sites(weights: Weights, where: Where, who: str) -> list[MlpSite]:
    """Return the MLP sites, and raise one line that says what the model has where there is none.

    What is called an MLP and is of a class that nobody described is recorded as skipped.
    """
    everywhere = mlp_sites(weights)
    sites = [site for site in everywhere if selects(where, site.name, site)]
    called = called_mlps(weights.model, MLP, [site.name for site in everywhere])
    if not sites:
        if where is not None and everywhere:
            names = ", ".join(site.name for site in everywhere[:4]) + (", …" if len(everywhere) > 4 else "")
            raise StructuredInitError(f"{who}: where={where!r} selects none of the {len(everywhere)} MLPs ({names})")
        raise StructuredInitError(f"{who} found no MLP that it recognizes; {_instead(called.values(), weights.model)}")
    for name, module in called.items():
        if not callable(where) and selects(where, name, None):
            weights.skip(name, f"{type(module).__name__} {why_none(module) or f'is not known: {WAY_OUT}'}")
    return sites


def _instead(called: Iterable[nn.Module], model: nn.Module) -> str:
    """Say what a model without a known MLP has, and the way out where there is one."""
    reasons = {type(module).__name__: why_none(module) for module in called}
    kinds = ", ".join(sorted(kind for kind, why in reasons.items() if why is None))
    parts = [f"{kind} {why}" for kind, why in sorted(reasons.items()) if why is not None]
    if kinds or not parts:
        parts.append(f"the model has {kinds}: {WAY_OUT}" if kinds else f"{what_the_model_has(model)}: {WAY_OUT}")
    return "; ".join(parts)


def unknown_mlps(model: nn.Module, found: Iterable[str] = ()) -> dict[str, str]:
    """Return name → class of what is called an MLP, may be one by its weights, and is no known one.

    Args:
        model: any model.
        found: names of MLPs that are known otherwise than by their class.
    """
    called = called_mlps(model, MLP, found)
    return {name: type(module).__name__ for name, module in called.items() if why_none(module) is None}
