"""What a sum of two activations is: a rotation, a second term of logits, a convolution beside attention, a stream."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from structured_init.watch import codes
from structured_init.watch.records import NEGATED, POOLED, TWICE, Other, Pass, Product, Sum, Tag


def added(seen: Pass, first: Tag, second: Tag, path: frozenset[str]) -> Tag:
    """Return the tag of a sum: of one source, both codes; with a product, its own; else nothing is known.

    Args:
        seen: the pass.
        first: the tag of one of them.
        second: of the other.
        path: of the sum, where both are of one source.
    """
    for tag, beside in ((first, second), (second, first)):
        source, other = seen.source(tag), seen.source(beside)
        if isinstance(source, Product):  # a second term of the logits
            if isinstance(other, Product) and other is not source:
                (source.others.append(other) if source.softened else source.beside.append((other, source.factor)))
            return Tag(tag.codes, tag.other, path)
        if isinstance(source, Sum) and source is not other:
            own = _own(seen, source, beside)
            if own is None:  # a residual stream is no output of attention alone
                if isinstance(other, Sum):
                    source.parted = other.parted = "what it gives is added to what another product with values gives"
                return Tag(codes.unknown(tag.codes), None, path)
            return Tag(tag.codes, tag.other, tag.path | {own} | (path & {NEGATED}))

    def either(one: Tensor, two: Tensor) -> Tensor:
        a, b = codes.source(one), codes.source(two)
        return torch.where((a == b) | (b == 0), one, torch.where(a == 0, two, 0))

    alike = codes.together(lambda one, two: codes.source(one) == codes.source(two), first.codes, second.codes)
    whole = codes.together(either, first.codes, second.codes)
    whole = whole if codes.compact(whole).any() else codes.unknown(whole)  # a stream is carried on as one number
    turns = codes.compact(alike).all() and not same_numbers(first, second)
    return Tag(whole, second.codes, path | {TWICE}) if turns else Tag(whole, None, path)


def _own(seen: Pass, sum_: Sum, beside: Tag) -> str | None:
    """Say what it is of attention's own that is added to what it gives; ``None`` where it is something else."""
    values, product = seen.source(sum_.value_tag), seen.source(sum_.maps_tag)
    other = seen.source(beside)
    if isinstance(other, Other) and other.below is values:
        return "a convolution of its values, added"
    channels = codes.compact(beside.codes).unique()
    for what, tag in (("values", sum_.value_tag), ("queries", product.query_tag)):
        if other is seen.source(tag) and torch.isin(channels, codes.compact(tag.codes)).all():
            return f"a convolution of its {what}, added" if POOLED in beside.path else f"its {what}, added"
    return None


def taken_alike(seen: Pass, given: Int64[Tensor, "batch tokens inputs"] | None) -> Int64[Tensor, " inputs"] | None:
    """Return the code that each input of a linear map has in every token; ``None`` where tokens differ.

    So do those of several products with values that are put together token by token, of which it takes note.
    """
    columns = None if given is None else codes.over_tokens(given)
    if columns is not None and (columns == columns[0]).all():
        return columns[0]
    numbers = [] if given is None else codes.source(codes.compact(codes.whole(given))).unique().tolist()
    sums = [source for number in numbers if isinstance(source := seen.sources[number], Sum)]
    for sum_ in sums if len(sums) > 1 else ():
        sum_.parted = f"its tokens come from {len(sums)} products with values, put together before '{seen.running[-1]}'"
    return None


def same_numbers(first: Tag, second: Tag) -> bool:
    """Say whether two tensors were made of the same numbers, each of one: then x · f(x) and x + f(x) are so too."""
    same = codes.together(torch.eq, first.codes, second.codes)
    return first.other is None and second.other is None and bool(codes.compact(same).all())
