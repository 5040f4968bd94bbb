"""The baselines of the literature and of fast public training code, and the explicit choice of none.

Each names the modules that it touches; normalizations, positions, tokens and embeddings stay as the host built them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structured_init.hosts.attention import attention_sites, required_attention_sites
from structured_init.hosts.layout import outputs_axis, pieces
from structured_init.hosts.mlp import mlps
from structured_init.hosts.registry import Where, selects, what_the_model_has
from structured_init.hosts.state_space import state_space_sites
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_not_negative, check_positive
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights
from structured_init.writer import empty_value

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Fill = Callable[[Tensor, int, torch.Generator], None]


class Default(Initializer):
    """Leaves every weight as the library drew it."""

    baseline = True

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        """Write nothing."""


class KaimingUniform(Initializer):
    """PyTorch's own default for linear and convolutional layers: U(−1/√fan_in, 1/√fan_in), weights and biases.

    Touches ``nn.Linear``, ``nn.Conv1d/2d/3d``, the input projections of ``nn.MultiheadAttention`` and transformers'
    ``Conv1D``, but for the bias of the step of state-space layers of a known class. The published mimetic and impulse
    runs use it for all weights that the method does not set.

    Source: ``torch.nn.Linear.reset_parameters`` (Kaiming uniform with a = √5).
    """

    baseline = True

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        _fill_layers(weights, rng, "KaimingUniform", convolutions=True, weight=uniform_fan_in, bias=uniform_fan_in)


class TruncatedNormal(Initializer):
    """Normal weights cut at ±2, biases zero: timm's default for the linear layers of a vision transformer.

    Touches ``nn.Linear``, the input projections of ``nn.MultiheadAttention`` and transformers' ``Conv1D``; with
    ``convolutions=True`` also ``nn.Conv1d/2d/3d``. The bias of the step of state-space layers of a known class stays.
    On timm's ``VisionTransformer`` it has the distribution of ``Default``.

    Args:
        std: standard deviation before the cut, which lies at ±2 whatever it is; must be positive.
        convolutions: treat convolutions as well, which timm's vision transformer does not.

    Source: ``timm/models/vision_transformer.py``, ``init_weights_vit_timm``.
    """

    baseline = True

    def __init__(self, std: float = 0.02, convolutions: bool = False) -> None:
        check_positive("TruncatedNormal", std=std)
        self.std, self.convolutions = std, convolutions

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        def weight(tensor: Tensor, fan_in: int, generator: torch.Generator) -> None:
            nn.init.trunc_normal_(tensor, std=self.std, a=-2.0, b=2.0, generator=generator)

        def bias(tensor: Tensor, fan_in: int, generator: torch.Generator) -> None:
            tensor.zero_()

        _fill_layers(weights, rng, "TruncatedNormal", convolutions=self.convolutions, weight=weight, bias=bias)


@dataclass(eq=False, repr=False)
class UniformProjections(Initializer):
    """Uniform projections of one size, zero included: what fast public training code sets by hand.

    A size s stands for the standard deviation s/√D, D being the width of the stream. ``None`` leaves a part to the host
    or to what is composed before. At zero, a block adds nothing before the first step: the biases of such layers are
    zero too, and all others stay as they are. A bias is told by its name; what may be one is warned of.

    Args:
        query_key_value: size of the queries, keys and values of attention.
        output: size of the output projections of attention.
        mlp_output: size of the last layers of MLPs as wide as attention; see :func:`structured_init.hosts.mlp.mlps`.
        where: which attention layers and MLPs, by shell pattern.

    Raises:
        StructuredInitError: at construction, a negative size, or nothing to write; at :meth:`plan`, no attention layer
            of a known class, or no such MLP.

    Source: zero output projections: karpathy/nanochat, ``nanochat/gpt.py``; uniform projections of 0.5/√D:
    KellerJordan/modded-nanogpt, ``train_gpt.py`` of February 2026.
    """

    baseline = True
    query_key_value: float | None = 0.5
    output: float | None = 0.5
    mlp_output: float | None = None
    where: Where = None

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("query_key_value", "output", "mlp_output")}
        check_not_negative("UniformProjections", null=True, **sizes)
        if all(size is None for size in sizes.values()):
            raise StructuredInitError("UniformProjections: every size is None: there is nothing to write")

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sizes = dict.fromkeys(("query", "key", "value"), self.query_key_value) | {"output": self.output}
        written = {part: size for part, size in sizes.items() if size is not None}
        if written:
            for site in weights.each(required_attention_sites(weights, self.where, "UniformProjections")):
                if self.query_key_value and site.layout.query_key_norm:
                    site.note("the host normalizes queries and keys: their size has no effect")
                for part, size in written.items():
                    generator = rng.generator(site.name, f"UniformProjections: {part}")
                    drawn = _of_size(getattr(site, part), size, site.embed_dim, generator)
                    setattr(site.by("UniformProjections"), part, drawn)
                if self.output == 0:
                    output = site.layout.output
                    _zero_bias(weights, [piece.weight for piece in pieces(output)], output.width)
        if self.mlp_output is not None:
            sites = attention_sites(weights, cross=True)
            widths = {site.embed_dim for site in sites}
            found = mlps(weights.model, [each for site in sites for each in site.layout.parameters()])
            chosen = {n: mlp for n, mlp in found.items() if mlp.width in widths and selects(self.where, n, mlp)}
            if not chosen:
                raise StructuredInitError(
                    f"UniformProjections found no MLP beside attention, {what_the_model_has(weights.model)}: "
                    "leave MLPs as they are (mlp_output=None)"
                )
            for mlp in weights.each(chosen.values()):
                generator = rng.generator(weights.names(mlp.back)[0], "UniformProjections")
                value = _of_size(weights.read(mlp.back), self.mlp_output, mlp.width, generator)
                weights.write(mlp.back, value, "UniformProjections")
                if self.mlp_output == 0:
                    _zero_bias(weights, [mlp.back], mlp.width)


def _zero_bias(weights: Weights, matrices: Sequence[Tensor], width: int) -> None:
    """Set biases of ``width`` numbers beside matrices to zero, by name: ``bias`` of ``weight``, ``bo`` of ``wo``."""
    for name in (name for each in matrices for name in weights.names(each)):
        owner, _, own = name.rpartition(".")
        beside = ((key, each) for key, each in weights.modules[owner]._parameters.items() if each is not None)
        filled = {key: each for key, each in beside if each.numel() == width and weights.read(each).any()}
        called = {r"^(weight|kernel)_[gv]$|weight|kernel": "bias", r"(?<![a-z])w": "b", "$": "_bias"}
        alike = [re.sub(f"(?i){matrix}", bias, own) for matrix, bias in called.items()]
        biases = [each for key, each in filled.items() if key.lower() in map(str.lower, alike)]
        for bias in biases:
            weights.write(bias, torch.zeros_like(weights.read(bias)), "UniformProjections")
        maybe = ", ".join(key for key in filled if re.search(r"(?i)bias|(?<![a-z])b", key))
        if maybe and not biases:
            weights.warn(f"'{name}' is zero, and what may be its bias is not: {maybe}")


def _of_size(tensor: Tensor, size: float, dim: int, generator: torch.Generator) -> Tensor:
    """Return a tensor of the same shape with entries U(±√3·size/√D), of standard deviation size/√D."""
    bound = size * math.sqrt(3 / dim)
    return empty_value(tensor).uniform_(-bound, bound, generator=generator)


def uniform_fan_in(tensor: Tensor, fan_in: int, generator: torch.Generator) -> None:
    """Fill with U(−1/√fan_in, 1/√fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    tensor.uniform_(-bound, bound, generator=generator)


def _fill_layers(weights: Weights, rng: Draws, who: str, *, convolutions: bool, weight: Fill, bias: Fill) -> None:
    """Fill weights and biases of every known layer, each from the generator of its own name."""
    modules = weights.modules.items()
    steps = {id(site.layout.dt_bias) for site in state_space_sites(weights)}  # zero, they would forget within a token
    fills = ((name, _tensors(module, convolutions, weight, bias)) for name, module in modules)
    known = ((name, [each for each in tensors if id(each[0]) not in steps]) for name, tensors in fills)
    layers = [(name, tensors) for name, tensors in known if tensors]
    if not layers:
        has = what_the_model_has(weights.model)
        kinds = "linear or convolutional layer" if convolutions else "linear layer, and leaves convolutions alone"
        way = "" if convolutions else f": {who}(convolutions=True) takes them as well"
        raise StructuredInitError(f"{who} found no {kinds}; {has}{way}")
    for _, tensors in weights.each(layers):
        for tensor, fan_in, fill in tensors:
            if not fan_in:
                raise StructuredInitError(f"{who}: '{weights.names(tensor)[0]}' belongs to a layer without inputs")
            value = empty_value(tensor)
            fill(value, fan_in, rng.generator(weights.names(tensor)[0], who))
            weights.write(tensor, value, who, own=True)
            del value  # before the next is made


def _tensors(module: nn.Module, convolutions: bool, weight: Fill, bias: Fill) -> Iterator[tuple[Tensor, int, Fill]]:
    fan_in = _fan_in(module, convolutions)
    if fan_in is not None:
        yield module.weight, fan_in, weight
        if module.bias is not None:
            yield module.bias, fan_in, bias
    elif isinstance(module, nn.MultiheadAttention):
        # One fused projection, or three where keys or values have a width of their own.
        apart = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        for projection in (module.in_proj_weight, *apart):
            if projection is not None:
                yield projection, projection.shape[1], weight
        if module.in_proj_bias is not None:
            yield module.in_proj_bias, module.embed_dim, bias


def _fan_in(module: nn.Module, convolutions: bool) -> int | None:
    if isinstance(module, nn.Linear):
        return module.in_features
    if outputs_axis(module) == 1:
        return module.weight.shape[0]
    if convolutions and isinstance(module, CONVOLUTIONS):
        return module.weight[0].numel()
    return None
