"""Moves of numbers are repeated on their codes, and cost nothing where all tokens have the same codes."""

from __future__ import annotations

import pytest
import torch

from structured_init.hosts.watching.origins import moved
from structured_init.hosts.watching.records import tensors

CODES = torch.arange(1, 5).expand(2, 3, 3, 4)  # channels, the same at 3 × 3 tokens of two samples
NUMBERS = torch.zeros(2, 3, 3, 4)


def repeat(name, codes, *arguments):
    func = getattr(torch.ops.aten, name).default
    return moved(func, name, (NUMBERS, *arguments), {}, {id(NUMBERS): codes})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("roll", ([1, 1], [1, 2])), ("flip", ([1],)), ("constant_pad_nd", ([0, 0, 0, 0, 0, 0], 0.0))],
)
def test_tokens_that_have_the_same_codes_are_turned_without_a_copy(name, arguments):
    assert repeat(name, CODES, *arguments) is CODES


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("roll", ([1], [-1]), [4, 1, 2, 3]),
        ("roll", ([1, 1], [1, 3]), [4, 1, 2, 3]),
        ("flip", ([3],), [4, 3, 2, 1]),
        ("constant_pad_nd", ([1, 0], 0.0), [0, 1, 2, 3, 4]),
    ],
)
def test_channels_that_move_take_their_codes_with_them(name, arguments, expected):
    assert repeat(name, CODES, *arguments)[1, 2, 2].tolist() == expected


def test_tokens_with_codes_of_their_own_take_them_with_them():
    codes = torch.arange(72).view(2, 3, 3, 4)
    assert torch.equal(repeat("roll", codes, [1, 1], [1, 2]), codes.roll((1, 1), (1, 2)))
    assert torch.equal(repeat("roll", codes, [5]), codes.roll(5))


def test_tensors_are_found_in_order_in_any_nest():
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    found = tensors((one, [two, 3, None], {"a": (three, "b")}, torch.max(torch.zeros(2, 4), 0)))
    assert [each.numel() for each in found] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("shape", "kept"),
    [([2, 9, 4], 4), ([2, 9, 2, 2], 4), ([18, 4], 4), ([-1, 3, 2, 2], 4), ([2, 3, 12], 12), ([2, 3, 3, 1, 4], 4)],
)
def test_another_shape_copies_only_the_tokens_that_are_joined_with_channels(shape, kept):
    made = repeat("view", CODES, shape)
    assert made.equal(CODES.contiguous().view(shape))
    assert made.untyped_storage().nbytes() // made.itemsize == kept


@pytest.mark.parametrize(("axis", "kept"), [(3, 8), (-1, 8), (1, 6 * 4)])
def test_tensors_beside_each_other_are_copied_along_no_axis_along_which_both_are_alike(axis, kept):
    made = moved(torch.ops.aten.cat.default, "cat", ([NUMBERS, NUMBERS], axis), {}, {id(NUMBERS): CODES})
    assert made.equal(torch.cat([CODES, CODES], axis))
    assert made.untyped_storage().nbytes() // made.itemsize == kept
