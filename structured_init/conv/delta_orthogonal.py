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
        layers, others = self._layers(weights)
        chosen = [(name, module) for name, module in layers.items() if selects(self.where, name, module)]
        if not chosen:
            what = "linear or convolutional layer" if self.linear else "convolution"
            why = what_the_model_has(weights.model)
            if layers:
                why = f"where={shown(self.where)} selects none of the {len(layers)} layers"
            raise StructuredInitError(f"{WHO} found no {what}; {why}")
        for name, module in others.items():
            if not callable(self.where) and selects(self.where, name, None):
                known = f"{'nn.Linear, ' * self.linear}nn.Conv1d, nn.Conv2d or nn.Conv3d"
                weights.skip(name, f"{type(module).__name__} is no {known}")
        warn_of_idle(weights, self.where, [*layers, *others], WHO, "layer")
        for name, module in weights.each(chosen):
            if module._parameters.get("weight") is None:
                weights.skip(name, "its weight is computed by a parametrization")
            else:
                self._initialize(weights, rng, name, module)

    def _layers(self, weights: Weights) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        """Return the layers that can be set, and those of other classes that multiply with a matrix or kernel too."""
        tables = [module for module in weights.modules.values() if isinstance(module, nn.Embedding)]
        tied = {id(table.weight) for table in tables}
        layers, others = {}, {}
        for name, module in weights.modules.items():
            if isinstance(module, CONVOLUTIONS) or (self.linear and outputs_axis(module) is not None):
                if id(module._parameters.get("weight")) not in tied:
                    layers[name] = module
            elif isinstance(module, _ConvNd) or (self.linear and _has_matrix(module)):
                others[name] = module
        return layers, others

    def _initialize(self, weights: Weights, rng: Draws, name: str, module: nn.Module) -> None:
        weight = weights.edit(module.weight, WHO)
        groups = getattr(module, "groups", 1)
        rows, columns = len(weight) // groups, weight.shape[1]
        generator = rng.generator(weights.names(module.weight)[0], WHO)
        centre = (..., *((size - 1) // 2 for size in weight.shape[2:]))
        weight.zero_()
        for group in weight.chunk(groups):
            group[centre] = random_orthogonal(rows, columns, generator=generator).mul_(self.gain)
        if self.zero_bias and module.bias is not None:
            weights.edit(module.bias, WHO).zero_()
        note_hidden_branch(weights, name)
        # The transpose of a Haar matrix is one: only the words differ.
        outputs, inputs = (columns, rows) if outputs_axis(module) == 1 else (rows, columns)
        if outputs < inputs:
            contraction = "a contraction, the norm of an input is not kept"
            weights.note(name, f"{outputs} outputs of {inputs} inputs: {contraction}")
        block = math.prod(getattr(module, "stride", ()))
        if block > 1:
            weights.note(name, f"its stride reads one position of {block}: it does not see the others at the start")


def _has_matrix(module: nn.Module) -> bool:
    """Say whether a module holds a matrix or a kernel that it multiplies with: no table, and no scale (C, 1, 1)."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return False
    shapes = [each.shape for name, each in module._parameters.items() if "weight" in name and each is not None]
    return any(sum(size > 1 for size in shape) > 1 for shape in shapes)
