"""Looking at a model without leaving a trace: modes, gradients, random states and compiled code stay as they were."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

ONE_AT_A_TIME = threading.RLock()  # random states are the process', and modes and hooks those of the model
BUFFER = 2**22  # numbers from which on a buffer, such as a mask of 2048² tokens, is not copied
_DEFAULT: ContextVar[torch.device | None] = ContextVar("default device outside", default=None)


@contextmanager
def cpu_by_default() -> Iterator[None]:
    """Make what is made inside on the CPU where it does not say otherwise, whatever the default device is outside.

    A model that is run inside (see :func:`undisturbed`) has a default again: the device that it is on.
    """
    outside = torch.get_default_device()
    if outside.type == "cpu":
        yield
        return
    token = _DEFAULT.set(outside)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _DEFAULT.reset(token)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode, in which reading a spectrally normed weight changes nothing, one at a time.

    torch's inference fast path is off: it makes nested tensors of padded ones, which many functions do not take.
    """
    with ONE_AT_A_TIME, ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def undisturbed(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Run the block in evaluation mode, eagerly and without gradients, and restore everything afterwards.

    Inside, random draws start from ``seed``, so that a model which draws in evaluation mode does so equally each
    time. Of several threads one does so at a time. Restored are the training flag of every module, what was written in
    place into buffers of fewer than 2²² numbers, and the python, numpy, torch and accelerator random states.
    """

    def restore(buffer: Tensor, version: int, before: Tensor) -> None:
        written = buffer._version != version or torch.is_inference_mode_enabled()  # which counts no versions
        if written and buffer.shape == before.shape:
            buffer.copy_(before)

    with evaluating(model), ExitStack() as stack:
        stack.enter_context(own_random_state(seed))
        stack.enter_context(torch.no_grad())
        for buffer in model.buffers():
            if buffer.numel() < BUFFER and not buffer.is_inference():
                stack.callback(restore, buffer, buffer._version, buffer.clone())
        stack.enter_context(eager())
        if (_DEFAULT.get() or torch.get_default_device()).type != "cpu":
            stack.enter_context(next((each.device for each in model.parameters()), torch.device("cpu")))
        yield


@contextmanager
def norms_as_in_training(model: nn.Module) -> Iterator[None]:
    """Around :func:`undisturbed`: batch norms whose running statistics are those of no data normalize as in training.

    Their mean is 0 and their variance 1. Left alone are those that a model in training keeps in evaluation mode. A
    single number has no statistics. Several processes would have to agree on theirs.
    """

    def choose(module: _BatchNorm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        if given is not None and given.ndim > 1:
            module.training = given[:, 0].numel() > 1  # what shares a mean
            module.track_running_stats = not module.training  # what is not tracked is neither read nor written

    with ExitStack() as stack:
        for module in model.modules():
            if not isinstance(module, _BatchNorm) or not _as_built(module):
                continue
            kept = model.training and not module.training
            agrees = isinstance(module, nn.SyncBatchNorm) and torch.distributed.is_initialized()
            if not (kept or agrees):
                stack.callback(module.register_forward_pre_hook(choose, with_kwargs=True).remove)
                stack.callback(setattr, module, "track_running_stats", module.track_running_stats)
        yield


def _as_built(norm: _BatchNorm) -> bool:
    """Say whether a norm tracks statistics and has seen no batch yet: mean 0, variance 1."""
    if norm.running_mean is None or norm.running_mean.is_meta:
        return False
    return not norm.running_mean.any() and bool(norm.running_var.eq(1).all())


def eager() -> AbstractContextManager[object]:
    """Run the block without compiled code, which neither runs hooks added later nor shows its calls."""
    # Where nothing was compiled, the import of dynamo alone would take longer than the probe.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Seed every global random state for the block, of accelerators in use as well, and restore them all."""
    python, numpy = random.getstate(), np.random.get_state()
    accelerators = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(accelerators, device_type="cuda"):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # torch.manual_seed would also seed accelerators that are begun later, which nobody restores.
            torch.default_generator.manual_seed(seed)
            for index in accelerators:
                torch.cuda.default_generators[index].manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
