"""What one batch tells: the scale of activations and gradients through depth, and which parameters never move."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.blocks import is_composite
from structured_init.checks.loss import first_loss
from structured_init.inputs import Inputs, run_with, undisturbed, with_fields
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import plain_name, within, wrapped_child

NUDGE = 0.02  # what a parameter that gets a gradient is moved by, in one number's standard deviation
SAME = 1e-6  # of the largest number of an output, by which two are one
STEPS = 3  # as many steps as factors that may be zero one behind the other


@dataclass(frozen=True)
class BlockScale:
    """How large numbers are behind one block, in one of its runs."""

    name: str  # of the block
    activation: float  # root mean square of its output
    gradient: float  # root mean square of the gradient of a random direction of the network's output by it
    effect: float  # root mean square of that gradient times the output, number by number
    run: int = 1  # its number
    behind: bool = True  # whether it runs on what came of the one before whose name differs in numbers alone
    fed: bool = True  # whether it got any numbers but zeros

    @property
    def label(self) -> str:
        """``block``, and ``block (run 2)`` where it runs again."""
        return self.name if self.run == 1 else f"{self.name} (run {self.run})"


@dataclass(frozen=True)
class Depth:
    """What one batch tells."""

    # scale behind every run of every block, in the order in which they are run
    blocks: list[BlockScale] = field(default_factory=list)
    # parameter → root mean square of its gradient; parameters without a part in the output are not there
    gradients: dict[str, float] = field(default_factory=dict)
    # parameters whose gradient is exactly zero and stays so when all others have moved
    stuck: list[str] = field(default_factory=list)
    largest: tuple[str, float] = ("", 0.0)  # the module with the largest number in its output, and that number
    # expected cross-entropy of uniform targets in nats, and the number of classes; None without logits
    loss: tuple[float, int] | None = None
    doubt: str = ""  # why there is no such loss, or what it holds under
    blind: bool = False  # whether two different samples give one output


@dataclass(frozen=True, eq=False)
class Run:
    """One call of a module that may be a block."""

    name: str  # of the module
    number: int  # of the call
    fed: bool  # whether it got more than zeros
    output: Tensor  # the first tensor that it gave


def measure_depth(
    model: nn.Module, inputs: Inputs, blocks: Mapping[str, nn.Module], seed: int = 0, classes: int | None = None
) -> Depth:
    """Run a model forward and back once, or up to ``STEPS`` times more where a gradient is zero.

    The model is left as it was: parameters and buffers are lent to each pass. Dropout is off; batch norms take the
    statistics of the batch, as in training. What is differentiated is the network's output in a random direction of
    length one per number. Where the blocks that are given have no parts of their own, or there are none, the outermost
    modules that hold them and run on what they gave before are the blocks, as of a looped transformer. ``classes`` is
    the length of the last axis of logits; without it, what the model says.
    Whatever the model raises on these inputs is raised.
    """
    if any(each.is_nested for each in tree_leaves(inputs) if isinstance(each, Tensor)):
        raise StructuredInitError("the batch has a nested tensor, which is not measured: give a padded one and a mask")
    # What is compiled, averaged or run in parallel is run plainly; PEFT's prompts are a part of what is run.
    while (child := wrapped_child(model)) and "prompt_encoder" not in model._modules:
        model = model._modules[child]
    parameters = {name: each.detach() for name, each in model.named_parameters() if is_real_or_complex(each)}
    names = {module: plain_name(name, model) for name, module in model.named_modules()}
    runs: list[Run] = []
    peaks: dict[str, float] = {}
    with undisturbed(model, seed), torch.enable_grad(), ExitStack() as hooks:
        for module in names:
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()  # undisturbed restores the mode
            if module is not model:
                hook = _watcher(names[module], _may_be_block(module, names[module], blocks), runs, peaks)
                hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        lent, total, output = _one_number(model, parameters, inputs, seed)
        runs = _one_behind_another(runs, blocks)
        found = torch.autograd.grad(total, [*lent.values(), *(run.output for run in runs)], allow_unused=True)
        hooks.close()
        gradients = dict(zip(lent, found, strict=False))
        scales = _scales(runs, found[len(lent) :])
        used = {name: each for name, each in gradients.items() if each is not None}
        stuck = _stuck(model, parameters, inputs, seed, used)
    top = max(peaks, key=lambda name: peaks[name], default="")
    loss, doubt = first_loss(model, inputs, output, blocks.values(), classes)
    sizes = {plain_name(name, model): _root_mean_square(each) for name, each in used.items()}
    return Depth(
        scales,
        sizes,
        [plain_name(name, model) for name in stuck],
        (top, peaks.get(top, 0.0)),
        loss,
        doubt,
        _blind(inputs, output),
    )


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


def is_real_or_complex(tensor: Tensor) -> bool:
    """Tell numbers that have gradients from integers."""
    return tensor.is_floating_point() or tensor.is_complex()


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors of anything that have gradients."""
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor) and is_real_or_complex(each)]


def _root_mean_square(tensor: Tensor) -> float:
    return tensor.detach().abs().double().square().mean().sqrt().item() if tensor.numel() else 0.0


def _may_be_block(module: nn.Module, name: str, blocks: Mapping[str, nn.Module]) -> bool:
    """Tell blocks; where these are single layers, or there are none, any module with parts may be one that loops."""
    return name in blocks or (is_composite(module) and not any(map(is_composite, blocks.values())))


def _watcher(name: str, may_be_block: bool, runs: list[Run], peaks: dict[str, float]) -> Callable[..., None]:
    """Return a hook that keeps what a block gave, and the largest magnitude that any module gave."""

    def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        found = next(iter(tensors_in(output)), None)
        if found is None:
            return
        if may_be_block and found.requires_grad:
            number = 1 + sum(run.name == name for run in runs)
            got = tensors_in((args, kwargs))
            runs.append(Run(name, number, not got or any(_any_number(each) for each in got), found))
        if found.numel():
            largest = found.detach().abs().max().nan_to_num(nan=torch.inf).item()
            peaks[name] = max(peaks.get(name, 0.0), largest)

    return hook


def _any_number(tensor: Tensor) -> bool:
    return tensor.is_nested or bool(tensor.to_dense().any())


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
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Inputs, seed: int, gradients: Mapping[str, Tensor]
) -> list[str]:
    """Return the parameters whose gradient is zero, and stays so when all that have one have moved."""
    moved, used = dict(parameters), set(gradients)
    alive = {name for name, each in gradients.items() if bool(each.any())}
    grown = alive
    for _ in range(STEPS):
        if alive >= used or not grown:
            break
        for name in alive:
            step = torch.randn(moved[name].shape, generator=torch.Generator().manual_seed(seed))
            moved[name] = moved[name] + NUDGE * step.to(moved[name])
        lent, total, _ = _one_number(model, moved, inputs, seed)
        later = dict(zip(lent, torch.autograd.grad(total, list(lent.values()), allow_unused=True), strict=True))
        used = {name for name in used if later[name] is not None}  # of others the host kept what it had computed
        grown = {name for name in used - alive if bool(later[name].any())}
        alive = alive | grown
    return [name for name in parameters if name in used - alive]


def _scales(runs: list[Run], gradients: Collection[Tensor | None]) -> list[BlockScale]:
    scales: list[BlockScale] = []
    last: dict[str, Tensor] = {}
    for run, gradient in zip(runs, gradients, strict=True):
        if gradient is None:
            continue
        alike = re.sub(r"\d+", "#", run.name)
        behind = _comes_from(run.output, last.get(alike, run.output))
        effect = run.output.abs().double() * gradient.abs()
        sizes = [_root_mean_square(each) for each in (run.output, gradient, effect)]
        scales.append(BlockScale(run.name, *sizes, run.number, behind, run.fed))
        last[alike] = run.output
    return scales


def _one_behind_another(runs: list[Run], blocks: Collection[str]) -> list[Run]:
    """Return the runs of blocks that lie behind one another: the first, and each that runs on what the last gave.

    Of modules that are no blocks, the outermost with several such runs, around blocks if there are any, are blocks.
    """
    chains: dict[str, list[Run]] = {}
    for run in runs:
        chain = chains.setdefault(run.name, [])
        if not chain or (run.number == len(chain) + 1 and _comes_from(run.output, chain[-1].output)):
            chain.append(run)
    looped = []
    for name, chain in chains.items():
        around = not blocks or any(within(block, name) for block in blocks)
        if len(chain) > 1 and name not in blocks and around:
            looped.append(name)
    outer = [name for name in looped if not any(within(name, other) for other in looped if other != name)]
    return [run for run in runs if run.name in (outer or blocks) and run in chains[run.name]]


def _comes_from(output: Tensor, before: Tensor) -> bool:
    """Say whether a tensor was computed from another."""
    ahead, seen = [output.grad_fn], {None}
    while ahead and before.grad_fn not in seen:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [each for each, _ in node.next_functions]
    return before.grad_fn in seen - {None}
