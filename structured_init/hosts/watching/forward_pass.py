"""Watching a forward pass operation by operation, with the origin of every number carried along.

``WatchMode`` sees torch's operations below autograd, where ``einsum``, ``matmul``, ``linear``, fused attention and what
custom autograd functions call are the same few: views, products of two matrices, elementwise functions, softmax. Views
are repeated on codes, so it is known of every query, key and value which output of which linear map it is, however the
host is written.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from structured_init.hosts.watching import origins
from structured_init.hosts.watching.operations import KEEPS, LINEAR, follow, function_name, taken_alike
from structured_init.hosts.watching.origins import FILLS, MAKES, MOVES, moved
from structured_init.hosts.watching.records import (
    MIXED,
    POOLED,
    RESIZED,
    Added,
    Block,
    Linear,
    Other,
    ParameterViews,
    Product,
    ProductName,
    Sum,
    Tag,
    composed,
    refuse_nested,
    tensors,
    turned,
)
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import named_plain_modules

BATCHED = ("bmm", "baddbmm")  # products of batches of matrices
NO_TABLES: frozenset[int] = frozenset()
RECORDED = {Linear: ("x", "y"), Other: ("x",)}
Mode = TypeVar("Mode", bound="PassMode")
Source = Linear | Other | Product | Sum | nn.Parameter


class PassMode(TorchDispatchMode):
    """See torch's operations below autograd, each with the module that runs it; composed ones come in their parts.

    Products of batches of matrices are counted in each module, so that two passes name the same ones alike.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = [""]  # plain names of the modules that run, the innermost last
        self.ran: set[str] = set()  # plain names of all modules that have run
        self.products: Counter[str] = Counter()  # of batches of matrices, by the innermost module, so far

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        if isinstance(func, HigherOrderOperator):
            way_out = ": use scaled_dot_product_attention for the initialization" if "flex" in func.name() else ""
            raise StructuredInitError(f"{func.name()} cannot be watched{way_out}")
        kwargs, name = kwargs or {}, func._schema.name.rpartition("::")[2]
        refuse_nested(args)
        if func.namespace != "prim" and composed(
            func
        ):  # composed operations come whole from what is written out, and in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        self.products[self.running[-1]] += name in BATCHED
        return self.operate(func, name, args, kwargs)

    @property
    def product(self) -> ProductName:
        """Which product of batches of matrices was the last in the module that runs."""
        return self.running[-1], self.products[self.running[-1]]

    def operate(self, func, name, args, kwargs):  # noqa: ANN001, ANN201
        """Carry an operation out, and look at it; ``name`` is that of torch, without its variant."""
        raise NotImplementedError

    def written_out(self, func, args, kwargs) -> Tensor:  # noqa: ANN001
        """Compute what a kernel of fused attention that runs in spite of ``sdpa_kernel`` gives, in parts."""
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        query, key, value, scale = (given.get(name) for name in ("query", "key", "value", "scale"))
        mask = given.get("attn_bias", given.get("attn_mask"))
        with self:
            groups = query.shape[1] // key.shape[1]
            key, value = (part.repeat_interleave(groups, 1) if groups > 1 else part for part in (key, value))
            logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
            logits = logits if mask is None else logits + mask
            if given.get("is_causal"):
                hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
                logits = logits.masked_fill(hidden, float("-inf"))
            return logits.softmax(-1) @ value


def is_fused(name: str) -> bool:
    """Say whether an operation is a kernel of fused attention, and not its definition in parts."""
    return name.startswith("_scaled_dot_product") and not name.endswith("_math")


class WatchMode(PassMode):
    """Record linear maps, products and weighted sums of everything that runs inside.

    ``measure`` is asked of every map, for what it gives to stand in its ``Sum``.
    """

    def __init__(self, model: nn.Module, measure: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.measure = measure
        self.sources: list[Source | None] = [None]  # what the numbers of codes stand for; 0 is unknown
        self.alike: list[int] = [0]  # for every source, the number of the first that is the same linear map
        self.tags: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what is known of tensors
        self.pointwise: set[str] = set()  # functions that were seen to act on single numbers
        self.together: dict[tuple[int, ...], Linear] = {}  # calls of one linear map → that with the tokens of all
        self.added: list[Added] = []
        self.resized: list[nn.Parameter] = []  # tables that were added with other numbers than their own
        self.one_row: dict[int, bool] = {}  # tables that were looked up, by identity → whether all tokens got one row
        self.grids: dict[tuple[int, int], set] = {}  # (pixels, channels) of convolutions → images, (rows, columns)
        self.tokens: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what those of the same tokens share
        # Of tensors of tokens: which of ``added`` gave rows to them, by number.
        self.tables: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.attended = 0  # how many of ``added`` were so before attention last ran
        self.turn = 0  # how many maps of attention have been multiplied with values
        self.read: set[int] = set()  # parameters that were multiplied as tokens are, by identity
        self._weights = ParameterViews(model.parameters())
        self._buffers = [each for each in model.buffers() if each.is_floating_point() and each.ndim > 1]
        self._fixed = ParameterViews(self._buffers)
        self._maps: dict[tuple, int] = {}
        self._numbers: dict[int, int] = {}
        self._recorded: dict[int, list[tuple[Source, str]]] = {}  # storage → records that hold a tensor in it

    def of(self, kind: type[Source]) -> list:
        """Return the sources of one kind, in the order of the pass."""
        return [source for source in self.sources if isinstance(source, kind)]

    def source(self, tag: Tag) -> Source | None:
        """Return the source of a tensor: of several, the latest."""
        few = origins.compact(origins.whole(tag.codes))
        return self.sources[int(origins.source(few.max()))] if few.numel() else None

    def number(self, source: Source) -> int:
        """Return under which number a source stands in codes."""
        return next(number for number, other in enumerate(self.sources) if other is source)

    def operate(self, func, name, args, kwargs):  # noqa: ANN001, ANN201
        before, tables = args, self._tables_of(name, args)
        if name.endswith("_") and args and isinstance(args[0], Tensor):
            # What was recorded of a tensor that is about to be overwritten is copied.
            for record, part in self._recorded.pop(args[0].untyped_storage().data_ptr(), ()):
                setattr(record, part, getattr(record, part).clone())
            if args[0] in self.tags and name[:-1] not in LINEAR and name not in FILLS:
                before = (args[0].clone(), *args[1:])
        result = func(*args, **kwargs)
        refuse_nested(args, result)
        for out in tensors(result) if tables else ():
            self.tables[out] = tables
        if len(self.sources) < origins.LIMIT - 1:
            self._note(func, name, args, kwargs, result, before)
        return result

    def _note(self, func, name, args, kwargs, result, before) -> None:  # noqa: ANN001
        if is_fused(name):
            written, out = self.written_out(func, args, kwargs), tensors(result)[0]
            self.tables[out] = self.tables.get(written, NO_TABLES)
            if (tag := self.tags.get(written)) is not None:
                self.tags[out] = tag
        elif name in ("mm", "bmm"):
            self._multiply(args[0], args[1], result)
        elif name in ("addmm", "baddbmm"):
            self._multiply(args[1], args[2], result, kwargs.get("alpha", 1) if name == "baddbmm" else None)
        elif name == "convolution":
            self._convolve(args[0], args[1], args[3], args[8], result)
        elif name in MAKES:
            if result.is_floating_point() and result.ndim > 1:
                self.tags[result] = Tag(torch.zeros(result.shape, dtype=torch.int64, device=result.device))
        elif isinstance(result, Tensor) and self._weights.parameter(result) is not None:
            pass  # a view of a parameter
        elif name == "embedding" and (table := self._weights.parameter(args[0])) is not None:
            self.tags[result] = Tag(origins.pack(self._numbered(table), self._weights.rows(args[0], table, args[1])))
            same = args[1].shape[-1:].numel() > 1 and len(args[1].unique()) == 1
            self.one_row[id(table)] = same and self.one_row.get(id(table), True)
        elif name in MOVES:
            self._move(func, name, args, kwargs, result)
            if name == "cat" and result.ndim == 3:
                self._prepend(result)
        elif "upsample" in name and (tag := self.tag(args[0])) is not None and self.is_weight(tag):
            same = args[0].shape == result.shape and torch.allclose(args[0], result)  # at the table's own size
            first = origins.compact(tag.codes).flatten()[:1].view([1] * result.ndim).expand(result.shape)
            self.tags[result] = tag if same else Tag(first, None, frozenset({RESIZED}))
        else:
            if name in ("add", "add_") and isinstance(result, Tensor) and result.ndim in (3, 4):
                self._add(args[0], args[1], result)
                self._add(args[1], args[0], result)
            follow(self, name, args, result, lambda tag: function_name(self, (func, name, before, kwargs, result), tag))
        if name not in ("mm", "bmm", "addmm", "baddbmm", "convolution"):
            self._follow_tokens(name.rstrip("_"), args, result)

    def _tables_of(self, name: str, args: tuple) -> frozenset[int]:
        """Return which tables gave rows to the tokens of an operation's result.

        Logits and what is made of them belong to the tokens that ask, so of a product of two activations the left one
        counts; ``_sum`` corrects it where a map stands on the right. Of tokens that were put beside others, what all of
        them were given counts, but for those that were given nothing, such as a class token. A convolution over several
        tokens makes tokens of its own.
        """
        if not self.tables:
            return NO_TABLES
        given = [self.tables.get(each, NO_TABLES) for each in tensors(args)]
        if name == "bmm":
            return given[1] if self._weights.parameter(args[0]) is not None else given[0]
        if name == "baddbmm":
            return given[1]
        if name == "convolution" and args[1].shape[2:].numel() > 1 == args[8]:
            return NO_TABLES
        if name in ("cat", "stack"):
            return frozenset.intersection(*([each for each in given if each] or [NO_TABLES]))
        return frozenset().union(*given)

    def _follow_tokens(self, name: str, args: tuple, result: object) -> None:
        """Carry along whose tokens they are: moves, norms and functions of one activation do not change it."""
        given = [leaf for leaf in tensors(args) if leaf.is_floating_point() and self._weights.parameter(leaf) is None]
        for out in tensors(result):
            alike = [leaf for leaf in given if leaf.numel() == out.numel() > 1]
            same = name in KEEPS and len(alike) == 1
            self.tokens[out] = self.tokens.setdefault(alike[0], object()) if same else object()

    def _move(self, func, name, args, kwargs, result) -> None:  # noqa: ANN001
        """Repeat an operation that only moves numbers on their codes."""
        tags = self.known((args, kwargs))
        if name in FILLS and tags and id(args[0]) not in tags and (filled := self._buffer(args[0])) is not None:
            tags[id(args[0])] = self.tags[args[0]] = filled
        if not tags or (name in FILLS and id(args[0]) not in tags):
            return
        seconds = any(tag.other is not None for tag in tags.values())
        path = frozenset().union(*(tag.path for tag in tags.values()))
        try:
            if name in FILLS:
                return self._fill(partial(moved, func, name, args, kwargs), args[0], tags, path)
            first = moved(func, name, args, kwargs, {key: tag.codes for key, tag in tags.items()})
            second = first
            if seconds:
                others = {key: tag.codes if tag.other is None else tag.other for key, tag in tags.items()}
                second = moved(func, name, args, kwargs, others)
        except RuntimeError:  # an operation that torch does not have for integers
            return
        for out, place, other in zip(tensors(result), tensors(first), tensors(second), strict=True):
            self.tags[out] = Tag(place, other if seconds else None, path)

    def _buffer(self, part: Tensor) -> Tag | None:
        """Return the tag of a part of a buffer, such as a cache, that is filled for the first time."""
        memory = part.untyped_storage().data_ptr()
        for held in (each for each in self._buffers if each.untyped_storage().data_ptr() == memory):
            if held not in self.tags and held.is_contiguous() and held.dtype == part.dtype:
                codes = torch.zeros(held.shape, dtype=torch.int64, device=held.device)
                self.tags[held] = Tag(codes)
                begin = part.storage_offset() - held.storage_offset()
                return Tag(codes.as_strided(part.shape, part.stride(), begin))
        return None

    def _fill(self, move: Callable, target: Tensor, tags: dict[int, Tag], path: frozenset[str]) -> None:
        """Repeat on the codes of all tensors in one memory what fills a part of it.

        They get codes of their own: those of a copy are the original's until one of both is filled.
        """
        memory = target.untyped_storage()
        here = [each for each in self.tags if each.untyped_storage().data_ptr() == memory.data_ptr()]
        here = [each for each in here if each.dtype == target.dtype and torch._debug_has_internal_overlap(each) != 1]
        lying = lambda codes, each: codes.as_strided(each.shape, each.stride(), each.storage_offset())  # noqa: E731
        size, device = memory.nbytes() // target.element_size(), target.device
        first, second, filled = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3))
        lying(filled, target).fill_(1)
        parts = (lambda tag: tag.codes), (lambda tag: tag.codes if tag.other is None else tag.other)
        for codes, part in zip((first, second), parts, strict=True):
            for each in here:
                lying(codes, each).copy_(part(self.tags[each]))
            move({key: part(tag) for key, tag in tags.items()} | {id(target): lying(codes, target)})
        seconds = any(tag.other is not None for tag in (*tags.values(), *(self.tags[each] for each in here)))
        for each in here:
            more = path if lying(filled, each).any() else frozenset()
            other = lying(second, each) if seconds else None
            self.tags[each] = Tag(lying(first, each), other, self.tags[each].path | more)

    def _add(self, table: object, tokens: object, result: Tensor) -> None:
        """Record a parameter, or a buffer, with a row for every token that is added to tokens."""
        if not isinstance(table, Tensor) or not isinstance(tokens, Tensor) or tokens.shape != result.shape:
            return
        across = table.ndim > 2 and table.shape[-2] == 1  # of (B, dates, places, D), that of dates; of (T, B, D)
        axis = -3 if across else -2
        if table.ndim < 2 or table.shape[-1] != result.shape[-1] or not 1 < table.shape[axis] == result.shape[axis]:
            return
        if across and result.ndim == 3 and self._weights.parameter(table) is None:
            return  # looked up, as many rows as samples: one for each of them, such as its class
        tag, given = self.tags.get(tokens), self.tags.get(table)
        source = None if tag is None else self.source(tag)
        if given is not None and RESIZED in given.path and self.is_weight(given) and not isinstance(source, Product):
            self.resized.append(self.source(given))
        if (rows := self._rows(table, axis)) is None or id(rows[0]) in self.read:
            return
        fixed = not isinstance(rows[0], nn.Parameter)
        if fixed and isinstance(source, Product):  # a mask or a bias
            return
        starts = source.block.starts if isinstance(source, Linear) else None
        if across and starts is not None and len(starts.unique(dim=0)) > 1:
            return  # the bias of a matrix for each of them, such as experts
        zeros = tag is not None and source is None and not tokens.any()  # that nothing has computed
        if self._weights.parameter(tokens) is not None or zeros:
            # Learned queries: they are read, or added to what is no input, before what attention makes of them is.
            if rows[0].numel() == result[0].numel():
                self.read.add(id(rows[0]))
            return
        if self._weights.parameter(table) is None and not fixed and self._rows(tokens) is not None:
            return  # both were looked up in order: words may be numbered as positions are
        before, own, _ = self._of_the_input(tokens, -1)  # channels come first where all columns have one code each,
        whole = tag is not None and result.ndim == 3 and own > 1 and rows[0].numel() == result[0].numel()
        columns = tag.codes[0, :, before : before + own] if whole else None
        turned = whole and bool((columns == columns[:, :1]).all() and columns[:2, 0].diff().any())
        readings = [(axis, -1, rows[1])] * (not turned or result.shape[-1] != result.shape[-2])
        for axis, features, row in readings + [(-1, -2, 0)] * turned:  # or tokens are filters: attention's width tells
            before, own, after = self._of_the_input(tokens, axis)
            samples = result.numel() // (result.shape[axis] * result.shape[features])
            # A table that is added to several tensors, such as states and actions, is one.
            same = [number for number, each in enumerate(self.added) if each.parameter is rows[0]]
            self.tables[result] = self.tables.get(result, NO_TABLES) | {(*same, len(self.added))[0]}
            where = (rows[0], features, row, row + before)
            self.added.append(Added(*where, own, after, self.turn, samples, samples, result.ndim, before))

    def _prepend(self, result: Tensor) -> None:
        """Count the tokens put before those that were given a table's rows, until attention runs."""
        before, tokens, _ = self._of_the_input(result)
        for place, each in list(enumerate(self.added))[self.attended :]:
            if (each.tokens, each.width) == (tokens, result.shape[-1]):
                self.added[place] = replace(each, prefix=before)

    def _rows(self, tensor: Tensor, axis: int = -2) -> tuple[Tensor, int] | None:
        """Return whose rows (…, T, D) are, T after the other and the same for all samples, and the first one's number.

        They are a view of a parameter or buffer, or were looked up in a parameter. T is the length of ``axis``, behind
        it are ones and D.
        """
        if not tensor.numel():
            return None
        owner = self._fixed.parameter(tensor)
        if owner is not None:
            entries = self._fixed.entries(origins.compact(tensor), owner)
        elif (tag := self.tag(tensor)) is None:
            return self._looked_up(tensor, axis)
        else:
            if tag.other is not None or tag.path or tag.codes.shape != tensor.shape:
                return None
            if tag.codes.is_complex():
                return None
            codes = origins.compact(tag.codes)
            begin = codes.flatten()[0]
            owner = self.sources[int(origins.source(begin))]
            if not isinstance(owner, nn.Parameter):
                return None
            entries = codes - begin + origins.place(begin)
        tokens, width = tensor.shape[axis], tensor.shape[-1]
        if owner.ndim < 2 or owner.shape[-1] != width:
            return None
        if max(sorted(owner.shape[:-1])[:-1], default=1) > 1 and owner.numel() != tokens * width:  # part of a grid
            return None
        row, channel = divmod(int(entries.flatten()[0]), width)
        order = torch.arange(tokens * width, device=entries.device).view(tokens, *[1] * (-2 - axis), width)
        return (owner, row) if not channel and bool((entries == row * width + order).all()) else None

    def _looked_up(self, tensor: Tensor, axis: int) -> tuple[Tensor, int] | None:
        """Return the buffer whose rows, one after the other, a tensor holds the numbers of, and the first one's."""
        tokens, width = tensor.shape[axis], tensor.shape[-1]
        for buffer in self._buffers:
            if buffer.ndim > 2 or buffer.shape[-1] != width or not tensor.is_floating_point():
                continue
            table = buffer.to(tensor)  # which may be added in a lower precision than it is held in
            first = (table == tensor.flatten(0, -2)[0]).all(dim=-1).nonzero()[:1, 0].tolist()
            rows = table[first[0] : first[0] + tokens] if first else table[:0]
            if len(rows) < tokens or rows[0].equal(rows[1]):  # of which one tells no token from another
                continue
            if tensor.equal(rows.view(tokens, *[1] * (-2 - axis), width).expand_as(tensor)):
                return buffer, first[0]
        return None

    def _of_the_input(self, tokens: Tensor, axis: int = -2) -> tuple[int, int, int]:
        """Return how many tokens come from the input, and how many parameters stand before and after the first."""
        tag, count = self.tags.get(tokens), tokens.shape[axis]
        if tag is None or tag.codes.shape != tokens.shape:
            return 0, count, 0
        numbers = origins.source(tag.codes.movedim(axis, 0).flatten(1)[:, 0]).tolist()
        own = [place for place, each in enumerate(numbers) if not isinstance(self.sources[each], nn.Parameter)]
        return (own[0], len(own), count - own[0] - len(own)) if own else (count, 0, 0)

    def _multiply(self, left: Tensor, right: Tensor, result: Tensor, factor: float | None = None) -> None:
        """Tell a linear map from a product of two activations."""
        one, two = self._block(left), self._block(right)
        # Where both are, one is tokens that are parameters too: rows of a table, learned queries. The weight is that
        # which lies in a parameter; where both are computed, the right one.
        first, second = self._weights.parameter(left), self._weights.parameter(right)
        if two is not None and (one is None or first is None or second is not None):
            self._linear(left, self.tag(left), two, result, result)
        elif one is not None:  # W xᵀ
            tag = self.tag(right)
            self._linear(right.mT, tag and turned(tag), one.turned, result.mT, result)
        elif result.ndim == 2 and not result.is_complex():
            self._linear(left, self.tag(left), None, result, result)
        elif result.ndim == 3 and not result.is_complex():
            left_tag, right_tag = self.tag(left), self.tag(right)
            if left_tag is not None and right_tag is not None:
                self._product(left, right, result, left_tag, right_tag, factor)

    def _linear(self, x: Tensor, tag: Tag | None, block: Block | None, y: Tensor, result: Tensor) -> None:
        """Record y = x W; W without a block is an activation. ``result`` is y as torch gave it, which may be turned."""
        self._reads(tag)
        below = None if tag is None else self.source(tag)
        mixed = isinstance(below, Product) and tag.codes.shape == y.shape
        if mixed and not origins.over_queries(tag.codes, -1):  # what a map over queries takes are tokens, no logits
            self._put(result, Tag(tag.codes, tag.other, tag.path | {MIXED}), y)
            return
        record: Source = Other(self.running[-1], "weights that are computed", x, below)
        matrices = 1
        if block is not None and block.starts is not None:
            matrices = len(block.starts)
            given = None if tag is None else tag.codes if tag.codes.ndim == 3 else tag.codes[None]
            taken, before = taken_alike(self, given), tag or Tag(None)
            record = Linear(self.running[-1], block, x, y, taken, before.path)
        channels = torch.arange(y.shape[-1] * matrices, device=y.device)
        places = origins.pack(self._new(record), channels).view(-1, 1, y.shape[-1])
        self._put(result, Tag((places if y.ndim == 3 else places[0]).expand(y.shape)), y)

    def _product(self, left: Tensor, right: Tensor, result: Tensor, one: Tag, two: Tag, factor: float | None) -> None:
        """Record logits, or the sum of values where one side is a map."""
        if isinstance(self.source(one), Product):
            self._sum(left, right, result, one, two, result, self.tables.get(left, NO_TABLES), is_left=True)
        elif isinstance(self.source(two), Product):  # Vᵀ Aᵀ
            tables, one, two = self.tables.get(right, NO_TABLES), turned(one), turned(two)
            self._sum(right.mT, left.mT, result.mT, two, one, result, tables, is_left=False)
        else:
            self._reads(one)
            logits = result if factor is None else factor * (left @ right)
            record = Product(self.running[-1], left, right.mT, one, turned(two), logits)
            self.tags[result] = Tag(origins.logits(self._new(record), record.heads, result.shape))

    def _sum(
        self,
        maps: Tensor,
        value: Tensor,
        out: Tensor,
        one: Tag,
        two: Tag,
        result: Tensor,
        tables: frozenset[int],
        *,
        is_left: bool,
    ) -> None:
        """Record values weighted with a map; its channels are those of a head, head after head."""
        self.attended = len(self.added)
        self.turn += 1
        self.tables[result] = tables
        record = Sum(self.running[-1], (self.product, is_left), maps, one, value, two, out, self.measure)
        record.tables = tuple(self.added[number] for number in sorted(tables))
        channels = record.heads[:, None, None] * out.shape[-1] + torch.arange(out.shape[-1], device=out.device)
        self._put(result, Tag(origins.pack(self._new(record), channels).expand(out.shape)), out)

    def _reads(self, tag: Tag | None) -> None:
        """Take note of a parameter that is multiplied as tokens are."""
        if tag is not None and self.is_weight(tag):
            self.read.add(id(self.source(tag)))

    def _convolve(self, x: Tensor, weight: Tensor, stride: list[int], groups: int, result: Tensor) -> None:
        """Record a convolution: of kernel 1 it is a linear map of single tokens."""
        parameter, tag = self._weights.parameter(weight), self.tag(x)
        if parameter is None:
            return
        if result.ndim > 3:
            size = result.shape[3:] if result.ndim == 5 and result.shape[2] == 1 else result.shape[2:]
            self.grids.setdefault((math.prod(size), result.shape[1]), set()).add((len(result), tuple(size)))
        if tag is not None and isinstance(self.source(tag), Product) and tag.codes.shape == result.shape:
            self.tags[result] = Tag(tag.codes, tag.other, tag.path | {MIXED})
            return
        size = tuple(weight.shape[2:])
        if math.prod(size) == 1:
            x = x[(..., *(slice(None, None, step) for step in stride))]
        y = result.movedim(1, -1)
        channels = torch.arange(result.shape[1], device=result.device)
        if math.prod(size) == groups == 1 and x.shape[2:] == result.shape[2:]:
            taken, before = taken_alike(self, None if tag is None else tag.codes.flatten(2).mT), tag or Tag(None)
            block = self._weights.block(weight[(..., *(0 for _ in size))].T)
            x = x.movedim(1, -1)
            record: Source = Linear(self.running[-1], block, x, y, taken, before.path)
        elif (kept := self._channelwise(tag, groups, result)) is not None:
            self.tags[result] = kept
            return
        else:
            kind = "depthwise convolution" if groups == x.shape[1] > 1 else "convolution"
            what = f"a {kind} of kernel {'×'.join(map(str, size))}"
            record = Other(self.running[-1], what, x.movedim(1, -1), None if tag is None else self.source(tag))
        self.tags[result] = Tag(origins.pack(self._new(record), channels).expand(y.shape).movedim(-1, 1))

    def _channelwise(self, tag: Tag | None, groups: int, result: Tensor) -> Tag | None:
        """Return the tag of a linear map's outputs behind a depthwise convolution: it mixes tokens, not channels."""
        if tag is None or tag.other is not None or not groups == tag.codes.shape[1] == result.shape[1] > 1:
            return None
        columns = origins.over_pixels(tag.codes, result.shape) if isinstance(self.source(tag), Linear) else None
        return None if columns is None else Tag(columns, None, tag.path | {POOLED})

    def _put(self, result: Tensor, tag: Tag, seen: Tensor) -> None:
        """Tag a result, which is ``seen`` or that with its last axes turned."""
        self.tags[result] = tag if seen is result else turned(tag)

    def _block(self, tensor: Tensor) -> Block | None:
        """Return which entries of which parameter a matrix (…, I, O) holds; ``None`` where it is no weight."""
        if (block := self._weights.block(tensor)) is not None:
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

    def known(self, tree: object) -> dict[int, Tag]:
        return {id(leaf): tag for leaf in tensors(tree) if (tag := self.tag(leaf)) is not None}

    def tag(self, tensor: Tensor) -> Tag | None:
        """Return a tensor's tag; that of a parameter, or of a view of one, is made when it is asked for."""
        parameter = self._weights.parameter(tensor)
        if parameter is None:
            return self.tags.get(tensor)
        return Tag(origins.pack(self._numbered(parameter), self._weights.entries(tensor, parameter)))

    def _numbered(self, parameter: nn.Parameter) -> int:
        if id(parameter) not in self._numbers:
            self._numbers[id(parameter)] = self._new(parameter)
        return self._numbers[id(parameter)]

    def _new(self, source: Source) -> int:
        number = len(self.sources)
        self.sources.append(source)
        key = source.block.key if isinstance(source, Linear) else (id(source),)
        self.alike.append(self._maps.setdefault(key, number))
        for name in RECORDED.get(type(source), ()):
            storage = getattr(source, name).untyped_storage().data_ptr()
            self._recorded.setdefault(storage, []).append((source, name))
        return number

    def weight(self, tensor: Tensor) -> bool:
        """Say whether a tensor is a parameter, a view or a copy of one."""
        tag = self.tag(tensor)
        return tag is not None and self.is_weight(tag)

    def is_weight(self, tag: Tag) -> bool:
        """Say whether every number of a tensor is a parameter's; of tokens, some may be, such as a class token's."""
        few = origins.compact(origins.whole(tag.codes))
        ends = (few.max(), few.min()) if few.numel() else ()
        return bool(ends) and all(isinstance(self.sources[int(origins.source(end))], nn.Parameter) for end in ends)


# Running a model under watch.


@contextmanager
def watching(model: nn.Module, measure: Callable[[Tensor], Tensor] | None = None) -> Iterator[WatchMode]:
    """Watch what runs inside; fused attention is written out, and its inference fast path is off."""
    with passing(model, WatchMode(model, measure)) as mode:
        yield mode


@contextmanager
def passing(model: nn.Module, mode: Mode) -> Iterator[Mode]:
    """Let a mode see what runs inside, and in which module."""

    def enter(*_: object, name: str) -> None:
        mode.running.append(name)
        mode.ran.add(name)

    def leave(*_: object) -> None:  # what a hook returns would replace what the module gave
        mode.running.pop()

    with ExitStack() as hooks:
        for name, module in named_plain_modules(model):
            hooks.callback(module.register_forward_pre_hook(partial(enter, name=name), prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        hooks.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH), mode:
            yield mode
