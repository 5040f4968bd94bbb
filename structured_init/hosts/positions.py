"""Positions that a model adds to its tokens, parameter or buffer: of known classes, and those that a pass shows.

Letters: T rows of the table, N tokens of a grid (Gy, Gx), D embed_dim.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from structured_init.hosts.layout import TokenLayout
from structured_init.hosts.registry import Registry, Where, selects, warn_of_idle, what_the_model_has
from structured_init.hosts.watched import watched_attention
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
    "of the tables that are added to tokens, {}, it was not seen which layers each is for: add each right before its "
    "own list of layers runs, or, where one list is for several, describe the tables with "
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
    return watched_layouts(weights, described)


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
    known = ((name, module) for name, module in weights.modules.items() if TOKENS.find(module) is not None)
    described = [name for name, module in known if not TOKENS.foreign(module)]
    stacks = (name for name, module in weights.modules.items() if is_stack(module))
    beside = not described or not all(any(within(each, name) for name in described) for each in stacks)
    if not token_layouts(weights) or (weights.can_ask and beside):
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


def watched_layouts(weights: Weights, described: Mapping[str, list[TokenLayout]]) -> KnownTokens:
    """Return all layouts, by the name of the module around them: described, and of tables that a pass shows.

    A described table keeps its layout. It holds in the module that it was described for, but for attention that another
    table is seen to be for. One of several of a module stands under its own name, and a forward pass alone tells whose
    it is; so it does for the table of a module without attention, and beside a described table for one of unknown use.

    A table's name does not matter. It is of shape (T, D) or (1, T, D), for tokens (T, B, D) also (T, 1, D), for tokens
    (B, dates, places, D) also (1, 1, T, D) or (1, T, 1, D), for tokens (B, D, T) also (D, T) or (1, D, T), where
    attention is of width D. It is added as it is or, but for (T, 1, D), row by row (``nn.Embedding``), and lies outside
    of lists of layers. Of several in one module, such as those of an encoder and a decoder, each is that of the lists
    of layers that run after it and before the next, or before one that is left alone; a single one is not that of lists
    that run before it, unless all do. Where that does not tell several apart, each is that of the attention layers that
    see as many tokens as it is added to.

    Of images the tokens are a grid: that of the convolution that gave them, what the model says of its patches, that of
    as many square patches, or a square of that many, which the report says. Where there are as many dates as patches,
    those are a grid that are added once for each image. Class and register tokens are those that are parameters
    themselves; with one behind the patches the table is left alone. One that is longer than the tokens, where no
    convolution gave a grid, is that of a sequence, such as the frames of a spectrogram.
    """
    tables = _Tables(weights, described)
    layouts: dict[str, TokenLayout] = {}
    for owner, several in tables.seen().items():
        layouts |= tables.told_apart(owner, several)
    layouts = {  # under its own name where another is described for the module
        weights.names(layout.positions)[0] if name in tables.known else name: layout for name, layout in layouts.items()
    }
    placed = {id(layout.positions) for layout in layouts.values()}
    together = (each for several in described.values() if len(several) > 1 for each in several)
    apart = [weights.names(each.positions)[0] for each in together if id(each.positions) not in {*placed, id(None)}]
    if apart and not tables.why_unknown:
        more = FOUND_BY_WATCHING if weights.batch is None else ""
        tables.why_unknown = NOT_TOLD_APART.format(", ".join(apart)) + more
    for table in dict.fromkeys(id(each.positions) for each in layouts.values()):
        if table in tables.notes:
            tables.remarks.append((Weights.note, *tables.notes[table]))
    layouts = tables.known | layouts
    if not layouts and weights.seen.resized:
        tables.why_unknown = f"'{weights.names(weights.seen.resized[0])[0]}' is {NOT_AS_IT_IS}"
    return KnownTokens(layouts, tables.why_unknown, tables.remarks)


class _Tables:
    """The tables of a model, those that are described and those that a pass has shown."""

    def __init__(self, weights: Weights, described: Mapping[str, list[TokenLayout]]) -> None:
        watched = [each.name for each in weights.seen.layers]
        self.weights, self.described = weights, described
        self.why_unknown: str | None = None
        self.remarks: list[tuple] = []
        if weights.can_ask and weights.seen.why_not:
            why = f"{weights.seen.why_not}; so no learned table of positions was found"
            self.why_unknown = f"{why}: structured_init.register_positions describes one"
        self.known = {
            name if len(several) == 1 or each.positions is None else weights.names(each.positions)[0]: each
            for name, several in described.items()
            for each in several
        }
        self.registered = {id(each.positions): each for each in self.known.values()}
        added = {id(seen.parameter) for seen in weights.seen.added}
        stacks = {name: module for name, module in weights.modules.items() if is_stack(module)}  # or a list of tables
        own = {name: {*map(id, of.parameters())} for name, of in stacks.items()}
        self.stacks = [name for name, of in own.items() if not of or of - added]
        self.attend = [name for name in self.stacks if any(within(each, name) for each in watched)] or self.stacks
        inner = watched or self.stacks
        self.homes = [name for name, of in described.items() if of and any(within(each, name) for each in inner)]
        self.lengths: dict[int, int] = {}  # of tables by identity: how many tokens attention sees where each is added
        self.refused: dict[str, list[int]] = defaultdict(list)  # when tables that are left alone were added
        self.notes: dict[int, tuple[str, str]] = {}  # of tables by identity: what to note, should they be taken

    def seen(self) -> dict[str, list[tuple[int, TokenLayout]]]:
        """Return what was added to tokens, and when, by the module that it belongs to."""
        found: dict[str, list[tuple[int, TokenLayout]]] = defaultdict(list)
        for seen in self.weights.seen.added:
            name = self.weights.names(seen.parameter)[0]
            owner = name.rpartition(".")[0]
            while owner and owner not in self.homes and not any(_inside(stack, owner) for stack in self.stacks):
                owner = owner.rpartition(".")[0]
            around = [self.described[each] for each in sorted(self.described, key=len) if within(owner, each)]
            none = bool(around) and all(each.positions is None for each in around[-1])  # it is said to have none
            if none or any(within(name, stack) for stack in self.stacks):
                continue
            rows = seen.parameter.numel() // seen.width
            cut = seen.grid is None and not seen.after and rows > seen.first + seen.tokens  # for longer rows of tokens
            image = seen.image and seen.tokens > 0 and not cut
            layout = self.registered.get(id(seen.parameter))
            if layout is None and image and (rows != seen.first + seen.tokens or seen.after):
                self.remarks.append((Weights.skip, name, NOT_IN_ORDER))
                self.why_unknown = f"'{name}' is {NOT_IN_ORDER}"
                self.refused[owner].append(seen.at)
                continue
            self.lengths[id(seen.parameter)] = seen.prefix + seen.tokens + seen.after
            what = f"seen to be added to the tokens: {seen.given} tokens"
            if layout is None and image:
                grid, more = self._grid(seen, owner)
                layout = TokenLayout(grid, seen.prefix, seen.parameter, seen.first, features=seen.features)
                before = f" behind {seen.prefix} other{'s' * (seen.prefix > 1)}" if seen.prefix else ""
                what = f"seen to be added to the tokens: {seen.tokens} tokens{before}{more}"
            self.notes[id(seen.parameter)] = name, what
            layout = layout or TokenLayout(None, positions=seen.parameter, first=seen.row, features=seen.features)
            found[owner].append((seen.at, layout))
        return found

    def _grid(self, seen: Added, owner: str) -> tuple[tuple[int, int] | None, str]:
        """Return rows and columns of the patches that a table is added to, and what to note of them."""
        beside = [module for each, module in self.weights.modules.items() if within(each, owner)]
        said_by = (grid for grid in _grids(self.weights.modules, owner, beside) if prod(grid) == seen.tokens)
        said = seen.grid or next(said_by, None)
        grid = None if len(said or ()) > 2 else said or seen.square
        if grid is None:
            return None, ""
        guess = ", a square of that many" if grid[0] == grid[1] else ", as square patches give"
        guess += ", rows first; if that is wrong, say so with structured_init.register_positions"
        return grid, f", a grid of {grid[0]}×{grid[1]}{'' if said else guess}"

    def told_apart(self, owner: str, several: list[tuple[int, TokenLayout]]) -> dict[str, TokenLayout]:
        """Return the tables of a module by what they are for; say where that cannot be told."""
        names = self.weights.names
        taken = {id(layout.positions) for _, layout in several}
        for here in self.described.get(owner, ()):  # a buffer, or added in a way that the pass does not see
            if here.positions is not None and id(here.positions) not in taken:
                rows = here.positions.numel() // here.positions.shape[here.features]
                self.lengths[id(here.positions)] = prod(here.grid) + here.prefix_tokens if here.grid else rows
                several = [*several, (0, here)]
        several = sorted(several, key=lambda each: each[0])
        at_home = (one for _, one in several if any(one is of and within(owner, at) for at, of in self.known.items()))
        said = next(at_home, None)
        if said is several[0][1] and len(several) == 1:
            return {}
        inside = [each for each in self.attend if _inside(each, owner)]
        outer = [each for each in inside if not any(_inside(each, other) for other in inside)]
        by, split = self._by_order(owner, several, outer)
        if len(several) == 1 and not split and len(by) in (0, len(outer)):
            by = {owner: several[0][1]}
        tables = [layout.positions for _, layout in several]
        if len({id(layout) for layout in by.values()}) != len(several):
            by = _by_length(self.weights, owner, [layout for _, layout in several], self.lengths)
        if by:
            return by
        if len(outer) > 1 or len(several) > 1:
            why_unknown = NOT_TOLD_APART.format(", ".join(names(table)[0] for table in tables))
            if said is None:
                self.why_unknown = why_unknown
            else:
                what = f"'{names(said.positions)[0]}' is taken for the positions of all layers: {why_unknown}"
                self.remarks.append((Weights.warn, what))
        if any(id(table) in self.registered for table in tables):  # they are there, whatever they are for
            return {names(layout.positions)[0]: layout for _, layout in several}
        return {}

    def _by_order(
        self, owner: str, several: list[tuple[int, TokenLayout]], outer: list[str]
    ) -> tuple[dict[str, TokenLayout], bool]:
        """Return the table that was added last before each list of layers ran, and whether one that is left alone was.

        A list that runs before any table has been added has none.
        """
        ran, by, split = self.weights.seen.ran.items(), {}, False
        begun = {stack: min((order for name, order in ran if within(name, stack)), default=0) for stack in outer}
        for stack, start in begun.items():
            at, layout = next((each for each in reversed(several) if each[0] <= start), (start, None))
            own = any(at <= first < when <= start for when in self.refused[owner] for first in begun.values())
            by |= {} if layout is None or own else {stack: layout}
            split |= own
        return by, split


def _by_length(
    weights: Weights, owner: str, tables: Sequence[TokenLayout], lengths: Mapping[int, int]
) -> dict[str, TokenLayout]:
    """Return the one of several tables that has as many tokens as each attention layer sees; nothing if any is open.

    A sequence that was not seen to be added may have more rows, where no table has as many: padding hides how many.
    """
    layers = {each.name: each.length for each in weights.seen.layers if within(each.name, owner)}
    seen = {id(each.parameter) for each in weights.seen.added}
    longer = [each for each in tables if each.grid is None and id(each.positions) not in seen]
    fitting = {
        name: [each for each in tables if lengths[id(each.positions)] == length]
        or [each for each in longer if lengths[id(each.positions)] > length]
        for name, length in layers.items()
    }
    taken = {id(several[0].positions) for several in fitting.values() if len(several) == 1}
    whole = len(taken) == len(tables) and all(len(several) == 1 for several in fitting.values())
    return {name: several[0] for name, several in fitting.items()} if whole else {}


def _inside(inner: str, outer: str) -> bool:
    return inner != outer and within(inner, outer)


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
