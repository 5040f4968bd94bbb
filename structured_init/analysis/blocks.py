"""Which blocks a network is stacked from, found without knowing the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_name

STAGE_SHARE = 0.8  # of a stage's parameters lie in its blocks; the heads of an attention block hold less
SIDE_SHARE = 0.05  # what is repeated but holds less than this of the largest kind is a stem or a side branch

Named = list[tuple[str, nn.Module]]
Kind = Callable[[nn.Module, str, nn.Module], bool]  # of a module, the path of what stands in it, and that


def repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks a network is stacked from, by name, in the order in which they are registered.

    A block is a module of a class that occurs at least twice in lists (``nn.ModuleList``, ``nn.Sequential``), or in
    dictionaries (``nn.ModuleDict``) that stand in a list. A list of stages is replaced by the blocks of all of its
    stages: those of ConvNeXt, Swin or ResNet come out as the flat list of a vision transformer does. Blocks are modules
    with children; only a network that repeats none of these (a plain stack of ``nn.Linear``) gives its single layers.
    Other blocks in an ``nn.ModuleDict`` whose names there have numbers are the blocks where they hold more parameters
    than what lists repeat. A list or dictionary without a forward pass is no block: it is never called. Nor are
    experts, known by the name of their list, which run beside one another.

    Raises:
        StructuredInitError: the model repeats nothing.
    """
    if found := blocks_of(model):
        return found
    raise StructuredInitError(f"{type(model).__name__} has no list of equal blocks to look at")


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the same; nothing where the model repeats nothing."""
    listed = _repeated(model, _in_list) or _repeated(model, _layer)
    found = max(listed, _repeated(model, _in_dictionary), key=_size)
    return {plain_name(name, model): module for name, module in found}


def _repeated(model: nn.Module, kind: Kind) -> Named:
    """Return the blocks of a kind; nothing where there is one alone."""
    counts = Counter(class_of(child) for at in model.named_modules() for _, child in _listed(*at, kind))
    repeated = tuple(cls for cls, count in counts.items() if count >= 2 and not only_holds(cls))
    found = _blocks("", model, lambda parent, path, child: class_of(child) in repeated and kind(parent, path, child))
    found = _without_sides(list({id(module): (name, module) for name, module in reversed(found)}.values())[::-1])
    return found if len(found) >= 2 else []


def _blocks(name: str, module: nn.Module, kind: Kind) -> Named:
    """Return the outermost listed blocks below a module, in order, or where these are stages the blocks of those."""
    listed = _listed(name, module, kind)
    inner = {path: _blocks(path, block, kind) for path, block in listed}
    # Stages: listed modules that repeat blocks of their own, which hold nearly all of their parameters.
    blocks = [block for path, _ in listed for block in inner[path]]
    kinds = sum(len({class_of(block) for _, block in inner[path]}) for path, _ in listed)
    if len(blocks) > kinds and _size(blocks) >= STAGE_SHARE * _size(listed):
        listed = []
    direct = dict(listed)
    found: Named = []
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}".lstrip(".")
        found += [(path, child)] if path in direct else inner[path] if path in inner else _blocks(path, child, kind)
    return found


def _listed(name: str, module: nn.Module, kind: Kind) -> Named:
    paths = [(f"{name}.{key}".lstrip("."), child) for key, child in module.named_children()]
    return [(path, child) for path, child in paths if kind(module, path, child)]


def only_holds(cls: type) -> bool:
    """Say whether modules of a class are lists or dictionaries without a forward pass, so never what is called."""
    holders = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    return issubclass(cls, holders) and cls.forward is nn.Module.forward


def is_composite(module: nn.Module) -> bool:
    """Say whether a module has parameters, and parts beside what computes a weight of its own."""
    parts = any(name != "parametrizations" for name, _ in module.named_children())
    return parts and any(True for _ in module.parameters())


def _in_list(parent: nn.Module, path: str, child: nn.Module) -> bool:
    return _is_list(parent, path) and is_composite(child)


def _in_dictionary(parent: nn.Module, path: str, child: nn.Module) -> bool:
    # Without a number, a name may be that of another part, such as an encoder and a decoder.
    return isinstance(parent, nn.ModuleDict) and is_composite(child) and bool(re.search(r"\d[^.]*$", path))


def _layer(parent: nn.Module, path: str, child: nn.Module) -> bool:
    own = not is_composite(child) and any(True for _ in child.parameters())
    return own and _is_list(parent, path) and "experts." not in path


def _is_list(parent: nn.Module, path: str) -> bool:
    """Say whether what has this path stands in a list, or in a dictionary in one, whose name is a number.

    Experts run beside one another: their list is no depth.
    """
    dictionary = isinstance(parent, nn.ModuleDict) and re.search(r"\b\d+\.[^.]+$", path) is not None
    listed = isinstance(parent, nn.ModuleList | nn.Sequential) and not re.search(r"experts\.[^.]+$", path)
    return dictionary or listed


def _without_sides(blocks: Named) -> Named:
    """Leave out classes that hold next to none of the parameters."""
    sizes: Counter[type] = Counter()
    for name, module in blocks:
        sizes[class_of(module)] += _size([(name, module)])
    largest = max(sizes.values(), default=0)
    return [(name, module) for name, module in blocks if sizes[class_of(module)] >= SIDE_SHARE * largest]


def _size(modules: Named) -> int:
    return sum(parameter.numel() for _, module in modules for parameter in module.parameters())
