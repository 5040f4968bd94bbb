"""Checks of what a pass shows: the first loss, scales through depth, gradients; and what a model makes of tokens."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.checks.findings import Found, NotMade, first_names
from structured_init.checks.measured import Measured
from structured_init.checks.one_pass import BlockScale
from structured_init.hosts.registry import selects
from structured_init.inputs import numbered, with_fields
from structured_init.undisturbed import undisturbed

TOLERANCE = 0.1  # of ln C, by which the first loss may differ
GROWTH = 1e3  # of activations from the first block to the last
MOST_UNUSED = 0.25  # of all parameters: beyond, the output is cut off from them on purpose
LEAK = 1e-4  # of the largest number of the output, beyond rounding
TABLE = re.compile(r"(?!.*rel).*(pos\w*_e(mb|nc)|emb\w*_pos|\bwpe\b)")  # names of positions that are added to tokens
MASKS = ("attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask")  # 0 is padding, in others 1
Answer = Callable[..., Tensor]  # tokens (B, N), and more inputs by name → output (B, N, …)


def stuck(measured: Measured) -> Found:
    """Find gradients that stay zero."""
    names = tuple(measured.depth.stuck)
    if names:
        yield names, f"{first_names(names)}: the gradient is exactly zero, and stays so when all others have moved"


def blind(measured: Measured) -> Found:
    """Find a model that does not look at what comes in."""
    if measured.depth.blind:
        yield (), "two different samples give one output: it does not depend on what comes in"


def loss(measured: Measured) -> Found:
    """Find a first loss that differs from ln C, that of guessing, by more than a share of it."""
    if measured.depth.loss is None:
        raise NotMade("its output does not say how many classes it has: give 'classes' if it has any")
    found, classes = measured.depth.loss
    guessing = math.log(classes)
    if not abs(found / guessing - 1) <= TOLERANCE:  # nan too
        yield (), f"the first loss is {found:.3g}; guessing among {classes:,} classes has {guessing:.3g}"


def depth(measured: Measured) -> Found:
    """Find activations that run away."""
    found = stacks(measured.depth.blocks)
    if not found:
        raise NotMade("no equal blocks were seen to run one behind the other: from block to block nothing was compared")
    for first, *_, last in found:
        if 0 in (first.activation, last.activation):  # a branch of zeros adds nothing, which is no scale
            continue
        ratio = last.activation / first.activation
        if not 1 / GROWTH <= ratio <= GROWTH:  # nan too
            yield (first.name, last.name), f"activations change {ratio:.1e}-fold from {first.name} to {last.name}"


def stacks(blocks: Iterable[BlockScale]) -> list[list[BlockScale]]:
    """Return blocks, two or more, that run one behind the other and whose names differ in numbers alone."""
    found: dict[str, list[BlockScale]] = defaultdict(list)
    for block in blocks:
        found[block.stack].append(block)
    return [stack for stack in found.values() if len(stack) > 1]


def unused(measured: Measured) -> Found:
    """Find layers that no output depends on. A bare parameter, such as a mask's token, waits for other inputs."""
    names = []
    for each in measured.unmoved():
        if each.role != "bare" and each.size > 1 and not selects(measured.unused, each.name, each):
            names.append(each.name)
    if len(names) > MOST_UNUSED * len(measured.chosen):
        raise NotMade("no gradient comes to more than a quarter of all parameters, which is meant")
    if names:
        yield tuple(names), f"{first_names(names)}: no output depends on it"


def of_tokens(ask: Callable[[Measured, Answer, Tensor], str]) -> Callable[[Measured], Found]:
    """Make a check of a question to a model that takes tokens (B, N) and gives an output (B, N, …).

    The question is given what answers it, and says what is wrong. Any other model is asked nothing.
    """

    @wraps(ask)
    def check(measured: Measured) -> Found:
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
            text = ask(measured, answer, tokens) if answer(tokens).ndim > 2 else ""
        except Exception as error:  # whatever a host raises on tokens, or a mask, that nobody gave
            why = next(iter(str(error).splitlines()), "")
            raise NotMade(f"the model fails on what it is asked: {why}") from error
        if text:
            yield (), text

    return check


@of_tokens
def causal(measured: Measured, answer: Answer, tokens: Tensor) -> str:
    """Find a causal language model of transformers in which the last token changes what comes before it.

    It says that it is one by its name, or by ``is_causal`` of all its attention (GPT2LMHeadModel).
    """
    modules = list(measured.model.modules())
    says = {each.is_causal for each in modules if isinstance(getattr(each, "is_causal", None), bool)}
    named = "CausalLM" in type(measured.model).__name__
    decodes = all(getattr(each, "is_decoder", True) for each in modules)  # a BERT may be both
    if not decodes or not (named or says == {True}):
        return ""
    other = tokens.clone()
    other[:, -1] = other[:, 0]
    return _apart(answer(tokens)[:, :-1], answer(other)[:, :-1], "the last token changes what comes before it")


@of_tokens
def padding(measured: Measured, answer: Answer, tokens: Tensor) -> str:
    """Find a model with a mask in which the last quarter of the tokens, being padding, changes what comes before it."""
    taken = signature(measured.model.forward).parameters
    name = next((each for each in MASKS if each in taken), None)
    if name is None:
        return ""
    begin = tokens.shape[1] - max(tokens.shape[1] // 4, 1)
    padded = torch.zeros_like(tokens, dtype=torch.bool)
    padded[:, begin:] = True
    mask = (~padded).long() if name == MASKS[0] else padded
    one = answer(tokens, **{name: mask})
    other = answer(torch.where(padded, tokens.flip(1), tokens), **{name: mask})
    return _apart(one[:, :begin], other[:, :begin], f"tokens at which {name} is {int(mask[0, -1])} change the others")


@of_tokens
def order(measured: Measured, answer: Answer, tokens: Tensor) -> str:
    """Find a model with a learned table of positions that gives one token the same output wherever it stands.

    All tokens are one, for in a causal model the order of different ones counts without any positions.
    """
    tables = []
    for record in measured.records:
        beside = record.name.removesuffix(".weight").rpartition(".")[0]
        used = any(each.startswith(beside) for each in measured.depth.gradients)  # of an idle tower nothing is
        if used and record.trainable and TABLE.match(record.name):
            tables.append(record.name)
    before = answer(tokens)
    if not tables or not _apart(before, before[:, :1]):
        return ""
    alike = answer(tokens[:, :1].expand_as(tokens).clone())  # the first, for the last may be padding
    return "" if _apart(alike, alike[:, :1]) else f"{tables[0]}: a token gives the same output wherever it stands"


def _apart(one: Tensor, other: Tensor, why: str = "") -> str:
    """Say why two outputs differ, and by how much at most; nothing where that is rounding."""
    apart = (one - other).abs().max()
    return f"{why}, by {apart.item():.2g}" if apart > LEAK * one.abs().max() else ""
