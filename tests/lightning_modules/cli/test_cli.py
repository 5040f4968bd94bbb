from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import warm_process
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_modules
from callbacks import AttentionMapCallback, ExactResume, InitCallback
from comparison.run.resolve import parse
from lightning_modules.cli import main
from lightning_modules.cli.lightning_cli import PredictionTable

ROOT = Path(lightning_modules.__file__).parents[1]


def callbacks_of(run, kind):
    return [callback for callback in run.trainer.callbacks if isinstance(callback, kind)]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the test has a folder of its own
def test_fit_then_test_leaves_everything_that_a_run_is_asked_for(cli, folder):
    run = cli("fit", "-c", "init/mimetic")
    log = Path(run.trainer.log_dir)
    assert {path.name for path in log.iterdir()} >= {
        "attention", "checkpoints", "experiment.yaml", "hparams.yaml", "init_report.json", "metrics.csv"
    }  # fmt: skip
    assert "Mimetic" in json.loads((log / "init_report.json").read_text())["initializer"]
    assert "val/accuracy" in (log / "metrics.csv").read_text()
    tested = cli("test", "--ckpt_path", str(log / "checkpoints" / "last.ckpt"))
    assert 0 <= tested.trainer.callback_metrics["test/accuracy"] <= 1


@pytest.mark.parametrize(
    ("command", "further"),
    [
        ("validate", []),
        ("test", ["--trainer.logger=false", "--trainer.default_root_dir=run"]),
        ("test", ["--model.label_smoothing=0.2"]),
    ],
)
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the test has a folder of its own
def test_a_run_that_is_evaluated_by_its_own_settings_stays_as_it_is(cli, folder, command, further):
    (folder / "log.yaml").write_text(
        "trainer: {logger: {class_path: CSVLogger, init_args: {save_dir: run, name: '', version: ''}}}"
    )
    cli("fit", "-c", "log.yaml", "--trainer.max_steps=2", "--trainer.val_check_interval=1")
    before = {path.name: path.read_bytes() for path in (folder / "run").glob("*.*")}
    assert {"experiment.yaml", "metrics.csv"} <= before.keys()
    with contextlib.suppress(SystemExit):  # the last is refused: the run had another value
        main([command, "-c", "run/experiment.yaml", "--ckpt_path", "run/checkpoints/last.ckpt", *further])
    assert {path.name: path.read_bytes() for path in (folder / "run").glob("*.*")} == before


def test_what_the_data_knows_reaches_the_model(cli):
    run = cli("fit", "--trainer.fast_dev_run=true")
    assert (run.model.num_classes, run.model.image_size, run.model.in_channels) == (10, 8, 1)
    assert run.model.network.head.out_features == 10


def test_every_run_has_a_start_a_capture_an_exact_resumption_and_a_last_checkpoint(cli):
    run = cli("fit", "--trainer.max_steps=1")
    for kind in (InitCallback, AttentionMapCallback, ExactResume, ModelCheckpoint):
        assert len(callbacks_of(run, kind)) == 1
    assert callbacks_of(run, ModelCheckpoint)[0].save_last


def test_a_checkpoint_callback_of_the_users_that_saves_the_last_is_not_doubled(cli, folder):
    (folder / "own.yaml").write_text(
        "trainer: {callbacks: [{class_path: ModelCheckpoint, init_args: {save_last: true, every_n_epochs: 1}}]}"
    )
    assert len(callbacks_of(cli("fit", "-c", "own.yaml", "--trainer.max_steps=1"), ModelCheckpoint)) == 1


def test_a_checkpoint_callback_of_the_users_saves_the_last_as_well(cli, folder):
    (folder / "own.yaml").write_text(
        "trainer: {callbacks: [{class_path: ModelCheckpoint, init_args: {filename: own}}]}"
    )
    run = cli("fit", "-c", "own.yaml", "--trainer.max_epochs=1")
    (checkpoint,) = callbacks_of(run, ModelCheckpoint)
    assert {path.name for path in Path(checkpoint.dirpath).iterdir()} == {"own.ckpt", "last.ckpt"}


def test_a_module_in_the_present_folder_can_be_named(folder):
    (folder / "my_package_here.py").write_text(
        "from lightning_modules import ImageClassifier\nclass Mine(ImageClassifier):\n    pass\n"
    )
    command = Path(sys.executable).with_name("structured-init")  # python -c would have the folder on its path
    arguments = ["fit", "-c", "tiny.yaml", "--model", "my_package_here.Mine", "--print_config"]
    log = folder / "printed"
    (printed,) = warm_process.wait([warm_process.start(command, arguments, {}, folder, log)], [log], 120)
    assert "class_path: my_package_here.Mine" in printed


def test_testing_without_a_checkpoint_says_that_the_weights_are_untrained(cli, capsys):
    cli("test", "--trainer.limit_test_batches=1")
    assert "untrained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "there"),
    [
        ([], "report of the initialization, attention, metrics, checkpoints/last.ckpt"),
        (
            ["--attention.figures=true"],
            "report of the initialization, attention, figures, metrics, checkpoints/last.ckpt",
        ),
        (
            [
                "--model.network=convmixer_16_1_k3_p2",
                "--model.network_args=null",
                "--trainer.enable_checkpointing=false",
            ],
            "report of the initialization, filters, figures, metrics",
        ),
    ],
)
def test_a_fit_ends_by_naming_its_folder_and_what_is_in_it(cli, capsys, caplog, words, there):
    caplog.set_level("INFO", "lightning.pytorch")  # which an earlier command of this process may have quieted
    run = cli("fit", "--trainer.max_steps=1", "--trainer.limit_val_batches=1", *words)
    assert capsys.readouterr().out.splitlines()[-1] == f"written: {run.trainer.log_dir} ({there})"
    assert caplog.text.count("attention: none found in ConvMixer\n") == ("attention" not in there)
    train, held = len(run.datamodule.train_set), len(run.datamodule.val_set)
    assert caplog.text.count(f"data: {train:,} images to train on, {held:,} to validate on") == 1


def test_predict_gives_probabilities_of_the_test_images(cli):
    run = cli("predict", "--trainer.limit_predict_batches=1")
    probabilities = torch.cat(run.trainer.predict(run.model, datamodule=run.datamodule))
    assert probabilities.shape[1] == 10
    assert probabilities.sum(1).allclose(torch.ones(len(probabilities)))


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_predict_writes_a_class_for_each_new_image_with_the_classes_and_the_scale_of_training(cli, folder, capsys):
    log = Path(cli("fit", "--trainer.max_epochs=4").trainer.log_dir)
    asked = ["predict", "-c", f"{log}/experiment.yaml", "--ckpt_path", f"{log}/checkpoints/last.ckpt"]
    main([*asked, "--model.optimizer.init_args.lr=0.5"])  # how it was trained does not matter here
    path = capsys.readouterr().out.split("written: ")[-1].split()[0]
    rows = [row.split(",") for row in Path(path).read_text().splitlines()]
    assert rows[0] == ["sample", "class", "probability"]
    images = lightning_modules.data.ImageData().source.split("test")
    (folder / "new" / "deep").mkdir(parents=True)
    for name, row in {"new/b.png": rows[6], "new/deep/a.PNG": rows[4]}.items():
        images[int(row[0])]["image"].save(folder / name)
    main([*asked, "--data.predict_folder=new"])
    path = capsys.readouterr().out.split("written: ")[-1].split()[0]
    new = [row.split(",") for row in Path(path).read_text().splitlines()[1:]]
    assert new == [["new/b.png", *rows[6][1:]], ["new/deep/a.PNG", *rows[4][1:]]]


@pytest.mark.parametrize(
    ("names", "world_size", "said"),
    [
        (["a", "b"], 1, "written: run/predictions_1.csv (class and probability of 2 samples)"),
        (["a", "b"], 1, "written: run/predictions_1.csv (class and score of 2 samples)"),
        (["a", "b"], 2, "predictions were not written: several processes compute them; a BasePredictionWriter"),
        (["a", "b", "c"], 1, "predictions were not written: they are not class probabilities of a datamodule; a Base"),
    ],
)
def test_a_table_of_predictions_replaces_none_and_what_is_not_written_is_said(folder, capsys, names, world_size, said):
    place = folder / "run" / "predictions.csv"
    place.parent.mkdir()
    place.write_text("kept")
    trainer = SimpleNamespace(is_global_zero=True, world_size=world_size, log_dir=None, default_root_dir="run")
    table = PredictionTable(SimpleNamespace(class_names=names, predicted=["x", "y"]))
    scale = 3 if "score" in said else 1  # those of a module of one's own may be logits
    table.on_predict_batch_end(trainer, None, scale * torch.tensor([[0.25, 0.75], [1, 0]]), None, 0)
    table.on_predict_end(trainer, None)
    assert capsys.readouterr().out.startswith(said)
    assert place.read_text() == "kept"
    written = [each.read_text().split() for each in place.parent.glob("*_1.csv")]
    heading = "score" if "score" in said else "probability"
    rows = [f"sample,class,{heading}", f"x,b,{scale * 0.75:g}", f"y,a,{scale}"]
    assert written == [rows] * said.startswith("written")


def test_a_file_of_weights_alone_is_not_resumed_from(cli, folder, complaint):
    run = cli("fit", "--trainer.max_steps=1")
    run.trainer.save_checkpoint(folder / "weights.ckpt", weights_only=True)
    assert "holds only weights" in complaint(cli, "fit", "--ckpt_path=weights.ckpt")


def test_checkpoints_can_be_switched_off(cli):
    run = cli("fit", "--trainer.enable_checkpointing=false", "--trainer.max_steps=1")
    assert callbacks_of(run, ModelCheckpoint) == []


def test_a_run_without_a_logger_works(cli, folder):
    cli("fit", "--trainer.logger=false")
    assert (folder / "lightning_logs" / "version_0" / "experiment.yaml").is_file()
    assert (folder / "lightning_logs" / "version_0" / "init_report.json").is_file()


def test_the_saved_experiment_runs_again_and_gives_the_same_weights(cli):
    first = cli("fit", "-c", "init/mimetic", "--seed_everything=3")
    again = main(["fit", "-c", f"{first.trainer.log_dir}/experiment.yaml"])
    assert again.model.state_dict().keys() == first.model.state_dict().keys()
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_the_seed_of_the_command_line_reaches_start_and_network(cli):
    def weights(seed):
        run = cli("fit", "-c", "init/mimetic", f"--seed_everything={seed}", "--trainer.max_steps=1")
        return run.model.network

    first, second = weights(1), weights(2)
    assert not torch.equal(first.blocks[0].attn.qkv.weight, second.blocks[0].attn.qkv.weight)
    assert not torch.equal(first.patch_embed.proj.weight, second.patch_embed.proj.weight)


def test_two_starts_see_the_same_batches_and_share_what_neither_sets(cli):
    seen = {}
    for start in ("default", "sincos"):
        run = cli("fit", "-c", f"init/{start}", "--trainer.limit_train_batches=1", "--model.optimizer.lr=0.0")
        seen[start] = run.model.state_dict(), [batch[1].tolist() for batch in run.datamodule.train_dataloader()]
    (default, batches), (sincos, same_batches) = seen["default"], seen["sincos"]
    assert batches == same_batches
    assert [name for name in default if not torch.equal(default[name], sincos[name])] == ["network.pos_embed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--init.initializer=Mimetc"], "init.initializer: unknown class 'Mimetc': did you mean 'Mimetic'?"),
        (
            ["--init.initializer=Mimetic", "--init.initializer.qk_alpa=1"],
            "Mimetic takes no argument 'qk_alpa': did you mean 'qk_alpha'?",
        ),
        (
            ["--init.initializer=Positions", "--init.initializer.gain=much"],
            "init.initializer.gain: expected float, got much",
        ),
        (
            ["--init.initializer=FilterCovariance", "--init.initializer.psd=clipp"],
            "init.initializer.psd: expected clip, absolute or strict, got clipp",
        ),
        (
            ["--init.initializer=FilterCovariance", "--init.initializer.normalize=tracee"],
            "init.initializer.normalize: expected trace or float, got tracee",
        ),
        (
            ["--init.initializer=FilterCovariance", "--init.initializer.covariances=lost.ckpt"],
            "FilterCovariance: there is no file 'lost.ckpt'",
        ),
        (  # a path, and not what the file says
            ["--init.initializer=FilterCovariance", "--init.initializer.covariances=tiny.yaml"],
            "FilterCovariance: cannot read 'tiny.yaml': it holds Python objects, which are never run, "
            "or it is not a checkpoint",
        ),
        (
            ["--model.network=vit_nano_patch2_9"],
            "unknown network 'vit_nano_patch2_9': did you mean 'vit_nano_patch2_8'?",
        ),
        (
            ["--model.network_args.depht=2"],
            "network 'vit_nano_patch2_8' takes no argument 'depht': did you mean 'depth'?",
        ),
        (["--model.network_args.patch_size=3"], "patch_size 3 does not divide image_size 8"),
        (
            ["--model.labl_smoothing=2"],
            "ImageClassifier takes no argument 'labl_smoothing': did you mean 'label_smoothing'?",
        ),
        (["--model.num_classes=3"], "model.init_args.num_classes is 3, but the data has 10: leave it to the data"),
        (["--data.nme=digits"], "ImageData takes no argument 'nme': did you mean 'name'?"),
        (["--trainer.max_epoch=1"], "unknown key 'trainer.max_epoch': did you mean 'trainer.max_epochs'?"),
        (["--trainer.max_epochs=few"], "trainer.max_epochs: expected int, got few"),
        (
            ["--trainer.callbacks=EarlyStoping"],
            "trainer.callbacks: unknown class 'EarlyStoping': did you mean 'EarlyStopping'?",
        ),
        (
            ["-c", "init/mimetik"],
            "there is no file 'init/mimetik', nor a shipped configuration: did you mean 'init/mimetic'?",
        ),
        (["--ckpt_path=lost.ckpt"], "there is no checkpoint 'lost.ckpt'"),
        (
            ["--trainer.default_root_dir=tiny.yaml/runs"],
            "cannot write to 'tiny.yaml/runs': '{folder}/tiny.yaml' is a file",
        ),
    ],
)
def test_a_mistyped_command_is_answered_in_one_line(cli, complaint, folder, arguments, message):
    assert complaint(cli, "fit", *arguments) == message.replace("{folder}", str(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inti: {initializer: Default}", "unknown key 'inti"),
        ("dta: {init_args: {fraction: 0.1}}", "unknown key 'dta.init_args.fraction': did you mean 'data'?"),
        (
            "init: {initializer: {class_path: Mimetc}}",
            "init.initializer: unknown class 'Mimetc': did you mean 'Mimetic'?",
        ),
        (
            "init: {initializer: {class_path: Compose, init_args: {initializers: "
            "[{class_path: Mimetic, init_args: {qk_bta: 1}}]}}}",
            "Mimetic takes no argument 'qk_bta': did you mean 'qk_beta'?",
        ),
        (
            "model: {class_path: ImageClasifier}",
            "model: unknown class 'ImageClasifier': did you mean 'ImageClassifier'?",
        ),
        (
            "data: {init_args: {augmentation: {class_path: TorchvisionAugmentation, init_args: {crop_scal: 1}}}}",
            "TorchvisionAugmentation takes no argument 'crop_scal': did you mean 'crop_scale'?",
        ),
        ("filters: false", "'filters' is a section with keys such as enabled, figures, got False"),
        ("model: [", "'typo.yaml', line 2, column 1: "),
    ],
)
def test_a_mistyped_file_is_answered_in_one_line(cli, complaint, folder, text, message):
    (folder / "typo.yaml").write_text(text)
    assert complaint(cli, "fit", "-c", "typo.yaml").startswith(message)


def test_a_command_builds_the_parser_of_no_other(folder):
    assert list(parse(["-c", "tiny.yaml"]).subcommands()) == ["fit"]


def test_an_unknown_command_or_none_is_answered_in_one_line(complaint):
    assert complaint(main, ["fitt"]) == "unknown command 'fitt': did you mean 'fit'?"
    assert complaint(main, ["audits"]) == "unknown command 'audits': did you mean 'audit'?"
    commands = "fit, validate, test, predict, show, audit, list, compare, find, judge, report"
    assert complaint(main, []) == f"no command is given: choose from {commands}"
    assert complaint(main, ["fit"]).startswith("no model is given: add a configuration with -c")


def test_an_initializer_without_a_site_is_answered_in_one_line_from_inside_the_fit(cli, complaint):
    said = complaint(cli, "fit", "--model.network=resnet10t", "--model.network_args=null", "--init.initializer=Mimetic")
    assert "Mimetic" in said


def test_a_bug_in_a_users_module_keeps_its_traceback(cli, folder, monkeypatch):
    (folder / "buggy_model.py").write_text(
        "from lightning_modules import ImageClassifier\n"
        "class Buggy(ImageClassifier):\n"
        "    def configure_network(self):\n"
        "        return int('not a number')\n"
    )
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ValueError, match="invalid literal for int") as bug:
        cli("fit", "--model=buggy_model.Buggy")
    assert bug.traceback[-1].path.name == "buggy_model.py"


def test_a_bug_in_a_users_network_keeps_its_traceback(cli, folder, monkeypatch):
    (folder / "buggy_network.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, width: int = 3):\n"
        "        super().__init__()\n"
        "        self.layer = [][width]\n"
    )
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(IndexError) as bug:
        cli("fit", "--model.network=null", "--model.network.class_path=buggy_network.Net")
    assert bug.traceback[-1].path.name == "buggy_network.py"


@pytest.mark.slow
def test_a_folder_of_the_users_that_hides_ours_is_named(tmp_path):
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / "__init__.py").write_text("")
    (tmp_path / "train.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\nfrom lightning_modules.cli import main\nmain()\n"
    )
    result = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert "hides this project's package 'callbacks': rename yours" in result.stderr.splitlines()[-1]


def test_a_clone_that_is_not_installed_says_how_compare_is_found(monkeypatch, complaint):
    from lightning_modules.cli import entry

    monkeypatch.setattr(entry, "added_commands", dict)
    said = complaint(main, ["compare", "--help"])
    assert said == "'compare' needs the project to be installed: pip install -e ."
