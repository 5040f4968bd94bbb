"""Uniform element selection: a smaller tensor made of the entries of a larger one.

Letters: S the size of a dimension in the student, T in the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int64
from torch import Tensor


def uniform_indices(student: int, teacher: int) -> Int64[Tensor, " student"]:
    """Return S of T indices at even distances: i·T/S where that is whole for all i, else round(i·(T−1)/(S−1)).

    Args:
        student: S ≥ 1.
        teacher: T ≥ S.

    Raises:
        ValueError: T < S.

    Source: OscarXZQ/weight-selection, ``weight_selection.py``, ``uniform_element_selection``; linspace in float32 as
    there.
    """
    if teacher < student:
        raise ValueError(f"cannot select {student} of {teacher}")
    if teacher % student == 0:
        return torch.arange(student) * (teacher // student)
    return torch.linspace(0, teacher - 1, student, dtype=torch.float32).round().long()


def select(
    tensor: Tensor, shape: tuple[int, ...], indices: Mapping[int, Int64[Tensor, " size"]] | None = None
) -> Tensor:
    """Select a tensor of ``shape`` from a larger one, dimension by dimension.

    Args:
        tensor: the teacher's.
        shape: the student's, with as many dimensions, none larger.
        indices: for some dimensions, which entries to take instead of uniform ones.

    Raises:
        ValueError: the number of dimensions differs, or one of them is smaller than the student's.
    """
    if tensor.ndim != len(shape):
        raise ValueError(f"{tensor.ndim} dimensions are not {len(shape)}")
    for axis, size in enumerate(shape):
        own = None if indices is None else indices.get(axis)
        tensor = tensor.index_select(axis, uniform_indices(size, tensor.shape[axis]) if own is None else own)
    return tensor
