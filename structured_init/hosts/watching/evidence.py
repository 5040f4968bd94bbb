"""What is known of an attention layer after a forward pass: its layout and the evidence for it, or why it has none."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Complex128, Float, Float64, Int64
from torch import Tensor

from structured_init.hosts.layout import AttentionLayout, Projection, StridedProjection
from structured_init.hosts.watching.assemble import NORMS, POOLS, TURNS, Call, Watched
from structured_init.hosts.watching.operations import SUMS, TIMES
from structured_init.hosts.watching.records import Added, Linear, MapAt
from structured_init.weights import Weights


def worst(*errors: float) -> float:
    """Return the largest error; one that is not a number is larger than any."""
    return max(errors, key=lambda error: (math.isnan(error), error))


@dataclass(frozen=True)
class Evidence:
    """Relative errors, in Frobenius norm."""

    logits: float  # of the logits; where the host turns or normalizes queries and keys, of what stays the same then
    outputs: float  # of the outputs
    # what the host multiplies q·k with before the softmax; ``None`` where it could not be measured
    factor: float | None
    how: str  # how the logits were compared
    value_factor: float = 1.0  # what the host multiplies values with behind their map
    # which of all tokens the queries are that are kept of the first entry
    asking: Int64[Tensor, " rows"] | None = field(default=None, repr=False, compare=False)

    @property
    def error(self) -> float:
        """The larger of the two."""
        return worst(self.logits, self.outputs)


TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Rotation:
    """How queries and keys are turned: the pair (a, b) of coordinates of a head by frequency · t, in radians."""

    frequencies: Float64[Tensor, " r"]
    pairs: Int64[Tensor, "r 2"]


@dataclass(frozen=True)
class FoundAttention:
    """One attention layer of a forward pass.

    Attributes:
        name: the innermost module that holds its matrices, e.g. ``"blocks.0.attn"``; where it has no layout, the
            module that was running.
        layout: its matrices; ``None`` where it has none that could be told and checked.
        evidence: predicted against computed logits and outputs; ``None`` without a layout.
        reason: why there is no layout; ``None`` where there is one.
        calls: how many times it ran in the pass.
        length: how many tokens it looks at, those of one window where it has windows; 0 without a layout.
        tokens: a few of the tokens that queries, keys and values are made of, each (tokens, width).
        turns: how queries and keys were seen to be turned by their positions; ``None`` where they were not.
        queries: how many tokens look, of one window where it has windows; 0 without a layout.
        rows: how many tokens queries are made of, in all samples and windows; 0 without a layout.
        maps: where each call computes its maps, in several places where each has a part of the heads.
        tables: those whose rows the tokens that look were given, in the order of the pass.
    """

    name: str
    layout: AttentionLayout | None
    evidence: Evidence | None
    reason: str | None
    calls: int = 1
    length: int = 0
    tokens: tuple[Tensor, ...] = field(default=(), repr=False)
    turns: Rotation | None = field(default=None, repr=False)
    queries: int = field(default=0, repr=False)
    rows: int = field(default=0, repr=False)
    maps: tuple[tuple[MapAt, ...], ...] = field(default=(), repr=False)
    tables: tuple[Added, ...] = field(default=(), repr=False)


# Evidence for a layout: logits and outputs predicted from its four matrices, against those that the host computed.
# Letters: H heads, S samples or windows, N tokens of each, T = S·N, D width, k head_dim.

MOST_TRIED = 64  # factors by which tokens may differ that are multiples of one another
TINY = 1e-300  # logits of a network at its beginning may be as small as 1e-11


def evidence(watched: Watched, weights: Weights) -> Evidence:
    """Predict logits and outputs of a watched layer from its layout, and compare them with those seen.

    The four maps are compared on all tokens, what is made of them on one sample (or window) of every head. Which of the
    tokens stand there is told by the values.
    """
    layout, linears = watched.layout, watched.parts[0].linears
    parts = zip(linears, (layout.query, layout.key, layout.value), watched.columns, strict=False)
    (q, wrong_q), (k, wrong_k), (v, wrong_v) = (_predicted(*part, weights) for part in parts)
    v, k = v.repeat_interleave(len(q) // len(v), 0), k.repeat_interleave(len(q) // len(k), 0)
    calls = watched.parts
    parts = (
        [_in_order(call, call.product.query.numbers) for call in calls],
        [_in_order(call, call.product.key.numbers) for call in calls],
        [call.product.logits for call in calls],
        [call.sum.maps.numbers for call in calls],
        [call.sum.value.numbers for call in calls],
        [call.sum.out for call in calls],
    )
    seen = _Seen(*(_wide(torch.cat(part)[watched.order]) for part in parts))
    outputs, scale = 0.0, 1.0
    call = calls[0]
    places = None if call.curved else _nearest(seen.value[0], v[0])
    if places is not None and not call.sum.value.tag.path & (NORMS | POOLS):
        made = seen.maps.double() @ _taken(v, seen.value, places)
        if call.sum.value.tag.path & TIMES:
            outputs, scale = _scaled(made, seen.out)
            scale = 1.0 if scale is None else scale
        else:
            outputs = _relative(made, seen.out)
    rows = call.product.rows
    if layout.cross or not seen.value.shape[1] == seen.logits.shape[-1] > int(rows[-1]):
        places = None  # the values are of other tokens than the queries
    logits, factor, how = _logits(watched, seen, q, k, places)
    outputs = worst(wrong_v, outputs, _written(linears[3], layout.output, watched.columns[3], weights))
    asking = rows if places is None else places[rows]
    return Evidence(worst(wrong_q, wrong_k, logits), outputs, factor, how, scale, asking)


@dataclass(frozen=True)
class _Seen:
    """What was seen of every head, in the order of the layout: shapes as in ``Product`` and ``Sum``."""

    query: Tensor
    key: Tensor
    logits: Tensor
    maps: Tensor
    value: Tensor
    out: Tensor


def _in_order(call: Call, rows: Tensor) -> Tensor:
    """Return a call's queries or keys with the channels in the order of the layout."""
    return rows.gather(2, call.channels.to(rows.device)[:, None].expand(-1, rows.shape[1], -1))


def _logits(
    watched: Watched, seen: _Seen, q: Tensor, k: Tensor, places: Tensor | None
) -> tuple[float, float | None, str]:
    """Compare logits, as far as predictions hold: norms and pooling end them, rotations leave a token with itself."""
    product = watched.parts[0].product
    path = product.query.tag.path | product.key.tag.path
    if path & POOLS:
        return 0.0, None, "before queries or keys are pooled"
    if path & NORMS:  # of queries and keys that then have a mean square of 1, whatever factor is on them
        sizes = (each.double().square().mean().sqrt() for each in (seen.query, seen.key))
        factor = math.prod(float(size) for size in sizes) * watched.parts[0].factor
        usual = math.isclose(factor, seen.query.shape[-1] ** -0.5, rel_tol=0.01)
        return 0.0, None if usual else factor, "before queries and keys are normalized"
    rows, call, how = product.rows, watched.parts[0], "logits"
    if path & TURNS:
        if places is None:
            return 0.0, None, "before queries and keys are turned"
        made = (q[:, places[rows]] * k[:, places[rows]]).sum(-1)
        error, factor = _scaled(made, seen.logits[:, range(len(rows)), rows])
        how = "logits of tokens with themselves"
    else:
        asked = _taken(q, seen.query, _nearest(seen.query[0], q[0]))
        met = _taken(k, seen.key, _nearest(seen.key[0], k[0]))
        error, factor = _scaled(asked @ met.mT, seen.logits)
        tolerance = TOLERANCE.get(call.linears[0].y.dtype, 1e-3)
        if error > tolerance and path & SUMS and places is not None:  # a bias behind the map hides which token is which
            (q, wrong_q), (k, wrong_k) = _shifted(q[:, places[rows]], seen.query), _shifted(k[:, places], seen.key)
            error, factor = _scaled(q @ k.mT, seen.logits)
            error, how = worst(error, wrong_q, wrong_k), "logits, with a bias behind the map"
    if factor is None:
        return error, None, f"{how}, which are zero"
    return error, factor * call.factor, how


def _shifted(made: Float[Tensor, "heads rows head_dim"], real: Tensor) -> tuple[Tensor, float]:
    """Return predicted queries with the constant that each head adds to them, and the error that is left."""
    made, real = made.double(), real.double()
    centred, differing = made - made.mean(1, keepdim=True), real - real.mean(1, keepdim=True)
    factor = (centred * differing).sum() / (centred * centred).sum().clamp_min(TINY)
    return factor * centred + real.mean(1, keepdim=True), _relative(factor * centred, differing)


def _taken(
    made: Float[Tensor, "heads tokens head_dim"],
    real: Float[Tensor, "heads rows head_dim"],
    places: Int64[Tensor, " rows"],
) -> Tensor:
    """Return of the predicted tokens those that stand in some real rows; rows of zeros, which pad, stay zeros."""
    return made[:, places].double() * (real != 0).any(-1, keepdim=True)


def _apart_from_bias(made: Tensor, real: Tensor, axis: int) -> tuple[float, Tensor]:
    """Return the relative error over tokens, whatever bias was added, and the bias."""
    size = _norm(real - real.mean(axis, keepdim=True)) + 1e-2 * _norm(real)
    left = real - made
    bias = left.mean(axis, keepdim=True)
    return _norm(left.sub_(bias)) / max(size, TINY), bias


def _norm(tensor: Tensor) -> float:
    """Return ‖tensor‖: rows in the tensor's own precision, which is quick, and those summed in float64."""
    return float(torch.linalg.vector_norm(torch.linalg.vector_norm(tensor, dim=-1), dtype=torch.float64))


def _nearest(real: Float[Tensor, "rows head_dim"], made: Float[Tensor, "tokens head_dim"]) -> Tensor:
    """Return which of the tokens each row is, up to a factor of all rows, else of each; a row of zeros is one of zeros.

    Of tokens that are multiples of one another the length decides.
    """

    def nearest(real: Tensor, made: Tensor) -> tuple[float, Tensor]:
        sizes = made.square().sum(-1)
        found = torch.cat([(2 * part @ made.mT - sizes).argmax(-1) for part in real.split(1024)])
        return _relative(made[found], real), found

    def directions(rows: Tensor) -> Tensor:
        sizes = rows.norm(dim=-1, keepdim=True)
        return torch.where(sizes > 1e-5 * sizes.max(), rows / sizes.clamp_min(TINY), 0)  # less is rounding

    real, made = real.double(), made.double()
    row = real[real.norm(dim=-1).argmax()]
    along = made @ row
    factors = along / made.square().sum(-1).clamp_min(TINY)
    alike = along * factors
    best, found = 1e-2, None
    tried = factors[alike > 0.9999 * alike.max()].unique().tolist()
    # The longest row is of the longest of such tokens, so the smallest factor is tried first.
    for factor in sorted(tried, key=lambda each: (abs(each), each < 0))[:MOST_TRIED]:
        left, places = nearest(real, factor * made)
        left *= 1 if factor > 0 else 3  # tokens may be of both signs
        if left < best:
            best, found = left, places
        if best < 1e-5:
            break
    if found is not None:
        return found
    return nearest(directions(real), directions(made))[1]


def _scaled(made: Tensor, real: Tensor) -> tuple[float, float | None]:
    """Return the relative error of a prediction up to a factor, and that factor; of zeros there is none."""
    made, real = made.double(), real.double()
    if not real.any():
        return float(made.any()), None
    factor = float((made * real).sum() / (made * made).sum().clamp_min(TINY))
    return _relative(factor * made, real), factor


def _predicted(
    linear: Linear, block: Projection | StridedProjection, columns: Tensor, weights: Weights
) -> tuple[Float[Tensor, "heads tokens head_dim"], float]:
    """Return what a block makes of the input, with the host's bias, and its error beside the host's own."""
    matrix = block.get(weights).to(linear.x.device, torch.promote_types(linear.x.dtype, torch.float32)).mT
    x, y = _heads_apart(linear, columns)
    made = x @ matrix
    error, bias = _apart_from_bias(made, y, 1)
    return made.add_(bias), error


def _heads_apart(linear: Linear, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return x (1 or H, T, D) and of y the heads' channels, (H, T, k)."""
    several, outputs = len(linear.block.starts), linear.y.shape[-1]
    columns, x, y = columns.to(linear.y.device), _wide(linear.x), _wide(linear.y)
    if several == 1:
        return x.reshape(1, -1, x.shape[-1]), y.reshape(-1, outputs)[:, columns].movedim(1, 0)
    which = columns[:, 0] // outputs
    return x[which], torch.stack([y[head][:, row % outputs] for head, row in zip(which, columns, strict=True)])


def _written(linear: Linear, block: Projection | StridedProjection, columns: Tensor, weights: Weights) -> float:
    """Compare what the output block makes of what it takes with what the host's layer gives."""
    x = _wide(linear.x).reshape(-1, linear.x.shape[-1])
    y = _wide(linear.y).reshape(-1, linear.y.shape[-1])
    matrix = block.get(weights).to(x)
    made = torch.einsum("thk,hkd->td", x[:, columns.to(x.device)], matrix)
    rest = sorted(set(range(x.shape[1])) - set(columns.flatten().tolist()))
    if rest:  # something else goes in beside the heads
        entries = linear.block.starts.cpu() + linear.block.offsets.cpu()[rest, None]
        made += x[:, rest] @ weights.read(linear.block.parameter).reshape(-1)[entries].to(x)
    return _apart_from_bias(made, y, 0)[0]


def difference(layout: AttentionLayout, found: FoundAttention, weights: Weights) -> tuple[float, float]:
    """Return how far the logits and outputs of a layout are from those of the watched one, on its tokens.

    Compared are, for every head, x W_q W_kᵀ xᵀ and x W_v W_o: the order of channels within a head does not count. Both
    layouts must have the same shapes.
    """
    x_q, x_k, x_v = found.tokens
    values = []
    for each in (layout, found.layout):
        q, k, v, o = (matrix.get(weights).double().cpu() for matrix in each.matrices)
        k, v = k.repeat_interleave(len(q) // len(k), 0), v.repeat_interleave(len(o) // len(v), 0)
        values.append(((x_q @ q.mT) @ (x_k @ k.mT).mT, (x_v @ v.mT) @ o))
    (logits, outputs), (true_logits, true_outputs) = values
    return _relative(logits, true_logits), _relative(outputs, true_outputs)


def product_diagonal(layout: AttentionLayout, weights: Weights) -> float:
    """Return the mean diagonal of W_v W_o, summed over heads; NaN where it is not square."""
    v, o = layout.value.get(weights).double(), layout.output.get(weights).double()
    if v.shape[-1] != o.shape[-1]:
        return float("nan")
    return float((v.repeat_interleave(len(o) // len(v), 0) * o).sum()) / o.shape[-1]


def _wide(tensor: Tensor) -> Tensor:
    """Return half precision as float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _relative(made: Tensor, real: Tensor) -> float:
    """Return ‖made − real‖ / ‖real‖."""
    return float((made.double() - real.double()).norm() / real.double().norm().clamp_min(TINY))


# Rotary positions, read off queries before and after they were turned.
# Letters: H heads, R tokens, k head_dim, r turned pairs.

EXACT = 1e-2  # radians by which an angle may be off: pairs that are none are off by any
STILL = 1e-7  # radians per token below which a pair is not turned


def rotation_of(watched: Watched, asking: Int64[Tensor, " rows"]) -> Rotation | None:
    """Read how the queries of a layer were turned; ``None`` where they were not by a constant angle per token.

    ``asking`` says which of all tokens the queries are that are kept: tokens may come before samples.

    Coordinates are tried as pairs as in Llama, i with i + d/2, and as in GPT-J, 2i with 2i + 1, among the first or the
    last d of a head. Those are right whose angles grow evenly with the token in every head.
    """
    call = watched.parts[0]
    linear, product = call.linears[0], call.product
    if len(watched.parts) > 1 or not TURNS & product.query.tag.path or product.columns is None:
        return None
    after = _in_order(call, product.query.numbers)[watched.order].double().cpu()
    y = linear.y.reshape(-1, linear.y.shape[-1]).double().cpu()[asking.cpu()]
    before = y[:, watched.columns[0].cpu()].movedim(1, 0)
    real = before.any(dim=(0, 2))  # rows of zeros, as padding has, show no angle
    if before.shape != after.shape or real.sum() < 3:
        return None
    before, after, tokens = before[:, real], after[:, real], product.rows.cpu()[real].double()
    for pairs in _candidates(before.shape[2]):
        plain, turned = _turned(before, pairs), _turned(after, pairs)
        found = _frequencies(plain, turned, tokens)
        if found is not None and (found > STILL).any():  # else the host leaves these coordinates as they are
            return Rotation(found[found > STILL], pairs[found > STILL])
    return None


def _candidates(head_dim: int) -> list[Int64[Tensor, "r 2"]]:
    """Return the pairs of coordinates that may be turned, most first."""
    found = []
    for turned in range(head_dim - head_dim % 2, 1, -2):
        half, even = torch.arange(turned // 2), 2 * torch.arange(turned // 2)
        for start in {0, head_dim - turned}:
            found.append(start + torch.stack([half, half + turned // 2], dim=1))
            found.append(start + torch.stack([even, even + 1], dim=1))
    return found


def _turned(vectors: Float64[Tensor, "H R k"], pairs: Int64[Tensor, "r 2"]) -> Complex128[Tensor, "H R r"]:
    return torch.complex(vectors[..., pairs[:, 0]], vectors[..., pairs[:, 1]])


def _frequencies(
    before: Complex128[Tensor, "H R r"], after: Complex128[Tensor, "H R r"], tokens: Float64[Tensor, " R"]
) -> Float64[Tensor, " r"] | None:
    """Return the angle of each pair per token, where it is the same in all heads and grows evenly; else ``None``.

    A pair that is zero in some heads, as ``PreviousToken`` writes it, is read off another head.
    """
    turn = after * before.conj()
    shown = (turn != 0).all(dim=1)
    other = turn[shown.long().argmax(dim=0), :, torch.arange(turn.shape[2])].mT
    angle = torch.where(shown[:, None], turn, other).angle()
    between = angle.diff(dim=1)[:, tokens.diff() == 1]  # of neighbours: others may have gone round in between
    step = torch.polar(torch.ones_like(between), between).mean(dim=(0, 1)).angle()
    for _ in range(2):  # the first step tells how often the angle went round, all of them how far
        rest = torch.polar(torch.ones_like(angle), angle - tokens[:, None] * step).angle()
        if rest.abs().max() > math.pi / 2:
            return None
        centred = tokens - tokens.mean()
        step = step + (centred[:, None] * rest).sum(dim=1).mean(dim=0) / centred.square().sum()
    rest = torch.polar(torch.ones_like(angle), angle - tokens[:, None] * step).angle()
    even = (rest - rest.mean(dim=(0, 1))).abs().max() < EXACT
    return step if even and (step > -STILL).all() else None
