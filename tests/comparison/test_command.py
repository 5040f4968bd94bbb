"""The command ``compare``, with an experiment of seconds; runs are trained in this process, one after the other."""

import dataclasses
import json
import math
import os
import re
import socket
import sys

import numpy as np
import pytest
from PIL import Image

from comparison.command import comparing
from comparison.report.data import read_report_data
from comparison.report.panels.runs import initializations
from comparison.report.writing import record
from comparison.results.controls import find_controls, find_scrambled
from comparison.results.folder import Run, find_runs, read_manifest
from comparison.results.records import load_results
from comparison.run.run import train
from lightning_modules.cli import main
from structured_init.errors import one_line

QUICK = ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]


class Here:
    """A launcher that trains in this process; a run of a seed in ``failing`` fails."""

    places = 1
    failing: set = set()  # noqa: RUF012
    trained: list = []  # noqa: RUF012

    def __init__(self, *_):
        self._ended = []

    def free(self):
        return not self._ended

    def start(self, run):
        Here.trained.append((run.arm, run.seed, run.learning_rate))
        if run.seed in Here.failing:
            self._ended.append((run, run.write_failure("no luck")))
            return
        train(run)
        run.failure_file.unlink(missing_ok=True)
        self._ended.append((run, None))

    def wait(self, seconds):
        ended, self._ended = self._ended, []
        return ended

    def close(self):
        pass


@pytest.fixture
def reports(monkeypatch):
    """Leave the report out, which takes longer than the small runs; give what a test calls to have it again."""
    written = comparing._report
    monkeypatch.setattr(comparing, "_report", lambda *_: None)
    return lambda: monkeypatch.setattr(comparing, "_report", written)


@pytest.fixture
def compare(folder, monkeypatch, reports):
    """Run ``structured-init compare`` on the small experiment."""
    monkeypatch.setattr(comparing, "LocalLauncher", Here)
    monkeypatch.setattr(Here, "failing", set())
    monkeypatch.setattr(Here, "trained", [])

    def run(*arguments, output="out"):
        given = ["-c", "tiny.yaml", "--output", output, *QUICK, *arguments]
        return main(["compare", *given])

    return run


def results(folder):
    return {
        (result["arm"], result["seed"], result["learning_rate"]): result["metrics"]
        for path in folder.glob("runs/**/result.json")
        for result in [json.loads(path.read_text())]
    }


def test_a_comparison_ends_with_its_table_and_report_and_is_not_repeated(compare, folder, capsys, reports):
    reports()
    compare("--inits", "default,sincos", "--seeds", "0,1")
    said = capsys.readouterr().out
    assert results(folder / "out").keys() == {(arm, seed, None) for arm in ("default", "sincos") for seed in (0, 1)}
    assert "[4/4] sincos, seed 1: test/accuracy" in said
    assert "| sincos | 2 |" in said
    assert "report: out/report.html" in said
    assert (folder / "out" / "report.html").is_file()
    manifest = json.loads((folder / "out" / "comparison.json").read_text())
    assert (manifest["metric"], manifest["mode"], manifest["baseline"]) == ("test/accuracy", "max", "default")
    assert manifest["command"].startswith("structured-init compare -c tiny.yaml --output out")
    (folder / "out" / "report.html").unlink()
    main(["report", "out"])
    assert (folder / "out" / "report.html").is_file()


def test_a_threshold_is_kept_in_its_folder_until_it_is_withdrawn_and_few_seeds_are_said_first(compare, folder, capsys):
    kept = lambda: json.loads((folder / "out" / "comparison.json").read_text()).get("success")  # noqa: E731
    compare("--inits", "default,sincos", "--seeds", "0,1", "--success", "0.5")
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("seeds: 2 seeds can show large differences alone: run at least 5, as in --seeds 0-4")
    assert kept() == 0.5
    compare("--inits", "default,sincos", "--seeds", "0,1")
    assert "success: --success 0.5 is kept from before; --success none withdraws it" in capsys.readouterr().out
    assert kept() == 0.5
    compare("--inits", "default,sincos", "--seeds", "0,1", "--success", "none")
    assert "kept from before" not in capsys.readouterr().out
    assert kept() is None
    compare("--inits", "default", "--seeds", "0")
    said = "kept from before: initializations sincos; seeds 1; another --output begins without them"
    assert said in capsys.readouterr().out


def test_class_folders_without_a_test_split_are_compared_on_validation(compare, complaint, folder):
    for label, kind in enumerate("ab"):
        (folder / "tiles" / "train" / kind).mkdir(parents=True)
        for number in range(12):
            pixels = np.random.default_rng(number).integers(0, 100, (8, 8)) + 100 * label
            Image.fromarray(pixels.astype("uint8")).save(folder / "tiles" / "train" / kind / f"{number}.png")
    words = ["--inits", "default", "--grid", "model.init_args.label_smoothing=0,0.1", "--seeds", "0"]
    words += ["--data.init_args", "{name: tiles, fraction: 1.0, test_fraction: 1.0, val_fraction: 0.25, batch_size: 4}"]
    said = complaint(compare, *words)
    assert "has no split to test on, and the metric is 'test/accuracy': give --metric val/accuracy" in said
    compare(*words, "--metric", "val/accuracy")
    found = [json.loads(path.read_text())["metrics"] for path in (folder / "out").glob("runs/**/result.json")]
    assert [set(each) for each in found] == [{"val/accuracy", "val/loss"}] * 2


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        (lambda name: name.replace("test/", "eval/"), "logs no 'test/…': a comparison reads what a module logs as"),
        (lambda name: name.replace("test/accuracy", "test/acc"), "no 'test/accuracy': choose from test/acc, test/loss"),
    ],
)
def test_a_metric_that_a_module_does_not_log_is_told_after_the_first_run(
    compare, complaint, monkeypatch, renamed, message
):
    read = Run.latest

    def latest(run):
        found = read(run)
        metrics = {renamed(name): value for name, value in (found.result or {"metrics": {}})["metrics"].items()}
        return (
            found if found.result is None else dataclasses.replace(found, result={**found.result, "metrics": metrics})
        )

    monkeypatch.setattr(Run, "latest", latest)
    said = complaint(compare, "--inits", "default,sincos", "--seeds", "0")
    assert message in said
    assert len(Here.trained) == 1  # the second run is not trained for it
    assert message in complaint(compare, "--inits", "default", "--seeds", "0")  # all are complete


def test_a_comparison_that_grows_trains_what_is_new_alone(compare, folder):
    compare("--inits", "default,sincos", "--seeds", "0")
    Here.trained.clear()
    compare("--inits", "default,sincos,mine=sincos{gain=0.5}", "--seeds", "0")
    assert Here.trained == [("mine", 0, None)]
    grown = json.loads((folder / "out" / "comparison.json").read_text())
    assert list(grown["arms"]) == ["default", "sincos", "mine"]
    assert grown["arms"]["mine"]["changes"]["init.initializer.gain"] == 0.5


def test_controls_are_added_to_what_is_structured_and_found_in_the_folder(compare, folder, capsys):
    compare("--inits", "default,sincos,mimetic_host", "--seeds", "0", "--controls", "auto")
    said = capsys.readouterr().out
    assert "controls: sincos is the same-positions control of mimetic_host" in said
    manifest, runs = read_manifest(folder / "out"), find_runs(folder / "out")
    assert list(manifest["arms"]) == [
        "default",
        "sincos",
        "mimetic_host",
        "mimetic_host_scrambled",
        "mimetic_host_sharpened",
    ]
    assert find_scrambled(manifest, runs) == {"mimetic_host": "mimetic_host_scrambled"}
    assert find_controls(manifest, runs)["mimetic_host"] == "sincos"
    inner = initializer_report(folder, "mimetic_host")["initializer"]
    made = initializer_report(folder, "mimetic_host_scrambled")["initializer"]
    assert made.startswith(f"Scrambled(initializer={inner}, ")
    (written,) = record(read_report_data(folder / "out"))["effects"]
    beside = [(each["arm"], each["reference"]) for each in written["to_further_controls"]]
    assert beside == [("mimetic_host", "mimetic_host_sharpened")]
    assert "Its same-positions control is sincos." in initializations(read_report_data(folder / "out")).markdown
    named = read_report_data(folder / "out", controls={"mimetic_host": "sincos"})  # of which nobody knows what it keeps
    assert "Its control is sincos." in initializations(named).markdown


def initializer_report(folder, arm):
    return json.loads((folder / "out" / "runs" / arm / "seed_0" / "init_report.json").read_text())


def test_a_failing_run_stops_no_other_and_is_tried_again(compare, folder, capsys):
    Here.failing = {0}
    with pytest.raises(SystemExit) as stop:
        compare("--inits", "default", "--seeds", "0,1")
    assert stop.value.code == 1
    assert results(folder / "out").keys() == {("default", 1, None)}
    failed = folder / "out" / "runs" / "default" / "seed_0.failed.json"
    assert json.loads(failed.read_text())["reason"] == "no luck"
    assert "  default, seed 0: no luck" in capsys.readouterr().out
    Here.failing = set()
    compare("--inits", "default", "--seeds", "0,1")
    assert not failed.exists()
    assert len(results(folder / "out")) == 2


@pytest.mark.filterwarnings("ignore:(attention|representations|filters)")
def test_a_run_that_diverges_is_complete_with_what_it_gave_and_is_not_tried_again(compare, folder, monkeypatch):
    diverging = ["--inits", "default", "--seeds", "0", "--model.init_args.optimizer.init_args.lr", "1e30"]
    for _ in range(2):
        compare(*diverging)
    assert Here.trained == [("default", 0, None)]
    ((_, metrics),) = results(folder / "out").items()
    assert math.isnan(metrics["test/loss"])
    assert not list(folder.glob("out/runs/**/*.failed.json"))


def test_the_learning_rate_is_chosen_on_validation_and_only_its_test_split_is_read(compare, folder, capsys):
    compare("--inits", "default", "--seeds", "0,1", "--learning-rates", "1e-30,0.01", "--metric", "test/loss")
    found = results(folder / "out")
    assert len(found) == 4
    means = {rate: sum(found["default", seed, rate]["val/loss"] for seed in (0, 1)) / 2 for rate in (1e-30, 0.01)}
    best = min(means, key=means.get)
    said = capsys.readouterr().out
    assert "learning rates [4/4] default" in said
    assert "test split: 2 runs" in said
    assert "test split [2/2] default" in said  # a count that begins anew, by its name
    choices = json.loads((folder / "out" / "learning_rates.json").read_text())
    assert choices[""]["default"]["chosen"] == best
    assert choices[""]["default"]["validation"][repr(best)] == [
        found["default", seed, best]["val/loss"] for seed in (0, 1)
    ]
    assert {rate for (_, _, rate), metrics in found.items() if "test/loss" in metrics} == {best}
    assert json.loads((folder / "out" / "comparison.json").read_text())["mode"] == "min"


def test_a_folder_that_grows_chooses_among_all_of_its_learning_rates_and_seeds(compare, folder, monkeypatch):
    value = {(1e-3, 0): 0.7, (1e-2, 0): 0.6, (1e-3, 1): 0.1, (1e-2, 1): 0.6}

    def pretend(run):
        rate, seed = run.learning_rate, run.seed
        metrics = {f"{split}/accuracy": value[rate, seed] for split in ["val", *(["test"] if run.tested else [])]}
        run.folder.mkdir(parents=True, exist_ok=True)
        run.write_result({"metrics": metrics, "epochs": 1, "steps": 2, "seconds": 1, "tested": run.tested})

    monkeypatch.setitem(globals(), "train", pretend)
    monkeypatch.setattr(comparing, "_report", lambda *_: None)
    choices = folder / "out" / "learning_rates.json"
    compare("--inits", "default", "--seeds", "0", "--learning-rates", "1e-3")
    assert json.loads(choices.read_text())[""]["default"]["chosen"] == 1e-3
    compare("--inits", "default", "--seeds", "1", "--learning-rates", "1e-2")
    assert json.loads(choices.read_text())[""]["default"] == {
        "chosen": 1e-2,
        "validation": {"0.001": [0.7, 0.1], "0.01": [0.6, 0.6]},
    }
    found = results(folder / "out")
    assert {key for key, metrics in found.items() if "test/accuracy" in metrics} == {
        *(("default", seed, 1e-2) for seed in (0, 1)),
        ("default", 0, 1e-3),  # when it was the best that was known
    }


def test_a_grid_is_crossed_with_starts_and_seeds(compare, folder):
    compare("--inits", "default", "--seeds", "0", "--grid", "data.fraction=0.1,0.2")
    settings = [json.loads(path.read_text()) for path in sorted(folder.glob("out/runs/**/*.settings.json"))]
    assert [each["point"] for each in settings] == [{"data.fraction": "0.1"}, {"data.fraction": "0.2"}]
    assert (folder / "out/runs/default/fraction_0.2/seed_0/experiment.yaml").read_text().count(
        "    fraction: 0.2\n"
    ) == 1


def test_a_grid_may_be_a_folder_of_configurations_of_ones_own(compare, complaint, folder):
    (folder / "labels").mkdir()
    (folder / "labels/few.yaml").write_text("data: {fraction: 0.1}\nmodel: {init_args: {label_smoothing: 0.1}}\n")
    (folder / "labels/more.yaml").write_text("data: {fraction: 0.2}\n")
    said = complaint(compare, "--inits", "default", "--seeds", "0", "--grid", "labels=few,mor")
    assert "there is no file 'labels/mor.yaml', nor a shipped configuration: did you mean 'labels/more.yaml'?" in said
    (folder / "labels/longer.yaml").write_text("data: {fraction: 0.2}\ntrainer: {max_epochs: 2}\n")
    compare("--inits", "default", "--seeds", "0", "--grid", "labels=few,more,longer")
    table = load_results(folder / "out").set_index("labels")
    assert [*table["training_samples"][["few", "more"]]] == [64, 64]  # two batches of 32, of however many there are
    assert math.isnan(table["training_samples"]["longer"])  # two epochs of two batches each, which may overlap
    smoothed = "label_smoothing: 0.1"
    texts = {
        place: (folder / f"out/runs/default/labels_{place}/seed_0/experiment.yaml").read_text() for place in table.index
    }
    assert [smoothed in texts[place] for place in ("few", "more")] == [True, False]


SWIN = "{patch_size: 2, window_size: 2, embed_dim: 8, depths: [1, 1], num_heads: [2, 2]}"


def test_a_grid_over_networks_asks_each_of_them_and_reports_them_apart(compare, complaint, folder, capsys):
    (folder / "net").mkdir()
    (folder / "net/vit.yaml").write_text("model: {init_args: {network: vit_nano_patch2_8}}\n")
    swin = f"{{network: swin_tiny_patch4_window7_224, network_args: {SWIN}}}"
    (folder / "net/swin.yaml").write_text(f"model: {{init_args: {swin}}}\n")
    said = complaint(compare, "--inits", "default,sincos", "--seeds", "0", "--grid", "net=vit,swin")
    assert "initialization 'sincos' (at net swin): Positions found no positions" in said
    assert not (folder / "out").exists()
    compare("--inits", "default,mimetic_host", "--seeds", "0", "--controls", "auto", "--grid", "net=vit,swin")
    left_out = "left out mimetic_host_positions: at net swin it writes no positions of this model"
    assert left_out in capsys.readouterr().out
    shown = initializations(read_report_data(folder / "out")).markdown
    vit, swin = re.findall(r"\*\*mimetic_host at net (\w+)\*\*: `[^`]*`\. Set (\d+) of", shown)
    assert (vit[0], swin[0]) == ("vit", "swin")
    assert vit[1] != swin[1]
    assert re.search(r"\*\*default\*\*: `Default\(\)`\. At net vit: Set 0 of", shown)
    path = next(path for path in (folder / "out").glob("runs/default/**/init_report.json") if "swin" in str(path))
    noted = {**json.loads(path.read_text()), "notes": {"blocks.0": "LayerScale hides the branch"}}
    path.write_text(json.dumps(noted))  # what is noted at one place is not said of another
    shown = initializations(read_report_data(folder / "out")).markdown
    assert re.search(r"\*\*default at net vit\*\*[^\n]*\n- \*\*default at net swin\*\*[^\n]*LayerScale hides", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--inits", "sincs"],
            "there is no initialization 'sincs', neither shipped nor a file: did you mean 'sincos'",
        ),
        (
            ["--inits", "default,learned=covariance_learned{covariances=lost.ckpt}"],
            "initialization 'learned': FilterCovariance: there is no file 'lost.ckpt'",
        ),
        (["--inits", "default,lost=covariance"], "initialization 'lost': "),
        (["--inits", "default,impulse{kernel=5}"], "Impulse takes no argument 'kernel': did you mean 'kernel_size'?"),
        (["--inits", "default,impulse{kernel_size=4}"], "Impulse: kernel_size must be"),
        (
            ["--inits", "default", "--grid", "data.fractoin=1"],
            "ImageData takes no argument 'fractoin': did you mean 'fraction'?",
        ),
        (["--inits", "default", "--grid", "data.fraction=0.5,2"], "fraction=2.0 is not in (0, 1]"),
        (["--inits", "default", "--metric", "test/acuracy"], "the task logs no 'test/acuracy': did you mean"),
        (["--inits", "default", "--metric", "test_acc"], "not 'test_acc': log it as 'test/acc'"),
        (["--inits", "default", "--metric", "accuracy"], "--metric must be 'test/…' or 'val/…', not 'accuracy'"),
        (
            ["--inits", "default", "-c", "gpt_mqar_short", "--metric", "test/acc"],
            "the task logs no 'test/acc': choose",
        ),
        (
            ["--inits", "default", "--control", "a=b", "--control", "c=d"],
            "--control is given twice: give it once, with",
        ),
        (["--inits", "default", "--seeds", "0", "--seeds=1"], "--seeds is given twice: give it once, with"),
        (["--inits", "default", "--baseline", "sincos"], "--baseline 'sincos' is not among the initializations"),
        (["--inits", "default,codes", "--control", "sincos"], "'sincos' is not an arm of this comparison"),
        (["--inits", "default", "--trainer.max_epoch=1"], "unknown key 'trainer.max_epoch'"),
        (["--inits", "default", "--seds", "1"], "unknown option '--seds': did you mean '--seeds'?"),
        (
            ["--inits", "default", "--less-is-beter"],
            "unknown option '--less-is-beter': did you mean '--less-is-better'?",
        ),
        (
            ["--inits", "default", "--control", "auto"],
            "--control names an arm, not 'auto': did you mean '--controls auto'?",
        ),
        (
            ["--inits", "default", "--init.seed=1"],
            "'init.seed' is what a comparison sets for each run: give init",
        ),
        (["--inits", "default", "--parallel", "0"], "argument --parallel: expected a positive number, got '0'"),
        (["--inits", "default", "-c", "vit_digts"], "there is no file 'vit_digts', nor a shipped configuration"),
        (["--inits", "default", "--data.name", "nowhere"], "nowhere"),
        (["--seeds", "0"], "the following arguments are required: --inits"),
    ],
)
def test_a_mistake_is_answered_in_one_line_before_anything_is_written(compare, complaint, folder, arguments, message):
    assert message in complaint(compare, *arguments)
    assert not (folder / "out").exists()
    assert Here.trained == []


def test_a_metric_whose_name_tells_no_direction_is_asked_for_before_anything_is_trained(
    compare, complaint, folder, monkeypatch
):
    monkeypatch.setattr("comparison.run.prepare.metric_names", lambda cli: {"test/badness", "test/rmse"})
    said = complaint(compare, "--inits", "default", "--seeds", "0", "--metric", "test/badness")
    assert "more or less of it is better: add --more-is-better or --less-is-better" in said
    assert Here.trained == []
    monkeypatch.setattr(comparing, "_refuse_unlogged", lambda *_: None)  # the runs log neither
    for metric, flags, mode in (("badness", ["--less-is-better"], "min"), ("badness", [], "min"), ("rmse", [], "min")):
        output = folder / metric  # the second time the folder knows it
        compare("--inits", "default", "--seeds", "0", "--metric", f"test/{metric}", *flags, "--output", str(output))
        assert json.loads((output / "comparison.json").read_text())["mode"] == mode


def test_another_experiments_folder_is_refused_and_left_as_it_is(compare, complaint, folder):
    compare("--inits", "default", "--seeds", "0")
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*")}
    said = complaint(compare, "--inits", "default", "--seeds", "0", "--trainer.max_epochs=2")
    assert said == "'out' holds another comparison: trainer.max_epochs is 1 there, 2 here: choose another --output"
    assert "--threads is 1 there, 2 here" in complaint(compare, "--inits", "default", "--seeds", "0", "--threads", "2")
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*")} == before


def test_a_missing_ray_is_named_with_its_extra(compare, complaint, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    said = complaint(compare, "--inits", "default", "--launcher", "ray")
    assert said == "--launcher ray needs Ray: pip install 'structured-init[ray]'"


def test_help_is_short(capsys):
    for name in ("compare", "report"):
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        said = capsys.readouterr().out
        assert f"structured-init {name}" in said
        assert len(said.splitlines()) < 50
    main(["--help"])
    said = capsys.readouterr().out
    for name in ("fit", "validate", "test", "predict", "show", "audit", "compare", "report"):
        assert f"\n  {name} " in said


def test_comparing_leaves_the_environment_of_the_process_alone(compare):
    before = dict(os.environ)
    with pytest.raises(SystemExit):
        compare("--inits", "default", "--metric", "none")
    assert {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"} == {
        key: value for key, value in before.items() if key != "PYTEST_CURRENT_TEST"
    }


def test_a_reason_is_one_line():
    assert one_line(ValueError("a\n  b\n\nc")) == "a b c"


def test_no_command_asks_for_a_host_that_its_configuration_does_not_name(compare, folder, reports):
    asked, listening = [], [True]

    def hear(event, args):  # it stays as long as the process does
        if listening and event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
            address = args[0] if isinstance(args[0], str) else args[1]
            asked.extend([] if event == "socket.connect" and not isinstance(address, tuple) else [(event, address)])

    sys.addaudithook(hear)
    reports()
    try:
        compare("--inits", "default", "--seeds", "0")  # with its report
        main(["show", "-c", "tiny.yaml"])
        main(["fit", "-c", "tiny.yaml", *QUICK, "--trainer.max_epochs=1"])
        assert asked == []
        with pytest.raises(ConnectionRefusedError), socket.socket() as probe:
            probe.connect(("127.0.0.1", 1))
        assert asked == [("socket.connect", ("127.0.0.1", 1))]  # it would have been heard
    finally:
        listening.clear()
