"""One forward pass of the network with everything planned so far: what a layer reads, and its maps.

Letters: S samples, N tokens, D embed_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from structured_init.attention.forward import run_planned, what_the_host_offers
from structured_init.attention.sequence.job import Job
from structured_init.errors import StructuredInitError
from structured_init.host_inputs import Inputs, as_inputs
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.position_rule import block_around, is_stack
from structured_init.sites.stream import norm_weight
from structured_init.sites.watched import cannot_run
from structured_init.watch.records import Linear
from structured_init.watch.watch import WatchMode
from structured_init.watch.watching import watching

MOST = 2**25  # numbers in the maps of a layer, which a pass holds a few times: 128 MiB of float32 each
SAMPLES = 4
LITTLE = 1e-3  # of a mean square: less than that is noise
NORMED = 2.0  # times larger or smaller than 1, up to which what a layer reads is taken for the outcome of a norm


class Pass(NamedTuple):
    """What was seen in a pass.

    Attributes:
        seen: all of it.
        own: identity of what stood in for a parameter → the model's own.
        on: what the model was run on.
        samples: S.
    """

    seen: WatchMode
    own: dict[int, Tensor]
    on: str
    samples: int


def watched_pass(
    jobs: Sequence[Job], measure: Callable[[Tensor], Tensor] | None = None, *, twice: bool = False
) -> Pass:
    """Run the network, no further than the last of some layers; nothing need be flushed.

    It is run on the batch where one was given that is long enough, else on random tokens or pixels as the host library
    offers them. The contexts are as long as the longest that is asked for, or half, a quarter, … of it where the maps
    would not fit.

    Args:
        jobs: layers of one overlay.
        measure: is asked of every map; see ``WatchMode``.
        twice: random tokens that come twice, whatever batch was given.

    Raises:
        StructuredInitError: it could not be run.
    """
    weights = jobs[0].weights
    length = max(each.length + each.site.prefix_tokens for each in jobs)
    heads = max(each.site.num_heads for each in jobs)
    while length > 2 and heads * length**2 > MOST:
        length //= 2
    part, inputs, known = to_run(weights, length, max(1, min(SAMPLES, MOST // (heads * length**2))), twice)
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
            raise StructuredInitError(f"{type(part).__name__} fails on {known}: {why[:200]}") from error
    samples = next((leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim), 1)
    return Pass(*passes[0], known, samples)


def read_by(job: Job) -> Float[Tensor, "samples tokens embed_dim"] | None:
    """Return what a layer reads, γ of the norm before it divided out; ``None`` where it cannot be seen."""
    try:
        seen, own, _, samples = watched_pass([job])
    except StructuredInitError:
        return None
    query = job.site.layout.query
    weights = {id(part.weight) for part in getattr(query, "parts", (query,))}
    for linear in seen.of(Linear):
        x = linear.x
        if id(own.get(id(linear.block.parameter))) in weights and x.numel() % (samples * job.site.embed_dim) == 0:
            x, gamma = x.reshape(samples, -1, job.site.embed_dim).cpu().double(), norm_weight(job.site, job.weights)
            return x if gamma is None else x / gamma.where(gamma.abs() > 1e-3, 1)
    return None


def positions_in(read: Float[Tensor, "samples tokens embed_dim"]) -> float | None:
    """Return the share of positions in the mean square of what is read, of samples that are unrelated: E x·x′ / E x².

    What all tokens of all samples have in common counts as neither. ``None`` of a single sample.
    """
    if len(read) < 2:
        return None
    read = read - read.mean(dim=(0, 1))
    read = read / read.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-30)
    samples = len(read)
    both = (read.sum(dim=0).square().mean() - samples) / (samples * (samples - 1))
    return min(max(both.item(), LITTLE), 1 - LITTLE)


def reading_as_large_as_seen(job: Job) -> Job:
    """Return a layer with the root mean square of what it reads, where that is not what a norm leaves."""
    read = read_by(job)
    size = 1.0 if read is None else read.square().mean().sqrt().item()
    return job if 1 / NORMED < size < NORMED or size == 0 else replace(job, reads=size)


def lasts(job: Job) -> bool:
    """Say whether a buffer of positions stays what it is when an input is longer than its table.

    XGLM and its kin then build a new one, which is shorter inputs' as well.
    """
    weights, table = job.weights, job.positions.absolute.tensor
    buffers = [(each, dict(each._buffers)) for each in weights.model.modules()]
    owner, key = next(((each, key) for each, own in buffers for key in own if own[key] is table), (None, ""))
    if owner is None:
        return True
    kept = []

    @contextmanager
    def comparing() -> Iterator[None]:
        at = owner._buffers[key]
        try:
            yield
        finally:
            kept.append(owner._buffers[key] is at)

    def enough(*_: object) -> None:
        raise Enough

    def longer(leaf: object) -> object:
        rows = 1 + table.shape[-2]
        return leaf.repeat(1, 1 + rows // leaf.shape[1])[:, :rows] if numbered(leaf) else leaf

    try:
        part, inputs, _ = to_run(weights, job.length, 1, twice=False)
    except StructuredInitError:  # what cannot be run cannot be asked
        return True
    handle = job.site.module.register_forward_pre_hook(enough)
    try:
        run_planned(weights, tree_map(longer, inputs), part, comparing())
    except Enough:
        pass
    except Exception:  # of a host that takes no longer input
        kept.append(True)
    finally:
        handle.remove()
        for each, own in buffers:
            each._buffers.update(own)
    return all(kept)


class Enough(Exception):
    """All layers that were asked for have run."""


def to_run(weights: Weights, length: int, samples: int, twice: bool) -> tuple[nn.Module, Inputs, str]:
    """Return what is run, on what, and how that is called; the arguments are those of :func:`watched_pass`.

    Raises:
        StructuredInitError: nothing can be run.
    """
    given = None if weights.batch is None else as_inputs(weights.batch)
    if given is not None and not twice and (_tokens(given) or length) >= length:
        return weights.model, given, "the batch"
    if (offered := what_the_host_offers(weights, length, samples)) is not None:
        part, inputs = offered
        return part, (_repeated(inputs) if twice else inputs), "random tokens" if _tokens(inputs) else "random inputs"
    if given is not None:
        return weights.model, (_repeated(given) if twice else given), "the batch"
    raise StructuredInitError(
        cannot_run(weights.model) or "nothing says what the model takes: give a batch, as batch=…"
    )


def _tokens(inputs: Inputs) -> int:
    """Return how many tokens each sample has; 0 where none are given by number."""
    return max((leaf.shape[1] for leaf in tree_leaves(inputs) if numbered(leaf)), default=0)


def _repeated(inputs: Inputs) -> Inputs:
    """Return texts whose second half repeats the first, in which no token comes twice while there are enough."""
    length, samples = (
        max(_tokens(inputs), 1),
        max((len(leaf) for leaf in tree_leaves(inputs) if numbered(leaf)), default=1),
    )
    in_order = torch.arange(length).expand(samples, -1)
    return drawn_twice(inputs, in_order, generator=torch.Generator().manual_seed(0))


def drawn_twice(inputs: Inputs, order: Int[Tensor, "samples tokens"], *, generator: torch.Generator) -> Inputs:
    """Return other texts, of random tokens of those that are there: N/2 of them twice, in a given order.

    Args:
        inputs: with texts in them, by number. What holds two numbers at most is a mask, of which nothing is hidden.
        order: which of the tokens a_1 … a_N/2, a_1 … a_N/2 stands where.
        generator: draws them.
    """
    samples, half = len(order), (order.shape[1] + 1) // 2

    def drawn(leaf: Any) -> Any:
        if not numbered(leaf):
            return leaf
        vocabulary = leaf.unique()
        if len(vocabulary) <= 2:
            return vocabulary[-1].expand(order.shape).clone()
        if len(vocabulary) >= half:
            picked = torch.rand(samples, len(vocabulary), generator=generator).argsort(dim=1)[:, :half]
        else:
            picked = torch.randint(len(vocabulary), (samples, half), generator=generator)
        return vocabulary[torch.gather(picked.repeat(1, 2), 1, order).to(leaf.device)]

    return tree_map(drawn, inputs)


def numbered(leaf: object) -> bool:
    """Say whether something are token numbers (B, N), or a mask over them."""
    return isinstance(leaf, Tensor) and leaf.ndim == 2 and not leaf.is_floating_point()
