"""Runs made elsewhere: tables, TensorBoard's event files, exports of Weights & Biases and MLflow."""

import json
import math
import re
from itertools import product
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger
from torch.utils.tensorboard import SummaryWriter

from comparison.report import write_report
from comparison.report.data import read_report_data
from comparison.report.summary import summary
from comparison.report.writing import default_page
from comparison.results.controls import find_scrambled
from comparison.results.elsewhere import comparison_of, read_elsewhere
from comparison.results.elsewhere.runs import named
from lightning_modules.cli import main
from structured_init import StructuredInitError

# What every reader has to find: two arms, two seeds, two evaluations.
CURVES = {
    (arm, seed): [(10.0, 0.5 + 0.1 * seed), (20.0, final + 0.1 * seed)]
    for arm, final in (("default", 0.6), ("mimetic", 0.7))
    for seed in (0, 1)
}


def check(runs, metric="val/acc"):
    assert {key: logged[metric] for key, logged in runs.items()} == {
        key: [(step, pytest.approx(value)) for step, value in curve] for key, curve in CURVES.items()
    }


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_a_table_has_a_row_per_run_and_step(tmp_path, delimiter):
    rows = [["seed", "Arm", "note", "step", "val/acc"]]
    rows += [[seed, arm, "fine", step, value] for (arm, seed), curve in CURVES.items() for step, value in curve[::-1]]
    text = "\n".join(delimiter.join(map(str, row)) for row in rows)
    check(read_elsewhere(written(tmp_path / "table.csv", "\ufeff" + text)))


def test_a_long_table_names_its_metrics(tmp_path):
    rows = [f"{a},{s},{at},val/acc,{v}" for (a, s), curve in CURVES.items() for at, v in curve]
    check(read_elsewhere(written(tmp_path / "t.csv", "\n".join(["arm,seed,step,metric,value", *rows]))))


def test_a_chart_of_weights_and_biases_has_a_column_per_run(tmp_path):
    names = [f"{arm}_seed{seed}" for arm, seed in CURVES]
    ends = ("val/acc", "val/acc__MIN", "val/acc__MAX", "_step")
    head = ["Step", *(f'"{name} - {end}"' for name in names for end in ends)]
    rows = [
        [str(step), *(str(curve[i][1]) for curve in CURVES.values() for _ in ends)] for i, step in ((0, 10), (1, 20))
    ]
    check(read_elsewhere(written(tmp_path / "chart.csv", "\n".join(map(",".join, [head, *rows])))))


def test_a_chart_is_over_steps_or_epochs(tmp_path):
    rows = ["1,0.5,0.6", "2,0.6,0.7"]
    chart = lambda over: written(tmp_path / "c.csv", "\n".join([f"{over},a_0 - acc,b_0 - acc", *rows]))  # noqa: E731
    for over in ("train/global_step", "epoch"):
        assert read_elsewhere(chart(over))["b", 0]["acc"] == [(1, 0.6), (2, 0.7)]
    with pytest.raises(StructuredInitError, match=r"is a chart over 'Relative Time \(Process\)': export one over"):
        read_elsewhere(chart("Relative Time (Process)"))


def test_of_mlflows_table_runs_that_have_not_ended_are_left_out(tmp_path):
    rows = [f"FINISHED,{0.5 + 0.1 * seed},{arm},{seed}" for arm in "ab" for seed in range(3)]
    rows = [*rows, "FAILED,0.2,a,3", "RUNNING,0.2,b,3", "SCHEDULED,,b,4"]
    path = written(tmp_path / "t.csv", "\n".join(["status,metrics.acc,params.init,params.seed", *rows]))
    runs = read_elsewhere(path, seed="params.seed", arm="params.init")
    assert runs.left_out == {("a", 3): "failed", ("b", 3): "running", ("b", 4): "scheduled"}
    assert len(runs) == 6


def test_the_runs_of_weights_and_biases_are_a_table_by_name(tmp_path):
    text = (
        "Name,State,test/accuracy\nmimetic-seed-3,finished,0.9\nmimetic-seed-4,finished,\ndefault-seed-3,crashed,NaN\n"
        "default-seed-4,running,0.2\n"
    )
    runs = read_elsewhere(written(tmp_path / "export.csv", text))
    assert runs["mimetic", 3] == {"test/accuracy": [(None, 0.9)]}
    assert math.isnan(runs["default", 3]["test/accuracy"][0][1])
    assert set(runs) == {("mimetic", 3), ("default", 3)}
    assert runs.left_out == {("default", 4): "running"}


def test_runs_that_did_not_end_as_they_should_are_named(tmp_path):
    rows = ["arm,seed,State,val/acc"] + [f"{arm},{seed},finished,0.{seed + 5}" for arm in "ab" for seed in range(3)]
    rows[1], rows[4] = "a,0,crashed,0.1", "b,0,failed,NaN"  # stopped by something else; diverged
    path = written(tmp_path / "export.csv", "\n".join(rows))
    found = comparison_of(path, read_elsewhere(path))
    assert found.manifest["remarks"] == ["Left out, as their state is 'crashed': a seed 0."]
    assert len(found.runs) == 5
    steps = [f"{arm},{seed},{step},0.{step}" for arm in "ab" for seed in range(3) for step in (1, 2, 3)]
    steps.remove("b,2,3,0.3")
    path = written(tmp_path / "steps.csv", "\n".join(["arm,seed,step,val/acc", *steps]))
    found = comparison_of(path, read_elsewhere(path))
    assert len(found.runs) == 5
    (remark,) = found.manifest["remarks"]
    assert remark.startswith("Ended early and left out: b seed 2, at step 2 where most runs end at 3.")
    path.write_text("\n".join(["arm,seed,step,val/acc", *steps, "b,2,3,0.3"]))
    assert comparison_of(path, read_elsewhere(path)).manifest["remarks"] == []


@pytest.mark.parametrize("shape", ["lines", "columns", "one file"])
def test_histories_of_weights_and_biases_are_json_of_several_shapes(tmp_path, shape):
    histories = {
        key: [{"_step": step, "_runtime": 1.5, "val/acc": value, "epoch_name": "x"} for step, value in curve]
        for key, curve in CURVES.items()
    }
    if shape == "one file":
        content = {f"{arm}/{seed}": rows for (arm, seed), rows in histories.items()}
        return check(read_elsewhere(written(tmp_path / "all.json", json.dumps(content))))
    for (arm, seed), rows in histories.items():
        columns = {name: {str(i): row[name] for i, row in enumerate(rows)} for name in rows[0]}
        text = {"lines": "\n".join(map(json.dumps, rows)), "columns": json.dumps(columns)}
        written(tmp_path / "wandb" / arm / f"seed_{seed}.json{'l' if shape == 'lines' else ''}", text[shape])
    return check(read_elsewhere(tmp_path / "wandb"))


@pytest.mark.parametrize(
    ("name", "pattern", "settings", "expected"),
    [
        ("mimetic_seed_0", None, {}, ("mimetic", 0)),
        ("seed=12/mimetic/version_3", None, {}, ("mimetic", 12)),
        ("vit-b16-s4", None, {}, ("vit-b16", 4)),
        ("a/7/junk", "{arm}/{seed}/*", {}, ("a", 7)),
        ("bold-crab", None, {"trainer.seed": "5", "arm": "mimetic"}, ("mimetic", 5)),
        # What looks like a seed and is none.
        ("mimetic_alpha_0.3", None, {"seed": "3"}, ("mimetic_alpha_0.3", 3)),
        # What may be one of two, beside a setting that is.
        ("mimetic_20251125", None, {"seed": "3"}, ("mimetic", 3)),
        ("mimetic/version_3", None, {"seed": "5"}, ("mimetic", 5)),
    ],
)
def test_names_and_settings_tell_arm_and_seed(name, pattern, settings, expected):
    assert named(name, pattern, settings) == expected


def test_what_tells_no_seed_and_a_setting_that_is_not_there_are_refused():
    for name in ("mimetic_alpha_0.3", "mimetic_2025-11-25"):  # a decimal and a date
        with pytest.raises(StructuredInitError, match="cannot tell the arm and the seed of the run 'mimetic_"):
            named(name)
    assert named("fish", None, {"init.class_path": "mimetic", "run": "4"}, "run", "init") == ("mimetic", 4)
    with pytest.raises(StructuredInitError, match=r"is called 'init': there are model\.init and head\.init"):
        named("fish", None, {"model.init": "mimetic", "head.init": "zero", "seed": "4"}, arm="init")


def test_the_training_and_the_validation_row_of_a_step_are_not_one_row_twice(tmp_path):
    text = "arm,seed,epoch,learning_rate,step,loss,eval_loss\n" + "".join(
        f"{arm},{seed},0.5,3e-05,4,0.69,\n{arm},{seed},0.5,,4,,0.{seed + 1}\n" for arm in "ab" for seed in (0, 1)
    )
    read = read_elsewhere(written(tmp_path / "trainer.csv", text))
    assert read["a", 1] == {"loss": [(4, 0.69)], "learning_rate": [(4, 3e-05)], "eval_loss": [(4, 0.2)]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms,seed,acc\na,0,1\n", r"no column 'arm': name it with --arm, did you mean 'arms'\?"),
        ("seed,host,box\n0,0.81,0.8\n1,0.8,\n", "no column 'arm': a table has the columns arm, seed and a metric"),
        ("arm,seed,acc\na,x,1\n", "line 2: the seed 'x' is not a whole number"),
        (
            "arm,seed,acc\na,0,0.5\na,1,0.4\nb,0,high\n",
            "line 4: 'high' in the column 'acc' is not a number: leave out the row",
        ),
        ("arm,seed,acc\na,0,1\na,0,2\n", "lines 2 and 3: arm 'a', seed 0 occurs twice: add a column 'step', keep one"),
        (
            "arm,seed,lr,of,acc\na,0,0.1,x,1\na,0,0.2,y,3\na,1,0.1,x,4\na,1,0.2,y,2\n",
            "lines 2 and 3: arm 'a', seed 0 occurs twice: add .*, or make a table for each value of another setting",
        ),
        ("arm,seed,note\na,0,x\n", "no column of numbers beside arm, seed"),
        ("arm,seed,acc\na,0\n", "line 2: 2 cells, but the header has 3"),
        ("arm,seed,acc\n,0,1\n", "line 2: the arm is empty"),
        ("Name,acc\na_0,1\na-0,2\n", "arm 'a', seed 0 occurs twice"),
        ("Name,acc\ncrab,1\n", "cannot tell the arm and the seed of the run 'crab': name runs as in mimetic_seed_0"),
    ],
)
def test_mistakes_in_a_table_are_one_line_with_the_place(tmp_path, text, message):
    path = written(tmp_path / "table.csv", text)
    with pytest.raises(StructuredInitError, match=message) as error:
        comparison_of(path, read_elsewhere(path))
    assert "\n" not in str(error.value)


def test_other_mistakes_name_what_would_be_right(tmp_path):
    path = written(tmp_path / "table.csv", "arm,seed,loss,acc\na,0,1,2\nb,0,2,1\n")
    runs = read_elsewhere(path)
    latin = tmp_path / "latin.csv"
    latin.write_bytes("arm,seed,acc\né,0,1\n".encode("latin-1"))
    two = written(tmp_path / "two.json", json.dumps({"a_0": [{"x": 1}], "a-0": [{"x": 1}]}))
    written(tmp_path / "many" / "a.csv", "step,loss\n1,2\n")
    assert comparison_of(path, runs, "loss").manifest["mode"] == "min"
    for call, message in (
        (lambda: read_elsewhere(tmp_path / "tabel.csv"), r"did you mean 'table.csv'\?"),
        (lambda: read_elsewhere(written(tmp_path / "table.txt", "x")), "cannot be read as results: give the"),
        (lambda: comparison_of(path, runs), "several metrics, 'loss', 'acc': choose one with --metric"),
        (lambda: comparison_of(path, runs, "los"), "no metric 'los': did you mean 'loss'"),
        (lambda: read_elsewhere(path, "{arm}"), r"has to have \{arm\} and \{seed\} once each"),
        (lambda: read_elsewhere(path, arm="inti"), "no column 'inti'"),
        (lambda: read_elsewhere(latin), r"latin.csv' is not UTF-8 text"),
        (lambda: read_elsewhere(two), "'a_0' and 'a-0' are both arm 'a', seed 0"),
        (lambda: read_elsewhere(tmp_path / "many"), "holds tables: give one of them, or put them into one"),
    ):
        with pytest.raises(StructuredInitError, match=message):
            call()


def test_the_page_of_a_table_is_the_one_of_a_comparison(tmp_path, capsys, monkeypatch):
    rows = ["arm,seed,step,test/accuracy"]
    for arm, gain in (("default", 0.0), ("mimetic", 5.0)):
        for seed in range(4):
            rows += [
                f"{arm},{seed},{step},{60 + gain * step / 20 + seed + 0.1 * gain * (seed % 2)}" for step in (10, 20)
            ]
    table = written(tmp_path / "mine.csv", "\n".join(rows))
    monkeypatch.chdir(tmp_path)
    main(["report", str(table)])
    said = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    (verdict,) = (line for line in said if line.startswith("mimetic is better than default: +5.25 ± 0.46 points"))
    (page,) = (line for line in said if line.endswith("mine_report/report.html"))
    assert said.index(verdict) < said.index(page)
    written_there = [each for each in (tmp_path / "mine_report").rglob("*") if each.is_file()]
    assert said[-2:] == [f"{len(written_there)} files in {tmp_path / 'mine_report'}, figures in figures/", page]
    text = (tmp_path / "mine_report" / "report.md").read_text()
    assert "2 arms of" in text
    # Percent, as it was given: 5 and 5.5 above the default in two seeds each.
    assert "Better than default: mimetic +5.25 ± 0.46 points" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "read once" not in text
    assert "Not finished" not in text
    html = (tmp_path / "mine_report" / "report.html").read_text()
    assert "2 arms compared" in html
    assert '<section id="curves">' in html
    with pytest.raises(StructuredInitError, match="did you mean 'mimetic'"):
        write_report(table, baseline="mimetik")


def test_a_control_of_a_table_is_scrambled_where_its_name_says_so(tmp_path):
    rows = [
        f"{arm},{seed},{value + 0.01 * seed}"
        for arm, value in {"default": 0.5, "mine": 0.7, "mine_scrambled": 0.6}.items()
        for seed in range(3)
    ]
    path = written(tmp_path / "table.csv", "\n".join(["arm,seed,test/accuracy", *rows]))
    data = read_report_data(path, controls={"mine": "mine_scrambled"})
    assert (data.controls, data.scrambled) == ({}, {"mine": "mine_scrambled"})
    data = read_report_data(path, controls={"mine": "default"})
    assert (data.controls, data.scrambled) == ({"mine": "default"}, {"mine": "mine_scrambled"})
    assert "same positions" not in " ".join(summary(data))  # whatever it has: nobody says that of a table


def test_controls_of_a_table_are_found_by_the_names_of_its_arms(tmp_path):
    values = {"default": 0.5, "mine": 0.7, "mine_positions": 0.55, "mine_scrambled": 0.6, "other_scrambled": 0.6}
    rows = [f"{arm},{seed},{value + 0.01 * seed}" for arm, value in values.items() for seed in range(3)]
    path = written(tmp_path / "table.csv", "\n".join(["arm,seed,test/accuracy", *rows]))
    data = read_report_data(path)
    assert (data.controls, data.scrambled) == ({"mine": "mine_positions"}, {"mine": "mine_scrambled"})
    assert [arm.name for arm in data.effects[0].arms if arm.is_control] == ["mine_positions", "mine_scrambled"]


@pytest.mark.parametrize("value", ["", "NaN"])
def test_a_run_of_a_table_without_its_value_ended_without_a_number_for_report_and_judge(tmp_path, capsys, value):
    rows = [
        f"{arm},{seed},0.{5 + seed}" for arm in ("default", "new") for seed in range(5) if (arm, seed) != ("new", 4)
    ]
    path = written(tmp_path / "t.csv", "\n".join(["arm,seed,test accuracy", *rows, f"new,4,{value}"]))
    assert "Diverged: new in 1 of 5 seeds" in " ".join(summary(read_report_data(path)))
    with pytest.raises(SystemExit):
        main(["judge", str(path)])
    assert "discard new: it has no number in 1 of 5 seeds" in capsys.readouterr().out


def test_percent_signs_and_decimal_commas_are_numbers(tmp_path):
    text = "arm;seed;test accuracy\na;0;60,5 %\na;1;61%\nb;0;62,25\nb;1;63\n"
    found = comparison_of(tmp_path / "t.csv", read_elsewhere(written(tmp_path / "t.csv", text)))
    assert found.results["test accuracy"].tolist() == pytest.approx([0.605, 0.61, 0.6225, 0.63])


def csv_logs(folder, settings):
    """What Lightning's CSVLogger writes, for runs with these settings: arm, seed, hparams."""
    for number, (arm, seed, hparams) in enumerate(settings):
        logger = CSVLogger(folder, name="lightning_logs", version=number)
        logger.log_hyperparams(hparams)
        for step, value in CURVES[arm, seed]:
            logger.log_metrics({"train/loss": 1 - value}, step=int(step) - 1)
            logger.log_metrics({"val/acc": value, "epoch": step / 10 - 1}, step=int(step))
        logger.save()
    return folder / "lightning_logs"


@pytest.mark.parametrize(
    ("hparams", "arms"),
    [
        (
            lambda arm, seed: {"init": arm, "seed": seed, "lr": 0.1},
            {"default": "init=default", "mimetic": "init=mimetic"},
        ),
        # What is different in every run, or with every seed, is no arm; nor is what goes with the arm another one.
        (
            lambda arm, seed: {
                **{"model": {"class_path": f"mine.{arm}", "size": (1, 2)}, "name": f"{arm}{seed}", "split": seed + 7},
                **{"seed_everything": seed, "scale": len(arm)},
            },
            {"default": "default", "mimetic": "mimetic"},
        ),
        (  # the rate goes with the optimizer
            lambda arm, seed: {"lr": 1e-3 + (arm == "mimetic"), "optimizer": arm, "seed": seed},
            {"default": "optimizer=default", "mimetic": "optimizer=mimetic"},
        ),
    ],
)
def test_lightnings_csv_logs_are_read_by_what_differs_in_their_settings(tmp_path, hparams, arms):
    runs = csv_logs(tmp_path, [(arm, seed, hparams(arm, seed)) for arm, seed in CURVES])
    found = read_elsewhere(runs)
    names = {label: arm for arm, label in arms.items()}
    check({(names[arm], seed): logged for (arm, seed), logged in found.items()})


def test_folders_of_arms_and_seeds_name_the_arms_before_the_classes_of_their_initializers(tmp_path):
    classes = {"Default": "default", "FilterCovariance": "covariance", "Scrambled": "covariance_scrambled"}
    for (kind, arm), seed in product(classes.items(), range(3)):
        folder = tmp_path / "logs" / arm / f"seed_{seed}"
        written(folder / "metrics.csv", f"step,test/loss\n9,{1 + seed / 10}\n")
        written(folder / "hparams.yaml", f"seed: {seed}\ninit:\n  class_path: structured_init.{kind}\n")
    found = comparison_of(tmp_path / "logs", read_elsewhere(tmp_path / "logs"))
    assert set(found.manifest["arms"]) == {*classes.values()}
    assert found.manifest["baseline"] == "default"
    assert find_scrambled(found.manifest, found.runs) == {"covariance": "covariance_scrambled"}
    rows = "arm,seed,test/loss\nMimetic,0,1\nMimetic,1,3\nDefault,0,2\nDefault,1,4\n"
    table = tmp_path / "table.csv"
    for more, baseline in (("", "Default"), ("default,0,2\ndefault,1,4\n", "default")):
        written(table, rows + more)
        assert comparison_of(table, read_elsewhere(table)).manifest["baseline"] == baseline


def test_the_folders_that_fit_and_test_wrote_of_a_run_are_one_run(tmp_path):
    for version, (name, step, value) in enumerate([("val/loss", 9, 0.7), ("test/loss", 9, 0.8)]):
        (folder := tmp_path / f"version_{version}").mkdir()
        written(folder / "hparams.yaml", "seed: 3\nwidth: 8\n")
        written(folder / "metrics.csv", f"epoch,step,{name}\n0,{step},{value}\n")
    assert list(read_elsewhere(tmp_path).values()) == [{"val/loss": [(9.0, 0.7)], "test/loss": [(9.0, 0.8)]}]


def test_lightnings_folders_tell_arm_and_seed_where_settings_do_not(tmp_path):
    for (arm, seed), curve in CURVES.items():
        lines = [f"{step},{value}" for step, value in curve]
        written(tmp_path / arm / f"version_{seed}" / "metrics.csv", "\n".join(["step,val/acc", *lines, "2"]))
        written(tmp_path / arm / f"version_{seed}" / "hparams.yaml", "draw: &a [1, 2]\nf: !!python/name:os.system ''\n")
    with pytest.raises(
        StructuredInitError, match=r"cannot tell the seed of .*default/version_0': no setting is called"
    ):
        read_elsewhere(tmp_path)
    check(read_elsewhere(tmp_path, "{arm}/version_{seed}"))


def test_hyperparameters_that_tensorboard_has_are_no_runs_of_their_own(tmp_path):
    for (arm, seed), curve in CURVES.items():
        with SummaryWriter(str(tmp_path / f"run_{arm}" / f"seed_{seed}")) as writer:
            for step, value in curve:
                writer.add_scalar("val/acc", value, int(step))
            writer.add_hparams({"lr": 0.1, "init": arm}, {"val/acc": curve[-1][1], "best": 0.9})
    found = read_elsewhere(tmp_path)
    check({(arm.removeprefix("run_"), seed): logged for (arm, seed), logged in found.items()})
    check(read_elsewhere(tmp_path, arm="init"))


def test_mlflows_files_are_read_without_mlflow(tmp_path):
    for number, ((arm, seed), curve) in enumerate(CURVES.items()):
        run = tmp_path / "mlruns" / "17" / f"{number:032x}"
        written(run / "meta.yaml", f"run_name: {arm}_{seed}\nlifecycle_stage: active\n")
        written(run / "metrics" / "val" / "acc", "".join(f"1700000000000 {v} {at:.0f}\n" for at, v in curve))
    check(read_elsewhere(tmp_path / "mlruns"))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a_0.json", "[" * 200_000, "recursion"),
        ("t.csv", 'arm,seed,acc\n"a\nb",0,1\n', r"the name 'a\\nb' has a character that cannot be shown"),
        ("t.csv", f"arm,seed,acc\na,{'9' * 400},1\n", "line 2: the seed '9+' is not a whole number"),
    ],
    ids=["deep", "line break", "400 digits"],
)
def test_what_no_table_can_hold_is_one_line(tmp_path, name, text, said):
    path = written(tmp_path / name, text)
    with pytest.raises(StructuredInitError, match=said) as error:
        read_report_data(path, mode="max")
    assert len(str(error.value)) < 1_000


def test_the_present_folder_and_the_one_above_can_be_reported(tmp_path, monkeypatch):
    (tmp_path / "runs" / "inside").mkdir(parents=True)
    for folder, given in ((tmp_path / "runs", "."), (tmp_path / "runs" / "inside", "..")):
        monkeypatch.chdir(folder)
        assert default_page(Path(given)).resolve() == tmp_path / "runs_report" / "report.html"


def steps(tmp_path, ends, empty=(), name="runs.csv"):
    """Write a table of losses at steps 1 to the end of each run, whose last cell is empty for some."""
    lines = ["arm,seed,step,train_loss,val_loss"]
    for (arm, seed), end in ends.items():
        for step in range(1, end + 1):
            value = "" if (arm, seed) in empty and step == end else f"{1 / step + 0.01 * seed:.4f}"
            lines.append(f"{arm},{seed},{step},1.0,{value}")
    (tmp_path / name).write_text("\n".join(lines))
    return tmp_path / name


def test_cells_that_end_empty_where_others_have_a_value_are_nan_as_pandas_writes_it(tmp_path, capsys):
    ends = {(arm, seed): 4 for arm in ("default", "better") for seed in range(5)}
    path = steps(tmp_path, ends, empty={("better", 1), ("better", 3)})
    found = comparison_of(path, read_elsewhere(path), "val_loss")
    assert [(run.arm, run.seed) for run in found.runs if run.diverged(["val_loss"])] == [("better", 1), ("better", 3)]
    [remark] = found.manifest["remarks"]
    assert remark.startswith(
        "No number in val_loss, as pandas writes NaN: better seed 1 from step 4 on, better seed 3 from"
    )
    with pytest.raises(SystemExit):
        main(["judge", str(path), "--metric", "val_loss", "--margin", "0.01"])
    assert "discard better: it has no number in 2 of 5 seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shape", "lost", "often"),
    [
        *((shape, {("b", 1), ("b", 3)}, True) for shape in ("wide", "long", "long without steps", "json")),
        ("wide", {("b", seed) for seed in range(5)}, False),  # logged at the end alone, and never by this arm
    ],
)
def test_a_run_whose_metric_is_empty_at_its_end_diverged_in_every_shape_of_a_table(tmp_path, shape, lost, often):
    runs = [(arm, seed) for arm in ("default", "b") for seed in range(5)]
    cells = {
        (run, step): 2 + run[1] if (often or step == 4) and not (step == 4 and run in lost) else None
        for run in runs
        for step in range(1, 5)
    }
    text = lambda value: "" if value is None else str(value)  # noqa: E731
    lines = {
        "wide": ["arm,seed,step,train_acc,test_ppl"]
        + [f"{arm},{seed},{step},0.5,{text(value)}" for ((arm, seed), step), value in cells.items()],
        "long": ["arm,seed,step,metric,value"]
        + [f"{a},{s},{step},test_ppl,{text(value)}" for ((a, s), step), value in cells.items()]
        + [f"{a},{s},{step},train_acc,0.5" for (a, s), step in cells],
        "long without steps": ["arm,seed,metric,value"]
        + [f"{a},{s},test_ppl,{text(value)}" for ((a, s), step), value in cells.items() if step == 4],
    }
    histories = {
        f"{run[0]}_{run[1]}": [{"_step": at, "test_ppl": cells[run, at], "train_acc": 0.5} for at in range(1, 5)]
        for run in runs
    }
    content = json.dumps(histories) if shape == "json" else "\n".join(lines[shape])
    path = written(tmp_path / ("t.json" if shape == "json" else "t.csv"), content)
    found = comparison_of(path, read_elsewhere(path), "test_ppl")
    assert {(run.arm, run.seed) for run in found.runs if run.diverged(["test_ppl"])} == lost
    said = " ".join(found.manifest["remarks"])
    assert ("b seed 1 from step 4 on, " in said) == (shape != "long without steps")


@pytest.mark.parametrize("case", ["padded", "final evaluation", "auxiliary", "absent"])
def test_what_is_usual_in_one_arm_makes_no_run_of_another_diverge(tmp_path, case):
    wide, long = ["arm,seed,step,aux_loss,train_loss,val_acc"], ["arm,seed,step,metric,value"]
    for arm, seed, step in ((arm, seed, step) for arm in ("a", "b") for seed in range(3) for step in range(1, 7)):
        late = arm == "b" and step > 3
        loss, accuracy = 1 / step, 0.5 + seed / 10
        cells = {
            "padded": ("", "", "") if late else ("", loss, accuracy),  # as of a table that was pivoted
            "final evaluation": ("", loss if step < 6 or arm == "a" else "", accuracy),
            "auxiliary": ("" if late else loss, loss, accuracy),
        }
        wide.append(f"{arm},{seed},{step},{','.join(map(str, cells.get(case, ())))}")
        long += [f"{arm},{seed},{step},val_acc,{accuracy}"] if arm == "a" or step < 6 else []
        long += [f"{arm},{seed},{step},train_loss,{loss}"]
    path = written(tmp_path / "t.csv", "\n".join(long if case == "absent" else wide))
    found = comparison_of(path, read_elsewhere(path), "val_acc")
    assert not found.results["diverged"].any()
    assert not [remark for remark in found.manifest["remarks"] if "No number" in remark]


def test_runs_that_end_early_are_named_and_not_judged(tmp_path, capsys):
    path = steps(tmp_path, {(arm, seed): 4 for arm in ("default", "b") for seed in range(6)} | {("b", 2): 2})
    with pytest.raises(SystemExit):
        main(["judge", str(path), "--metric", "val_loss", "--margin", "0.01"])
    said = capsys.readouterr().err
    assert "Ended early and left out: b seed 2, at step 2 where most runs end at 4. Run it to the end" in said
    [pair] = json.loads((tmp_path / "runs.csv.judged.json").read_text())["pairs"]
    assert [seed for seed, *_ in pair["seen"]] == [0, 1, 3, 4, 5]


def test_a_run_that_never_logged_the_metric_is_named_and_not_judged(tmp_path, capsys):
    """As ``test/accuracy``, which is logged at the end alone."""
    lines = ["arm,seed,step,val/accuracy,test/accuracy"]
    for arm, seed in ((arm, seed) for arm in ("default", "b") for seed in range(6)):
        end = 6 if (arm, seed) == ("b", 2) else 10
        lines += [f"{arm},{seed},{step},0.5,{0.5 + 0.01 * seed if step == 10 else ''}" for step in range(1, end + 1)]
    path = written(tmp_path / "t.csv", "\n".join([*lines, "c,0,1,0.5,"]))  # c has just begun
    said = "Left out, as they logged no test/accuracy: b seed 2, c seed 0."
    data = read_report_data(path, metric="test/accuracy")
    assert (list(data.manifest["arms"]), data.manifest["remarks"]) == (["default", "b"], [said])
    with pytest.raises(SystemExit):
        main(["judge", str(path), "--metric", "test/accuracy", "--margin", "0.01"])
    assert said in capsys.readouterr().err
    [pair] = json.loads((tmp_path / "t.csv.judged.json").read_text())["pairs"]
    assert [seed for seed, *_ in pair["seen"]] == [0, 1, 3, 4, 5]


def test_arms_that_end_at_different_steps_are_named(tmp_path):
    ends = {("default", seed): 8 for seed in range(3)} | {("b", seed): 4 for seed in range(3)}
    path = steps(tmp_path, ends)
    found = comparison_of(path, read_elsewhere(path), "val_loss")
    assert found.manifest["remarks"][0].startswith("Runs do not end at the same step: default at 8; b at 4.")
    assert len(found.runs) == 6


@pytest.mark.parametrize("loss", ["train_loss_epoch", "Test NLL"])
def test_an_accuracy_of_a_run_whose_loss_is_lost_does_not_count(tmp_path, capsys, loss):
    rows = [
        f"{arm},{seed},{'nan' if (arm, seed) == ('b', 1) else 0.5},0.{70 + seed}"
        for arm in ("default", "b")
        for seed in range(5)
    ]
    (tmp_path / "t.csv").write_text("\n".join([f"arm,seed,{loss},val_acc", *rows]))
    with pytest.raises(SystemExit):
        main(["judge", str(tmp_path / "t.csv"), "--metric", "val_acc", "--margin", "1"])
    assert "discard b: it has no number in 1 of 5 seeds" in capsys.readouterr().out


def test_a_table_of_epochs_has_them_as_steps_where_runs_have_several(tmp_path):
    path = steps(tmp_path, {(arm, seed): 3 for arm in ("default", "b") for seed in range(3)})
    path.write_text(path.read_text().replace("step", "epoch"))
    assert [step for step, _ in read_elsewhere(path)["b", 1]["val_loss"]] == [1, 2, 3]
    path.write_text(re.sub(r"(b,1,3,1\.0,).*", r"\1", path.read_text()))
    [remark] = comparison_of(path, read_elsewhere(path), "val_loss").manifest["remarks"]
    assert "b seed 1 from epoch 3 on" in remark
