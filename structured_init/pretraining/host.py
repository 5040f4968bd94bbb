"""Where a model can be trained without its own inputs or head: between the entrance of its tokens and its last layer.

Letters: B samples, N tokens, D embed_dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize

from structured_init.errors import StructuredInitError
from structured_init.host_inputs import host_inputs
from structured_init.names import named_plain_modules
from structured_init.plan import Weights
from structured_init.sites.attention import attention_sites, required_attention_sites
from structured_init.sites.attention_site import AttentionSite
from structured_init.sites.causal import is_causal
from structured_init.sites.position_rule import is_stack, pair
from structured_init.undisturbed import undisturbed

MOST_PREFIX = 16  # class and register tokens before the others
CONVOLUTION = nn.Conv2d


@dataclass(frozen=True)
class Host:
    """A model, or the innermost part of it that takes inputs, whose layers can be trained.

    Attributes:
        module: it, with one list of layers inside.
        layers: that list.
        entrance: the token embedding, or the convolution that makes tokens of an image: what is given the inputs
            themselves.
        example: inputs that it takes.
        tokens: N, how many tokens an input gives, class and register tokens not counted.
        columns: of the grid of tokens; ``None`` for a sequence.
        width: D.
        causal: whether tokens see those before them only.
        sites: the attention in the layers.
    """

    module: nn.Module
    layers: nn.Module
    entrance: nn.Module
    example: Tensor
    tokens: int
    columns: int | None
    width: int
    causal: bool
    sites: list[AttentionSite]


def find_host(weights: Weights, who: str, example: Tensor | None = None, length: int = 1) -> Host:
    """Find out where tokens enter a model and where its layers end, by one forward pass.

    Args:
        weights: the overlay of the model.
        who: asks, for errors.
        example: inputs; without any, what the host library says about its own.
        length: of a text, where there is no example.

    Raises:
        StructuredInitError: the model has no known attention, not one list of layers alone, or no place where tokens
            of the layers' own width enter, one for each that leaves.
    """
    for parameter in weights.model.parameters():
        if parameter.is_meta:
            weights.read(parameter)  # which says so
        if isinstance(parameter, DTensor):
            raise StructuredInitError(f"{who} trains a whole copy of the layers: initialize before weights are sharded")
    sites = attention_sites(weights) or required_attention_sites(weights, None, who)
    modules = dict(named_plain_modules(weights.model))
    name = _stack(modules, sites, who)
    problem = "nothing says what it takes: give a batch of real inputs"
    around = name
    while around:
        around = around.rpartition(".")[0]
        module = modules.get(around)
        given = None if module is None else (example_of(module, length) if example is None else example)
        if given is None:
            continue
        _refuse_computed(module, who)
        seen = _look(module, modules[name], _on_device(given, module))
        if isinstance(seen, str):
            problem = seen
            continue
        entrance, tokens, columns, width = seen
        inside = [site for site in sites if site.name.startswith(f"{name}.")]
        causal = any(is_causal(site) for site in inside)
        return Host(module, modules[name], entrance, given, tokens, columns, width, causal, inside)
    raise StructuredInitError(f"{who} cannot train the layers '{name}': {problem}")


def example_of(module: nn.Module, length: int) -> Tensor | None:
    """Return an input as the host library says that a module takes it, (1, …); ``None`` where it says nothing."""
    inputs = host_inputs(module, batch=1, length=length)
    if inputs is not None:
        positional, named = inputs
        few = [*positional, *named.values()]
        return few[0] if len(few) == 1 else None
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)  # of timm, built without a name
    first = next((each for each in module.modules() if isinstance(each, CONVOLUTION)), None)
    if size is None or first is None:
        return None
    return torch.randn(1, first.in_channels, *pair(size), generator=torch.Generator().manual_seed(0))


def _stack(modules: dict[str, nn.Module], sites: list[AttentionSite], who: str) -> str:
    """Return the name of the one list of layers that holds attention."""
    stacks = [
        name
        for name, module in modules.items()
        if name and is_stack(module) and any(site.name.startswith(f"{name}.") for site in sites)
    ]
    outer = [name for name in stacks if not any(name.startswith(f"{other}.") for other in stacks)]
    if len(outer) != 1:
        has = f"the model has {len(outer)}{' (' if outer else ''}{', '.join(outer[:4])}{')' if outer else ''}"
        raise StructuredInitError(f"{who} trains one list of layers with attention, and {has}")
    return outer[0]


def _refuse_computed(module: nn.Module, who: str) -> None:
    for name, part in named_plain_modules(module):
        if parametrize.is_parametrized(part):
            raise StructuredInitError(
                f"{who} trains a copy of the layers, and weights of '{name}' are computed by a parametrization: "
                "initialize before it is registered"
            )


def _look(module: nn.Module, layers: nn.Module, example: Tensor) -> tuple[nn.Module, int, int | None, int] | str:
    """Run a module once; return its entrance, N, the grid's columns and D, or what is wrong with it."""
    entered: list[tuple[nn.Module, Tensor]] = []
    left: list[Tensor] = []

    def enters(part: nn.Module, inputs: tuple, output: Tensor) -> None:
        given = inputs[0] if inputs else None
        if isinstance(given, Tensor) and given.shape == example.shape and torch.equal(given, example):
            entered.append((part, output))

    inside = {id(part) for part in layers.modules()}
    doors = [part for part in module.modules() if isinstance(part, nn.Embedding | CONVOLUTION)]
    with ExitStack() as stack, undisturbed(module):
        for part in doors:
            if id(part) not in inside:
                stack.callback(part.register_forward_hook(enters).remove)
        last = list(layers.children())[-1]
        stack.callback(last.register_forward_hook(lambda _, __, output: left.append(first_tensor(output))).remove)
        try:
            module(example)
        except Exception as error:
            return f"it does not run on what its inputs should be ({' '.join(str(error).split())[:120]})"
    if len(entered) != 1 or len(left) != 1 or left[0].dim() != 3:
        return "no single embedding or convolution makes its tokens of the inputs"
    (entrance, made), (out,) = entered[0], left
    tokens = as_tokens(made, entrance)
    count, width = tokens.shape[1:]
    if out.shape[-1] != width or not 0 <= out.shape[1] - count <= MOST_PREFIX:
        return f"{count} tokens of width {width} enter, and {out.shape[1]} of width {out.shape[-1]} leave"
    return entrance, count, made.shape[-1] if isinstance(entrance, CONVOLUTION) else None, width


def _on_device(inputs: Tensor, module: nn.Module) -> Tensor:
    weight = next(module.parameters())
    return inputs.to(weight.device, weight.dtype if inputs.is_floating_point() else None)


def as_tokens(output: Tensor, entrance: nn.Module) -> Tensor:
    """Return what an entrance gives as tokens (B, N, D)."""
    return output.flatten(2).mT if isinstance(entrance, CONVOLUTION) else output


def as_output(tokens: Tensor, like: Tensor, entrance: nn.Module) -> Tensor:
    """Return tokens (B, N, D) as an entrance would give them."""
    return tokens.mT.reshape(like.shape) if isinstance(entrance, CONVOLUTION) else tokens.reshape(like.shape)


def first_tensor(output: object) -> Tensor:
    """Return what a layer gives; of a tuple the first, as transformers' layers put it."""
    return output[0] if isinstance(output, tuple | list) else output  # type: ignore[return-value]


def pairs(original: nn.Module, copy: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every parameter and buffer of a module, each once, and its counterpart in a copy."""
    yield from zip(original.parameters(), copy.parameters(), strict=True)
    yield from zip(original.buffers(), copy.buffers(), strict=True)
