"""The made-up comparison has what a real one has, and its page is a whole report."""

from benchmarks.report_scale import LIMITS, make_comparison, markdown
from comparison.report.data import read_report_data
from comparison.report.depth import attention_statistics
from comparison.report.ties import quantities


def test_the_made_up_comparison_is_read_like_a_real_one(tmp_path):
    data = read_report_data(make_comparison(tmp_path / "made", arms=2, seeds=2, epochs=3))
    assert [arm.seeds for arm in data.effects[0].arms] == [2, 2]
    assert set(data.curves["metric"]) == {"train/accuracy", "train/loss", "val/accuracy", "val/loss"}
    assert len(data.curves) == 2 * 2 * 3 * 4
    layers, statistics = attention_statistics(data.complete)
    assert len(layers) == 6
    assert "structure_left" in statistics
    assert len(quantities(data.complete)) == 14


def test_the_table_names_the_hardware_and_the_limits():
    found = {"processor_seconds": 12.3, "seconds": 45.6, "opened": None, "megabytes": 7.8, "files": 9}
    text = markdown(found, {"processor": "abacus", "threads": 1, "torch": "2.0"})
    assert f"| 12.3 | under {LIMITS['seconds']:g} |" in text
    assert "not measured" in text
    assert "abacus" in text
