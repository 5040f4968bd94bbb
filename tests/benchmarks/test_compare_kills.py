"""A comparison that is killed with SIGKILL, all of its processes at once, ends like one that was left alone."""

import pytest

from benchmarks.compare_kills import assert_same, find_runs, kill_and_compare

QUICK = [
    *("-c", "vit_digits", "--inits", "sincos", "--seeds", "0", "--trainer.max_epochs", "6", "--attention.samples", "2"),
    *("--data.fraction", "0.5"),
]


@pytest.mark.slow
def test_a_killed_comparison_ends_like_one_that_was_left_alone(tmp_path):
    lines = kill_and_compare(QUICK, kills=2, seed=3, output=tmp_path, longest=1.0)
    assert len(lines) == 2
    (run,) = find_runs(tmp_path / "undisturbed")
    assert run.result["epochs"] == 6
    run.result_file.write_text(run.result_file.read_text().replace('"epochs": 6', '"epochs": 5'))
    with pytest.raises(AssertionError, match="the results of"):
        assert_same(tmp_path / "undisturbed", tmp_path / "killed_0")
