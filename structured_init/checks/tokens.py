"""What is asked of a model that reads tokens by number: do the future, padding and places change what they should."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.checks.findings import Finding, not_made
from structured_init.checks.measured import Measured
from structured_init.inputs import numbered, with_fields
from structured_init.undisturbed import undisturbed

LEAK = 1e-4  # of the largest number of the output, beyond rounding
TABLE = re.compile(r"pos\w*_e(mb|nc)|emb\w*_pos|\bwpe\b")  # in the names of positions that are added to tokens
MASKS = ("attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask")  # 0 is padding, in others 1
Answer = Callable[..., Tensor]  # tokens (B, N), and more inputs by name → output (B, N, …)
Question = Callable[[Measured, Answer, Tensor], Iterator[Finding]]


def _ask(check: str, question: Question, measured: Measured) -> Iterator[Finding]:
    """Ask a model that takes tokens (B, N) and gives an output (B, N, …); any other is asked nothing."""
    model, inputs = measured.model, measured.depth.inputs
    given = [each for each in tree_leaves(inputs) if numbered(each) and each.shape[1] > 1]
    if not given:
        return
    tokens = max(given, key=lambda each: int(each.max()))  # beside masks and kinds of tokens

    def answer(other: Tensor, **more: Tensor) -> Tensor:
        args, kwargs = tree_map(lambda leaf: other if leaf is tokens else leaf, inputs)
        called = signature(model.forward).bind(*args, **kwargs)
        called.arguments.update(more)
        with undisturbed(model, measured.seed):
            output = with_fields(model(*called.args, **called.kwargs))
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.is_floating_point() and each.shape[:2] == tokens.shape:
                return each
        return torch.empty(0)

    try:
        if answer(tokens).ndim > 2:
            yield from question(measured, answer, tokens)
    except Exception as error:  # whatever a host raises on tokens, or a mask, that nobody gave
        yield not_made(check, f"the model fails on what it is asked: {next(iter(str(error).splitlines()), '')}")


def _causal(measured: Measured, answer: Answer, tokens: Tensor) -> Iterator[Finding]:
    """Find a causal language model of transformers in which the last token changes what comes before it.

    It says that it is one by its name, or by ``is_causal`` of all its attention (GPT2LMHeadModel).
    """
    modules = list(measured.model.modules())
    says = [each.is_causal for each in modules if isinstance(getattr(each, "is_causal", None), bool)]
    named = "CausalLM" in type(measured.model).__name__
    decodes = all(getattr(each, "is_decoder", True) for each in modules)  # a BERT may be both
    if not decodes or not (named or (says and all(says))):
        return
    other = tokens.clone()
    other[:, -1] = other[:, 0]
    apart = _apart(answer(tokens)[:, :-1], answer(other)[:, :-1])
    if apart:
        yield Finding("causal", (), f"the last token changes what comes before it, by {apart:.2g}")


def _padding(measured: Measured, answer: Answer, tokens: Tensor) -> Iterator[Finding]:
    """Find a model with a mask in which the last quarter of the tokens, being padding, changes what comes before it."""
    taken = signature(measured.model.forward).parameters
    name = next((each for each in MASKS if each in taken), None)
    if name is None:
        return
    begin = tokens.shape[1] - max(tokens.shape[1] // 4, 1)
    padded = torch.zeros_like(tokens, dtype=torch.bool)
    padded[:, begin:] = True
    mask = (~padded).long() if name == MASKS[0] else padded
    one = answer(tokens, **{name: mask})
    other = answer(torch.where(padded, tokens.flip(1), tokens), **{name: mask})
    apart = _apart(one[:, :begin], other[:, :begin])
    if apart:
        yield Finding("padding", (), f"tokens at which {name} is {int(mask[0, -1])} change the others, by {apart:.2g}")


def _order(measured: Measured, answer: Answer, tokens: Tensor) -> Iterator[Finding]:
    """Find a model with a learned table of positions that gives one token the same output wherever it stands.

    All tokens are one, for in a causal model the order of different ones counts without any positions.
    """
    tables = []
    for name, parameter in measured.parameters.items():
        beside = name.removesuffix(".weight").rpartition(".")[0]
        used = any(each.startswith(beside) for each in measured.depth.gradients)  # of an idle tower nothing is
        if used and parameter.requires_grad and TABLE.search(name) and "rel" not in name:
            tables.append(name)
    before = answer(tokens)
    if not tables or not _apart(before, before[:, :1]):
        return
    alike = answer(tokens[:, :1].expand_as(tokens).clone())  # the first, for the last may be padding
    if not _apart(alike, alike[:, :1]):
        yield Finding("order", tuple(tables), f"{tables[0]}: a token gives the same output wherever it stands")


def _apart(one: Tensor, other: Tensor) -> float:
    """Return by how much two outputs differ at most; 0 where that is rounding."""
    apart = (one - other).abs().max()
    return apart.item() if apart > LEAK * one.abs().max() else 0.0


causal = partial(_ask, "causal", _causal)
padding = partial(_ask, "padding", _padding)
order = partial(_ask, "order", _order)
