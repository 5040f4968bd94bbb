"""Linear maps that nobody accounts for: where they could be attention, a model is worth a forward pass."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.mlp import mlp_sites_unwatched
from structured_init.sites.mlp_rule import within


def may_attend(weights: Weights, known: Iterable[str]) -> list[str]:
    """Name the modules whose maps, of no known attention and no MLP, could be queries, keys, values and an output.

    That takes two or more inside one module that holds no known attention, which read or write tokens of one width and
    are more than two square matrices of it. A classifier, merged patches or a lone projection are fewer.

    Args:
        weights: the overlay of any model.
        known: plain names of modules that are known attention.
    """
    attending = list(known)
    names, taken = list(attending), set()
    for site in mlp_sites_unwatched(weights):
        own = [p for p in site.module.parameters() if p.ndim > 1]
        if len(own) <= 3:
            names.append(site.name)
        else:  # the layer around it, which may attend too
            first = site.layout.first.weight
            taken |= {id(first)} | {id(p) for p in own if p.shape[:2] == first.shape[:2][::-1]}
            taken |= set() if site.layout.gate is None else {id(site.layout.gate.weight)}
    left: dict[str, list[Tensor]] = {}
    for name, module in named_plain_modules(weights.model):
        if isinstance(module, nn.Embedding) or any(within(name, each) for each in names):
            continue
        own = [p for p in module._parameters.values() if p is not None and p.ndim > 1 and id(p) not in taken]
        maps = [p for p in own if p.shape[2:].numel() == 1 and min(p.shape[:2]) > 1]
        around = name if maps else ""
        while around and not any(within(each, around) for each in attending):  # the module and what is around it
            left.setdefault(around, []).extend(maps)
            around = around.rpartition(".")[0]
    found = [name for name, maps in left.items() if _like_attention(maps)]
    return [name for name in found if not any(within(other, name) and other != name for other in found)]


def _like_attention(maps: list[Tensor]) -> bool:
    """Say whether several of some maps have one width in common, and more numbers than two square matrices of it."""
    widths = {size for weight in maps for size in weight.shape[:2]}
    common = ([weight for weight in maps if width in weight.shape[:2]] for width in widths)
    return any(
        len(touching) > 1 and sum(weight.numel() for weight in touching) > 2 * width**2
        for width, touching in zip(widths, common, strict=True)
    )
