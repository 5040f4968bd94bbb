"""Checks that run a model on other inputs, or in other numbers, and look at what it gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.checks.depth import tensors_in
from structured_init.checks.findings import Finding, LeftOut
from structured_init.inputs import Inputs, undisturbed, with_fields


def bfloat16(model: nn.Module, inputs: Inputs, seed: int) -> Iterator[Finding | LeftOut]:
    """Run a copy in bfloat16; an error, as of an operation without bfloat16, leaves the check out."""
    if any(each.is_complex() for each in (*model.parameters(), *model.buffers())):
        yield LeftOut("bfloat16", "there is no complex bfloat16")
        return
    args, kwargs = tree_map(lambda x: x.bfloat16() if isinstance(x, Tensor) and x.is_floating_point() else x, inputs)
    try:
        held = [leaf for module in model.modules() for leaf in tree_leaves(vars(module)) if isinstance(leaf, Tensor)]
        kept = {id(each): each.detach() for each in held if not each.is_leaf}  # by forward; deepcopy refuses such
        narrow = copy.deepcopy(model, kept).to(torch.bfloat16)
        with undisturbed(narrow, seed), torch.enable_grad():  # which a model may need itself, as for forces
            output = with_fields(narrow(*args, **kwargs))
    except Exception as error:
        yield LeftOut("bfloat16", f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
        return
    broken = sum(int((each.isnan() | (each == math.inf)).sum()) for each in tensors_in(output))  # −∞ rules a class out
    if broken:
        yield Finding("bfloat16", (), f"{broken:,} numbers of the output are NaN or +∞")
