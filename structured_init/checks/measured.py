"""One model, measured: what its parameters hold, and what one pass forward and back gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from structured_init.checks.depth import Depth
from structured_init.checks.records import Record
from structured_init.hosts.layout import Projection
from structured_init.hosts.state_space import state_space_sites
from structured_init.odd_weights import trained_norm
from structured_init.weights import Weights, tensor_names
from structured_init.writer import full_value


@dataclass(frozen=True)
class Measured:
    """One model, and what is known of it."""

    model: nn.Module
    records: list[Record]  # every parameter, or those that are drawn
    depth: Depth = field(default_factory=Depth)  # what a pass told; empty where none was made
    products: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # attention layer → its products
    fixed: Collection[str] = ()  # parameters and buffers that two builds of different seeds have in common
    loss_tolerance: float = 0.1  # share of ln C by which the first loss may differ from it
    growth: float = 1e3  # of activations or gradients from the first block to the last
    may_be_frozen: tuple[str, ...] = ()  # patterns of names
    may_be_unused: tuple[str, ...] = ()
    fresh: bool = False  # whether the model is known to be drawn, not trained

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter by the first of its names."""
        names = tensor_names(self.model)
        return {names[id(each)][0]: each for each in self.model.parameters()}

    def value(self, record: Record) -> Tensor:
        """Return the full value of a parameter, on the CPU."""
        return full_value(self.parameters[record.name], record.name)

    @cached_property
    def unused(self) -> list[str]:
        """Trainable parameters that no output depends on, where a pass was made."""
        if not self.depth.gradients:
            return []
        return [each.name for each in self.records if each.trainable and each.name not in self.depth.gradients]

    @cached_property
    def trained(self) -> str | None:
        """A norm that no library builds so; ``None`` where all are as built."""
        return None if self.fresh else trained_norm(Weights(self.model))

    @cached_property
    def steps_without_input(self) -> dict[str, int]:
        """Fused projections of state spaces whose Δ has weights of zero, and how many rows these are."""
        weights = Weights(self.model)
        fused = [site for site in state_space_sites(weights) if isinstance(site.layout.dt, Projection)]
        return {weights.names(each.layout.dt.weight)[0]: each.num_heads for each in fused if not each.dt_weight.any()}

    def step_sizes(self) -> dict[str, float]:
        """Return the median Δ = softplus(bias) of every state-space layer, by its parameter."""
        steps = [each for each in self.records if each.role == "step" and each.distribution.kind != "memory"]
        return {each.name: torch.nn.functional.softplus(self.value(each).double()).median().item() for each in steps}
