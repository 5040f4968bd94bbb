"""Offsets and the maps they ask for, against a loop over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init import StructuredInitError
from structured_init.attention.impulse.offsets import axis_shift, draw_offsets, impulse_maps

EVERYWHERE = settings(max_examples=30, deadline=None, derandomize=True)


def drawn(order, heads, kernel_size, seed=0):
    return draw_offsets(order, heads, kernel_size, generator=torch.Generator().manual_seed(seed)).tolist()


def test_the_fixed_order_is_centre_up_right_left_down_and_the_corners_and_repeats():
    order = [[0, 0], [-1, 0], [0, 1], [0, -1], [1, 0], [-1, -1], [-1, 1], [1, -1], [1, 1]]
    assert drawn("fixed", 11, 3) == [*order, *order[:2]]


@EVERYWHERE
@given(st.sampled_from([3, 5]), st.integers(1, 40), st.integers(0, 5))
def test_random_offsets_stay_inside_the_kernel(kernel_size, heads, seed):
    offsets = np.array(drawn("random", heads, kernel_size, seed))
    assert offsets.shape == (heads, 2)
    assert abs(offsets).max() <= kernel_size // 2


def test_random_offsets_come_with_replacement_and_equally_often():
    offsets = drawn("random", 9000, 3)
    counts = [offsets.count([row, column]) for row in (-1, 0, 1) for column in (-1, 0, 1)]
    assert sum(counts) == 9000
    assert max(abs(count - 1000) for count in counts) < 5 * 30  # binomial: standard deviation 29.8


@EVERYWHERE
@given(st.integers(9, 40), st.integers(0, 5))
def test_covering_takes_every_offset_once_before_any_again(heads, seed):
    offsets = [tuple(offset) for offset in drawn("covering", heads, 3, seed)]
    counts = [offsets.count(offset) for offset in set(offsets)]
    assert len(counts) == 9
    assert max(counts) - min(counts) <= 1
    assert len(set(offsets[:9])) == 9


def test_more_offsets_than_heads_is_one_line():
    with pytest.raises(StructuredInitError, match="covering needs at least 25 heads, got 24"):
        drawn("covering", 24, 5)


def test_the_fixed_order_exists_for_three_by_three_only():
    with pytest.raises(StructuredInitError, match="only for a 3×3 kernel, got kernel_size 5"):
        drawn("fixed", 9, 5)


@EVERYWHERE
@given(
    st.tuples(st.integers(3, 6), st.integers(3, 6)),
    st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
    st.sampled_from(["zero", "clamp"]),
)
def test_the_map_moves_every_pixel_to_its_offset(grid, offset, border):
    (found,) = impulse_maps(torch.tensor([offset]), grid, border=border)
    rows, columns = grid
    for y in range(rows):
        for x in range(columns):
            target = (y + offset[0], x + offset[1])
            inside = 0 <= target[0] < rows and 0 <= target[1] < columns
            expected = torch.zeros(rows, columns, dtype=torch.float64)
            if inside or border == "clamp":
                expected[min(max(target[0], 0), rows - 1), min(max(target[1], 0), columns - 1)] = 1
            assert torch.equal(found[y * columns + x], expected.flatten())


def test_an_axis_shift_is_the_off_diagonal():
    np.testing.assert_array_equal(axis_shift(5, 2, border="zero"), np.eye(5, k=2))
    np.testing.assert_array_equal(axis_shift(5, 0, border="clamp"), np.eye(5))
