"""A grid as a whole: the aggregates of Agarwal et al. 2021."""

import numpy as np
import pytest
from compared import found
from scipy import stats

from comparison.results.aggregate import (
    aggregate,
    improvement_of,
    interquartile_mean,
    profile_of,
    ranges_of,
)


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side():
    scores = [np.array([0.0, 1.0, 2.0, 100.0]), np.array([-50.0, 3.0, 4.0, 5.0])]
    assert interquartile_mean(scores) == pytest.approx(np.mean([1.0, 2.0, 3.0, 4.0]))


def test_the_probability_of_improvement_is_mann_and_whitneys_averaged_over_places():
    rng = np.random.default_rng(0)
    pairs = [rng.integers(0, 4, size=(6, 2)).astype(float) for _ in range(3)]  # with ties
    u = [stats.mannwhitneyu(place[:, 0], place[:, 1]).statistic / 36 for place in pairs]
    assert improvement_of(pairs) == pytest.approx(np.mean(u))
    assert improvement_of(pairs, sign=-1.0) == pytest.approx(1 - np.mean(u))


def test_a_profile_is_the_share_of_runs_that_are_as_good():
    scores = [np.array([1.0, 2.0]), np.array([2.0, 3.0])]
    assert profile_of(scores, np.array([0.0, 2.0, 2.5, 4.0])) == pytest.approx([1.0, 0.75, 0.25, 0.0])
    assert profile_of(scores, np.array([2.0]), sign=-1.0) == pytest.approx([0.75])


def test_a_grid_has_aggregates_with_intervals_that_resampling_of_seeds_gives():
    values = {"default": [[10, 20, 30], [40, 50, 60]], "mimetic": [[12, 18, 33], [70, 75, 80]]}
    whole = aggregate(found(values, percent=True))
    default, mimetic = whole.arms
    assert default.mean.mean == pytest.approx(35)  # of 20, 30, 40 and 50
    assert default.improvement is None
    assert mimetic.improvement.mean == pytest.approx((5 / 9 + 1) / 2)  # of nine pairs five at 0.1, all at 0.5
    assert default.mean.low < 35 < default.mean.high
    # With a seed alone at each place there is nothing to draw again.
    one = aggregate(found({arm: [of_place[:1] for of_place in of_arm] for arm, of_arm in values.items()}, percent=True))
    assert one.arms[0].mean.low == one.arms[0].mean.high == pytest.approx(25)


def test_arms_places_and_their_interaction_move_what_a_table_built_from_them_says():
    arms, places = np.array([0.0, 3.0, 1.0]), np.array([10.0, 30.0])
    added = arms[:, None] + places
    np.testing.assert_allclose(ranges_of(added), [3, 20, 0], atol=1e-12)
    crossed = added + 2 * np.array([[1, -1], [-1, 1], [0, 0]])  # rows and columns sum to zero
    np.testing.assert_allclose(ranges_of(np.stack([added, crossed])), [[3, 20, 0], [3, 20, 2]], atol=1e-12)
    whole = aggregate(found({"default": [[10, 11], [20, 21]], "mimetic": [[16, 17], [20, 21]]}, percent=True))
    assert (whole.between_arms.mean, whole.between_places.mean, whole.interaction.mean) == (3, 7, 1.5)


def test_places_at_which_an_arm_has_no_run_are_left_out():
    assert aggregate(found({"default": [[10], [20]], "mimetic": [[12], []]}, percent=True)) is None
    assert aggregate(found({"default": [[10], [20]]}, percent=True)) is None
    assert aggregate([]) is None
