"""The picture of the README is drawn from the committed runs."""

import pandas as pd
import pytest
from PIL import Image
from scipy import stats

from benchmarks import recall_lengths


def test_the_picture_has_the_mean_and_the_interval_of_every_arm(tmp_path):
    recall_lengths.main(["--output", str(tmp_path / "lengths.png")])
    with Image.open(tmp_path / "lengths.png") as picture:
        assert picture.width == 640
    runs = pd.read_csv(recall_lengths.RUNS / "recall_16" / "results.csv")
    lines = recall_lengths.figure().axes[0].containers
    for arm, line in zip(recall_lengths.ARMS, lines, strict=True):
        values = runs.loc[runs["arm"] == arm, "test/exact_match_512"]
        assert line.lines[0].get_ydata()[-1] == pytest.approx(values.mean())
        low, high = line.lines[2][0].get_segments()[-1][:, 1]
        if len(set(values)) > 1:
            assert (low, high) == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95)))
