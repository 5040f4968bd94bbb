"""Which parameters decay, and how the learning rate moves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from structured_init.hosts import position_sites, state_space_sites
from structured_init.util.errors import StructuredInitError

# timm and transformers name their positions and extra tokens so; none of them is a weight to be shrunk.
UNDECAYED_NAMES = frozenset(
    {"pos_embed", "cls_token", "reg_token", "dist_token", "mask_token", "position_embeddings", "positional_embedding"}
)


def parameter_groups(module: nn.Module, *, decay_all: bool = False, fallback: bool = False) -> list[dict[str, Any]]:
    """Split the trainable parameters into those that decay and those that do not.

    Without decay: vectors and scalars (biases, norms, LayerScale, gains of weight normalization: one axis is longer
    than 1, if any, and they are no weight of a linear layer, convolution or embedding), positions (every position site,
    and the names that timm and transformers use) and extra tokens by name, parameters tagged ``_no_weight_decay``, what
    a submodule's ``no_weight_decay()`` lists (timm), and the decays, step biases and skips of state-space layers
    (``A_log``, b_Δ and D of every state-space site), which transformers tags nowhere. These last never decay: weight
    decay would pull a slow memory (A_log = −8) to a fast one (0).
    Frozen parameters are in no group; a tied parameter is in one group once.

    Args:
        module: any module.
        decay_all: all decay but those of state-space layers, as in recipes that give the optimizer
            ``model.parameters()``.
        fallback: set what is no hidden matrix apart, for an optimizer such as Muon that orthogonalizes its updates:
            all of the above, embeddings (tied heads with them), the head, which is the last linear layer alone, layers
            of one output, depthwise filters over a sequence, whose channels make no matrix, and a tensor that a model
            holds beside its layers, outside of numbered blocks, as tables are. Hidden are linear layers and other
            convolutions, patch embeddings among them.

    Returns:
        Up to three groups for an optimizer's constructor: what decays, with ``use_fallback: True`` where it is set
            apart, and what does not, which carries ``weight_decay: 0.0``.

    Source: of what is hidden, KellerJordan/modded-nanogpt and karpathy/nanochat (embeddings, heads and scalars go to
    Adam), KellerJordan/cifar10-airbench (every filter that is trained goes to Muon), AI-Hypercomputer/maxtext, #4843
    (depthwise filters over a sequence go to AdamW; torch.optim.Muon does not take them either).
    """
    never: set[int] = set()
    for site in state_space_sites(module):
        never |= {id(tensor) for tensor in (site.layout.A_log, site.layout.dt_bias, site.layout.D)}
    positions = {id(site.tensor) for site in position_sites(module)}
    undecayed = never | positions | _declared_undecayed(module)
    layers = [each for each in module.modules() if isinstance(each, nn.Embedding | nn.Linear | _ConvNd)]
    of_layers = {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}
    outside = _ends(layers) | _tables(module)
    groups: dict[tuple[bool, bool], dict[str, Any]] = {  # by whether it decays, and whether it is set apart
        (True, False): {"params": []},
        (True, True): {"params": [], "use_fallback": True},
        (False, False): {"params": [], "weight_decay": 0.0},
        (False, True): {"params": [], "weight_decay": 0.0, "use_fallback": True},
    }
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        known = id(parameter)
        axes = parameter.ndim if known in of_layers else sum(size > 1 for size in parameter.shape)
        weight = axes > 1 and known not in undecayed and UNDECAYED_NAMES.isdisjoint(name.split("."))
        decays = weight or (decay_all and known not in never)
        hidden = weight and known not in outside and len(parameter) > 1
        groups[decays, fallback and not hidden]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _declared_undecayed(module: nn.Module) -> set[int]:
    """Return the identities of parameters that are tagged, or that submodules list in ``no_weight_decay()``."""
    found = {id(each) for each in module.parameters() if getattr(each, "_no_weight_decay", False)}
    for submodule in module.modules():
        if hasattr(submodule, "no_weight_decay"):
            names = set(submodule.no_weight_decay())
            found |= {id(each) for name, each in submodule.named_parameters() if name in names}
    return found


def _ends(layers: Sequence[nn.Module]) -> set[int]:
    """Return the identities of parameters of embeddings, the head and depthwise layers of sequences."""
    ends = [each for each in layers if isinstance(each, nn.Linear)][-1:]
    ends += [each for each in layers if isinstance(each, nn.Embedding)]
    ends += [each for each in layers if isinstance(each, nn.Conv1d) and each.groups == each.in_channels]
    return {id(parameter) for layer in ends for parameter in layer.parameters()}


def _tables(module: nn.Module) -> set[int]:
    """Return the identities of parameters that a module holds beside its layers, outside of numbered blocks."""
    found: set[int] = set()
    for name, holder in module.named_modules():
        is_layer = next(holder.children(), None) is None
        if not is_layer and re.search(r"\d", name) is None:
            own = holder.named_parameters(recurse=False)
            found |= {id(each) for kind, each in own if not kind.endswith("weight")}  # as torch's attention has
    return found


def build_optimizer(build: Callable[..., Optimizer], module: nn.Module, *, decay_all: bool = False) -> Optimizer:
    """Build an optimizer on the groups that :func:`parameter_groups` makes of a module.

    One with a fallback (``timm.optim.Muon``) gets what is no hidden matrix in groups of its own.

    Raises:
        StructuredInitError: nothing is trainable, or the optimizer does not take its arguments or such groups.
    """
    groups = parameter_groups(module, decay_all=decay_all)
    if not groups:
        raise StructuredInitError("the model has no trainable parameter")
    try:
        optimizer = build(groups)
    except ValueError as error:
        muon = "2D parameters" in str(error)  # torch.optim.Muon
        hint = ": take timm.optim.Muon (-c optim/muon), which gives all others to AdamW" if muon else ""
        raise StructuredInitError(f"model.optimizer: {error}{hint}") from error
    if "fallback_lr_scale" in optimizer.defaults:
        optimizer = build(parameter_groups(module, decay_all=decay_all, fallback=True))
    return optimizer


def learning_rate(
    step: int, *, base_lr: float, total_steps: int, warmup_steps: int, warmup_lr: float, min_lr: float
) -> float:
    """Return the learning rate after ``step`` steps: a straight line up to ``base_lr``, then half a cosine down.

    The line begins at ``warmup_lr``, where there is a warmup; the cosine ends at ``min_lr``, which is kept.
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

    Points are pairs (share of the run, share of the learning rate); the run's shares rise from 0 to 1. A step has the
    value at its end, so that the first one counts where the curve starts at 0.
    """
    shares, values = zip(*points, strict=True)
    return LambdaLR(optimizer, lambda step: float(np.interp((step + 1) / max(total_steps, 1), shares, values)))


def check_schedule(points: Sequence[Sequence[float]] | None, warmup_epochs: float) -> None:
    """Refuse a schedule that is no curve, or a warmup beside it."""
    if points is None:
        return
    shares = [share for share, _ in points]
    if shares != sorted({0.0, *shares, 1.0}):
        raise StructuredInitError(
            f"a schedule is a list of pairs [share of the run, share of the learning rate] whose first numbers rise "
            f"from 0 to 1, such as [[0, 0], [0.4, 1], [1, 0]], not {points!r}"
        )
    if warmup_epochs:
        raise StructuredInitError(
            f"lr_schedule sets the whole curve, so warmup_epochs={warmup_epochs:g} would do nothing: leave one out"
        )
