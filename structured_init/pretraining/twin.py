"""What is trained of a model, from where its tokens enter to its last layer, and the copy that is trained in its place.

Letters: B samples, N tokens, D embed_dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import attention_sites, required_attention_sites
from structured_init.hosts.attention_site import AttentionSite, is_causal
from structured_init.names import is_stack, named_plain_modules, outwards
from structured_init.overlay import Weights
from structured_init.running import host_inputs, pair, undisturbed

Replace = Callable[[Tensor], Tensor]
HALVES = (torch.float16, torch.bfloat16)
MOST_PREFIX = 16  # class and register tokens beside the others


@dataclass(frozen=True)
class Host:
    """A model, or the innermost part of it that takes inputs, whose layers can be trained."""

    module: nn.Module  # it, with one list of layers inside
    layers: nn.Module  # that list
    entrance: nn.Module  # what is given the inputs: the token embedding, or the convolution that makes tokens
    example: Tensor  # inputs that it takes
    tokens: int  # N, how many tokens an input gives, class and register tokens not counted
    columns: int | None  # of the grid of tokens; ``None`` for a sequence
    width: int  # D
    causal: bool | None  # whether tokens see those before them only; ``None`` where nothing tells
    first: int  # at which place of what leaves the layers the first of these tokens stands
    sites: list[AttentionSite]  # the attention in the layers


def find_host(weights: Weights, who: str, example: Tensor | None = None, length: int = 1) -> Host:
    """Find out where tokens enter a model and where its layers end, by one forward pass."""
    for parameter in weights.model.parameters():
        if parameter.is_meta:
            weights.read(parameter)  # which says so
        if isinstance(parameter, DTensor):
            raise StructuredInitError(f"{who} trains a whole copy of the layers: initialize before weights are sharded")
    sites = attention_sites(weights) or required_attention_sites(weights, None, who)
    modules = dict(named_plain_modules(weights.model))
    name = _stack(modules, sites, who)
    hosts = [modules[around] for around in [*outwards(name)][1:] if around in modules]
    examples = [_example(module, length) if example is None else example for module in hosts]
    problem = (
        "nothing says what it takes: give a batch of real inputs, as one tensor, of which a single embedding or "
        "convolution makes the tokens"
    )
    if all(each is None for each in examples):
        asked = [each for each in tree_leaves(weights.ask()) if isinstance(each, Tensor)]
        if len(asked) > 1:
            problem = f"it takes {len(asked)} inputs: a single embedding or convolution must make its tokens of one"
        examples = [asked[0][:1] if len(asked) == 1 else None] * len(hosts)
    for module, given in zip(hosts, examples, strict=True):
        if given is None:
            continue
        computed = next((n for n, part in named_plain_modules(module) if parametrize.is_parametrized(part)), None)
        if computed is not None:
            raise StructuredInitError(
                f"{who} trains a copy of the layers, and weights of '{computed}' are computed by a parametrization: "
                "initialize before it is registered"
            )
        weight = next(module.parameters())
        own = given.to(weight.device, weight.dtype if given.is_floating_point() else None)
        seen = _look(module, modules[name], own)
        if isinstance(seen, str):
            problem = seen
            continue
        entrance, tokens, columns, width, first, causal = seen
        inside = [site for site in sites if site.name.startswith(f"{name}.")]
        said = {is_causal(site) for site in inside}
        causal = True in said or (causal if None in said and columns is None else False)
        return Host(module, modules[name], entrance, given, tokens, columns, width, causal, first, inside)
    raise StructuredInitError(f"{who} cannot train the layers '{name}': {problem}")


def _example(module: nn.Module, length: int) -> Tensor | None:
    """Return an input as the host library says that a module takes it, (1, …); ``None`` where it says nothing."""
    inputs = host_inputs(module, batch=1, length=length)
    if inputs is not None:
        few = [*inputs[0], *inputs[1].values()]
        return few[0] if len(few) == 1 else None
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)  # of timm, built without a name
    first = next((each for each in module.modules() if isinstance(each, nn.Conv2d)), None)
    if size is None or first is None:
        return None
    return torch.randn(1, first.in_channels, *pair(size), generator=torch.Generator().manual_seed(0))


def _stack(modules: dict[str, nn.Module], sites: list[AttentionSite], who: str) -> str:
    """Return the name of the one list of layers that holds attention."""
    stacks = [name for name, module in modules.items() if name and is_stack(module)]
    stacks = [name for name in stacks if any(site.name.startswith(f"{name}.") for site in sites)]
    outer = [name for name in stacks if not any(name.startswith(f"{other}.") for other in stacks)]
    if len(outer) != 1:
        has = f"the model has {len(outer)}{' (' if outer else ''}{', '.join(outer[:4])}{')' if outer else ''}"
        raise StructuredInitError(f"{who} trains one list of layers with attention, and {has}")
    return outer[0]


def _look(
    module: nn.Module, layers: nn.Module, example: Tensor
) -> tuple[nn.Module, int, int | None, int, int, bool | None] | str:
    """Run a module; return its entrance, N, the grid's columns, D, the first token's place and whether it is causal.

    What is wrong with it is returned as text. A second run with another token in the middle of the first sample shows
    at which places tokens stand, and which other places and samples are changed by them.
    """
    entered: list[tuple[nn.Module, Tensor]] = []
    came: list[Tensor] = []
    left: list[Tensor] = []
    example = torch.cat([example[:2], example[:2]])[:2] if example.ndim else example

    def enters(part: nn.Module, inputs: tuple, output: Tensor) -> None:
        given = inputs[0] if inputs else None
        if isinstance(given, Tensor) and given.shape == example.shape and torch.equal(given, example):
            entered.append((part, output))

    def arrives(_: nn.Module, args: tuple, kwargs: dict) -> None:
        came.extend([each.clone() for each in (*args, *kwargs.values()) if isinstance(each, Tensor)][:1])

    def change(part: nn.Module, _: tuple, output: Tensor) -> Tensor:
        tokens = _as_tokens(output, part).clone()
        tokens[0, middle] = torch.linspace(-1, 1, width).to(tokens)
        return _as_given(tokens, part, output)

    inside, blocks = {id(part) for part in layers.modules()}, list(layers.children())
    doors = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.Conv2d)]
    with ExitStack() as stack, undisturbed(module):
        for part in doors:
            if id(part) not in inside:
                stack.callback(part.register_forward_hook(enters).remove)
        stack.callback(blocks[0].register_forward_pre_hook(arrives, with_kwargs=True).remove)
        leaves = blocks[-1].register_forward_hook(lambda _, __, output: left.append(_first_tensor(output).clone()))
        stack.callback(leaves.remove)
        try:
            module(example)
        except Exception as error:
            return f"it does not run on what its inputs should be ({' '.join(str(error).split())[:120]})"
        if len(entered) != 1 or len(left) != 1 or left[0].dim() != 3:
            return "no single nn.Embedding or nn.Conv2d makes its tokens of the inputs"
        (entrance, made), (out,) = entered[0], left
        count, width = _as_tokens(made, entrance).shape[1:]
        if out.shape[-1] != width or not 0 <= (others := out.shape[1] - count) <= MOST_PREFIX:
            enter, leave = (f"{x.shape[1:-1].numel()} of width {x.shape[-1]}" for x in ((came or left)[0], out))
            return (
                f"its {type(entrance).__name__} makes {count} tokens of width {width}, {enter} enter the layers and "
                f"{leave} leave them: one nn.Embedding or nn.Conv2d must make the tokens, and the layers must keep them"
            )
        middle = count // 2
        stack.callback(entrance.register_forward_hook(change).remove)
        module(example)
    seen = (left[0] - left[1]).abs().amax(-1)
    if (seen[1:] > 64 * torch.finfo(out.dtype).eps * out.abs().max()).any():  # experts round others differently
        return "its samples attend to one another: tokens are to lie along the second axis, as with batch_first=True"
    plain = len(came) == 2 and came[0].shape == out.shape
    places = (came[0] != came[1])[0].any(-1).nonzero().flatten().tolist() if plain else []
    first = places[0] - middle if len(places) == 1 and 0 <= places[0] - middle <= others else others
    at = first + middle
    causal = False if seen[0, :at].any() else True if seen[0, at + 1 :].any() else None
    return entrance, count, made.shape[-1] if isinstance(entrance, nn.Conv2d) else None, width, first, causal


def _as_tokens(output: Tensor, entrance: nn.Module) -> Tensor:
    """Return what an entrance gives as tokens (B, N, D)."""
    return output.flatten(2).mT if isinstance(entrance, nn.Conv2d) else output


def _as_given(tokens: Tensor, entrance: nn.Module, output: Tensor) -> Tensor:
    """Return tokens (B, N, D) in the shape of what an entrance gives."""
    return (tokens.mT if isinstance(entrance, nn.Conv2d) else tokens).reshape(output.shape)


def _first_tensor(output: object) -> Tensor:
    """Return what a layer gives; of a tuple the first, as transformers' layers put it."""
    return output[0] if isinstance(output, tuple | list) else output  # type: ignore[return-value]


class Twin:
    """A copy of a host in training mode, with the overlay's values, in float32 where the host is in half precision."""

    def __init__(self, host: Host, weights: Weights) -> None:
        self.host = host
        self.module = deepcopy(host.module)
        if any(parameter.dtype in HALVES for parameter in self.module.parameters()):
            self.module.float()
        with torch.no_grad():
            originals, copies = ((*each.parameters(), *each.buffers()) for each in (host.module, self.module))
            for original, copy in zip(originals, copies, strict=True):
                if original.is_floating_point():
                    copy.copy_(weights.read(original))
        self.module.requires_grad_(False).train()
        copied = dict(zip(map(id, host.module.modules()), self.module.modules(), strict=True))
        self.entrance, last = copied[id(host.entrance)], copied[id(list(host.layers.children())[-1])]
        self.entrance.register_forward_hook(self._enter)
        last.register_forward_hook(self._leave)
        self.device = next(self.module.parameters()).device
        self._replace: Replace = lambda tokens: tokens
        self._left: Tensor | None = None
        self._copies = dict(zip(map(id, host.module.parameters()), self.module.parameters(), strict=True))

    def of(self, parameter: Tensor) -> Tensor:
        """Return the copy of one of the host's parameters."""
        return self._copies[id(parameter)]

    def given(self, inputs: Tensor) -> Tensor:
        """Return inputs on the copy's device and, where they are no whole numbers, of its precision."""
        return inputs.to(self.device, next(self.module.parameters()).dtype if inputs.is_floating_point() else None)

    def run(
        self, inputs: Tensor, replace: Replace | None = None, mask: Tensor | None = None
    ) -> Float[Tensor, "batch tokens embed_dim"]:
        """Return the tokens (B, N, D) that leave the last layer, class and register tokens left out."""
        self._replace = replace or (lambda tokens: tokens)
        takes = "attention_mask" in inspect.signature(self.module.forward).parameters
        self.module(inputs, **({"attention_mask": mask} if takes and mask is not None else {}))
        out, self._left = self._left, None
        count = self.host.tokens if isinstance(self.entrance, nn.Conv2d) else inputs.shape[1]
        return out[:, self.host.first : self.host.first + count]

    def _enter(self, entrance: nn.Module, _: tuple, output: Tensor) -> Tensor:
        return _as_given(self._replace(_as_tokens(output, entrance)), entrance, output)

    def _leave(self, _: nn.Module, __: tuple, output: object) -> None:
        self._left = _first_tensor(output)
