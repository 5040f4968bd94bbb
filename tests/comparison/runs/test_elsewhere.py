"""Runs made elsewhere: tables, exports of Weights & Biases, folders of Lightning's CSVLogger."""

import json
import re
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from lightning.pytorch.loggers import CSVLogger
from torch.utils.tensorboard import SummaryWriter

from comparison.contrasts.contrasts import IS_CONTROL
from comparison.runs.elsewhere import Wanted
from comparison.runs.elsewhere import read_elsewhere as read_wanted
from comparison.say import write_report
from comparison.say.data import read_report_data
from comparison.say.headline import headline_tables
from comparison.say.writing import default_page
from lightning_modules.cli import main
from structured_init import StructuredInitError

# What every reader has to find: two arms, two seeds, two evaluations.
CURVES = {
    (arm, seed): [(10.0, 0.5 + 0.1 * seed), (20.0, final + 0.1 * seed)]
    for arm, final in (("default", 0.6), ("mimetic", 0.7))
    for seed in (0, 1)
}
RUNS = [(arm, seed) for arm in ("a", "b") for seed in range(5)]


def read_elsewhere(path, metric=None, **options):
    return read_wanted(path, Wanted(metric, **options))


def check(found, metric="val/acc", curves=CURVES):
    own = found.curves[found.curves["metric"] == metric]
    read = {key: [*zip(of["step"], of["value"], strict=True)] for key, of in own.groupby(["arm", "seed"])}
    assert read == {key: [(step, pytest.approx(value)) for step, value in curve] for key, curve in curves.items()}
    assert {(run.arm, run.seed): run.metric(metric) for run in found.runs} == {
        key: pytest.approx(curve[-1][1]) for key, curve in curves.items()
    }


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def table(tmp_path, *lines, name="t.csv"):
    return written(tmp_path / name, "\n".join(lines) + "\n")


def finals(found, metric):
    return {(run.arm, run.seed): run.metric(metric) for run in found.runs}


def diverged(found, metric):
    return [(run.arm, run.seed) for run in found.runs if run.diverged([metric])]


def refused(path, *said, **options):
    with pytest.raises(StructuredInitError) as error:
        read_elsewhere(path, **options)
    for each in said:
        assert re.search(each, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1_000


# Tables


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("shape", ["wide", "long"])
def test_a_table_has_a_row_per_run_and_step_in_any_order(tmp_path, kind, shape):
    rows = [
        {"seed": seed, "Arm": arm, "note": "fine", "step": step} | {"val/acc": value}
        for (arm, seed), curve in CURVES.items()
        for step, value in curve[::-1]
    ]
    frame = pd.DataFrame(rows)
    if shape == "long":
        frame = frame.rename(columns={"val/acc": "value"}).assign(metric="val/acc")
    path = tmp_path / f"t.{kind}"
    if kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        text = frame.to_csv(index=False, sep="," if kind == "csv" else "\t")
        path.write_text("\ufeff" + text, encoding="utf-8")
    check(read_elsewhere(path))


def test_the_training_and_the_validation_row_of_a_step_are_not_one_row_twice(tmp_path):
    rows = [
        row
        for arm, seed in CURVES
        for row in (f"{arm},{seed},0.5,3e-05,4,0.69,", f"{arm},{seed},0.5,,4,,0.{seed + 1}", f"{arm},{seed},1,,8,,0.2")
    ]
    path = table(tmp_path, "arm,seed,epoch,learning_rate,step,loss,eval_loss", *rows)
    check(read_elsewhere(path, "eval_loss"), "eval_loss", {key: [(4, (key[1] + 1) / 10), (8, 0.2)] for key in CURVES})


def test_epochs_are_steps_where_runs_have_several_and_there_is_nothing_else(tmp_path):
    several = table(tmp_path, "arm,seed,epoch,loss", *(f"{a},{s},{e},{e + s}" for a, s in RUNS for e in (1, 2)))
    found = read_elsewhere(several)
    assert found.manifest.counted == "epochs"
    check(found, "loss", {(arm, seed): [(1, 1 + seed), (2, 2 + seed)] for arm, seed in RUNS})
    # The epoch at which each run was best: no run ends early.
    best = read_elsewhere(table(tmp_path, "arm,seed,epoch,loss", *(f"{a},{s},{10 * s + 1},{s}" for a, s in RUNS)))
    assert (len(best.runs), len(best.curves), best.manifest.remarks) == (10, 0, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms,seed,acc\na,0,1\n", "no column 'arm': name it with --arm; a table has the columns arm, seed and a"),
        ("arm,seed,acc\na,x,1\n", "line 2: arm 'a' and seed 'x' are no name and whole number: name runs"),
        (f"arm,seed,acc\na,{'9' * 400},1\n", "line 2: arm 'a' and seed '9{40}' are no"),
        (
            "arm,seed,acc\na,0,0.5\na,1,0.4\nb,0,high\n",
            "line 4: 'high' in the column 'acc' is not a number: write percent without",
        ),
        ("arm\tseed\tacc\na\t0\t900\n\na\t1\t1,100\n", "line 4: '1,100' in the column 'acc' is not a number"),
        ("arm\tseed\tloss\na\t0\t1,100\nb\t0\t2,100\n", "line 2: '1,100' in the column 'loss' is not a number"),
        ("arm,seed,loss\na,0,1_000\na,1,2_000\n", "line 2: '1_000' in the column 'loss' is not a number"),
        ("arm;seed;loss\na;0;1,100\na;1;900.5\n", "line 2: '1,100' in the column 'loss' is not a number"),
        ("arm,seed,step,acc\na,0,1,1\na,0,two,1\n", "line 3: the step 'two' is not a number"),
        (
            "arm,seed,acc\na,0,1\na,0,2\n",
            "line 3: arm 'a', seed 0 occurs a second time: add a column step, keep one",
        ),
        ("arm,seed,step,acc\na,0,1,1\na,0,2,1\na,0,2,2\n", "line 4: arm 'a', seed 0 occurs a second time: keep one"),
        ("arm,seed,note\na,0,x\n", "no column of numbers beside arm, seed"),
        ("arm,seed,acc\na,0\n", "line 2: 2 cells, but the header has 3"),
        ("arm,seed,acc\n,0,1\n", "line 2: arm '' and seed '0' are no name"),
        ("arm,seed,acc,acc\na,0,1,2\n", "two columns that are called 'acc': rename one"),
        ("arm,seed,acc\n", "has no rows"),
        (f"arm,seed,acc\n{'a' * 131_073},0,1\n", "line 2: field larger than field limit"),
        ("arm,seed,acc\na,0,83.1 %\n", "line 2: '83.1 %' in the column 'acc' is not a number"),
        ("arm,seed,loss,acc\na,0,1,2\n", "several metrics, 'loss', 'acc': choose one with --metric"),
        ("Name,loss\na_seed_0,1\na-seed-0,2\n", "arm 'a', seed 0 occurs a second time"),
        (
            "Name,loss\nbold-crab-3,1\nnice-moon-4,1\n",
            "arm 'bold-crab-3' and seed '' are no .* as in mimetic_seed_0",
        ),
        (
            "Name,loss\ninit: mimetic,1\ninit: default,1\n",
            r"means of groups of runs \('init: mimetic'\): export it without",
        ),
        ("Step,init: a - loss,init: b - loss\n1,1,2\n", r"means of groups of runs \('init: a'\): export it without"),
        (
            "Relative Time (Process),a_seed_0 - loss\n1,1\n",
            r"a chart over 'Relative Time \(Process\)': export one over",
        ),
    ],
)
def test_what_a_table_does_not_say_is_refused_with_the_place(tmp_path, text, message):
    refused(written(tmp_path / "table.csv", text), message)


def test_percent_beside_fractions_is_refused_and_not_taken_for_a_gain(tmp_path):
    path = table(tmp_path, "arm,seed,acc,loss", "a,0,83,0", "a,1,82.5,1", "a,2,0.85,2")
    refused(path, r"line 4: 0.85 in the column 'acc' stands beside 83 \(line 2\): write all as fracti", metric="acc")
    assert finals(read_elsewhere(path, "loss"), "loss") == {("a", 0): 0, ("a", 1): 1, ("a", 2): 2}


@pytest.mark.parametrize(
    ("metric", "cells", "values"),
    [
        ("acc", ("83", "0", "100", "nan"), (0.83, 0, 1, float("nan"))),
        ("acc (%)", ("83", "0.4"), (0.83, 0.004)),
        ("acc", ("1.004", "0.4"), (1.004, 0.4)),  # half precision
    ],
)
def test_an_accuracy_in_percent_is_a_fraction(tmp_path, metric, cells, values):
    path = table(tmp_path, f"arm,seed,{metric}", *(f"a,{seed},{cell}" for seed, cell in enumerate(cells)))
    expected = {("a", seed): pytest.approx(value, nan_ok=True) for seed, value in enumerate(values)}
    assert finals(read_elsewhere(path), metric) == expected


def test_of_columns_that_may_be_the_arm_those_with_fewest_values_come_first(tmp_path):
    rows = [f"run {i},{lr},{init},{i % 4},0.{i}" for i, (init, lr) in enumerate(product("xy", [1, 2, 3, 4]))]
    path = table(tmp_path, "id,lr,init,seed,acc", *rows)
    refused(path, r"no column 'arm': name it with --arm, perhaps 'init' \(2 values\), 'lr' \(4 values\), 'seed'")
    refused(path, r"no column 'inti': did you mean 'init'\?", arm="inti")
    assert set(finals(read_elsewhere(path, "acc", arm="init"), "acc")) == {*product("xy", range(4))}


def test_other_mistakes_name_what_would_be_right(tmp_path):
    path = table(tmp_path, "arm,seed,loss,acc", "a,0,1,2", "b,0,2,3")
    assert read_elsewhere(path, "loss").manifest.mode == "min"
    refused(path, "no metric 'los': did you mean 'loss'", metric="los")
    words = table(tmp_path, "arm,seed,acc,loss", "a,0,high,1", "b,0,low,3", name="u.tsv")
    refused(words, "line 2: 'high' in the column", metric="acc")
    refused(tmp_path / "s.csv", r"did you mean 't.csv'\?")
    refused(written(tmp_path / "t.txt", "x"), "cannot be read as results: give the")
    refused(tmp_path, "cannot be read as results: give the")
    refused(table(tmp_path, "[1]", name="t.jsonl"), "line 1, as JSON of a row: 'list' object is not a mapping")
    refused(table(tmp_path, "[" * 200_000, name="t.jsonl"), "line 1, as JSON of a row: ")
    refused(table(tmp_path, '{"arm": 1, "arm": 2}', name="t.jsonl"), "line 1, as JSON of a row: 'arm' has two values")
    refused(table(tmp_path, "x", name="t.parquet"), "cannot read .* as a table")
    (tmp_path / "latin.csv").write_bytes("arm,seed,acc\né,0,1\n".encode("latin-1"))
    refused(tmp_path / "latin.csv", "utf-8")


# Which runs count


def test_runs_that_have_not_ended_and_parents_without_a_metric_are_left_out_and_named(tmp_path):
    rows = [f"FINISHED,7,{0.5 + 0.1 * seed},{arm},{seed}" for arm in "ab" for seed in range(3)]
    rows += ["FAILED,7,0.2,a,3", "FAILED,7,NaN,a,4", "RUNNING,7,0.2,b,3", "SCHEDULED,7,,b,4"]
    path = table(tmp_path, "status,id,metrics.acc,params.init,params.seed", *rows, "FINISHED,7,,,", "FINISHED,7,,a,9")
    found = read_elsewhere(path, "metrics.acc", seed="params.seed", arm="params.init")
    assert found.manifest.remarks == [
        "Left out, as they have no value: line 12.",
        "Left out, as they logged no metrics.acc or have not ended: a seed 3, b seed 3, b seed 4, a seed 9.",
    ]
    assert diverged(found, "metrics.acc") == [("a", 4)]
    assert len(found.runs) == 7


def test_a_table_of_runs_that_all_go_on_is_refused(tmp_path):
    path = table(tmp_path, "State,arm,seed,acc,name", "running,a,0,0.5,x", "running,b,0,0.6,y")
    refused(path, "has no run that logged acc. Left out, as they logged no acc or have not ended: a seed 0, b seed 0.")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a,0,1", "b,1,2", "c,1,3"], "Missing: a seed 1, a seed 2, b seed 0, b seed 2, c seed 0, c seed 2."),
        (
            ["a,3,1", "b,3,2"],
            "one run; an interval needs three seeds .* Missing: a seed 4, a seed 5, b seed 4, b seed 5.",
        ),
    ],
)
def test_a_table_with_one_run_for_each_arm_says_which_seeds_are_missing(tmp_path, rows, said):
    (remark,) = read_elsewhere(table(tmp_path, "arm,seed,loss", *rows)).manifest.remarks
    assert re.search(said, remark)


def test_controls_of_a_table_are_those_that_are_named(tmp_path):
    values = {"default": 0.5, "mine": 0.7, "mine_positions": 0.55, "mine_scrambled": 0.6}
    rows = [f"{arm},{seed},{value + 0.01 * seed}" for arm, value in values.items() for seed in range(3)]
    path = written(tmp_path / "table.csv", "\n".join(["arm,seed,test/accuracy", *rows]))
    assert read_report_data(path).manifest.controls == {}
    data = read_report_data(path, controls={"mine": ["mine_scrambled", "default"]})
    assert data.manifest.controls == {"mine": {"mine_scrambled": "named", "default": "named"}}
    assert [each.arm for each in data.places[0].contrasts if each.reason == IS_CONTROL] == ["mine_scrambled"]
    assert "same positions" not in headline_tables(data.places)  # whatever it has: nobody says that of a table


@pytest.mark.parametrize("value", ["", "NaN"])
def test_a_run_of_a_table_without_its_value_ended_without_a_number_for_report_and_judge(tmp_path, capsys, value):
    rows = [f"{arm},{seed},0.{5 + seed}" for arm, seed in RUNS if (arm, seed) != ("b", 4)]
    path = table(tmp_path, "arm,seed,test accuracy", *rows, f"b,4,{value}")
    assert "| b | 5 (1 of 5 diverged) |" in headline_tables(read_report_data(path).places)
    with pytest.raises(SystemExit):
        main(["judge", str(path)])
    assert "discard b: it has no number in 1 of 5 seeds" in capsys.readouterr().out


def steps(tmp_path, ends, lost=(), text="nan"):
    """Write a table of losses at steps 1 to the end of each run; what some have in place of their last one."""
    lines = ["arm,seed,step,train_loss,val_loss"]
    for (arm, seed), end in ends.items():
        for step in range(1, end + 1):
            value = text if (arm, seed) in lost and step == end else f"{1 / step + 0.01 * seed:.4f}"
            lines.append(f"{arm},{seed},{step},1.0,{value}")
    return table(tmp_path, *lines)


def test_a_run_that_ends_without_a_number_has_diverged(tmp_path):
    lost = [("b", 1), ("b", 3)]
    assert diverged(read_elsewhere(steps(tmp_path, dict.fromkeys(RUNS, 4), lost), "val_loss"), "val_loss") == lost


@pytest.mark.parametrize(
    ("end", "lost"), [(2, ()), (4, [("b", 2)])], ids=["stopped", "an empty cell, as pandas writes"]
)
def test_runs_that_end_early_are_named_and_not_judged(tmp_path, capsys, end, lost):
    path = steps(tmp_path, dict.fromkeys(RUNS, 4) | {("b", 2): end, ("b", 5): 4, ("a", 5): 4}, lost, "")
    with pytest.raises(SystemExit):
        main(["judge", str(path), "--metric", "val_loss", "--margin", "0.01"])
    said = capsys.readouterr().err
    early = f"b seed 2, at step {2 if end == 2 else 3} where most runs end at 4"
    assert f"Ended early and left out: {early}. Run them to the end" in said
    [pair] = json.loads((tmp_path / "t.csv.judged.json").read_text())["pairs"]
    assert [seed for seed, *_ in pair["seen"]] == [0, 1, 3, 4, 5]


def test_a_run_that_never_logged_the_metric_is_named_and_left_out(tmp_path):
    """As ``test/accuracy``, which is logged at the end alone."""
    lines = ["arm,seed,step,val/accuracy,test/accuracy"]
    for arm, seed in RUNS:
        end = 6 if (arm, seed) == ("b", 2) else 10
        lines += [f"{arm},{seed},{step},0.5,{0.5 + 0.01 * seed if step == 10 else ''}" for step in range(1, end + 1)]
    found = read_elsewhere(table(tmp_path, *lines, "c,0,1,0.5,"), "test/accuracy")  # c has just begun
    assert found.manifest.remarks == [
        "Left out, as they logged no test/accuracy or have not ended: b seed 2, c seed 0."
    ]
    assert list(found.manifest.arms) == ["a", "b"]
    assert len(found.runs) == 9


@pytest.mark.parametrize(
    ("end", "last"),
    [(lambda arm, _: 8 if arm == "a" else 4, "a at 8, b at 4"), (lambda _, seed: 4 + 2 * seed, "a at 12, b at 12")],
    ids=["arms", "each run, as with early stopping"],
)
def test_where_arms_or_all_runs_end_at_different_steps_that_is_said_and_all_count(tmp_path, end, last):
    found = read_elsewhere(steps(tmp_path, {run: end(*run) for run in RUNS}), "val_loss")
    said = f"Runs end at different steps, from 4 on; the last of each arm: {last}."
    assert found.manifest.remarks[0].startswith(said)
    assert len(found.runs) == 10


def test_a_loss_that_some_runs_did_not_log_is_not_lost(tmp_path):
    """As where the tables of two programs were put together."""
    found = read_elsewhere(table(tmp_path, "arm,seed,train_loss,acc", "a,0,0.1,0.8", "b,0,,0.9"), "acc")
    assert found.results["diverged"].tolist() == [False, False]


@pytest.mark.parametrize("loss", ["train_loss_epoch", "Test NLL"])
def test_an_accuracy_of_a_run_whose_loss_is_lost_does_not_count(tmp_path, loss):
    rows = [f"{arm},{seed},{'nan' if (arm, seed) == ('b', 1) else 0.5},0.{70 + seed}" for arm, seed in RUNS]
    path = table(tmp_path, f"arm,seed,{loss},val_acc", *rows)
    assert diverged(read_elsewhere(path, "val_acc"), "val_acc") == [("b", 1)]


def test_a_run_that_stopped_when_its_loss_was_lost_has_diverged_though_its_metric_ends_early(tmp_path):
    lines = [f"{arm},{seed},{step},1,0.{seed + 5}" for arm, seed in RUNS for step in (1, 2, 3)]
    lost = [line.replace("b,1,1,1", "b,1,1,nan") for line in lines if not re.match("b,1,[23]|b,2,", line)]
    found = read_elsewhere(table(tmp_path, "arm,seed,step,loss,acc", *lost, "b,2,0,nan,"), "acc")  # before any metric
    assert diverged(found, "acc") == [("b", 1), ("b", 2)]
    assert found.manifest.remarks == []


# Exports of Weights & Biases


def test_a_chart_has_a_column_per_run(tmp_path):
    ends = ("val/acc", "val/acc__MIN", "val/acc__MAX", "_step")
    head = ["train/global_step", *(f'"{arm}_seed{seed} - {end}"' for arm, seed in CURVES for end in ends)]
    rows = [[str(at), *(str(curve[i][1]) for curve in CURVES.values() for _ in ends)] for i, at in ((0, 10), (1, 20))]
    path = table(tmp_path, *map(",".join, [head, *rows]))
    check(read_elsewhere(path))
    path.write_text(path.read_text().replace("train/global_step", "epoch"))
    found = read_elsewhere(path)
    assert found.manifest.counted == "epochs"
    check(found)


def test_the_table_of_runs_has_arms_and_seeds_in_columns_or_in_names(tmp_path):
    names = [f"{arm}-seed-{seed},finished,{arm},{seed},0.{n}" for n, (arm, seed) in enumerate(RUNS, 1)]
    path = table(tmp_path, "Name,State,init,seed,test/accuracy", *names)
    expected = {key: pytest.approx(float(f"0.{n}")) for n, key in enumerate(RUNS, 1)}
    assert finals(read_elsewhere(path, arm="init"), "test/accuracy") == expected
    refused(path, r"no column 'arm': name it with --arm, perhaps 'init' \(2 values\)")
    path.write_text(re.sub(r"(?m),(init,seed|[ab],\d),", ",", path.read_text()))
    assert finals(read_elsewhere(path), "test/accuracy") == expected


# Folders of Lightning's CSVLogger


def csv_logs(folder, hparams):
    for number, ((arm, seed), curve) in enumerate(CURVES.items()):
        logger = CSVLogger(folder, name="lightning_logs", version=number)
        logger.log_hyperparams(hparams(arm, seed))
        for step, value in curve:
            logger.log_metrics({"train/loss": 1 - value}, step=int(step) - 1)
            logger.log_metrics({"val/acc": value, "epoch": step / 10 - 1}, step=int(step))
        logger.save()
    return folder / "lightning_logs"


@pytest.mark.parametrize(
    ("hparams", "options"),
    [
        (lambda arm, seed: {"init": arm, "seed": seed, "lr": 0.1}, {"arm": "init"}),
        (
            lambda arm, seed: {
                "model": {"init": {"class_path": arm, "size": (1, 2)}},
                "run": seed,
                "head": {"init": 0},
            },
            {"arm": "model.init", "seed": "run"},
        ),
    ],
)
def test_lightnings_logs_are_read_by_their_settings(tmp_path, hparams, options):
    check(read_elsewhere(csv_logs(tmp_path, hparams), "val/acc", **options))


def test_settings_that_tell_no_arm_or_no_seed_are_refused_by_name(tmp_path):
    logs = csv_logs(
        tmp_path, lambda arm, seed: {"seed": seed, "init": arm, "head": {"init": 1}, "split": seed + len(arm)}
    )
    refused(logs, r"tell no arms apart: name a setting with --arm, perhaps 'init' \(2 values\), 'seed' \(2")
    refused(logs, r"is called 'inti': did you mean 'init'\?", arm="inti")
    refused(csv_logs(tmp_path / "b", lambda *_: {"a": {"x": 1}, "b": {"x": 2}}), "there are a.x and b.x", seed="x")
    refused(
        csv_logs(tmp_path / "c", lambda _, seed: {"seed": seed, "data": {"seed": 7}}), "data.seed and seed of .* differ"
    )
    refused(
        csv_logs(tmp_path / "d", lambda *_: {}),
        "version_0/metrics.csv, line 2: arm 'lightning_logs' and seed 'version_0' are no",
        metric="train/loss",
    )


def test_the_folders_names_are_the_arms_where_no_setting_is_named(tmp_path):
    classes = {"Default": "default", "FilterCovariance": "covariance", "Scrambled": "covariance_scrambled"}
    for (kind, arm), seed in product(classes.items(), range(3)):
        folder = tmp_path / "logs" / arm / f"seed_{seed}"
        written(folder / "metrics.csv", f"step,test/loss\n9,{1 + seed / 10}\n")
        written(folder / "hparams.yaml", f"seed: {seed}\ninit:\n  class_path: structured_init.{kind}\n")
    found = read_elsewhere(tmp_path / "logs")
    assert set(found.manifest.arms) == {*classes.values()}
    assert found.manifest.baseline == "default"


def test_folders_tell_arm_and_seed_where_settings_do_not_and_a_line_that_is_being_written_is_left_out(tmp_path):
    for kind in ("version", "seed"):
        for (arm, seed), curve in CURVES.items():
            folder = tmp_path / kind / arm / f"{kind}_{seed}"
            lines = [f"{step},{value}" for step, value in curve]
            written(folder / "metrics.csv", "\n".join(["step,val/acc", *lines, "30,0.1"]))
            written(folder / "hparams.yaml", "draw: &a [1, 2]\nf: !!python/name:os.system ''\n" if seed else "")
    refused(
        tmp_path / "version", "version_0/metrics.csv, line 2: arm 'default' and seed 'default/version_0' are no name"
    )
    check(read_elsewhere(tmp_path / "seed"))


def versions(folder, *logs, hparams=("seed: 3\nwidth: 8\n",) * 3):
    for version, (text, settings) in enumerate(zip(logs, hparams, strict=False)):
        written(folder / "arm" / f"version_{version}" / "metrics.csv", text)
        written(folder / "arm" / f"version_{version}" / "hparams.yaml", settings)
    written(folder / "other" / "version_0" / "metrics.csv", "step,val/loss\n9,1\n19,2\n29,3\n39,4\n")
    written(folder / "other" / "version_0" / "hparams.yaml", "seed: 3\nwidth: 8\n")
    return folder


FIRST, RESUMED = "step,val/loss\n9,7\n19,6\n29,0\n", "step,val/loss\n29,5\n39,4\n"


def test_a_run_that_was_resumed_or_tested_in_another_folder_is_one_run(tmp_path):
    tested = "step,test/loss\n39,8\n"
    same = "seed: 3\nwidth: 8\n"
    settings = (same, f"{same}ckpt_path: last.ckpt\n", same)
    found = read_elsewhere(versions(tmp_path, FIRST, RESUMED, tested, hparams=settings), "val/loss")
    other = [(9, 1), (19, 2), (29, 3), (39, 4)]
    check(found, "val/loss", {("arm", 3): [(9, 7), (19, 6), (29, 5), (39, 4)], ("other", 3): other})
    assert finals(found, "test/loss")["arm", 3] == 8


@pytest.mark.parametrize(
    ("second", "settings"),
    [("step,val/loss\n9,7\n39,4\n", "seed: 3\nwidth: 8\n"), (RESUMED, "seed: 3\nwidth: 9\n")],
    ids=["begun anew", "other settings"],
)
def test_folders_of_one_arm_and_seed_that_are_not_one_run_are_left_out_and_named(tmp_path, second, settings):
    found = read_elsewhere(versions(tmp_path, FIRST, second, hparams=("seed: 3\nwidth: 8\n", settings)))
    assert [run.arm for run in found.runs] == ["other"]
    (said,) = found.manifest.remarks
    assert "all of them are arm seed 3 and none goes on with another: 'arm/version_0', 'arm/version_1'." in said


def test_settings_that_stand_for_billions_are_read_as_far_as_they_fit(tmp_path):
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    folder = tmp_path / "arm_seed_0"
    written(folder / "hparams.yaml", f"l0: &l0 [1]\n{levels}\n")
    for each in (folder, tmp_path / "other_seed_0"):
        written(each / "metrics.csv", "step,val/loss\n9,1\n")
    assert [(run.arm, run.seed) for run in read_elsewhere(tmp_path).runs] == [("arm", 0), ("other", 0)]


# Recipes of the documentation


def run_recipe(monkeypatch, folder, package):
    """Run the code of the page that imports a package."""
    monkeypatch.chdir(folder)
    page = Path(__file__).parents[3] / "docs" / "compare.md"
    (code,) = (text for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if package in text)
    assert len(code.strip().splitlines()) <= 5
    exec(code, {})


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # tbparse 0.0.9 with pandas 3.1
def test_the_recipe_for_tensorboard_makes_the_table(tmp_path, monkeypatch):
    pytest.importorskip("tbparse")
    for (arm, seed), curve in CURVES.items():
        with SummaryWriter(str(tmp_path / "runs" / arm / f"seed_{seed}")) as writer:
            for step, value in curve:
                writer.add_scalar("val/acc", value, int(step))
    run_recipe(monkeypatch, tmp_path, "tbparse")
    check(read_elsewhere(tmp_path / "runs.csv"))


def test_the_recipe_for_mlflow_makes_the_table(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    mlflow.set_experiment("digits")
    with mlflow.start_run(run_name="parent"):
        for (arm, seed), curve in CURVES.items():
            with mlflow.start_run(nested=True):
                mlflow.log_params({"init": arm, "seed": seed})
                for step, value in curve:
                    mlflow.log_metric("acc", value, int(step))
    run_recipe(monkeypatch, tmp_path, "mlflow")
    found = read_elsewhere(tmp_path / "runs.csv", "metrics.acc", arm="params.init", seed="params.seed")
    assert finals(found, "metrics.acc") == {key: pytest.approx(curve[-1][1]) for key, curve in CURVES.items()}
    assert re.fullmatch(r"Left out, as they have no value: line \d\.", found.manifest.remarks[-1])


# What becomes of them


def test_the_page_of_a_table_is_the_one_of_a_comparison(tmp_path, capsys, monkeypatch):
    rows = [
        f"{arm},{seed},{step},{60 + gain * step / 20 + seed + 0.1 * gain * (seed % 2)}"
        for arm, gain in (("default", 0.0), ("mimetic", 5.0))
        for seed in range(4)
        for step in (10, 20)
    ]
    path = table(tmp_path, "arm,seed,step,test/accuracy", *rows, name="mine.csv")
    monkeypatch.chdir(tmp_path)
    main(["report", str(path)])
    said = capsys.readouterr().out.splitlines()
    # Percent, as it was given: 5 and 5.5 above the default in two seeds each.
    (row,) = (line for line in said if line.startswith("| mimetic | 4 | "))
    assert "| +5.25 ± 0.46 (4 pairs, better, adjusted p < 0.001) |" in row
    assert said[-1] == f"report: {tmp_path / 'mine_report' / 'report.html'}"
    text = (tmp_path / "mine_report" / "report.md").read_text()
    assert "2 arms, 4 seeds: test accuracy, higher is better." in text
    assert row in text
    assert "Not finished" not in text
    html = (tmp_path / "mine_report" / "report.html").read_text()
    assert '<section id="curves">' in html
    with pytest.raises(StructuredInitError, match="did you mean 'mimetic'"):
        write_report(path, baseline="mimetik")


@pytest.mark.parametrize(("more", "baseline"), [((), "Default"), (("default,0,2", "default,1,4"), "default")])
def test_the_baseline_is_called_default_in_capitals_or_not(tmp_path, more, baseline):
    path = table(tmp_path, "arm,seed,loss", "Mimetic,0,1", "Mimetic,1,3", "Default,0,2", "Default,1,4", *more)
    assert read_elsewhere(path).manifest.baseline == baseline


def test_a_name_with_a_line_break_is_refused(tmp_path):
    path = table(tmp_path, "arm,seed,acc", '"a\nb",0,1')
    with pytest.raises(StructuredInitError, match=r"the name 'a\\nb' has a character that cannot be shown"):
        read_report_data(path, mode="max")


def test_the_present_folder_and_the_one_above_can_be_reported(tmp_path, monkeypatch):
    (tmp_path / "runs" / "inside").mkdir(parents=True)
    for folder, given in ((tmp_path / "runs", "."), (tmp_path / "runs" / "inside", "..")):
        monkeypatch.chdir(folder)
        assert default_page(Path(given)).resolve() == tmp_path / "runs_report" / "report.html"
