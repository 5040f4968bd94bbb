import csv

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from benchmarks import recall_lengths


def test_a_line_is_the_mean_and_the_interval_of_the_committed_runs():
    with (recall_lengths.RUNS / "recall_16" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == "induction"]
    values = np.array([float(row["test/exact_match_512"]) for row in rows])
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    mean, half = recall_lengths.exact_matches("induction")[-1]
    assert (mean - half, mean + half) == pytest.approx(tuple(interval))


def test_the_numbers_beside_the_picture_in_the_readme_are_those_of_the_runs():
    with (recall_lengths.RUNS / "recall_16" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["arm"], row["seed"]): row for row in csv.DictReader(file)}
    seeds = sorted({seed for _, seed in rows})
    arm, scrambled = (
        np.array([float(rows[name, seed]["test/exact_match"]) for seed in seeds])
        for name in ("induction", "induction_scrambled")
    )
    # corrected, as the README says: its row of the claims has three references
    low, high = stats.ttest_1samp(arm - scrambled, 0).confidence_interval(1 - 0.05 / 3)
    at_512, other = (
        np.mean([float(rows[name, seed]["test/exact_match_512"]) for seed in seeds])
        for name in ("induction", "induction_scrambled")
    )
    readme = " ".join((recall_lengths.RUNS.parents[2] / "README.md").read_text(encoding="utf-8").split())
    assert f"gains {(low + high) / 2:.2f} ± {(high - low) / 2:.2f} exact match over its own weights scrambled" in readme
    said = f"exact match is still {at_512:.2f}; that of the same weights scrambled is {other:.2f}"
    assert f"At four times the length its {said}" in readme


def test_the_picture_is_written_with_a_line_for_each_arm(tmp_path):
    recall_lengths.main(["--output", str(tmp_path / "lengths.png")])
    with Image.open(tmp_path / "lengths.png") as picture:
        assert picture.width == 640
    labels = [text.get_text() for text in recall_lengths.figure().axes[0].get_legend().get_texts()]
    assert labels == [label for label, _ in recall_lengths.ARMS.values()]
