from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lightning_modules.cli import main
from lightning_modules.tasks.checkpoint import (
    refuse_changed_arguments,
)
from structured_init import StructuredInitError

# A resumed run has a folder of its own, so that nothing in the first one is lost; Lightning remarks on it.
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny):
    """The folder of checkpoints of a finished run of one epoch."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yaml").write_text(tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder / main(["fit", "-c", "tiny.yaml", "--attention.enabled=false"]).trainer.log_dir / "checkpoints"


@pytest.fixture
def last(finished, folder):
    """A copy of its last checkpoint, for a test to do with as it likes."""
    return str(shutil.copytree(finished, folder / "finished") / "last.ckpt")


def test_a_run_resumed_inside_an_epoch_ends_with_the_weights_and_metrics_of_the_undisturbed_one(cli, folder):
    (folder / "often.yaml").write_text(
        "trainer: {callbacks: [{class_path: ModelCheckpoint, init_args: "
        "{filename: '{step}', every_n_train_steps: 1, save_top_k: -1}}]}\n"
        "model: {init_args: {mixup: 1.0, cutmix: 1.0}}\n"
    )
    given = ("fit", "-c", "often.yaml", "-c", "optim/muon", "--attention.enabled=false")
    whole = cli(*given)
    assert whole.trainer.global_step > 2
    resumed = cli(*given, "--ckpt_path", f"{whole.trainer.log_dir}/checkpoints/step=2.ckpt")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    for name in ("train/accuracy", "train/loss", "val/loss"):
        assert whole.trainer.callback_metrics[name] == resumed.trainer.callback_metrics[name], name


def test_a_changed_argument_is_refused_by_name_and_the_checkpoint_left_alone(cli, complaint, last):
    before = Path(last).read_bytes()
    said = complaint(cli, "fit", "--ckpt_path", last, "--model.network_args.depth=3")
    assert "network_args.depth = 2, this run asks for 3" in said
    assert Path(last).read_bytes() == before


@pytest.mark.parametrize(("network", "refused"), [("gpt2", True), ("llama", False)])
@pytest.mark.filterwarnings("ignore:ExactResume", "ignore:.*attention")
def test_a_language_model_without_learned_positions_is_tested_at_any_length(folder, complaint, network, refused):
    sizes = "hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2"
    sizes += ", intermediate_size: 8" if network == "llama" else ""
    (folder / "text.txt").write_text("to be or not to be, that is the question.\n" * 60)
    (folder / "text.yaml").write_text(f"""
model: {{class_path: LanguageModel, init_args: {{network: {network}, network_args: {{{sizes}}}}}}}
data: {{class_path: TextData, init_args: {{name: text.txt, tokenizer: characters, block_size: 16, batch_size: 4}}}}
attention: {{enabled: false}}
trainer:
  {{accelerator: cpu, max_steps: 1, limit_val_batches: 1, limit_test_batches: 1, enable_progress_bar: false,
  log_every_n_steps: 1}}
""")
    main(["fit", "-c", "text.yaml", "--trainer.default_root_dir=run"])
    (kept,) = Path("run").glob("lightning_logs/*/experiment.yaml")
    words = ["-c", str(kept), "--ckpt_path", str(kept.parent / "checkpoints" / "last.ckpt"), "--data.block_size=40"]
    before = kept.read_text()
    if refused:
        said = "'network.transformer.wpe.weight' has shape (16, 16) there, (40, 16) here"
        assert complaint(main, ["test", *words]) == f"the checkpoint belongs to another network: {said}"
    else:
        assert main(["test", *words]).trainer.callback_metrics["test/loss"] > 0
    assert kept.read_text() == before
    assert "block_size = 16, this run asks for 40" in complaint(main, ["fit", *words])  # a resumed run stays what it is


def test_a_damaged_and_an_unsafe_file_are_refused_in_one_line(cli, complaint, folder, last):
    whole = Path(last).read_bytes()
    (folder / "damaged.ckpt").write_bytes(whole[: len(whole) // 2])
    torch.save(
        {"state_dict": {}, "pytorch-lightning_version": "2.6", "object": torch.nn.Linear(1, 1)}, folder / "objects.ckpt"
    )
    expected = {
        "damaged.ckpt": "cannot read checkpoint 'damaged.ckpt': it is damaged",
        "objects.ckpt": "cannot read checkpoint 'objects.ckpt': it holds Python objects, which are never run",
    }
    for name, message in expected.items():
        assert complaint(cli, "test", "--ckpt_path", name).startswith(message)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_last_checkpoint_that_is_damaged_is_one_line(cli, complaint, folder, last):
    keeping = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "finished"}}
    (folder / "keeping.yaml").write_text(json.dumps({"trainer": {"callbacks": [keeping]}}))
    Path(last).write_bytes(Path(last).read_bytes()[:5000])
    said = complaint(cli, "fit", "-c", "keeping.yaml", "--ckpt_path=last")
    assert said.startswith(f"cannot read checkpoint '{last}': it is damaged, or it is not a checkpoint")


def test_a_checkpoint_has_its_name_only_when_it_is_whole(cli, folder, monkeypatch):
    """While one is written there is nothing under its name, or the one before it, and it lies in the same folder."""
    save, places, seen = torch.save, [], []

    def slowly(checkpoint, file, *args, **kwargs):
        save(checkpoint, file, *args, **kwargs)
        place = Path(file.name)
        places.append(place.parent.name)
        file.flush()
        seen.append({path.name for path in place.parent.iterdir() if path != place})
        for path in place.parent.glob("[!.]*"):
            torch.load(path, weights_only=True)

    monkeypatch.setattr(torch, "save", slowly)
    run = cli("fit", "--trainer.max_epochs=2", "--attention.enabled=false")
    assert places == ["checkpoints"] * 4
    steps = run.trainer.num_training_batches
    first, second = f"epoch=0-step={steps}.ckpt", f"epoch=1-step={2 * steps}.ckpt"
    assert seen == [set(), {first}, {first, "last.ckpt"}, {second, "last.ckpt"}]


def test_arguments_are_compared_by_value_at_any_depth():
    refuse_changed_arguments(
        {"a": {"init_args": {"b": (1, 2)}}, "gone": 1}, {"a": {"init_args": {"b": [1, 2]}}, "new": 2}
    )
    with pytest.raises(StructuredInitError, match=r"a\.b = \[1, 2\], this run asks for \[1, 3\]"):
        refuse_changed_arguments({"a": {"init_args": {"b": [1, 2]}}}, {"a": {"init_args": {"b": [1, 3]}}})
