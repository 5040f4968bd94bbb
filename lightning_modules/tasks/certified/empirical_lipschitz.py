"""The Lipschitz constant from below: the largest ratio ‖f(x + δ) − f(x)‖ / ‖δ‖ that a search finds.

Letters: B batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_modules.tasks.certified.pgd import Network, in_unit_ball, normalized


def empirical_lipschitz(
    network: Network, images: Tensor, *, radius: float, steps: int, generator: torch.Generator
) -> Tensor:
    """Return the largest ratio found around each image, (B,): a lower bound of the constant, never an upper one.

    The gradient of ½‖f(x + δ) − f(x)‖² in δ is J(x + δ)ᵀ(f(x + δ) − f(x)). Each step takes the direction of that
    gradient at the norm ``radius``: for an affine network this is power iteration on JᵀJ. (The published code takes ten
    small steps up the ratio itself.)

    Args:
        network: images to outputs, both of any shape.
        images: (B, …).
        radius: ‖δ‖, in the units of the images.
        steps: of the search; each costs a forward and a backward pass.
        generator: of the first directions, on the CPU.
    """
    with torch.no_grad():
        center = network(images).flatten(1)
    direction = normalized(in_unit_ball(images, generator))
    largest = torch.zeros(len(images), dtype=images.dtype, device=images.device)
    for _ in range(steps + 1):
        change = (radius * direction).requires_grad_()
        with torch.enable_grad():
            difference = network(images + change).flatten(1) - center
            (gradient,) = torch.autograd.grad(difference.square().sum() / 2, change)
        # What was added is not exactly what was asked for: the ratio is taken to what the network saw.
        seen = ((images + change).detach() - images).flatten(1).norm(dim=1)
        ratio = difference.detach().norm(dim=1) / seen.clamp_min(torch.finfo(seen.dtype).tiny)
        largest = torch.maximum(largest, ratio.to(largest.dtype))
        direction = normalized(gradient)
    return largest
