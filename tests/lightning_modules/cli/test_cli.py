from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import warm_process
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_modules
from callbacks import AttentionMapCallback, ExactResume, InitCallback
from comparison.plan.experiment import parse
from lightning_modules.cli import main
from lightning_modules.cli.lightning_cli import PredictionTable

OF_A_CLASS = ("--model.network_args=null", "--plan")
QUICK = ("--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--attention.enabled=false")


def callbacks_of(run, kind):
    return [callback for callback in run.trainer.callbacks if isinstance(callback, kind)]


class Fitted(NamedTuple):
    """A finished run of one epoch with ``init/mimetic``, and what it has said."""

    run: Any
    log: Path
    out: str
    logged: str


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, tiny):
    """One training, which the tests below read."""
    folder, out, logged = tmp_path_factory.mktemp("fitted"), io.StringIO(), io.StringIO()
    (folder / "tiny.yaml").write_text(tiny)
    handler, logger = logging.StreamHandler(logged), logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level  # which an earlier command of this process may have raised
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.chdir(folder)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        run = main(["fit", "-c", "tiny.yaml", "-c", "init/mimetic", "--seed_everything=3"])
        logger.removeHandler(handler)
        logger.setLevel(level)
    return Fitted(run, folder / run.trainer.log_dir, out.getvalue(), logged.getvalue())


def test_fit_leaves_everything_that_a_run_is_asked_for_and_says_where(fitted):
    log = fitted.log
    assert {path.name for path in log.iterdir()} >= {
        "attention", "checkpoints", "experiment.yaml", "hparams.yaml", "init_report.json", "metrics.csv"
    }  # fmt: skip
    assert "Mimetic" in json.loads((log / "init_report.json").read_text())["initializer"]
    assert "val/accuracy" in (log / "metrics.csv").read_text()
    assert fitted.out.splitlines()[-1] == f"written: {fitted.run.trainer.log_dir}"
    train, held = len(fitted.run.datamodule.train_set), len(fitted.run.datamodule.val_set)
    assert fitted.logged.count(f"data: {train:,} images to train on, {held:,} to validate on") == 1


def test_every_run_has_a_start_a_capture_an_exact_resumption_and_a_last_checkpoint(fitted):
    for kind in (InitCallback, AttentionMapCallback, ExactResume, ModelCheckpoint):
        assert len(callbacks_of(fitted.run, kind)) == 1
    assert callbacks_of(fitted.run, ModelCheckpoint)[0].save_last


def test_what_the_data_knows_reaches_the_model(fitted):
    model = fitted.run.model
    assert (model.num_classes, model.image_size, model.in_channels) == (10, 8, 1)
    assert model.network.head.out_features == 10


def test_the_saved_experiment_runs_again_and_gives_the_same_weights(fitted, folder):
    again = main(["fit", "-c", f"{fitted.log}/experiment.yaml"])
    first = fitted.run.model.state_dict()
    assert again.model.state_dict().keys() == first.keys()
    for name, value in first.items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_the_seed_of_the_command_line_reaches_start_and_network(cli):
    def weights(seed):
        return cli("fit", "-c", "init/mimetic", f"--seed_everything={seed}", *QUICK).model.network

    first, second = weights(1), weights(2)
    assert not torch.equal(first.blocks[0].attn.qkv.weight, second.blocks[0].attn.qkv.weight)
    assert not torch.equal(first.patch_embed.proj.weight, second.patch_embed.proj.weight)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the test has a folder of its own
def test_a_run_that_is_evaluated_by_its_own_settings_stays_as_it_is(cli, folder, capsys):
    (folder / "log.yaml").write_text(
        "trainer: {logger: {class_path: CSVLogger, init_args: {save_dir: run, name: '', version: ''}}}"
    )
    quick = ("--trainer.max_steps=1", "--trainer.val_check_interval=1", "--attention.enabled=false")
    cli("fit", "-c", "log.yaml", *quick)
    before = {path.name: path.read_bytes() for path in (folder / "run").glob("*.*")}
    assert {"experiment.yaml", "metrics.csv"} <= before.keys()
    own = ["-c", "run/experiment.yaml", "--ckpt_path", "run/checkpoints/last.ckpt"]
    for command, *further in (
        ["test", "--trainer.logger=false", "--trainer.default_root_dir=run"],
        ["test", "--model.label_smoothing=0.2"],
    ):
        with contextlib.suppress(SystemExit):  # the last is refused: the run had another value
            main([command, *own, *further])
        assert "is left out" not in capsys.readouterr().err  # a logger that is switched off has lost nothing
        assert {path.name: path.read_bytes() for path in (folder / "run").glob("*.*")} == before


@pytest.mark.parametrize("given", ["save_last: true", "filename: own"])
def test_a_checkpoint_callback_of_the_users_saves_the_last_too_and_is_not_doubled(cli, folder, given):
    (folder / "own.yaml").write_text(
        f"trainer: {{callbacks: [{{class_path: ModelCheckpoint, init_args: {{{given}}}}}]}}"
    )
    run = cli("fit", "-c", "own.yaml", "--attention.enabled=false")
    (checkpoint,) = callbacks_of(run, ModelCheckpoint)
    names = {path.name for path in Path(checkpoint.dirpath).iterdir()}
    assert "last.ckpt" in names
    assert len(names) == 2


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


def test_a_network_without_attention_leaves_its_filters_and_no_checkpoint_where_none_is_asked(cli, caplog):
    caplog.set_level("INFO", "lightning.pytorch")  # which an earlier command of this process may have quieted
    words = ["--model.network=convmixer_16_1_k3_p2", "--model.network_args=null"]
    words += ["--trainer.enable_checkpointing=false", "--trainer.max_steps=1", "--trainer.limit_val_batches=1"]
    run = cli("fit", *words)
    assert list(Path(run.trainer.log_dir, "filters").iterdir())
    assert callbacks_of(run, ModelCheckpoint) == []
    assert caplog.text.count("attention: none found in ConvMixer\n") == 1


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_predict_writes_a_class_for_each_new_image_with_the_classes_and_the_scale_of_training(fitted, folder, capsys):
    log = fitted.log
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
    ("names", "world_size", "scale", "said"),
    [
        (["a", "b"], 1, 1, "written: run/predictions_1.csv (class and probability of 2 samples)"),
        (["a", "b"], 1, 3, "predictions were not written: they are not class probabilities of a datamodule; a Base"),
        (["a", "b"], 2, 1, "predictions were not written: several processes compute them; a BasePredictionWriter"),
        (["a", "b", "c"], 1, 1, "predictions were not written: they are not class probabilities of a datamodule"),
    ],
)
def test_a_table_of_predictions_replaces_none_and_what_is_not_written_is_said(
    folder, capsys, names, world_size, scale, said
):
    place = folder / "run" / "predictions.csv"
    place.parent.mkdir()
    place.write_text("kept")
    trainer = SimpleNamespace(is_global_zero=True, world_size=world_size, log_dir=None, default_root_dir="run")
    table = PredictionTable(SimpleNamespace(class_names=names, predicted=["x", "y"]))
    table.on_predict_batch_end(trainer, None, scale * torch.tensor([[0.25, 0.75], [1, 0]]), None, 0)
    table.on_predict_end(trainer, None)
    assert capsys.readouterr().out.startswith(said)
    assert place.read_text() == "kept"
    written = [each.read_text().split() for each in place.parent.glob("*_1.csv")]
    assert written == [["sample,class,probability", "x,b,0.75", "y,a,1"]] * said.startswith("written")


def test_two_starts_see_the_same_batches_and_share_what_neither_sets(cli):
    seen = {}
    for start in ("default", "sincos"):
        run = cli("fit", "-c", f"init/{start}", "--model.optimizer.lr=0.0", "--trainer.limit_train_batches=1", *QUICK)
        seen[start] = run.model.state_dict(), [batch[1].tolist() for batch in run.datamodule.train_dataloader()]
    (default, batches), (sincos, same_batches) = seen["default"], seen["sincos"]
    assert batches == same_batches
    assert [name for name in default if not torch.equal(default[name], sincos[name])] == ["network.pos_embed"]


def test_a_command_builds_the_parser_of_no_other(folder):
    assert list(parse(["-c", "tiny.yaml"]).subcommands()) == ["fit"]


@pytest.mark.parametrize(
    ("place", "base", "method", "words"),
    [
        ("lightning_modules", "ImageClassifier", "configure_network", ["fit", "--model={}"]),
        ("torch.nn", "Module", "__init__", ["show", "--model.network.class_path={}", *OF_A_CLASS]),
    ],
    ids=["module", "network"],
)
def test_a_bug_in_a_users_class_keeps_its_traceback(cli, folder, monkeypatch, place, base, method, words):
    file = folder / f"buggy_{base.lower()}.py"
    file.write_text(f"from {place} import {base}\nclass Buggy({base}):\n    def {method}(self):\n        1 / 0\n")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ZeroDivisionError) as bug:
        cli(*(word.format(f"{file.stem}.Buggy") for word in words))
    assert bug.traceback[-1].path == file


def test_a_datamodule_of_ones_own_is_asked_for_no_loader_while_it_is_built(cli, folder, monkeypatch):
    (folder / "own_data.py").write_text(
        "from lightning.pytorch import LightningDataModule\n"
        "class Own(LightningDataModule):\n"
        "    num_classes, image_size, in_channels = 10, 8, 1\n"
        "    def train_dataloader(self):\n"
        "        return ['a batch']\n"
    )
    monkeypatch.syspath_prepend(folder)
    assert cli("show", "--data=own_data.Own", "--plan").datamodule.train_dataloader() == ["a batch"]
