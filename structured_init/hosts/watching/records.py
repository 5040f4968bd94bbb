"""What is seen in one forward pass: linear maps, products of activations, and weighted sums of values.

Letters: N tokens, M keys, I inputs, O outputs, k head_dim. A batch is samples, windows and heads together, as the host
multiplies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from structured_init.hosts.watching import origins
from structured_init.hosts.watching.mode import ProductName
from structured_init.util.errors import StructuredInitError

ROWS = 64  # queries of each head whose logits and outputs are kept to be compared
# Entries of a path that are no operation's name.
MIXED, TWICE = "mixed by a linear map", "added to itself"
AVERAGED, POOLED, GATED = "channels averaged", "tokens pooled", "a gate"
NEGATED = "a change of sign"
ADAPTED = "an adapter"
RESIZED = "resized"


@dataclass(eq=False)
class Tag:
    """Where a tensor's numbers come from: a code for each (see ``origins``), and what was done since."""

    codes: Int64[Tensor, ...]
    other: Int64[Tensor, ...] | None = None  # the codes of the second of two tensors of one source that were added
    path: frozenset[str] = frozenset()  # names of the operations since the source that changed numbers

    @property
    def second(self) -> Int64[Tensor, ...]:
        """The codes of the second tensor, or of the only one."""
        return self.codes if self.other is None else self.other


@dataclass(frozen=True, eq=False)
class Traced:
    """A tensor, and where its numbers come from."""

    numbers: Tensor
    tag: Tag

    @property
    def mT(self) -> Traced:
        """The same with its last two axes turned."""
        return Traced(self.numbers.mT, turned(self.tag))

    def few(self, entries: list[int], rows: Int64[Tensor, " rows"] | slice = slice(None)) -> Traced:
        """Return some entries and rows; the tag stays that of the whole."""
        return Traced(self.numbers[entries][:, rows], self.tag)


@dataclass(frozen=True, eq=False)
class Block:
    """Which entries of a parameter a matrix W (I, O) is, or several of them side by side.

    ``starts`` are the indices of the entries for input 0, ``None`` where the entries follow no rule; ``offsets`` lead
    from there to the entry for each input.
    """

    parameter: nn.Parameter
    starts: Int64[Tensor, "matrices outputs"] | None
    offsets: Int64[Tensor, " inputs"]

    @property
    def inputs(self) -> int:
        """How many inputs W has."""
        return len(self.offsets)

    @property
    def key(self) -> tuple:
        """What two blocks share that are the same entries in the same order."""
        starts, offsets = (tuple(each.tolist()) for each in (self.starts.flatten(), self.offsets))
        return id(self.parameter), self.starts.shape, hash(starts), hash(offsets)

    @property
    def turned(self) -> Block:
        """Wᵀ."""
        if self.starts is None:
            return self
        offsets = self.starts[0] - self.starts[0, 0]
        return Block(self.parameter, self.starts[:, :1] + self.offsets, offsets)


@dataclass(frozen=True, eq=False)
class Added:
    """A table (…, T, D), (…, T, 1, D), (1, rows, columns, D) or (…, D, T), seen to be added: a row to each token."""

    parameter: Tensor  # or a buffer
    features: int  # the axis along which D lies, −1 or −2
    row: int  # the first row that is added
    first: int  # the row that the first token of the input is given
    tokens: int  # how many of the input are given one; of a text all are rows of a table themselves, and 0 here
    after: int  # how many tokens that are parameters, such as registers, stand behind the first of the input in the sum
    turn: int  # how many maps of attention had been multiplied with values before
    samples: int  # how many sets of tokens it is added to: samples, or the dates or places of all of them
    all_samples: int  # the same of all times that as many of its rows are added
    axes: int  # of what it is added to: (B, T, D) or (T, B, D), or (B, dates, places, D)
    prefix: int = 0  # how many of them stand before those of the input where attention sees them
    image: bool = False  # whether the model was given images
    square: tuple[int, int] | None = None  # rows and columns of as many square patches of the images given
    grid: tuple[int, ...] | None = None  # rows and columns, or a volume's axes, of what a convolution gave as tokens

    @property
    def width(self) -> int:
        """D."""
        return self.parameter.shape[self.features]

    @property
    def given(self) -> int:
        """How many tokens are given a row, of each set."""
        return self.first - self.row + self.tokens + self.after


@dataclass(eq=False)
class Linear:
    """y = x W + b, seen in the module of that plain name. With several matrices, axis 0 of x and y says which."""

    module: str
    block: Block
    x: Float[Tensor, "*tokens inputs"]
    y: Float[Tensor, "*tokens outputs"]
    taken: Int64[Tensor, " inputs"] | None  # for every input, the code of what comes in
    path: frozenset[str]  # what happened to x since its own source

    def biased(self, y: Tensor) -> None:
        """Take y with a bias that is added in a step of its own, where y is that."""
        if y.numel() == self.y.numel() and y.shape[-1] == self.y.shape[-1]:
            beside = y.reshape(self.y.shape)
            bias, size = (beside - self.y).flatten(0, -2), float(beside.abs().max())
            if torch.allclose(bias, bias[:1], rtol=0, atol=1e-5 * size):
                self.y = beside


@dataclass(eq=False)
class Other:
    """A source that is no linear map of single tokens: a convolution over several, or weights that are computed."""

    module: str
    what: str  # for a message
    x: Tensor  # what it is given, channels last
    below: object | None = None  # the source of that
    taken: None = None


@dataclass(eq=False)
class Product:
    """Logits, seen: queries times keys. Of every head, a few queries of its first entry in the batch are kept.

    Given are query (batch, N, k), key (batch, M, k) and logits (batch, N, M) whole; the tags stay those of the whole.
    """

    module: str
    query: Traced  # (heads, rows, head_dim)
    key: Traced  # (heads, keys, head_dim)
    logits: Float[Tensor, "heads rows keys"]
    factor: float = 1.0  # what they were multiplied with before the softmax
    beside: list[tuple[Product, float]] = field(default_factory=list)  # products added to it, and ``factor`` then
    softened: int = 0  # how often a softmax was taken
    over_queries: bool = False  # whether one was taken over the queries, so that the keys are what asks
    apart: bool = False  # whether factors of both signs, or negative ones, were put on some of its logits alone
    others: list[Product] = field(default_factory=list)  # those whose own softmax is added to its, or subtracted
    # Of every entry of the batch: the same query channels, or keys', are one.
    heads: Int64[Tensor, " batch"] = field(init=False)
    columns: Int64[Tensor, "heads head_dim"] | None = field(init=False)  # codes of query channels, alike in all tokens
    rows: Int64[Tensor, " rows"] = field(init=False)  # which of the N queries are kept
    first: list[int] = field(init=False)  # for every head, its first entry in the batch

    def __post_init__(self) -> None:
        """Tell the heads apart, and keep a few numbers of each."""
        query = self.query
        columns = origins.over_tokens(query.tag.codes, query.tag.other)
        self.columns, self.heads = None, torch.arange(len(query.numbers), device=query.numbers.device)
        if columns is not None:
            keys = None if columns.all() else origins.over_tokens(self.key.tag.codes, self.key.tag.other)
            self.heads = torch.unique(columns if keys is None else keys, dim=0, return_inverse=True)[1]
            self.columns = columns[first_of_each(self.heads)]
        self.rows, self.first = spread(query.numbers), first_of_each(self.heads)
        self.query, self.key = query.few(self.first, self.rows), self.key.few(self.first)
        self.logits = self.logits[self.first][:, self.rows]


@dataclass(eq=False)
class Sum:
    """Values, weighted with a map and summed: what attention gives, before its output projection.

    Given are maps (batch, N, M), value (batch, M, k) and out (batch, N, k) whole; the tags stay those of the whole.
    """

    module: str
    product: ProductName  # which product it is
    is_left: bool  # whether the map is its left factor
    maps: Traced  # (heads, rows, keys); its codes say from which product each map comes
    value: Traced  # (heads, keys, value_dim)
    out: Float[Tensor, "heads rows value_dim"]
    tables: tuple[Added, ...]  # those whose rows the tokens that ask were given, in the order of the pass
    heads: Int64[Tensor, " batch"] = field(init=False)  # of every entry of the batch, its head in the product
    first: dict[int, int] = field(init=False)  # for every number of a head, its first entry in the batch
    width: int = field(init=False)  # k
    causal: bool | None = field(init=False)  # whether the whole is zero above the diagonal; ``None``: unknown
    turned: bool = field(init=False)  # whether keys and queries of the product have changed places in the map
    parted: str | None = field(init=False, default=None)  # why no linear map takes it as a whole, where known

    def __post_init__(self) -> None:
        """Read from the map which head it is of, and keep a few numbers of each."""
        maps, codes = self.maps.numbers, self.maps.tag.codes
        self.heads = origins.head(origins.compact(codes)).amax(dim=(1, 2)).expand(len(maps))
        self.turned, self.width = origins.over_queries(codes, -1), self.out.shape[-1]
        places = first_of_each(self.heads)
        self.first = {int(self.heads[place]): place for place in places}
        self.causal, rows = hides_what_follows(maps), spread(maps)
        self.maps, self.value = self.maps.few(places, rows), self.value.few(places)
        self.out = self.out[places][:, rows]


@dataclass(frozen=True)
class MapAt:
    """Where a pass computes a map: in a product with the values."""

    product: ProductName
    is_left: bool  # whether it is the left of the two
    heads: tuple[int, ...]  # the head of every entry of the batch of matrices; none where that is unknown

    def arranged(self, maps: Float[Tensor, "entries queries keys"]) -> Float[Tensor, "samples heads queries keys"]:
        """Return the maps of this place, also of another number of samples; windows count as samples.

        Raises:
            StructuredInitError: the heads are unknown, or lie in no order that tells where those of other samples are;
                the number of maps is none of as many heads.
        """
        if not self.heads:
            raise StructuredInitError("its queries do not tell its heads")
        order = list(dict.fromkeys(self.heads))
        inner = next((k for k, head in enumerate(self.heads) if head != self.heads[0]), len(self.heads))
        outer = len(self.heads) // (inner * len(order))
        if tuple(head for head in order for _ in range(inner)) * outer != self.heads:
            raise StructuredInitError("its heads lie in no order")
        if inner == outer == 1 and len(maps) > len(order) > 1:
            raise StructuredInitError("one sample does not tell whether heads or samples come first: watch two of them")
        if outer == 1:  # samples behind heads
            inner = len(maps) // len(order)
        if not inner or len(maps) % (inner * len(order)):
            raise StructuredInitError("on this batch its maps are computed in another way than on two samples of it")
        apart = maps.unflatten(0, (-1, len(order), inner)).movedim(1, 2).flatten(0, 1)
        return apart[:, sorted(range(len(order)), key=order.__getitem__)]


def spread(tensor: Float[Tensor, "batch tokens channels"], rows: int = ROWS) -> Int64[Tensor, " rows"]:
    """Return the numbers of a few tokens: the first, which are neighbours, and some of the others, evenly spread."""
    count, device = tensor.shape[1], tensor.device
    near = count if count <= rows else rows // 2
    far = torch.arange(min(count, rows) - near, device=device)
    return torch.cat([torch.arange(near, device=device), near + far * (count - near) // max(len(far), 1)])


def first_of_each(heads: Int64[Tensor, " batch"]) -> list[int]:
    """Return the place of every number's first appearance, by number."""
    numbers = heads.tolist()
    return [numbers.index(number) for number in sorted(set(numbers))]


# Whether attention hides the tokens behind each token, read from its maps.

FEW = 1 << 16  # numbers of maps that are looked at together: copies of more leave the processor's cache


def hides_what_follows(maps: Float[Tensor, "batch queries keys"]) -> bool | None:
    """Say whether every map is exactly zero above its diagonal, as under any causal mask.

    A row of equal entries says nothing: that is what a softmax makes of a token, such as padding, that is kept from
    seeing anything. ``None`` where that is every row but the last, where queries and keys are not the same number of
    tokens, and where there is one token alone.
    """
    if maps.shape[-2] != maps.shape[-1] or maps.shape[-1] < 2:
        return None
    known = False
    for few in maps.split(max(1, FEW // maps[0].numel())):  # one map that shows what follows is enough
        telling = few.amax(-1) > few.amin(-1)
        if (few.triu(1).any(-1) & telling).any():
            return False
        known |= bool(telling[..., :-1].any())
    return known or None


def agreed(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all of several answers are yes, of those that say anything; ``None`` where none does."""
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None


# Tags of tensors that were turned or pooled, and tensors in arguments.


def turned(tag: Tag) -> Tag:
    """Return the tag of a tensor whose last two axes change places."""
    return Tag(tag.codes.mT, None if tag.other is None else tag.other.mT, tag.path)


def pooled(before: Tensor, out: Tensor, args: tuple) -> Tensor | None:
    """Return the codes after tokens were pooled; ``None`` where channels were, as in the mean that a norm has."""
    few = origins.compact(before)
    if few.ndim > out.ndim and len(args) > 1 and isinstance(args[1], int | list | tuple):
        axes = sorted({axis % few.ndim for axis in ((args[1],) if isinstance(args[1], int) else args[1])}, reverse=True)
        same = all(few.shape[axis] == 1 or (few == few.narrow(axis, 0, 1)).all() for axis in axes)
        for axis in axes if same and few.ndim - len(axes) == out.ndim else ():
            few = few.select(axis, 0)
    alike = few.ndim == out.ndim and all(a in (1, b) for a, b in zip(few.shape, out.shape, strict=True))
    return few.expand(out.shape) if alike else None


def tensors(tree: object) -> list[Tensor]:
    """Return the tensors of a nest of arguments or results, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [leaf for each in tree for leaf in tensors(each)]


# Which entries of which parameter a tensor is that shares its memory: told by addresses and strides alone.


class ParameterViews:
    """The parameters of a model, or other tensors of it, by the memory that they lie in."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._storages: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            self._storages.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)

    def parameter(self, tensor: Tensor) -> Tensor | None:
        """Return which of them a tensor is, or is a view of."""
        if tensor.layout != torch.strided:  # a sparse tensor has no memory of that kind
            return None
        offset = tensor.storage_offset()
        for owner in self._storages.get(tensor.untyped_storage().data_ptr(), ()):
            if owner.storage_offset() <= offset < owner.storage_offset() + max(owner.numel(), 1):
                return owner
        return None

    def entries(self, tensor: Tensor, parameter: Tensor) -> Int64[Tensor, ...]:
        """Return for every number of a view its index in the parameter."""
        index = torch.full((), tensor.storage_offset() - parameter.storage_offset(), device=tensor.device)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True):
            index = index[..., None] + torch.arange(size, device=tensor.device) * step
        return index

    def rows(self, table: Tensor, parameter: Tensor, numbers: Tensor) -> Int64[Tensor, ...]:
        """Return the same of some rows of a table alone: a vocabulary has many more than are asked for."""
        places = torch.arange(table.shape[1], device=table.device) * table.stride(1)
        return table.storage_offset() - parameter.storage_offset() + numbers[..., None] * table.stride(0) + places

    def block(self, tensor: Tensor) -> Block | None:
        """Return the block that a matrix (…, I, O) is; ``None`` where it is no view of a parameter."""
        parameter = self.parameter(tensor)
        if parameter is None:
            return None
        device, (inputs, outputs) = tensor.device, tensor.shape[-2:]
        starts = torch.arange(outputs, device=device) * tensor.stride(-1)
        if tensor.ndim == 3 and tensor.stride(0):  # else one matrix is expanded, as torch does for a frozen weight
            starts = starts + torch.arange(len(tensor), device=device)[:, None] * tensor.stride(0)
        starts = starts + tensor.storage_offset() - parameter.storage_offset()
        return Block(parameter, starts.view(-1, outputs), torch.arange(inputs, device=device) * tensor.stride(-2))
