"""Checks that run a model on other inputs, or in other numbers, and look at what it gives."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.checks.depth import tensors_in
from structured_init.checks.findings import Finding, LeftOut
from structured_init.inputs import Inputs, numbered, undisturbed, with_fields

LEAK = 1e-4  # of the largest number of the output, beyond rounding


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


def causal(model: nn.Module, inputs: Inputs, seed: int) -> Iterator[Finding]:
    """Find a causal language model of transformers in which the last token changes what comes before it."""
    tokens = [each for each in tree_leaves(inputs) if numbered(each)]
    is_causal = "CausalLM" in type(model).__name__
    an_encoder = any(getattr(each, "is_decoder", None) is False for each in model.modules())  # a BERT that may be both
    if not is_causal or an_encoder or not tokens or tokens[0].shape[1] < 2:
        return
    other = tokens[0].clone()
    other[:, -1] = other[:, 0]
    logits = []
    for last in (tokens[0], other):
        args, kwargs = tree_map(partial(_replaced, tokens[0], last), inputs)
        with undisturbed(model, seed):
            logits += tensors_in(with_fields(model(*args, **kwargs)))[:1]
    before, after = logits
    apart = (before - after)[:, :-1].abs().max() if before.ndim == 3 else torch.zeros(())
    if apart > LEAK * before.abs().max():
        yield Finding("causal", (), f"the last token changes what comes before it, by {apart.item():.2g}")


def _replaced(old: Tensor, new: Tensor, leaf: Any) -> Any:
    return new if leaf is old else leaf
