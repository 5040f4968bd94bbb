"""What one batch tells: the scale of activations and gradients through depth, and which parameters never move."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.blocks import blocks_of
from structured_init.checks.loss import first_loss
from structured_init.inputs import Inputs, explain_failure, host_inputs, run_with, with_fields
from structured_init.undisturbed import undisturbed
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
    gradient: float  # root mean square of the gradient of a random direction of the network's output by it
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
    doubt: str = ""  # why there is no such loss, or what it holds under
    blind: bool = False  # whether two different samples give one output
    inputs: Inputs = ((), {})  # the batch
    why_none: str = ""  # why none was run


def measure(model: nn.Module, given: Inputs | None, seed: int, classes: int | None) -> Depth:
    """Return what one batch tells: what was given, or what the host names.

    An error on what was given is raised as it is.
    """
    if given is not None:
        return _measure(model, given, seed, classes)
    inputs = host_inputs(model, seed)
    if inputs is None:
        return Depth(why_none="no batch was given, and the library of the model names none")
    try:
        with explain_failure(model, given=False):
            return _measure(model, inputs, seed, classes)
    except StructuredInitError as error:
        return Depth(why_none=str(error))


def _measure(model: nn.Module, inputs: Inputs, seed: int, classes: int | None) -> Depth:
    """Run a model forward and back once, or up to ``STEPS`` times more where a gradient is zero.

    The model is left as it was: parameters and buffers are lent to each pass. Dropout is off; batch norms take the
    statistics of the batch, as in training. What is differentiated is the network's output in a random direction of
    length one per number. Of a block that runs several times the first run counts.
    """
    blocks = blocks_of(model)
    # What is compiled, averaged or run in parallel is run plainly; PEFT's prompts are a part of what is run.
    while (child := wrapped_child(model)) and "prompt_encoder" not in model._modules:
        model = model._modules[child]
    parameters = {}
    for name, each in model.named_parameters():
        if each.is_floating_point() or each.is_complex():
            parameters[name] = each.detach()
    plain = plain_names(model)
    outputs: dict[str, Tensor] = {}
    with undisturbed(model, seed), torch.enable_grad(), ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()  # undisturbed restores the mode
            if plain(name) in blocks:
                hooks.callback(module.register_forward_hook(partial(_keep, plain(name), outputs)).remove)
        lent, total, output = _one_number(model, parameters, inputs, seed)
        found = torch.autograd.grad(total, [*lent.values(), *outputs.values()], allow_unused=True)
        hooks.close()
        gradients = {name: each for name, each in zip(lent, found, strict=False) if each is not None}
        scales = _scales(outputs, found[len(lent) :])
        stuck = _stuck(model, parameters, inputs, seed, gradients)
    loss, doubt = first_loss(model, inputs, output, blocks.values(), classes)
    return Depth(
        blocks=scales,
        gradients={plain(name): _root_mean_square(each) for name, each in gradients.items()},
        stuck=[plain(name) for name in stuck],
        loss=loss,
        doubt=doubt,
        blind=_blind(inputs, output),
        inputs=inputs,
    )


def _keep(name: str, outputs: dict[str, Tensor], module: nn.Module, args: tuple, output: Any) -> None:
    """Keep the first tensor that a block gives, in its first run."""
    found = [each for each in tensors_in(output) if each.requires_grad]
    if found:
        outputs.setdefault(name, found[0])


def _blind(inputs: Inputs, output: Any) -> bool:
    """Tell whether all that differs from sample to sample comes in, and nothing of it goes out; zeros are an output."""
    given = [each for each in tree_leaves(inputs) if isinstance(each, Tensor) and each.ndim and len(each) > 1]
    gives = [each.detach() for each in tensors_in(output) if each.ndim > 1 and len(each) > 1]
    if not given or not gives or any(len(each) != len(given[0]) for each in (*given, *gives)):
        return False
    differ = any(not torch.equal(each.to_dense()[0], each.to_dense()[1]) for each in given)
    alike = all(bool(((each[0] - each[1]).abs() <= SAME * each[0].abs().max()).all()) for each in gives)
    constant = all(bool((each == each.flatten()[0]).all()) for each in gives)
    return differ and alike and not constant


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors of anything that may have gradients."""
    leaves = [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
    return [each for each in leaves if each.is_floating_point() or each.is_complex()]


def _root_mean_square(tensor: Tensor) -> float:
    return tensor.detach().abs().double().square().mean().sqrt().item() if tensor.numel() else 0.0


def _one_number(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, seed: int
) -> tuple[dict[str, Tensor], Tensor, Any]:
    """Return what was lent to a pass, the output in a random direction (Σ r·y, r ~ N(0, 1)), and the output."""
    lent = {name: each.clone().requires_grad_() for name, each in parameters.items()}
    own = {id(each): lent[name] for name, each in model.named_parameters() if name in lent}
    buffers = {id(each): each.clone() for each in model.buffers()}
    output = with_fields(run_with(model, own | buffers, inputs))
    leaves = [each for each in tensors_in(output) if each.requires_grad]
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
    return lent, total, output


def _stuck(
    model: nn.Module, parameters: dict[str, Tensor], inputs: Inputs, seed: int, gradients: Mapping[str, Tensor]
) -> list[str]:
    """Return the parameters whose gradient is zero, and stays so when all that have one have moved."""
    moved = dict(parameters)
    waiting = [name for name, each in gradients.items() if not each.any()]
    for _ in range(STEPS):
        if not waiting:
            break
        for name in gradients.keys() - set(waiting):
            step = torch.randn(moved[name].shape, generator=torch.Generator().manual_seed(seed))
            moved[name] = moved[name] + NUDGE * step.to(moved[name])
        lent, total, _ = _one_number(model, moved, inputs, seed)
        found = torch.autograd.grad(total, [lent[name] for name in waiting], allow_unused=True)
        # Of those without a gradient now the host kept what it had computed.
        waiting = [name for name, each in zip(waiting, found, strict=True) if each is not None and not each.any()]
    return waiting


def _scales(outputs: Mapping[str, Tensor], gradients: Collection[Tensor | None]) -> list[BlockScale]:
    scales: list[BlockScale] = []
    last: dict[str, tuple[str, Tensor]] = {}  # name without numbers → stack and output
    for (name, output), gradient in zip(outputs.items(), gradients, strict=True):
        if gradient is None:
            continue
        alike = re.sub(r"\d+", "#", name)
        stack, before = last.get(alike, (name, output))
        stack = stack if _comes_from(output, before) else name
        scales.append(BlockScale(name, _root_mean_square(output), _root_mean_square(gradient), stack))
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
