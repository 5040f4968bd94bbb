"""A resumed run is the undisturbed one. Run as a script, this file trains; the tests kill it and compare."""

import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy
from training import quiet_trainer

from callbacks import ExactResume, InitCallback
from lightning_modules.data import EpochSampler, ImageData, ResumableLoader
from structured_init import Initializer
from structured_init.util.errors import StructuredInitError

ROOT = Path(__file__).parents[2]


class Rows(DummyLogger):
    """Keeps what is logged, exactly: (step, name) -> value."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def log_metrics(self, metrics, step):
        self.rows.update({(step, name): value for name, value in metrics.items()})


class Digits(L.LightningModule):
    """A network that draws from every global generator while it trains, and logs in every way."""

    def __init__(self, plateau=False):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
        self.train_accuracy = MulticlassAccuracy(10)
        self.val_accuracy = MulticlassAccuracy(10)
        self.mean_loss = MeanMetric()
        self.plateau = plateau

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.network(images + 0.1 * np.random.normal() + 0.1 * random.random())
        loss = nn.functional.cross_entropy(logits, labels)
        self.train_accuracy(logits, labels)
        self.mean_loss.update(loss)
        self.log("accuracy", self.train_accuracy, on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.network(images)
        self.val_accuracy(logits, labels)
        self.log("val_accuracy", self.val_accuracy)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))

    def on_train_epoch_end(self):
        self.log("by_hand", self.mean_loss.compute())
        self.mean_loss.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.plateau:
            # Nothing is ever better by so much, so each step of the scheduler that is left out or doubled shows.
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class SaveEverywhere(Checkpoint):
    """Saves at every moment at which a checkpoint may be made, after all other callbacks."""

    def __init__(self, folder):
        self.folder = folder

    def _save(self, trainer, moment):
        if not trainer.sanity_checking:
            batch = trainer.fit_loop.total_batch_idx
            trainer.save_checkpoint(self.folder / f"{batch:03d}-{moment}.ckpt")

    def on_train_batch_end(self, trainer, *_):
        self._save(trainer, "a-batch")

    def on_validation_end(self, trainer, pl_module):
        self._save(trainer, "b-validation")

    def on_train_epoch_end(self, trainer, pl_module):
        self._save(trainer, "c-epoch")


class Kill(L.Callback):
    """Ends the process without any chance to tidy up, inside the training step of one batch."""

    def __init__(self, batch):
        self.batch = batch

    def on_before_optimizer_step(self, trainer, *_):
        if trainer.fit_loop.total_batch_idx >= self.batch:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(
    callbacks, checkpoint=None, workers=0, plateau=False, epochs=3, devices=1, batch_size=64, seed=0, data=None, **more
):
    """Train and return everything that must be equal."""
    L.seed_everything(1 if checkpoint is None else 99, verbose=False)  # a resumed process starts from other states
    module = Digits(plateau)
    if devices > 1:  # each rank draws from states of its own
        L.seed_everything(1000 + int(os.environ.get("LOCAL_RANK", 0)), verbose=False)
    data = data or ImageData(
        batch_size=batch_size // devices, fraction=0.25, seed=seed, num_workers=workers, crop_padding=1, flip=True
    )
    logger = Rows()
    trainer = quiet_trainer(
        devices=devices,
        max_epochs=epochs,
        logger=logger,
        callbacks=callbacks,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        **more,
    )
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=None if checkpoint is None else True)
    return {
        "weights": module.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedulers": [_numbers(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
        "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
        "rows": logger.rows,
        "steps": (trainer.global_step, trainer.current_epoch),
        "draws": [torch.rand(3).tolist(), np.random.random(3).tolist(), random.random()],
    }


def _numbers(state):
    return {name: value for name, value in state.items() if isinstance(value, (int, float, list))}


def assert_equal(resumed, undisturbed, label=""):
    """Compare bit for bit; of the log, the rows that the resumed run wrote."""
    for part in ("weights", "optimizer", "schedulers", "metrics", "steps", "draws"):
        where = f"{label} {part}: "
        torch.testing.assert_close(resumed[part], undisturbed[part], rtol=0, atol=0, msg=where.__add__)
    for row, value in resumed["rows"].items():
        assert undisturbed["rows"].get(row) == value, (label, row)


CASES = {
    "validation_each_epoch": {},
    "validation_inside_the_epoch": {"val_check_interval": 2},
    "validation_every_second_epoch": {"check_val_every_n_epoch": 2},
    "no_validation": {"limit_val_batches": 0},
    "accumulation": {"accumulate_grad_batches": 2, "val_check_interval": 3},
    "a_scheduler_that_watches": {"plateau": True},
    "fewer_batches": {"limit_train_batches": 3},
    "a_number_of_steps": {"max_steps": 13, "epochs": -1},
    "steps_over_epochs": {"val_check_interval": 7, "check_val_every_n_epoch": None},
}


@pytest.mark.parametrize("case", CASES)
def test_run_resumed_from_any_checkpoint_equals_the_undisturbed(case, tmp_path):
    undisturbed = fit(callbacks=[ExactResume(), SaveEverywhere(tmp_path)], **CASES[case])
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    end = undisturbed["steps"][0]
    if "max_steps" in CASES[case]:  # after its last step Lightning takes such a run for finished and runs no hook
        checkpoints = [checkpoint for checkpoint in checkpoints if int(checkpoint.name[:3]) < end - 1]
    assert len(checkpoints) >= 12  # 5 batches (or 3) and 3 ends of an epoch
    number = list(CASES).index(case)  # the first case from every place, each other one from every sixth, all shifted
    for checkpoint in checkpoints[:-1] if number == 0 else checkpoints[number % 6 : -1 : 6]:
        resumed = fit(callbacks=[ExactResume()], checkpoint=checkpoint, **CASES[case])
        assert_equal(resumed, undisturbed, f"{case} {checkpoint.name}")
        missing = rows_after(checkpoint, undisturbed["rows"]) - set(resumed["rows"])
        assert "accumulate_grad_batches" in CASES[case] or not missing, (checkpoint.name, missing)


def rows_after(checkpoint, rows):
    """What an undisturbed run logs after a checkpoint: of its own step, what is logged later than the checkpoint."""
    batch, later = int(checkpoint.name[:3]), {"accuracy", "loss_epoch", "largest", "by_hand"}
    of_batch = "a-batch" in checkpoint.name
    return {(step, name) for step, name in rows if step > batch or (step == batch and (of_batch or name in later))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint in the middle of the first epoch."""
    folder = tmp_path_factory.mktemp("saved")
    fit(callbacks=[ExactResume(), SaveEverywhere(folder)], epochs=1)
    return folder / "002-a-batch.ckpt"


def test_without_the_callback_a_resumed_run_is_another_one(tmp_path):
    undisturbed = fit(callbacks=[SaveEverywhere(tmp_path)])
    with pytest.warns(UserWarning, match="made without ExactResume: the resumed run is not exact"):
        resumed = fit(callbacks=[ExactResume()], checkpoint=tmp_path / "002-a-batch.ckpt")
    assert not torch.equal(resumed["weights"]["network.1.weight"], undisturbed["weights"]["network.1.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batch_size": 32}, "batch size 64, now it is 32"), ({"seed": 5}, "seed 0, now it is 5")],
)
def test_resuming_inside_an_epoch_with_other_batches_is_refused(change, message, saved):
    with pytest.raises(StructuredInitError, match=f"in the middle of an epoch with {message}"):
        fit(callbacks=[ExactResume()], checkpoint=saved, epochs=1, **change)


def test_another_number_of_threads_is_said(saved):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        said = f"made with {threads} threads in 1 processes, now there are {threads + 1} threads in 1 processes"
        with pytest.warns(UserWarning, match=said):
            fit(callbacks=[ExactResume()], checkpoint=saved, epochs=1)
    finally:
        torch.set_num_threads(threads)


class AnotherLoader(ImageData):
    def train_dataloader(self):
        return DataLoader(self.train_set, 64, shuffle=True, collate_fn=lambda batch: batch)


def test_a_loader_without_a_position_is_named():
    callback = ExactResume()
    with pytest.warns(UserWarning, match="train loader has no state_dict"):
        fit(callbacks=[callback], data=AnotherLoader(batch_size=64), epochs=1)
    assert not callback.exact


class PlainLoader(ImageData):
    workers = 0
    generator = False

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(1) if self.generator else None
        samples = [self.train_set[0, each] for each in range(40)]
        return DataLoader(samples, 16, shuffle=True, generator=generator, num_workers=self.workers)


class Drawing(ExactResume):
    """Draws at the start of an epoch, as a module or another callback may."""

    def on_train_epoch_start(self, trainer, pl_module):
        torch.rand(1)


@pytest.mark.filterwarnings("ignore:The train loader has no state_dict", "ignore:.*does not have many workers")
@pytest.mark.parametrize("loader", ["plain", "workers", "generator"])
@pytest.mark.parametrize("case", ["validation_each_epoch", "no_validation"])
def test_an_epoch_after_the_last_checkpoint_gets_the_batches_of_any_loader(case, loader, tmp_path, monkeypatch):
    monkeypatch.setattr(PlainLoader, "generator", loader == "generator")
    given = {"data": PlainLoader(batch_size=64), **CASES[case]}
    undisturbed = fit(callbacks=[Drawing(), SaveEverywhere(tmp_path)], **given)
    monkeypatch.setattr(PlainLoader, "workers", int(loader == "workers"))
    ends = [path for path in sorted(tmp_path.glob("*.ckpt")) if path.name[:3] in ("002", "005")]  # 3 batches an epoch
    assert len(ends) == (4 if case == "no_validation" else 6)
    for checkpoint in ends:
        resumed = fit(callbacks=[Drawing()], checkpoint=checkpoint, **given)
        assert_equal(resumed, undisturbed, checkpoint.name)


class Augmented(Dataset):
    """40 images, each a function of (epoch, index)."""

    def __len__(self):
        return 40

    def __getitem__(self, key):
        epoch, index = key
        noise = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(100 * epoch + index))
        return index / 40 + noise, index % 10


class OwnData(L.LightningDataModule):
    """The datamodule of docs/lightning.md."""

    def train_dataloader(self):
        train_set = Augmented()
        sampler = EpochSampler(len(train_set), shuffle=True, seed=0)
        return ResumableLoader(train_set, batch_size=8, sampler=sampler, generator=torch.Generator())


class Asks(Initializer):
    """Keeps the samples that it was given."""

    needs_batch = True

    def plan(self, weights, *, rng, batch=None):
        self.seen = batch


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_own_data_by_epoch_and_index_is_resumed_exactly_and_gives_samples(tmp_path):
    asks = Asks()
    callbacks = [InitCallback(asks, seed=0, samples=40), ExactResume(), SaveEverywhere(tmp_path)]
    undisturbed = fit(callbacks=callbacks, data=OwnData(), epochs=2, default_root_dir=tmp_path)
    expected = torch.stack([Augmented()[0, index][0] for index in range(40)])  # those of the first epoch
    torch.testing.assert_close(asks.seen, expected, rtol=0, atol=0)
    resumed = fit(callbacks=[ExactResume()], data=OwnData(), epochs=2, checkpoint=tmp_path / "002-a-batch.ckpt")
    assert_equal(resumed, undisturbed)


def run_script(*, expect=0, **options):
    import warm_process  # not where this file is the script

    with tempfile.TemporaryDirectory() as folder:
        log, arguments = Path(folder, "log"), [json.dumps(options, default=str)]
        process = warm_process.start(__file__, arguments, {"PYTHONPATH": str(ROOT)}, ROOT, log)
        process.join(300)
        said = log.read_text()[-3000:]
    process.kill()
    assert process.exitcode == expect, said


def run_ranks(**options):
    import warm_process

    with tempfile.TemporaryDirectory() as folder:
        arguments = [json.dumps({"devices": 2, "strategy": "ddp", **options}, default=str)]
        warm_process.wait(*warm_process.start_ranks(__file__, arguments, {"PYTHONPATH": str(ROOT)}, Path(folder)), 300)


def newest(folder):
    return max(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))


def test_killed_run_ends_like_the_undisturbed(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run_script(folder=killed, kill=8, workers=2, expect=-signal.SIGKILL)
    assert newest(killed).name == "step=8.ckpt"  # inside the second epoch of 5 batches
    run_script(folder=killed, checkpoint=newest(killed), workers=2)
    run_script(folder=whole)
    assert_equal(torch.load(killed / "end.pt", weights_only=False), torch.load(whole / "end.pt", weights_only=False))


@pytest.mark.slow
@pytest.mark.distributed
def test_run_resumed_inside_an_epoch_on_two_processes_ends_like_the_undisturbed(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    run_ranks(folder=killed, checkpoint_only=True)
    run_ranks(folder=killed, checkpoint=killed / "step=4.ckpt")
    run_ranks(folder=whole)
    for rank in (0, 1):
        ends = [torch.load(folder / f"end{rank or ''}.pt", weights_only=False) for folder in (killed, whole)]
        assert_equal(*ends, label=f"rank {rank}")


def main():
    options = json.loads(sys.argv[1])
    folder = Path(options.pop("folder"))
    kill, checkpoint = options.pop("kill", None), options.pop("checkpoint", None)
    saver = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    callbacks = [ExactResume(), saver, *([Kill(kill)] if kill is not None else [])]
    if options.pop("checkpoint_only", False):
        options["epochs"] = 2
    end = fit(callbacks=callbacks, checkpoint=checkpoint, **options)
    rank = os.environ.get("LOCAL_RANK", "0")
    torch.save(end, folder / f"end{'' if rank == '0' else rank}.pt")


if __name__ == "__main__":
    main()
