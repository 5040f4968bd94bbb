"""What an attack finds: PGD in the L2 ball, and the arithmetic in which a bound holds.

Letters: B batch.

Source: Madry et al. 2018 (1706.06083); steps and random start as in locuslab/orthogonal-convolutions, utils.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_modules.tasks.certified.certificate import margins


@contextlib.contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Leave inference mode, in which no attack can differentiate, autocast and TF32; gradients are off.

    A bound holds for the function that the weights define. In bfloat16 or TF32 another function runs, off by a
    thousandth and more; in float32 by a millionth.
    """
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device.type, enabled=False):
        try:
            matmul.fp32_precision = conv.fp32_precision = "ieee"
            yield
        finally:
            matmul.fp32_precision, conv.fp32_precision = before


Network = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Box = tuple[Tensor, Tensor]


def l2_pgd(
    network: Network,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    steps: int,
    step_size: float,
    generator: torch.Generator,
    box: Box | None = None,
    loss: Loss = F.cross_entropy,
) -> Tensor:
    """Return for each image the point within ε on which its label leads least, of all that the attack visited.

    Gradients are enabled inside, but not for a network whose input was made in inference mode: leave that mode first.

    Args:
        network: images to logits.
        images: (B, …).
        labels: (B,) class numbers.
        epsilon: L2 radius, in the units of the images.
        steps: of length ``step_size`` along the normalized gradient, from a random start.
        step_size: in the units of the images; the published value is ε / 4.
        generator: of the random start, on the CPU.
        box: smallest and largest values that a pixel may have, broadcast against the images; None for any.
        loss: what the attack raises, of logits and labels; it is summed over the batch.
    """
    with torch.no_grad():
        best, lead = images.clone(), margins(network(images), labels)
    point = _project(images + epsilon * in_unit_ball(images, generator), images, epsilon, box)
    for step in range(steps + 1):
        point = point.detach().requires_grad_()
        with torch.enable_grad():
            logits = network(point)
            (gradient,) = torch.autograd.grad(loss(logits, labels).sum(), point)
        new_lead = margins(logits.detach(), labels)
        better = new_lead < lead
        best[better], lead[better] = point.detach()[better], new_lead[better]
        if step < steps:
            point = _project(point.detach() + step_size * normalized(gradient), images, epsilon, box)
    return best


def in_unit_ball(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return points of the shape of ``like`` (B, …), each uniform in the L2 unit ball."""
    direction = torch.randn(like.shape, generator=generator, dtype=like.dtype)
    radius = torch.rand(len(like), generator=generator, dtype=like.dtype) ** (1 / like[0].numel())
    return (normalized(direction) * _column(radius, like)).to(like.device)


def normalized(vectors: Tensor) -> Tensor:
    """Return each of (B, …) with L2 norm 1, or zero where it is zero."""
    tiny = torch.finfo(vectors.dtype).tiny
    scaled = vectors / _column(vectors.flatten(1).abs().amax(1).clamp_min(tiny), vectors)  # squares would underflow
    return scaled / _column(scaled.flatten(1).norm(dim=1).clamp_min(tiny), vectors)


def _project(points: Tensor, centers: Tensor, epsilon: float, box: Box | None) -> Tensor:
    """Return the points inside the box, then drawn towards their centers into the ball; centers lie in the box."""
    if box is not None:
        points = points.clamp(*box)
    change = points - centers
    norms = change.flatten(1).norm(dim=1)
    return centers + change * _column((epsilon / norms.clamp_min(1e-30)).clamp_max(1.0), change)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Return (B,) shaped to be multiplied with (B, …)."""
    return values.view(-1, *[1] * (like.ndim - 1))
