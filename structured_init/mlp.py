"""The MLP initialization: a first layer whose entries have a mean that is not zero."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from structured_init.arguments import check_choice, check_finite
from structured_init.draws import Draws
from structured_init.hosts.mlp import required_mlp_sites
from structured_init.hosts.registry import Where
from structured_init.initializer import Initializer
from structured_init.overlay import Weights

Gated = Literal["gate", "value", "both"]


class MlpMean(Initializer):
    """W_1 ← W_1 + μ·1 in every MLP: the first layer gets a mean, over whatever the host or an earlier initializer drew.

    Behind a LayerNorm with weight 1 and bias 0 tokens sum to zero, so the network computes the same at the start, and
    only its gradients differ. An MLP that mixes tokens, as in an MLP-Mixer, reads other sums: there it computes
    something else, unless ``where`` leaves it out.

    Args:
        mean: μ, finite. The paper's value is unknown to us, so there is no default; compare it with the standard
            deviation of the layer, about 0.02 in timm's vision transformers.
        gated: which first layer of a gated MLP (SwiGLU, Llama): the ``"gate"``, which goes through the activation as
            the only one of a plain MLP does, the ``"value"`` that it multiplies, or ``"both"``. The paper treats
            plain MLPs, as far as we know.
        where: which MLPs, by shell pattern.

    Raises:
        StructuredInitError: at construction, a value out of range; at :meth:`plan`, no MLP of a known class.

    Source: Trockman & Kolter, "Mimetic Initialization of MLPs", 2602.07156; known to us by its abstract, see
    ``docs/mlp_mean.md``.
    """

    def __init__(self, mean: float, gated: Gated = "gate", where: Where = None) -> None:
        check_finite("MlpMean", mean=mean)
        check_choice("MlpMean", gated=(gated, Gated))
        self.mean, self.where = mean, where
        self.gated: Gated = gated

    def plan(self, weights: Weights, *, rng: Draws, batch: Tensor | None = None) -> None:
        added = set()  # tied layers are one
        for site in weights.each(required_mlp_sites(weights, self.where, "MlpMean")):
            first, gate = site.layout.first, site.layout.gate
            layers = {"gate": [gate], "value": [first], "both": [gate, first]}[self.gated]
            for layer in [first] if gate is None else layers:
                if (place := (id(layer.weight), layer.start)) not in added:
                    added.add(place)
                    site.add(self.mean, layer, "MlpMean")
