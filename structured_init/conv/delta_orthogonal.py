"""Delta-orthogonal convolutions: an orthogonal matrix at the centre of the kernel, and zeros around it."""

from __future__ import annotations

import math

from torch import Tensor, nn

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
    """Initialize every ``nn.Conv1d/2d/3d`` as an orthogonal matrix (Haar) on the pixel at its centre; biases are zero.

    So are ``nn.Linear`` and transformers' ``Conv1D``, as by ``nn.init.orthogonal_``, unless tied to an embedding.

    With stride 1 and padding of the kernel's half, every singular value of the layer is ``gain``, under zero padding
    too. The centre of an even kernel is ⌊(k − 1)/2⌋, where ``padding="same"`` has it. Each group has a matrix of its
    own. With out < in (within a group) its rows are orthonormal instead of its columns: a contraction, which the
    papers leave out; the report notes it, as it notes a stride, which reads one position of every block. Without
    padding, a kernel as large as its input reads the middle alone.

    Args:
        gain: factor of the matrix; must be positive.
        where: which layers, by a shell pattern of names, such as ``"blocks.*"``, or by a predicate of the module.

    Source: Xiao et al., 1806.05393, algorithm 2; TensorFlow's ``ConvolutionDeltaOrthogonal``.
    """

    def __init__(self, gain: float = 1.0, where: Where = None) -> None:
        check_positive(WHO, gain=gain)
        self.gain, self.where = gain, where

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        layers = _layers(weights)
        chosen = {name: module for name, module in layers.items() if selects(self.where, name, module)}
        if not chosen:
            why = what_the_model_has(weights.model)
            if layers:
                why = f"where={shown(self.where)} selects none of the {len(layers)} layers"
            raise StructuredInitError(f"{WHO} found no linear or convolutional layer; {why}")
        warn_of_idle(weights, self.where, layers, WHO, "layer")
        for name, module in weights.each(chosen.items()):
            self._initialize(weights, rng, name, module)

    def _initialize(self, weights: Weights, rng: Draws, name: str, module: nn.Module) -> None:
        weight = weights.edit(module.weight, WHO)
        groups = getattr(module, "groups", 1)
        rows, columns = len(weight) // groups, weight.shape[1]
        generator = rng.generator(weights.names(module.weight)[0], WHO)
        centre = (..., *((size - 1) // 2 for size in weight.shape[2:]))
        weight.zero_()
        for group in weight.chunk(groups):
            group[centre] = random_orthogonal(rows, columns, generator=generator).mul_(self.gain)
        if module.bias is not None:
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


def _layers(weights: Weights) -> dict[str, nn.Module]:
    """Return the layers that can be set: linear and convolutional ones that share no matrix with an embedding."""
    tied = {id(module.weight) for module in weights.modules.values() if isinstance(module, nn.Embedding)}
    layers = {}
    for name, module in weights.modules.items():
        matrix = isinstance(module, CONVOLUTIONS) or outputs_axis(module) is not None
        if matrix and id(module.weight) not in tied:
            layers[name] = module
    return layers
