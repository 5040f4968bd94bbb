"""Functions of single numbers, norms and sums: what they leave of where the numbers that go in came from."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from structured_init.hosts.watching import origins
from structured_init.hosts.watching.mode import Operation
from structured_init.hosts.watching.records import (
    ADAPTED,
    AVERAGED,
    GATED,
    NEGATED,
    POOLED,
    TWICE,
    Linear,
    Other,
    Product,
    Sum,
    Tag,
    pooled,
    tensors,
)

Pass = Any  # forward_pass.WatchMode, which imports this file
SUMS = frozenset({"add", "add_", "sub", "sub_"})
SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
SILENT = frozenset({"_to_copy", "dropout", "native_dropout"})  # not worth a word in a path
TIMES = frozenset({"mul", "mul_", "div", "div_"})
# What is not looked at by its numbers: exact for any input, or known to be a norm, or to pool tokens.
LINEAR = frozenset({"mul", "div", "add", "sub", "neg", "mean", "sum"})
UPSAMPLE = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
UPSAMPLES = frozenset(f"upsample_{kind}" for kind in UPSAMPLE) | {"_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"}
PIXELS = UPSAMPLES | {"avg_pool1d", "avg_pool2d", "_adaptive_avg_pool2d", "max_pool2d_with_indices"}
POOLING = PIXELS | {"amax", "max"}
# Batch norm has other names on other devices and versions of torch, and in evaluation mode.
NORMING = frozenset({"native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm"})
NORMING |= {"_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "miopen_batch_norm"}


def follow(seen: Pass, operation: Operation) -> None:
    """Give the result of a function of single numbers, or of a norm, the codes of what goes in."""
    leaves = tensors(operation.args)
    given = [tag for leaf in leaves if (tag := seen.tag(leaf)) is not None]
    for out in tensors(operation.result) if given else ():
        if not (out.is_floating_point() or out.is_complex()):
            continue
        same = [tag for tag in given if tag.codes.shape == out.shape]
        if same:
            _follow_numbers(seen, operation, out, given, same)
        # Else all are spread, as a map of one key is.
        elif operation.name in PIXELS or any(leaf.numel() >= out.numel() for leaf in leaves):
            seen.tags[out] = _reduced(operation, out, given)


def _reduced(operation: Operation, out: Tensor, given: list[Tag]) -> Tag:
    """Return the tag of what is of another size than all that goes in: tokens were pooled or resized, or channels."""
    codes, path = given[0].codes, frozenset().union(*(tag.path for tag in given))
    left = pooled(codes, out, operation.args)
    if left is None and operation.name in PIXELS and codes.ndim == out.ndim:
        left = origins.over_pixels(codes, out.shape)
    path |= {operation.plain} - SILENT
    return Tag(origins.unknown(out), None, path | {AVERAGED}) if left is None else Tag(left, None, path | {POOLED})


def _follow_numbers(seen: Pass, operation: Operation, out: Tensor, given: list[Tag], same: list[Tag]) -> None:
    """Tag what is as large as something that goes in."""
    name, args = operation.name, operation.args
    active = [tag for tag in same if len(given) == 1 or not seen.is_weight(tag)]
    tag = max(active or same, key=lambda each: isinstance(seen.source(each), Product | Sum))  # in any order
    source = seen.source(tag)
    # Of what goes in beside it, only what was averaged or pooled, or is added, changes what this is.
    turns = name in SUMS and not isinstance(source, Product)  # what is added to logits does not count
    beside = [other.path if turns else other.path & {AVERAGED, POOLED} for other in given]
    path = tag.path.union(_function_name(seen, operation, source) - SILENT, *beside)
    if out.is_complex():  # a product of complex numbers turns
        path |= {TWICE}
    if _negated(seen, operation):
        path |= {NEGATED}
    mixed = isinstance(source, Sum) and _meets_stream(seen, args, out)
    if name in TIMES and (mixed or _gated(seen, args, active)):
        path |= {GATED}
    if name in SUMS and mixed:
        seen.tags[out] = Tag(origins.unknown(out), None, path)
    elif name in SUMS and len(active) == 2:
        seen.tags[out] = added(seen, *active, path)
    else:
        seen.tags[out] = Tag(tag.codes, tag.other, path)
    if isinstance(source, Product):
        _logits(seen, source, operation)
    if name in SUMS:
        _summed(seen, args, out, same)


def _meets_stream(seen: Pass, args: tuple, out: Tensor) -> bool:
    """Say whether tokens of unknown origin go in, a residual stream."""
    return any(leaf.shape == out.shape and seen.tag(leaf) is None for leaf in tensors(args))


def _negated(seen: Pass, operation: Operation) -> bool:
    """Say whether an operation takes maps, or what attention gives, times −1, all of them or some."""
    own = []
    for leaf in operation.args[:2]:
        source = seen.source_of(leaf)
        own.append(isinstance(source, Sum) or (isinstance(source, Product) and source.softened > 0))
    if operation.plain == "neg":
        return own[0]
    if own == [False, True]:
        first = operation.args[0]
        return operation.plain == "sub" or (operation.plain == "mul" and _negative(seen, first))
    return own == [True, False] and operation.plain in ("mul", "div") and _negative(seen, operation.args[1])


def _negative(seen: Pass, factor: Any) -> bool:
    """Say whether a number, or some of a tensor that is no activation, are below zero."""
    if isinstance(factor, Tensor):
        tag = seen.tag(factor)
        return (tag is None or seen.is_weight(tag)) and bool((factor < 0).any())
    return factor < 0


def _summed(seen: Pass, args: tuple, out: Tensor, same: list[Tag]) -> None:
    """Take note of linear maps whose outputs get a bias."""
    beside = [leaf for leaf in tensors(args) if leaf.shape != out.shape or seen.weight(leaf)]
    for tag in same:
        source = seen.source(tag)
        if isinstance(source, Linear) and beside and all(map(seen.weight, beside)):
            source.biased(out)


def _gated(seen: Pass, args: tuple, active: list[Tag]) -> bool:
    """Say whether a product of two tensors of the same shape is none with a factor for each token."""
    if len(active) != 2:
        return False
    one, two = active
    source = seen.source(one)
    averaged = AVERAGED in one.path | two.path
    if source is seen.source(two) and (averaged or isinstance(source, Product)):
        return False
    return not _a_token_each(seen, args)


def _a_token_each(seen: Pass, args: tuple) -> bool:
    """Say whether a factor has one number for each token, spread over its features as the norm of `F.normalize`."""
    for leaf in tensors(args):
        tag = seen.tag(leaf)
        if tag is not None and AVERAGED in tag.path and leaf.ndim > 1 and (leaf == leaf[..., :1]).all():
            return True
    return False


def _function_name(seen: Pass, operation: Operation, source: object) -> set[str]:
    """Return the name of a function, unless it only multiplied what it was given; see whether it is pointwise."""
    plain, (x, *others), result = operation.plain, operation.before, operation.result
    known = plain in LINEAR | POOLING | NORMING | SILENT
    if known or not isinstance(source, Linear | Other) or not isinstance(x, Tensor) or not isinstance(result, Tensor):
        return {plain}
    beside = [leaf for leaf in tensors((others, operation.kwargs)) if leaf.numel() > 1]  # bounds may be of one number
    if x.shape != result.shape or beside:
        return {plain}
    if proportional(x, result):
        return set()
    if plain not in seen.pointwise and pointwise(operation):
        seen.pointwise.add(plain)
    return {plain}


def _logits(seen: Pass, product: Product, operation: Operation) -> None:
    """Take note of what is done to logits before the softmax: factors."""
    args, plain = operation.args, operation.plain
    own = [seen.source_of(each) is product for each in args[:2]]
    if product.softened == 0 and plain == "sub" and own == [False, True]:
        product.factor *= -1
    if product.softened == 0 and plain in ("mul", "div") and own[1:] != own[:1]:
        by = args[own.index(False)]
        if isinstance(by, int | float) or by.numel() == 1:
            product.factor *= float(by) if plain == "mul" else 1 / float(by)
        else:
            product.apart |= _negative(seen, by)
    if operation.name in SOFTMAX:
        product.softened += 1
        product.over_queries |= origins.over_queries(seen.tag(args[0]).codes, args[1])


# What a function does to the numbers that it is given, told by the numbers and not by its name.

FEW = 256  # numbers that tell most functions from a factor
MANY = 1 << 16  # numbers on which a function is run once more


def proportional(x: Tensor, y: Tensor) -> bool:
    """Say whether y = c x for one number c: a clamp at a bound that nothing reaches, a cap that nothing comes near."""
    if not (x.is_floating_point() and y.is_floating_point()):
        return False
    few = _proportional(_first_numbers(x), _first_numbers(y))
    return few and _proportional(x.detach().flatten(), y.detach().flatten())


def _first_numbers(x: Tensor, count: int = FEW) -> Tensor:
    """Return the first numbers of a tensor; of one that lies in memory in another order, without a copy of it."""
    x = x.detach()
    while x.ndim > 1 and x[0].numel() >= count:
        x = x[0]
    return torch.atleast_1d(x)[:count].flatten()[:count]


def _proportional(x: Tensor, y: Tensor) -> bool:
    x, y = x.double(), y.double()
    factor = x.dot(y) / x.dot(x).clamp_min(torch.finfo(torch.float64).tiny)
    return bool((y - factor * x).norm() <= 1e-6 * y.norm()) and bool(factor > 0)


def pointwise(operation: Operation) -> bool:
    """Say whether a function of one tensor makes each number from that number alone: it is run on them reversed."""
    x, *others = operation.before
    if operation.kwargs or any(isinstance(other, Tensor) for other in others):
        return False
    try:
        again = operation.func(_first_numbers(x, MANY).flip(0), *others)
    except (RuntimeError, IndexError, TypeError):  # a function that needs the axes
        return False
    # Vector units round on their own.
    return torch.allclose(again.flip(0), _first_numbers(operation.result, MANY), rtol=1e-4, atol=1e-6)


# What a sum of two activations is: a rotation, a second term of logits, a convolution beside attention, a stream.


def added(seen: Pass, first: Tag, second: Tag, path: frozenset[str]) -> Tag:
    """Return the tag of a sum: of one source, both codes; with a product, its own; else nothing is known."""
    for tag, beside in ((first, second), (second, first)):
        source, other = seen.source(tag), seen.source(beside)
        if isinstance(source, Product):  # a second term of the logits
            if isinstance(other, Product) and other is not source:
                (source.others.append(other) if source.softened else source.beside.append((other, source.factor)))
            return Tag(tag.codes, tag.other, path)
        if isinstance(source, Sum) and source is not other:
            own = _of_attention(seen, source, beside)
            if own is None:  # a residual stream is no output of attention alone
                if isinstance(other, Sum):
                    source.parted = other.parted = "what it gives is added to what another product with values gives"
                return Tag(origins.unknown(tag.codes), None, path)
            return Tag(tag.codes, tag.other, tag.path | {own} | (path & {NEGATED}))
        if isinstance(source, Linear) and isinstance(other, Linear) and other.taken is not None:
            x = getattr(seen.sources[int(origins.source(other.taken[0]))], "x", None)
            if x is not None and x.shape == source.x.shape and x.data_ptr() == source.x.data_ptr():
                adapted = {ADAPTED} if other.y.any() else set()  # x W + x A B, as in LoRA, where B begins with zeros
                return Tag(tag.codes, tag.other, path | adapted)

    def either(one: Tensor, two: Tensor) -> Tensor:
        a, b = origins.source(one), origins.source(two)
        return torch.where((a == b) | (b == 0), one, torch.where(a == 0, two, 0))

    alike = origins.together(lambda one, two: origins.source(one) == origins.source(two), first.codes, second.codes)
    whole = origins.together(either, first.codes, second.codes)
    whole = whole if origins.compact(whole).any() else origins.unknown(whole)  # a stream is carried on as one number
    turns = origins.compact(alike).all() and not same_numbers(first, second)
    return Tag(whole, second.codes, path | {TWICE}) if turns else Tag(whole, None, path)


def _of_attention(seen: Pass, sum_: Sum, beside: Tag) -> str | None:
    """Say what it is of attention's own that is added to what it gives; ``None`` where it is something else."""
    values, product = seen.source(sum_.value.tag), seen.source(sum_.maps.tag)
    other = seen.source(beside)
    if isinstance(other, Other) and other.below is values:
        return "a convolution of its values, added"
    channels = origins.compact(beside.codes).unique()
    for what, tag in (("values", sum_.value.tag), ("queries", product.query.tag)):
        if other is seen.source(tag) and torch.isin(channels, origins.compact(tag.codes)).all():
            return f"its {what}, added"
    return None


def taken_alike(seen: Pass, given: Int64[Tensor, "batch tokens inputs"]) -> Int64[Tensor, " inputs"] | None:
    """Return the code that each input of a linear map has in every token; ``None`` where tokens differ.

    So do tokens that a product with values is put together with, or of which each takes other channels of it: of that
    it takes note.
    """
    columns = origins.over_tokens(given)
    if columns is not None and (columns == columns[0]).all():
        return columns[0]
    numbers = origins.source(origins.compact(origins.whole(given))).unique().tolist()
    sums = [seen.sources[number] for number in numbers if isinstance(seen.sources[number], Sum)]
    why = "its tokens are put together with others" if len(numbers) > 1 else "tokens take different channels of it"
    for sum_ in sums:
        sum_.parted = f"{why} before '{seen.running[-1]}'"
    return None


def same_numbers(first: Tag, second: Tag) -> bool:
    """Say whether two tensors were made of the same numbers, each of one: then x · f(x) and x + f(x) are so too."""
    same = origins.together(torch.eq, first.codes, second.codes)
    return first.other is None and second.other is None and bool(origins.compact(same).all())
