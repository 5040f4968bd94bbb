"""What heads do in the whole network, in a forward pass with all that is planned: what layers read, and their maps.

Letters: S samples, B entries of a batch (samples, windows and heads together), N tokens, D embed_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.planned_run import run_planned, what_the_host_offers
from structured_init.attention.sequence.biases import asking
from structured_init.attention.sequence.heads import Layer, Offset, Outcome
from structured_init.attention.stream_share import last_module
from structured_init.errors import StructuredInitError
from structured_init.hosts.layout import pieces
from structured_init.hosts.stream import norm_weight
from structured_init.hosts.watched import cannot_run, same_attention, unpadded
from structured_init.hosts.watching import origins
from structured_init.hosts.watching.forward_pass import WatchMode, watching
from structured_init.hosts.watching.records import Linear, Product, Sum
from structured_init.overlay import Weights
from structured_init.running import Inputs, as_inputs, numbered, tokens_in

MOST = 2**25  # numbers in the maps of a layer, which a pass holds a few times: 128 MiB of float32 each
SAMPLES, ENOUGH = 4, 2048  # of random tokens: at least so many texts, and of short ones so many tokens
LITTLE = 1e-3  # of a mean square: less than that is noise
NORMED = 2.0  # times larger or smaller than 1, up to which what a layer reads is taken for the outcome of a norm
AGREE = 0.05  # from which difference on the prediction stands beside what was measured


class Pass(NamedTuple):
    """What was seen in a pass."""

    seen: WatchMode  # all of it
    own: dict[int, Tensor]  # identity of what stood in for a parameter → the model's own
    on: str  # what the model was run on
    samples: int  # S


def watched_pass(
    layers: Sequence[Layer],
    measure: Callable[[Inputs, Tensor, Tensor], Tensor],
    *,
    twice: bool = False,
) -> Pass:
    """Run the network, no further than each of some layers has run once; nothing need be flushed.

    It is run on the batch where one was given that is long enough, else on random tokens or pixels as the host library
    offers them. The contexts are as long as the longest that is asked for, or half, a quarter, … of it where the maps
    would not fit.

    ``measure`` is asked of what the network is given, of which keys of each sample are no padding, and of every map,
    see ``WatchMode``. Padding is what no query looks at, and what stands at an end of a text as the ``padding_idx`` of
    its tables. ``twice`` gives random tokens that come twice, whatever the batch.
    """
    weights = layers[0].weights
    length = max(each.length + each.site.prefix_tokens for each in layers)
    heads = max(each.site.num_heads for each in layers)
    while length > 2 and heads * length**2 > MOST:
        length //= 2
    texts = max(SAMPLES, ENOUGH // length)
    part, inputs, known = to_run(layers[0], length, max(1, min(texts, MOST // (heads * length**2))), twice)
    wanted = {last_module(each.site, weights.modules) for each in layers}
    left = set(wanted)
    originals = dict(weights.model.named_parameters(remove_duplicate=False))
    passes: list[tuple[WatchMode, dict[int, Tensor]]] = []
    texts: dict[int, Tensor] = {}  # identity of what such a table looks up → which tokens of its last texts are real

    def looked_up(table: nn.Embedding, given: tuple, _: object) -> None:
        if given and given[0].ndim == 2 and (real := given[0] != table.padding_idx).any():
            texts[id(table.weight)] = (real.cumsum(1) > 0) & (real.flip(1).cumsum(1).flip(1) > 0)

    def measured(maps: Float[Tensor, "batch queries keys"]) -> Tensor:
        real = unpadded(maps[:, None])
        told = [pad(each, (layers[0].site.prefix_tokens, 0), value=True).to(real.device) for each in texts.values()]
        fits = [each for each in told if each.shape[1] == maps.shape[2] and len(maps) % len(each) == 0]
        if fits:
            real &= torch.stack([each.repeat_interleave(len(maps) // len(each), 0) for each in fits]).any(dim=0)
        return measure(inputs, real, maps)

    @contextmanager
    def listening() -> Iterator[None]:
        here = {id(each): originals[n] for n, each in weights.model.named_parameters(remove_duplicate=False)}
        with watching(weights.model, measured) as seen:
            passes.append((seen, here))
            yield

    def ended(last: nn.Module, *_: object) -> None:
        left.discard(last)
        if not left:
            raise Enough

    with ExitStack() as stack:
        for last in wanted:
            stack.callback(last.register_forward_hook(ended).remove)
        for table in weights.modules.values():
            if isinstance(table, nn.Embedding) and table.padding_idx is not None:
                stack.callback(table.register_forward_hook(looked_up).remove)
        try:
            run_until_enough(weights, inputs, part, known, listening())
        except StructuredInitError:
            if twice or weights.batch is None or known == "the batch":
                raise
            inputs = as_inputs(weights.batch)
            known = "the batch"
            left.update(wanted)
            run_until_enough(weights, inputs, weights.model, known, listening())
    samples = next((leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim), 1)
    return Pass(*passes[-1], known, samples)


class Read(NamedTuple):
    """What a layer reads, γ of the norm before it divided out."""

    x: Float64[Tensor, "samples tokens embed_dim"]
    real: Bool[Tensor, "samples tokens"]  # which tokens are no padding

    @property
    def square(self) -> Float64[Tensor, ""]:
        return self.x[self.real].square().mean()


def read_by(layer: Layer) -> Read | None:
    """Return what a layer reads; ``None`` where it cannot be seen."""
    masks: list[Tensor] = []

    def measure(_: Inputs, real: Tensor, maps: Float[Tensor, "batch queries keys"]) -> Float[Tensor, " batch"]:
        masks.append(real)
        return maps.new_zeros(len(maps))

    queries, first = layer.site.query, layer.weights.found.real is None
    try:
        if first:  # zero logits tell padding from zeros of a sharp softmax, and change nothing that the layer reads
            layer.site.query = torch.zeros_like(queries)
        seen, own, _, samples = watched_pass([layer], measure)
    except StructuredInitError:
        return None
    finally:
        if first:
            layer.site.query = queries
    weights = {id(part.weight) for part in pieces(layer.site.layout.query)}
    for linear in seen.of(Linear):
        if id(own.get(id(linear.block.parameter))) in weights:
            x = linear.x.reshape(-1, layer.site.embed_dim).cpu().double()
            texts = ((*divmod(len(each), layer.site.num_heads), each.shape[1]) for each in masks)
            samples = next((many for many, rest, long in texts if not rest and many * long == len(x)), samples)
            if len(x) % samples:
                continue
            x = x.reshape(samples, -1, layer.site.embed_dim)
            if isinstance(layer.site.module, nn.MultiheadAttention):  # which projects (tokens, samples, embed_dim)
                x = x.reshape(-1, samples, x.shape[2]).transpose(0, 1)
            gamma = norm_weight(layer.site, layer.weights)
            x = x if gamma is None else x / gamma.where(gamma.abs() > 1e-3, 1)
            fitting = (each for each in reversed(masks) if each.shape[1] == x.shape[1] and len(each) % samples == 0)
            of_heads = next(fitting, torch.ones(x.shape[:2], dtype=torch.bool)).cpu()
            real = of_heads.view(samples, -1, x.shape[1]).any(dim=1)
            if first:
                layer.weights.found.real = real
            return Read(x, real)
    return None


def positions_in(reads: Sequence[Read]) -> float:
    """Return the share of positions in the mean square of what is read, in two passes with positions of opposite sign.

    Half of their difference are the positions, half of their sum is the content. What all tokens have in common is
    content too: a norm divides by it as well.
    """
    (one, real), (other, _) = reads
    own, beside = (((one + sign * other)[real] / 2).square().mean(dim=-1) for sign in (-1, 1))
    return min(max((own / (own + beside).clamp_min(1e-30)).mean().item(), LITTLE), 1 - LITTLE)


def reading_as_large_as_seen(layer: Layer) -> Layer:
    """Return a layer with the root mean square of what it reads, where that is not what a norm leaves."""
    read = read_by(layer)
    size = 1.0 if read is None else read.square.sqrt().item()
    return layer if 1 / NORMED < size < NORMED or size == 0 else replace(layer, reads=size)


def run_until_enough(
    weights: Weights,
    inputs: Inputs,
    part: nn.Module,
    known: str,
    inside: AbstractContextManager[object] | None = None,
    who: str = "",
) -> None:
    """Run the network until a hook has seen enough; one line where the host fails."""
    try:
        run_planned(weights, inputs, part, inside)
    except Enough:
        pass
    except StructuredInitError:
        raise
    except Exception as error:  # of the host
        why = " ".join(str(error).split()) or type(error).__name__
        raise StructuredInitError(f"{who}{type(part).__name__} fails on {known}: {why[:200]}") from error


class Enough(Exception):
    """All layers that were asked for have run."""


def tokens_of_batch(layer: Layer) -> int:
    """Return how many tokens a layer is seen to attend to in the longest text of the batch; 0 where none is given."""
    if layer.weights.batch is None:
        return 0
    whole, found = as_inputs(layer.weights.batch), same_attention(layer.site, layer.weights.found.watched or ())
    tokens, mask = tokens_in(whole), whole[1].get("attention_mask")
    tokens = tokens if found is None or not tokens else found.length
    of_these = isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == tokens
    return int(mask.bool().sum(dim=1).max()) if of_these else tokens


def to_run(layer: Layer, length: int, samples: int, twice: bool) -> tuple[nn.Module, Inputs, str]:
    """Return what is run, on what, and how that is called; the arguments are those of :func:`watched_pass`."""
    weights = layer.weights
    if weights.batch is None and what_the_host_offers(weights, length, 1) is None:
        with suppress(StructuredInitError):  # whoever only offers a batch is asked for it
            weights.ask()
    given = None if weights.batch is None else as_inputs(weights.batch)
    there = tokens_of_batch(layer)
    if given is not None and not twice and (there or length) >= length:
        return weights.model, given, "the batch"
    if (offered := what_the_host_offers(weights, length, samples)) is not None:
        part, inputs = offered
        if any(leaf.is_floating_point() for leaf in tree_leaves(inputs)):  # an image costs more than its tokens
            inputs = tree_map(lambda leaf: leaf[:SAMPLES], inputs)
        known = "random tokens" if tokens_in(inputs) else "random inputs"
        if given is not None and not twice:
            known += f", as the batch has {there} of {length}"
        return part, (_repeated(inputs) if twice else inputs), known
    if given is not None:
        texts = (_repeated(_without_padding(given)), "random tokens of the batch") if twice else (given, "the batch")
        return weights.model, *texts
    raise StructuredInitError(
        cannot_run(weights.model) or "nothing says what the model takes: give a batch, as batch=…"
    )


def _without_padding(inputs: Inputs) -> Inputs:
    """Return texts cut to the tokens that none of them pads, as ``attention_mask`` says."""
    mask = inputs[1].get("attention_mask")
    real = mask.bool().all(dim=0) if isinstance(mask, Tensor) and mask.ndim == 2 else torch.ones(2, dtype=torch.bool)
    if real.all() or real.sum() < 2:
        return inputs
    of_tokens = lambda leaf: isinstance(leaf, Tensor) and leaf.shape[:2] == mask.shape  # noqa: E731
    return tree_map(lambda leaf: leaf[:, real] if of_tokens(leaf) else leaf, inputs)


def _repeated(inputs: Inputs) -> Inputs:
    """Return texts whose second half repeats the first, in which no token comes twice while there are enough."""
    samples = max((len(leaf) for leaf in tree_leaves(inputs) if numbered(leaf)), default=1)
    in_order = lambda length: torch.arange(length).expand(samples, -1)  # noqa: E731
    return drawn_twice(inputs, in_order, generator=torch.Generator().manual_seed(0))


def drawn_twice(
    inputs: Inputs, order_of: Callable[[int], Int[Tensor, "samples tokens"]], *, generator: torch.Generator
) -> Inputs:
    """Return other texts, of random tokens of those that are there: N/2 of them twice, in a given order.

    Where there are fewer, of the numbers between the least and the largest. ``order_of`` says of texts of N tokens
    which of a_1 … a_N/2, a_1 … a_N/2 stands where. What holds two numbers at most is a mask, of which nothing is
    hidden.
    """

    def drawn(leaf: Any) -> Any:
        if not numbered(leaf):
            return leaf
        order, vocabulary = order_of(leaf.shape[1]), leaf.unique()
        samples, half = len(order), (order.shape[1] + 1) // 2
        if len(vocabulary) <= 2:
            return vocabulary[-1].expand(order.shape).clone()
        if len(vocabulary) < half:  # what lies between is in the table of the model, too
            vocabulary = torch.arange(int(vocabulary[0]), int(vocabulary[-1]) + 1, device=leaf.device)
        if len(vocabulary) >= half:
            picked = torch.rand(samples, len(vocabulary), generator=generator).argsort(dim=1)[:, :half]
        else:
            picked = torch.randint(len(vocabulary), (samples, half), generator=generator)
        return vocabulary[torch.gather(picked.repeat(1, 2), 1, order).to(leaf.device)]

    return tree_map(drawn, inputs)


Seen = tuple[Tensor, int]  # shares of a head on what is wanted, and the longest text


@dataclass(frozen=True)
class Measured:
    """What a pass showed of one layer."""

    shares: dict[int, float]  # head → the mean share of attention on its offset, of the last queries of such a length
    length: int  # the most tokens of a sample, padding apart; 0 where nothing was seen
    on: str  # "the batch", or what else the model was run on; where nothing was seen, why


def measured_shares(layers: Sequence[Layer], *, twice: bool = False) -> list[Measured]:
    """Run the network as ``watched_pass`` does, and return the shares of attention that heads really have.

    ``twice`` measures the share on what followed an equal token, of random tokens that come twice.
    """
    wanted = sorted({(each.site.prefix_tokens, each.size, offset) for each in layers for *_, offset in each.heads})
    whole = twice or any(each.size[0] > 1 for each in layers)

    def measure(
        inputs: Inputs, real: Bool[Tensor, "batch keys"], maps: Float[Tensor, "batch queries keys"]
    ) -> Float[Tensor, "batch measured"]:
        known = None if twice else layers[0].weights.found.real  # of texts that are not drawn anew
        if known is not None and known.shape[1] == maps.shape[2] and len(maps) % len(known) == 0:
            real = known.to(maps.device).repeat_interleave(len(maps) // len(known), 0)
        longest = maps.shape[2] if whole else max(real.sum(dim=1).tolist(), default=0)
        shares, parts = zip(
            *(_share(maps, real, longest, *each, inputs if twice else None) for each in wanted), strict=True
        )
        return torch.stack([*shares, *parts, shares[0].new_full((len(maps),), longest)], dim=1)

    try:
        seen, own, known, *_ = watched_pass(layers, measure, twice=twice)
    except StructuredInitError as error:
        return [Measured({}, 0, str(error)) for _ in layers]
    found = _by_head(seen, own)
    unseen = Measured({}, 0, f"on {known}, its maps were not seen, or no token has one there")
    layers = [_of_layer(each, found, wanted) for each in layers]
    return [Measured(shares, length, known) if shares else unseen for shares, length in layers]


def _share(
    maps: Float[Tensor, "batch queries keys"],
    real: Bool[Tensor, "batch keys"],
    longest: int,
    prefix: int,
    size: tuple[int, int],
    offset: Offset,
    twice: Inputs | None,
) -> Float[Tensor, "2 batch"]:
    """Return the attention of the last tokens on those at an offset, and how many these are; NaN for other tokens.

    The last tokens are those of a text of ``longest`` tokens. A shorter text has fewer of them, or none. Both numbers
    are divided by how many such a text has. ``twice``: texts whose second half repeats the first, in which attention on
    all that followed an equal token counts, of which a small vocabulary has several.
    """
    length = longest - prefix
    if maps.shape[1] != maps.shape[2] or (size[0] > 1 and length != size[0] * size[1]):
        return maps.new_full((2, len(maps)), math.nan)
    offset = (0, (length + 1) // 2 - 1) if twice is not None else offset
    queries, targets = asking(size if size[0] > 1 else (1, length), offset)
    number, before = len(queries), 0
    if size[0] == 1:  # of each sample, those with as many real tokens before them
        before = int(queries[:1].sum())
        tokens = maps.shape[2] - prefix
        queries = torch.arange(tokens)[max(offset[1], 0) : max(tokens + min(offset[1], 0), 0)]
        targets = queries - offset[1]
    asked = real[:, queries + prefix] & real[:, targets + prefix]
    asked &= real[:, prefix:].cumsum(dim=1)[:, queries] > before
    shares = maps[:, queries + prefix, targets + prefix].float()
    texts = (leaf for leaf in tree_leaves(twice) if numbered(leaf) and leaf.shape[1] == length and leaf.max() > 1)
    if (text := next(texts, None)) is not None and len(maps) % len(text) == 0:
        behind = pad(text[:, :, None] == text[:, None, :-1], (1, 0)).tril(-1)[:, queries]
        behind = behind.to(maps.device).repeat_interleave(len(maps) // len(text), 0)
        shares = (maps[:, queries + prefix, prefix:].float() * behind).sum(dim=-1)
    return torch.stack([shares.where(asked, 0).sum(dim=1), asked.sum(dim=1)]) / number


def _by_head(seen: WatchMode, here: Mapping[int, Tensor]) -> dict[tuple[int, int], Seen]:
    """Return what was measured of every head in the first run of its layer, by the entries that it queries with."""
    found: dict[tuple[int, int], Seen] = {}
    for sum_ in seen.of(Sum):
        product = seen.source(sum_.maps_tag)
        if not isinstance(product, Product) or product.columns is None:
            continue
        for number, values in zip(sum_.heads.unique().tolist(), sum_.measured, strict=True):
            attended, asked = values[:-1].chunk(2)
            shares, longest = attended / asked, round(values[-1].item())
            for code in product.columns[number]:
                linear = seen.sources[int(origins.source(code))]
                if isinstance(linear, Linear) and not shares.isnan().all():
                    block = linear.block
                    entry = int(block.starts.flatten()[int(origins.place(code))] + block.offsets[0])
                    found.setdefault((id(here[id(block.parameter)]), entry), (shares, longest))
    return found


def _of_layer(layer: Layer, found: Mapping[tuple[int, int], Seen], wanted: list[tuple]) -> tuple[dict[int, float], int]:
    """Return head → share of a layer, and its number of tokens."""
    shares, length = {}, 0
    channels = [
        (id(part.weight), row[:, 0].long().tolist()) for part in pieces(layer.site.layout.query) for row in part.entries
    ]
    for head, _, offset in layer.heads:
        weight, entries = channels[head]
        measured, longest = next((found[weight, entry] for entry in entries if (weight, entry) in found), (None, 0))
        if measured is not None:
            share = measured[wanted.index((layer.site.prefix_tokens, layer.size, offset))].item()
            if not math.isnan(share):
                shares[head], length = share, longest - layer.site.prefix_tokens
    return shares, length


def compared(measured: float | None, predicted: float) -> str:
    """Return a share for the report: what was measured, with what was predicted beside it where that is another."""
    text = f"{predicted if measured is None else measured:.2f}"
    return text if measured is None or abs(measured - predicted) <= AGREE else f"{text} (predicted {predicted:.2f})"


def report_shares(written: Sequence[tuple[Layer, Outcome]], more: str = "") -> None:
    """Measure the shares of layers, those of one context in one pass; note them, and warn of small ones."""
    contexts: dict[tuple[int, int], list[tuple[Layer, Outcome]]] = {}
    for each in written:
        contexts.setdefault((each[0].length, tokens_of_batch(each[0])), []).append(each)
    for group in contexts.values():
        for (layer, outcome), measured in zip(group, measured_shares([layer for layer, _ in group]), strict=True):
            layer.site.note(_line(layer, outcome, measured) + more)
            _warn(layer, outcome, measured)


def _line(layer: Layer, outcome: Outcome, measured: Measured) -> str:
    """Say for the report what was reached."""
    looking: dict[str, dict[str, str]] = {}  # where heads look → head → its share
    for head, _, (up, back) in layer.heads:
        if head in outcome.reached:
            far = f"{abs(back)} token{'s' * (abs(back) > 1)} {'back' if back > 0 else 'ahead'}"
            share = outcome.reached[head].share
            if head in measured.shares and measured.length < layer.length:
                share = outcome.predicted(head, measured.length)
            share = compared(measured.shares.get(head), share)
            if measured.shares and head not in measured.shares:
                share += f" (predicted; none of the {measured.length:,} tokens has one there)"
            looking.setdefault(f"[{up}, {back}] up and left" if up else far, {})[str(head)] = share
    shares = ", ".join(
        f"head{'s' * (len(of) > 1)} {', '.join(of)} look{'s' * (len(of) == 1)} {where}: {', '.join(of.values())}"
        for where, of in looking.items()
    )
    known, length, how = "predicted", layer.length, f"not measured: {measured.on}"
    if measured.shares:
        other = "" if measured.length == layer.length else f", solved for {layer.length:,}"
        known, length, how = "measured", measured.length, f"on {measured.on}{other}"
    return f"attention on offsets at the end of {length:,} tokens, {known}: {shares} ({how}; {outcome.how})"


def _warn(layer: Layer, outcome: Outcome, measured: Measured) -> None:
    """Record which heads have less than half of the share that was asked for, what stands in the way, and a remedy."""
    short = [head for head, share in measured.shares.items() if share < layer.target / 2]
    if not short:
        return
    shares = ", ".join(f"{measured.shares[head]:.2f}" for head in short)
    predicted = max(outcome.reached[head].share for head in short)
    if layer.site.layout.mixes_heads:
        why = "the host mixes its heads, so no head has a map of its own; choose a layer that does not (where=)"
    elif not any(measured.shares[head] for head in short):
        why = "its mask hides the tokens at their offsets; ask for nearer ones, or the other way (offsets=)"
    elif layer.positions.absolute is not None and (rows := layer.positions.absolute.num_tokens) < measured.length:
        why = f"'{layer.positions.absolute.name}' has {rows:,} rows for {measured.length:,} tokens"
    elif predicted >= layer.target / 2 and measured.length > layer.length:
        why = f"they were solved for {layer.length:,} tokens, and here are {measured.length:,}: "
        why += "set context= to the most tokens that your model sees"
    elif predicted >= layer.target / 2:
        why = f"{predicted:.2f} was predicted, and why the network gives less is not known; "
        longer = f"give a batch of your data that has {layer.length:,} tokens (batch=)"
        why += "choose another layer (where=)" if measured.on == "the batch" else longer
    elif layer.kind == "alibi":
        why = "the slopes of ALiBi give no more; leave these heads to the host (null in offsets=)"
    else:
        bound = f"{layer.site.head_dim} dimensions of a head tell so few of {layer.length:,} tokens apart"
        bound = "the norms of queries and keys bound its logits" if layer.site.layout.query_key_norm else bound
        why = f"{bound}; where your texts are shorter, set context= to their length"
    layer.weights.fall_short(
        f"{heads_have(short, layer.site.name)} {shares} of attention on offsets, of {layer.target:g} asked for: {why}"
    )


def heads_have(heads: Sequence[int], name: str) -> str:
    """Return the beginning of a sentence: ``"head 1 of 'attn' has"``, or ``"heads 1, 2 of 'attn' have"``."""
    several = len(heads) > 1
    return f"head{'s' * several} {', '.join(map(str, heads))} of '{name}' {'have' if several else 'has'}"
