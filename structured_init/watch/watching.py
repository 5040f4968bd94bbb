"""Running a model under watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from structured_init.names import named_plain_modules
from structured_init.watch.watch import WatchMode


@contextmanager
def watching(model: nn.Module, measure: Callable[[Tensor], Tensor] | None = None) -> Iterator[WatchMode]:
    """Watch what runs inside; fused attention is written out, and its inference fast path is off.

    Args:
        model: whose parameters and modules are known by name. It is not changed.
        measure: what is to be read off every map; see ``WatchMode``.
    """
    mode = WatchMode(model, measure)
    handles, stack = [], mode.running
    fast = torch.backends.mha.get_fastpath_enabled()
    for name, module in named_plain_modules(model):
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: entered(mode, name), prepend=True))
        handles.append(module.register_forward_hook(lambda *_: left(stack), always_call=True))
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with ExitStack() as modes:
            modes.enter_context(sdpa_kernel(SDPBackend.MATH))
            modes.enter_context(mode)
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


def entered(mode: WatchMode, name: str) -> None:
    """Take note that a module begins to run."""
    mode.running.append(name)
    mode.ran.add(name)


def left(running: list[str]) -> None:
    """Take note that the innermost module has ended; a hook that returned its name would replace what it gave."""
    running.pop()
