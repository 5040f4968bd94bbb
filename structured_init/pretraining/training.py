"""A short training with a budget of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError
from structured_init.progress import Progress
from structured_init.threads import all_threads
from structured_init.undisturbed import eager, own_random_state

RISE = 0.1  # share of the steps in which the learning rate rises
CLIP = 1.0  # largest norm of all gradients together


@contextmanager
def training_state(model: nn.Module, seed: int) -> Iterator[None]:
    """Train inside: with gradients, on all threads, and in random states of one's own.

    Args:
        model: says which accelerators are concerned.
        seed: of what is drawn inside from the global random states: temporary layers, dropout.
    """
    with own_random_state(model, seed), all_threads(), eager(), torch.inference_mode(False), torch.enable_grad():
        yield


def train(
    loss_of_a_batch: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    *,
    iterations: int,
    learning_rate: float,
    weight_decay: float,
    who: str,
    progress: Progress,
) -> tuple[float, float]:
    """Train with AdamW; return the first loss and the mean of the last tenth of the losses.

    The learning rate rises in the first tenth of the steps and then stays. Weights with two axes or more decay.

    Args:
        loss_of_a_batch: draws a batch and returns its loss.
        parameters: what is trained.
        iterations: steps, at least one.
        learning_rate: the highest.
        weight_decay: of AdamW.
        who: is named in errors.
        progress: is told of every step.

    Raises:
        StructuredInitError: a loss is not finite.
    """
    decays = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    groups = [{"params": decays, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate)
    rise, losses = max(1, round(RISE * iterations)), []
    for step in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / rise)
        optimizer.zero_grad()
        loss = loss_of_a_batch()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise StructuredInitError(
                f"{who}: the loss is {losses[-1]} in step {step + 1} of {iterations}: give a smaller learning_rate"
            )
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        progress.step(step + 1, iterations, losses[-1])
    last = losses[-max(1, iterations // 10) :]
    return losses[0], math.fsum(last) / len(last)
