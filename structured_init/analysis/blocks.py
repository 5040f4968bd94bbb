"""Which blocks a network is stacked from, found without knowing the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import chain

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_name

STAGE_SHARE = 0.8  # of a stage's parameters lie in its blocks; the heads of an attention block hold less
SIDE_SHARE = 0.05  # what is repeated but holds less than this of the largest kind is a stem or a side branch

Named = list[tuple[str, nn.Module]]
Kind = Callable[[nn.Module], bool]


def repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks a network is stacked from, by name, in the order in which they are registered.

    A block is a module of a class that occurs at least twice in lists: ``nn.ModuleList``, ``nn.Sequential``, an
    ``nn.ModuleDict`` that stands in a list, or names in one that have numbers. A list of stages is replaced by the
    blocks of all of its stages: those of ConvNeXt, Swin or ResNet come out as the flat list of a vision transformer
    does. Blocks are modules with children; only a network that repeats none of these (a plain stack of ``nn.Linear``)
    gives its single layers. A list or dictionary without a forward pass is no block: it is never called. Nor are
    experts, known by the name of their list, which run beside one another.

    Raises:
        StructuredInitError: the model repeats nothing.
    """
    if found := blocks_of(model):
        return found
    raise StructuredInitError(f"{type(model).__name__} has no list of equal blocks to look at")


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the same; nothing where the model repeats nothing."""
    found = _repeated(model, is_composite) or _repeated(model, _is_layer)
    return {plain_name(name, model): module for name, module in found}


def _repeated(model: nn.Module, is_right: Kind) -> Named:
    """Return the blocks of a kind, each once; nothing where there is one alone."""
    counts: Counter[type] = Counter()
    for name, module in model.named_modules():
        counts.update(class_of(child) for _, child in _listed(name, module, is_right))
    repeated = {cls for cls, count in counts.items() if count >= 2 and not only_holds(cls)}
    names: dict[nn.Module, str] = {}
    for name, module in _blocks("", model, lambda child: class_of(child) in repeated and is_right(child)):
        names.setdefault(module, name)
    found = _without_sides([(name, module) for module, name in names.items()])
    return found if len(found) >= 2 else []


def _blocks(name: str, module: nn.Module, is_right: Kind) -> Named:
    """Return the outermost listed blocks below a module, in order, or where these are stages the blocks of those."""
    listed = dict(_listed(name, module, is_right))
    inner = {path: _blocks(path, child, is_right) for path, child in _paths(name, module)}
    # Stages: listed modules that repeat blocks of their own, which hold nearly all of their parameters.
    blocks = list(chain.from_iterable(map(inner.get, listed)))
    kinds = sum(len({class_of(block) for _, block in inner[path]}) for path in listed)
    stages = len(blocks) > kinds and _size(blocks) >= STAGE_SHARE * _size([*listed.items()])
    found: Named = []
    for path, child in _paths(name, module):
        found += inner[path] if stages or path not in listed else [(path, child)]
    return found


def _listed(name: str, module: nn.Module, is_right: Kind) -> Named:
    return [(path, child) for path, child in _paths(name, module) if _is_listed(module, path) and is_right(child)]


def _paths(name: str, module: nn.Module) -> Named:
    return [(f"{name}.{key}".lstrip("."), child) for key, child in module.named_children()]


def _is_listed(parent: nn.Module, path: str) -> bool:
    """Say whether what has this path stands in a list, or in a dictionary with numbers in its name or in its list's."""
    if "experts." in path:  # they run beside one another: their list is no depth
        return False
    # Without a number, a name may be that of another part, such as an encoder and a decoder.
    numbered = isinstance(parent, nn.ModuleDict) and re.search(r"\d[^.]*$|\b\d+\.[^.]+$", path)
    return isinstance(parent, nn.ModuleList | nn.Sequential) or bool(numbered)


def only_holds(cls: type) -> bool:
    """Say whether modules of a class are lists or dictionaries without a forward pass, so never what is called."""
    holders = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    return issubclass(cls, holders) and cls.forward is nn.Module.forward


def is_composite(module: nn.Module) -> bool:
    """Say whether a module has parameters, and parts beside what computes a weight of its own."""
    return bool(module._modules.keys() - {"parametrizations"}) and _has_parameters(module)


def _is_layer(module: nn.Module) -> bool:
    return not is_composite(module) and _has_parameters(module)


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _without_sides(blocks: Named) -> Named:
    """Leave out classes that hold next to none of the parameters."""
    sizes: Counter[type] = Counter()
    for name, module in blocks:
        sizes[class_of(module)] += _size([(name, module)])
    largest = max(sizes.values(), default=0)
    return [(name, module) for name, module in blocks if sizes[class_of(module)] >= SIDE_SHARE * largest]


def _size(modules: Named) -> int:
    return sum(parameter.numel() for _, module in modules for parameter in module.parameters())
