"""The baselines of the literature and of fast public training code, and the explicit choice of none.

Each names the modules that it touches; normalizations, positions, tokens and embeddings stay as the host built them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structured_init.hosts.attention import AttentionSite, attention_sites, required_attention_sites
from structured_init.hosts.layout import outputs_axis, pieces
from structured_init.hosts.mlp import Mlp, mlps
from structured_init.hosts.registry import Where, selects, what_the_model_has
from structured_init.hosts.state_space import state_space_sites
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_not_negative, check_positive
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError
from structured_init.weights import Weights
from structured_init.writer import empty_value

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
WHO = "UniformProjections"

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
    or to what is composed before. At zero, a block adds nothing before the first step: the ``bias`` of such layers is
    zero too, and all others stay as they are.

    Args:
        query_key_value: size of the queries, keys and values of attention.
        output: size of the output projections of attention.
        mlp_output: size of the last layers of MLPs as wide as attention; see :func:`structured_init.hosts.mlp.mlps`.
        where: which attention layers and MLPs, by shell pattern.

    Raises:
        StructuredInitError: at construction, a negative size; at :meth:`plan`, no attention layer
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
        check_not_negative(WHO, null=True, query_key_value=self.query_key_value, output=self.output)
        check_not_negative(WHO, null=True, mlp_output=self.mlp_output)

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        sizes = dict.fromkeys(("query", "key", "value"), self.query_key_value) | {"output": self.output}
        written = {part: size for part, size in sizes.items() if size is not None}
        if written:
            for site in weights.each(required_attention_sites(weights, self.where, WHO)):
                self._attention(site, written, weights, rng)
        if self.mlp_output is not None:
            for mlp in weights.each(self._mlps(weights)):
                generator = rng.generator(weights.names(mlp.down)[0], WHO)
                weights.write(mlp.down, _of_size(weights.read(mlp.down), self.mlp_output, mlp.width, generator), WHO)
                if self.mlp_output == 0:
                    _zero_bias(weights, mlp.down)

    def _attention(self, site: AttentionSite, written: Mapping[str, float], weights: Weights, rng: Draws) -> None:
        if self.query_key_value and site.layout.query_key_norm:
            site.note("the host normalizes queries and keys: their size has no effect")
        for part, size in written.items():
            generator = rng.generator(site.name, f"{WHO}: {part}")
            setattr(site.by(WHO), part, _of_size(getattr(site, part), size, site.embed_dim, generator))
        if self.output == 0:
            for piece in pieces(site.layout.output):
                _zero_bias(weights, piece.weight)

    def _mlps(self, weights: Weights) -> list[Mlp]:
        """Return the selected MLPs that are as wide as attention."""
        sites = attention_sites(weights, cross=True)
        widths = {site.embed_dim for site in sites}
        found = mlps(weights.modules, [each for site in sites for each in site.layout.parameters()])
        chosen = [mlp for name, mlp in found.items() if mlp.width in widths and selects(self.where, name, mlp)]
        if not chosen:
            raise StructuredInitError(
                f"{WHO} found no MLP beside attention, {what_the_model_has(weights.model)}: leave MLPs as they are "
                "(mlp_output=None)"
            )
        return chosen


def _zero_bias(weights: Weights, matrix: Tensor) -> None:
    """Set the bias of the module that holds a matrix to zero."""
    owner = weights.modules[weights.names(matrix)[0].rpartition(".")[0]]
    bias = owner._parameters.get("bias")
    if bias is not None and weights.read(bias).any():
        weights.write(bias, torch.zeros_like(weights.read(bias)), WHO)


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
    steps = {id(site.layout.dt_bias) for site in state_space_sites(weights)}  # zero, they would forget within a token
    layers = []
    for module in weights.modules.values():
        tensors = [each for each in _tensors(module, convolutions, weight, bias) if id(each[0]) not in steps]
        if tensors:
            layers.append(tensors)
    if not layers:
        kinds = "linear or convolutional layer" if convolutions else "linear layer"
        raise StructuredInitError(f"{who} found no {kinds}; {what_the_model_has(weights.model)}")
    for tensors in weights.each(layers):
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
