"""Positions that a model adds to its tokens, parameter or buffer: of known classes, and those that a pass shows.

Letters: T rows of the table, N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.hosts.layout import TokenLayout
from structured_init.hosts.registry import Registry, Where, selects, warn_of_idle, what_the_model_has
from structured_init.hosts.watched import watched_attention
from structured_init.hosts.watching.evidence import FoundAttention
from structured_init.hosts.watching.records import Added
from structured_init.inputs import pair
from structured_init.util.errors import StructuredInitError, shown
from structured_init.util.names import is_stack, outwards, within
from structured_init.weights import Weights

TOKENS: Registry[TokenLayout | Sequence[TokenLayout] | None] = Registry()
NO_POSITIONS = "no table of positions was found"
NOT_IN_ORDER = (
    "left alone: the tokens it is added to were not seen to be all patches behind class and register tokens, which "
    "mask tokens in place of patches hide: say what the grid is with structured_init.register_positions"
)
NOT_AS_IT_IS = (
    "resized before it is added to the tokens: give a batch of the size at which it stays as it is, or describe it "
    "with structured_init.register_positions"
)
NOT_TOLD_APART = (
    "of the tables that are added to tokens, {}, it was not seen which layers each is for: describe them with "
    "structured_init.register_positions, for Positions to write them"
)
FOUND_BY_WATCHING = "; given a batch, as batch=…, one forward pass finds a learned table"

Describe = Callable[[Any], TokenLayout | Sequence[TokenLayout] | None]


class PositionSite:
    """The positions of one model or tower, seen through an overlay.

    Attributes:
        name: the parameter's or buffer's name, e.g. ``"pos_embed"``.
        tensor: the host's own parameter or buffer.
        grid: (rows, columns), or ``None`` for a sequence.
    """

    def __init__(self, name: str, layout: TokenLayout, weights: Weights) -> None:
        self.name, self.grid, self._weights = name, layout.grid, weights
        self.tensor: Tensor = layout.positions
        self._first, self._features = layout.first, layout.features

    @property
    def num_tokens(self) -> int:
        """N, the tokens of the grid; prefix tokens are not counted."""
        return self.tensor.numel() // self.embed_dim - self._first

    @property
    def behind(self) -> int:
        """How many of its rows a forward pass showed to be added to class or register tokens behind the patches."""
        if self._first + self.num_tokens == prod(self.grid or ()):  # all rows are those of patches, masked or not
            return 0
        return next((seen.after for seen in self._weights.seen.added if seen.parameter is self.tensor), 0)

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold them; a buffer that is computed anew when a model is built is often left out."""
        owner, _, name = self.name.rpartition(".")
        module = self._weights.modules.get(owner)
        return module is None or name not in module._non_persistent_buffers_set

    @property
    def embed_dim(self) -> int:
        """D."""
        return self.tensor.shape[self._features]

    @property
    def value(self) -> Float[Tensor, "tokens embed_dim"]:
        """The grid's positions, (N, D); rows of prefix tokens are not among them."""
        return self._rows(self._weights.read(self.tensor)).clone()

    def write(self, value: Float[Tensor, "tokens embed_dim"], by: str) -> None:
        """Write the grid's positions; rows of prefix tokens keep their value."""
        if tuple(value.shape) != (expected := (self.num_tokens, self.embed_dim)):
            raise StructuredInitError(f"'{self.name}' takes (tokens, embed_dim) = {expected}, got {tuple(value.shape)}")
        self._rows(self._weights.edit(self.tensor, by)).copy_(value)
        if self.grid and prod(self.grid) == 1:
            what = "the grid has a single patch: positions say nothing, use larger images or smaller patches"
            self._weights.warn(f"'{self.name}': {what}")

    def _rows(self, full: Tensor) -> Tensor:
        return full.movedim(self._features, -1).view(-1, self.embed_dim)[self._first :]

    def __repr__(self) -> str:
        return f"PositionSite('{self.name}', grid={self.grid}, embed_dim={self.embed_dim})"


def register_positions(cls: type[nn.Module] | str) -> Callable[[Describe], Describe]:
    """Make a model class's tokens known, by decorating the function that returns its ``TokenLayout``.

    The layout holds for all attention inside a module of the class. Given a batch, a forward pass still finds other
    learned tables beside the one that is registered, and tells which attention each is for. Without a batch, what is
    registered is all that is known.

    The function may return a list of layouts, for several tables. It may also be registered for a module that holds a
    table and no attention. In both cases a forward pass tells which attention sees each table. It may return ``None``
    for a module whose tokens are those of the model around it.

    Example:
        >>> class Signs(nn.Module):  # tokens of 16 frames × 20 joints
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.frames = nn.Parameter(0.02 * torch.randn(1, 16, 1, 64))
        ...         self.joints = nn.Parameter(0.02 * torch.randn(1, 1, 20, 64))
        ...         self.block = OverJointsThenFrames(64)
        ...
        ...     def forward(self, x):
        ...         return self.block(x + self.frames + self.joints)
        >>> @register_positions(Signs)
        ... def my_positions(module):
        ...     return TokenLayout(grid=(4, 5), positions=module.joints)
        >>> [site.name for site in position_sites(Signs(), batch=batch)]  # the pass finds the frames
        ['frames', 'joints']
    """
    return TOKENS.adding(cls)


@dataclass(frozen=True)
class KnownTokens:
    """What is known of a model's tokens."""

    layouts: dict[str, TokenLayout]  # by the name of the module around them
    why_unknown: str | None  # why tables that were seen to be added to tokens are left alone, or those of no layers
    remarks: list[tuple]  # on tables, for who asks for positions: (Log.note, name, what)


def token_layouts(model: nn.Module | Weights) -> dict[str, TokenLayout]:
    """Return the token layouts of a model by the modules' names: of known classes, and what a pass has shown."""
    return known_tokens(model if isinstance(model, Weights) else Weights(model)).layouts


def known_tokens(weights: Weights) -> KnownTokens:
    """Return what is known of a model's tokens and their positions."""
    known_so_far = lambda: (TOKENS.version, weights.view.seen is None)  # noqa: E731
    return weights.view.search_once("tokens", known_so_far, lambda: _search_tokens(weights))


def _search_tokens(weights: Weights) -> KnownTokens:
    known = ((name, module, TOKENS.find(module)) for name, module in weights.modules.items())
    said = {name: describe(module) for name, module, describe in known if describe is not None}
    described = {name: [of] if isinstance(of, TokenLayout) else list(of or ()) for name, of in said.items()}
    return _Search(weights, described).result()


def position_sites(model: nn.Module | Weights, where: Where = None, *, batch: Any = None) -> list[PositionSite]:
    """Find the positions of a model, in its order.

    Args:
        model: a model, to read, or an overlay, to write as well.
        where: which of them; see :func:`structured_init.hosts.registry.selects`.
        batch: what the model takes, to find a table of an unknown class by running the model once; without it, what
            the host library names serves. An overlay has its own.
    """
    if not isinstance(model, Weights):
        return sought_position_sites(Weights(model, batch=batch), where)
    weights = model
    found = token_layouts(weights).values()  # several lists of layers may have one table
    layouts = {id(layout.positions): layout for layout in found if layout.positions is not None}.values()
    sites = [PositionSite(weights.names(layout.positions)[0], layout, weights) for layout in layouts]
    for say, *what in known_tokens(weights).remarks:  # to those alone who ask for positions
        say(weights, *what)
    return [site for site in sites if selects(where, site.name, site)]


def sought_position_sites(weights: Weights, where: Where = None) -> list[PositionSite]:
    """Return the position sites; where this library does not know all of them, the model is run on a batch."""
    described_by_user = any(TOKENS.foreign(module) for module in weights.modules.values())
    if not token_layouts(weights) or weights.batch is not None or (weights.can_ask and described_by_user):
        watched_attention(weights)
    return position_sites(weights, where)


def no_positions(weights: Weights) -> str:
    """Say that a model has no positions that are known, and how they would be found where it could not be run."""
    found_on_a_batch = FOUND_BY_WATCHING if "batch=" in (weights.seen.why_not or "") else ""
    return known_tokens(weights).why_unknown or NO_POSITIONS + found_on_a_batch


def required_position_sites(weights: Weights, where: Where, who: str) -> list[PositionSite]:
    """Return the position sites, and raise one line that says what the model has where there is none."""
    sites, everywhere = sought_position_sites(weights, where), [site.name for site in position_sites(weights)]
    if sites:
        warn_of_idle(weights, where, everywhere, who, "positions")
        return sites
    if everywhere:
        names = ", ".join(everywhere)
        raise StructuredInitError(f"{who}: where={shown(where)} selects none of the model's positions ({names})")
    if token_layouts(weights):
        raise StructuredInitError(f"{who} found no positions: the model was built without any")
    if why_unknown := known_tokens(weights).why_unknown:
        raise StructuredInitError(f"{who}: {why_unknown}")
    raise StructuredInitError(
        f"{who} found no position embedding that it recognizes; {what_the_model_has(weights.model)}: describe the model"
        f" with structured_init.register_positions{FOUND_BY_WATCHING if weights.batch is None else ''}"
    )


@dataclass(frozen=True, eq=False)
class Table:
    """A table that a pass has shown to be added to tokens.

    Attributes:
        name: the parameter's or buffer's name.
        layout: what is known of it; ``None`` where it is left alone.
        tokens: how many tokens attention sees where it is added.
        note: what a report says of it.
    """

    name: str
    layout: TokenLayout | None
    tokens: int
    note: str = ""


class _Search:
    """The layouts of a model, by the name of the module that they hold in: described, and of tables that a pass shows.

    A described table keeps its layout. It holds in the module that it was described for, but for attention whose tokens
    were given another; where several are described for a module, each stands under its own name. The table of an
    attention layer is the one that its tokens were given last, as the pass shows. Of several that were added without
    attention between them, it is the one that is added to as many tokens as the layer sees.

    A table's name does not matter. It is of shape (T, D) or (1, T, D), for tokens (T, B, D) also (T, 1, D), for tokens
    (B, dates, places, D) also (1, 1, T, D) or (1, T, 1, D), for tokens (B, D, T) also (D, T) or (1, D, T), where
    attention is of width D. It is added as it is or, but for (T, 1, D), row by row (``nn.Embedding``), and lies outside
    of lists of layers.

    Of images the tokens are a grid: that of the convolution that gave them, what the model says of its patches, that of
    as many square patches, or a square of that many, which the report says. Where there are as many dates as patches,
    those are a grid that are added once for each image. Class and register tokens are those that are parameters
    themselves; with one behind the patches the table is left alone. One that is longer than the tokens, where no
    convolution gave a grid, is that of a sequence, such as the frames of a spectrogram.
    """

    def __init__(self, weights: Weights, described: Mapping[str, list[TokenLayout]]) -> None:
        self.weights, self.described = weights, described
        self.known: dict[str, TokenLayout] = {}
        for name, several in described.items():
            for each in several:
                alone = len(several) == 1 or each.positions is None
                self.known[name if alone else weights.names(each.positions)[0]] = each
        self.tables = self._seen_tables()
        self.unseen = self._unseen_tables()
        self.candidates = {layer.name: self._tables_of(layer) for layer in weights.seen.layers}
        self.placed: dict[str, Table] = {}  # by the name of the module that it holds in
        self.why_unknown: str | None = None
        self.remarks: list[tuple] = []

    def result(self) -> KnownTokens:
        """Return what is known, and what there is to say of it."""
        seen = self.weights.seen
        if self.weights.can_ask and seen.why_not:
            why = f"{seen.why_not}; so no learned table of positions was found"
            self.why_unknown = f"{why}: structured_init.register_positions describes one"
        for table in self.tables.values():
            if table.layout is None:
                self.remarks.append((Weights.skip, table.name, NOT_IN_ORDER))
                self.why_unknown = f"'{table.name}' is {NOT_IN_ORDER}"
        for layer in seen.layers:
            self._place(layer.name, self.candidates[layer.name], layer.length)
        self._place_unreached()
        for table in dict.fromkeys(self.placed.values()):
            self.remarks.append((Weights.note, table.name, table.note))
        layouts = self.known | {name: table.layout for name, table in self.placed.items()}
        if not layouts and seen.resized:
            self.why_unknown = f"'{self.weights.names(seen.resized[0])[0]}' is {NOT_AS_IT_IS}"
        return KnownTokens(layouts, self.why_unknown, list(dict.fromkeys(self.remarks)))

    def _seen_tables(self) -> dict[int, Table]:
        """Return the tables that were added to tokens, by identity."""
        seen = self.weights.seen.added
        added, tables = {id(each.parameter) for each in seen}, {}
        stacks = {name: module for name, module in self.weights.modules.items() if is_stack(module)}
        own = {name: {id(held) for held in module.parameters()} for name, module in stacks.items()}
        layers = [name for name, held in own.items() if not held or held - added]  # no list of tables
        for each in seen:
            name = self.weights.names(each.parameter)[0]
            around = [self.described[home] for home in outwards(name) if home in self.described]
            said_to_have_none = around and all(layout.positions is None for layout in around[0])
            if not said_to_have_none and not any(within(name, list_) for list_ in layers):
                tables[id(each.parameter)] = self._describe(each, name)
        return tables

    def _unseen_tables(self) -> dict[int, Table]:
        """Return the tables that are described and were not seen to be added, by identity."""
        tables = {}
        for layout in self.known.values():
            if layout.positions is not None and id(layout.positions) not in self.tables:
                rows = layout.positions.numel() // layout.positions.shape[layout.features]
                tokens = prod(layout.grid) + layout.prefix_tokens if layout.grid else rows
                tables[id(layout.positions)] = Table(self.weights.names(layout.positions)[0], layout, tokens)
        return tables

    def _describe(self, seen: Added, name: str) -> Table:
        """Return what a pass says of a table; one that somebody described keeps its layout."""
        tokens, note = seen.prefix + seen.tokens + seen.after, f"seen to be added to the tokens: {seen.given} tokens"
        for layout in self.known.values():
            if layout.positions is seen.parameter:
                return Table(name, layout, tokens, note)
        rows = seen.parameter.numel() // seen.width
        cut = seen.grid is None and not seen.after and rows > seen.first + seen.tokens  # for longer rows of tokens
        if not seen.image or not seen.tokens or cut:
            layout = TokenLayout(None, positions=seen.parameter, first=seen.row, features=seen.features)
            return Table(name, layout, tokens, note)
        if rows != seen.first + seen.tokens or seen.after:
            return Table(name, None, tokens)
        grid, more = self._grid(seen, name)
        layout = TokenLayout(grid, seen.prefix, seen.parameter, seen.first, features=seen.features)
        before = f" behind {seen.prefix} other{'s' * (seen.prefix > 1)}" if seen.prefix else ""
        return Table(name, layout, tokens, f"seen to be added to the tokens: {seen.tokens} tokens{before}{more}")

    def _grid(self, seen: Added, name: str) -> tuple[tuple[int, int] | None, str]:
        """Return rows and columns of the patches that a table is added to, and what to note of them."""
        attends = [each.name for each in self.weights.seen.layers]
        owner = next((outer for outer in outwards(name) if any(within(each, outer) for each in attends)), "")
        beside = [module for each, module in self.weights.modules.items() if within(each, owner)]
        said_by = (grid for grid in _grids(self.weights.modules, owner, beside) if prod(grid) == seen.tokens)
        said = seen.grid or next(said_by, None)
        grid = None if len(said or ()) > 2 else said or seen.square
        if grid is None:
            return None, ""
        guess = ", a square of that many" if grid[0] == grid[1] else ", as square patches give"
        guess += ", rows first; if that is wrong, say so with structured_init.register_positions"
        return grid, f", a grid of {grid[0]}×{grid[1]}{'' if said else guess}"

    def _tables_of(self, layer: FoundAttention) -> list[Table]:
        """Return the tables that a layer's tokens were given since attention last ran on them.

        One that is described for the module around it, and was not seen to be added, may be one too.
        """
        turns = {id(each.parameter): each.turn for each in layer.tables if id(each.parameter) in self.tables}
        last = max(turns.values(), default=0)
        given = [self.tables[table] for table, turn in turns.items() if turn == last]
        at_home = next((self.described[home] for home in outwards(layer.name) if home in self.described), ())
        return given + [self.unseen[id(each.positions)] for each in at_home if id(each.positions) in self.unseen]

    def _place(self, layer: str, several: list[Table], length: int) -> None:
        """Write down whose table a layer has, for the outermost module around it in which no layer has another."""
        around, candidates = enclosing(self.known, layer), several
        if len(several) > 1:
            several = [table for table in several if table.tokens == length]
        if len(several) == 1 and several[0].layout is not None and several[0].layout is not around:
            others = [name for name, given in self.candidates.items() if given != candidates or len(given) > 1]
            homes = [home for home in self.known if within(layer, home)]
            taken = [name for name in (*others, *homes) if name != layer]
            free = [outer for outer in outwards(layer) if not any(within(name, outer) for name in taken)]
            self.placed[free[-1] if free else layer] = several[0]
        elif len(candidates) > 1 and len(several) != 1:
            why = NOT_TOLD_APART.format(", ".join(table.name for table in candidates))
            if around is None:
                self.why_unknown = why + (FOUND_BY_WATCHING if self.weights.batch is None else "")
            else:
                own = self.weights.names(around.positions)[0]
                self.remarks.append((Weights.warn, f"'{own}' is taken for the positions of all layers: {why}"))

    def _place_unreached(self) -> None:
        """Keep the one table that reaches no attention; of several, nothing says which is which."""
        reached = {table for several in self.candidates.values() for table in several}
        registered = {id(layout) for layout in self.known.values()}
        left = [table for table in self.tables.values() if table not in reached and table.layout is not None]
        left = [table for table in left if id(table.layout) not in registered]
        if len(left) == 1:
            self.placed[left[0].name] = left[0]
        names = [table.name for table in left] if len(left) > 1 else []
        placed = {table.name for table in self.placed.values()}
        for several in self.described.values():
            if len(several) > 1:  # which is for which layer, only a pass tells
                described = [self.weights.names(each.positions)[0] for each in several if each.positions is not None]
                names += [name for name in described if name not in placed]
        if names and self.why_unknown is None:
            more = FOUND_BY_WATCHING if self.weights.batch is None else ""
            self.why_unknown = NOT_TOLD_APART.format(", ".join(names)) + more


def enclosing(tokens: dict[str, TokenLayout], name: str) -> TokenLayout | None:
    """Return the token layout of the innermost module around ``name``, or of that name, that has one."""
    return next((tokens[around] for around in outwards(name) if around in tokens), None)


def _grids(modules: Mapping[str, nn.Module], owner: str, outside: list[nn.Module]) -> Iterator[tuple[int, int]]:
    """What a patch embedding, the model, the model around it or its configuration says of rows and columns."""
    for module in (*outside, *(modules[name] for name in outwards(owner))):
        grid = getattr(module, "grid_size", None)
        if isinstance(grid, tuple | list) and len(grid) == 2:
            yield grid[0], grid[1]
        for source in (module, getattr(module, "config", None)):
            image, patch = (pair(getattr(source, name, None)) for name in ("image_size", "patch_size"))
            if image and patch:
                yield image[0] // patch[0], image[1] // patch[1]
