"""A race of initializations: whom it keeps."""

import math

import pytest

from comparison.command.finding import best_half, gains_of


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_gains_are_paired_by_seed_and_the_best_comes_first(mode, sign):
    values = {"default": {0: 10.0, 1: 20.0}, "a": {0: 10 + sign, 1: 20 + sign}, "b": {0: 10 + 3 * sign, 1: 20 + sign}}
    gains = gains_of(values | {"short": {1: 20 - sign}}, "default", mode)
    assert list(gains.items()) == [("b", 2.0), ("a", 1.0), ("short", -1.0)]


def test_after_each_seed_the_worse_half_leaves_until_three_are_left():
    left = dict.fromkeys(map(str, range(20)), 0.0)
    sizes = []
    for _ in range(5):
        left = dict.fromkeys(best_half(left), 0.0)
        sizes.append(len(left))
    assert sizes == [10, 5, 3, 3, 3]
    assert list(left) == ["0", "1", "2"]


def test_what_diverges_leaves_at_once_whatever_it_was():
    values = {"default": {0: 1.0, 1: 1.0}, "good": {0: 9.0, 1: math.nan}, "fair": {0: 2.0, 1: 2.0}}
    assert gains_of(values, "default", "max") == {"fair": 1.0}


def test_seeds_at_which_the_reference_diverged_say_nothing_of_the_others():
    values = {"default": {0: math.nan, 1: 1.0}, "a": {0: 0.0, 1: 3.0}}
    assert gains_of(values, "default", "max") == {"a": 2.0}
    values["default"][1] = math.nan
    assert gains_of(values, "default", "min") == {"a": math.inf}
