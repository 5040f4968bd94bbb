"""One forward pass, and the attention map of every layer and head.

Watching (``structured_init.hosts.watching``) finds which products of matrices multiply values with maps, and of which
head each matrix is; a capture takes exactly these maps, from a pass that is seen at the same level.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.hosts.attention import AttentionSite, attention_sites
from structured_init.hosts.known import ATTENTION
from structured_init.hosts.registry import Registry, selects
from structured_init.hosts.suspected_attention import looks_like_attention, may_attend, unknown_attention
from structured_init.hosts.watched import same_attention, watched_attention
from structured_init.hosts.watching.assemble import CHANNELS, NO_SOFTMAX, OVER_QUERIES, PLACES
from structured_init.hosts.watching.evidence import FoundAttention
from structured_init.hosts.watching.mode import ProductName, passing
from structured_init.hosts.watching.records import MapAt
from structured_init.hosts.watching.taps import TapMode
from structured_init.inputs import as_batch, as_inputs, explain_failure, find_runnable, first_samples, for_one_pass
from structured_init.storage import refuse_unreadable
from structured_init.undisturbed import norms_as_in_training, undisturbed
from structured_init.util.arguments import check_positive, check_whole
from structured_init.util.errors import StructuredInitError, nearest
from structured_init.util.names import named_plain_modules, outwards, within
from structured_init.weights import Weights

Maps = dict[str, Float[Tensor, "batch heads queries keys"]]
Adapter = Callable[[nn.Module, tuple, dict, object], Tensor]
MEBIBYTE = 2**20
WAY_OUT = "say how to read them with structured_init.analysis.register_capture"
NO_MAPS = (NO_SOFTMAX, CHANNELS, OVER_QUERIES, PLACES)  # of tokens that look at tokens
# Not in structured_init.hosts: a site says where weights are kept, which may be known where the maps cannot be
# seen, and the other way round.
_ADAPTERS: Registry = Registry()


class NoAttentionError(StructuredInitError):
    """A model ran, and no attention map was seen.

    Attributes:
        absent: whether the model was watched and has nothing that attends.
    """

    def __init__(self, message: str, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.absent)


def capture_attention(
    model: nn.Module,
    *args: object,
    layers: Sequence[str | int] | None = None,
    max_samples: int | None = 8,
    max_megabytes: int | float = 512,
    seed: int = 0,
    **kwargs: object,
) -> Maps:
    """Run ``model(*args, **kwargs)`` once and return the attention map of every layer, computed in float32.

    The model is left as it was: evaluation mode, missing gradients, hooks and random states are undone, compiled
    models stay compiled. Fused attention is off during the pass, and hooks also hear one that finds attention.
    Autocast that is on applies to the model, never to the maps.
    Batch norms that have seen no batch take the statistics of this one, as in training.

    Args:
        model: any network; its attention is found by watching a pass over two samples, but where this library has a
            layout for all of it. Of one that cannot be watched (sharded, or on fake tensors), layers with a written
            layout are captured.
        *args: what the model takes; or all of it in one tuple or dictionary. One argument that is a tuple or dictionary
            itself stands in a tuple of one.
        layers: the layers wanted, by name or pattern (see ``selects``) or number in calling order; all when None.
        max_samples: at most so many samples, the first along axis 0 of every tensor with the batch's length; the
            batch is the first tensor. All when None, 8 unless you say.
        max_megabytes: cap on the maps held, in MiB. Over it the number of samples is halved as often as needed,
            with a warning.
        seed: seed for models that draw at random in evaluation mode.
        **kwargs: what the model takes by name, also beside a dictionary.

    Returns:
        Layer name → maps (batch, heads, queries, keys) on the CPU, in calling order. A layer called again within
        the pass is named ``name:2``, ``name:3``, …

        A layer whose axes cannot be told, or whose maps lie between channels, is left out with a warning.

    Raises:
        NoAttentionError: no map was seen, or none whose axes could be told.
        StructuredInitError: an argument out of range, or that the model does not take; no layer has the name
            asked for; one sample is already over the cap; the model fails, and was given no tensor.

    Example:
        >>> import timm, torch
        >>> from structured_init.analysis import capture_attention
        >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
        >>> maps = capture_attention(model, torch.randn(4, 3, 32, 32))
        >>> {name: tuple(of_layer.shape) for name, of_layer in maps.items()}  # 16 patches and a class token
        {'blocks.0.attn': (4, 3, 17, 17), 'blocks.1.attn': (4, 3, 17, 17)}
    """
    if not isinstance(model, nn.Module):
        raise StructuredInitError(f"capture_attention needs a model, an nn.Module, got {type(model).__name__}")
    refuse_unreadable(model)
    check_layers("capture_attention", layers)
    check_whole("capture_attention", null=True, max_samples=max_samples)
    check_positive("capture_attention", max_megabytes=max_megabytes)
    (args, kwargs), cut = cut_samples(as_inputs(*args, **kwargs), max_samples)
    known = _Known(model, (args, kwargs))
    store = _Store(layers, max_megabytes * MEBIBYTE)
    tap = _Tap(store, known)
    with explain_failure(model, cut=cut), norms_as_in_training(model), undisturbed(model, seed), tap.listening(model):
        first, named = for_one_pass((args, kwargs))
        try:
            find_runnable(model)(*first, **named)
        except NotImplementedError as error:  # a task that computes its loss without a forward()
            raise NoAttentionError(f"no attention map was captured: {error}") from error
    if not store.seen:
        raise known.nothing(model, store.refused)
    if refused := {name: why for name, why in store.refused.items() if store.wanted(name)}:
        warnings.warn(f"no attention map of {_reasons(refused)}", stacklevel=2)
    if not store.maps:
        wanted = ", ".join(str(layer) for layer in layers or [])
        raise StructuredInitError(f"no attention layer matches '{wanted}': {nearest(wanted, store.seen)}")
    if store.halvings:
        warnings.warn(
            f"attention maps of all samples exceed {max_megabytes:g} MiB: 1 sample in {2**store.halvings} is kept "
            "(raise max_megabytes or choose layers)",
            stacklevel=2,
        )
    return store.maps


def register_capture(attention: type[nn.Module] | str) -> Callable[[Adapter], Adapter]:
    """Say how to read the maps of a module that computes attention in a way that nobody can watch.

    Args:
        attention: the class, or its path (``"package.module.Class"``) so that its library is not imported.
            Subclasses are included.

    Returns:
        A decorator for a function (module, args, kwargs, output) → maps (batch, heads, queries, keys), which is
        called after each forward pass of such a module.
    """
    return _ADAPTERS.adding(attention)


def check_layers(who: str, layers: Any) -> None:
    """Refuse layers that are no list of names or numbers, and an empty one; None passes."""
    if layers is not None and (not isinstance(layers, list | tuple) or not layers):
        raise StructuredInitError(f"{who}: layers is a list of names or numbers, as in ['*.0.attn'], got {layers!r}")


def cut_samples(inputs: tuple, samples: int | None) -> tuple[tuple, str]:
    """Return at most so many samples of a model's arguments, all when None, and a text that says what was left out."""
    if samples is None:
        return inputs, ""
    few = first_samples(inputs, samples)
    if tree_map(_shape, few) == tree_map(_shape, inputs):
        return few, ""
    return few, f"; the first {samples} along axis 0 were taken, max_samples=None gives all"


def _shape(leaf: object) -> object:
    return getattr(leaf, "shape", None)


@dataclass
class _Call:
    """One call of a layer: where its maps are computed, and those of them that were taken."""

    name: str
    places: tuple[MapAt, ...]
    taken: list[Tensor] = field(default_factory=list)


class _Known:
    """What is known of a model's attention before the pass that takes its maps.

    Attributes:
        heads: name → heads of the layers with a written layout.
        adapted: name → module whose maps are read by a function that was registered.
        places: product → the map that it takes, and of which call; ``None`` where written layouts are all
            that is known.
        refused: name → why its maps are not those of tokens that look at tokens.
    """

    def __init__(self, model: nn.Module, inputs: tuple) -> None:
        sites = attention_sites(model, cross=True)
        modules = dict(named_plain_modules(model))
        self.heads = {site.name: site.num_heads for site in sites}
        self.adapted = {name: module for name, module in modules.items() if _ADAPTERS.find(module) is not None}
        self.places: dict[ProductName, tuple[MapAt, _Call]] | None = None
        self.refused: dict[str, str] = {}
        self.failure: str | None = None
        names = [*self.heads, *self.adapted]
        unknown = [each for each in unknown_attention(modules) if not self.is_adapted(each)]
        fake = any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
        foreign = any(ATTENTION.foreign(site.module) for site in sites)  # a layout does not say how maps are stored
        if fake or (names and not unknown and not foreign and not may_attend(Weights(model), names)):
            return
        weights = Weights(model, batch=as_batch(model, inputs))
        try:
            found = watched_attention(weights)
        except StructuredInitError as error:
            self.failure = str(error)
            return
        self.failure = weights.seen.why_not
        if self.failure is None:
            self._take(found, attention_sites(weights, cross=True), modules)

    def is_adapted(self, layer: str) -> bool:
        """Say whether the maps of a layer are read by a function that was registered for it, or for what is around."""
        return any(within(layer, name) for name in self.adapted)

    def _take(self, found: list[FoundAttention], sites: list[AttentionSite], modules: dict[str, nn.Module]) -> None:
        self.places = {}
        names = {id(same_attention(site, found)): site.name for site in sites}
        for each in found:
            name = names.get(id(each)) or _layer_around(each.name, modules)
            if self.is_adapted(name):
                continue
            if each.reason in NO_MAPS:
                self.refused[name] = each.reason
                continue
            for places in each.maps:
                call = _Call(name, places)
                self.places |= {place.product: (place, call) for place in places}

    def nothing(self, model: nn.Module, refused: dict[str, str]) -> NoAttentionError:
        """Return the error that says why there are no maps."""
        why = _reasons(self.refused | refused) or self.failure
        if why:
            return NoAttentionError(f"no attention map was captured: {why}; {WAY_OUT}")
        return _nothing_seen(model, watched=self.places is not None)


def _layer_around(name: str, modules: dict[str, nn.Module]) -> str:
    """Return the innermost module that is called attention around one in which maps are computed, or its own name."""
    around = (each for each in outwards(name) if each in modules and looks_like_attention(each, modules[each]))
    return next(around, name)


class _Tap(TapMode):
    """Put the maps of every layer into a store."""

    def __init__(self, store: _Store, known: _Known) -> None:
        super().__init__()
        self.store, self.known = store, known
        self.present: tuple[MapAt, _Call] | None = None
        for name, why in known.refused.items():
            if why != NO_SOFTMAX:
                store.refused[name] = why

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Listen to what runs inside, and read the modules that have an adapter."""
        with ExitStack() as hooks:
            hooks.enter_context(passing(model, self))
            for name, module in self.known.adapted.items():
                hook = partial(self._adapt, name, _ADAPTERS.find(module))
                hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
            yield

    def _adapt(self, name: str, adapter: Adapter, module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        before = self.products.copy()
        devices = [leaf.device.type for leaf in tree_leaves((args, output)) if isinstance(leaf, Tensor)]
        with torch.autocast(next(iter(devices), "cpu"), enabled=False):
            maps = adapter(module, args, kwargs, output)
        self.products = before  # what the adapter computes is no part of the pass
        if maps.ndim != 4:
            self.store.refused[name] = f"its maps {tuple(maps.shape)} are not (batch, heads, queries, keys)"
        else:
            self.store.add(name, maps.float().clone())  # the module may go on with what it returns

    def wants(self, left: Tensor) -> bool | None:
        self.present = self._place(left)
        return self.present and self.present[0].is_left

    def _place(self, left: Tensor) -> tuple[MapAt, _Call] | None:
        """Return which map the present product takes, and of which call; ``None`` where it takes none."""
        if self.known.is_adapted(self.running[-1]):
            return None
        if self.known.places is not None:
            return self.known.places.get(self.product)
        layer = next((name for name in reversed(self.running) if name in self.known.heads), None)
        if layer is None or not self.follows_softmax(left):
            return None
        heads = range(self.known.heads[layer])
        place = MapAt(self.product, True, (*heads, *heads))  # samples come first
        return place, _Call(layer, (place,))

    def take(self, maps: Tensor) -> None:
        place, call = self.present
        self.softmax = None  # it is multiplied with values once
        try:
            call.taken.append(place.arranged(maps))
        except StructuredInitError as error:
            self.store.refused[call.name] = str(error)
            return
        if len(call.taken) == len(call.places):
            self.store.add(call.name, torch.cat(call.taken, 1))
            call.taken.clear()


class _Store:
    """Maps by name under a cap on memory; when it is reached, half of the samples go."""

    def __init__(self, layers: Sequence[str | int] | None, cap: int | float) -> None:
        self.layers, self.cap = layers, cap
        self.maps: Maps = {}
        self.seen: list[str] = []
        self.refused: dict[str, str] = {}
        self.halvings = 0

    def wanted(self, name: str, number: int | None = None) -> bool:
        """Say whether a layer is asked for, by its name or its number."""
        if self.layers is None:
            return True
        patterns = [each for each in self.layers if isinstance(each, str)]
        return number in self.layers or selects(patterns, name, None)

    def add(self, name: str, maps: Float[Tensor, "batch heads queries keys"]) -> None:
        """Take the maps of one layer, as many samples as there is room for; nobody else may write to them."""
        number, before = len(self.seen), sum(name == seen.partition(":")[0] for seen in self.seen)
        if before:
            name = f"{name}:{before + 1}"
        self.seen.append(name)
        if not self.wanted(name, number):
            return
        size = maps[:1].numel()
        while (needed := 4 * (sum(x.numel() for x in self.maps.values()) + self._kept(len(maps)) * size)) > self.cap:
            if self._kept(len(maps)) == 1:
                raise StructuredInitError(
                    f"the attention maps of one sample take more than {self.cap / MEBIBYTE:g} MiB "
                    f"({needed / MEBIBYTE:.1f} MiB at '{name}'): choose layers, shorten the input or raise "
                    "max_megabytes"
                )
            self.halvings += 1
            # clone: a slice would keep the whole storage alive.
            self.maps = {n: maps[: max(1, maps.shape[0] // 2)].clone() for n, maps in self.maps.items()}
        kept = self._kept(len(maps))
        self.maps[name] = (maps if kept == len(maps) else maps[:kept].clone()).cpu()

    def _kept(self, batch: int) -> int:
        return max(1, batch >> self.halvings)


def _nothing_seen(model: nn.Module, watched: bool = False) -> NoAttentionError:
    """Name what the model has, for the one who expected attention."""
    attention = []
    for name, each in named_plain_modules(model):
        if name and looks_like_attention(name, each):
            attention.append(f"{name} ({type(each).__name__})")
    if not attention:
        kinds = sorted({type(module).__name__ for module in model.modules()})
        return NoAttentionError(
            f"no attention map was captured: {type(model).__name__} has no attention module "
            f"(it has {_first_names(kinds)}); if it does attend, {WAY_OUT}",
            absent=watched,
        )
    return NoAttentionError(
        "no attention map was captured: none of these modules calls F.scaled_dot_product_attention or a softmax that "
        f"could be followed: {_first_names(attention)}; {WAY_OUT}"
    )


def _reasons(refused: dict[str, str]) -> str:
    """Name the first layer that was refused for each reason, and how many more there are."""
    first: dict[str, list[str]] = {}
    for name, why in refused.items():
        first.setdefault(why, []).append(name)
    return "; ".join(f"{_first_names(names, 2)}: {why}" for why, names in first.items())


def _first_names(names: Sequence[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f", … ({len(names)} in all)" if len(names) > limit else "")
