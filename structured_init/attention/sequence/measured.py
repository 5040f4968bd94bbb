"""What share of attention heads have on their offsets in the whole network, read from a forward pass of it.

Letters: B entries of a batch (samples, windows and heads together), N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from structured_init.attention.sequence.job import CLEAR, Job, Outcome
from structured_init.attention.sequence.offsets import Offset, spoken
from structured_init.attention.sequence.relative import asking
from structured_init.attention.sequence.seen import watched_pass
from structured_init.errors import StructuredInitError
from structured_init.layout import pieces
from structured_init.watch import codes
from structured_init.watch.records import Linear, Product, Sum
from structured_init.watch.watch import WatchMode

TOLD = 0.05  # from which difference on the prediction stands beside what was measured


@dataclass(frozen=True)
class Measured:
    """What a pass showed of one layer.

    Attributes:
        shares: head → the mean share of attention on its offset, of the last queries.
        length: the number of tokens for which it is; 0 where nothing was seen.
        on: "the batch", or what else the model was run on; where nothing was seen, why.
        window: the number of tokens that each one sees, itself included, where it does not see all before it.
    """

    shares: dict[int, float]
    length: int
    on: str
    window: int | None = None


def measured_shares(jobs: Sequence[Job], *, twice: bool = False) -> list[Measured]:
    """Run the network as ``watched_pass`` does, and return the shares of attention that heads really have.

    Args:
        jobs: layers of one overlay, with the offsets of those heads that are asked for.
        twice: the share on what followed an equal token, in place of that on an offset: of random tokens that come
            twice, whatever batch was given.
    """
    wanted = sorted({(each.site.prefix_tokens, each.size, offset) for each in jobs for *_, offset in each.heads})

    def measure(maps: Float[Tensor, "batch queries keys"]) -> Float[Tensor, "batch wanted"]:
        return torch.stack([*(_share(maps, *each, twice) for each in wanted), _farthest(maps)], dim=1)

    try:
        seen, own, known, _ = watched_pass(jobs, measure, twice=twice)
    except StructuredInitError as error:
        return [Measured({}, 0, str(error)) for _ in jobs]
    found, unseen = _by_head(seen, own), Measured({}, 0, f"its maps were not seen on {known}")
    layers = [_of_layer(each, found, wanted) for each in jobs]
    return [Measured(shares, length, known, window) if shares else unseen for shares, length, window in layers]


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


def _farthest(maps: Float[Tensor, "batch queries keys"]) -> Float[Tensor, " batch"]:
    """Return how far back tokens look where all that have so many before them look equally far: ∞ where not."""
    back = torch.arange(maps.shape[1], device=maps.device) - (maps > 0).int().argmax(dim=2)
    farthest = back.amax(dim=1, keepdim=True)
    cut = (back == torch.arange(maps.shape[1], device=maps.device).minimum(farthest)).all(dim=1)
    return torch.where(cut & (farthest[:, 0] < maps.shape[1] - 1), farthest[:, 0].float(), math.inf)


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
                if isinstance(linear, Linear) and not values[:-1].isnan().all():
                    block = linear.block
                    entry = int(block.starts.flatten()[int(codes.place(code))] + block.offsets[0])
                    found.setdefault((id(here[id(block.parameter)]), entry), (values, sum_.maps.shape[2]))
    return found


def _of_layer(
    job: Job, found: Mapping[tuple[int, int], tuple[Tensor, int]], wanted: list[tuple]
) -> tuple[dict[int, float], int, int | None]:
    """Return head → share of a layer, its number of tokens, and how many each of them sees if not all."""
    query, shares, length, farthest = job.site.layout.query, {}, 0, 0.0
    parts = pieces(query)
    channels = [(id(part.weight), row[:, 0].long().tolist()) for part in parts for row in part.entries]
    for head, _, offset in job.heads:
        weight, entries = channels[head]
        own = next((found[weight, entry] for entry in entries if (weight, entry) in found), None)
        share = math.nan if own is None else own[0][wanted.index((job.site.prefix_tokens, job.size, offset))].item()
        if own is not None and not math.isnan(share):
            shares[head], length = share, own[1] - job.site.prefix_tokens
            farthest = max(farthest, own[0][-1].item())
    return shares, length, None if math.isinf(farthest) else int(farthest) + 1


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
    if measured.window:
        said += f"; each token sees no more than {measured.window:,} tokens, itself among them"
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
