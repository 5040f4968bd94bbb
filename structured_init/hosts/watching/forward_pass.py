"""Watching a forward pass operation by operation, with the origin of every number carried along.

``WatchMode`` sees torch's operations below autograd, where ``einsum``, ``matmul``, ``linear``, fused attention and what
custom autograd functions call are the same few: views, products of two matrices, elementwise functions, softmax. Views
are repeated on codes, so it is known of every query, key and value which output of which linear map it is, however the
host is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from structured_init.hosts.watching import origins
from structured_init.hosts.watching.mode import Operation, PassMode, is_fused, passing, refuse_nested
from structured_init.hosts.watching.operations import LINEAR, UPSAMPLES, follow, taken_alike
from structured_init.hosts.watching.origins import FILLS, MAKES, MOVES, moved
from structured_init.hosts.watching.records import (
    MIXED,
    POOLED,
    RESIZED,
    Block,
    Linear,
    Other,
    ParameterViews,
    Product,
    Sum,
    Tag,
    Traced,
    tensors,
    turned,
)
from structured_init.hosts.watching.tables import Tables

RECORDED = {Linear: ("x", "y"), Other: ("x",)}
Source = Linear | Other | Product | Sum | nn.Parameter
Kind = TypeVar("Kind", bound=Source)


class WatchMode(PassMode):
    """Record linear maps, products and weighted sums of everything that runs inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.sources: list[Source | None] = [None]  # what the numbers of codes stand for; 0 is unknown
        self.alike: list[int] = [0]  # for every source, the number of the first that is the same linear map
        self.tags: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what is known of tensors
        self.pointwise: set[str] = set()  # functions that were seen to act on single numbers
        self.together: dict[tuple[int, ...], Linear] = {}  # calls of one linear map → that with the tokens of all
        self.parameters = ParameterViews(model.parameters())
        self.tables = Tables(self, model)
        self._maps: dict[tuple, int] = {}
        self._numbers: dict[int, int] = {}
        self._recorded: dict[int, list[tuple[Source, str]]] = {}  # storage → records that hold a tensor in it

    # What is known of tensors.

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the sources of one kind, in the order of the pass."""
        return [source for source in self.sources if isinstance(source, kind)]

    def source(self, tag: Tag) -> Source | None:
        """Return the source of a tensor: of several, the latest."""
        few = origins.compact(origins.whole(tag.codes))
        return self.sources[int(origins.source(few.max()))] if few.numel() else None

    def source_of(self, leaf: object) -> Source | None:
        """Return the same of a tensor itself; ``None`` of anything else, and where nothing is known."""
        tag = self.tag(leaf) if isinstance(leaf, Tensor) else None
        return None if tag is None else self.source(tag)

    def number(self, source: Source) -> int:
        """Return under which number a source stands in codes."""
        return next(number for number, other in enumerate(self.sources) if other is source)

    def tag(self, tensor: Tensor) -> Tag | None:
        """Return a tensor's tag; that of a parameter, or of a view of one, is made when it is asked for."""
        parameter = self.parameters.parameter(tensor)
        if parameter is None:
            return self.tags.get(tensor)
        return Tag(origins.pack(self._numbered(parameter), self.parameters.entries(tensor, parameter)))

    def trace(self, tensor: Tensor) -> Traced:
        """Return a tensor with its tag, or that of which nothing is known."""
        tag = self.tag(tensor)
        return Traced(tensor, Tag(origins.unknown(tensor)) if tag is None else tag)

    def known(self, tree: object) -> dict[int, Tag]:
        """Return the tags of the tensors in a nest of arguments, by identity."""
        tags = {id(leaf): self.tag(leaf) for leaf in tensors(tree)}
        return {key: tag for key, tag in tags.items() if tag is not None}

    def weight(self, tensor: Tensor) -> bool:
        """Say whether a tensor is a parameter, a view or a copy of one."""
        tag = self.tag(tensor)
        return tag is not None and self.is_weight(tag)

    def is_weight(self, tag: Tag) -> bool:
        """Say whether every number of a tensor is a parameter's; of tokens, some may be, such as a class token's."""
        few = origins.compact(origins.whole(tag.codes))
        ends = (few.max(), few.min()) if few.numel() else (few.new_zeros(()),)
        return all(isinstance(self.sources[int(origins.source(end))], nn.Parameter) for end in ends)

    # What is seen.

    def operate(self, func, name, args, kwargs):  # noqa: ANN001, ANN201
        before = self._before(name, args)
        result = func(*args, **kwargs)
        refuse_nested(result)
        operation = Operation(func, name, args, kwargs, result, before)
        self.tables.carry(operation)
        if len(self.sources) < origins.LIMIT - 1:
            self._note(operation)
        return result

    def _before(self, name: str, args: tuple) -> tuple:
        """Return the arguments of an operation; what was known of a tensor that it overwrites is copied."""
        if not name.endswith("_") or not args or not isinstance(args[0], Tensor):
            return args
        for record, part in self._recorded.pop(args[0].untyped_storage().data_ptr(), ()):
            setattr(record, part, getattr(record, part).clone())
        if args[0] in self.tags and name[:-1] not in LINEAR and name not in FILLS:
            return (args[0].clone(), *args[1:])
        return args

    def _note(self, operation: Operation) -> None:
        name, result = operation.name, operation.result
        if is_fused(name):
            self._write_out(operation)
        elif isinstance(result, Tensor) and self.parameters.parameter(result) is not None:
            pass  # a view of a parameter
        else:
            NOTES.get(name, follow)(self, operation)

    def _write_out(self, operation: Operation) -> None:
        """Tag what fused attention gives as what its parts give."""
        written, out = self.written_out(operation.func, operation.args, operation.kwargs), tensors(operation.result)[0]
        self.tables.of[out] = self.tables.of.get(written, frozenset())
        if (tag := self.tags.get(written)) is not None:
            self.tags[out] = tag

    def _make(self, operation: Operation) -> None:
        """Tag a new tensor that will be filled."""
        result = operation.result
        if result.is_floating_point() and result.ndim > 1:
            self.tags[result] = Tag(torch.zeros(result.shape, dtype=torch.int64, device=result.device))

    def _look_up(self, operation: Operation) -> None:
        """Tag rows of a table."""
        rows, numbers = operation.args[:2]
        table = self.parameters.parameter(rows)
        if table is None:
            self._move(operation)
            return
        entries = self.parameters.rows(rows, table, numbers)
        self.tags[operation.result] = Tag(origins.pack(self._numbered(table), entries))
        self.tables.look_up(table, numbers)

    def _put_beside(self, operation: Operation) -> None:
        """Tag tensors put beside each other: tokens before others, perhaps."""
        self._move(operation)
        if operation.result.ndim == 3:
            self.tables.prepend(operation.result)

    def _resize(self, operation: Operation) -> None:
        """Tag a table at another size than its own: as one of its numbers, for all are made of several."""
        given, result = operation.args[0], operation.result
        tag = self.tag(given)
        if tag is None or not self.is_weight(tag):
            follow(self, operation)
        elif given.shape == result.shape and torch.allclose(given, result):  # at the table's own size
            self.tags[result] = tag
        else:
            first = origins.compact(tag.codes).flatten()[:1].view([1] * result.ndim)
            self.tags[result] = Tag(first.expand(result.shape), None, frozenset({RESIZED}))

    def _add(self, operation: Operation) -> None:
        """Tag a sum, of tokens and their positions perhaps."""
        self.tables.add(operation)
        follow(self, operation)

    # Operations that only move numbers.

    def _move(self, operation: Operation) -> None:
        """Repeat a move on the codes of what is moved."""
        tags = self.known((operation.args, operation.kwargs))
        if not tags:
            return
        seconds = any(tag.other is not None for tag in tags.values())
        path = frozenset().union(*(tag.path for tag in tags.values()))
        try:
            first = moved(operation, {key: tag.codes for key, tag in tags.items()})
            second = moved(operation, {key: tag.second for key, tag in tags.items()}) if seconds else first
        except RuntimeError:  # an operation that torch does not have for integers
            return
        for out, place, other in zip(tensors(operation.result), tensors(first), tensors(second), strict=True):
            self.tags[out] = Tag(place, other if seconds else None, path)

    def _fill(self, operation: Operation) -> None:
        """Repeat on the codes of all tensors in one memory what fills a part of it.

        They get codes of their own: those of a copy are the original's until one of both is filled.
        """
        target, tags = operation.args[0], self.known((operation.args, operation.kwargs))
        if tags and id(target) not in tags and (filled := self._buffer(target)) is not None:
            tags[id(target)] = self.tags[target] = filled
        if id(target) not in tags:
            return
        memory = target.untyped_storage()
        here = [each for each in self.tags if each.untyped_storage().data_ptr() == memory.data_ptr()]
        # Complex numbers in the memory of real ones have strides of their own.
        here = [each for each in here if each.dtype == target.dtype and torch._debug_has_internal_overlap(each) != 1]

        def lying(codes: Tensor, each: Tensor) -> Tensor:
            return codes.as_strided(each.shape, each.stride(), each.storage_offset())

        size, device = memory.nbytes() // target.element_size(), target.device
        first, second, touched = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3))
        lying(touched, target).fill_(1)
        parts: list[tuple[Tensor, Callable[[Tag], Tensor]]] = [
            (first, lambda tag: tag.codes),
            (second, lambda tag: tag.second),
        ]
        for codes, part in parts:
            for each in here:
                lying(codes, each).copy_(part(self.tags[each]))
            given = {key: part(tag) for key, tag in tags.items()}
            moved(operation, given | {id(target): lying(codes, target)})
        path = frozenset().union(*(tag.path for tag in tags.values()))
        seconds = any(tag.other is not None for tag in (*tags.values(), *(self.tags[each] for each in here)))
        for each in here:
            more = path if lying(touched, each).any() else frozenset()
            other = lying(second, each) if seconds else None
            self.tags[each] = Tag(lying(first, each), other, self.tags[each].path | more)

    def _buffer(self, part: Tensor) -> Tag | None:
        """Return the tag of a part of a buffer, such as a cache, that is filled for the first time."""
        memory = part.untyped_storage().data_ptr()
        for held in self.tables.buffers:
            if held.untyped_storage().data_ptr() == memory:
                codes = torch.zeros(held.shape, dtype=torch.int64, device=held.device)
                self.tags[held] = Tag(codes)
                begin = part.storage_offset() - held.storage_offset()
                return Tag(codes.as_strided(part.shape, part.stride(), begin))
        return None

    # Products.

    def _multiply(self, operation: Operation) -> None:
        """Tell a linear map from a product of two activations."""
        left, right = operation.args[-2:]  # before them, there may be what is added
        result, one, two = operation.result, self._block(left), self._block(right)
        # Where both are, one is tokens that are parameters too: rows of a table, learned queries. The weight is that
        # which lies in a parameter; where both are computed, the right one.
        first, second = self.parameters.parameter(left), self.parameters.parameter(right)
        if two is not None and (one is None or first is None or second is not None):
            self.tags[result] = self._linear(self.trace(left), two, result)
        elif one is not None:  # W xᵀ
            self.tags[result] = turned(self._linear(self.trace(right).mT, one.turned, result.mT))
        elif result.is_complex():
            pass
        elif result.ndim == 2:
            self.tags[result] = self._linear(self.trace(left), None, result)
        elif left in self.tags and right in self.tags:
            self._relate(self.trace(left), self.trace(right), operation)

    def _linear(self, x: Traced, block: Block | None, y: Tensor) -> Tag:
        """Record y = x W, and return the tag of y; W without a block is an activation."""
        tag = x.tag
        self.tables.read(tag)
        below = self.source(tag)
        # What a map over queries takes are tokens, no logits.
        if isinstance(below, Product) and tag.codes.shape == y.shape and not origins.over_queries(tag.codes, -1):
            return Tag(tag.codes, tag.other, tag.path | {MIXED})
        record: Source = Other(self.running[-1], "weights that are computed", x.numbers, below)
        matrices = 1
        if block is not None and block.starts is not None:
            matrices = len(block.starts)
            taken = taken_alike(self, tag.codes if tag.codes.ndim == 3 else tag.codes[None])
            record = Linear(self.running[-1], block, x.numbers, y, taken, tag.path)
        channels = torch.arange(y.shape[-1] * matrices, device=y.device)
        places = origins.pack(self._new(record), channels).view(-1, 1, y.shape[-1])
        return Tag((places if y.ndim == 3 else places[0]).expand(y.shape))

    def _relate(self, left: Traced, right: Traced, operation: Operation) -> None:
        """Record logits, or the sum of values where one side is a map."""
        result = operation.result
        if isinstance(self.source(left.tag), Product):
            self._sum(left, right, result, result, is_left=True)
        elif isinstance(self.source(right.tag), Product):  # Vᵀ Aᵀ
            self._sum(right, left, result, result.mT, is_left=False)
        else:
            self.tables.read(left.tag)
            logits = result
            if operation.name == "baddbmm":  # without what is added
                logits = operation.kwargs.get("alpha", 1) * (left.numbers @ right.numbers)
            record = Product(self.running[-1], left, right.mT, logits)
            self.tags[result] = Tag(origins.logits(self._new(record), record.heads, result.shape))

    def _sum(self, maps: Traced, value: Traced, result: Tensor, out: Tensor, *, is_left: bool) -> None:
        """Record values weighted with a map; its channels are those of a head, head after head."""
        tables = self.tables.attend(maps.numbers, result)
        if not is_left:
            maps, value = maps.mT, value.mT
        record = Sum(self.running[-1], self.product, is_left, maps, value, out, tables)
        channels = record.heads[:, None, None] * out.shape[-1] + torch.arange(out.shape[-1], device=out.device)
        tag = Tag(origins.pack(self._new(record), channels).expand(out.shape))
        self.tags[result] = tag if is_left else turned(tag)

    def _convolve(self, operation: Operation) -> None:
        """Record a convolution: of kernel 1 it is a linear map of single tokens."""
        x, weight, _, stride, *_, groups = operation.args
        result, tag = operation.result, self.trace(x).tag
        if self.parameters.parameter(weight) is None:
            return
        self.tables.convolve(result)
        below = self.source(tag)
        if isinstance(below, Product) and tag.codes.shape == result.shape:
            self.tags[result] = Tag(tag.codes, tag.other, tag.path | {MIXED})
            return
        size = tuple(weight.shape[2:])
        if math.prod(size) == 1:
            x = x[(..., *(slice(None, None, step) for step in stride))]
        y, x_last = result.movedim(1, -1), x.movedim(1, -1)
        if math.prod(size) == groups == 1 and x.shape[2:] == result.shape[2:]:
            block = self.parameters.block(weight.flatten(1).T)
            taken = taken_alike(self, tag.codes.flatten(2).mT)
            record: Source = Linear(self.running[-1], block, x_last, y, taken, tag.path)
        elif (kept := self._channelwise(tag, groups, result)) is not None:
            self.tags[result] = kept
            return
        else:
            kind = "depthwise convolution" if groups == x.shape[1] > 1 else "convolution"
            what = f"a {kind} of kernel {'×'.join(map(str, size))}"
            record = Other(self.running[-1], what, x_last, below)
        channels = torch.arange(result.shape[1], device=result.device)
        self.tags[result] = Tag(origins.pack(self._new(record), channels).expand(y.shape).movedim(-1, 1))

    def _channelwise(self, tag: Tag, groups: int, result: Tensor) -> Tag | None:
        """Return the tag of a linear map's outputs behind a depthwise convolution: it mixes tokens, not channels."""
        if tag.other is not None or not groups == tag.codes.shape[1] == result.shape[1] > 1:
            return None
        columns = origins.over_pixels(tag.codes, result.shape) if isinstance(self.source(tag), Linear) else None
        return None if columns is None else Tag(columns, None, tag.path | {POOLED})

    def _block(self, tensor: Tensor) -> Block | None:
        """Return which entries of which parameter a matrix (…, I, O) holds; ``None`` where it is no weight."""
        if (block := self.parameters.block(tensor)) is not None:
            return block
        tag = self.tags.get(tensor)
        if tag is None or not self.is_weight(tag):
            return None
        entries = origins.place(tag.codes).view(-1, *tensor.shape[-2:])
        parameter = self.source(tag)
        offsets = entries[0, :, 0] - entries[0, 0, 0]
        regular = (entries == entries[:, :1] + offsets[:, None]).all() and not tag.path  # else it is computed
        regular = regular and origins.source(tag.codes).unique().numel() == 1
        return Block(parameter, entries[:, 0] if regular else None, offsets)

    # Sources.

    def _numbered(self, parameter: nn.Parameter) -> int:
        if id(parameter) not in self._numbers:
            self._numbers[id(parameter)] = self._new(parameter)
        return self._numbers[id(parameter)]

    def _new(self, source: Source) -> int:
        """Give a source its number."""
        number = len(self.sources)
        self.sources.append(source)
        key = source.block.key if isinstance(source, Linear) else (id(source),)
        self.alike.append(self._maps.setdefault(key, number))
        for name in RECORDED.get(type(source), ()):
            storage = getattr(source, name).untyped_storage().data_ptr()
            self._recorded.setdefault(storage, []).append((source, name))
        return number


PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution")
# What is done about an operation, by its name; every other one is a function of single numbers, a norm or a sum.
NOTES: dict[str, Callable[[WatchMode, Operation], None]] = {
    **dict.fromkeys(MAKES, WatchMode._make),
    **dict.fromkeys(MOVES, WatchMode._move),
    **dict.fromkeys(FILLS, WatchMode._fill),
    **dict.fromkeys(PRODUCTS[:4], WatchMode._multiply),
    **dict.fromkeys(UPSAMPLES, WatchMode._resize),
    **dict.fromkeys(("add", "add_"), WatchMode._add),
    "convolution": WatchMode._convolve,
    "embedding": WatchMode._look_up,
    "cat": WatchMode._put_beside,
}


@contextmanager
def watching(model: nn.Module) -> Iterator[WatchMode]:
    """Watch what runs inside; fused attention is written out."""
    with passing(model, WatchMode(model)) as mode:
        yield mode
