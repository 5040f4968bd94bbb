"""State dicts of locuslab/orthogonal-convolutions, brought into the form of :class:`CayleyConv2d`.

They hold ``weight``, ``bias`` and, once the layer has run, ``alpha``, measured by the norm of Ŵ over the half spectrum.
At stride 2 the reference convolves the 2×2 blocks of the image by a kernel of ⌊k/2⌋ blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from structured_init.errors import StructuredInitError


def is_of_reference(state_dict: dict[str, Any], prefix: str) -> bool:
    """Say whether a Cayley convolution's entries were written by the reference: it notes no norm for α."""
    return f"{prefix}weight" in state_dict and f"{prefix}_extra_state" not in state_dict


def translate(state_dict: dict[str, Any], prefix: str, shape: tuple[int, ...], stride: int) -> None:
    """Change the entries under ``prefix`` in place: the weight's shape, a missing α, and the norm of α."""
    weight = state_dict[f"{prefix}weight"]
    if stride > 1 and tuple(weight.shape[:2]) == (shape[0], shape[1] * stride**2):
        weight = state_dict[f"{prefix}weight"] = _from_blocks(weight, shape, stride, prefix)
    alpha = state_dict.get(f"{prefix}alpha")
    if alpha is None:  # the layer never ran; its first forward would have taken Ŵ as it is
        state_dict[f"{prefix}alpha"] = weight.norm()
    else:
        state_dict[f"{prefix}alpha"] = alpha.reshape(())
    state_dict[f"{prefix}_extra_state"] = torch.tensor(int(alpha is not None))


def _from_blocks(weight: Tensor, shape: tuple[int, ...], stride: int, prefix: str) -> Tensor:
    """Return the kernel over pixels (out, in, k, k) of one over blocks (out, in·s², ⌊k/s⌋, ⌊k/s⌋)."""
    pixels = nn.functional.pixel_shuffle(weight, stride)
    # Offsets from the pixel that is read at the centre: where the block kernel begins, and where ours does.
    begin = [
        (size - 1) // 2 - stride * ((blocks - 1) // 2) for size, blocks in zip(shape[2:], weight.shape[2:], strict=True)
    ]
    end = [start + size for start, size in zip(begin, pixels.shape[2:], strict=True)]
    if min(begin) < 0 or any(last > size for last, size in zip(end, shape[2:], strict=True)):
        name, size = prefix.rstrip(".") or "CayleyConv2d", "×".join(map(str, shape[2:]))
        raise StructuredInitError(
            f"{name}: the reference's kernel of {'×'.join(map(str, pixels.shape[2:]))} pixels reaches beyond {size}; "
            f"build the layer with kernel_size {2 * stride * (max(weight.shape[2:]) // 2 + 1) - 2}"
        )
    kernel = weight.new_zeros(shape)
    kernel[:, :, begin[0] : end[0], begin[1] : end[1]] = pixels
    return kernel
