import csv
import json
import logging
import math
from pathlib import Path

import pytest
import torch
import training
import warm_process
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training import Classifier, Noisy, images

from callbacks import InitCallback, attention_map
from callbacks.attention_map import AttentionMapCallback, AttentionTables
from structured_init import Compose, Impulse
from structured_init.analysis import mean_distance, summarize, to_csv
from structured_init.errors import StructuredInitError
from structured_init.hosts import TokenLayout, register_positions

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


NO_GRID = "attention: no grid is known of {}, so their tokens count as a row: give grid= and prefix_tokens="


def fit(folder, callback=None, module=None, **options):
    """Train for two epochs of two steps."""
    callbacks = [callback] if callback else []
    return training.fit(folder, *callbacks, module=module, **{"max_epochs": 2, **options})


def attention_folder(trainer) -> Path:
    return Path(trainer.log_dir) / "attention"


def test_maps_statistics_and_figures_of_before_and_after_are_written(tmp_path):
    callback = AttentionMapCallback(samples=4)
    trainer, _ = fit(tmp_path, callback)
    folder = attention_folder(trainer)
    assert {path.name for path in folder.iterdir()} == {
        *("before.safetensors", "after.safetensors", "meta.json", "statistics.json", "statistics.csv"),
        *("maps.png", "zoom.png", "offset_profile.png", "statistics.png"),
    }
    before, after = load_file(folder / "before.safetensors"), load_file(folder / "after.safetensors")
    assert set(before) == set(after) == {"network.blocks.0.attn", "network.blocks.1.attn"}
    assert {(layer.shape, layer.dtype) for layer in before.values()} == {((4, 2, 17, 17), torch.float32)}
    assert not torch.equal(before["network.blocks.0.attn"], after["network.blocks.0.attn"])
    meta = json.loads((folder / "meta.json").read_text())["captures"]
    assert (meta["before"]["step"], meta["after"]["step"]) == (0, 4)
    assert meta["after"]["layers"]["network.blocks.1.attn"] == {
        "shape": [4, 2, 17, 17],
        "grid": [4, 4],
        "prefix_tokens": 1,
    }
    statistics = json.loads((folder / "statistics.json").read_text())
    expected = mean_distance(after["network.blocks.0.attn"], (4, 4), prefix_tokens=1).tolist()
    assert statistics["after"]["network.blocks.0.attn"]["mean_distance"] == pytest.approx(expected, abs=1e-5)


def test_the_rows_of_before_and_after_are_the_same_layers_also_of_more_than_ten(tmp_path, monkeypatch, tiny_vit):
    shown, draw = [], attention_map.map_figure
    monkeypatch.setattr(attention_map, "map_figure", lambda maps: shown.append(maps) or draw(maps))
    fit(tmp_path, AttentionMapCallback(samples=2), module=Classifier(tiny_vit(depth=12), lr=0), max_epochs=1)
    before, after = shown[0].values()
    assert list(before) == list(after) == [f"network.blocks.{number}.attn" for number in range(12)]


def test_after_holds_the_attention_of_the_trained_model_on_the_recorded_samples(tmp_path):
    callback = AttentionMapCallback(samples=4)
    _, module = fit(tmp_path, callback)
    record = callback.records["after"]
    assert record["data"] == "validation"
    x = images(1)[record["indices"]][0]
    block = module.network.blocks[0]
    block.attn.fused_attn = False
    block.attn.attn_drop.register_forward_hook(lambda _, args, output: seen.append(output))
    seen = []
    with torch.no_grad():
        module.eval()(x)
    torch.testing.assert_close(load_file(record["path"])["network.blocks.0.attn"], seen[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("with_validation", [True, False])
def test_training_is_bit_identical_with_and_without_capture(tmp_path, with_validation):
    options = {"train": Noisy()} | ({} if with_validation else {"limit_val_batches": 0})
    _, plain = fit(tmp_path / "plain", **options)
    _, captured = fit(tmp_path / "captured", AttentionMapCallback(every_n_epochs=1), **options)
    for name, parameter in plain.state_dict().items():
        assert torch.equal(parameter, captured.state_dict()[name]), name
    assert all(block.attn.fused_attn for block in captured.network.blocks)


def test_chosen_epochs_are_captured_too(tmp_path):
    callback = AttentionMapCallback(every_n_epochs=2, figures=False)
    trainer, _ = fit(tmp_path, callback, max_epochs=3)
    assert list(callback.records) == ["before", "epoch_0002", "after"]
    assert callback.records["epoch_0002"]["step"] == 4
    assert (attention_folder(trainer) / "epoch_0002.safetensors").exists()
    assert not list(attention_folder(trainer).glob("*.png"))


def test_resumed_run_keeps_its_before(tmp_path):
    first, _ = fit(tmp_path, AttentionMapCallback())
    original = (attention_folder(first) / "before.safetensors").read_bytes()
    callback = AttentionMapCallback()
    second, _ = fit(tmp_path, callback, max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert second.log_dir != first.log_dir
    assert callback.records["before"]["path"] == str((attention_folder(first) / "before.safetensors").absolute())
    assert callback.records["after"]["step"] == 6
    assert (attention_folder(first) / "before.safetensors").read_bytes() == original
    assert not (attention_folder(second) / "before.safetensors").exists()
    statistics = [json.loads((attention_folder(t) / "statistics.json").read_text()) for t in (first, second)]
    assert statistics[0]["before"] == statistics[1]["before"]
    assert (attention_folder(second) / "maps.png").exists()


def test_resumed_run_whose_before_is_gone_still_compares_statistics(tmp_path):
    first, _ = fit(tmp_path, AttentionMapCallback())
    (attention_folder(first) / "before.safetensors").unlink()
    second, _ = fit(tmp_path, AttentionMapCallback(), max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert "before" in json.loads((attention_folder(second) / "statistics.json").read_text())
    assert (attention_folder(second) / "maps.png").exists()


def test_run_resumed_from_a_checkpoint_without_the_callback_has_only_after(tmp_path):
    first, _ = fit(tmp_path)
    callback = AttentionMapCallback()
    fit(tmp_path, callback, max_epochs=3, ckpt_path=first.checkpoint_callback.best_model_path)
    assert list(callback.records) == ["after"]


def test_one_callback_serves_several_new_models(tmp_path):
    callback = AttentionMapCallback(figures=False)
    first, _ = fit(tmp_path, callback)
    second, _ = fit(tmp_path, callback, module=Classifier())
    assert callback.records["before"]["path"].startswith(str(second.log_dir))
    assert (attention_folder(first) / "before.safetensors").exists()


def test_without_a_logger_everything_goes_to_the_root_folder(tmp_path):
    fit(tmp_path, AttentionMapCallback(), logger=False, enable_checkpointing=False)
    assert (tmp_path / "attention" / "after.safetensors").exists()


def test_fast_dev_run_captures_and_writes_nothing(tmp_path):
    callback = AttentionMapCallback()
    fit(tmp_path, callback, fast_dev_run=True)
    assert callback.records["after"]["statistics"]
    assert not list(tmp_path.rglob("*.safetensors"))


def test_disabled_callback_does_nothing(tmp_path):
    trainer, _ = fit(tmp_path, callback := AttentionMapCallback(enabled=False))
    assert not callback.records
    assert not attention_folder(trainer).exists()


def test_unwritable_folder_is_found_before_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    module = Classifier()
    module.on_train_start = lambda: pytest.fail("training started")
    with pytest.raises(StructuredInitError, match="file/attention"):
        fit(tmp_path / "file", AttentionMapCallback(), module, logger=False, enable_checkpointing=False)


def test_model_without_attention_is_an_error_or_is_skipped_as_asked(tmp_path):
    def module():
        return Classifier(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))

    with pytest.raises(StructuredInitError, match=r"Classifier has no attention module .*Conv2d"):
        fit(tmp_path, AttentionMapCallback(), module())
    trainer, _ = fit(tmp_path, callback := AttentionMapCallback(on_missing="skip"), module())
    assert trainer.state.finished
    assert not callback.records
    assert not list(tmp_path.rglob("missing.json"))  # it does not attend


def test_attention_that_cannot_be_captured_is_a_warning_and_noted_where_it_is_to_be_skipped(tmp_path):
    class Attention(nn.Module):
        """Without a softmax that could be followed."""

        def forward(self, x):
            weights = x.flatten(2) @ x.flatten(2).mT
            return (weights - weights.logsumexp(-1, keepdim=True)).exp() @ x.flatten(2)

    network = nn.Sequential(Attention(), nn.Flatten(), nn.Linear(192, 3))
    with pytest.warns(UserWarning, match="attention: nothing was recorded at .*register_capture"):
        trainer, _ = fit(tmp_path, AttentionMapCallback(on_missing="skip"), Classifier(network))
    assert trainer.state.finished
    (noted,) = tmp_path.rglob("missing.json")
    assert set(json.loads(noted.read_text())["attention"]) == {"before", "after"}


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_maps_are_float32_in_any_precision(tmp_path, precision):
    callback = AttentionMapCallback(figures=False)
    fit(tmp_path, callback, precision=precision, max_epochs=1)
    maps = load_file(callback.records["after"]["path"])["network.blocks.0.attn"]
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-6, rtol=0)


def test_network_compiled_in_place_is_captured_under_its_names(tmp_path):
    module = Classifier()
    module.network.compile(backend="eager")
    fit(tmp_path, callback := AttentionMapCallback(figures=False), module, max_epochs=1)
    assert list(callback.records["after"]["layers"]) == ["network.blocks.0.attn", "network.blocks.1.attn"]


def test_module_says_what_its_forward_takes(tmp_path):
    class Named(Classifier):
        def forward(self, pixels, extra):
            return self.network(pixels + extra)

        def training_step(self, batch, index):
            return self(batch[0], 0).square().mean()

        def validation_step(self, batch, index):
            pass

        def probe_inputs(self, batch):
            return {"pixels": batch[0], "extra": torch.zeros_like(batch[0])}

    fit(tmp_path, callback := AttentionMapCallback(samples=3, figures=False), Named(), max_epochs=1)
    assert callback.records["after"]["layers"]["network.blocks.0.attn"]["shape"] == [3, 2, 17, 17]


def test_iterable_data_gives_its_first_samples(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(images(2))

    fit(tmp_path, callback := AttentionMapCallback(samples=3, figures=False), val=DataLoader(Stream(), 4), max_epochs=1)
    assert callback.records["before"]["indices"] == []
    assert callback.records["before"]["layers"]["network.blocks.0.attn"]["shape"][0] == 3


def test_grid_can_be_given_for_a_model_that_does_not_tell(tmp_path):
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            patches = nn.functional.unfold(x, 2, stride=2).mT
            return self.head(self.layer(patches).mean(1))

    fit(tmp_path, callback := AttentionMapCallback(grid=[4, 4]), Classifier(Patches()), max_epochs=1)
    assert callback.records["after"]["layers"]["network.layer.self_attn"]["grid"] == [4, 4]
    assert (Path(callback.records["after"]["path"]).parent / "offset_profile.png").exists()


def test_a_grid_that_is_given_is_used_where_it_fits_and_refused_where_it_never_does(tmp_path):
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = (nn.TransformerEncoderLayer(12, 2, 24, batch_first=True) for _ in range(2))
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            patches = self.fine(nn.functional.unfold(x, 2, stride=2).mT)
            return self.head(self.coarse(patches[:, ::4]).mean(1))

    fit(tmp_path, callback := AttentionMapCallback(grid=[4, 4]), Classifier(Pyramid()), max_epochs=1)
    assert [each["grid"] for each in callback.records["after"]["layers"].values()] == [[4, 4], None]
    with pytest.raises(StructuredInitError, match="grid"):
        fit(tmp_path, AttentionMapCallback(grid=[5, 5]), Classifier(Pyramid()), max_epochs=1)


def test_grid_and_prefix_of_a_model_of_ones_own_are_seen_in_a_forward_pass(tmp_path):
    class Own(nn.Module):
        """Two registers and a class token before the patches, and positions of the patches alone."""

        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Conv2d(3, 16, 2, 2), nn.Parameter(0.02 * torch.randn(1, 16, 16))
            self.first = nn.Parameter(0.02 * torch.randn(1, 3, 16))
            self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            patches = self.embed(x).flatten(2).mT + self.places
            return self.head(self.layer(torch.cat([self.first.expand(len(x), -1, -1), patches], dim=1))[:, 0])

    fit(tmp_path, callback := AttentionMapCallback(), Classifier(Own()), max_epochs=1)
    [of_layer] = callback.records["before"]["layers"].values()
    assert of_layer == {"shape": [8, 2, 19, 19], "grid": [4, 4], "prefix_tokens": 3}
    assert callback.records["after"]["layers"] == callback.records["before"]["layers"]


def test_a_pass_that_fails_ends_no_training_and_what_is_not_known_is_said(tmp_path, monkeypatch):
    class Own(nn.Module):
        """Takes no fewer than three images."""

        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            assert len(x) > 2
            return self.head(self.layer(nn.functional.unfold(x, 2, stride=2).mT).mean(1))

    said = []
    monkeypatch.setattr(attention_map, "rank_zero_info", said.append)
    fit(tmp_path, callback := AttentionMapCallback(), Classifier(Own()), max_epochs=1)
    [of_layer] = callback.records["after"]["layers"].values()
    assert of_layer["grid"] is None
    assert said == [NO_GRID.format("network.layer.self_attn")] * 2


def test_of_cross_attention_maps_alone_are_kept(tmp_path):
    class Asks(nn.Module):
        """Learned queries look at patches that have looked at each other."""

        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(12, 2, 24, batch_first=True)
            self.queries = nn.Parameter(torch.randn(1, 3, 12))
            self.asks = nn.MultiheadAttention(12, 2, batch_first=True)
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            patches = self.layer(nn.functional.unfold(x, 2, stride=2).mT)
            return self.head(self.asks(self.queries.expand(len(x), -1, -1), patches, patches)[0].mean(1))

    fit(tmp_path, callback := AttentionMapCallback(grid=[4, 4]), Classifier(Asks()), max_epochs=1)
    assert callback.records["after"]["layers"]["network.asks"]["shape"][2:] == [3, 16]
    assert list(callback.records["after"]["statistics"]) == ["network.layer.self_attn"]


@pytest.mark.parametrize("placed", [True, False])
def test_of_dates_of_images_the_grid_of_their_patches_is_seen_or_said_to_be_missing(placed, tmp_path, monkeypatch):
    class Dates(nn.Module):
        """Space layers over the patches of four dates, then time layers over the dates."""

        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Conv2d(3, 16, 2, 2), nn.Parameter(0.02 * torch.randn(1, 16, 16))
            self.dates = nn.Parameter(0.02 * torch.randn(1, 4, 16))
            self.space, self.time = (
                nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)]) for _ in range(2)
            )
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            patches = self.embed(x.flatten(0, 1)).flatten(2).mT
            patches = self.space[0](patches + self.places if placed else patches)
            return self.head(self.time[0](patches.mean(1).unflatten(0, (-1, 4)) + self.dates).mean(1))

    said, series = [], TensorDataset(torch.randn(8, 4, 3, 8, 8), torch.randint(3, (8,)))
    monkeypatch.setattr(attention_map, "rank_zero_info", said.append)
    loaders = {"train": series, "val": DataLoader(series, 8)}
    fit(tmp_path, callback := AttentionMapCallback(), Classifier(Dates()), max_epochs=1, **loaders)
    places = callback.records["after"]["layers"]
    assert [each["grid"] for each in places.values()] == [[4, 4] if placed else None, None]
    assert said == [NO_GRID.format(", ".join(places))] * (0 if placed else 2)


def test_grid_of_registered_positions_is_that_of_attention_in_a_plain_module(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.table = nn.Linear(12, 16), nn.Parameter(torch.randn(1, 17, 16))
            self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 3)

        def forward(self, x):
            x = nn.functional.pad(self.embed(nn.functional.unfold(x, 2, stride=2).mT), (0, 0, 1, 0)) + self.table
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.head(mixed.transpose(1, 2).flatten(2).mean(1))

    register_positions(Own)(lambda module: TokenLayout((4, 4), 1, module.table, 1))
    fit(tmp_path, callback := AttentionMapCallback(), Classifier(Own()), max_epochs=1)
    places = json.loads((Path(callback.records["after"]["path"]).parent / "meta.json").read_text())
    assert next(iter(places["captures"]["after"]["layers"].values())) == {
        "shape": [8, 2, 17, 17], "grid": [4, 4], "prefix_tokens": 1
    }  # fmt: skip


def test_figures_go_to_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer, _ = fit(tmp_path, AttentionMapCallback(), logger=TensorBoardLogger(tmp_path), max_epochs=1)
    events = EventAccumulator(trainer.log_dir).Reload()
    assert set(events.Tags()["images"]) == {f"attention/{n}" for n in ("maps", "zoom", "offset_profile", "statistics")}


def test_figures_go_to_a_logger_that_takes_image_files(tmp_path):
    logged = []

    class ImageLogger(CSVLogger):
        def log_image(self, key, images, step):
            logged.append((key, Path(images[0]).name, step))

    fit(tmp_path, AttentionMapCallback(), logger=ImageLogger(tmp_path), max_epochs=1)
    assert ("attention/maps", "maps.png", 2) in logged


SCRIPT = """
import sys, json, torch, lightning as L
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from training import Classifier, images
from torch.utils.data import DataLoader
from callbacks.attention_map import AttentionMapCallback

class Module(Classifier):
    def configure_model(self):
        if sys.argv[2] == "fsdp2" and not hasattr(self, "sharded"):
            for block in self.network.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])
            self.sharded = True

strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1) if sys.argv[2] == "fsdp2" else "ddp"
torch.manual_seed(0)
module, callback = Module(), AttentionMapCallback(samples=2, figures=False)
trainer = L.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False,
                    default_root_dir=sys.argv[1], callbacks=[callback], enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(module, DataLoader(images(0), 4), DataLoader(images(1), 4))
with open(f"{sys.argv[1]}/rank{trainer.global_rank}.json", "w") as file:
    json.dump(callback.records, file)
"""


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_capture_what_one_does(tmp_path, strategy):
    (tmp_path / "training.py").write_text(Path(training.__file__).read_text())
    (tmp_path / "script.py").write_text(SCRIPT)
    started, logs = warm_process.start_ranks(tmp_path / "script.py", [str(tmp_path), strategy], {}, tmp_path)
    warm_process.wait(started, logs, 240)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    alone = AttentionMapCallback(samples=2, figures=False)
    torch.manual_seed(0)
    fit(tmp_path / "alone", alone, Classifier())
    maps, expected = load_file(ranks[0]["before"]["path"]), load_file(alone.records["before"]["path"])
    assert list(maps) == list(expected)
    for name in maps:
        torch.testing.assert_close(maps[name], expected[name])


class Reader(Classifier):
    """Says what its tokens are called, shorter for a sample with padding."""

    def probe_tokens(self, batch):
        return [[f"token {i}" for i in range(17 - sample)] for sample in range(len(batch[0]))]


def test_a_module_that_names_its_tokens_gets_them_into_the_record_and_a_figure(tmp_path):
    trainer, _ = fit(tmp_path, AttentionMapCallback(samples=2), Reader())
    captures = json.loads((attention_folder(trainer) / "meta.json").read_text())["captures"]
    assert captures["before"]["tokens"] == captures["after"]["tokens"] == [f"token {i}" for i in range(17)]
    assert (attention_folder(trainer) / "tokens.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore:no attention map of")
def test_maps_of_which_a_host_has_mixed_the_heads_have_no_statistics(tmp_path):
    from timm.models.cait import Cait

    network = Cait(img_size=8, patch_size=2, embed_dim=12, depth=1, num_heads=2, num_classes=3, depth_token_only=1)
    nn.init.constant_(network.blocks[0].attn.proj_w.weight, -1.0)
    fit(tmp_path, callback := AttentionMapCallback(), Classifier(network), max_epochs=1)
    after = callback.records["after"]
    mixed = load_file(after["path"])["network.blocks.0.attn"]
    assert mixed.min() < 0
    assert "network.blocks.0.attn" in after["layers"]
    assert "network.blocks.0.attn" not in after["statistics"]


def test_tables_joined_from_parts_are_those_that_are_written_at_once(tmp_path):
    trainer, _ = fit(tmp_path, callback := AttentionMapCallback(samples=2, every_n_epochs=1, figures=False))
    folder, records = attention_folder(trainer), callback.records
    statistics = {phase: record["statistics"] for phase, record in records.items()}
    described = {phase: {k: v for k, v in record.items() if k != "statistics"} for phase, record in records.items()}
    assert list(records) == ["before", "epoch_0001", "epoch_0002", "after"]
    for name, content in (
        ("statistics.json", statistics),
        ("meta.json", {"model": "VisionTransformer", "captures": described}),
    ):
        assert (folder / name).read_text() == json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    assert (folder / "statistics.csv").read_text() == to_csv(statistics)


def test_a_column_that_comes_with_a_later_capture_is_in_the_whole_table(tmp_path):
    of_maps = summarize(torch.rand(1, 2, 4, 4).softmax(-1))
    records = {
        phase: {"step": step, "statistics": {"é\n": {**of_maps, **scores}}}
        for step, (phase, scores) in enumerate(
            {"before": {}, "after": {"previous_token_score": [0.1, math.nan]}}.items()
        )
    }
    AttentionTables().write(tmp_path, "Model", records)
    rows = list(csv.DictReader((tmp_path / "statistics.csv").read_text().splitlines(keepends=True)))
    assert [row["previous_token_score"] for row in rows] == ["", "", "0.1", "nan"]
    assert list(json.loads((tmp_path / "statistics.json").read_text())["after"]) == ["é\n"]
    AttentionTables().write(tmp_path, "Model", {})
    assert json.loads((tmp_path / "statistics.json").read_text()) == {}


def test_a_further_capture_encodes_none_of_those_before_it(tmp_path, monkeypatch):
    tables, encoded = AttentionTables(), []
    monkeypatch.setattr(attention_map, "to_csv", lambda phases: encoded.extend(phases) or "header\nrow\n")
    records = {}
    for phase in ("before", "epoch_0001", "epoch_0002", "after"):
        records[phase] = {"step": 0, "statistics": {}}
        tables.write(tmp_path, "Model", records)
        tables.state(records)
    assert encoded == ["before", "epoch_0001", "epoch_0002", "after"]
    tables.write(tmp_path, "Model", {"before": {"step": 0, "statistics": {}}})  # of another training
    assert encoded[4:] == ["before"]


def test_a_checkpoint_has_the_records(tmp_path):
    trainer, _ = fit(tmp_path, callback := AttentionMapCallback(samples=2, figures=False))
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    saved = torch.load(tmp_path / "whole.ckpt", weights_only=True)["callbacks"][callback.state_key]
    resumed = AttentionMapCallback()
    resumed.load_state_dict(saved)
    assert resumed.records == callback.records


@pytest.mark.parametrize("around", [lambda start: start, lambda start: Compose([start])])
def test_the_best_offset_is_looked_for_as_far_as_the_kernel_that_the_run_writes(tmp_path, around):
    start = around(Impulse(solver="separable"))
    callback = AttentionMapCallback(samples=2, window=1, figures=False)
    trainer, _ = training.fit(tmp_path, InitCallback(start, seed=0), callback, max_steps=1)
    statistics = json.loads((attention_folder(trainer) / "statistics.json").read_text())
    offsets = [offset for layer in statistics["before"].values() for offset in layer["offset"]]
    assert any(offset != [0, 0] for offset in offsets)
