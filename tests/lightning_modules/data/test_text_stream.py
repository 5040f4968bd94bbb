"""A stream: all of it, in an order that the workers do not change, going on exactly where it stopped."""

from __future__ import annotations

import gc
import multiprocessing
import random
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint

from callbacks.exact_resume import ExactResume
from lightning_modules.data import TextData
from structured_init.errors import StructuredInitError

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]


@pytest.fixture
def folder(tmp_path):
    """Three files of twenty documents; about 190 blocks of 32 bytes in ten groups of 500 characters."""
    rng = random.Random(0)
    place = tmp_path / "corpus"
    place.mkdir()
    for file in range(3):
        lines = [f"{file}.{i}: " + " ".join(rng.choices(WORDS, k=rng.randint(5, 25))) for i in range(20)]
        (place / f"train-{file}.txt").write_text("\n".join(lines))
    (place / "validation.txt").write_text("alpha beta gamma delta epsilon\n" * 20)
    return place


def data(folder, **arguments) -> TextData:
    defaults = {"documents": "row", "tokenizer": "bytes", "block_size": 32, "batch_size": 4, "test_fraction": 0,
                "streaming": True, "stream_buffer": 500, "batches_per_epoch": 17, "seed": 0}  # fmt: skip
    return TextData(str(folder), **{**defaults, **arguments})


def epochs(loader, *numbers: int) -> list[dict]:
    batches = []
    for epoch in numbers:
        loader.sampler.set_epoch(epoch)
        batches += list(loader)
    return batches


def equal(ours, theirs) -> bool:
    return len(ours) == len(theirs) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


def text_of(of: TextData, batches: list[dict]) -> str:
    return "".join(of.tokenizer.decode(row.tolist()) for batch in batches for row in batch["input_ids"])


def test_a_pass_gives_every_token_once(folder):
    of = data(folder, batch_size=1, batches_per_epoch=10_000)
    loader, seen = of.train_dataloader(), []
    for batch in loader:
        if loader.state_dict()["places"][0][0] == 1:  # of the second pass
            break
        seen.append(batch)
    whole = data(folder, streaming=False, batches_per_epoch=None)
    whole.setup("fit")

    def counts(ids):
        return torch.bincount(ids.flatten(), minlength=of.vocab_size).index_fill(0, torch.tensor(of.pad_token_id), 0)

    ids = torch.cat([batch["input_ids"] for batch in seen])
    stored = torch.from_numpy(whole.train_set.tokens.records["id"].astype("int64"))
    assert torch.equal(counts(ids), counts(stored))


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_batches_do_not_depend_on_the_number_of_workers(folder, objective):
    runs = [
        epochs(data(folder, objective=objective, num_workers=workers).train_dataloader(), 0, 1, 2)
        for workers in (0, 1, 2)
    ]
    assert len(runs[0]) == 51
    assert equal(runs[0], runs[1])
    assert equal(runs[0], runs[2])
    assert not equal(runs[0], epochs(data(folder, objective=objective, seed=1).train_dataloader(), 0, 1, 2))


def test_workers_of_a_dropped_loader_end_at_once(folder):
    """Left to the garbage collector, each would be waited for, 5 seconds long."""
    gc.collect()
    before = set(multiprocessing.active_children())
    loader = data(folder, num_workers=2).train_dataloader()
    epochs(loader, 0)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    gc.disable()
    try:
        del loader
        assert not workers & set(multiprocessing.active_children())
    finally:
        gc.enable()
    assert all(worker.exitcode == 0 for worker in workers)  # told to stop, not killed


def test_an_epoch_goes_on_where_the_one_before_ended(folder):
    parts = epochs(data(folder).train_dataloader(), 0, 1, 2)
    whole = epochs(data(folder, batches_per_epoch=51).train_dataloader(), 0)
    assert equal(parts, whole)


def test_an_epoch_that_was_cut_short_is_gone_on_from(folder):
    loader, seen = data(folder).train_dataloader(), []
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        for i, batch in enumerate(loader):
            seen.append(batch)
            if i == 6:
                break
    assert equal(seen, epochs(data(folder, batches_per_epoch=35).train_dataloader(), 0))


def test_who_looks_at_a_batch_changes_nothing(folder):
    loader = data(folder).train_dataloader()
    next(iter(loader))
    loader.sampler.set_epoch(0)
    seen = []
    for i, batch in enumerate(loader):
        if i == 8:
            next(iter(loader))
        seen.append(batch)
    next(iter(loader))
    assert equal(seen + epochs(loader, 1), epochs(data(folder).train_dataloader(), 0, 1))


@pytest.mark.parametrize("position", [0, 1, 9, 16, 17])
@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_where_its_state_was_taken(folder, position, workers):
    undisturbed = epochs(data(folder, objective="masked").train_dataloader(), 0, 1, 2)
    loader = data(folder, objective="masked", num_workers=workers).train_dataloader()
    epochs(loader, 0)
    loader.sampler.set_epoch(1)
    iterator = iter(loader)
    for _ in range(position):
        next(iterator)
    state = loader.state_dict()

    resumed = data(folder, objective="masked").train_dataloader()
    resumed.load_state_dict(state)
    assert len(resumed) == 17
    assert equal(epochs(resumed, 1, 2), undisturbed[17 + position :])


def test_state_of_another_stream_is_refused(folder):
    state = data(folder).train_dataloader().state_dict()
    with pytest.raises(StructuredInitError, match="with stream buffer 500, now it is 400: resume with the same"):
        data(folder, stream_buffer=400).train_dataloader().load_state_dict(state)


def test_ranks_share_a_pass(folder):
    def seen(rank, replicas):
        loader = data(folder, batch_size=1, batches_per_epoch=10_000).train_dataloader()
        loader.groups.rank, loader.groups.num_replicas = rank, replicas
        found = []
        for batch, place in loader._batches((0, 0, 0)):
            if place[0] == 1:
                return found
            found.append(tuple(batch["input_ids"].flatten().tolist()))
        return found

    assert sorted(seen(0, 2) + seen(1, 2)) == sorted(seen(0, 1))


def test_parquet_is_streamed_too(folder, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = tmp_path / "parquet"
    place.mkdir()
    for file in sorted(folder.glob("*.txt")):
        lines = file.read_text().splitlines(keepends=True)
        pq.write_table(pa.table({"text": lines}), place / f"{file.stem}.parquet")
    assert equal(
        epochs(data(folder).train_dataloader(), 0, 1), epochs(data(place, num_workers=2).train_dataloader(), 0, 1)
    )


def test_a_tokenizer_is_trained_on_the_head_of_a_stream(folder, monkeypatch):
    import lightning_modules.data.text.text_data as text_data

    whole = data(folder, streaming=False, batches_per_epoch=None, tokenizer="bpe", vocab_size=290)
    assert data(folder, tokenizer="bpe", vocab_size=290).tokenizer.digest == whole.tokenizer.digest
    monkeypatch.setattr(text_data, "TRAINING_CHARACTERS", 100)
    assert data(folder, tokenizer="bpe", vocab_size=290).tokenizer.digest != whole.tokenizer.digest


class Bigrams(L.LightningModule):
    """Predicts a token from the one before it, with dropout; keeps what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(261, 261)
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch["input_ids"])
        logits = torch.nn.functional.dropout(self.table(batch["input_ids"][:, :-1]), 0.1)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Keep(Checkpoint):
    """Keeps every fifth step."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step % 5 == 0:
            trainer.save_checkpoint(self.place / f"step={trainer.global_step}.ckpt")


def trained(folder: Path, place: Path, ckpt_path: str | None = None) -> Bigrams:
    L.seed_everything(0, verbose=False)
    model = Bigrams()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[ExactResume(), Keep(place)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data(folder, batches_per_epoch=15), ckpt_path=ckpt_path, weights_only=True)
    return model


@pytest.mark.parametrize("step", [5, 15, 20, 40])
def test_a_resumed_training_is_the_undisturbed_one_bit_for_bit(folder, tmp_path, step):
    whole = trained(folder, tmp_path / "kept")
    assert len(whole.seen) == 45
    resumed = trained(folder, tmp_path / "kept", ckpt_path=str(tmp_path / "kept" / f"step={step}.ckpt"))
    assert len(resumed.seen) == 45 - step
    assert all(map(torch.equal, resumed.seen, whole.seen[step:]))
    assert torch.equal(resumed.table.weight, whole.table.weight)
