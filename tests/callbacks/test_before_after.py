"""Callbacks that look at a model before and after training: filters, representations, weight products."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import strangers
import torch
import training
import warm_process
from safetensors.torch import load_file
from timm.models.convmixer import ConvMixer
from torch import nn
from torch.utils.data import DataLoader
from training import Classifier, Noisy, fit, images

from callbacks import AttentionMapCallback, FilterCallback, InitCallback, RepresentationCallback, WeightProductsCallback
from callbacks.before_after import BeforeAndAfter
from structured_init import Mimetic
from structured_init.analysis.filters import FILTER_STATISTICS, empirical_covariance
from structured_init.util.errors import StructuredInitError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
FILTERS = ["network.blocks.0.0.fn.0", "network.blocks.1.0.fn.0"]
LAYER = "network.blocks.1.attn"


def wide() -> nn.Module:
    return training.transformer(72)  # wider than the corner that is kept


def mixer() -> nn.Module:
    return ConvMixer(6, 2, kernel_size=3, patch_size=2, num_classes=3, drop_rate=0.2)


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def small(**changes) -> RepresentationCallback:
    return RepresentationCallback(**{"samples": 16, "batch_size": 8} | changes)


# Folder → a callback, a network that has what it looks at, and one that has not.
LOOKS = {
    "attention": (partial(AttentionMapCallback, samples=2, figures=False, on_missing="skip"), wide, dense),
    "filters": (FilterCallback, mixer, dense),
    "representations": (small, wide, dense),
    "weight_products": (WeightProductsCallback, wide, dense),
}
EACH = pytest.mark.parametrize("what", LOOKS)


def phases(trainer, what) -> dict[str, dict[str, torch.Tensor]]:
    folder = Path(trainer.log_dir) / what
    return {path.stem: load_file(path) for path in sorted(folder.glob("*.safetensors"), reverse=True)}


# When to look


class Watching(BeforeAndAfter):
    def __init__(self):
        super().__init__()
        self.seen = []

    def capture(self, phase, trainer, pl_module):
        self.seen.append(phase)
        self.records[phase] = {"path": f"new {phase}"}


def trained(callback, **trainer):
    trainer = SimpleNamespace(**{"ckpt_path": None, "global_step": 0, **trainer})
    callback.on_train_start(trainer, None)
    callback.on_train_end(trainer, None)
    return callback


def test_a_model_is_looked_at_before_its_training_only():
    callback = trained(Watching())
    assert callback.seen == ["before", "after"]
    assert trained(callback).seen == ["before", "after"] * 2  # the next model
    assert callback.records["before"] == {"path": "new before"}
    assert trained(Watching(), global_step=5).seen == ["after"]  # it was trained already


@pytest.mark.parametrize("step", [0, 5])
def test_a_resumed_run_keeps_what_it_saw_before_training(step):
    earlier, callback = Watching(), Watching()
    earlier.records = {"before": {"path": "old before"}}
    callback.load_state_dict(earlier.state_dict())
    assert trained(callback, ckpt_path="last.ckpt", global_step=step).seen == ["after"]
    assert callback.records["before"] == {"path": "old before"}


# What all of them promise


@EACH
def test_training_without_validation_is_bit_identical_with_and_without_the_callback(tmp_path, what):
    callback, network, _ = LOOKS[what]
    options = {"module": network, "train": Noisy(), "limit_val_batches": 0}
    _, plain = fit(tmp_path / "plain", **options)
    trainer, looked_at = fit(tmp_path / "looked_at", callback(), **options)
    assert list(phases(trainer, what)) == ["before", "after"]
    for name, value in plain.state_dict().items():
        assert torch.equal(value, looked_at.state_dict()[name]), name
    assert not any(module._forward_hooks for module in looked_at.modules())


@EACH
def test_a_resumed_run_keeps_its_before_and_gets_a_copy(tmp_path, what):
    make, network, _ = LOOKS[what]
    first, _ = fit(tmp_path, make(), module=network)
    checkpoint, callback = first.checkpoint_callback.best_model_path, make()
    second, _ = fit(tmp_path, callback, module=network, max_epochs=2, ckpt_path=checkpoint)
    assert second.log_dir != first.log_dir
    original, copied = (Path(each.log_dir) / what / "before.safetensors" for each in (first, second))
    assert callback.records["before"]["path"] == str(original.absolute())
    assert original.read_bytes() == copied.read_bytes()
    earlier, later = phases(first, what), phases(second, what)
    assert all(torch.equal(value, later["before"][name]) for name, value in earlier["before"].items())
    assert not any(torch.equal(value, later["after"][name]) for name, value in earlier["before"].items())
    numbers = {"weight_products": "summary.json"}.get(what, "statistics.json")
    if what != "representations":
        tables = [json.loads((Path(each.log_dir) / what / numbers).read_text()) for each in (first, second)]
        assert tables[0]["before"] == tables[1]["before"]
        assert tables[0]["after"] != tables[1]["after"]
        assert ("change" in tables[1]) == (what == "filters")


@EACH
def test_a_fast_run_a_disabled_callback_and_a_model_that_has_nothing_write_nothing(tmp_path, what):
    make, network, without = LOOKS[what]
    disabled = make()
    disabled.enabled = False
    fit(tmp_path, make(), module=network, fast_dev_run=True)
    fit(tmp_path, disabled, module=network)
    fit(tmp_path, make(), module=without)
    assert not list(tmp_path.rglob(what))
    assert not list(tmp_path.rglob("missing.json"))


def test_a_folder_that_cannot_be_written_is_one_line_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    module = Classifier(mixer())
    module.on_train_start = lambda: pytest.fail("training started")
    with pytest.raises(StructuredInitError, match=r"^cannot write '.*file/filters/before\.safetensors'.*$"):
        fit(tmp_path / "file", FilterCallback(), module=module, logger=False, enable_checkpointing=False)


# Filters


def test_filters_before_and_after_training_are_kept_described_and_drawn(tmp_path):
    module = Classifier(mixer())
    start = {name: module.get_submodule(name).weight.detach().clone() for name in FILTERS}
    trainer, _ = fit(tmp_path, FilterCallback(), module=module)
    seen, folder = phases(trainer, "filters"), Path(trainer.log_dir) / "filters"
    before, after = seen["before"], seen["after"]
    assert list(before) == list(after) == FILTERS
    for name in FILTERS:
        assert torch.equal(before[name], start[name][:, 0])
        assert torch.equal(after[name], module.get_submodule(name).weight[:, 0])
        assert not torch.equal(before[name], after[name])
    numbers = json.loads((folder / "statistics.json").read_text())
    assert set(numbers) == {"before", "after", "change"}
    assert set(numbers["after"][FILTERS[1]]) == set(FILTER_STATISTICS)
    trace = empirical_covariance(after[FILTERS[0]], centred=False).trace().item()
    assert numbers["after"][FILTERS[0]]["energy"] == pytest.approx(trace)
    moved = (after[FILTERS[0]] - before[FILTERS[0]]).norm() / before[FILTERS[0]].norm()
    assert numbers["change"][FILTERS[0]]["relative_change"] == pytest.approx(moved.item(), rel=1e-5)
    assert {path.name for path in folder.glob("*.png")} == {"covariances.png", "filters.png", "variances.png"}


# Representations


def test_files_hold_the_centred_gram_matrices_of_the_trained_blocks(tmp_path):
    val = DataLoader(images(1, 24), 8)
    trainer, module = fit(tmp_path, small(), val=val)
    before, after = phases(trainer, "representations").values()
    assert list(before) == list(after) == ["network.blocks.0", "network.blocks.1"]
    assert {(tuple(gram.shape), gram.dtype) for gram in after.values()} == {((2, 8, 8), torch.float32)}
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))[:16].sort().values
    network = module.network.eval()
    with torch.no_grad():
        x = network.norm_pre(network._pos_embed(network.patch_embed(images(1, 24)[order][0])))
        for index, block in enumerate(network.blocks):
            x = block(x)
            features = (x.flatten(1)[:8] - x.flatten(1)[:8].mean(0)).double()
            expected = (features @ features.T).float()
            torch.testing.assert_close(after[f"network.blocks.{index}"][0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("network", "samples", "line"),
    [
        (dense, 24, "Classifier has no list of equal blocks to look at"),
        (wide, 3, "similarities need at least 4 samples, got 3"),
    ],
)
def test_nothing_to_look_at_is_a_line_and_training_goes_on(tmp_path, network, samples, line, monkeypatch):
    said = []
    monkeypatch.setattr("callbacks.before_after.rank_zero_info", said.append)
    trainer, _ = fit(tmp_path, small(), module=network, val=DataLoader(images(1, samples), 8))
    assert trainer.state.finished
    assert said == [f"representations: {line}"]


# Two processes


SCRIPT = """
import sys, json, torch
from torch.distributed.fsdp import fully_shard
from training import Classifier, fsdp, images, quiet_trainer
from torch.utils.data import DataLoader
from callbacks import AttentionMapCallback, RepresentationCallback
from structured_init.util.errors import StructuredInitError

folder, what, strategy = sys.argv[1:]

class Module(Classifier):
    def configure_model(self):
        if strategy == "fsdp2" and not hasattr(self, "sharded"):
            for block in self.network.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])
            self.sharded = True

def fit(folder):
    torch.manual_seed(0)
    looks = {"attention": AttentionMapCallback(samples=2, figures=False),
             "representations": RepresentationCallback(samples=16, batch_size=8)}
    module, callback = Module(), looks[what]
    trainer = quiet_trainer(devices=2, strategy=fsdp() if strategy == "fsdp2" else strategy,
                            default_root_dir=folder, callbacks=[callback])
    error = None
    try:
        trainer.fit(module, DataLoader(images(0), 4), DataLoader(images(1), 4))
    except StructuredInitError as failure:
        error = str(failure)
    return trainer.global_rank, [callback.records["before"]["path"] if callback.records else None, error]

rank, found = fit(folder)
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump([found, fit(f"{folder}/in_the_way/logs")[1]], file)
"""


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("what", "strategy"), [("attention", "ddp"), ("attention", "fsdp2"), ("representations", "ddp")]
)
def test_two_processes_keep_what_one_does_and_fail_together(tmp_path, what, strategy):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "in_the_way").write_text("")
    started, logs = warm_process.start_ranks(tmp_path / "script.py", [str(tmp_path), what, strategy], {}, tmp_path)
    warm_process.wait(started, logs, 240)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    (path, error), (_, failure) = ranks[0]
    assert error is None
    assert "cannot write" in failure
    torch.manual_seed(0)
    alone, _ = fit(tmp_path / "alone", LOOKS[what][0](), module=Classifier())
    found, expected = load_file(path), phases(alone, what)["before"]
    assert list(found) == list(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name])


# Weight products


def products_of(module):
    """Written out: W_q W_kᵀ of each of two heads, and Σ_h W_v W_o, of timm's fused layer (x Wᵀ)."""
    state = module.state_dict()
    query, key, value = (part.T.double() for part in state[f"{LAYER}.qkv.weight"].chunk(3))
    heads = [slice(0, 36), slice(36, 72)]
    products = torch.stack([query[:, head] @ key[:, head].T for head in heads])
    return products.float(), (value @ state[f"{LAYER}.proj.weight"].T.double()).float()


def test_files_hold_the_corners_and_the_summary_those_of_the_whole_products(tmp_path):
    trainer, module = fit(tmp_path, WeightProductsCallback(), module=wide)
    after = phases(trainer, "weight_products")["after"]
    query_key, value_output = products_of(module)
    torch.testing.assert_close(after[f"{LAYER}:query_key"], query_key[:, :64, :64])
    torch.testing.assert_close(after[f"{LAYER}:value_output"], value_output[:64, :64])
    summary = json.loads((Path(trainer.log_dir) / "weight_products" / "summary.json").read_text())
    assert list(summary) == ["before", "after"]
    assert list(summary["after"]) == ["network.blocks.0.attn", LAYER]
    diagonals = [product.trace().item() / 72 for product in query_key]
    assert summary["after"][LAYER]["query_key_diagonal"] == pytest.approx(diagonals, rel=1e-4, abs=1e-7)
    off = value_output[~torch.eye(72, dtype=torch.bool)].std().item()
    assert summary["after"][LAYER]["value_output_off_diagonal_std"] == pytest.approx(off, rel=1e-4)


def test_before_is_what_the_initializer_wrote(tmp_path):
    trainer, _ = fit(tmp_path, InitCallback(Mimetic()), WeightProductsCallback(), module=wide)
    before, after = phases(trainer, "weight_products").values()
    summary = json.loads((Path(trainer.log_dir) / "weight_products" / "summary.json").read_text())["before"][LAYER]
    # The method's definition: W_q W_kᵀ = αZ + βI with β = 0.7, W_v W_o = αZ − βI; of the host's weights both are 0.
    assert min(summary["query_key_diagonal"]) > 0.2
    assert summary["value_output_diagonal"] < -0.1
    assert not torch.equal(before[f"{LAYER}:query_key"], after[f"{LAYER}:query_key"])


def test_a_diverged_run_ends_and_its_numbers_are_null(tmp_path):
    trainer, _ = fit(tmp_path, WeightProductsCallback(), module=Classifier(lr=float("inf")))
    assert trainer.state.finished
    text = (Path(trainer.log_dir) / "weight_products" / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["after"][LAYER]["query_key_diagonal"] == [None, None]
    assert phases(trainer, "weight_products")["after"][f"{LAYER}:query_key"].isnan().all()


class Own(nn.Module):
    """Attention of its own, called nothing of the kind, beside a known one."""

    def __init__(self, kind):
        super().__init__()
        self.patches, self.mix, self.known = nn.Linear(12, 12), kind(), training.transformer(12).blocks[0]
        self.head = nn.Linear(12, 3)

    def forward(self, images):
        tokens = self.patches(images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(-1, 16, 12))
        return self.head(self.known(tokens + self.mix(tokens)).mean(1))


def test_attention_that_only_a_pass_shows_is_among_the_products(tmp_path):
    trainer, module = fit(tmp_path, WeightProductsCallback(), module=Classifier(Own(strangers.Apart)))
    after, mix = phases(trainer, "weight_products")["after"], module.network.mix
    assert {name.partition(":")[0] for name in after} == {"network.mix", "network.known.attn"}
    torch.testing.assert_close(after["network.mix:value_output"], mix.carry.weight.T @ mix.write.weight.T)
    assert not list(tmp_path.rglob("missing.json"))


def test_attention_whose_projections_are_not_seen_is_noted_as_missing(tmp_path):
    kind = type("Gated", (strangers.Apart,), {"attend": lambda _, q, k, v: (-(q @ k.mT)).softmax(-1).square() @ v})
    with pytest.warns(UserWarning, match="weight products of network.mix: nothing was recorded at"):
        trainer, _ = fit(tmp_path, WeightProductsCallback(), module=Classifier(Own(kind)))
    assert {name.partition(":")[0] for name in phases(trainer, "weight_products")["after"]} == {"network.known.attn"}
    (noted,) = tmp_path.rglob("missing.json")
    assert set(json.loads(noted.read_text())["weight products of network.mix"]) == {"before", "after"}
