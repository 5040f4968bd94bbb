"""Positions by rule: a table with a telling name outside of the layers, and the tokens that its shape says it serves.

Letters: T rows of the table, N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod
from typing import NamedTuple

from torch import Tensor, nn

from structured_init.layout import TokenLayout

NAME = re.compile(r"(^|_)(wpe|pe|pos(itions?)?|pos(ition(s|al)?)?_?(emb(ed(ding)?s?)?|enc(od(er|ing))?|table))$")
NOT = re.compile(r"rel|rot|rope")  # relative tables and rotations are no positions of tokens
CONTENTS = ("weight", "weights", "pe")  # of a module that holds nothing but the table
PREFIX = re.compile(r"^(cls|class|reg(ister)?|dist(illation)?|storage)_?(tokens?|embed(ding)?)$")
MOST_PREFIX = 16


class Table(NamedTuple):
    """A candidate: where it is kept and what it holds."""

    owner: str
    holder: nn.Module
    tensor: Tensor


def layouts_by_rule(modules: Mapping[str, nn.Module], known: list[str]) -> dict[str, TokenLayout]:
    """Return, by the name of the module around them, the tokens of models that nobody described.

    A table is a parameter or buffer called positions, of one kind or another, or the content of a module of that name.
    It lies outside of lists of layers, and belongs to the nearest module around it that has such a list. Tokens are a
    sequence where no image is convolved before the layers, or not in the module of an ``nn.Embedding`` (the text of a
    model that also sees); else a grid:

    - (1, Gy, Gx, D) and (1, D, Gy, Gx) say it themselves;
    - (1, T, D) is taken apart by the grid that a patch embedding or image and patch size give: T − N rows before it
      are those of prefix tokens.

    The rows that come before a sequence are ``offset`` (BART, OPT), or those up to the padding index (RoBERTa). A
    table of which none of this can be told is left alone, as is a model with two of them in one place.

    Args:
        modules: every module by its name.
        known: names of the modules whose tokens are described already; nothing in them is looked for.
    """
    stacks = [name for name, module in modules.items() if is_stack(module)]
    found: dict[str, list[TokenLayout]] = {}
    for table in _tables(modules, stacks):
        if any(_within(table.owner, name) for name in known):
            continue
        layout = _layout(table, modules, stacks)
        if layout is not None:
            found.setdefault(table.owner, []).append(layout)
    return {name: layouts[0] for name, layouts in found.items() if len(layouts) == 1}


def is_stack(module: nn.Module) -> bool:
    """Say whether a module is a list of layers: of one class where it is an ``nn.Sequential``."""
    children = list(module.children())
    if isinstance(module, nn.ModuleList):
        return bool(children)
    return isinstance(module, nn.Sequential) and len(children) > 1 and len({type(child) for child in children}) == 1


def block_around(name: str, stacks: Collection[str]) -> str:
    """Return a layer's own place in the innermost list of layers around it: what enters there is the stream.

    Args:
        name: of something in the layer.
        stacks: names of the lists of layers.
    """
    around = name
    while around and around.rpartition(".")[0] not in stacks:
        around = around.rpartition(".")[0]
    return around or name


def _tables(modules: Mapping[str, nn.Module], stacks: list[str]) -> Iterator[Table]:
    for name, module in modules.items():
        if any(_inside(name, stack) for stack in stacks):
            continue
        owner = name
        while not any(_inside(stack, owner) for stack in stacks):
            if not owner:
                break
            owner = owner.rpartition(".")[0]
        else:
            tensors = {**module._parameters, **module._buffers}
            yield from (Table(owner, module, tensor) for key, tensor in tensors.items() if _is_table(key, tensor))
            for key, child in module.named_children():
                content = {**child._parameters, **child._buffers}
                content = [content[part] for part in CONTENTS if part in content]
                yield from (Table(owner, child, tensor) for tensor in content if _is_table(key, tensor))


def _is_table(name: str, tensor: Tensor | None) -> bool:
    if tensor is None or not (tensor.is_floating_point() and 2 <= tensor.ndim <= 4):
        return False
    many = tensor.ndim < 4 or tensor.shape[0] == 1
    return many and tensor.shape[-1] > 1 and bool(NAME.search(name.lower())) and not NOT.search(name.lower())


def _layout(table: Table, modules: Mapping[str, nn.Module], stacks: list[str]) -> TokenLayout | None:
    tensor = table.tensor
    outside = [
        module
        for name, module in modules.items()
        if _within(name, table.owner) and not any(_inside(name, stack) for stack in stacks)
    ]
    prefix = sum(_prefix_tokens(module) for module in outside)
    if tensor.ndim == 4:
        features = 1 if tensor.shape[1] in _widths(outside) and tensor.shape[1] > tensor.shape[-1] else -1
        grid = tuple(tensor.shape[2:] if features == 1 else tensor.shape[1:3])
        return TokenLayout((grid[0], grid[1]), prefix, tensor, features=features)
    rows = tensor.numel() // tensor.shape[-1]
    text = isinstance(table.holder, nn.Embedding) and not _convolves(outside)
    if text or not _convolves(modules[name] for name in modules if not any(_inside(name, stack) for stack in stacks)):
        return TokenLayout(None, positions=tensor, first=_first_row(table.holder))
    for grid in _grids(modules, table.owner, outside):
        before = rows - prod(grid)
        if 0 <= before <= MOST_PREFIX:
            return TokenLayout(grid, max(prefix, before), tensor, first=before)
    return None


def _convolves(outside: Iterable[nn.Module]) -> bool:
    return any(isinstance(module, nn.Conv2d | nn.Conv3d) for module in outside)


def _first_row(holder: nn.Module) -> int:
    offset, padding = getattr(holder, "offset", None), getattr(holder, "padding_idx", None)
    if isinstance(offset, int):
        return offset
    return 0 if padding is None else padding + 1


def _prefix_tokens(module: nn.Module) -> int:
    """Count the tokens that a module puts before the grid: the rows of its parameters of such a name."""
    tokens = (value for name, value in module._parameters.items() if value is not None and PREFIX.match(name))
    return sum(value.numel() // value.shape[-1] for value in tokens)


def _widths(outside: list[nn.Module]) -> set[int]:
    """The widths that a table's features could have: what the convolutions before the layers put out."""
    return {module.out_channels for module in outside if isinstance(module, nn.Conv2d)}


def _grids(modules: Mapping[str, nn.Module], owner: str, outside: list[nn.Module]) -> Iterator[tuple[int, int]]:
    """What a patch embedding, the model, the model around it or its configuration says of rows and columns."""
    around = [modules[owner]]
    while owner:
        owner = owner.rpartition(".")[0]
        around.append(modules[owner])
    for module in (*outside, *around):
        grid = getattr(module, "grid_size", None)
        if isinstance(grid, tuple | list) and len(grid) == 2:
            yield grid[0], grid[1]
        for source in (module, getattr(module, "config", None)):
            image, patch = (getattr(source, name, None) for name in ("image_size", "patch_size"))
            if image and patch and isinstance(image, int | tuple | list) and isinstance(patch, int | tuple | list):
                (height, width), (rows, columns) = pair(image), pair(patch)
                yield height // rows, width // columns


def pair(size: int | tuple | list) -> tuple[int, int]:
    """Return (height, width) of a size that is one number or two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _inside(inner: str, outer: str) -> bool:
    return inner != outer and _within(inner, outer)


def _within(inner: str, outer: str) -> bool:
    return inner == outer or outer == "" or inner.startswith(f"{outer}.")
