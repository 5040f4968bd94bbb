import copy
import json
import logging
from pathlib import Path

import pytest
import torch
import training
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from training import Classifier, Noisy, images

from callbacks.attention_map import AttentionMapCallback, widest_kernel
from structured_init import Compose, Impulse, Mimetic, Scrambled
from structured_init.analysis import mean_distance
from structured_init.util.errors import StructuredInitError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def fit(folder, callback=None, module=None, **options):
    """Train for two epochs of two steps."""
    callbacks = [callback] if callback else []
    return training.fit(folder, *callbacks, module=module, **{"max_epochs": 2, **options})


def attention_folder(trainer) -> Path:
    return Path(trainer.log_dir) / "attention"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training with every figure: its trainer, its module and its callback."""
    callback = AttentionMapCallback(samples=4)
    return *fit(tmp_path_factory.mktemp("trained"), callback), callback


def test_maps_statistics_and_figures_of_before_and_after_are_written(trained):
    folder = attention_folder(trained[0])
    assert {path.name for path in folder.iterdir()} == {
        *("before.safetensors", "after.safetensors", "meta.json", "statistics.json", "statistics.csv"),
        *("maps.png", "zoom.png", "offset_profile.png", "statistics.png"),
    }
    before, after = load_file(folder / "before.safetensors"), load_file(folder / "after.safetensors")
    assert list(before) == list(after) == ["network.blocks.0.attn", "network.blocks.1.attn"]
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


def test_after_holds_the_attention_of_the_trained_model_on_the_recorded_samples(trained):
    _, module, callback = trained
    record = callback.records["after"]
    assert record["data"] == "validation"
    network = copy.deepcopy(module.network).eval()
    network.blocks[0].attn.fused_attn = False
    network.blocks[0].attn.attn_drop.register_forward_hook(lambda _, args, output: seen.append(output))
    seen = []
    with torch.no_grad():
        network(images(1)[record["indices"]][0])
    torch.testing.assert_close(load_file(record["path"])["network.blocks.0.attn"], seen[0], atol=1e-6, rtol=1e-5)


def test_training_is_bit_identical_with_and_without_capture(tmp_path):
    _, plain = fit(tmp_path / "plain", train=Noisy())
    callback = AttentionMapCallback(every_n_epochs=1, figures=False)
    _, captured = fit(tmp_path / "captured", callback, train=Noisy())
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


def test_resumed_run_whose_before_is_gone_or_was_never_made_goes_on(tmp_path):
    for name, callbacks in (("gone", [AttentionMapCallback(figures=False)]), ("without", [])):
        first, _ = training.fit(tmp_path / name, *callbacks)
        (attention_folder(first) / "before.safetensors").unlink(missing_ok=True)
        path, callback = first.checkpoint_callback.best_model_path, AttentionMapCallback(figures=bool(callbacks))
        second, _ = fit(tmp_path / name, callback, ckpt_path=path)
        assert list(callback.records) == (["before", "after"] if callbacks else ["after"])
        assert (attention_folder(second) / "maps.png").exists() == bool(callbacks)
        assert [path.stem for path in attention_folder(second).glob("*.safetensors")] == ["after"]


def test_model_without_attention_is_an_error_unless_it_is_to_be_skipped(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(StructuredInitError, match=r"Classifier has no attention module .*Conv2d"):
        fit(tmp_path, AttentionMapCallback(), Classifier(network))


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


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_maps_are_float32_in_any_precision(tmp_path, precision):
    callback = AttentionMapCallback(figures=False)
    fit(tmp_path, callback, precision=precision, max_epochs=1)
    maps = load_file(callback.records["after"]["path"])["network.blocks.0.attn"]
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-6, rtol=0)


def test_iterable_data_gives_its_first_samples(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(images(2))

    fit(tmp_path, callback := AttentionMapCallback(samples=3, figures=False), val=DataLoader(Stream(), 4), max_epochs=1)
    assert callback.records["before"]["indices"] == []
    assert callback.records["before"]["layers"]["network.blocks.0.attn"]["shape"][0] == 3


def test_a_grid_that_is_given_is_used_where_it_fits_and_refused_where_it_never_does(tmp_path):
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = (nn.TransformerEncoderLayer(12, 2, 24, batch_first=True) for _ in range(2))
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            patches = self.fine(nn.functional.unfold(x, 2, stride=2).mT)
            return self.head(self.coarse(patches[:, ::4]).mean(1))

    fit(tmp_path, callback := AttentionMapCallback(grid=[4, 4], figures=False), Classifier(Pyramid()), max_epochs=1)
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

    fit(tmp_path, callback := AttentionMapCallback(figures=False), Classifier(Own()), max_epochs=1)
    [of_layer] = callback.records["before"]["layers"].values()
    assert of_layer == {"shape": [8, 2, 19, 19], "grid": [4, 4], "prefix_tokens": 3}
    assert callback.records["after"]["layers"] == callback.records["before"]["layers"]


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

    fit(tmp_path, callback := AttentionMapCallback(grid=[4, 4], figures=False), Classifier(Asks()), max_epochs=1)
    assert callback.records["after"]["layers"]["network.asks"]["shape"][2:] == [3, 16]
    assert list(callback.records["after"]["statistics"]) == ["network.layer.self_attn"]


def test_figures_go_to_tensorboard_and_to_a_logger_that_takes_image_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged = []

    class ImageLogger(CSVLogger):
        def log_image(self, key, images, step):
            logged.append((key, Path(images[0]).name, step))

    board = TensorBoardLogger(tmp_path)
    fit(tmp_path, AttentionMapCallback(samples=2), logger=[ImageLogger(tmp_path), board], max_epochs=1)
    events = EventAccumulator(board.log_dir).Reload()
    assert set(events.Tags()["images"]) == {f"attention/{n}" for n in ("maps", "zoom", "offset_profile", "statistics")}
    assert ("attention/maps", "maps.png", 2) in logged


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
    fit(tmp_path, callback := AttentionMapCallback(figures=False), Classifier(network), max_epochs=1)
    after = callback.records["after"]
    mixed = load_file(after["path"])["network.blocks.0.attn"]
    assert mixed.min() < 0
    assert "network.blocks.0.attn" in after["layers"]
    assert "network.blocks.0.attn" not in after["statistics"]


def test_the_best_offset_is_looked_for_as_far_as_the_largest_kernel_that_the_run_writes():
    assert widest_kernel([Mimetic(), Scrambled(Compose([Impulse(), Impulse(kernel_size=5)]))]) == 5
    assert widest_kernel([Impulse(kernel_size=1)]) == 3
