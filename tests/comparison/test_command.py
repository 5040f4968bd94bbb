"""The command ``compare``, with an experiment of seconds; runs are trained in this process, one after the other."""

import contextlib
import io
import json
import math
import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from compared import AtOnce, MadeUp

from comparison.command import comparing
from comparison.runs.folder import read_manifest
from comparison.runs.records import load_results
from comparison.say.data import read_report_data
from comparison.say.panels.runs import initializations
from comparison.say.registry import table_of
from comparison.train.run import train
from lightning_modules.cli import main

QUICK = ["--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]


class Here(AtOnce):
    """Trains in this process."""

    trained: list = []  # noqa: RUF012

    def do(self, run):
        Here.trained.append((run.arm, run.seed, run.learning_rate))
        train(run)


@pytest.fixture
def compare(folder, monkeypatch):
    """Run ``structured-init compare`` on the small experiment, without the report, which takes longer than the runs."""
    monkeypatch.setattr(comparing, "_report", lambda *_: None)
    monkeypatch.setattr(comparing, "LocalLauncher", Here)
    monkeypatch.setattr(Here, "trained", [])
    return lambda *words: main(["compare", "-c", "tiny.yaml", "--output", "out", *QUICK, *words])


@pytest.fixture
def pretend(compare, made_up, monkeypatch):
    """Train nothing: percent by learning rate and seed, else the same for all; of None a run fails."""
    values = {}
    monkeypatch.setattr(made_up, "value", staticmethod(lambda run: values.get((run.learning_rate, run.seed), 50.0)))
    return values


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny):
    """A comparison that was trained, with its report: its folder, what the command said, which hosts it asked for."""
    asked, listening, said = [], [True], io.StringIO()

    def hear(event, args):  # it stays as long as the process does
        if listening and event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
            address = args[0] if isinstance(args[0], str) else args[1]
            asked.extend([] if event == "socket.connect" and not isinstance(address, tuple) else [(event, address)])

    sys.addaudithook(hear)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.chdir(tmp_path_factory.mktemp("finished"))
        patch.setattr(comparing, "LocalLauncher", Here)
        Path("tiny.yaml").write_text(tiny)
        given = [*QUICK, "--attention.figures=true", "--inits", "default,sincos", "--seeds", "0"]
        main(["compare", "-c", "tiny.yaml", "--output", "out", *given])
        folder = Path("out").resolve()
    during = list(asked)
    with pytest.raises(ConnectionRefusedError), socket.socket() as probe:
        probe.connect(("127.0.0.1", 1))
    assert asked == [*during, ("socket.connect", ("127.0.0.1", 1))]  # it would have been heard
    listening.clear()
    return SimpleNamespace(folder=folder, said=said.getvalue(), asked=during)


def results(folder):
    return {
        (result["arm"], result["seed"], result["learning_rate"]): result["metrics"]
        for path in folder.glob("runs/**/result.json")
        for result in [json.loads(path.read_text())]
    }


def test_a_comparison_ends_with_its_table_and_report(finished):
    assert results(finished.folder).keys() == {(arm, 0, None) for arm in ("default", "sincos")}
    assert "[2/2] sincos, seed 0: test/accuracy" in finished.said
    assert "| sincos | 1 |" in finished.said
    assert "report: out/report.html" in finished.said
    assert (finished.folder / "report.html").is_file()
    assert (finished.folder / "figures" / "attention_sincos.png").is_file()  # which the run has drawn
    assert not list(finished.folder.rglob("missing.json"))
    manifest = json.loads((finished.folder / "plan.json").read_text())
    assert (manifest["metric"], manifest["mode"], manifest["baseline"]) == ("test/accuracy", "max", "default")
    assert manifest["command"].startswith("structured-init compare -c tiny.yaml --output out")


def test_no_command_asks_for_a_host_that_its_configuration_does_not_name(finished):
    assert finished.asked == []


def test_a_comparison_that_grows_keeps_what_it_has_and_trains_what_is_new_alone(compare, pretend, folder, capsys):
    compare("--inits", "default,sincos", "--seeds", "0,1", "--success", "0.5")
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("seeds: 2 seeds can show large differences alone: run at least 5, as in --seeds 0-4")
    MadeUp.trained.clear()
    compare("--inits", "default,mine=sincos{gain=0.5}", "--seeds", "0")
    assert MadeUp.trained == [("mine", 0, True)]
    grown = json.loads((folder / "out" / "plan.json").read_text())
    assert (list(grown["arms"]), grown["success"]) == (["default", "sincos", "mine"], 0.5)
    assert grown["arms"]["mine"]["changes"]["init.initializer.gain"] == 0.5


def test_a_folder_is_named_after_the_experiment_where_none_is_given_and_that_is_said_first(
    compare, pretend, folder, capsys, monkeypatch
):
    main(["compare", "-c", "tiny.yaml", "--inits", "default", "--seeds", "0", *QUICK])
    assert capsys.readouterr().out.startswith("--output runs/tiny\n")
    assert results(folder / "runs" / "tiny").keys() == {("default", 0, None)}


def test_a_metric_that_a_module_does_not_log_is_told_after_the_first_run(compare, complaint, monkeypatch):
    def logs_otherwise(run):
        run.folder.mkdir(parents=True)
        run.write_result({"metrics": {"val/loss": 0.5, "eval/loss": 0.5}, "seconds": 1, "tested": True})

    monkeypatch.setitem(globals(), "train", logs_otherwise)
    said = complaint(compare, "--inits", "default,sincos", "--seeds", "0")
    assert "logs no 'test/…': a comparison reads what a module logs as" in said
    assert len(Here.trained) == 1  # the second run is not trained for it


@pytest.mark.slow
def test_controls_are_added_to_what_is_structured_and_found_in_the_folder(compare, folder, capsys):
    compare("--inits", "default,sincos,mimetic", "--seeds", "0", "--controls", "auto")
    said = capsys.readouterr().out
    assert "controls: sincos is the same-positions control of mimetic" in said
    manifest = read_manifest(folder / "out")
    assert list(manifest.arms) == [
        "default",
        "sincos",
        "mimetic",
        "mimetic_scrambled",
        "mimetic_sharpened",
    ]
    roles = {
        "sincos": "same positions", "mimetic_scrambled": "scrambled", "mimetic_sharpened": "sharpened",
    }  # fmt: skip
    assert manifest.controls == {"mimetic": roles}
    inner = initializer_report(folder, "mimetic")["initializer"]
    made = initializer_report(folder, "mimetic_scrambled")["initializer"]
    assert made == f"Scrambled(initializer={inner})"
    shown = table_of(initializations(read_report_data(folder / "out"))).markdown()
    assert "| sincos, mimetic_scrambled, mimetic_sharpened |" in shown


def initializer_report(folder, arm):
    return json.loads((folder / "out" / "runs" / arm / "seed_0" / "init_report.json").read_text())


def test_a_failing_run_stops_no_other_and_is_tried_again(compare, pretend, folder, capsys):
    pretend[None, 0] = None
    with pytest.raises(SystemExit) as stop:
        compare("--inits", "default", "--seeds", "0,1")
    assert stop.value.code == 1
    assert results(folder / "out").keys() == {("default", 1, None)}
    failed = folder / "out" / "runs" / "default" / "seed_0.failed.json"
    assert json.loads(failed.read_text())["reason"] == "it has no memory"
    assert "  default, seed 0: it has no memory" in capsys.readouterr().out
    pretend.clear()
    compare("--inits", "default", "--seeds", "0,1")
    assert len(results(folder / "out")) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(attention|representations|filters)")
def test_a_run_that_diverges_is_complete_with_what_it_gave_and_is_not_tried_again(compare, folder):
    diverging = ["--inits", "default", "--seeds", "0", "--model.init_args.optimizer.init_args.lr", "1e30"]
    for _ in range(2):
        compare(*diverging)
    assert Here.trained == [("default", 0, None)]
    ((_, metrics),) = results(folder / "out").items()
    assert math.isnan(metrics["test/loss"])
    assert not list(folder.glob("out/runs/**/*.failed.json"))


def test_the_learning_rate_is_chosen_on_validation_among_all_of_a_folder_that_grows(compare, pretend, folder, capsys):
    pretend |= {(1e-3, 0): 70, (1e-2, 0): 60, (1e-3, 1): 10, (1e-2, 1): 60}
    choices = folder / "out" / "learning_rates.json"
    compare("--inits", "default", "--seeds", "0", "--learning-rates", "1e-3")
    assert json.loads(choices.read_text())[""]["default"]["chosen"] == 1e-3
    capsys.readouterr()
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
    said = capsys.readouterr().out
    assert "learning rates [4/4] default" in said
    assert "test split [2/2] default" in said  # a count that begins anew, by its name


@pytest.mark.slow
def test_a_grid_may_be_a_folder_of_configurations_of_ones_own(compare, complaint, folder):
    (folder / "labels").mkdir()
    (folder / "labels/few.yaml").write_text("data: {fraction: 0.1}\nmodel: {init_args: {label_smoothing: 0.1}}\n")
    (folder / "labels/more.yaml").write_text("data: {fraction: 0.2}\n")
    said = complaint(compare, "--inits", "default", "--seeds", "0", "--grid", "labels=few,mor")
    assert "there is no file 'labels/mor.yaml', nor a shipped configuration: did you mean 'labels/more.yaml'?" in said
    (folder / "labels/longer.yaml").write_text("data: {fraction: 0.2}\ntrainer: {max_epochs: 2}\n")
    compare("--inits", "default", "--seeds", "0", "--grid", "labels=few,more,longer")
    table = load_results(folder / "out").set_index("labels")
    smoothed = "label_smoothing: 0.1"
    texts = {
        place: (folder / f"out/runs/default/labels_{place}/seed_0/experiment.yaml").read_text() for place in table.index
    }
    assert [smoothed in texts[place] for place in ("few", "more")] == [True, False]
    settings = [json.loads(path.read_text()) for path in sorted(folder.glob("out/runs/**/*.settings.json"))]
    assert [each["point"] for each in settings] == [{"labels": place} for place in ("few", "longer", "more")]


SWIN = "{patch_size: 2, window_size: 2, embed_dim: 8, depths: [1, 1], num_heads: [2, 2]}"


@pytest.mark.slow
def test_a_grid_over_networks_asks_each_of_them_and_reports_them_apart(compare, complaint, folder, capsys):
    (folder / "net").mkdir()
    (folder / "net/vit.yaml").write_text("model: {init_args: {network: vit_nano_patch2_8}}\n")
    swin = f"{{network: swin_tiny_patch4_window7_224, network_args: {SWIN}}}"
    (folder / "net/swin.yaml").write_text(f"model: {{init_args: {swin}}}\n")
    said = complaint(compare, "--inits", "default,sincos", "--seeds", "0", "--grid", "net=vit,swin")
    assert "initialization 'sincos' (at net swin): Positions found no positions" in said
    assert not (folder / "out").exists()
    compare("--inits", "default,mimetic", "--seeds", "0", "--controls", "auto", "--grid", "net=vit,swin")
    left_out = r"left out mimetic_positions: .*\(at net swin\).* writes no positions of this model"
    assert re.search(left_out, capsys.readouterr().out)
    path = next(path for path in (folder / "out").glob("runs/default/**/init_report.json") if "swin" in str(path))
    noted = {**json.loads(path.read_text()), "notes": {"blocks.0": "LayerScale hides the branch"}}
    path.write_text(json.dumps(noted))  # what is noted at one place is not said of another
    shown = table_of(initializations(read_report_data(folder / "out"))).markdown()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines()]
    written = {row[-1]: row[2] for row in rows if row[0] == "mimetic"}
    assert written["net vit"] != written["net swin"]
    notes = {row[-1]: row[3] for row in rows if row[0] == "default"}
    assert ["LayerScale hides" in notes[place] for place in ("net vit", "net swin")] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inits", "default", "--time-limit", "soon"], "argument --time-limit: cannot read 'soon': write 55m, 2h,"),
        (
            ["--inits", "default,learned=covariance{covariances=lost.ckpt}"],
            "initialization 'learned': FilterCovariance: there is no file 'lost.ckpt'",
        ),
        (["--inits", "default,impulse{kernel=5}"], "Impulse takes no argument 'kernel': did you mean 'kernel_size'?"),
        (
            ["--inits", "default", "--grid", "data.fractoin=1"],
            "ImageData takes no argument 'fractoin': did you mean 'fraction'?",
        ),
        (["--inits", "default", "--metric", "test/acuracy"], "the task logs no 'test/acuracy': did you mean"),
        (["--inits", "default", "--baseline", "sincos"], "--baseline 'sincos' is not among the initializations"),
        (["--inits", "default,codes", "--control", "sincos"], "'sincos' is not an arm of this comparison"),
        (["--inits", "default", "--trainer.max_epoch=1"], "unknown key 'trainer.max_epoch'"),
        (["--inits", "default", "--seds", "1"], "unknown option '--seds': did you mean '--seeds'?"),
        (
            ["--inits", "default", "--init.seed=1"],
            "'init.seed' is what a comparison sets for each run: give init",
        ),
        (["--seeds", "0"], "the following arguments are required: --inits"),
        (["--margin", "1", "--precision", "1"], "argument --precision: not allowed with argument --margin"),
        (["--inits", "default", "--max-seeds", "10"], "--max-seeds limits what --precision or --margin asks for"),
        (["--margin", "1", "--max-seeds", "4"], "argument --max-seeds: invalid choice: 4"),
        (["--margin", "0"], "argument --margin: expected a number above 0, got '0'"),
    ],
)
def test_a_mistake_is_answered_in_one_line_before_anything_is_written(compare, complaint, folder, arguments, message):
    assert message in complaint(compare, *arguments)
    assert not (folder / "out").exists()
    assert Here.trained == []


def test_a_metric_whose_name_tells_no_direction_is_asked_for_before_anything_is_trained(
    compare, complaint, monkeypatch
):
    monkeypatch.setattr("comparison.plan.prepare.metric_names", lambda cli: {"test/badness", "test/rmse"})
    said = complaint(compare, "--inits", "default", "--seeds", "0", "--metric", "test/badness")
    assert "more or less of it is better: add --more-is-better or --less-is-better" in said
    assert Here.trained == []


def test_a_missing_ray_is_named_with_its_extra(compare, complaint, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    said = complaint(compare, "--inits", "default", "--launcher", "ray")
    assert said == "--launcher ray needs Ray: pip install 'structured-init[ray]'"
