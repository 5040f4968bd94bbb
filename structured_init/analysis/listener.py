"""Listening to attention while a model runs: the calls pass through unchanged, the maps are computed beside them.

Hand-written attention is followed from its softmax to the product with the values: what is multiplied there is the
map. Between the two a host may mix heads, add a second map, normalize again or cut columns off, so that the softmax
itself is not what the tokens are weighted with.

Letters: B batch, H heads, N query tokens, M key tokens, k head_dim.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from structured_init.analysis.map_axes import AxesError, Call, SamplesOrHeadsError, SeenMap, Softmax
from structured_init.errors import StructuredInitError
from structured_init.hosts.attention import ATTENTION, looks_like_attention
from structured_init.hosts.registry import Registry
from structured_init.names import plain_name

PRODUCTS = frozenset(
    {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__}
)
LINEAR = frozenset({F.linear, F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d})
EINSUM = frozenset({torch.einsum, torch.functional.einsum})
# What leaves numbers as they are in evaluation mode, but for their precision.
UNCHANGED = frozenset(
    {F.dropout, torch.dropout, torch.Tensor.contiguous}
    | {getattr(torch.Tensor, name) for name in ("to", "type_as", "type", "float", "half", "bfloat16", "clone")}
)
SOFTMAX = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax})
_MULTIHEAD = inspect.signature(F.multi_head_attention_forward)
Adapter = Callable[[nn.Module, tuple, dict, object], Tensor]


def attention_maps(
    query: Float[Tensor, "*batch heads queries head_dim"],
    key: Float[Tensor, "... kv_heads keys head_dim"],
    mask: Bool[Tensor, ...] | Float[Tensor, ...] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*batch heads queries keys"]:
    """Return softmax(Q Kᵀ · scale + mask) in float32, with the meaning of torch's scaled_dot_product_attention.

    A boolean mask is true where a query may look. Rows sum to one; a row that may look nowhere is zero, as in torch.
    """
    with torch.autocast(query.device.type, enabled=False):
        query, key = query.float(), key.float()
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        logits = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(future, -math.inf)
        if mask is not None and mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, -math.inf)
        elif mask is not None:
            logits = logits + mask.float()
        blind = (logits == -math.inf).all(dim=-1, keepdim=True)
        return logits.softmax(dim=-1).masked_fill(blind, 0.0)


class AttentionListener(TorchFunctionMode):
    """Report every attention that a model computes, with the name of the module that computes it.

    Seen are ``F.scaled_dot_product_attention``, ``F.multi_head_attention_forward`` (hence ``nn.MultiheadAttention``),
    a softmax over the last axis inside a module that looks like attention (hand-written attention) on its way into the
    product with the values, and modules with an adapter. While it listens, torch itself avoids the inference fast
    path of ``nn.MultiheadAttention``. Kernels that torch does not dispatch (flash-attn, flex attention, xFormers) are
    not seen. One map per head in as many calls as there are heads is one layer.

    Args:
        model: the model whose modules are followed.
        report: called with a module's name, a function (fraction of the batch) → maps (B, H, N, M), and the shape
            of the whole maps, which are computed only when and as far as it asks.
        adapters: functions (module, args, kwargs, output) → maps by class, for attention that is none of these.
        refuse: called with a module's name and the reason why its maps are not reported.
        attending: names of modules that are attention, whatever they are called → their heads.
        heads_first: names of modules with as many heads as samples → whether their maps are (H, B, N, M).

    Attributes:
        unclear: names → shapes of maps that ``heads_first`` would have to tell.
        shapes: names → shapes of the first map seen, as the host computes it.
    """

    def __init__(
        self,
        model: nn.Module,
        report: Callable[[str, Callable[[int], Tensor], tuple[int, ...]], None],
        adapters: Registry,
        refuse: Callable[[str, str], None],
        attending: Mapping[str, int | None] | None = None,
        heads_first: Mapping[str, bool] | None = None,
    ) -> None:
        """Prepare; listening starts with the ``with`` block."""
        super().__init__()
        self.model, self.report, self.adapters, self.refuse = model, report, adapters, refuse
        self.attending, self.heads_first = attending or {}, heads_first or {}
        self.unclear: dict[str, tuple[int, ...]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.stack: list[Call] = []
        self.follower = SoftmaxFollower()
        self.hooks = ExitStack()

    def __enter__(self) -> AttentionListener:
        """Follow the modules and start listening."""
        for name, module in self.model.named_modules():
            self._follow(plain_name(name, self.model), module)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        """Stop listening and remove every hook."""
        super().__exit__(*exception)
        self.hooks.close()

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        """Let the call through, and report it where it is attention."""
        kwargs = kwargs or {}
        adapted = not self.stack or any(self.adapters.find(call.module) is not None for call in self.stack)
        if func is F.scaled_dot_product_attention and not adapted:
            self._fused(*args, **kwargs)
        elif func is F.multi_head_attention_forward and not adapted:
            self._multihead(args, kwargs)
        result = func(*args, **kwargs)
        self.follower.mark(func, args, kwargs, result)
        if func in SOFTMAX and not adapted:
            self._handwritten(args, kwargs, result)
        elif (product := self.follower.follow(func, args, kwargs, result)) is not None:
            self._multiplied(product)
        return result

    def _follow(self, name: str, module: nn.Module) -> None:
        """Keep the stack of running modules, and read those that have an adapter."""
        adapter = self.adapters.find(module)

        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            shapes = [tuple(leaf.shape) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            self.stack.append(Call(name, module, shapes, self.attending.get(name), self.heads_first.get(name)))

        def leave(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
            # Popped only afterwards: what the adapter computes is no attention of its own.
            call = self.stack[-1]
            try:
                if adapter is not None and output is not None:
                    tensors = (leaf for leaf in tree_leaves((args, output)) if isinstance(leaf, Tensor))
                    device = next((tensor.device.type for tensor in tensors), "cpu")
                    with torch.autocast(device, enabled=False):
                        maps = adapter(module, args, kwargs, output)
                    if not isinstance(maps, Tensor):
                        raise StructuredInitError(
                            f"the capture registered for {type(module).__name__} returned {type(maps).__name__}:"
                            " it must return maps (batch, heads, queries, keys)"
                        )
                    self._offer(call, maps)
                if output is not None:
                    self._finish(call)
            finally:
                self.stack.pop()

        self.hooks.callback(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True).remove)
        self.hooks.callback(module.register_forward_hook(leave, with_kwargs=True, always_call=True).remove)

    def _finish(self, call: Call) -> None:
        """Report what was seen in a call that is over, or say why not."""
        unreached = [softmax for softmax in self.follower.end(call) if not softmax.products]
        if unreached and not call.seen:
            shape = tuple(unreached[0].logits.shape)
            self.refuse(call.name, f"its softmax {shape} is multiplied with no values that could be followed")
        for each in call.seen:
            self.shapes.setdefault(call.name, each.shape)
        for maps in call.maps([shape[0] for shape in self.stack[0].inputs if shape]):
            if isinstance(maps, SamplesOrHeadsError):
                self.unclear[call.name] = self.shapes[call.name]
            if isinstance(maps, AxesError):
                self.refuse(call.name, str(maps))
            else:
                self.report(call.name, *maps)

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Take note of a call of scaled_dot_product_attention; the parameters are those of torch."""
        query, key, attn_mask = _whole(query), _whole(key), _whole(attn_mask)

        def compute(rows: int) -> Tensor:
            mask = _first(attn_mask, rows, query.shape[0], ndim=query.ndim)
            keys = _first(key, rows, query.shape[0], ndim=query.ndim)
            return attention_maps(query[:rows], keys, mask, is_causal, scale, enable_gqa)

        self._owner().seen.append(SeenMap((*query.shape[:-1], key.shape[-2]), compute, value.shape[-1]))

    def _multihead(self, args: tuple, kwargs: dict) -> None:
        """Take note of nn.MultiheadAttention by asking the same function again for its weights, in float32."""
        named = _MULTIHEAD.bind(*args, **kwargs).arguments
        named = {name: _whole(argument) for name, argument in named.items()}
        floating = {n: a for n, a in named.items() if isinstance(a, Tensor) and a.is_floating_point()}
        named |= {name: argument.float() for name, argument in floating.items()}
        named |= {"need_weights": True, "average_attn_weights": False, "training": False}
        with torch.autocast(named["query"].device.type, enabled=False):
            maps = F.multi_head_attention_forward(**named)[1]
        self._offer(self._owner(), maps if maps.ndim == 4 else maps.unsqueeze(0))

    def _handwritten(self, args: tuple, kwargs: dict, result: Tensor) -> None:
        """Follow a softmax over keys inside attention that is written out."""
        logits = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        site = self._site()
        if dim not in (-1, logits.ndim - 1) or logits.ndim < 3:
            if site is not None and site.name in self.attending and logits.ndim > 3:
                self.refuse(site.name, f"its softmax is over axis {dim} of {tuple(logits.shape)}: have keys last")
            return
        between = logits in self.follower.products
        written = (call for call in reversed(self.stack) if looks_like_attention(call.name, call.module))
        owner = site or next(written, None)
        if owner is not None and (between or logits.ndim == 4 or owner.heads is not None):
            self.follower.begin(Softmax(owner, logits, between), result)

    def _multiplied(self, product: Product) -> None:
        """Take note of the map that is multiplied with values, in float32 where it is the softmax as it was."""
        maps, logits = _whole(product.maps), _whole(product.softmax.logits)
        again = product.unchanged and torch.finfo(maps.dtype).bits < 32

        def compute(rows: int) -> Tensor:
            return logits[:rows].float().softmax(-1) if again else maps[:rows].float()

        product.softmax.owner.seen.append(SeenMap(tuple(maps.shape), compute, product.value_dim, product.softmax))

    def _offer(self, call: Call, maps: Float[Tensor, "batch heads queries keys"]) -> None:
        call.seen.append(SeenMap(tuple(maps.shape), lambda rows: maps[:rows].float()))

    def _site(self) -> Call | None:
        """Return the innermost running module that is a site, so that maps and weights of a layer share a name."""
        running, names = reversed(self.stack), self.attending
        return next((c for c in running if c.name in names or (c.name and ATTENTION.find(c.module) is not None)), None)

    def _owner(self) -> Call:
        """Return the call under whose name attention is reported."""
        return self._site() or next((call for call in reversed(self.stack) if call.name), self.stack[-1])


@dataclass(frozen=True)
class Product:
    """A map on its way into the product with the values."""

    softmax: Softmax  # the softmax that it comes from
    maps: Tensor  # the map, with queries and keys last
    value_dim: int  # the last axis of the values
    unchanged: bool  # whether it is what the softmax gave, in whatever precision


@dataclass
class SoftmaxFollower:
    """Every tensor that comes from a softmax inside attention, until it is multiplied with values."""

    products: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    _held: dict[int, tuple[Tensor, Softmax, bool]] = field(
        default_factory=dict
    )  # holding keeps an id from being reused

    def mark(self, func: Callable, args: tuple, kwargs: dict, result: object) -> None:
        """Take note of products of two activations, and of what is made of them up to the next linear map."""
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        active = [tensor for tensor in arguments if not isinstance(tensor, nn.Parameter)]
        multiplies = func in PRODUCTS or func in EINSUM or func in (torch.baddbmm, torch.Tensor.baddbmm)
        if multiplies or func in LINEAR:
            comes = multiplies and len(active) > 1
        else:
            comes = any(tensor in self.products for tensor in active)
        for leaf in tree_leaves(result) if comes else ():
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                self.products[leaf] = None

    def begin(self, softmax: Softmax, result: Tensor) -> None:
        """Follow what a softmax gave."""
        softmax.left = result.numel()
        self._held[id(result)] = (result, softmax, True)

    def end(self, owner: object) -> list[Softmax]:
        """Let go of what an owner's softmaxes gave, and return them."""
        gone = {key: held for key, held in self._held.items() if held[1].owner is owner}
        for key in gone:
            del self._held[key]
        return list({id(softmax): softmax for _, softmax, _ in gone.values()}.values())

    def follow(self, func: Callable, args: tuple, kwargs: dict, result: object) -> Product | None:
        """Look at one call, and return the product with the values if it is one."""
        if not self._held:
            return None
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        held = next((self._held[id(tensor)] for tensor in arguments if self._is_held(tensor)), None)
        if held is None:
            return None
        _, softmax, same = held
        product = self._product(func, args, arguments)
        if product is not None:
            maps, value_dim = product
            if softmax.products and maps.numel() > softmax.left:  # a second time: relative positions, or the like
                return None
            softmax.left -= maps.numel()
            softmax.products += 1
            return Product(softmax, maps, value_dim, same and maps.shape == softmax.logits.shape)
        same = same and func in UNCHANGED
        into = arguments[:1] if func is torch.Tensor.__setitem__ else tree_leaves(result)
        for tensor in into:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self._held[id(tensor)] = (tensor, softmax, same)
        return None

    def _is_held(self, tensor: Tensor) -> bool:
        held = self._held.get(id(tensor))
        return held is not None and held[0] is tensor

    def _product(self, func: Callable, args: tuple, arguments: list[Tensor]) -> tuple[Tensor, int] | None:
        """Return a map and the last axis of its values, where a call multiplies the two."""
        if func in EINSUM:
            return self._summed(args[0], arguments) if isinstance(args[0], str) else None
        if len(arguments) != 2 or any(isinstance(tensor, nn.Parameter) for tensor in arguments):
            return None
        if func not in PRODUCTS or min(tensor.ndim for tensor in arguments) < 2:
            return None
        left, right = reversed(arguments) if func is torch.Tensor.__rmatmul__ else arguments
        if self._is_held(left):
            return left, right.shape[-1]
        return right.mT, left.shape[-2]

    def _summed(self, equation: str, arguments: list[Tensor]) -> tuple[Tensor, int] | None:
        """Return the same of an einsum, where one axis is summed over and another is the map's alone.

        Further operands, such as the output projection, may share the heads, and not the keys.
        """
        if "->" not in equation:
            return None
        # What an ellipsis stands for leads in all of them, as numpy has it.
        inputs, output = equation.replace(" ", "").replace("...", "").split("->")
        axes = inputs.split(",")
        place = next(place for place, tensor in enumerate(arguments) if self._is_held(tensor))
        for other, tensor in enumerate(arguments):
            if other == place or isinstance(tensor, nn.Parameter):
                continue
            rest = "".join(axes[further] for further in range(len(axes)) if further not in (place, other))
            product = _read(arguments[place], axes[place], tensor, axes[other], output, rest)
            if product is not None:
                return product
        return None


def _read(maps: Tensor, mine: str, values: Tensor, others: str, output: str, rest: str) -> tuple[Tensor, int] | None:
    """Return a map with queries and keys last, and the last axis of its values; None where no axis is the keys'."""
    keys = [axis for axis in mine if axis in others and axis not in output + rest]
    queries = [axis for axis in mine if axis not in others and axis in output]
    if len(keys) != 1 or not queries:
        return None
    order = [axis for axis in mine if axis not in queries + keys] + queries + keys
    channels = [axis for axis in others if axis not in mine]
    leading = maps.ndim - len(mine)
    maps = maps.permute([*range(leading), *(leading + mine.index(axis) for axis in order)])
    maps = maps.flatten(-1 - len(queries), -2)  # queries in blocks
    return maps, values.shape[others.index(channels[-1]) - len(others)] if channels else 1


def _whole(argument: object) -> object:
    """Gather a sharded tensor; every rank does."""
    return argument.full_tensor() if hasattr(argument, "full_tensor") else argument


def _first(tensor: Tensor | None, samples: int, batch: int, ndim: int) -> Tensor | None:
    """Return the first samples of a tensor that has a batch axis, and any other as it is."""
    if tensor is None or tensor.ndim < ndim or tensor.shape[0] != batch:
        return tensor
    return tensor[:samples]
