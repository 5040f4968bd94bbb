# ruff: noqa: D103  (the name of a mutant says what it does)
"""Bugs that people make when they initialize a model: each changes a healthy model and returns what it broke.

A mutant is a row of a table (parts of a model, of each part all tensors or the one in the middle, and what is done to
them) or a short function of a model. It returns the names of the tensors that a good message names, or nothing where a
model has no such part. A report is where the bug was met: on GitHub, or in a released library.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

BLOCK = r"(blocks|layers|layer|h|encoder_layer_|stages\.\d+\.blocks|features\.\d+)[._]?(\d+)"
PARTS = {  # of a model → a pattern of the names of its tensors
    "any weight": r"weight$|[wW][12]$|proj$",
    "matrix": rf"{BLOCK}.*(qkv|proj|fc\d|dense|query|key|value|mlp\.\d|conv\d?|block\.\d)(\.weight)?$|^\d\.weight$",
    "bias": r"(?<!expert_)(?<!dt_)bias$|bias_ih_l\d$",
    "fused": r"(qkv|c_attn|query_key_value)\.weight$|in_proj_weight$",
    "query": r"(q_proj|query)\.weight$",
    "key": r"(k_proj|key)\.weight$",
    "value": r"(v_proj|value)\.weight$",
    "attention output": r"(attn\.proj|attn\.c_proj|o_proj|out_proj|attention\.(output\.)?dense)\.weight$",
    "first of MLP": r"(mlp\w*\.fc1|layers\.\d\.fc1|c_fc|up_proj|intermediate\.dense|dense_h_to_4h|mlp\.0)\.weight$",
    "last of MLP": r"(mlp\w*\.fc2|s\.\d\.fc2|mlp\.c_proj|down_proj|\d\.output\.dense|dense_4h_to_h|mlp\.3)\.weight$",
    "positions": r"(pos_embed|wpe\.weight|position_embeddings\.weight|embed_positions\.weight|pos_embedding)$",
    "token": r"(cls_token|class_token)$",
    "head": r"(^|\.)(head|lm_head|heads\.head|head\.fc|classifier\.1|fc)\.weight$",
    "gate": r"(gamma(_\d)?|\.gate|layer_scale)$",
    "modulation": r"modulation\.weight$",
    "experts": r"(mlp\.w1|gate_up_proj)$",
    "router": r"(router|mlp\.gate)\.weight$",
    "expert bias": r"expert_bias$",
    "query norm": r"q_norm\.weight$",
    "decay": r"A_log$",
    "decay matrix": r"(layers\.\d+|mixer)\.A_log$",
    "step": r"(dt_bias|dt_proj\.bias)$",
    "step weight": r"dt_proj\.weight$",
    "skip": r"\.D$",
    "filter": r"(conv1d|dwconv|conv_dw|block\.0)\.weight$",
    "low rank": r"lora_[AB]$",
    "temperature": r"logit_scale$",
    "forgetting": r"bias_ih_l\d$",
    "table": r"(angles|sines|inv_freq|relative_position_index|rope\.pos_embed|position_ids)$",
    "index": r"relative_position_index$",
    "rotary": r"(angles|(?<!original_)inv_freq)$",
    "statistics": r"running_var$",
}
OUTPUTS = ("attention output", "last of MLP")
ONE, ALL = "one", "all"


@dataclass(frozen=True)
class Mutant:
    """A kind of bug.

    Attributes:
        name: what was done wrong.
        group: of the table.
        change: puts the bug into a model, and returns the names of the tensors that are wrong.
        report: where the bug was met, if it is known.
        before: runs before the model is built, as a seed that is fixed does.
    """

    name: str
    group: str
    change: Callable[[nn.Module], Iterable[str]]
    report: str = ""
    before: Callable[[], object] | None = None


MUTANTS: list[Mutant] = []


def mutant(group: str, report: str = "") -> Callable:
    """Register a function as a mutant, whose name is the function's."""

    def register(change: Callable[[nn.Module], Iterable[str]]) -> Callable[[nn.Module], Iterable[str]]:
        MUTANTS.append(Mutant(change.__name__.replace("_", " "), group, change, report))
        return change

    return register


# ---- Finding and changing parts of a model ----


def tensors(model: nn.Module, *parts: str) -> dict[str, Tensor]:
    """Return parameters and buffers of some parts by name; those of norms and embeddings are found by their types."""
    every = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = {}
    for part in parts:
        for name, module in model.named_modules():
            is_norm = part in ("norm", "norm bias") and "norm" in type(module).__name__.lower()
            if is_norm or (part == "embedding" and isinstance(module, nn.Embedding)):
                name = f"{name}.{'bias' if part == 'norm bias' else 'weight'}"
                if name in every:
                    found[name] = every[name]
        for name, tensor in every.items():
            if part in PARTS and re.search(PARTS[part], name):
                found[name] = tensor
    return found


def pick(model: nn.Module, scope: str, *parts: str) -> dict[str, Tensor]:
    """Return all tensors of some parts, or the one in the middle, as of one block among several."""
    found = tensors(model, *parts)
    middle = list(found)[len(found) // 2 :][:1]
    return found if scope == ALL else {name: found[name] for name in middle}


def owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that holds a tensor, and what it calls it."""
    place, _, key = name.rpartition(".")
    return model.get_submodule(place), key


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put another tensor in the place of a parameter or buffer."""
    module, key = owner(model, name)
    setattr(module, key, nn.Parameter(tensor) if key in module._parameters else tensor)


def depth_of(model: nn.Module) -> int:
    """Return the number of blocks."""
    return max((block_of(name) + 1 for name, _ in model.named_parameters()), default=1)


def block_of(name: str) -> int:
    """Return the number of the block that a tensor is in; 0 for one that is in none."""
    found = re.search(BLOCK, name)
    return int(found[2]) if found else 0


@torch.no_grad()
def write(
    model: nn.Module, scope: str, parts: tuple[str, ...], change: float | Callable[[Tensor], Tensor]
) -> list[str]:
    """Write a number, or what a function makes of a tensor, into tensors."""
    found = pick(model, scope, *parts)
    for tensor in found.values():
        tensor.copy_(change(tensor.clone()) if callable(change) else torch.full_like(tensor, change))
    return list(found)


@torch.no_grad()
def scale(model: nn.Module, scope: str, parts: tuple[str, ...], factor: float | Callable[..., float]) -> list[str]:
    """Multiply matrices by a number, or by a function of the matrix and the number of blocks."""
    found = {name: tensor for name, tensor in pick(model, scope, *parts).items() if tensor.ndim > 1}
    for tensor in found.values():
        tensor *= factor(tensor, depth_of(model)) if callable(factor) else factor
    return list(found)


def replace(model: nn.Module, scope: str, parts: tuple[str, ...], make: Callable[[Tensor], Tensor]) -> list[str]:
    """Put new tensors in the place of others."""
    found = pick(model, scope, *parts)
    for name, tensor in found.items():
        put(model, name, make(tensor.detach()))
    return list(found)


def own_method(model: nn.Module) -> str:
    """Return the name of the method that writes all weights; empty where a model has none."""
    return next((name for name in ("initialize_weights", "init_weights") if hasattr(model, name)), "")


def after_own_method(model: nn.Module, change: Callable[[], object]) -> bool:
    """Let a model's own method do something more at its end; false where it has none."""
    name = own_method(model)
    method = getattr(model, name, None)

    def and_then() -> None:
        method()
        change()

    if name:
        setattr(model, name, and_then)
    return bool(name)


def forget(model: nn.Module, scope: str, parts: tuple[str, ...]) -> list[str]:
    """Let a model's own method leave tensors as they are, as a method does that does not know them."""
    name, names = own_method(model), list(pick(model, scope, *parts))
    method = getattr(model, name, None)

    @torch.no_grad()
    def all_but_some() -> None:
        found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        before = {name: found[name].detach().clone() for name in names if name in found}
        method()
        for name, tensor in before.items():
            found[name].copy_(tensor)

    if name and names:
        setattr(model, name, all_but_some)
    return names if name else []


# ---- What is written into tensors ----


def drawn(std: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.randn_like(tensor) * std


def drawn_by(generator: Callable[[], torch.Generator]) -> Callable[[Tensor], Tensor]:
    """Return a function that draws a tensor anew, by a generator of its own, with nearly its standard deviation.

    That is a power of two to a quarter, so that it does not depend on the draws before.
    """

    def draw(tensor: Tensor) -> Tensor:
        std = 0.02 if tensor.is_meta else tensor.std().item()
        return torch.randn(tensor.shape, generator=generator()).to(tensor) * 2 ** (round(4 * math.log2(std)) / 4)

    return draw


def cut_at_one_sigma(tensor: Tensor) -> Tensor:
    std = 0.02 if tensor.is_meta else max(tensor.std().item(), 1e-6)
    return nn.init.trunc_normal_(tensor, std=std, a=-std, b=std)


def two_in_two_places(tensor: Tensor) -> Tensor:
    tensor.view(-1)[:: max(tensor.numel() // 2, 1)] = 2
    return tensor


def equal_heads(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[: len(tensor) // 4]] * 4)


def repeated_rows(tensor: Tensor) -> Tensor:
    half = len(tensor) // 2
    return torch.cat([tensor[:half], tensor[:half], tensor[2 * half :]])


def keys_from_queries(tensor: Tensor) -> Tensor:
    query, _, value = tensor.chunk(3)
    return torch.cat([query, query, value])


def transposed_index(tensor: Tensor) -> Tensor:
    side = math.isqrt(tensor.numel())
    return tensor.view(side, side).T.reshape(tensor.shape)


def first_part_written(parts: int) -> Callable[[Tensor], Tensor]:
    """Return a function that leaves all but the first of some parts of a tensor's rows empty."""

    def make(tensor: Tensor) -> Tensor:
        size = len(tensor) // parts
        return torch.cat([tensor[:size], torch.empty_like(tensor[size:])])

    return make


def second_columns_written(tensor: Tensor) -> Tensor:
    new = torch.empty_like(tensor)
    new[..., ::2] = tensor[..., ::2]
    return new


def fan_in(tensor: Tensor) -> int:
    return tensor[0].numel()


def rank(name: str) -> int:
    return int(os.environ.get(name, 0))


def rank_of_torch() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


# ---- Tables: name, scope, parts, what is done, report ----

EMPTY = [
    ("a matrix is empty", ONE, ("matrix",), torch.empty_like, "TransformerLens #902"),
    ("the head is empty", ALL, ("head",), torch.empty_like, "transformers #46002"),
    ("biases are empty", ALL, ("bias",), torch.empty_like, "transformers Data2Vec"),
    ("a norm is empty", ONE, ("norm",), torch.empty_like, ""),
    ("positions are empty", ALL, ("positions",), torch.empty_like, "transformers #30953"),
    ("a token is empty", ALL, ("token",), torch.empty_like, "transformers ViT-MAE"),
    ("experts are empty", ONE, ("experts",), torch.empty_like, ""),
    ("expert biases are empty", ALL, ("expert bias",), torch.empty_like, "torchtitan #3334"),
    ("gates are empty", ALL, ("gate",), torch.empty_like, "transformers SAM 3"),
    ("a table is empty", ALL, ("table",), torch.empty_like, "transformers #45902"),
    ("statistics are empty", ONE, ("statistics",), torch.empty_like, "transformers DETR"),
    ("a matrix by the old constructor", ONE, ("matrix",), lambda old: torch.Tensor(*old.shape), ""),
    ("a matrix by new_empty", ONE, ("matrix",), lambda old: old.new_empty(old.shape), ""),
    ("an empty half-precision matrix", ONE, ("matrix",), lambda old: torch.empty_like(old, dtype=torch.half), ""),
    ("NaN is written", ONE, ("norm",), lambda old: torch.full_like(old, math.nan), ""),
    ("infinity is written", ONE, ("bias",), lambda old: torch.full_like(old, math.inf), ""),
    ("half of an embedding is empty", ONE, ("embedding",), first_part_written(2), "transformers #30953"),
    ("only the query of a fused matrix is written", ONE, ("fused",), first_part_written(3), ""),
    ("every second column is written", ONE, ("matrix",), second_columns_written, ""),
]
FORGOTTEN = [
    ("the own method forgets norms", ALL, ("norm",), "timm CSATv2"),
    ("the own method forgets biases", ALL, ("bias",), "transformers RegNet"),
    ("the own method forgets positions", ALL, ("positions",), "transformers ViT-MAE"),
    ("the own method forgets gates", ALL, ("gate",), "dinov2 #476"),
    ("the own method forgets tables", ALL, ("table",), "transformers #45902"),
    ("the own method forgets experts", ALL, ("experts",), "bionemo-recipes #1368"),
    ("the own method forgets decays", ALL, ("decay",), "fla #380"),
    ("the own method forgets one matrix", ONE, ("matrix",), "transformers Decision Transformer"),
    ("the own method forgets the head", ALL, ("head",), ""),
    ("the own method forgets statistics", ALL, ("statistics",), "transformers DETR"),
]
SCALED = [
    ("outputs without the depth scale", ALL, OUTPUTS, lambda _, depth: (2 * depth) ** 0.5, "transformers #47458"),
    ("the depth scale twice", ALL, OUTPUTS, lambda _, depth: (2 * depth) ** -0.5, ""),
    ("the depth scale in one output alone", ONE, OUTPUTS, lambda _, depth: (2 * depth) ** -0.5, ""),
    ("one matrix ×10", ONE, ("matrix",), 10, ""),
    ("one matrix ×2", ONE, ("matrix",), 2, ""),
    ("one matrix /10", ONE, ("matrix",), 0.1, ""),
    ("one output ×3", ONE, OUTPUTS, 3, ""),
    ("all weights ×5", ALL, ("any weight",), 5, "fla #374"),
    ("all weights are σ² in place of σ", ALL, ("any weight",), 0.02, ""),
    ("all weights are 1e-10", ALL, ("any weight",), 5e-9, "transformers BLIP"),
    ("a bound taken for a σ", ALL, ("matrix",), 3**0.5, "tch-rs #573"),
    ("1/n in place of 1/√n", ALL, ("matrix",), lambda tensor, _: fan_in(tensor) ** -0.5, ""),
    ("fan-out for fan-in", ALL, ("first of MLP", "last of MLP"),
     lambda tensor, _: (fan_in(tensor) / len(tensor)) ** 0.5, "nfnets-pytorch #30"),
    ("the fan of a fused matrix", ALL, ("fused",), 0.5**0.5, "apex #910"),
    ("the fan of all groups", ALL, ("filter",), lambda tensor, _: len(tensor) ** -0.5, "mlx #4536"),
    ("the fan of all experts", ALL, ("experts",), lambda tensor, _: len(tensor) ** -0.5, ""),
    ("embeddings of σ 1", ALL, ("embedding",), 50, "transformers MT5"),
    ("positions of σ 1", ALL, ("positions",), 50, ""),
    ("the head ×20", ALL, ("head",), 20, ""),
    ("the router ×50", ALL, ("router",), 50, ""),
]  # fmt: skip
WRITTEN = {
    "scale and depth": [
        ("weights are uniform from zero", ALL, ("matrix",), lambda old: torch.rand_like(old) / 25, "init.uniform_"),
        ("a matrix is cut at one sigma", ALL, ("matrix",), cut_at_one_sigma, "timm #1286"),
        ("a few numbers are two", ONE, ("matrix",), two_in_two_places, "pytorch #155588"),
        ("one matrix keeps the default of torch", ONE, ("attention output", "matrix"),
         lambda old: nn.init.kaiming_uniform_(old, a=5**0.5), ""),
    ],
    "zeros": [
        ("norms are zero", ALL, ("norm",), 0, ""),
        ("one norm is zero", ONE, ("norm",), 0, ""),
        ("norms begin at two", ALL, ("norm",), 2, "transformers Gemma"),
        ("norms are drawn", ALL, ("norm",), drawn(0.02), ""),
        ("norms and their biases are swapped", ALL, ("norm bias",), 1, ""),
        ("one norm bias is one", ONE, ("norm bias",), 1, ""),
        ("query norms are zero", ALL, ("query norm",), 0, ""),
        ("modulation is not zero", ALL, ("modulation",), 0.02, ""),
        ("gates are zero", ALL, ("gate",), 0, "dinov2 #476"),
        ("gates are one", ALL, ("gate",), 1, ""),
        ("outputs are zero on both sides", ALL, ("attention output", "value", "fused"), 0, "SLA #14"),
        ("both matrices of an MLP are zero", ALL, ("first of MLP", "last of MLP"), 0, ""),
        ("both factors of low rank are zero", ALL, ("low rank",), 0, ""),
        ("neither factor of low rank is zero", ALL, ("low rank",), 0.1, ""),
        ("biases are one", ALL, ("bias",), 1, ""),
        ("biases are drawn", ALL, ("bias",), drawn(0.5), ""),
        ("one bias is −10", ONE, ("bias",), -10, "dlrm #358"),
        ("the bias of forgetting is missing", ALL, ("forgetting",), 0, ""),
        ("embeddings are zero", ALL, ("embedding",), 0, ""),
        ("one matrix is zero", ONE, ("matrix",), 0, ""),
        ("one matrix is constant", ONE, ("matrix",), 0.02, ""),
        ("a temperature is not a logarithm", ALL, ("temperature",), 14.3, ""),
        ("statistics are zero", ALL, ("statistics",), 0, ""),
    ],
    "coarse numbers": [
        ("all weights were bfloat16", ALL, ("any weight", "norm", "bias"), Tensor.bfloat16, ""),
        ("one matrix was bfloat16", ONE, ("matrix",), Tensor.bfloat16, "Megatron-LM #1302"),
        ("one matrix has few values", ONE, ("matrix",), lambda old: (old * 128).round() / 128, ""),
    ],
    "positions": [
        ("positions are zero", ALL, ("positions",), 0, "minGPT #62"),
        ("all positions are one vector", ALL, ("positions",), lambda old: old.flatten(0, -2)[:1].expand_as(old), ""),
        ("tables are zero", ALL, ("table",), 0, ""),
        ("a table is off by one", ALL, ("table",), lambda old: old.roll(1, dims=-1), ""),
        ("rotary angles are one", ALL, ("rotary",), 1, ""),
        ("rotary frequencies have another base", ALL, ("rotary",), lambda old: old.sign() * old.abs() ** 0.5, ""),
        ("rotary frequencies are bfloat16", ALL, ("rotary",), Tensor.bfloat16, "tt-metal #54528"),
        ("rotary frequencies are reversed", ALL, ("rotary",), lambda old: old.flip(-1), ""),
        ("relative positions are transposed", ALL, ("index",), transposed_index, ""),
    ],
    "copies": [
        ("experts are equal", ALL, ("experts",), lambda old: old[:1].expand_as(old), ""),
        ("heads are equal", ALL, ("query", "value"), equal_heads, ""),
        ("queries are keys in a fused matrix", ALL, ("fused",), keys_from_queries, ""),
        ("rows of an embedding repeat", ONE, ("embedding",), repeated_rows, ""),
    ],
    "state spaces": [
        ("decays are zero", ALL, ("decay",), 0, ""),
        ("decays are not logarithms", ALL, ("decay",), torch.exp, "fla #380"),
        ("decays are all the same", ALL, ("decay matrix",), lambda old: old[..., :1].expand_as(old), ""),
        ("steps are zero", ALL, ("step",), 0, "mad-lab #3"),
        ("steps are one", ALL, ("step",), 1, "transformers #43717"),
        ("steps are drawn as weights", ALL, ("step", "step weight"), drawn(0.02), "zoology #32"),
        ("steps without the inverse of softplus", ALL, ("step",), nn.functional.softplus, ""),
        ("skips are zero", ALL, ("skip",), 0, ""),
        ("a filter of a scan is zero", ONE, ("filter",), 0, ""),
    ],
    "seeds and ranks": [
        ("one matrix has a seed of its own", ONE, ("matrix",), drawn_by(lambda: seeded(0)), ""),
        ("one matrix has the seed of the time", ONE, ("matrix",), drawn_by(lambda: seeded(time.time_ns())), ""),
        ("one matrix depends on the rank of torch", ONE, ("matrix",),
         drawn_by(lambda: seeded(rank_of_torch() + torch.initial_seed() % 1000)), "torchtitan #1363"),
        ("one matrix is drawn by a new generator of NumPy", ONE, ("matrix",),
         drawn_by(lambda: seeded(int(np.random.default_rng().integers(2**40)))), ""),
        ("every layer sets the seed", ALL, ("first of MLP", "attention output"), drawn_by(lambda: seeded(1)), ""),
    ],
}  # fmt: skip
BEFORE = [  # name, what runs before the model is built, report
    ("the seed is fixed", lambda: torch.manual_seed(0), "neuralforecast"),
    ("the seed depends on RANK", lambda: torch.manual_seed(torch.initial_seed() + rank("RANK")), "detr #544"),
    *((f"the seed depends on {name}", lambda name=name: torch.manual_seed(torch.initial_seed() + rank(name)), "")
      for name in ("LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")),
]  # fmt: skip
MUTANTS += [Mutant(name, "memory", partial(replace, scope=scope, parts=parts, make=make), report)
            for name, scope, parts, make, report in EMPTY]  # fmt: skip
MUTANTS += [Mutant(name, "meta device", partial(forget, scope=scope, parts=parts), report)
            for name, scope, parts, report in FORGOTTEN]  # fmt: skip
MUTANTS += [Mutant(name, "scale and depth", partial(scale, scope=scope, parts=parts, factor=factor), report)
            for name, scope, parts, factor, report in SCALED]  # fmt: skip
MUTANTS += [Mutant(name, group, partial(write, scope=scope, parts=parts, change=change), report)
            for group, rows in WRITTEN.items() for name, scope, parts, change, report in rows]  # fmt: skip


def all_names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


MUTANTS += [Mutant(name, "seeds and ranks", all_names, report, before) for name, before, report in BEFORE]


# ---- Memory and dtypes ----


@mutant("memory")
def a_mask_is_empty(model: nn.Module) -> list[str]:
    model.register_buffer("seen_mask", torch.empty(64, dtype=torch.bool))
    return ["seen_mask"]


@mutant("memory")
def half_of_an_index_is_empty(model: nn.Module) -> list[str]:
    model.register_buffer("index", torch.empty(64, dtype=torch.long))
    model.index[:32] = torch.arange(32)
    return ["index"]


@mutant("memory")
def a_complex_table_is_empty(model: nn.Module) -> list[str]:
    model.register_buffer("freqs_cis", torch.empty(16, 4, dtype=torch.complex64))
    return ["freqs_cis"]


@mutant("coarse numbers")
def one_parameter_has_another_dtype(model: nn.Module) -> list[str]:
    return replace(model, ONE, ("norm",), Tensor.double)


# ---- Meta device ----


@mutant("meta device", "transformers DETR")
def the_own_method_has_another_scale(model: nn.Module) -> list[str]:
    changed = after_own_method(model, lambda: scale(model, ALL, ("matrix",), 1.5))
    return list(tensors(model, "matrix")) if changed else []


@mutant("meta device", "timm LeViT")
def the_own_method_writes_other_norms(model: nn.Module) -> list[str]:
    changed = after_own_method(model, lambda: write(model, ONE, ("norm",), 0.5))
    return list(pick(model, ONE, "norm")) if changed else []


@mutant("meta device")
def the_own_method_writes_another_table(model: nn.Module) -> list[str]:
    changed = after_own_method(model, lambda: write(model, ALL, ("rotary",), lambda table: table / 2))
    return list(tensors(model, "rotary")) if changed else []


# ---- Scale and depth ----


@mutant("scale and depth")
@torch.no_grad()
def the_depth_scale_of_the_own_block(model: nn.Module) -> list[str]:
    found, depth = tensors(model, *OUTPUTS), depth_of(model)
    for name, tensor in found.items():
        tensor *= (depth / (block_of(name) + 1)) ** 0.5
    return list(found) if depth > 1 else []


@mutant("scale and depth")
@torch.no_grad()
def weights_grow_with_depth(model: nn.Module) -> list[str]:
    found = tensors(model, "matrix")
    for name, tensor in found.items():
        tensor *= 2.0 ** block_of(name)
    return list(found) if depth_of(model) > 1 else []


@mutant("scale and depth", "transformers #10200")
def a_padding_row_is_drawn(model: nn.Module) -> list[str]:
    names = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.normal_(module.weight, std=0.1)
            names.append(f"{name}.weight")
    return names


# ---- Positions ----


@mutant("positions")
def the_future_is_seen(model: nn.Module) -> list[str]:
    """Let attention of the models written here be causal no more."""
    causal = getattr(model, "language", False) is True
    model.language = False
    return all_names(model) if causal else []


@mutant("positions")
def positions_are_never_added(model: nn.Module) -> list[str]:
    """Let tables that tokens look up give zeros."""
    tables = {f"{name}.weight": each for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
    names = [name for name in tensors(model, "positions") if name in tables]
    for name in names:
        tables[name].register_forward_hook(lambda *passed: 0 * passed[-1])
    return names


@mutant("positions")
def a_mask_of_padding_is_ignored(model: nn.Module) -> list[str]:
    """Let an encoder see all; in a causal model padding at the end changes nothing."""
    forward = model.forward
    if "MaskedLM" not in type(model).__name__:
        return []

    @functools.wraps(forward)
    def unmasked(*args: object, **kwargs: object) -> object:
        given = inspect.signature(forward).bind(*args, **kwargs)
        given.arguments.pop("attention_mask", None)
        return forward(*given.args, **given.kwargs)

    model.forward = unmasked
    return all_names(model)


# ---- Copies ----


def equal_blocks(model: nn.Module) -> nn.ModuleList | nn.Sequential | list[nn.Module]:
    """Return the first list of blocks of one class that have the same shapes; empty where there is none."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            shapes = {(type(each), *(tuple(tensor.shape) for tensor in each.parameters())) for each in module}
            if len(shapes) == 1 and any(tensor.ndim > 1 for tensor in module[0].parameters()):
                return module
    return []


def names_inside(model: nn.Module, modules: Iterable[nn.Module]) -> list[str]:
    inside = {id(parameter) for module in modules for parameter in module.parameters()}
    return [name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in inside]


@mutant("copies", "pytorch #86274")
def blocks_are_deep_copies(model: nn.Module) -> list[str]:
    blocks = equal_blocks(model)
    for block in blocks[1:]:
        block.load_state_dict(copy.deepcopy(blocks[0].state_dict()))
    return names_inside(model, blocks)


@mutant("copies")
def two_blocks_are_equal(model: nn.Module) -> list[str]:
    blocks = equal_blocks(model)[:2]
    for block in blocks[1:]:
        block.load_state_dict(copy.deepcopy(blocks[0].state_dict()))
    return names_inside(model, blocks)


@mutant("copies", "learn-nlp-with-transformers #56")
def one_block_is_used_for_all(model: nn.Module) -> list[str]:
    blocks = equal_blocks(model)
    for number in range(1, len(blocks)):
        blocks[number] = blocks[0]
    return names_inside(model, blocks)


@mutant("copies", "encodecmae #3")
def one_mlp_is_used_for_all(model: nn.Module) -> list[str]:
    blocks = [block for block in equal_blocks(model) if hasattr(block, "mlp")]
    for block in blocks[1:]:
        block.mlp = blocks[0].mlp
    return names_inside(model, [block.mlp for block in blocks[:1]])


@mutant("copies")
@torch.no_grad()
def queries_are_keys(model: nn.Module) -> list[str]:
    names = []
    queries, keys = tensors(model, "query"), tensors(model, "key")
    for (name, query), (other, key) in zip(queries.items(), keys.items(), strict=False):
        if query.shape == key.shape:
            key.copy_(query)
            names += [name, other]
    return names


def two_alike(model: nn.Module, *parts: str) -> list[str]:
    """Return the names of the first two matrices of the same shape."""
    found = tensors(model, *parts)
    return [name for name in found if found[name].shape == next(iter(found.values())).shape][:2]


@mutant("copies")
def two_matrices_share_memory(model: nn.Module) -> list[str]:
    names = two_alike(model, "first of MLP", "attention output")
    for name in names[1:]:
        module, key = owner(model, name)
        setattr(module, key, model.get_parameter(names[0]))
    return names[:2] if len(names) > 1 else []


@mutant("copies")
def two_parameters_overlap(model: nn.Module) -> list[str]:
    names = two_alike(model, "first of MLP")
    if len(names) < 2:
        return []
    memory = torch.cat([model.get_parameter(name).detach() for name in names])
    half = len(memory) // 4
    put(model, names[0], memory[: 2 * half])
    put(model, names[1], memory[half : 3 * half])
    return names


@mutant("copies")
def tied_weights_are_untied(model: nn.Module) -> list[str]:
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    tied = sorted(set(every) - set(all_names(model)))
    for name in tied:
        put(model, name, model.get_parameter(name).detach().clone())
    return [*tied, *tensors(model, "embedding")] if tied else []


# ---- Seeds and ranks ----


@mutant("seeds and ranks")
def a_seed_is_left_behind(model: nn.Module) -> list[str]:
    torch.manual_seed(0)
    return all_names(model)


@mutant("seeds and ranks")
def a_seed_of_NumPy_is_left_behind(model: nn.Module) -> list[str]:
    np.random.seed(0)
    return all_names(model)


# ---- Frozen or unused ----


@mutant("frozen or unused")
def one_matrix_is_frozen(model: nn.Module) -> list[str]:
    found = pick(model, ONE, "matrix")
    for tensor in found.values():
        tensor.requires_grad_(False)
    return list(found)


@mutant("frozen or unused")
def one_block_is_frozen(model: nn.Module) -> list[str]:
    blocks = equal_blocks(model)
    frozen = blocks[len(blocks) // 2 :][:1]
    for block in frozen:
        block.requires_grad_(False)
    return names_inside(model, frozen)


@mutant("frozen or unused", "diffusers SD3")
def a_layer_is_never_used(model: nn.Module) -> list[str]:
    model.left_over = nn.Linear(32, 32)
    return ["left_over.weight", "left_over.bias"]


@mutant("frozen or unused")
def a_gradient_is_cut_off(model: nn.Module) -> list[str]:
    found = pick(model, ONE, "first of MLP")
    for name in found:
        owner(model, name)[0].register_forward_hook(lambda *passed: passed[-1].detach())
    return list(found)


def move(model: nn.Module, parts: tuple[str, ...], register: Callable[[nn.Module, str, Tensor], object]) -> list[str]:
    """Register the middle tensor of floating point numbers anew, as something else."""
    found = {name: each for name, each in pick(model, ONE, *parts).items() if each.is_floating_point()}
    for name, tensor in found.items():
        module, key = owner(model, name)
        delattr(module, key)
        register(module, key, tensor.detach())
    return list(found)


@mutant("frozen or unused")
def a_parameter_is_a_buffer(model: nn.Module) -> list[str]:
    return move(model, ("norm", "gate"), lambda module, key, tensor: module.register_buffer(key, tensor))


@mutant("frozen or unused")
def a_table_is_trained(model: nn.Module) -> list[str]:
    return move(model, ("table",), lambda module, key, tensor: setattr(module, key, nn.Parameter(tensor)))


@mutant("frozen or unused")
def a_parameter_is_a_plain_tensor(model: nn.Module) -> list[str]:
    return move(model, ("gate", "norm bias"), setattr)
