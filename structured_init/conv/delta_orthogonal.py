"""Delta-orthogonal convolutions: an orthogonal matrix at the centre of the kernel, and zeros around it."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from structured_init.hosts.attention_site import note_hidden_branch
from structured_init.hosts.layout import outputs_axis
from structured_init.hosts.registry import Where, selects, warn_of_idle, what_the_model_has
from structured_init.initializer import Initializer
from structured_init.util.arguments import check_positive
from structured_init.util.draws import Draws
from structured_init.util.errors import StructuredInitError, shown
from structured_init.util.linalg import random_orthogonal
from structured_init.weights import Weights

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
OTHERWISE = (*CONVOLUTIONS, nn.Embedding, nn.EmbeddingBag, nn.LayerNorm)  # known, or no map of inputs
WHO = "DeltaOrthogonal"


class DeltaOrthogonal(Initializer):
    """Initialize every ``nn.Conv1d/2d/3d`` as an orthogonal matrix (Haar) on the pixel at its centre.

    With stride 1 and padding of the kernel's half, every singular value of the layer is ``gain``, under zero padding
    too. The centre of an even kernel is ⌊(k − 1)/2⌋, where ``padding="same"`` has it. Each group has a matrix of its
    own. With out < in (within a group) its rows are orthonormal instead of its columns: a contraction, which the
    papers leave out; the report notes it, as it notes a stride, which reads one position of every block. Without
    padding, a kernel as large as its input reads the middle alone.

    Args:
        gain: factor of the matrix; must be positive.
        linear: initialize ``nn.Linear`` and transformers' ``Conv1D`` as well, with a semi-orthogonal weight as
            ``nn.init.orthogonal_`` has it, but not outputs that are tied to an embedding.
        zero_bias: set the biases of what is initialized to zero, without which no norm is kept.
        where: which layers, by a shell pattern of names, such as ``"blocks.*"``, or by a predicate of the module.

    Source: Xiao et al., 1806.05393, algorithm 2; TensorFlow's ``ConvolutionDeltaOrthogonal``.
    """

    draws_rotations = True  # which Scrambled would only draw again

    def __init__(self, gain: float = 1.0, linear: bool = True, zero_bias: bool = True, where: Where = None) -> None:
        check_positive(WHO, gain=gain)
        self.gain, self.linear, self.zero_bias, self.where = gain, linear, zero_bias, where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        modules = weights.modules.items()
        tables = {id(m.weight) for _, m in modules if isinstance(m, nn.Embedding)}  # to which outputs may be tied
        linear = {id(m) for _, m in modules if self.linear and outputs_axis(m) is not None}
        kinds = [(n, m) for n, m in modules if id(m) in linear or isinstance(m, CONVOLUTIONS)]
        layers = [(n, m) for n, m in kinds if id(m._parameters.get("weight")) not in tables]
        chosen = [(name, module) for name, module in layers if selects(self.where, name, module)]
        if not chosen:
            layer = "linear or convolutional layer" if self.linear else "convolution"
            layer += " but an output that is tied to an embedding" if tables and self.linear and not layers else ""
            if layers:
                names = ", ".join(name for name, _ in layers[:4]) + ", …" * (len(layers) > 4)
                asked = f"where={shown(self.where)} selects none of the {len(layers)} layers"
                raise StructuredInitError(f"{WHO}: {asked} ({names})")
            raise StructuredInitError(f"{WHO} found no {layer}; {what_the_model_has(weights.model)}")
        others = []
        for name, module in modules:
            own = (p.shape for key, p in module._parameters.items() if "weight" in key and p is not None)
            matrix = self.linear and any(sum(size > 1 for size in shape) > 1 for shape in own)  # no scale (C, 1, 1)
            if not (matrix or isinstance(module, _ConvNd)) or id(module) in linear or isinstance(module, OTHERWISE):
                continue
            others.append(name)
            if not callable(self.where) and selects(self.where, name, None):
                known = f"{'nn.Linear, ' * self.linear}nn.Conv1d, nn.Conv2d or nn.Conv3d"
                weights.skip(name, f"{type(module).__name__} is no {known}")
        warn_of_idle(weights, self.where, [*(name for name, _ in layers), *others], WHO, "layer")
        own = {id(module) for _, module in chosen if isinstance(module._parameters.get("weight"), nn.Parameter)}
        for name, module in weights.each(chosen):
            if id(module) in own:
                self._initialize(weights, name, module, _matrices(weights, rng, module))
            else:
                weights.skip(name, "its weight is computed by a parametrization")

    def _initialize(self, weights: Weights, name: str, module: nn.Module, matrices: list[Tensor]) -> None:
        weight = weights.edit(module.weight, WHO)
        groups = getattr(module, "groups", 1)
        centre = (..., *((size - 1) // 2 for size in weight.shape[2:]))
        weight.zero_()
        for group, matrix in zip(weight.chunk(groups), matrices, strict=True):
            group[centre] = matrix.mul_(self.gain)
        if self.zero_bias and module.bias is not None:
            weights.edit(module.bias, WHO).zero_()
        note_hidden_branch(weights, name)
        rows, columns = len(weight) // groups, weight.shape[1]
        if outputs_axis(module) == 1:
            rows, columns = columns, rows  # the transpose of a Haar matrix is one: only the words differ
        if rows < columns:
            weights.note(name, f"{rows} outputs of {columns} inputs: a contraction, the norm of an input is not kept")
        if (block := math.prod(getattr(module, "stride", ()))) > 1:
            weights.note(name, f"its stride reads one position of {block}: it does not see the others at the start")


def _matrices(weights: Weights, rng: Draws, module: nn.Module) -> list[Tensor]:
    """Return an orthogonal matrix (out, in) for each group of a layer."""
    generator = rng.generator(weights.names(module.weight)[0], WHO)
    rows, columns = len(module.weight) // getattr(module, "groups", 1), module.weight.shape[1]
    return [random_orthogonal(rows, columns, generator=generator) for _ in range(getattr(module, "groups", 1))]
