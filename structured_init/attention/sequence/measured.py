"""What share of attention heads have on their offsets in the whole network, read from a forward pass of it.

Letters: B entries of a batch (samples, windows and heads together), N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.forward import run_planned, what_the_host_offers
from structured_init.attention.sequence.job import CLEAR, Job, Outcome
from structured_init.attention.sequence.offsets import Offset, spoken
from structured_init.attention.sequence.relative import asking
from structured_init.errors import StructuredInitError
from structured_init.host_inputs import Inputs, as_inputs
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.position_rule import block_around, is_stack
from structured_init.sites.watched import cannot_run
from structured_init.watch import codes
from structured_init.watch.discover import entries_of
from structured_init.watch.records import Linear, Product, Sum
from structured_init.watch.watch import WatchMode
from structured_init.watch.watching import watching

MOST = 2**25  # numbers in the maps of a layer, which a pass holds a few times: 128 MiB of float32 each
SAMPLES = 4
TOLD = 0.05  # from which difference on the prediction stands beside what was measured


@dataclass(frozen=True)
class Measured:
    """What a pass showed of one layer.

    Attributes:
        shares: head → the mean share of attention on its offset, of the last queries.
        length: the number of tokens for which it is; 0 where nothing was seen.
        on: "the batch", or what else the model was run on; where nothing was seen, why.
    """

    shares: dict[int, float]
    length: int
    on: str


def measured_shares(jobs: Sequence[Job], *, twice: bool = False) -> list[Measured]:
    """Run the network with everything planned so far, and return the shares of attention that heads really have.

    It is run on the batch where one was given that is long enough, else on random tokens or pixels as the host library
    offers them. The contexts are as long as the longest that is asked for, or half, a quarter, … of it where the maps
    would not fit. It is run no further than the last layer that is asked for. Nothing need be flushed.

    Args:
        jobs: layers of one overlay, with the offsets of those heads that are asked for.
        twice: the share on what followed an equal token, in place of that on an offset: of random tokens that come
            twice, whatever batch was given.
    """
    weights = jobs[0].weights
    length = max(each.length + each.site.prefix_tokens for each in jobs)
    heads = max(each.site.num_heads for each in jobs)
    while length > 2 and heads * length**2 > MOST:
        length //= 2
    found = to_run(weights, length, max(1, min(SAMPLES, MOST // (heads * length**2))), twice)
    if isinstance(found, str):
        return [Measured({}, 0, found) for _ in jobs]
    part, inputs, known = found
    try:
        seen = _run(weights, part, inputs, jobs, twice)
    except StructuredInitError as error:
        return [Measured({}, 0, f"on {known}, {error}") for _ in jobs]
    return [
        Measured(*each, known) if each[0] else Measured({}, 0, f"its maps were not seen on {known}") for each in seen
    ]


def to_run(weights: Weights, length: int, samples: int, twice: bool) -> tuple[nn.Module, Inputs, str] | str:
    """Return what is run, on what, and how that is called; or why nothing can be run."""
    given = None if weights.batch is None else as_inputs(weights.batch)
    if given is not None and not twice and (_tokens(given) or length) >= length:
        return weights.model, given, "the batch"
    if (offered := what_the_host_offers(weights, length, samples)) is not None:
        part, inputs = offered
        return part, (_repeated(inputs) if twice else inputs), "random tokens" if _tokens(inputs) else "random inputs"
    if given is not None:
        return weights.model, (_repeated(given) if twice else given), "the batch"
    return cannot_run(weights.model) or "nothing says what the model takes: give a batch, as batch=…"


def _tokens(inputs: Inputs) -> int:
    """Return how many tokens each sample has; 0 where none are given by number."""
    return max((leaf.shape[1] for leaf in tree_leaves(inputs) if numbered(leaf)), default=0)


def _repeated(inputs: Inputs) -> Inputs:
    """Return texts whose second half repeats the first."""

    def again(leaf: object) -> object:
        return leaf[:, : (leaf.shape[1] + 1) // 2].repeat(1, 2)[:, : leaf.shape[1]] if numbered(leaf) else leaf

    return tree_map(again, inputs)


def numbered(leaf: object) -> bool:
    """Say whether something are token numbers (B, N), or a mask over them."""
    return isinstance(leaf, Tensor) and leaf.ndim == 2 and not leaf.is_floating_point()


class Enough(Exception):
    """All layers that were asked for have run."""


def _run(
    weights: Weights, part: nn.Module, inputs: Inputs, jobs: Sequence[Job], twice: bool
) -> list[tuple[dict[int, float], int]]:
    """Return shares and number of tokens of each layer; nothing and 0 of those that were not seen."""
    wanted = sorted({(each.site.prefix_tokens, each.size, offset) for each in jobs for *_, offset in each.heads})

    def measure(maps: Float[Tensor, "batch queries keys"]) -> Float[Tensor, "batch wanted"]:
        return torch.stack([_share(maps, *each, twice) for each in wanted], dim=1)

    modules = dict(named_plain_modules(weights.model))
    stacks = {name for name, module in modules.items() if is_stack(module)}
    left = {block_around(each.site.name, stacks) for each in jobs}
    originals = dict(weights.model.named_parameters(remove_duplicate=False))
    passes: list[tuple[WatchMode, dict[int, Tensor]]] = []

    @contextmanager
    def listening() -> Iterator[None]:
        here = {id(each): originals[n] for n, each in weights.model.named_parameters(remove_duplicate=False)}
        with watching(weights.model, measure) as seen:
            passes.append((seen, here))
            yield

    def ended(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            left.discard(name)
            if not left:
                raise Enough

        return hook

    with ExitStack() as stack:
        for name in tuple(left):
            stack.callback(modules[name].register_forward_hook(ended(name)).remove)
        try:
            run_planned(weights, inputs, part, listening())
        except Enough:
            pass
        except Exception as error:  # of the host
            why = " ".join(str(error).split()) or type(error).__name__
            raise StructuredInitError(f"{type(part).__name__} fails: {why[:200]}") from error
    seen, here = passes[0]
    found = _by_head(seen, here)
    return [_of_layer(each, found, wanted) for each in jobs]


def _share(
    maps: Float[Tensor, "batch queries keys"], prefix: int, size: tuple[int, int], offset: Offset, twice: bool
) -> Float[Tensor, " batch"]:
    """Return the mean attention of the last tokens on those at an offset; NaN where they are other tokens."""
    length = maps.shape[2] - prefix
    if maps.shape[1] != maps.shape[2] or (size[0] > 1 and length != size[0] * size[1]):
        return maps.new_full((len(maps),), math.nan)
    offset = (0, (length + 1) // 2 - 1) if twice else offset
    queries, targets = asking(size if size[0] > 1 else (1, length), offset)
    return maps[:, queries + prefix, targets + prefix].float().mean(dim=1)


def _by_head(seen: WatchMode, here: Mapping[int, Tensor]) -> dict[tuple[int, int], tuple[Tensor, int]]:
    """Return what was measured of every head, and of how many tokens, by the entries of parameters that query with it.

    Args:
        seen: the pass.
        here: what stood in for each parameter in the pass → the model's own.
    """
    found: dict[tuple[int, int], tuple[Tensor, int]] = {}
    for sum_ in seen.of(Sum):
        product = seen.source(sum_.maps_tag)
        if not isinstance(product, Product) or product.columns is None:
            continue
        for number, values in zip(sum_.heads.unique().tolist(), sum_.measured, strict=True):
            for code in product.columns[number]:
                linear = seen.sources[int(codes.source(code))]
                if isinstance(linear, Linear) and not values.isnan().all():
                    block = linear.block
                    entry = int(block.starts.flatten()[int(codes.place(code))] + block.offsets[0])
                    found.setdefault((id(here[id(block.parameter)]), entry), (values, sum_.maps.shape[2]))
    return found


def _of_layer(
    job: Job, found: Mapping[tuple[int, int], tuple[Tensor, int]], wanted: list[tuple]
) -> tuple[dict[int, float], int]:
    """Return head → share of a layer, and its number of tokens."""
    query, shares, length = job.site.layout.query, {}, 0
    parts = getattr(query, "parts", (query,))
    channels = [(id(part.weight), row[:, 0].long().tolist()) for part in parts for row in entries_of(part)]
    for head, _, offset in job.heads:
        weight, entries = channels[head]
        own = next((found[weight, entry] for entry in entries if (weight, entry) in found), None)
        share = math.nan if own is None else own[0][wanted.index((job.site.prefix_tokens, job.size, offset))].item()
        if own is not None and not math.isnan(share):
            shares[head], length = share, own[1] - job.site.prefix_tokens
    return shares, length


def compared(measured: float | None, predicted: float) -> str:
    """Return a share for the report: what was measured, with what was predicted beside it where that is another."""
    if measured is None:
        return f"{predicted:.2f}"
    told = f"{measured:.2f}"
    return told if abs(measured - predicted) <= TOLD else f"{told} (predicted {predicted:.2f})"


def told(job: Job, outcome: Outcome, measured: Measured) -> str:
    """Say for the report what was reached."""
    shares = ", ".join(
        f"{spoken(offset)}: {compared(measured.shares.get(head), outcome.reached[head].share)}"
        for head, _, offset in job.heads
        if head in outcome.reached
    )
    known, length, how = "predicted", job.length, f"not measured: {measured.on}"
    if measured.shares:
        other = "" if measured.length == job.length else f", solved for {job.length:,}"
        known, length, how = "measured", measured.length, f"on {measured.on}{other}"
    said = f"attention on offsets at the end of {length:,} tokens, {known}: {shares} ({how}; {outcome.how})"
    if outcome.ends:
        heads = ", ".join(
            f"head {head} up to {end:,} tokens" if end else f"head {head} in no context"
            for head, end in outcome.ends.items()
        )
        said += f"; {CLEAR} or more only: {heads}"
    shared = sorted(head for head, offset in enumerate(job.offsets) if offset is None and head // job.group in job.keys)
    if shared and job.kind != "relative":
        said += f"; heads {', '.join(map(str, shared))} are the host's, but for the key that they share"
    return said


def warn_of(job: Job, outcome: Outcome, measured: Measured) -> None:
    """Record which heads have less than half of the share that was asked for, and what stands in the way."""
    short = [head for head, share in measured.shares.items() if share < job.target / 2]
    if not short:
        return
    shares = ", ".join(f"{measured.shares[head]:.2f}" for head in short)
    predicted = max(outcome.reached[head].share for head in short)
    if not any(measured.shares[head] for head in short):
        why = "its mask hides the tokens at their offsets"
    elif predicted >= job.target / 2:
        why = f"{predicted:.2f} was predicted from what it should read: the network gives it something else"
    elif job.kind == "alibi":
        why = "the slopes of ALiBi give no more"
    elif job.site.layout.query_key_norm:
        why = "the norms of queries and keys bound its logits"
    else:
        why = f"{job.site.head_dim} dimensions of a head tell so few of {job.length:,} tokens apart"
    job.weights.fall_short(
        f"heads {', '.join(map(str, short))} of '{job.site.name}' have {shares} of their attention on their offsets, of"
        f" {job.target:g} asked for: {why}"
    )
