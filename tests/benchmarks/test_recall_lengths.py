"""The picture of the README is drawn from the committed runs."""

import json

import pytest
from PIL import Image
from scipy import stats

from benchmarks import recall_lengths


def test_the_picture_has_the_mean_and_the_interval_of_every_arm(tmp_path):
    recall_lengths.main(["--output", str(tmp_path / "lengths.png")])
    with Image.open(tmp_path / "lengths.png") as picture:
        assert picture.width == 640
    runs = json.loads((recall_lengths.RUNS / "recall_16_own.json").read_text())["runs"]["llama"]
    lines = recall_lengths.figure().axes[0].containers
    for arm, line in zip(recall_lengths.ARMS, lines, strict=True):
        values = [run["metrics"]["test/exact_match_512"] for run in runs if run["conv"] == arm]
        assert line.lines[0].get_ydata()[-1] == pytest.approx(sum(values) / 8)
        low, high = line.lines[2][0].get_segments()[-1][:, 1]
        if len(set(values)) > 1:
            assert (low, high) == pytest.approx(tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95)))
