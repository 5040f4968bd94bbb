"""MLPs by their structure: which modules may be one whatever they are called, and those that prove to be when run.

Letters: D embed_dim, F hidden width.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from structured_init.names import named_plain_modules
from structured_init.undisturbed import undisturbed
from structured_init.watch.alone import mlps_alone
from structured_init.watch.mlp import FoundMlp

MOST = 16  # matrices of a block in which an MLP is looked for
Maps = dict[str, tuple[int, int]]  # name of a parameter → its two axes that are longer than one position


def mlps_by_rule(model: nn.Module, known: Collection[str]) -> list[FoundMlp]:
    """Return the MLPs of a model that their structure suggests and a run of their module alone confirms.

    A candidate is the innermost module that holds a map to F and one back, in a block of a list of blocks that holds
    other weights too. A projector between two models or a head of one layer of its own is in no such block.

    Args:
        model: any model whose parameters have memory of their own.
        known: plain names of modules that are known MLPs.
    """
    if any(tensor.is_meta or hasattr(tensor, "full_tensor") for tensor in model.parameters()):
        return []
    modules = dict(named_plain_modules(model))
    maps = {name: maps_of(module) for name, module in modules.items()}
    may_be = [name for name in modules if 2 <= len(maps[name]) <= MOST and there_and_back(maps[name])]
    taken, found = list(known), {}
    with undisturbed(model):
        for name in sorted(may_be, key=lambda name: -name.count(".")):  # inner ones first
            if any(within(name, other) or within(other, name) for other in taken) or not in_a_block(
                name, modules, maps
            ):
                continue
            if alone := mlps_alone(modules[name]):
                taken.append(name)
            for each in alone:
                if each.first is not None:
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


def within(inner: str, outer: str) -> bool:
    """Say whether a module is another one or lies in it."""
    return inner == outer or outer == "" or inner.startswith(f"{outer}.")
