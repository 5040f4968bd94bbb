"""What the second layer of an induction circuit reads, recorded in a forward pass of the whole network.

Letters: B samples, N tokens, D embed_dim, k value width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.attention.forward import run_planned
from structured_init.attention.sequence.job import Job
from structured_init.attention.sequence.seen import Enough, drawn_twice, numbered, to_run
from structured_init.attention.stream_share import last_module, tensors
from structured_init.errors import StructuredInitError
from structured_init.host_inputs import Inputs
from structured_init.names import named_plain_modules
from structured_init.sites.attention import AttentionSite
from structured_init.sites.position_rule import block_around, is_stack

TOKENS = 2048  # in all samples


@dataclass(frozen=True)
class Recorded:
    """One pass over random tokens of which each comes twice, at random places.

    Attributes:
        other: the place of each token's other occurrence (B, N).
        read: x̂, what the attention of the second layer reads (B, N, D).
        stream: root mean square of what enters the first layer.
        heads: that of what its heads add, copies apart.
        rest: that of what else is added before the second layer, by MLPs mostly.
        copies: that of the copies.
        on: what was run: "random tokens" or "the batch".
    """

    other: Int[Tensor, "B N"]
    read: Float64[Tensor, "B N D"]
    stream: float
    heads: float
    rest: float
    copies: float
    on: str

    def parts(self, first: Job) -> str:
        """Say which shares of the stream's mean square before the second layer are whose."""
        table = first.positions.absolute
        places = 0.0 if table is None else first.weights.read(table.tensor).double().square().mean().item()
        squares = {
            "embeddings": max(self.stream**2 - places, 0.0),
            "positions": places,
            "copies": self.copies**2,
            "other heads": self.heads**2,
            "the MLP": self.rest**2,
        }
        total = sum(squares.values())
        return ", ".join(f"{what} are {square / total:.0%}" for what, square in squares.items())


def record(first: Job, second: Job) -> Recorded:
    """Run the network with everything planned so far, up to the attention of the second layer.

    Raises:
        StructuredInitError: it cannot be run, or on nothing that has token numbers.
    """
    weights, site = first.weights, first.site
    try:
        part, inputs, known = to_run(weights, second.length, -(-TOKENS // second.length), True)
    except StructuredInitError as error:
        raise StructuredInitError(f"Induction is solved on what the network computes: {error}") from error
    inputs, other = _each_twice(inputs, first.draw("tokens that come twice"))
    modules = dict(named_plain_modules(weights.model))
    stacks = {name for name, module in modules.items() if is_stack(module)}
    seen: dict[str, Tensor] = {}
    places = {
        "into the first layer": (modules[block_around(site.name, stacks)], site),
        "read by the first layer": (_reader(site, modules), site),
        "into the second layer": (modules[block_around(second.site.name, stacks)], second.site),
        "read by the second layer": (_reader(second.site, modules), second.site),
    }

    def take(name: str, layer: AttentionSite) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> None:
            seen[name] = _of_tokens((args, *kwargs.values()), layer, other)
            if name == "read by the second layer":
                raise Enough

        return hook

    def leave(_: nn.Module, __: tuple, output: Any) -> None:
        seen["added by attention"] = _of_tokens(output, site, other)

    with ExitStack() as stack:
        for name, (module, layer) in places.items():
            stack.callback(module.register_forward_pre_hook(take(name, layer), with_kwargs=True).remove)
        stack.callback(last_module(site, modules).register_forward_hook(leave).remove)
        try:
            run_planned(weights, inputs, part)
        except Enough:
            pass
        except StructuredInitError:
            raise
        except Exception as error:  # of the host
            why = " ".join(str(error).split()) or type(error).__name__
            raise StructuredInitError(f"Induction: {type(part).__name__} fails on {known}: {why[:200]}") from error
    if missing := [name for name in (*places, "added by attention") if name not in seen]:
        raise StructuredInitError(f"Induction: what is {missing[0]} of '{second.site.name}' was not seen on {known}")
    return _recorded(first, seen, other, known)


def _recorded(first: Job, seen: Mapping[str, Tensor], other: Tensor, known: str) -> Recorded:
    site = first.site
    value, output = site.value.double(), site.output.double()
    copies = 0.0
    for head, number, _ in first.heads:
        copies = copies + _before(seen["read by the first layer"] @ value[number]) @ output[head]
    attention = seen["added by attention"]
    rest = seen["into the second layer"] - seen["into the first layer"] - attention
    sizes = (_rms(each) for each in (seen["into the first layer"], attention - copies, rest, copies))
    return Recorded(other, seen["read by the second layer"], *sizes, known)


def _before(vectors: Float64[Tensor, "B N k"]) -> Float64[Tensor, "B N k"]:
    """Return what stood at the token before each; zero before the first."""
    return torch.nn.functional.pad(vectors[:, :-1], (0, 0, 1, 0))


def _each_twice(inputs: Inputs, generator: torch.Generator) -> tuple[Inputs, Tensor]:
    """Return texts of random tokens, each twice at random places, and the place of each token's other occurrence."""
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    texts = [leaf for leaf in leaves if numbered(leaf)]
    length = max((leaf.shape[1] for leaf in texts), default=0) // 2 * 2
    if length < 4:
        raise StructuredInitError("Induction is solved on texts, and what the model takes has no token numbers")
    samples = -(-TOKENS // length) if len(texts) == len(leaves) else len(texts[0])
    half = length // 2
    rank = torch.rand(samples, length, generator=generator).argsort(dim=1)  # of each place in the list of tokens, twice
    other = torch.gather(rank.argsort(dim=1), 1, (rank + half) % length)

    return drawn_twice(inputs, rank, generator=generator), other


def _reader(site: AttentionSite, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The module that reads x̂: the projection that queries come from, or the layer where it is no module."""
    query = site.layout.query
    weight = getattr(query, "parts", (query,))[0].weight
    owners = (module for module in modules.values() if any(each is weight for each in module._parameters.values()))
    return next(owners, site.module)


def _of_tokens(given: Any, site: AttentionSite, other: Tensor) -> Float64[Tensor, "B N D"]:
    """Return the activations in what a module takes or returns, samples first, without tokens before the text."""
    samples, length = other.shape
    found = next((each for each in tensors(given) if each.shape[-1] == site.embed_dim), None)
    if found is not None and found.ndim == 2 and len(found) == samples * length:
        found = found.view(samples, length, -1)
    if found is not None and found.ndim == 3 and found.shape[0] != samples and found.shape[1] == samples:
        found = found.transpose(0, 1)
    if found is None or found.ndim != 3 or found.shape[:2] != (samples, length + site.prefix_tokens):
        raise StructuredInitError(f"Induction: what '{site.name}' reads is no text of {length} tokens")
    return found[:, site.prefix_tokens :].detach().cpu().double()


def _rms(activations: Tensor) -> float:
    return activations.square().mean().sqrt().item()
