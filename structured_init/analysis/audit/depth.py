"""What changes through depth: the scale of activations and gradients on one batch, and attention's weight products."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from structured_init.analysis.blocks import is_composite
from structured_init.analysis.weight_products import weight_products
from structured_init.hosts.attention import AttentionSite, attention_sites, left_unknown
from structured_init.hosts.state_space import state_space_sites
from structured_init.inputs import Inputs, run_with, undisturbed, with_fields
from structured_init.util.errors import StructuredInitError
from structured_init.util.names import folded_name, plain_name, within, wrapped_child
from structured_init.weights import Weights

NUDGE = 0.02  # what a parameter that gets a gradient is moved by, in one number's standard deviation
STEPS = 3  # as many steps as factors that may be zero one behind the other
LARGEST = 2**28  # numbers in the products of one layer, 2 GiB in float64
HEADS = ("head", "classifier", "fc", "lm_head")  # linear layers whose output is logits, where no block holds them
TOKENS = 100  # rows from which on a matrix may be a table of tokens
ALIGNED = 6.0  # standard errors of a mean diagonal, beyond which it is no chance
Seen = tuple[str, int, bool, Tensor]  # a block, the number of its run, whether it got more than zeros, what it gave


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
    if any(isinstance(leaf, Tensor) and leaf.is_nested for leaf in tree_leaves(inputs)):
        raise StructuredInitError("the batch has a nested tensor, which is not measured: give a padded one and a mask")
    # What is compiled, averaged or run in parallel is run plainly; PEFT's prompts are a part of what is run.
    while (child := wrapped_child(model)) and "prompt_encoder" not in model._modules:
        model = model._modules[child]
    parameters = {name: each.detach() for name, each in model.named_parameters() if _has_gradient(each)}
    seen: list[Seen] = []
    peaks: dict[str, float] = {}
    with undisturbed(model, seed), torch.enable_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train()  # undisturbed restores the mode
        with _watched(model, blocks, seen, peaks):
            gradients, behind, output = _gradients(model, parameters, inputs, seed, seen, blocks)
            ran = seen[: len(behind)]
        alive = {name for name, each in gradients.items() if each is not None and bool((each != 0).any())}
        used = {name for name, each in gradients.items() if each is not None}
        rms = {name: _rms(gradients[name]) for name in gradients if name in used}
        moved = dict(parameters)
        for _ in range(STEPS):
            if alive >= used:
                break
            for name in alive:
                step = torch.randn(moved[name].shape, generator=torch.Generator().manual_seed(seed))
                moved[name] = moved[name] + NUDGE * step.to(moved[name])
            later, _, _ = _gradients(model, moved, inputs, seed, [])
            used &= {name for name, each in later.items() if each is not None}  # the host kept what it had computed
            grown = {name for name, each in later.items() if each is not None and bool((each != 0).any())} - alive
            if not grown:
                break
            alive |= grown
    scales, last = [], {}
    for (name, run, fed, of_block), gradient in zip(ran, behind, strict=True):
        if gradient is not None:
            before = last.get(alike := re.sub(r"\d+", "#", name), of_block)
            sizes = [_rms(each) for each in (of_block, gradient, of_block.abs().double() * gradient.abs())]
            scales.append(BlockScale(name, *sizes, run, _comes_from(of_block, before), fed))
            last[alike] = of_block
    top = max(peaks, key=lambda name: peaks[name], default="")
    loss, doubt = _first_loss(model, inputs, output, blocks, classes)
    return Depth(
        blocks=scales,
        gradients={plain_name(name, model): value for name, value in rms.items()},
        stuck=[plain_name(name, model) for name in parameters if name in used - alive],
        largest=(top, peaks.get(top, 0.0)),
        loss=loss,
        doubt=doubt,
    )


def _first_loss(
    model: nn.Module, inputs: Inputs, output: Any, blocks: Mapping[str, nn.Module], classes: int | None
) -> tuple[tuple[float, int] | None, str]:
    """Return E_y[−log p(y)] = log Σ exp z − mean z, averaged over places, and the number of classes; and any doubt.

    Logits z are ``output.logits`` (transformers, with axis 1 of 4 or 5 for classes), else the first tensor whose last
    axis, or axis 1 of 3 to 5, is as long as ``classes`` or the model's own ``num_classes``. Where neither is said, they
    are the first tensor, if its last axis is as long as the output of a linear layer with a name of ``HEADS``, or, of a
    model that takes integers alone, the rows of an embedding outside of blocks: of the first or of one with ``TOKENS``
    rows or more. Classes that a model rules out by a logit of −∞ or nearly so are left out.
    """
    problem = getattr(getattr(model, "config", None), "problem_type", None)  # of transformers
    if classes is None and problem in ("multi_label_classification", "regression"):
        return None, f"its configuration says problem_type='{problem}', where no single class is right"
    without = "its output does not say how many classes it has: give 'classes' if it has any"
    without, doubt = without if classes is None else f"its output has no {classes} logits", ""
    logits = output.get("logits") if isinstance(output, Mapping) else None
    if not isinstance(logits, Tensor):
        said = classes or getattr(model, "num_classes", None)
        lengths = {said: ""} if said else dict(_class_counts(model, inputs, blocks))
        seen = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.ndim > 1]
        seen = [  # segmentation has its classes on axis 1
            each.movedim(1, -1) if each.shape[-1] != said == each.shape[1] and each.ndim in (3, 4, 5) else each
            for each in (seen if said else seen[:1])
        ]
        logits = next((each for each in seen if each.shape[-1] in lengths and each.is_floating_point()), None)
        if logits is None:
            return None, without
        doubt = lengths[logits.shape[-1]]
    elif logits.ndim > 3:
        logits = logits.movedim(1, -1)
    if logits.ndim < 2:  # a number per sample
        return None, without
    logits = logits.detach().double().flatten(0, -2)
    logits = logits[:, (logits > -1e30).all(0) | logits.isnan().any(0)]
    if logits.shape[-1] < 2 or not len(logits):
        return None, without
    return ((logits.logsumexp(-1) - logits.mean(-1)).mean().item(), logits.shape[-1]), doubt


def _class_counts(model: nn.Module, inputs: Inputs, blocks: Mapping[str, nn.Module]) -> Iterator[tuple[int, str]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in HEADS and not re.search(r"\d", name):
            yield module.out_features, "if these are classes"
    # An embedding in a block is no vocabulary, but a table of relative positions; beside measurements of anything.
    inside = {part for block in blocks.values() for part in block.modules() if part is not block}
    measured = any(isinstance(each, Tensor) and _has_gradient(each) for each in tree_leaves(inputs))
    tables = [each for each in model.modules() if isinstance(each, nn.Embedding) and each not in inside]
    for number, table in enumerate(() if measured else tables):
        if table.num_embeddings != table.embedding_dim and (number == 0 or table.num_embeddings >= TOKENS):
            yield table.num_embeddings, ""


def _gradients(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    inputs: Inputs,
    seed: int,
    seen: list[Seen],
    blocks: Collection[str] = (),
) -> tuple[dict[str, Tensor | None], list[Tensor | None], Any]:
    """Return the gradient of every parameter, and of the outputs that hooks have put into ``seen``; and the output."""
    lent = {name: each.clone().requires_grad_() for name, each in parameters.items()}
    buffers = {id(each): each.clone() for each in model.buffers()}
    own = {id(each): lent[name] for name, each in model.named_parameters() if name in lent}
    output = with_fields(run_with(model, own | buffers, inputs))
    # In a random direction: Σ r·y over all that depends on the parameters, r ~ N(0, 1).
    leaves = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.requires_grad]
    leaves = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in leaves]
    if not leaves:
        raise StructuredInitError(
            f"{type(model).__name__}: no tensor in its output, {type(output).__name__}, depends on its parameters: "
            "return tensors, or tuples, dictionaries, dataclasses or distributions of them"
        )
    generator = torch.Generator().manual_seed(seed)
    total = sum(
        (leaf.float() * torch.randn(leaf.shape, generator=generator).to(leaf.device)).sum() / leaf.numel() ** 0.5
        for leaf in leaves
    )
    kept = _in_depth(seen, blocks)
    seen[:] = kept
    outputs = [each for *_, each in kept if each.requires_grad]
    found = torch.autograd.grad(total, [*lent.values(), *outputs], allow_unused=True)
    behind = iter(found[len(lent) :])
    return dict(zip(lent, found, strict=False)), [next(behind) if x.requires_grad else None for *_, x in kept], output


def _in_depth(seen: list[Seen], blocks: Collection[str]) -> list[Seen]:
    """Return the runs of blocks that lie behind one another: the first, and each that runs on what the last gave.

    Of modules that are no blocks, the outermost with several such runs, around blocks if there are any, are blocks.
    """
    chains: dict[str, list[Seen]] = {}
    ended: set[str] = set()
    seen = list(seen)  # a checkpoint runs blocks again on the way back, whose hooks are still there
    for each in seen:
        name, *_, output = each
        chain = chains.setdefault(name, [])
        if not chain or (name not in ended and _comes_from(output, chain[-1][-1])):
            chain.append(each)
        else:
            ended.add(name)
    looped = [name for name, chain in chains.items() if len(chain) > 1 and name not in blocks]
    looped = [name for name in looped if not blocks or any(within(block, name) for block in blocks)]
    outer = {name for name in looped if not any(within(name, other) for other in looped if other != name)}
    return [each for each in seen if each[0] in (outer or blocks) and any(each is kept for kept in chains[each[0]])]


def _comes_from(output: Tensor, before: Tensor) -> bool:
    """Say whether a tensor was computed from another."""
    ahead, seen, goal = [output.grad_fn], {None}, before.grad_fn
    while ahead and goal not in seen:
        if (node := ahead.pop()) not in seen:
            seen.add(node)
            ahead += [each for each, _ in node.next_functions]
    return goal is not None and goal in seen


@contextmanager
def _watched(
    model: nn.Module, blocks: Mapping[str, nn.Module], seen: list[Seen], peaks: dict[str, float]
) -> Iterator[None]:
    """Keep the outputs of blocks, and the largest magnitude that any module gives."""
    names = {module: plain_name(name, model) for name, module in model.named_modules() if name}
    single = not any(map(is_composite, blocks.values()))
    runs: Counter[str] = Counter()
    of_blocks = {module: name for name, module in blocks.items()}
    if single:  # any module with parts and parameters may be run several times
        of_blocks |= {module: name for module, name in names.items() if is_composite(module)}

    def numbers(tree: Any) -> Iterator[Tensor]:
        return (each for each in tree_leaves(tree) if isinstance(each, Tensor) and _has_gradient(each))

    def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        found = next(numbers(output), None)
        if found is None:
            return
        if module in of_blocks:
            runs[of_blocks[module]] += 1
            got = [*numbers((args, kwargs))]
            fed = not got or any(each.is_nested or bool(each.to_dense().any()) for each in got)
            seen.append((of_blocks[module], runs[of_blocks[module]], fed, found))
        if found.numel():
            largest = found.detach().abs().max().nan_to_num(nan=torch.inf).item()
            peaks[names[module]] = max(peaks.get(names[module], 0.0), largest)

    with ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _rms(tensor: Tensor) -> float:
    return tensor.detach().abs().double().square().mean().sqrt().item() if tensor.numel() else 0.0


def product_diagonals(model: nn.Module, *batches: object) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return layer → numbers, and a line for each layer that is left out, or whose attention is not known.

    The model is watched on the first of some batches that it runs on without gradients, if there is one.
    Of ``query_key`` and ``value_output`` each, means over heads: ``…_diagonal`` and ``…_off_diagonal_std``; ``…_z``,
    the diagonal in standard errors of chance; ``…_largest_factor``, the largest magnitude in both factors.
    """
    found: dict[str, dict[str, float]] = {}
    left: list[str] = []
    for batch in (*batches, None):
        weights = Weights(model, batch=batch)
        try:
            sites = attention_sites(weights)
            break
        except StructuredInitError as error:
            if error.__cause__ is None:  # it runs, and a layout that was registered contradicts it
                raise
    for site in sites:
        if site.num_heads * site.embed_dim**2 > LARGEST:
            left.append(f"{site.name}: products of {site.num_heads} heads {site.embed_dim} wide are left out")
            continue
        try:
            found[site.name] = dict(_numbers(site))
        except StructuredInitError as error:
            left.append(f"{site.name}: no products: {error}")
    unknown = left_unknown(weights)
    reasons: dict[str, list[str]] = {}
    for name, why in unknown.items():
        reasons.setdefault(why, []).append(name or type(model).__name__)
    why_not = f" ({weights.seen.why_not})" if weights.seen.why_not else ""
    left += [f"{folded_name(names)}: no products: {why}{why_not}" for why, names in reasons.items()]
    return found, left


def aligned(numbers: dict[str, float]) -> list[str]:
    """Say which diagonals stand out from chance; nothing where none does."""
    signs = {"query_key": "W_q W_kᵀ", "value_output": "W_v W_o"}
    return [
        f"{sign} diagonal {numbers[f'{product}_diagonal']:+.2g}"
        for product, sign in signs.items()
        if abs(numbers.get(f"{product}_z", 0)) > ALIGNED
    ]


def half_lives_on(model: nn.Module, inputs: Inputs, seed: int = 0) -> dict[str, Tensor]:
    """Return state-space layer → half-lives in tokens, (H, N) or (H, 1), at the mean Δ of a batch's tokens.

    Tokens that an ``attention_mask`` among the inputs calls padding do not count; of a layer that runs several times
    all passes do.
    """
    sites = {site.module: site for site in state_space_sites(model) if site.layout.select is not None}
    args, named = inputs
    mask, seen = named.get("attention_mask"), {}  # layer → steps of all tokens, (tokens, H)

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
        leaves = (each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        hidden = next((each for each in leaves if each.is_floating_point()), None)
        if hidden is not None:
            real = isinstance(mask, Tensor) and mask.shape == hidden.shape[:2]
            hidden = hidden.detach() * mask[..., None].to(hidden) if real else hidden.detach()  # as the host does
            step = sites[module].selection(hidden).step.double()
            seen.setdefault(module, []).append(step[mask.cpu() != 0] if real else step.flatten(0, 1))

    with ExitStack() as hooks, undisturbed(model, seed):
        for module in sites:
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if sites:
            model(*args, **named)
    steps = {sites[module]: torch.cat(each).mean(0) for module, each in seen.items()}
    return {site.name: math.log(2) / (step[:, None] * site.A_log.double().exp().cpu()) for site, step in steps.items()}


def in_tokens(half_lives: Iterable[Tensor]) -> str:
    """Say from which to which half-life states have, and the median."""
    lives = torch.cat([each.flatten() for each in half_lives])
    said = [f"{each:,.0f}" if each >= 10 else f"{each:.2g}" for each in (lives.min(), lives.max(), lives.quantile(0.5))]
    return f"{said[0]} to {said[1]} tokens, median {said[2]}" if said[0] != said[1] else f"{said[0]} tokens"


def _numbers(site: AttentionSite) -> Iterator[tuple[str, float]]:
    summary = weight_products(site).summary()
    factors = {"query_key": (site.query, site.key), "value_output": (site.value, site.output)}
    for product, both in factors.items():
        diagonal, spread = summary[f"{product}_diagonal"], summary[f"{product}_off_diagonal_std"]
        heads = len(diagonal) if isinstance(diagonal, list) else 1
        diagonal, spread = (sum(each) / len(each) if isinstance(each, list) else each for each in (diagonal, spread))
        error = spread / math.sqrt(heads * min(both[0].shape[1], both[1].shape[1]))
        yield f"{product}_diagonal", diagonal
        yield f"{product}_off_diagonal_std", spread
        yield f"{product}_z", diagonal / error if error else 0.0
        yield f"{product}_largest_factor", max(each.abs().max().item() for each in both)
