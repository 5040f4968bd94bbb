"""Every MLP of a model, by its first layer: of known classes, by structure and by watching; and what may be one.

Letters: D embed_dim, F hidden width. Row vectors: hidden = x W_1. A gated MLP has two first layers: the gate, which
goes through the activation, and the one that it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from structured_init.errors import StructuredInitError, shown
from structured_init.hosts.layout import FirstLayer, MlpLayout
from structured_init.hosts.registry import Registry, Where, first_names, selects, warn_of_idle, what_the_model_has
from structured_init.hosts.watched import GIVE_A_BATCH, watched_attention
from structured_init.hosts.watching.mlps import FoundMlp, mlps_alone
from structured_init.names import named_plain_modules, within
from structured_init.overlay import Weights
from structured_init.running import undisturbed

WAY_OUT = "describe it with structured_init.register_mlp"
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
        self.name, self.module, self.layout, self._weights = name, module, layout, weights

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
    return MLP.adding(cls)


def register_mlps(layers: Mapping[str, str | tuple[str, str]]) -> None:
    """Make classes known whose first layer is a submodule, or two, of values and gate."""

    def describe(module: nn.Module, *, names: Sequence[str]) -> MlpLayout:
        held = [module.get_submodule(name) for name in names]
        return MlpLayout(*(FirstLayer(each.weight, axis=int(type(each).__name__ == "Conv1D")) for each in held))

    for path, names in layers.items():
        register_mlp(path)(partial(describe, names=(names,) if isinstance(names, str) else names))


def halves(weight: nn.Parameter) -> tuple[FirstLayer, FirstLayer]:
    """Return the first and the second half of the hidden units of a fused layer."""
    half = weight.shape[0] // 2
    return FirstLayer(weight, size=half), FirstLayer(weight, start=half, size=half)


def mlp_sites(model: nn.Module | Weights, where: Where = None, *, batch: object = None) -> list[MlpSite]:
    """Find every MLP, in the order of the model.

    MLPs of known classes are found as they are, and others by their structure, which a run of their module alone on
    random tokens confirms (see :func:`mlps_by_rule`). The whole model is watched in one forward pass
    (see :func:`~structured_init.hosts.watching.mlps.found_mlps`) where a batch was given, or more of it is called an
    MLP.

    Args:
        model: a model, to read its present weights, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.hosts.registry.selects`.
        batch: what the model takes, to find MLPs by running the model once. An overlay has its own.
    """
    weights = model if isinstance(model, Weights) else Weights(model, batch=batch)
    sites = mlp_sites_unwatched(weights)
    if weights.batch is not None or unknown_mlps(weights.model, [site.name for site in sites]):
        watched_attention(weights)
        sites += _beside(sites, weights.found.watched_mlps, weights, "watched")
    place = {id(module): number for number, module in enumerate(weights.modules.values())}
    sites = sorted(sites, key=lambda site: place[id(site.module)])
    return [site for site in sites if selects(where, site.name, site)]


def mlp_sites_unwatched(weights: Weights) -> list[MlpSite]:
    """Find the MLPs that are known without a pass of the whole model: by their class, then by their structure."""
    known = ((name, module, MLP.find(module)) for name, module in weights.modules.items())
    sites = [MlpSite(name, module, describe(module), weights) for name, module, describe in known if describe]
    if weights.found.mlps_run_alone is None:
        weights.found.mlps_run_alone = mlps_by_rule(weights.model, [site.name for site in sites])
    return sites + _beside(sites, weights.found.mlps_run_alone, weights, "rule")


def _beside(known: list[MlpSite], mlps: Iterable[FoundMlp], weights: Weights, how: str) -> list[MlpSite]:
    """Return the sites of MLPs that were seen, of those whose first layer is not known otherwise."""
    own, sites = {id(site.layout.first.weight) for site in known}, []
    for found in (each for each in mlps if each.first is not None and id(each.first.weight) not in own):
        site = MlpSite(found.name, weights.modules[found.name], MlpLayout(found.first, found.gate), weights)
        site.how, site.checked = how, True
        sites.append(site)
    return sites


def required_mlp_sites(weights: Weights, where: Where, who: str) -> list[MlpSite]:
    """Return the MLP sites, and raise one line that says what the model has where there is none.

    What is called an MLP and is of a class that nobody described is recorded as skipped.
    """
    everywhere = mlp_sites(weights)
    sites = [site for site in everywhere if selects(where, site.name, site)]
    called = called_mlps(weights.model, [site.name for site in everywhere])
    way_out = WAY_OUT if weights.can_ask or weights.found.ran is not None else f"{GIVE_A_BATCH}, or {WAY_OUT}"
    if not sites:
        if where is not None and everywhere:
            names = f"{len(everywhere)} MLPs ({first_names(everywhere)})"
            raise StructuredInitError(f"{who}: where={shown(where)} selects none of the {names}")
        reasons = {type(module).__name__: why_none(module) for module in called.values()}
        kinds = ", ".join(sorted(kind for kind, why in reasons.items() if why is None))
        has = [f"{kind} {why}" for kind, why in sorted(reasons.items()) if why is not None]
        if kinds or not has:
            has.append(f"{f'the model has {kinds}' if kinds else what_the_model_has(weights.model)}: {way_out}")
        raise StructuredInitError(f"{who} found no MLP that it recognizes; {'; '.join(has)}")
    warn_of_idle(weights, where, [*(site.name for site in everywhere), *called], who, "MLP")
    for name, module in called.items():
        if not callable(where) and selects(where, name, None):
            weights.skip(name, f"{type(module).__name__} {why_none(module) or f'is not known: {way_out}'}")
    return sites


def unknown_mlps(model: nn.Module, found: Iterable[str] = ()) -> dict[str, str]:
    """Return name → class of what is called an MLP, may be one by its weights, and is no known one."""
    called = called_mlps(model, found).items()
    return {name: type(module).__name__ for name, module in called if why_none(module) is None}


# By structure: which modules may be an MLP whatever they are called, and those that prove to be one when run.

MOST = 16  # matrices of a block in which an MLP is looked for
Maps = dict[str, tuple[int, int]]  # name of a parameter → its two axes that are longer than one position


def mlps_by_rule(model: nn.Module, known: Collection[str]) -> list[FoundMlp]:
    """Return the MLPs of a model that their structure suggests and a run of their module alone confirms.

    A candidate is the innermost module that holds a map to F and one back, in a block of a list of blocks that holds
    other weights too. A projector between two models or a head of one layer of its own is in no such block.
    """
    if any(tensor.is_meta or hasattr(tensor, "full_tensor") for tensor in model.parameters()):
        return []
    modules = dict(named_plain_modules(model))
    maps = {name: maps_of(module) for name, module in modules.items()}
    may_be = [name for name in modules if 2 <= len(maps[name]) <= MOST and there_and_back(maps[name])]
    taken, found = list(known), {}
    with undisturbed(model):
        for name in sorted(may_be, key=lambda name: -name.count(".")):  # inner ones first
            overlaps = any(within(name, other) or within(other, name) for other in taken)
            alone = mlps_alone(modules[name]) if not overlaps and in_a_block(name, modules, maps) else []
            taken += [name] if alone else []
            for each in (each for each in alone if each.first is not None):
                full = ".".join(filter(None, (name, each.name)))
                found.setdefault(id(each.first.weight), replace(each, name=full))
    return list(found.values())


def maps_of(module: nn.Module) -> Maps:
    """Return the parameters of a module that may be linear maps of single tokens, and its other weights as (0, 0)."""
    return {
        name: tuple(p.shape[:2]) if p.shape[2:].numel() == 1 else (0, 0)
        for name, p in module.named_parameters()
        if p.ndim > 1
    }


def there_and_back(maps: Maps) -> bool:
    """Say whether two maps may follow each other, D to F or twice that, and F to D, in whatever order of the axes."""
    shapes = [shape for shape in maps.values() if min(shape) > 1]
    pairs = ((one, two) for number, one in enumerate(shapes) for other, two in enumerate(shapes) if other != number)
    return any(
        (one == two[::-1] and (one[0] != one[1] or len(maps) <= 3))
        or (one[0] == 2 * two[1] and one[1] == two[0])
        or (one[1] == 2 * two[0] and one[0] == two[1])
        for one, two in pairs
    )


def in_a_block(name: str, modules: dict[str, nn.Module], maps: dict[str, Maps]) -> bool:
    """Say whether a module is or lies in an element of a list of blocks, which holds more weights than an MLP has."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        block, around = ".".join(parts[:depth]), modules.get(".".join(parts[: depth - 1]))
        own = 3 if block == name else len(maps[name])
        if isinstance(around, nn.ModuleList | nn.Sequential) and len(maps[block]) > own:
            return True
    return False


# By name, its own or that of its class: what is called an MLP and is not known is reported, not passed over.

NAMES = ("mlp", "ffn", "feed_forward", "feedforward")


def called_mlps(model: nn.Module, found: Iterable[str] = ()) -> dict[str, nn.Module]:
    """Return by its name every innermost module that is called an MLP and is, holds and lies in no known one."""
    sites, suspects = list(found), {}
    for name, module in named_plain_modules(model):
        kind = type(module).__name__.lower()
        called = name.rpartition(".")[2] in NAMES or any(word in kind for word in ("mlp", "ffn", "feedforward"))
        if MLP.find(module) is not None:
            sites.append(name)
        elif called and next(module.parameters(), None) is not None:
            suspects[name] = module
    return {
        name: module
        for name, module in suspects.items()
        if not any(within(name, site) or within(site, name) for site in sites)
        and not any(other != name and within(other, name) for other in suspects)
    }


def why_none(module: nn.Module) -> str | None:
    """Say why what is called an MLP cannot be one that an initializer writes to; ``None`` where it may be."""
    matrices = (each for each in module.modules() if not isinstance(each, _ConvNd))
    if any(weight is not None and weight.ndim > 2 for each in matrices for weight in each._parameters.values()):
        return "keeps its experts in weights of three axes"
    return None if there_and_back(maps_of(module)) else "holds no linear map to a hidden width and one back"
