"""Tables of positions, seen to be added to tokens: which rows, of which tokens, and which attention then sees them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from structured_init.hosts.watching import origins
from structured_init.hosts.watching.mode import BATCHED, Operation
from structured_init.hosts.watching.records import RESIZED, Added, Product, Tag, tensors

Pass = Any  # forward_pass.WatchMode, which holds these
NONE: frozenset[int] = frozenset()


class Tables:
    """What a pass has shown of tables.

    Attributes:
        added: every time that a table was added to tokens.
        resized: tables that were added with other numbers than their own.
        one_row: tables that were looked up, by identity → whether all tokens got one row.
        of: of tensors of tokens, which of ``added`` gave rows to them, by number.
        grids: (pixels, channels) of convolutions → (rows, columns) of each, or a volume's axes.
    """

    def __init__(self, seen: Pass, model: nn.Module) -> None:
        self.seen = seen
        self.buffers = [each for each in model.buffers() if each.is_floating_point() and each.ndim > 1]
        self.added: list[Added] = []
        self.resized: list[nn.Parameter] = []
        self.one_row: dict[int, bool] = {}
        self.grids: dict[tuple[int, int], set] = {}
        self.of: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._attended = 0  # how many of ``added`` were so before attention last ran
        self._turn = 0  # how many maps of attention have been multiplied with values
        self._read: set[int] = set()  # parameters that were multiplied as tokens are, by identity

    def carry(self, operation: Operation) -> None:
        """Take note of which tables gave rows to the tokens of an operation's result.

        Logits and what is made of them belong to the tokens that ask, so of a product of two activations the left one
        counts; :meth:`attend` corrects it where a map stands on the right. Of tokens that were put beside others, what
        all of them were given counts, but for those that were given nothing, such as a class token. A convolution over
        several tokens makes tokens of its own.
        """
        if not self.of:
            return
        name, args = operation.name, operation.args
        given = [self.of.get(each, NONE) for each in tensors(args)]
        if name in BATCHED:
            tables = given[-1] if self.seen.parameters.parameter(args[-2]) is not None else given[-2]
        elif name == "convolution" and args[1].shape[2:].numel() > 1 == args[8]:
            tables = NONE
        elif name in ("cat", "stack"):
            tables = frozenset.intersection(*([each for each in given if each] or [NONE]))
        else:
            tables = NONE.union(*given)
        if tables:
            for out in tensors(operation.result):
                self.of[out] = tables

    def attend(self, maps: Tensor, result: Tensor) -> tuple[Added, ...]:
        """Return the tables that gave rows to the tokens that ask, in the order of the pass, and hand them on."""
        self._attended = len(self.added)
        self._turn += 1
        tables = self.of[result] = self.of.get(maps, NONE)
        return tuple(self.added[number] for number in sorted(tables))

    def look_up(self, table: nn.Parameter, numbers: Tensor) -> None:
        """Take note of whether all tokens get one row of a table."""
        same = numbers.shape[-1:].numel() > 1 and len(numbers.unique()) == 1
        self.one_row[id(table)] = same and self.one_row.get(id(table), True)

    def read(self, tokens: Tag) -> None:
        """Take note of a parameter that is multiplied as tokens are."""
        if self.seen.is_weight(tokens):
            self._read.add(id(self.seen.source(tokens)))

    def convolve(self, result: Tensor) -> None:
        """Take note of the grid that a convolution gives."""
        if result.ndim > 3:
            size = tuple(result.shape[2:])
            self.grids.setdefault((math.prod(size), result.shape[1]), set()).add(size)

    def add(self, operation: Operation) -> None:
        """Record a parameter, or a buffer, with a row for every token that is added to tokens."""
        result = operation.result
        for table, tokens in itertools.permutations(tensors(operation.args[:2]), 2):
            if tokens.shape == result.shape and result.ndim in (3, 4):
                self._add(table, tokens, result)

    def _add(self, table: Tensor, tokens: Tensor, result: Tensor) -> None:
        across = table.ndim > 2 and table.shape[-2] == 1  # of (B, dates, places, D), that of dates; of (T, B, D)
        whole = table.ndim == result.ndim == 4 and table.shape[1:] == result.shape[1:]  # of (B, rows, columns, D)
        axis = -3 if across or whole else -2
        if table.ndim < 2 or table.shape[-1] != result.shape[-1] or not 1 < table.shape[axis] == result.shape[axis]:
            return
        seen, given, source = self.seen, self.seen.trace(table).tag, self.seen.source_of(tokens)
        if isinstance(source, Product):  # to logits a mask or a bias is added
            return
        if RESIZED in given.path and seen.is_weight(given):
            self.resized.append(seen.source(given))
        rows = self._rows(table, axis)
        if rows is None or id(rows[0]) in self._read:
            return
        zeros = tokens in seen.tags and source is None and not tokens.any()  # that nothing has computed
        if zeros or seen.parameters.parameter(tokens) is not None:
            # Learned queries: they are read, or added to what is no input, before what attention makes of them is.
            if rows[0].numel() == result[0].numel():
                self._read.add(id(rows[0]))
            return
        # Looked up are also a row for each sample, such as its class; and words may be numbered as positions are.
        of_samples = across and result.ndim == 3
        if table in seen.tags and (of_samples or self._rows(tokens) is not None):
            return
        columns = math.prod(table.shape[axis + 1 : -1])
        for along, features, row in self._readings(tokens, result, rows, axis):
            before, own, after = self._of_the_input(tokens, along)
            own *= columns
            samples = result.numel() // (result.shape[along] * columns * result.shape[features])
            # A table that is added to several tensors, such as states and actions, is one.
            same = [number for number, each in enumerate(self.added) if each.parameter is rows[0]]
            self.of[result] = self.of.get(result, NONE) | {(*same, len(self.added))[0]}
            where = (rows[0], features, row, row + before)
            self.added.append(Added(*where, own, after, self._turn, samples, samples, result.ndim, before))

    def _readings(self, tokens: Tensor, result: Tensor, rows: tuple, axis: int) -> list[tuple[int, int, int]]:
        """Return along which axes tokens and features may lie, and the first row: attention's width tells which."""
        codes, (before, own, _) = self.seen.trace(tokens).tag.codes, self._of_the_input(tokens, -1)
        as_it_is, turned = (axis, -1, rows[1]), (-1, -2, 0)
        if result.ndim == 4 or own < 2 or rows[0].numel() != result[0].numel():
            return [as_it_is]
        one, two = codes[0, :2, before : before + own]  # channels come first where all columns have one code each
        if one.equal(two) or one.diff().any() or two.diff().any():
            return [as_it_is]
        return [turned] if result.shape[-1] == result.shape[-2] else [as_it_is, turned]

    def prepend(self, result: Tensor) -> None:
        """Count the tokens put before those that were given a table's rows, until attention runs."""
        before, tokens, _ = self._of_the_input(result)
        for place in range(self._attended, len(self.added)):
            each = self.added[place]
            if (each.tokens, each.width) == (tokens, result.shape[-1]):
                self.added[place] = replace(each, prefix=before)

    def _rows(self, tensor: Tensor, axis: int = -2) -> tuple[Tensor, int] | None:
        """Return whose rows (…, T, D) are, T after the other and the same for all samples, and the first one's number.

        They are a view of a parameter or buffer, or were looked up in a parameter. T is the length of ``axis``, or that
        of all axes from there to D: of a grid, rows times columns.
        """
        tag, width = self.seen.tag(tensor), tensor.shape[-1]
        tokens = math.prod(tensor.shape[axis:-1])
        if tag is None:
            return self._rows_of_buffer(tensor, axis)
        if tag.other is not None or tag.path or tag.codes.is_complex():
            return None
        codes = origins.compact(tag.codes)
        begin = codes.flatten()[0]
        owner = self.seen.sources[int(origins.source(begin))]
        if not isinstance(owner, nn.Parameter) or not _is_table(owner, tokens, width):
            return None
        entries = codes - begin + origins.place(begin)
        row = int(entries.flatten()[0]) // width
        order = torch.arange(tokens * width, device=entries.device).view(tensor.shape[axis:])
        return (owner, row) if (entries == row * width + order).all() else None

    def _rows_of_buffer(self, tensor: Tensor, axis: int) -> tuple[Tensor, int] | None:
        """Return the buffer whose rows, in their order, a tensor is equal to, and the number of the first of these.

        What is looked up in a buffer has no tag, so numbers are compared.
        """
        tokens, width = math.prod(tensor.shape[axis:-1]), tensor.shape[-1]
        for buffer in self.buffers:
            if not _is_table(buffer, tokens, width) or not tensor.is_floating_point():
                continue
            table = buffer.to(tensor).flatten(0, -2)  # which may be added in a lower precision than it is held in
            first = int((table == tensor.flatten(0, -2)[0]).all(dim=-1).int().argmax())
            rows = table[first : first + tokens]
            is_view = tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
            if len(rows) < tokens or (rows[0].equal(rows[1]) and not is_view):  # one tells no token from another
                continue
            if tensor.equal(rows.view(tensor.shape[axis:]).expand_as(tensor)):
                return buffer, first
        return None

    def _of_the_input(self, tokens: Tensor, axis: int = -2) -> tuple[int, int, int]:
        """Return how many tokens come from the input, and how many parameters stand before and after the first."""
        tag, count = self.seen.tags.get(tokens), tokens.shape[axis]
        if tag is None:
            return 0, count, 0
        numbers = origins.source(tag.codes.movedim(axis, 0).flatten(1)[:, 0]).tolist()
        own = [place for place, each in enumerate(numbers) if not isinstance(self.seen.sources[each], nn.Parameter)]
        return (own[0], len(own), count - own[0] - len(own)) if own else (count, 0, 0)

    def settle(self, given: list[Tensor], widths: Collection[int]) -> list[Added]:
        """Return each table once, with the grid of its tokens: as it is first added where attention is so wide.

        Args:
            given: what the model was given, of floating point.
            widths: of the tokens that attention sees.
        """
        chosen: dict[int, Added] = {}
        for each in sorted(self.added, key=lambda each: each.width not in widths):
            chosen.setdefault(id(each.parameter), each)
        # What has four axes and another width than attention is a map of a ConvNet.
        tables = [each for each in chosen.values() if each.axes == 3 or each.width in widths]
        return [self._with_grid(each, given) for each in tables]

    def _with_grid(self, added: Added, given: list[Tensor]) -> Added:
        """Return a table with what is known of the grid of its tokens."""
        grids = self.grids.get((added.tokens, added.width), set())
        alike = [each for each in self.added if each.parameter is added.parameter and each.given == added.given]
        images = [each for each in given if each.ndim > 3]
        dates = {each.shape[1] for each in given if each.ndim in (3, 5)}  # of a series or a video, beside images or not
        squares = [_square(each, added) for each in images]
        return replace(
            added,
            all_samples=sum(each.samples for each in alike),
            image=bool(grids) or (bool(images) and added.tokens not in dates),
            square=next(filter(None, squares), None),
            grid=next(iter(grids)) if len(grids) == 1 else None,
        )


def _is_table(tensor: Tensor, tokens: int, width: int) -> bool:
    """Say whether a tensor has rows of some width along one axis alone, or exactly as many as there are tokens."""
    along_one = math.prod(tensor.shape[:-1]) == max(tensor.shape[:-1], default=0)
    return tensor.shape[-1] == width and (along_one or tensor.numel() == tokens * width)


def _square(images: Tensor, added: Added) -> tuple[int, int] | None:
    """Return rows and columns of as many square patches of images (B, C, H, W), (B, H, W, C) or (B, dates, …).

    Where there are none, as of images that the model crops, a square of as many patches. ``None`` where that is none
    either, where the tokens are not those of each image, and for a volume.
    """
    if added.samples % max(len(images), 1):
        return None
    channels_last = images.shape[-1] < min(images.shape[-3:-1])
    depth, height, width = (images.shape[:-1] if channels_last else images.shape)[-3:]
    tokens, pixels = added.tokens, depth * height * width
    size = round((pixels / max(tokens, 1)) ** (1 / 3))
    if images.ndim == 5 and added.samples == len(images) and depth > size and pixels == tokens * size**3:
        return None  # cubes, several of them along the depth
    crops = added.samples not in (len(images), math.prod(images.shape[:-3]))
    for high, wide in ((width if crops else height, width), (1, 1)):
        rows = math.isqrt(tokens * high // max(wide, 1))
        if rows**2 * wide == tokens * high > 0:
            return rows, tokens // rows
    return None
