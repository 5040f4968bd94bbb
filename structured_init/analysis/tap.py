"""Listening to attention while a model runs: the calls pass through unchanged, the maps are computed beside them.

Letters: B batch, H heads, N query tokens, M key tokens, k head_dim.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from structured_init.names import plain_name
from structured_init.sites.attention import ATTENTION
from structured_init.sites.registry import Registry

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


def looks_like_attention(name: str, module: nn.Module) -> bool:
    """Tell whether a module is attention: by its name, by its class, or because it is registered as a site."""
    words = f"{name.rsplit('.', 1)[-1]} {type(module).__name__}".lower()
    return "attn" in words or "attention" in words or ATTENTION.find(module) is not None


class AttentionTap(TorchFunctionMode):
    """Report every attention that a model computes, with the name of the module that computes it.

    Seen are ``F.scaled_dot_product_attention``, ``F.multi_head_attention_forward`` (hence ``nn.MultiheadAttention``),
    a softmax over the last axis inside a module that looks like attention (hand-written attention), and modules with
    an adapter. While the tap is open, torch itself avoids the inference fast path of ``nn.MultiheadAttention``. Kernels
    that torch does not dispatch (flash-attn, flex attention, xFormers) are not seen.

    Args:
        model: the model whose modules are followed while the tap is open.
        report: called with a module's name, a function (fraction of the batch) → maps (B, H, N, M), and the shape
            of the whole maps. The maps are computed only when and as far as the listener asks.
        adapters: functions (module, args, kwargs, output) → maps by class, for attention that is none of these.
    """

    def __init__(
        self,
        model: nn.Module,
        report: Callable[[str, Callable[[int], Tensor], tuple[int, ...]], None],
        adapters: Registry,
    ) -> None:
        """Prepare; listening starts with the ``with`` block."""
        super().__init__()
        self.model, self.report, self.adapters = model, report, adapters
        self.stack: list[tuple[str, nn.Module]] = []
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
        if func is F.scaled_dot_product_attention and not self._adapted():
            self._fused(*args, **kwargs)
        elif func is F.multi_head_attention_forward and not self._adapted():
            self._multihead(args, kwargs)
        elif func in SOFTMAX and not self._adapted():
            self._handwritten(args, kwargs)
        return func(*args, **kwargs)

    def _follow(self, name: str, module: nn.Module) -> None:
        """Keep the stack of running modules, and read those that have an adapter."""
        adapter = self.adapters.find(module)

        def enter(module: nn.Module, args: tuple) -> None:
            self.stack.append((name, module))

        def leave(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
            # Popped only afterwards: what the adapter computes is no attention of its own.
            if adapter is not None and output is not None:
                with torch.autocast(_device(args, output), enabled=False):
                    self._offer(name, adapter(module, args, kwargs, output))
            self.stack.pop()

        self.handles.append(module.register_forward_pre_hook(enter, prepend=True))
        self.handles.append(module.register_forward_hook(leave, with_kwargs=True, always_call=True))

    def _adapted(self) -> bool:
        return any(self.adapters.find(module) is not None for _, module in self.stack)

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
        """Report a call of scaled_dot_product_attention; the parameters are those of torch."""
        query, key, attn_mask = _whole(query), _whole(key), _whole(attn_mask)
        if query.ndim == 3:  # without heads
            query, key = query.unsqueeze(1), key.unsqueeze(1)
            attn_mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
        batch, shape = query.shape[0], (*query.shape[:-1], key.shape[-2])

        def compute(samples: int) -> Tensor:
            mask = _first(attn_mask, samples, batch, ndim=query.ndim)
            keys = _first(key, samples, batch, ndim=query.ndim)
            return attention_maps(query[:samples], keys, mask, is_causal, scale, enable_gqa).flatten(0, -4)

        self.report(self._name(), compute, (math.prod(shape[:-3]), *shape[-3:]))

    def _multihead(self, args: tuple, kwargs: dict) -> None:
        """Report nn.MultiheadAttention by asking the same function again for its weights, in float32."""
        named = _MULTIHEAD.bind(*args, **kwargs).arguments
        named = {name: _to_float(_whole(argument)) for name, argument in named.items()}
        named |= {"need_weights": True, "average_attn_weights": False, "training": False}
        with torch.autocast(named["query"].device.type, enabled=False):
            maps = F.multi_head_attention_forward(**named)[1]
        self._offer(self._name(), maps if maps.ndim == 4 else maps.unsqueeze(0))

    def _handwritten(self, args: tuple, kwargs: dict) -> None:
        """Report a softmax over keys inside attention that is written out."""
        logits, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
        if dim not in (-1, logits.ndim - 1) or logits.ndim not in (3, 4):
            return
        owner = self._site() or next(((n, m) for n, m in reversed(self.stack) if looks_like_attention(n, m)), None)
        if owner is None:
            return
        logits = _whole(logits)
        if logits.ndim == 3:  # batch and heads in one axis
            heads = getattr(owner[1], "num_heads", getattr(owner[1], "heads", None))
            if not isinstance(heads, int) or logits.shape[0] % heads:
                return
            logits = logits.unflatten(0, (-1, heads))
        self.report(owner[0], lambda samples: logits[:samples].float().softmax(-1), tuple(logits.shape))

    def _offer(self, name: str, maps: Float[Tensor, "batch heads queries keys"]) -> None:
        self.report(name, lambda samples: maps[:samples].float(), tuple(maps.shape))

    def _site(self) -> tuple[str, nn.Module] | None:
        """Return the innermost running module that is a site, so that maps and weights of a layer share a name."""
        return next(((n, m) for n, m in reversed(self.stack) if n and ATTENTION.find(m) is not None), None)

    def _name(self) -> str:
        site = self._site()
        return site[0] if site else next((name for name, _ in reversed(self.stack) if name), type(self.model).__name__)


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
    tensors = (leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor))
    return next((tensor.device.type for tensor in tensors), "cpu")
