"""Surroundings in which a certificate and an attack mean what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


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


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Ask for no gradient of any parameter meanwhile: an attack differentiates in its input alone."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
