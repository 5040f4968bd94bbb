"""Which of a host's parameters belong to its attention, MLPs, norms, positions and embeddings, and writing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from structured_init.errors import StructuredInitError, nearest
from structured_init.layout import PARTS as MATRICES
from structured_init.plan import Weights
from structured_init.pretraining.host import Host
from structured_init.pretraining.twin import Twin
from structured_init.sites.attention import required_attention_sites
from structured_init.sites.attention_site import AttentionSite
from structured_init.sites.position import position_sites

Part = Literal["attention", "mlp", "norms", "positions", "embeddings"]
PARTS: tuple[Part, ...] = ("attention", "mlp", "norms", "positions", "embeddings")


def check_parts(who: str, parts: object) -> None:
    """Refuse what is no list of parts, or none."""
    if not isinstance(parts, list | tuple) or not parts:
        raise StructuredInitError(f"{who}: parts is a list such as [attention, mlp], got {parts!r}")
    for part in parts:
        if part not in PARTS:
            raise StructuredInitError(f"{who}: unknown part '{part}': {nearest(str(part), PARTS)}")


def parts_of(host: Host, weights: Weights) -> list[tuple[Part, nn.Parameter]]:
    """Return every parameter of the layers, the positions and the entrance, each once, with the part it belongs to.

    Attention is what a layer of attention holds, and its projections where they lie outside of it; norms are those
    anywhere in the layers, and what is left that is no linear map, such as LayerScale; all other linear maps are MLPs.
    Positions that the host does not train are left out.
    """
    tensors: dict[int, tuple[Part, nn.Parameter]] = {}
    attending = {id(part) for site in host.sites for part in site.module.modules()}
    projections = {id(weight) for site in host.sites for weight in _projections(site)}
    for module in host.layers.modules():
        own = [each for each in module._parameters.values() if each is not None]
        attends = id(module) in attending or any(id(each) in projections for each in own)
        norm = "norm" in type(module).__name__.lower()
        linear = any(each.dim() > 1 for each in own)
        part: Part = "norms" if norm else "attention" if attends else "mlp" if linear else "norms"
        for parameter in own:
            tensors.setdefault(id(parameter), (part, parameter))
    for site in position_sites(weights):
        if isinstance(site.tensor, nn.Parameter) and site.tensor.requires_grad:
            tensors.setdefault(id(site.tensor), ("positions", site.tensor))
    for parameter in host.entrance.parameters():
        tensors.setdefault(id(parameter), ("embeddings", parameter))
    inside = {id(parameter) for parameter in host.module.parameters()}
    return [pair for key, pair in tensors.items() if key in inside]


def _projections(site: AttentionSite) -> list[Tensor]:
    found = [getattr(site.layout, name) for name in MATRICES]
    return [part.weight for projection in found for part in getattr(projection, "parts", (projection,))]


def write_parts(
    twin: Twin, chosen: Sequence[tuple[Part, nn.Parameter]], parts: Sequence[Part], weights: Weights, who: str
) -> None:
    """Write the trained values of the parts asked for into the overlay."""
    for part, parameter in weights.each([pair for pair in chosen if pair[0] in parts]):
        weights.write(parameter, twin.of(parameter).detach().cpu(), f"{who}: {part}")
    if "attention" in parts:
        required_attention_sites(weights, None, who)  # records which are taken
        for site in twin.host.sites:
            for matrix in MATRICES:
                weights.assign(site.name, matrix)
