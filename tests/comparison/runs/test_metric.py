"""Which direction of a metric is better: known by its name, or asked for."""

import importlib
import inspect

import pytest
from compared import report_text
from torchmetrics import Metric as TorchMetric

from comparison.runs.metric import Metric, direction
from lightning_modules.cli import main

LESS = (
    "CrossEntropy MeanSquaredError val_err top1_err valLoss BPB test/rmse test/loss perplexity bits_per_character "
    "acc_loss train_loss_epoch CalibrationError val/loss/dataloader_idx_1"
)
MORE = (
    "test/accuracy val_acc valAcc top1 acc@5 top-1-accuracy MulticlassF1Score AUROC test/exact_match "
    "certified_accuracy recall@10 precision"
)
OPEN = (
    "score attention_entropy accuracy_drop steps_to_accuracy 1-accuracy val/1-acc false_negative_rate x latency "
    "negative_precision accuracy_std neg_mean_squared_error valNegLoss likelihood word_error_rate"
)


@pytest.mark.parametrize(
    ("names", "expected"), [(LESS, "min"), (MORE, "max"), (OPEN, None)], ids=["min", "max", "open"]
)
def test_the_direction_is_known_by_the_words_of_a_name_or_not_at_all(names, expected):
    assert {name: direction(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


def test_no_metric_of_torchmetrics_is_taken_for_the_other_direction():
    parts = ("classification", "regression", "text", "retrieval", "image", "detection")
    known = {
        name: each.higher_is_better
        for part in parts
        for name, each in inspect.getmembers(importlib.import_module(f"torchmetrics.{part}"), inspect.isclass)
        if issubclass(each, TorchMetric) and each.higher_is_better is not None
    }
    found = {name: direction(name) for name in known}
    assert {name for name, mode in found.items() if mode and (mode == "max") != known[name]} == set()
    assert sum(mode is not None for mode in found.values()) > 20


@pytest.mark.parametrize("name", ["test/bits_per_dim", "test/NLL"])
def test_a_loss_that_is_negative_keeps_its_interval(name):
    shown = Metric(name, "min").mean([-0.9, -0.8, -1.0])
    assert (shown.mean, shown.half_width) == pytest.approx((-0.9, 4.3027 * 0.1 / 3**0.5), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("val/loss", "val loss"),
        ("val/top_1", "val top 1"),
        ("RMSE [m/s]", "RMSE [m/s]"),
        ("test/flow_rmse (m3/h)", "test flow rmse (m3/h)"),  # the slash of a unit is shown
        ("val/accuracy_epoch/dataloader_idx_1", "val accuracy epoch/dataloader idx 1 %"),
        ("val/loss/dataloader_idx_1", "val loss/dataloader idx 1"),
        ("test/accuracy", "test accuracy %"),
        ("top5_acc_percent", "top5 acc percent"),
        ("acc (%)", "acc (%)"),
    ],
)
def test_a_label_has_the_words_of_a_name_and_its_unit_once(name, label):
    assert Metric(name).label == label


def test_a_direction_that_no_name_tells_is_asked_for_and_then_taken(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text(
        "arm,seed,badness\n"
        + "\n".join(f"{a},{s},{v + s * (1 + v)}" for a, v in (("default", 3), ("b", 1)) for s in (0, 1, 2))
    )
    with pytest.raises(SystemExit):
        main(["report", str(table)])
    assert capsys.readouterr().err.splitlines() == [
        "structured-init: error: the name 'badness' does not say whether more or less of it is better: "
        "add --more-is-better or --less-is-better, in Python mode='max' or mode='min'"
    ]
    main(["report", str(table), "--less-is-better"])
    text = (tmp_path / "t_report" / "report.md").read_text()
    assert "lower is better" in text
    assert f"report {table} --less-is-better" in text  # the command that repeats it
    assert "higher is better" in report_text(table, mode="max")
    with pytest.raises(SystemExit):
        main(["report", str(table), "--less-is-better", "--more-is-better"])
    assert "not allowed with argument" in capsys.readouterr().err
