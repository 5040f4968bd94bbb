"""Looking at a model without leaving a trace: modes, gradients, random states and compiled code stay as they were."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar

import numpy as np
import torch
from torch import nn

from structured_init.threads import all_threads

ONE_AT_A_TIME = threading.RLock()  # random states are the process', and modes and hooks those of the model
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
def undisturbed(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Run the block in evaluation mode, eagerly and without gradients, and restore everything afterwards.

    Inside, random draws start from ``seed``, so that a model which draws in evaluation mode does so equally each
    time. Of several threads one does so at a time. Restored are the training flag of every module and the python,
    numpy, torch and accelerator random states.

    Args:
        model: the model that is looked at.
        seed: seed of the block's own random states.
    """
    with ONE_AT_A_TIME, ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        stack.enter_context(own_random_state(model, seed))
        stack.enter_context(torch.no_grad())
        stack.enter_context(all_threads())
        stack.enter_context(eager())
        if (_DEFAULT.get() or torch.get_default_device()).type != "cpu":
            stack.enter_context(next((each.device for each in model.parameters()), torch.device("cpu")))
        model.eval()
        yield


def eager() -> AbstractContextManager[object]:
    """Run the block without compiled code, which neither runs hooks added later nor shows its calls."""
    # Where nothing was compiled, the import of dynamo alone would take longer than the probe.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def own_random_state(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed every global random state for the block and restore them all after it.

    Args:
        model: its parameters say which accelerators are concerned.
        seed: seed of the states inside the block.
    """
    python, numpy = random.getstate(), np.random.get_state()
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    try:
        with torch.random.fork_rng(accelerators, device_type="cuda"):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            # torch.manual_seed would also seed the accelerators that are not restored.
            torch.default_generator.manual_seed(seed)
            for index in accelerators:
                torch.cuda.default_generators[index].manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
