"""A layer's call, recorded once and repeated with other weights: what the layer reads, and where its heads look.

The network is run with everything planned so far, up to the layer. Watching its call once tells which products of the
call weight the values, and which entries of their maps are of which head. After that a repetition costs one call.

Letters: S samples, E maps of a head (its samples, and windows), T all tokens, N queries, M keys, D embed_dim.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.planned_run import owner_of, run_planned, what_the_host_offers
from structured_init.attention.stream_share import tensors
from structured_init.hosts.attention import AttentionSite
from structured_init.hosts.layout import pieces
from structured_init.hosts.watched import cannot_run, same_attention, unpadded
from structured_init.hosts.watching import origins
from structured_init.hosts.watching.forward_pass import WatchMode, passing, watching
from structured_init.hosts.watching.records import Linear, Product, ProductName, Sum
from structured_init.hosts.watching.taps import MapTap
from structured_init.inputs import Inputs, as_inputs, numbered, tokens_in
from structured_init.util.errors import StructuredInitError
from structured_init.weights import TrialWeights, Weights

MOST = 2**25  # numbers in the maps of a layer: 128 MiB of float32
SAMPLES, TOKENS = 2, 1024  # of random tokens: at least so many texts, and of short ones so many tokens


class Trial(NamedTuple):
    """What the network is run on."""

    part: nn.Module  # the model, or the part of it that the host library has inputs for
    inputs: Inputs
    on: str  # how the report calls it


def choose_trial(
    weights: Weights, site: AttentionSite, length: int, *, twice: bool = False, alone: bool = False
) -> Trial:
    """Choose the batch where its texts are as long, else what the host library offers, else the batch.

    Random tokens are as many as asked for, or half, a quarter, … of these where maps would not fit. ``twice`` asks for
    tokens that will be drawn anew, for which the host library comes first. Where nothing says what the model takes, a
    layer whose positions are in itself is run ``alone``, on tokens of N(0, 1).

    Raises:
        StructuredInitError: the model cannot be run, or nothing says on what.
    """
    if why := cannot_run(weights.model, asked=True):
        raise StructuredInitError(f"its heads are measured in a run, and {why}")
    while length > 2 and site.num_heads * length**2 > MOST:
        length //= 2
    samples = max(1, min(max(SAMPLES, TOKENS // length), MOST // (site.num_heads * length**2)))
    generator = torch.Generator().manual_seed(0)
    offered = what_the_host_offers(weights, length + site.prefix_tokens, samples)
    if weights.batch is None and offered is None and weights.can_ask:
        weights.ask()
    if weights.batch is None and offered is None and alone:
        like = site.layout.query.weight
        tokens = torch.randn(samples, length + site.prefix_tokens, site.embed_dim, generator=generator)
        return Trial(site.module, ((tokens.to(like.device, like.dtype),), {}), "random content")
    if weights.batch is None and offered is None:
        why = cannot_run(weights.model) or "nothing says what the model takes: give a batch, as batch=…"
        raise StructuredInitError(f"its heads are measured in a run, and {why}")
    if weights.batch is None:
        return Trial(*_few_images(offered), _name_of(offered[1]))
    batch = as_inputs(weights.batch)
    there = _tokens_of_batch(weights, site, batch)
    if offered is None or (not twice and (there or length) >= length):
        return Trial(weights.model, batch, "the batch")
    said = "" if twice else f", as the batch has {there} of {length}"
    return Trial(*_few_images(offered), _name_of(offered[1]) + said)


def _few_images(offered: tuple[nn.Module, Inputs]) -> tuple[nn.Module, Inputs]:
    """Return no more images or sounds than ``SAMPLES``: each costs more than its tokens."""
    part, inputs = offered
    if any(leaf.is_floating_point() for leaf in tree_leaves(inputs)):
        inputs = tree_map(lambda leaf: leaf[:SAMPLES], inputs)
    return part, inputs


def _name_of(inputs: Inputs) -> str:
    return "random tokens" if tokens_in(inputs) else "random inputs"


def _tokens_of_batch(weights: Weights, site: AttentionSite, batch: Inputs) -> int:
    """Return how many tokens a layer sees in the longest text of the batch, without padding; 0 of what is no text."""
    tokens, mask = tokens_in(batch), batch[1].get("attention_mask")
    seen = same_attention(site, weights.seen.layers)
    if seen is not None and tokens:
        tokens = seen.length
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == tokens:
        return int(mask.bool().sum(dim=1).max())
    return tokens


class Reached(Exception):
    """The layer that was waited for is about to run."""


class Place(NamedTuple):
    """Where in a call the maps of a head are."""

    product: ProductName  # which product of two batches of matrices takes them
    is_left: bool  # whether they are the left of its two
    entries: Int[Tensor, " E"]  # which matrices of that batch
    real: Bool[Tensor, "E M"]  # which keys are no padding
    visible: Bool[Tensor, "E N M"]  # which keys each query may look at


@dataclass
class LayerCall:
    """One attention layer's call, which can be repeated."""

    weights: Weights
    site: AttentionSite
    trial: Trial
    module: nn.Module  # that is called
    inputs: Inputs  # what it was called with
    told: list[Bool[Tensor, "S N"]]  # which tokens are no padding, as tables say that have a row for it
    places: dict[int, Place] = field(default_factory=dict)  # by head

    def read(self) -> Float64[Tensor, "T D"] | None:
        """Return x̂ of all tokens, what queries are read from; ``None`` where it cannot be seen."""
        seen: list[Tensor] = []
        width, query = self.site.embed_dim, pieces(self.site.layout.query)[0].weight

        def keep(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            for each in tensors((args, *kwargs.values())):
                if each.shape[-1] == width:
                    seen.append(each.reshape(-1, width).detach().to("cpu", torch.float64, copy=True))
                    return

        reader = owner_of(query, self.weights.modules.values(), self.site.module)
        hook = reader.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            self._call(self.weights, ExitStack())
        finally:
            hook.remove()
        return seen[0] if seen else None

    def maps(self) -> dict[ProductName, Float[Tensor, "entries N M"]]:
        """Repeat the call and return the maps that each product takes, as ``places`` number them."""
        tap = MapTap({place.product: place.is_left for place in self.places.values()})
        self._call(self.weights, passing(self.module, tap))
        return tap.maps

    def find_heads(self) -> None:
        """Watch the call once and find the maps of every head.

        Queries are zero for that: equal logits tell padding from what a sharp softmax leaves out.

        Raises:
            StructuredInitError: the maps are not seen.
        """
        above = TrialWeights(self.weights)
        site = self.site.through(above)
        site.query = torch.zeros_like(site.query)
        seen: list[tuple[Tensor, Tensor]] = []
        watched: list[tuple[WatchMode, dict[int, Tensor]]] = []
        originals = dict(self.weights.model.named_parameters(remove_duplicate=False))

        def look(maps: Float[Tensor, "entries N M"]) -> Tensor:
            seen.append((self._real(maps).cpu(), (maps > 0).cpu()))
            return maps.new_zeros(len(maps), 1)

        @contextmanager
        def both() -> Iterator[None]:
            named = self.weights.model.named_parameters(remove_duplicate=False)
            own = {id(lent): originals[name] for name, lent in named}
            with watching(self.module, look) as mode:
                watched.append((mode, own))
                yield

        self._call(above, both())
        mode, own = watched[0]
        head_of = _heads_by_entry(self.site)
        for record, (real, visible) in zip(mode.of(Sum), seen, strict=True):
            for number, head in _heads_in(record, mode, own, head_of):
                entries = (record.heads == number).nonzero()[:, 0].cpu()
                self.places.setdefault(head, Place(*record.place, entries, real[entries], visible[entries]))
        if not self.places:
            raise StructuredInitError(f"the attention maps of '{self.site.name}' were not seen on {self.trial.on}")

    def _real(self, maps: Float[Tensor, "entries N M"]) -> Bool[Tensor, "entries M"]:
        """Tell which keys are no padding: some query looks at them, and no table of tokens says that they are."""
        real = unpadded(maps[:, None])
        for told in self.told:
            whole = pad(told, (self.site.prefix_tokens, 0), value=True).to(real.device)
            if whole.shape[1] == real.shape[1] and len(real) % len(whole) == 0:
                real = real & whole.repeat_interleave(len(real) // len(whole), dim=0)
        return real

    def _call(self, weights: Weights, inside: Any) -> None:
        # A cache that the module fills is made anew for each call.
        run_planned(weights, copy.deepcopy(self.inputs), self.module, inside)


def _heads_by_entry(site: AttentionSite) -> dict[tuple[int, int], int]:
    """Return the head of every entry of a query weight that gives a channel: (parameter, place) → head."""
    found, head = {}, 0
    for piece in pieces(site.layout.query):
        for channels in piece.entries:
            for place in channels[:, 0].tolist():
                found[id(piece.weight), place] = head
            head += 1
    return found


def _heads_in(
    record: Sum, mode: WatchMode, own: dict[int, Tensor], head_of: dict[tuple[int, int], int]
) -> Iterator[tuple[int, int]]:
    """Yield the numbers that a weighted sum gives its heads, with the heads of the layer whose queries ask in them."""
    product = mode.source(record.maps_tag)
    if not isinstance(product, Product) or product.columns is None:
        return
    for number in record.heads.unique().tolist():
        for code in product.columns[number]:
            linear = mode.sources[int(origins.source(code))]
            if not isinstance(linear, Linear):
                continue
            block = linear.block
            place = int(block.starts.flatten()[int(origins.place(code))] + block.offsets[0])
            head = head_of.get((id(own[id(block.parameter)]), place))
            if head is not None:
                yield number, head
                break


def record_call(weights: Weights, site: AttentionSite, trial: Trial, written: Sequence[Tensor] = ()) -> LayerCall:
    """Run the network up to the first call of a layer.

    What is repeated is the module of the layer, or the whole part where it is not called as a module, or where one of
    the tensors that will be ``written`` lies outside of it.

    Raises:
        StructuredInitError: the model fails.
    """
    calls: list[Inputs] = []
    told: list[Tensor] = []

    def keep(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))
        raise Reached

    def look_up(table: nn.Embedding, args: tuple, _: Tensor) -> None:
        if args and args[0].ndim == 2:
            told.append(_between_padding(args[0] != table.padding_idx))

    with ExitStack() as hooks:
        hooks.callback(site.module.register_forward_pre_hook(keep, with_kwargs=True).remove)
        for table in weights.modules.values():
            if isinstance(table, nn.Embedding) and table.padding_idx is not None:
                hooks.callback(table.register_forward_hook(look_up).remove)
        run_until_reached(weights, trial)
    inside = {id(each) for each in (*site.module.parameters(), *site.module.buffers())}
    if calls and all(id(each) in inside for each in written):
        return LayerCall(weights, site, trial, site.module, calls[0], told)
    return LayerCall(weights, site, trial, trial.part, trial.inputs, told)


def _between_padding(real: Bool[Tensor, "S N"]) -> Bool[Tensor, "S N"]:
    """Return which tokens lie between the first and the last that is no padding."""
    return (real.cumsum(dim=1) > 0) & (real.flip(1).cumsum(dim=1).flip(1) > 0)


def run_until_reached(weights: Weights, trial: Trial, inside: AbstractContextManager[object] | None = None) -> None:
    """Run the network with everything planned so far, until a hook raises :class:`Reached`; one line where it fails."""
    try:
        run_planned(weights, trial.inputs, trial.part, inside)
    except Reached:
        pass
    except StructuredInitError:
        raise
    except Exception as error:  # of the host
        why = " ".join(str(error).split()) or type(error).__name__
        raise StructuredInitError(f"{type(trial.part).__name__} fails on {trial.on}: {why[:200]}") from error


class Wanted(NamedTuple):
    """The places of its maps where a head is to look; their attention is summed and divided by the number asked."""

    entries: Int[Tensor, " P"]
    queries: Int[Tensor, " P"]
    keys: Int[Tensor, " P"]
    asked: int  # queries
    hidden: bool  # whether a mask hides most of these places


def measure_shares(call: LayerCall, wanted: dict[int, Wanted]) -> Float64[Tensor, " heads"]:
    """Repeat a call and return the share of attention that each head puts where it is wanted to look."""
    maps = call.maps()
    shares = []
    for head, places in wanted.items():
        looks = maps[call.places[head].product][places.entries, places.queries, places.keys]
        shares.append(looks.double().sum().cpu() / max(places.asked, 1))
    return torch.stack(shares)


def keys_at_offset(place: Place, prefix: int, size: tuple[int, int], offset: tuple[int, int]) -> tuple[Wanted, int]:
    """Return where a head looks at its offset, and the length of the longest text.

    Asked are all tokens of a grid that have one at the offset. Of sequences these are the tokens in the second half of
    the longest text, padding apart, and those of other texts that have as many tokens before them.
    """
    real = place.real[:, prefix:]
    tokens = real.shape[1]
    longest = int(real.sum(dim=1).max())
    if size[0] > 1:
        longest = tokens
        queries, keys = _pairs_on_grid(size, offset)
        asked = real.new_ones(len(real), len(queries))
    else:
        back = offset[1]
        queries = torch.arange(max(back, 0), max(tokens + min(back, 0), 0))
        keys = queries - back
        before = max(back, longest + min(back, 0) - (longest + 1) // 2, 0)
        asked = real[:, queries] & real[:, keys] & (real.cumsum(dim=1)[:, queries] > before)
    entries, chosen = asked.nonzero(as_tuple=True)
    return _wanted(place, entries, queries[chosen] + prefix, keys[chosen] + prefix, len(entries)), longest


def _wanted(place: Place, samples: Tensor, queries: Tensor, keys: Tensor, asked: int) -> Wanted:
    seen = place.visible[samples, queries, keys].double()
    return Wanted(place.entries[samples], queries, keys, asked, hidden=bool(seen.numel() and seen.mean() < 0.5))


def _pairs_on_grid(size: tuple[int, int], offset: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the tokens of a grid (rows, columns) that have one (up, left) of them, and those."""
    rows, columns = size
    up, left = offset
    row = torch.arange(max(up, 0), rows + min(up, 0))
    column = torch.arange(max(left, 0), columns + min(left, 0))
    queries = (row[:, None] * columns + column).flatten()
    return queries, queries - up * columns - left


def keys_behind_equals(place: Place, prefix: int, texts: Int[Tensor, "S N"]) -> Wanted:
    """Return where a head looks at what followed an equal token before: of the second half of every text."""
    length = texts.shape[1]
    equal = texts[:, :, None] == texts[:, None, :-1]
    behind = pad(equal, (1, 0)).tril(-1)  # (S, queries, keys): the token before the key equals that of the query
    behind[:, : length // 2] = False
    samples, queries, keys = behind.nonzero(as_tuple=True)
    asked = int(behind.any(dim=2).sum())
    return _wanted(place, samples, queries + prefix, keys + prefix, asked)


# Texts in which every token comes twice.


def draw_twice(trial: Trial, generator: torch.Generator) -> Trial:
    """Return texts of random tokens of those that are there, each twice at random places.

    Where there are fewer than half of a text, they are drawn from the numbers between the least and the largest. Texts
    are as long as they were, an encoder's and a decoder's; of an odd number a token stands alone.

    Raises:
        StructuredInitError: the model takes no texts of four tokens.
    """
    inputs = _without_padding(trial.inputs) if trial.on == "the batch" else trial.inputs
    texts = [leaf for leaf in tree_leaves(inputs) if numbered(leaf)]
    longest = tokens_in(inputs)
    if longest < 4:
        raise StructuredInitError("it takes texts: token numbers of shape (B, T), T ≥ 4, and the model takes none")
    samples = len(texts[0])
    if len(texts) == len([leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]):
        samples = max(2, TOKENS // longest)
    orders = {}
    for length in dict.fromkeys(text.shape[1] for text in texts):
        orders[length] = torch.rand(samples, length, generator=generator).argsort(dim=1)

    def draw(leaf: Any) -> Any:
        return _drawn_in_order(leaf, orders[leaf.shape[1]], generator) if numbered(leaf) else leaf

    on = "random tokens of the batch" if trial.on == "the batch" else trial.on
    return Trial(trial.part, tree_map(draw, inputs), f"{on} that come twice")


def _drawn_in_order(leaf: Tensor, order: Int[Tensor, "S N"], generator: torch.Generator) -> Int[Tensor, "S N"]:
    """Draw N/2 tokens a_1, a_2, … of those in a leaf, and put a_1, …, a_1, … in an order."""
    vocabulary, half = leaf.unique(), (order.shape[1] + 1) // 2
    if len(vocabulary) <= 2:  # a mask, of which nothing is hidden
        return vocabulary[-1].expand(order.shape).clone()
    if len(vocabulary) < half:  # what lies between is in the table of the model, too
        vocabulary = torch.arange(int(vocabulary[0]), int(vocabulary[-1]) + 1, device=leaf.device)
    if len(vocabulary) >= half:
        picked = torch.rand(len(order), len(vocabulary), generator=generator).argsort(dim=1)[:, :half]
    else:
        picked = torch.randint(len(vocabulary), (len(order), half), generator=generator)
    return vocabulary[picked.repeat(1, 2).gather(1, order).to(leaf.device)]


def _without_padding(inputs: Inputs) -> Inputs:
    """Return texts cut to the tokens that none of them pads, as ``attention_mask`` says."""
    mask = inputs[1].get("attention_mask")
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        return inputs
    real = mask.bool().all(dim=0)
    if real.all() or real.sum() < 2:
        return inputs
    return tree_map(lambda leaf: leaf[:, real] if _like(leaf, mask) else leaf, inputs)


def _like(leaf: Any, mask: Tensor) -> bool:
    return isinstance(leaf, Tensor) and leaf.shape[:2] == mask.shape
