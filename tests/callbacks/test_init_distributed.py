"""Two ranks start, train and resume as one. Run as a script, this file is one of the two; the tests read its notes."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from training import fsdp, hashes, quiet_trainer

from callbacks import InitCallback
from structured_init import (
    Compose,
    Initializer,
    KaimingUniform,
    Mimetic,
    Positions,
    StructuredInitError,
    attention_sites,
    initialize,
)
from structured_init.impulse.adam import real_tokens

SEED = 3
FIRST_RANK_SEED = 100  # of everything the host draws; the second rank has another one


def start():
    return Compose([KaimingUniform(), Mimetic()])


class ByRank(Initializer):
    """Writes what depends on the rank, as a start does whose computation differs between two machines."""

    def plan(self, weights, *, rng, batch=None):
        for name, parameter in weights.model.named_parameters():
            generator = rng.generator(name, os.environ.get("LOCAL_RANK", "0"))
            weights.write(parameter, torch.randn(parameter.shape, generator=generator), "ByRank")


class OfTokens(Initializer):
    """Fills every parameter with the mean of what comes to the first attention layer on real images."""

    needs_batch = True

    def plan(self, weights, *, rng, batch=None):
        mean = real_tokens(weights, attention_sites(weights)[0], batch).mean().item()
        for parameter in weights.model.parameters():
            weights.write(parameter, torch.full(parameter.shape, mean), "OfTokens")


class Classifier(pl.LightningModule):
    """A tiny vision transformer, built in the constructor, or in ``configure_model`` and sharded."""

    def __init__(self, late=False):
        super().__init__()
        self.network = None if late else self.build()

    def build(self):
        return VisionTransformer(img_size=8, patch_size=2, embed_dim=16, depth=2, num_heads=2, num_classes=5)

    def configure_model(self):
        if self.network is not None:
            return
        self.network = self.build()
        if self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            for block in self.network.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.network, mesh=mesh)

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return nn.functional.cross_entropy(self(images), labels)


class Watch(pl.Callback):
    """Notes a hash of every full parameter when training starts and ends."""

    def __init__(self):
        self.notes = {}

    def on_train_start(self, trainer, pl_module):
        self.notes["start"] = hashes(pl_module)
        sharded = [p for p in pl_module.parameters() if isinstance(p, DTensor) and p.to_local().shape != p.shape]
        self.notes["sharded"] = len(sharded)

    def on_train_end(self, trainer, pl_module):
        self.notes["end"] = hashes(pl_module)


def single_process(initializer, seed=SEED, batch=None):
    """Return the hashes of what one process makes of rank 0's model."""
    pl.seed_everything(FIRST_RANK_SEED, verbose=False)
    model = Classifier()
    initialize(model, initializer, seed=seed, batch=batch)
    return hashes(model)


def data(rank=0):
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(8, 3, 8, 8, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(8) % 5), batch_size=2)


def ddp():
    return DDPStrategy(process_group_backend="gloo")


def run(callback, strategy, folder, *, late=False, same_seed=False, epochs=1, resume=None, own_data=False):
    """Train on this rank; return what was seen, or the line of an expected mistake."""
    rank = int(os.environ["LOCAL_RANK"])
    pl.seed_everything(FIRST_RANK_SEED + (0 if same_seed else rank), verbose=False)
    model, watch = Classifier(late), Watch()
    watch.notes["built"] = {} if late else hashes(model)
    options = {"devices": 2, "strategy": strategy(), "max_epochs": epochs, "default_root_dir": folder}
    trainer = quiet_trainer(callbacks=[callback, watch], **options)
    try:
        trainer.fit(model, data(rank if own_data else 0), ckpt_path=resume and folder.parent / resume / "1.ckpt")
    except StructuredInitError as error:
        return {"error": str(error), "built": watch.notes["built"], "after": hashes(model)}
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return {
        **watch.notes,
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
        "applied": callback.report is not None,
        "seed": callback.report and callback.report.seed,
        "report": (folder / "init_report.json").exists(),
    }


def both(seen, scenario):
    first, second = (rank[scenario] for rank in seen)
    return first, second


def seeded(initializer, **arguments):
    return InitCallback(initializer, seed=SEED, **arguments)


def frozen():
    return Positions(trainable=False)


WHOLE = {"late": True, "same_seed": True}  # sharded, of the same weights on both ranks
SCENARIOS = {
    "ddp_plan": lambda folder: run(seeded(start()), ddp, folder),
    "ddp_values_by_rank": lambda folder: run(seeded(ByRank(), when="setup"), ddp, folder),
    "ddp_seed_of_everything": lambda folder: run(InitCallback(start()), ddp, folder),
    "ddp_real_images": lambda folder: run(seeded(OfTokens()), ddp, folder, own_data=True),
    "ddp_frozen": lambda folder: run(seeded(frozen()), ddp, folder),
    "ddp_frozen_resumed": lambda folder: run(seeded(frozen()), ddp, folder, epochs=2, resume="ddp_frozen"),
    "ddp_frozen_late": lambda folder: run(seeded(frozen()), ddp, folder, late=True),
    "fsdp_plan": lambda folder: run(seeded(start()), fsdp, folder, **WHOLE),
    "fsdp_real_images": lambda folder: run(seeded(OfTokens()), fsdp, folder, own_data=True, **WHOLE),
    "fsdp_values_by_rank": lambda folder: run(seeded(ByRank()), fsdp, folder, late=True),
    "fsdp_resumed": lambda folder: run(seeded(start()), fsdp, folder, late=True, epochs=2, resume="fsdp_plan"),
    "fsdp_frozen": lambda folder: run(seeded(frozen()), fsdp, folder, **WHOLE),
}


# DDP


def test_ddp_ranks_with_different_global_seeds_start_from_the_single_process_plan_and_end_equal(tmp_path):
    import warm_process  # not where this file is the script

    warm_process.wait(*warm_process.start_ranks(__file__, [str(tmp_path), "ddp_plan"], {}, tmp_path), 240)
    first, second = both([json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)], "ddp_plan")
    assert first["built"] != second["built"]  # else the test could not fail
    assert first["start"] == second["start"] == single_process(start())
    assert first["end"] == second["end"]
    assert not set(first["start"].values()) & set(first["end"].values())  # every parameter was trained


@pytest.mark.distributed
@pytest.mark.parametrize("scenario", ["ddp_values_by_rank", "fsdp_values_by_rank"])
def test_values_that_differ_between_ranks_become_rank_zeros(two_processes, scenario):
    first, second = both(two_processes, scenario)
    assert first["start"] == second["start"] == single_process(ByRank())
    assert first["end"] == second["end"]


@pytest.mark.distributed
def test_without_a_seed_every_rank_draws_and_reports_with_that_of_rank_zero(two_processes):
    first, second = both(two_processes, "ddp_seed_of_everything")
    assert first["seed"] == second["seed"] == FIRST_RANK_SEED
    assert first["start"] == second["start"] == single_process(start(), seed=FIRST_RANK_SEED)


@pytest.mark.distributed
@pytest.mark.parametrize("scenario", ["ddp_real_images", "fsdp_real_images"])
def test_every_rank_solves_for_the_training_images_of_rank_zero(two_processes, scenario):
    first, second = both(two_processes, scenario)
    assert first["start"] == second["start"] == single_process(OfTokens(), batch=data().dataset.tensors[0])
    assert first["end"] == second["end"]


@pytest.mark.distributed
def test_frozen_positions_train_under_ddp_and_resume_with_matching_optimizer_groups(two_processes):
    positions = "network.pos_embed"
    for rank in two_processes:
        fresh, resumed = rank["ddp_frozen"], rank["ddp_frozen_resumed"]
        assert fresh["frozen"] == resumed["frozen"] == [positions]
        assert fresh["start"] == single_process(Positions(trainable=False))
        assert fresh["start"][positions] == fresh["end"][positions] == resumed["end"][positions]
        assert resumed["start"] == fresh["end"]
        assert resumed["end"] != resumed["start"]
        assert not resumed["applied"]


@pytest.mark.distributed
def test_freezing_what_ddp_has_already_wrapped_is_refused_on_every_rank(two_processes):
    for seen in both(two_processes, "ddp_frozen_late"):
        assert seen["error"] == (
            "'network.pos_embed' cannot be frozen after DDP has wrapped it: build it in the constructor, "
            "not in configure_model"
        )


# FSDP2: DTensors, restored after on_fit_start


@pytest.mark.distributed
def test_sharded_start_is_the_single_process_plan_bit_for_bit(two_processes):
    expected = single_process(start())
    for seen in both(two_processes, "fsdp_plan"):
        assert seen["sharded"]
        assert seen["start"] == expected
    first, second = both(two_processes, "fsdp_plan")
    assert first["end"] == second["end"] != first["start"]
    assert first["report"]


@pytest.mark.distributed
def test_sharded_resumed_run_keeps_its_weights_and_its_report(two_processes):
    for rank in two_processes:
        fresh, resumed = rank["fsdp_plan"], rank["fsdp_resumed"]
        assert resumed["start"] == fresh["end"]
        assert resumed["end"] != resumed["start"]
        assert not resumed["applied"]
        assert resumed["report"]


@pytest.mark.distributed
def test_sharded_layers_built_late_are_frozen(two_processes):
    for seen in both(two_processes, "fsdp_frozen"):
        assert seen["frozen"] == ["network.pos_embed"]
        assert seen["start"]["network.pos_embed"] == seen["end"]["network.pos_embed"]
        assert seen["start"] == single_process(Positions(trainable=False))


def main():
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    seen = {name: SCENARIOS[name](folder / name) for name in sys.argv[2:] or SCENARIOS}
    (folder / f"{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
