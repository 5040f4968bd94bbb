"""One forward pass, and the attention map of every layer and head.

Attention is found in two ways in this library, for two ends. Listening (here) needs a module's calls alone and gives
maps; watching (``structured_init.hosts.watching``) follows the weights and gives layouts that can be written to, at 2.4
times the price (5.4 against 2.2 forward passes of ViT-Tiny on two images of 257 tokens, one thread, torch 2.14). Of the
hosts of our contract tests both find the same 25 attention layers, and only listening the 4 state-space layers. So a
capture watches nothing unless linear maps are left that could be attention of a kind that nobody hears.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor, nn, strided
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.analysis.blocks import only_holds
from structured_init.analysis.listener import Adapter, AttentionListener
from structured_init.arguments import check_positive, check_whole
from structured_init.errors import StructuredInitError, nearest
from structured_init.hosts.attention import looks_like_attention, may_attend
from structured_init.hosts.registry import Registry, selects
from structured_init.hosts.watching.discover import watch_model
from structured_init.names import named_plain_modules, within
from structured_init.overlay import Weights
from structured_init.running import (
    answering,
    for_one_pass,
    norms_as_in_training,
    spread,
    undisturbed,
    what_runs,
    without_hooks,
)
from structured_init.storage import refuse_unreadable

Maps = dict[str, Float[Tensor, "batch heads queries keys"]]
MEBIBYTE = 2**20
WAY_OUT = "say how to read them with structured_init.analysis.register_capture"
# Not in structured_init.hosts: a site says where weights are kept, which may be known where the maps cannot be
# listened to, and the other way round.
_ADAPTERS: Registry = Registry()
# What attends beside the modules that were heard: sought once a model, for it takes further passes.
_BESIDE: WeakKeyDictionary[nn.Module, dict[frozenset[str], dict[str, int | None]]] = WeakKeyDictionary()


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

    The model is left as it was: evaluation mode, missing gradients, hooks and random states are undone, fused
    attention stays on, compiled models stay compiled. Autocast that is on applies to the model, never to the maps.
    Batch norms that have seen few batches or none take the statistics of this one, as in training.

    Args:
        model: any network; attention is found by listening (see ``AttentionListener``), and where linear maps are left
            that could be attention, or the number of heads is not said, by watching one more pass over two samples.
        *args: what the model takes; or all of it in one tuple or dictionary, unless ``forward`` requires one argument;
            one argument that is no tensor may also stand in a plain tuple of its own.
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
    by_name = {*kwargs}
    (args, kwargs), cut = cut_samples(spread(model, args, kwargs), max_samples)

    def hear(
        inputs: tuple, attending: Mapping[str, int | None] | None, heads_first: Mapping[str, bool]
    ) -> tuple[_Store, AttentionListener]:
        store = _Store(layers, max_megabytes * MEBIBYTE)
        listener = AttentionListener(model, store.add, _ADAPTERS, store.refuse, attending, heads_first)
        with answering(model, cut=cut), norms_as_in_training(model), undisturbed(model, seed), listener:
            first, named = for_one_pass(inputs)
            try:
                what_runs(model)(*first, **named)
            except NotImplementedError as error:  # a task that computes its loss without a forward()
                raise NoAttentionError(f"no attention map was captured: {error}") from error
            except TypeError as error:
                for name in by_name:
                    if f"forward() got an unexpected keyword argument '{name}'" in str(error):
                        own = nearest(name, ("layers", "max_samples", "max_megabytes", "seed"))
                        why = f"'{name}' is no option of capture_attention, and the model does not take it"
                        raise StructuredInitError(f"{why}: {own}") from error
                raise
        return store, listener

    def listen(attending: Mapping[str, int | None] | None = None) -> _Store:
        store, listener = hear((args, kwargs), attending, {})
        if listener.unclear:  # as many samples as heads: one sample alone shows which axis is its own
            _, alone = hear(first_samples((args, kwargs), 1), attending, {})
            seen = {name: shape for name, shape in listener.unclear.items() if name in alone.shapes}
            heads_first = {name: alone.shapes[name][1] < shape[1] for name, shape in seen.items()}
            store, _ = hear((args, kwargs), attending, heads_first)
        return store

    store, failure = listen(), None
    heard = {name.partition(":")[0] for name in store.seen}
    if not heard:
        attending, failure = _by_watching(model, args, kwargs)
    else:
        attending = _beside(model, frozenset(heard), args, kwargs)
    store = listen(attending) if attending else store
    if not store.seen:
        if store.refused:
            raise NoAttentionError(f"no attention map was captured: {_reasons(store.refused)}; {WAY_OUT}")
        raise failure or _nothing_seen(model)
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
    first = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim > 1), None)
    batches = (1, *first.shape[1:2]) if cut and first is not None else ()  # where tokens come first
    if any(len(each) in batches and len(each) != max_samples == each.shape[-1] for each in store.maps.values()):
        warnings.warn(f"axis 0 seems to be tokens, not samples{cut}", stacklevel=2)
    return store.maps


def register_capture(attention: type[nn.Module] | str) -> Callable[[Adapter], Adapter]:
    """Say how to read the maps of a module that computes attention in a way nobody can listen to.

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
    if layers is None:
        return
    listed = isinstance(layers, Sequence) and not isinstance(layers, str)
    if not listed or not all(isinstance(layer, str | int) for layer in layers):
        raise StructuredInitError(f"{who}: layers is a list of names or numbers, as in ['*.0.attn'], got {layers!r}")
    if not layers:
        raise StructuredInitError(f"{who}: layers is empty and selects nothing; null selects all")


def cut_samples(inputs: tuple, samples: int | None) -> tuple[tuple, str]:
    """Return at most so many samples of a model's arguments, all when None, and a text that says what was left out."""
    few = inputs if samples is None else first_samples(inputs, samples)
    before, after = ([leaf.numel() for leaf in tree_leaves(x) if isinstance(leaf, Tensor)] for x in (inputs, few))
    return few, f"; the first {samples} along axis 0 were taken, max_samples=None gives all" if before != after else ""


def first_samples(inputs: tuple, samples: int, begin: int = 0) -> tuple:
    """Cut every tensor of a model's arguments whose first axis has the batch's length: that of the first tensor.

    Beside one that is sparse or nested, which has no parts, nothing is cut.
    """
    if any(isinstance(leaf, Tensor) and (leaf.layout != strided or leaf.is_nested) for leaf in tree_leaves(inputs)):
        return inputs
    batch = next((leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim), 0)

    def cut(leaf: object) -> object:
        batched = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == batch
        return leaf[begin : begin + samples] if batched else leaf

    return tree_map(cut, inputs)


def _beside(model: nn.Module, heard: frozenset[str], args: tuple, kwargs: dict) -> dict[str, int | None]:
    """Return name → heads of the modules that attend beside those that were heard."""
    if any(isinstance(parameter, FakeTensor) for parameter in model.parameters()):  # no numbers to look at
        return {}
    known = _BESIDE.setdefault(model, {})
    if heard not in known:
        found = _by_watching(model, args, kwargs)[0] if may_attend(Weights(model), heard) else {}
        known[heard] = {n: heads for n, heads in found.items() if not any(within(n, h) or within(h, n) for h in heard)}
    return known[heard]


class _Store:
    """Maps by name under a cap on memory; when it is reached, half of the samples go."""

    def __init__(self, layers: Sequence[str | int] | None, cap: int | float) -> None:
        self.layers, self.cap = layers, cap
        self.maps: Maps = {}
        self.seen: list[str] = []
        self.refused: dict[str, str] = {}
        self.halvings = 0

    def refuse(self, name: str, why: str) -> None:
        """Take note of a layer whose maps are not what they should be."""
        self.refused[name] = why

    def wanted(self, name: str, number: int | None = None) -> bool:
        """Say whether a layer is asked for, by its name or its number."""
        hits = (number == each if isinstance(each, int) else selects(each, name, None) for each in self.layers or ())
        return self.layers is None or any(hits)

    def add(self, name: str, compute: Callable[[int], Tensor], shape: tuple[int, ...]) -> None:
        """Take the maps of one layer, as many samples as there is room for."""
        number, before = len(self.seen), sum(name == seen.partition(":")[0] for seen in self.seen)
        name = f"{name}:{before + 1}" if before else name
        self.seen.append(name)
        if not self.wanted(name, number):
            return
        size = math.prod(shape[1:])
        while (needed := 4 * (sum(x.numel() for x in self.maps.values()) + self._kept(shape[0]) * size)) > self.cap:
            if self._kept(shape[0]) == 1:
                raise StructuredInitError(
                    f"the attention maps of one sample take more than {self.cap / MEBIBYTE:g} MiB "
                    f"({needed / MEBIBYTE:.1f} MiB at '{name}'): choose layers, shorten the input or raise "
                    "max_megabytes"
                )
            self.halvings += 1
            # clone: a slice would keep the whole storage alive.
            self.maps = {n: maps[: max(1, maps.shape[0] // 2)].clone() for n, maps in self.maps.items()}
        self.maps[name] = compute(self._kept(shape[0])).float().cpu()

    def _kept(self, batch: int) -> int:
        return max(1, batch >> self.halvings)


def _by_watching(model: nn.Module, args: tuple, kwargs: dict) -> tuple[dict[str, int | None], NoAttentionError]:
    """Return name → heads of modules whose queries lead to outputs, and what is to be raised where that does not help.

    Where layers of one name have different numbers of heads, theirs is ``None``.
    """
    nothing = _nothing_seen(model, watched=True)
    if (args and kwargs) or any(tensor.is_meta or hasattr(tensor, "full_tensor") for tensor in model.parameters()):
        return {}, nothing  # it cannot be watched, so names alone say whether it attends
    for some in (first_samples((args, kwargs), 2), (args, kwargs)):  # all where a model does not run on two of them
        try:
            with without_hooks(model):
                found, *_ = watch_model(model, some[0] or some[1])
            break
        except StructuredInitError as error:
            failed = NoAttentionError(f"no attention map was captured: {error}; {WAY_OUT}")
    else:
        return {}, failed
    modules, names = dict(named_plain_modules(model)), dict[str, int | None]()
    for name, layout in ((each.name, each.layout) for each in found if each.layout is not None):
        while name and (name not in modules or only_holds(type(modules[name]))):
            name = name.rpartition(".")[0]
        heads = layout.query.heads
        names[name] = heads if names.get(name, heads) == heads else None
    refused = {each.name: each.reason for each in found if each.reason}
    if refused and not names:
        return {}, NoAttentionError(f"no attention map was captured: {_reasons(refused)}; {WAY_OUT}")
    return names, nothing


def _nothing_seen(model: nn.Module, watched: bool = False) -> NoAttentionError:
    """Name what the model has, for the one who expected attention."""
    named = ((name, each) for name, each in named_plain_modules(model) if name)
    attention = [f"{name} ({type(each).__name__})" for name, each in named if looks_like_attention(name, each)]
    if not attention:
        kinds = sorted({type(module).__name__ for module in model.modules() if not list(module.children())})
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
