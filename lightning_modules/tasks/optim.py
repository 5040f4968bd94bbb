"""Which parameters decay, and how the learning rate moves."""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from structured_init.errors import StructuredInitError
from structured_init.sites import position_sites, state_space_sites

# timm and transformers name their positions and extra tokens so; none of them is a weight to be shrunk.
UNDECAYED_NAMES = frozenset(
    {"pos_embed", "cls_token", "reg_token", "dist_token", "mask_token", "position_embeddings", "positional_embedding"}
)


def parameter_groups(module: nn.Module, *, decay_all: bool = False) -> list[dict[str, Any]]:
    """Split the trainable parameters into those that decay and those that do not.

    Without decay: vectors and scalars (biases, norms, LayerScale), positions (every position site, and the names that
    timm and transformers use) and extra tokens by name, parameters
    tagged ``_no_weight_decay``, what a submodule's ``no_weight_decay()`` lists (timm), and the decays, step biases and
    skips of state-space layers (``A_log``, b_Δ and D of every state-space site), which transformers tags nowhere. These
    last never decay: weight decay would pull a slow memory (A_log = −8) to a fast one (0).
    Frozen parameters are in no group; a tied parameter is in one group once.

    Args:
        module: any module.
        decay_all: all decay but those of state-space layers, as in recipes that give the optimizer
            ``model.parameters()``.

    Returns:
        One or two groups for an optimizer's constructor; the second carries ``weight_decay: 0.0``.
    """
    declared = set(_declared_undecayed(module))
    positions = {id(site.tensor) for site in position_sites(module)}
    layouts = [site.layout for site in state_space_sites(module)]
    never = {id(tensor) for layout in layouts for tensor in (layout.A_log, layout.dt_bias, layout.D)}
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = decay_all or (_decays(name, parameter) and name not in declared and id(parameter) not in positions)
            groups[decays and id(parameter) not in never].append(parameter)
    decayed, undecayed = {"params": groups[True]}, {"params": groups[False], "weight_decay": 0.0}
    return [group for group in (decayed, undecayed) if group["params"]]


def build_optimizer(build: Callable[..., Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """Build an optimizer on parameter groups.

    Args:
        build: from groups to the optimizer.
        groups: of :func:`parameter_groups`.

    Raises:
        StructuredInitError: torch's optimizer refuses a value, or cannot train such groups. A bug in an optimizer of
            the user's keeps its traceback.
    """
    try:
        optimizer = build(groups)
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not frames[-1].filename.startswith(str(Path(torch.optim.__file__).parent)):
            raise
        said = str(error)
        right = next((text for word, text in RANGES.items() if word in said.lower()), None)
        raise StructuredInitError(f"model.optimizer: {said}{f'; {right}' if right else ''}") from error
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise StructuredInitError("model.optimizer: SparseAdam only handles sparse gradients: use Adam or AdamW")
    return optimizer


# What torch's optimizers accept, by a word of their complaint.
RANGES = {
    "learning rate": "a learning rate is 0 or more, such as 1e-3",
    "beta": "each beta is at least 0 and below 1",
    "weight_decay": "a weight decay is 0 or more",
    "momentum": "a momentum is 0 or more",
    "epsilon": "eps is 0 or more",
    "per-parameter": "parameters with and without weight decay are two groups: take another optimizer, such as AdamW",
}


def check_rates(**values: float) -> None:
    """Refuse an argument of the schedule that is negative or no number.

    Raises:
        StructuredInitError: names it.
    """
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise StructuredInitError(f"{name} is {value:g}: it must be 0 or more")


def _decays(name: str, parameter: nn.Parameter) -> bool:
    """Tell whether a parameter decays, by its shape, its tag and its own name."""
    tagged = getattr(parameter, "_no_weight_decay", False)
    return parameter.ndim > 1 and not tagged and UNDECAYED_NAMES.isdisjoint(name.split("."))


def _declared_undecayed(module: nn.Module) -> Iterator[str]:
    """Yield the full names that submodules declare by a ``no_weight_decay()`` method."""
    for prefix, submodule in module.named_modules():
        declare = getattr(submodule, "no_weight_decay", None)
        if callable(declare):
            yield from (f"{prefix}.{name}" if prefix else name for name in declare())


def learning_rate(
    step: int, *, base_lr: float, total_steps: int, warmup_steps: int, warmup_lr: float, min_lr: float
) -> float:
    """Return the learning rate of a step: a straight line up, then half a cosine down.

    Args:
        step: optimizer steps done so far.
        base_lr: the optimizer's own learning rate, reached when the warmup ends.
        total_steps: steps of the run; ``min_lr`` is reached there and kept.
        warmup_steps: steps of the straight line.
        warmup_lr: learning rate of step 0, when there is a warmup.
        min_lr: learning rate at the end.
    """
    if step < warmup_steps:
        return warmup_lr + (base_lr - warmup_lr) * step / warmup_steps
    progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return min_lr + (base_lr - min_lr) * (1 + math.cos(math.pi * progress)) / 2


def warmup_cosine(
    optimizer: Optimizer, *, total_steps: int, warmup_steps: int, warmup_lr: float, min_lr: float
) -> LambdaLR:
    """Schedule every parameter group of an optimizer by :func:`learning_rate`, one call per optimizer step.

    ``LambdaLR`` rather than ``SequentialLR`` of two schedulers: it is a function of the step alone, so a resumed run
    needs nothing but the step.
    """
    curve = partial(
        learning_rate, total_steps=total_steps, warmup_steps=warmup_steps, warmup_lr=warmup_lr, min_lr=min_lr
    )

    def factor(base_lr: float) -> Callable[[int], float]:
        return lambda step: curve(step, base_lr=base_lr) / base_lr if base_lr else 0.0

    return LambdaLR(optimizer, [factor(float(group["lr"])) for group in optimizer.param_groups])


def piecewise_linear(optimizer: Optimizer, *, total_steps: int, points: Sequence[Sequence[float]]) -> LambdaLR:
    """Schedule every parameter group along straight lines between points, one call per optimizer step.

    Args:
        optimizer: its learning rates are multiplied.
        total_steps: steps of the run.
        points: pairs (share of the run, share of the learning rate); the run's shares rise from 0 to 1. A step has
            the value at its end, so that the first one counts where the curve starts at 0.

    Raises:
        StructuredInitError: the points are no curve from 0 to 1.
    """
    shares, values = check_points(points)
    return LambdaLR(optimizer, lambda step: float(np.interp((step + 1) / max(total_steps, 1), shares, values)))


def check_points(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the shares of the run and of the learning rate.

    Raises:
        StructuredInitError: the points are no curve from 0 to 1.
    """
    pairs = [tuple(point) for point in points]
    shares = [pair[0] for pair in pairs if len(pair) == 2]
    rising = all(left < right for left, right in itertools.pairwise(shares))
    if len(shares) != len(pairs) or not rising or not shares or (shares[0], shares[-1]) != (0.0, 1.0):
        raise StructuredInitError(
            f"a schedule is a list of pairs [share of the run, share of the learning rate] whose first numbers rise "
            f"from 0 to 1, such as [[0, 0], [0.4, 1], [1, 0]], not {[list(pair) for pair in pairs]}"
        )
    return shares, [float(pair[1]) for pair in pairs]


def check_schedule(points: Sequence[Sequence[float]] | None, warmup_epochs: float) -> None:
    """Refuse a schedule that is no curve, or a warmup beside it.

    Raises:
        StructuredInitError: either of them.
    """
    if points is None:
        return
    check_points(points)
    if warmup_epochs:
        raise StructuredInitError(
            f"lr_schedule sets the whole curve, so warmup_epochs={warmup_epochs:g} would do nothing: leave one out"
        )
