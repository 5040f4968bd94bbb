"""Listening to attention while a model runs: the calls pass through unchanged, the maps are computed beside them.

Letters: B batch, H heads, N query tokens, M key tokens, k head_dim.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from structured_init.analysis.axes import AxesError, heads_of
from structured_init.analysis.calls import Call, Seen
from structured_init.analysis.trail import Origin, Product, Trail
from structured_init.errors import StructuredInitError
from structured_init.names import plain_name
from structured_init.sites.attention import ATTENTION
from structured_init.sites.registry import Registry
from structured_init.sites.unknown import looks_like_attention

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

    Args:
        query: queries of every head.
        key: keys; with ``enable_gqa``, each serves heads / kv_heads neighbouring query heads.
        mask: boolean (true: may look) or added to the logits; broadcast.
        is_causal: mask everything right of the main diagonal, which starts in the upper left corner.
        scale: factor on the logits; 1/√k when None.
        enable_gqa: whether the key heads are repeated.

    Returns:
        Maps whose rows sum to one; a row that may look nowhere is zero, as in torch.
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


class AttentionTap(TorchFunctionMode):
    """Report every attention that a model computes, with the name of the module that computes it.

    Seen are ``F.scaled_dot_product_attention``, ``F.multi_head_attention_forward`` (hence ``nn.MultiheadAttention``),
    a softmax over the last axis inside a module that looks like attention (hand-written attention) on its way into the
    product with the values, and modules with an adapter. While the tap is open, torch itself avoids the inference fast
    path of ``nn.MultiheadAttention``. Kernels that torch does not dispatch (flash-attn, flex attention, xFormers) are
    not seen.

    The axes of every map are found from the module's heads, its input and the batch (see ``arrangement``). One map per
    head in as many calls as there are heads is one layer.

    Args:
        model: the model whose modules are followed while the tap is open.
        report: called with a module's name, a function (fraction of the batch) → maps (B, H, N, M), and the shape
            of the whole maps. The maps are computed only when and as far as the listener asks.
        adapters: functions (module, args, kwargs, output) → maps by class, for attention that is none of these.
        refuse: called with a module's name and the reason why its maps are not reported.
        attending: names of modules that are attention, whatever they are called.
    """

    def __init__(
        self,
        model: nn.Module,
        report: Callable[[str, Callable[[int], Tensor], tuple[int, ...]], None],
        adapters: Registry,
        refuse: Callable[[str, str], None],
        attending: Collection[str] = (),
    ) -> None:
        """Prepare; listening starts with the ``with`` block."""
        super().__init__()
        self.model, self.report, self.adapters, self.refuse = model, report, adapters, refuse
        self.attending = frozenset(attending)
        self.stack: list[Call] = []
        self.trail = Trail()
        self.handles: list = []

    def __enter__(self) -> AttentionTap:
        """Follow the modules and start listening."""
        for name, module in self.model.named_modules():
            self._follow(plain_name(name, self.model), module)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        """Stop listening and remove every hook."""
        super().__exit__(*exception)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        """Let the call through, and report it where it is attention."""
        kwargs = kwargs or {}
        adapted = not self.stack or self._adapted()
        if func is F.scaled_dot_product_attention and not adapted:
            self._fused(*args, **kwargs)
        elif func is F.multi_head_attention_forward and not adapted:
            self._multihead(args, kwargs)
        result = func(*args, **kwargs)
        self.trail.mark(func, args, kwargs, result)
        if func in SOFTMAX and not adapted:
            self._handwritten(args, kwargs, result)
        elif (product := self.trail.follow(func, args, kwargs, result)) is not None:
            self._multiplied(product)
        return result

    def _follow(self, name: str, module: nn.Module) -> None:
        """Keep the stack of running modules, and read those that have an adapter."""
        adapter = self.adapters.find(module)

        def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.stack.append(Call(name, module, _shapes((args, kwargs))))

        def leave(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
            # Popped only afterwards: what the adapter computes is no attention of its own.
            call = self.stack[-1]
            try:
                if adapter is not None and output is not None:
                    with torch.autocast(_device(args, output), enabled=False):
                        self._offer(call, _checked(adapter(module, args, kwargs, output), module))
                if output is not None:
                    self._finish(call)
            finally:
                self.stack.pop()

        self.handles.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
        self.handles.append(module.register_forward_hook(leave, with_kwargs=True, always_call=True))

    def _adapted(self) -> bool:
        return any(self.adapters.find(call.module) is not None for call in self.stack)

    def _finish(self, call: Call) -> None:
        """Report what was seen in a call that is over, or say why not."""
        unreached = [origin for origin in self.trail.end(call) if not origin.products]
        if unreached and not call.seen:
            shape = tuple(unreached[0].logits.shape)
            self.refuse(call.name, f"its softmax {shape} is multiplied with no values that could be followed")
        for maps in call.maps(self._batches(call)):
            if isinstance(maps, AxesError):
                self.refuse(call.name, str(maps))
            else:
                self.report(call.name, *maps)

    def _batches(self, call: Call) -> list[int]:
        """Return the lengths of the first axes of what the module and the whole model are given."""
        return [shape[0] for shape in (*call.inputs, *self.stack[0].inputs) if shape]

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

        self._owner().seen.append(Seen((*query.shape[:-1], key.shape[-2]), compute, value.shape[-1]))

    def _multihead(self, args: tuple, kwargs: dict) -> None:
        """Take note of nn.MultiheadAttention by asking the same function again for its weights, in float32."""
        named = _MULTIHEAD.bind(*args, **kwargs).arguments
        named = {name: _to_float(_whole(argument)) for name, argument in named.items()}
        named |= {"need_weights": True, "average_attn_weights": False, "training": False}
        with torch.autocast(named["query"].device.type, enabled=False):
            maps = F.multi_head_attention_forward(**named)[1]
        self._offer(self._owner(), maps if maps.ndim == 4 else maps.unsqueeze(0))

    def _handwritten(self, args: tuple, kwargs: dict, result: Tensor) -> None:
        """Follow a softmax over keys inside attention that is written out."""
        logits = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if dim not in (-1, logits.ndim - 1) or logits.ndim < 3:
            return
        written = (call for call in reversed(self.stack) if self._attends(call))
        owner = self._site() or next(written, None)
        if owner is None or (logits.ndim != 4 and heads_of(owner.module) is None):
            return
        self.trail.begin(Origin(owner, logits, logits in self.trail.products), result)

    def _attends(self, call: Call) -> bool:
        return call.name in self.attending or looks_like_attention(call.name, call.module, ATTENTION)

    def _multiplied(self, product: Product) -> None:
        """Take note of the map that is multiplied with values, in float32 where it is the softmax as it was."""
        maps, logits = _whole(product.maps), _whole(product.origin.logits)
        again = product.unchanged and torch.finfo(maps.dtype).bits < 32

        def compute(rows: int) -> Tensor:
            return logits[:rows].float().softmax(-1) if again else maps[:rows].float()

        product.origin.owner.seen.append(Seen(tuple(maps.shape), compute, product.value_dim, product.origin))

    def _offer(self, call: Call, maps: Float[Tensor, "batch heads queries keys"]) -> None:
        call.seen.append(Seen(tuple(maps.shape), lambda rows: maps[:rows].float()))

    def _site(self) -> Call | None:
        """Return the innermost running module that is a site, so that maps and weights of a layer share a name."""
        return next((c for c in reversed(self.stack) if c.name and ATTENTION.find(c.module) is not None), None)

    def _owner(self) -> Call:
        """Return the call under whose name attention is reported."""
        return self._site() or next((call for call in reversed(self.stack) if call.name), self.stack[-1])


def _checked(maps: object, module: nn.Module) -> Tensor:
    """Return what an adapter gave, where it is maps at all; their axes are looked at with the others'."""
    if not isinstance(maps, Tensor):
        raise StructuredInitError(
            f"the capture registered for {type(module).__name__} returned {type(maps).__name__}:"
            " it must return maps (batch, heads, queries, keys)"
        )
    return maps


def _shapes(inputs: object) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _whole(argument: object) -> object:
    """Gather a sharded tensor; every rank does."""
    return argument.full_tensor() if hasattr(argument, "full_tensor") else argument


def _first(tensor: Tensor | None, samples: int, batch: int, ndim: int) -> Tensor | None:
    """Return the first samples of a tensor that has a batch axis, and any other as it is."""
    if tensor is None or tensor.ndim < ndim or tensor.shape[0] != batch:
        return tensor
    return tensor[:samples]


def _to_float(argument: object) -> object:
    return argument.float() if isinstance(argument, Tensor) and argument.is_floating_point() else argument


def _device(*values: object) -> str:
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return next((tensor.device.type for tensor in tensors), "cpu")
