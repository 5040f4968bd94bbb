"""Positions that a model adds to its tokens, parameter or buffer: of known classes, and those that a pass shows.

Letters: T rows of the table, N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

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

Known = TypeVar("Known")
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
    return weights.view.search_once(
        "tokens", lambda: (TOKENS.version, weights.view.seen is None), lambda: _Search(weights).result()
    )


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
    for say, *what in known_tokens(weights).remarks:  # to those alone who ask for positions
        say(weights, *what)
    sites = {}  # several lists of layers may have one table
    for layout in token_layouts(weights).values():
        if layout.positions is not None:
            name = weights.names(layout.positions)[0]
            sites[name] = PositionSite(name, layout, weights)
    return [site for name, site in sites.items() if selects(where, name, site)]


def sought_position_sites(weights: Weights, where: Where = None) -> list[PositionSite]:
    """Return the position sites; where this library does not know all of them, the model is run on a batch."""
    described_by_user = any(TOKENS.foreign(module) for module in weights.modules.values())
    if not token_layouts(weights) or weights.batch is not None or (weights.can_ask and described_by_user):
        watched_attention(weights)
    return position_sites(weights, where)


def found_by_watching(weights: Weights) -> str:
    """Say how a table would be found, to end a message with; "" where a batch was given."""
    return "; given a batch, as batch=…, one forward pass finds a learned table" if weights.batch is None else ""


def no_positions(weights: Weights) -> str:
    """Say that a model has no positions that are known, and how they would be found where it could not be run."""
    could_not_run = "batch=" in (weights.seen.why_not or "")
    return known_tokens(weights).why_unknown or NO_POSITIONS + could_not_run * found_by_watching(weights)


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
        f" with structured_init.register_positions{found_by_watching(weights)}"
    )


@dataclass(frozen=True, eq=False)
class Table:
    """A table that somebody described, or that a pass has shown to be added to tokens.

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
    (B, dates, places, D) also (1, 1, T, D) or (1, T, 1, D), for tokens (B, rows, columns, D) also (1, rows, columns,
    D), for tokens (B, D, T) also (D, T) or (1, D, T), where attention is of width D. It is added as it is or, but for
    (T, 1, D), row by row (``nn.Embedding``), and lies outside of lists of layers.

    Of images the tokens are a grid: that of the convolution that gave them, what the model says of its patches, that of
    as many square patches, or a square of that many, which the report says. Class and register tokens are those that
    are parameters themselves; with one behind the patches the table is left alone. One that is longer than the tokens,
    where no convolution gave a grid, is that of a sequence, such as the frames of a spectrogram.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights, self.seen = weights, weights.seen
        self.added = {id(each.parameter) for each in self.seen.added}
        self.known: dict[str, TokenLayout] = {}
        self.tables: dict[int, Table] = {}  # by identity
        self.unseen: dict[str, list[Table]] = {}  # by the module that they are described for
        self.taken: set[int] = set()  # tables that were described, or that a layer may have, by identity
        self.why_unknown: str | None = None
        self.remarks: list[tuple] = []

    def result(self) -> KnownTokens:
        """Return what is known, and what there is to say of it."""
        if self.weights.can_ask and self.seen.why_not:
            why = f"{self.seen.why_not}; so no learned table of positions was found"
            self.why_unknown = f"{why}: structured_init.register_positions describes one"
        for name, module in self.weights.modules.items():
            describe = TOKENS.find(module)
            if describe is not None:
                self._describe(name, describe(module))
        self._find_added()
        placed = self._place({layer.name: self._table_of(layer) for layer in self.seen.layers})
        for table in placed.values():
            self.remarks.append((Weights.note, table.name, table.note))
        layouts = self.known | {name: table.layout for name, table in placed.items()}
        if not layouts and self.seen.resized:
            self.why_unknown = f"'{self.weights.names(self.seen.resized[0])[0]}' is {NOT_AS_IT_IS}"
        return KnownTokens(layouts, self.why_unknown, list(dict.fromkeys(self.remarks)))

    def _describe(self, home: str, said: TokenLayout | Sequence[TokenLayout] | None) -> None:
        """Take note of what somebody said of a module: of several tables, each stands under its own name."""
        layouts = [said] if isinstance(said, TokenLayout) else said or []
        self.unseen[home] = []
        for layout in layouts:
            if layout.positions is None:
                self.known[home] = layout
                continue
            table, name = id(layout.positions), self.weights.names(layout.positions)[0]
            self.known[home if len(layouts) == 1 else name] = layout
            rows = layout.positions.numel() // layout.positions.shape[layout.features]
            self.tables[table] = Table(name, layout, rows - layout.first + layout.prefix_tokens)
            self.taken.add(table)
            if table not in self.added:
                self.unseen[home].append(self.tables[table])

    def _find_added(self) -> None:
        """Take note of the tables that were added to tokens outside of lists of layers."""
        layers = []
        for name, module in self.weights.modules.items():
            if is_stack(module) and {id(held) for held in module.parameters()} - self.added:  # no list of tables
                layers.append(name)
        for each in self.seen.added:
            name = self.weights.names(each.parameter)[0]
            around = enclosing(self.known, name)
            said_to_have_none = around is not None and around.positions is None
            if not said_to_have_none and not any(within(name, list_) for list_ in layers):
                self.tables[id(each.parameter)] = self._table_from(each, name)

    def _table_from(self, seen: Added, name: str) -> Table:
        """Return what a pass says of a table; one that somebody described keeps its layout."""
        tokens, note = seen.prefix + seen.tokens + seen.after, f"seen to be added to the tokens: {seen.given} tokens"
        if id(seen.parameter) in self.tables:
            return replace(self.tables[id(seen.parameter)], tokens=tokens, note=note)
        rows = seen.parameter.numel() // seen.width
        cut = seen.grid is None and not seen.after and rows > seen.first + seen.tokens  # for longer rows of tokens
        if not seen.image or not seen.tokens or cut:
            layout = TokenLayout(None, positions=seen.parameter, first=seen.row, features=seen.features)
            return Table(name, layout, tokens, note)
        if rows != seen.first + seen.tokens or seen.after:
            self.remarks.append((Weights.skip, name, NOT_IN_ORDER))
            self.why_unknown = f"'{name}' is {NOT_IN_ORDER}"
            return Table(name, None, tokens)
        note = f"seen to be added to the tokens: {seen.tokens} tokens"
        if seen.prefix:
            note += f" behind {seen.prefix} other{'s' * (seen.prefix > 1)}"
        said = seen.grid or self._said_grid(name, seen.tokens)
        grid = (said or seen.square or (0, 0))[-2:]
        if prod(grid) != seen.tokens:  # there is none, or a volume
            grid = None
        else:
            note += f", a grid of {grid[0]}×{grid[1]}"
            if said is None:
                note += ", a square of that many" if grid[0] == grid[1] else ", as square patches give"
                note += ", rows first; if that is wrong, say so with structured_init.register_positions"
        layout = TokenLayout(grid, seen.prefix, seen.parameter, seen.first, features=seen.features)
        return Table(name, layout, tokens, note)

    def _said_grid(self, table: str, tokens: int) -> tuple[int, int] | None:
        """Return rows and columns of as many patches as the model says, or its configuration, nearest to a table."""
        for outer in outwards(table):
            for name, module in self.weights.modules.items():
                sources = (module, getattr(module, "config", None)) if within(name, outer) else ()
                for source in sources:
                    sizes = (getattr(source, size, None) for size in ("grid_size", "image_size", "patch_size"))
                    grid, image, patch = map(pair, sizes)
                    if image and patch:
                        grid = image[0] // patch[0], image[1] // patch[1]
                    if grid and prod(grid) == tokens:
                        return grid
        return None

    def _table_of(self, layer: FoundAttention) -> Table | None:
        """Return the table that a layer's tokens were given since attention last ran on them.

        One that is described for the module around it, and was not seen to be added, may be one too. Of several, it is
        the one that is added to as many tokens as the layer sees.
        """
        turns = {id(each.parameter): each.turn for each in layer.tables if id(each.parameter) in self.tables}
        given = [table for table, turn in turns.items() if turn == max(turns.values())]
        self.taken.update(given)
        candidates = [self.tables[table] for table in given] + (enclosing(self.unseen, layer.name) or [])
        fitting = candidates
        if len(candidates) > 1:
            fitting = [table for table in candidates if table.tokens == layer.length]
        if len(fitting) == 1:
            return fitting[0]
        why = self._not_told_apart(candidates)
        if candidates and enclosing(self.known, layer.name) is None:
            self.why_unknown = why
        elif candidates:
            self.remarks.append((Weights.warn, f"those that are described are taken for all layers: {why}"))
        return None

    def _place(self, whose: dict[str, Table | None]) -> dict[str, Table]:
        """Return each layer's table, by the outermost module around it in which no layer has another."""
        placed = {}
        for layer, table in whose.items():
            if table is None or table.layout is None or table.layout is enclosing(self.known, layer):
                continue
            others = [other for other, its in whose.items() if its is not table]
            place = layer
            for outer in outwards(layer):
                if outer in self.known or any(within(other, outer) for other in others):
                    break
                place = outer
            placed[place] = table
        # One table that reaches no attention is kept; of several, nothing says which is which.
        left = [table for key, table in self.tables.items() if key not in self.taken and table.layout is not None]
        if len(left) == 1:
            placed[left[0].name] = left[0]
        elif left and self.why_unknown is None:
            self.why_unknown = self._not_told_apart(left)
        return placed

    def _not_told_apart(self, tables: list[Table]) -> str:
        return NOT_TOLD_APART.format(", ".join(table.name for table in tables)) + found_by_watching(self.weights)


def enclosing(known: dict[str, Known], name: str) -> Known | None:
    """Return what is known for the innermost module around ``name``, or of that name: its token layout, mostly."""
    return next((known[around] for around in outwards(name) if around in known), None)
