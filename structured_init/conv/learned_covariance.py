"""Covariances of a trained network's filters: estimated, kept in a file, and taken to another network.

Another kernel size and a way away from singular keep a covariance positive semidefinite.

Letters: F filters of a layer, K = Πk weights of a kernel, k' and K' of the new one.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Float64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from structured_init.hosts.depthwise import depthwise_conv_sites
from structured_init.hosts.registry import Where, selects, what_the_model_has
from structured_init.transfer.teacher import Teacher, described, opened, tensors_of
from structured_init.util.errors import StructuredInitError, shown
from structured_init.util.files import replacing
from structured_init.util.linalg import empirical_covariance

FORMAT = "structured_init filter covariances 1"
SUFFIX = ".safetensors"
WHO = "estimate_covariances"


def interpolation(size: int, new_size: int) -> Float64[Tensor, "new_size size"]:
    """Return the matrix that interpolates linearly along one axis, first pixel to first and last to last, (k', k)."""
    if size == 1 or new_size == 1:
        middle = torch.zeros(1, size, dtype=torch.float64)
        middle[0, [(size - 1) // 2, size // 2]] += 0.5 if size % 2 == 0 else 1.0
        return middle.expand(new_size, size)
    places = torch.linspace(0, size - 1, new_size, dtype=torch.float64)
    return (1 - (places[:, None] - torch.arange(size)).abs()).clamp(min=0)


def resize(
    covariance: Float64[Tensor, "K K"], kernel_size: tuple[int, ...], new_size: tuple[int, ...]
) -> Float64[Tensor, "K2 K2"]:
    """Return the covariance of filters after each of them is stretched to another kernel size, (K', K').

    Σ is seen as (k, k, k, k) and interpolated along all its axes by the same matrix: (A⊗A) Σ (A⊗A)ᵀ. Its trace
    changes, by about the ratio of areas.
    """
    if kernel_size == new_size:
        return covariance
    stretch = reduce(torch.kron, (interpolation(*sizes) for sizes in zip(kernel_size, new_size, strict=True)))
    return stretch @ covariance @ stretch.mT


def shrink(covariance: Float64[Tensor, "K K"], shrinkage: float) -> Float64[Tensor, "K K"]:
    """Return (1 − s) Σ + s (tr Σ/K) I: full rank for s > 0, with the same trace.

    Source: Ledoit & Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", 2004.
    """
    white = torch.eye(len(covariance), dtype=covariance.dtype) * covariance.diagonal().mean()
    return (1 - shrinkage) * covariance + shrinkage * white


@dataclass(frozen=True)
class LayerCovariance:
    """The covariance of one layer's filters."""

    name: str  # the layer's name in the network that it was estimated from
    depth: float  # d in [0, 1]
    kernel_size: tuple[int, ...]  # of its filters, one or two axes
    count: int  # F, of how many filters
    matrix: Float64[Tensor, "rows columns"]  # Σ, (K, K), pixels in row-major order


class LearnedCovariances:
    """The covariances of a network's layers in order of depth, from which any other network can be started.

    There is one at least, and all have kernels of as many axes.
    """

    def __init__(self, layers: list[LayerCovariance]) -> None:
        if len({len(layer.kernel_size) for layer in layers}) > 1:
            raise StructuredInitError("LearnedCovariances: some layers are 1-D and some 2-D; choose with where=")
        self.layers = sorted(layers, key=lambda layer: layer.depth)

    def at(self, depth: float, kernel_size: tuple[int, ...]) -> Float64[Tensor, "K K"]:
        """Return Σ for a layer of another network, (K, K): linear between the two layers nearest to a depth in [0, 1].

        Another kernel size is reached by :func:`resize`, and then scaled back to the trace before it, since a filter of
        PyTorch's default has the same energy in every size. Another number of axes is refused.
        """
        own = self.layers[0].kernel_size
        if len(own) != len(kernel_size):
            raise StructuredInitError(
                f"covariances of {len(own)}-D kernels ({sized(own)}) do not fit a kernel of {sized(kernel_size)}"
            )
        above = min(bisect_left([layer.depth for layer in self.layers], depth), len(self.layers) - 1)
        upper = self.layers[above]
        if above == 0 or depth >= upper.depth:
            return _resized(upper, kernel_size)
        lower = self.layers[above - 1]
        part = (depth - lower.depth) / (upper.depth - lower.depth)
        return torch.lerp(_resized(lower, kernel_size), _resized(upper, kernel_size), part)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: a float64 matrix per layer, and the rest as metadata.

        Raises:
            StructuredInitError: the path does not end in ``.safetensors``, or cannot be written.
        """
        if not str(path).endswith(SUFFIX):
            raise StructuredInitError(f"covariances are saved in a {SUFFIX} file, got '{path}'")
        about = [{key: getattr(each, key) for key in ("name", "depth", "kernel_size", "count")} for each in self.layers]
        tensors = {str(index): each.matrix.contiguous() for index, each in enumerate(self.layers)}
        with replacing(path) as temporary:
            save_file(tensors, temporary, metadata={"format": FORMAT, "layers": json.dumps(about)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LearnedCovariances:
        """Read what :meth:`save` wrote.

        Raises:
            StructuredInitError: the file is missing or damaged, or holds something else.
        """
        if (found := stored(path)) is None:
            raise StructuredInitError(
                f"'{path}' holds no filter covariances: estimate_covariances computes them from weights"
            )
        return found

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"LearnedCovariances({len(self.layers)} layers, kernel={sized(self.layers[0].kernel_size)})"


def stored(path: str | os.PathLike[str]) -> LearnedCovariances | None:
    """Return the covariances that a file holds; ``None`` where it is a file of something else."""
    if not str(path).endswith(SUFFIX):
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                return None
            layers = [{**each, "kernel_size": tuple(each["kernel_size"])} for each in json.loads(about["layers"])]
            matrices = [file.get_tensor(str(index)).double() for index in range(len(layers))]
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise StructuredInitError(f"cannot read filter covariances from '{path}': {error}") from error
    both = zip(layers, matrices, strict=True)
    return LearnedCovariances([LayerCovariance(**each, matrix=matrix) for each, matrix in both])


def estimate_covariances(
    source: Teacher, *, shrinkage: float = 0.0, where: Where = None, who: str = WHO
) -> LearnedCovariances:
    """Estimate the covariance of every depthwise convolution's filters.

    Args:
        source: a trained network: a module, a state dict, a path (a PyTorch or Lightning checkpoint or safetensors,
            read with ``weights_only``), or a model name of timm, whose pretrained weights are fetched. Without a
            module, weights of shape (F, 1, k) and (F, 1, k, k) are taken for depthwise: leave out with ``where`` a
            first layer that reads gray images.
        shrinkage: s in [0, 1], how much of it is white; needed where a layer has no more filters than weights in one.
        where: which layers, by shell pattern; a predicate is given the filters, (F, 1, *kernel). The depth counts only
            these.
        who: for messages.

    Raises:
        StructuredInitError: the source cannot be read or has no depthwise convolution; a layer has too few filters.
    """
    layers = [(name, weight) for name, weight in depthwise_weights(source, who) if selects(where, name, weight)]
    if not layers:
        raise StructuredInitError(f"{who}: where={shown(where)} selects none of the depthwise convolutions")
    estimated = []
    for index, (name, weight) in enumerate(layers):
        depth = index / max(len(layers) - 1, 1)
        matrix = _estimate(name, weight, shrinkage, who)
        estimated.append(LayerCovariance(name, depth, tuple(weight.shape[2:]), len(weight), matrix))
    return LearnedCovariances(estimated)


def depthwise_weights(source: Teacher, who: str = WHO) -> list[tuple[str, Float[Tensor, "filters one ..."]]]:
    """Return name and weight, (F, 1, *kernel), of every depthwise convolution, in the order of the network."""
    network = opened(source, who)
    if isinstance(network, nn.Module):
        found = [(site.name, site.module.weight.detach()) for site in depthwise_conv_sites(network)]
        has = what_the_model_has(network)
    else:
        weights = {name: tensor for name, tensor in tensors_of(network).items() if name.endswith(".weight")}
        found = [
            (name.removeprefix("module.").removesuffix(".weight"), tensor)
            for name, tensor in weights.items()
            if _is_depthwise(tensor)
        ]
        has = "none of its tensors has the shape (filters, 1, k) or (filters, 1, k, k)"
    if not found:
        raise StructuredInitError(f"{who}: {described(source)} has no depthwise convolution; {has}")
    return found


def _is_depthwise(tensor: Tensor) -> bool:
    """Say whether a tensor has the shape of several filters (F, 1, *kernel) of more than one number."""
    if tensor.ndim not in (3, 4) or not tensor.is_floating_point():
        return False
    return tensor.shape[1] == 1 and len(tensor) > 1 and tensor[0].numel() > 1


def sized(shape: tuple[int, ...]) -> str:
    """Return a shape as it is said, ``"9×9"``."""
    return "×".join(map(str, shape))


def _estimate(name: str, weight: Tensor, shrinkage: float, who: str) -> Tensor:
    """Return the empirical covariance of a weight (F, 1, *kernel), shrunk."""
    filters = weight.cpu()[:, 0]
    count, size = len(filters), filters[0].numel()
    if not 0 <= shrinkage <= 1:
        raise StructuredInitError(f"{who}: shrinkage must lie in [0, 1], got {shrinkage}")
    if shrinkage == 0 and count <= size:
        raise StructuredInitError(
            f"{who}: '{name}' has {count} filters of {sized(weight.shape[2:])}: a full covariance of {size} weights "
            f"takes more than {size}; give the result of estimate_covariances(…, shrinkage=0.1)"
        )
    if not filters.isfinite().all():
        raise StructuredInitError(f"{who}: the filters of '{name}' are not all finite")
    return shrink(empirical_covariance(filters), shrinkage)


def _resized(layer: LayerCovariance, kernel_size: tuple[int, ...]) -> Tensor:
    matrix = resize(layer.matrix, layer.kernel_size, kernel_size)
    trace = matrix.trace()
    return matrix * (layer.matrix.trace() / trace) if trace > 0 else matrix
