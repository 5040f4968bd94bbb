"""Which blocks a network is stacked from, found without knowing the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Set

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations as class_of

from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_name

STAGE_SHARE = 0.8  # of a stage's parameters lie in its blocks; the heads of an attention block hold less
SIDE_SHARE = 0.05  # what is repeated but holds less than this of the largest kind is a stem or a side branch
HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)

Named = list[tuple[str, nn.Module]]


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
    found = blocks_of(model)
    if not found:
        raise StructuredInitError(f"{type(model).__name__} has no list of equal blocks to look at")
    return found


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the same; nothing where the model repeats nothing."""
    found = _repeated(model, composite=True) or _repeated(model, composite=False)
    return {plain_name(name, model): module for name, module in found}


def _repeated(model: nn.Module, composite: bool) -> Named:
    """Return the blocks with or without children, each once; nothing where there is one alone."""
    listed: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        for path, child in _paths(name, module):
            if _is_listed(module, path) and _is_composite(child) == composite and _may_be_called(child):
                listed.setdefault(child, path)
    counts = Counter(map(class_of, listed))
    found = _blocks("", model, {path for child, path in listed.items() if counts[class_of(child)] > 1})
    sizes: Counter[type] = Counter()
    for _, block in found:
        sizes[class_of(block)] += _size([block])
    least = SIDE_SHARE * max(sizes.values(), default=0)
    found = [(name, block) for name, block in found if sizes[class_of(block)] >= least]
    return found if len(found) > 1 else []


def _blocks(name: str, module: nn.Module, listed: Set[str]) -> Named:
    """Return the outermost listed blocks below a module, in order, or where these are stages the blocks of those."""
    whole: Named = []  # listed modules are blocks
    opened: Named = []  # listed modules are stages
    stages, of_stages, kinds = [], [], 0
    for path, child in _paths(name, module):
        inner = _blocks(path, child, listed)
        opened += inner
        if path in listed:
            whole.append((path, child))
            stages.append(child)
            blocks = [block for _, block in inner]
            of_stages += blocks
            kinds += len(set(map(class_of, blocks)))
        else:
            whole += inner
    # Stages repeat blocks of their own, which hold nearly all of their parameters.
    are_stages = len(of_stages) > kinds and _size(of_stages) >= STAGE_SHARE * _size(stages)
    return opened if are_stages else whole


def _paths(name: str, module: nn.Module) -> Named:
    return [(f"{name}.{key}".lstrip("."), child) for key, child in module.named_children()]


def _is_listed(parent: nn.Module, path: str) -> bool:
    """Say whether what has this path stands in a list, or in a dictionary with numbers in its name or in its list's."""
    if "experts." in path:  # they run beside one another: their list is no depth
        return False
    if isinstance(parent, nn.ModuleDict):
        # Without a number, a name may be that of another part, such as an encoder and a decoder.
        return re.search(r"\d[^.]*$|\b\d+\.[^.]+$", path) is not None
    return isinstance(parent, nn.ModuleList | nn.Sequential)


def _may_be_called(module: nn.Module) -> bool:
    """Say whether a module has parameters, and is no list or dictionary without a forward pass."""
    holds = isinstance(module, HOLDERS) and type(module).forward is nn.Module.forward
    return not holds and next(module.parameters(), None) is not None


def _is_composite(module: nn.Module) -> bool:
    """Say whether a module has parts beside what computes a weight of its own."""
    return bool(module._modules.keys() - {"parametrizations"})


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
