"""What one batch tells: the scale of activations through depth, the first loss, and which parameters never move."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.blocks import blocks_of
from structured_init.analysis.capture import cut_samples
from structured_init.checks.loss import first_loss
from structured_init.inputs import Inputs, as_inputs, explain_failure, host_inputs, run_with, with_fields
from structured_init.undisturbed import norms_as_in_training, undisturbed
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_names, wrapped_child

NUDGE = 0.02  # what a parameter that gets a gradient is moved by, in one number's standard deviation
SAME = 1e-6  # of the largest number of an output, by which two are one
STEPS = 3  # as many steps as factors that may be zero one behind the other


@dataclass(frozen=True)
class BlockScale:
    """How large numbers are behind one block."""

    name: str  # of the block
    activation: float  # root mean square of its output
    stack: str  # the first of blocks that run one on what came of the other, with names that differ in numbers alone


@dataclass(frozen=True)
class Depth:
    """What one batch tells; nothing where none was run."""

    # scale behind every block, in the order in which they are run
    blocks: list[BlockScale] = field(default_factory=list)
    # parameter → root mean square of its gradient; parameters without a part in the output are not there
    gradients: dict[str, float] = field(default_factory=dict)
    # parameters whose gradient is exactly zero and stays so when all others have moved
    stuck: list[str] = field(default_factory=list)
    # expected cross-entropy of uniform targets in nats, and the number of classes; None without logits
    loss: tuple[float, int] | None = None
    blind: bool = False  # whether two different samples give one output
    inputs: Inputs = ((), {})  # the batch
    why_none: str = ""  # why none was run


def measure(model: nn.Module, batch: Any, seed: int, classes: int | None, max_samples: int | None = None) -> Depth:
    """Return what one batch tells, or its first samples: that which was given, or else what the host names.

    An error on what was given is raised.
    """
    given = batch is not None
    inputs, cut = cut_samples(as_inputs(batch), max_samples) if given else (host_inputs(model, seed), "")
    if inputs is None:
        return Depth(why_none="no batch was given, and the library of the model names none")
    try:
        with explain_failure(model, given=given, cut=cut):
            return _measure(model, inputs, seed, classes)
    except StructuredInitError as error:
        if given:
            raise
        return Depth(why_none=str(error))


def _measure(model: nn.Module, inputs: Inputs, seed: int, classes: int | None) -> Depth:
    """Run a model forward and back once, or up to ``STEPS`` times more where a gradient is zero.

    The model is left as it was: parameters and buffers are lent to each pass. Dropout is off; norms that have seen no
    batch take the statistics of this one, as in training. What is differentiated is the network's output in a random
    direction of length one per number. Of a block that runs several times the first run counts.
    """
    blocks = blocks_of(model)
    while child := wrapped_child(model):  # what is compiled, averaged or run in parallel is run plainly
        model = model._modules[child]
    parameters = {}
    for name, each in model.named_parameters():
        if each.is_floating_point() or each.is_complex():
            parameters[name] = each.detach()
    plain = plain_names(model)
    outputs: dict[str, Tensor] = {}
    with norms_as_in_training(model), undisturbed(model, seed), torch.enable_grad():
        with ExitStack() as hooks:
            for name, module in blocks.items():
                hooks.callback(module.register_forward_hook(partial(_keep, name, outputs)).remove)
            output, gradients = _differentiate(model, parameters, inputs, seed, [*parameters])
        stuck = _stuck(model, parameters, inputs, seed, gradients)
    return Depth(
        blocks=_scales(outputs),
        gradients={plain(name): _root_mean_square(each) for name, each in gradients.items()},
        stuck=[plain(name) for name in stuck],
        loss=first_loss(model, inputs, output, blocks.values(), classes),
        blind=_blind(inputs, output),
        inputs=inputs,
    )


def _keep(name: str, outputs: dict[str, Tensor], module: nn.Module, args: tuple, output: Any) -> None:
    """Keep the first tensor that a block gives, in its first run."""
    found = _differentiable(output)
    if found:
        outputs.setdefault(name, found[0])


def _blind(inputs: Inputs, output: Any) -> bool:
    """Tell whether all that differs from sample to sample comes in, and nothing of it goes out; zeros are an output."""
    given = [each.to_dense() for each in tree_leaves(inputs) if isinstance(each, Tensor) and each.ndim]
    gives = [each.detach() for each in _differentiable(output) if each.ndim > 1 and each.numel()]
    lengths = {len(each) for each in (*given, *gives)}
    if len(lengths) != 1 or min(lengths) < 2:
        return False
    differ = any(not torch.equal(each[0], each[1]) for each in given)
    alike = all((each[0] - each[1]).abs().max() <= SAME * each[0].abs().max() for each in gives)  # nan is not
    return differ and alike and any(bool((each != each.flatten()[0]).any()) for each in gives)


def _differentiable(tree: Any) -> list[Tensor]:
    """Return the tensors of anything that depend on parameters."""
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor) and each.requires_grad]


def _differentiate(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, seed: int, wanted: list[str]
) -> tuple[Any, dict[str, Tensor]]:
    """Return the output, and gradients of the output in a random direction (Σ r·y, r ~ N(0, 1)) by those that have one.

    Parameters and buffers are lent to the pass.
    """
    lent = {name: each.clone().requires_grad_() for name, each in parameters.items()}
    own = {id(each): lent[name] for name, each in model.named_parameters() if name in lent}
    buffers = {id(each): each.clone() for each in model.buffers()}
    output = with_fields(run_with(model, own | buffers, inputs))
    leaves = _differentiable(output)
    if not leaves:
        raise StructuredInitError(
            f"{type(model).__name__}: no tensor in its output, {type(output).__name__}, depends on its parameters: "
            "return tensors, or tuples, dictionaries, dataclasses or distributions of them"
        )
    generator, total = torch.Generator().manual_seed(seed), torch.zeros(())
    for each in leaves:
        leaf = torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
        direction = torch.randn(leaf.shape, generator=generator).to(leaf.device)
        total = total + (leaf.float() * direction).sum().cpu() / leaf.numel() ** 0.5
    found = torch.autograd.grad(total, [lent[name] for name in wanted], allow_unused=True)
    return output, {name: each for name, each in zip(wanted, found, strict=True) if each is not None}


def _stuck(
    model: nn.Module, parameters: dict[str, Tensor], inputs: Inputs, seed: int, gradients: Mapping[str, Tensor]
) -> list[str]:
    """Return the parameters whose gradient is zero, and stays so when all that have one have moved."""
    moved = dict(parameters)
    waiting = _zeros(gradients)
    for _ in range(STEPS):
        if not waiting:
            break
        for name in gradients.keys() - set(waiting):
            step = torch.randn(moved[name].shape, generator=torch.Generator().manual_seed(seed))
            moved[name] = moved[name] + NUDGE * step.to(moved[name])
        _, found = _differentiate(model, moved, inputs, seed, waiting)
        # Of those without a gradient now the host kept what it had computed.
        waiting = _zeros(found)
    return waiting


def _zeros(gradients: Mapping[str, Tensor]) -> list[str]:
    return [name for name, each in gradients.items() if not each.any()]


def _root_mean_square(tensor: Tensor) -> float:
    return tensor.detach().abs().double().square().mean().sqrt().item()


def _scales(outputs: Mapping[str, Tensor]) -> list[BlockScale]:
    scales: list[BlockScale] = []
    last: dict[str, tuple[str, Tensor]] = {}  # name without numbers → stack and output
    for name, output in outputs.items():
        alike = re.sub(r"\d+", "#", name)
        stack, before = last.get(alike, (name, output))
        stack = stack if _comes_from(output, before) else name
        scales.append(BlockScale(name, _root_mean_square(output), stack))
        last[alike] = stack, output
    return scales


def _comes_from(output: Tensor, before: Tensor) -> bool:
    """Say whether a tensor was computed from another."""
    ahead, seen = [output.grad_fn], {None}
    while ahead and before.grad_fn not in seen:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [each for each, _ in node.next_functions]
    return before.grad_fn in seen - {None}
