"""PatchWhitening: what the first layer writes on real patches, on every kind of image network."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import Classifier, quiet_trainer

from callbacks import InitCallback
from lightning_modules.cli.configurations import find_config
from lightning_modules.networks import create_network
from structured_init import Compose, PatchWhitening, Positions, StructuredInitError, initialize


@pytest.fixture(scope="module")
def images():
    """Smooth images: neighbours are alike, as in photographs."""
    noise = torch.randn(16, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 9, stride=1) * 5 + noise[..., 4:-4, 4:-4] * 0.1


def outputs(layer, images):
    """What a convolution writes inside the images, (patches, filters) in float64."""
    inside = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, bias=False)
    inside.weight = nn.Parameter(layer.weight.detach().double())
    return inside.double()(images.double()).movedim(1, -1).flatten(0, -2).detach()


def spread(layer, images):
    """Eigenvalues of the second moment of what is written, those of d directions, ascending."""
    written = outputs(layer, images)
    return torch.linalg.eigvalsh(written.mT @ written / len(written))


@pytest.mark.parametrize("filters", [48, 200])
def test_all_directions_of_a_patch_are_equally_large_behind_it_and_the_gain_is_that_asked_for(images, filters):
    model = nn.Sequential(nn.Conv2d(3, filters, 4, 4))
    before = spread(model[0], images)[-48:]
    initialize(model, PatchWhitening(gain=0.5, floor=1e-9), seed=0, batch=images)
    after = spread(model[0], images)[-48:]
    assert before[-1] / before[0] > 100
    assert after[-1] / after[0] < 1.001
    assert outputs(model[0], images).square().mean().sqrt().item() == pytest.approx(0.5, rel=1e-5)
    assert not model[0].bias.any()


def test_directions_below_the_floor_stay_smaller(images):
    model = nn.Sequential(nn.Conv2d(3, 48, 4, 4))
    raw = torch.linalg.eigvalsh(moment(images))
    initialize(model, PatchWhitening(floor=0.01), seed=0, batch=images)
    expected = raw / (raw + 0.01 * raw[-1])
    found = spread(model[0], images)
    torch.testing.assert_close(found / found[-1], expected / expected[-1], atol=1e-5, rtol=1e-4)


def moment(images):
    patches = nn.functional.unfold(images.double(), 4, stride=4).mT.flatten(0, 1)
    return patches.mT @ patches / len(patches)


def test_an_exponent_of_zero_leaves_orthonormal_filters_of_the_same_gain(images):
    model = nn.Sequential(nn.Conv2d(3, 60, 4, 4))
    initialize(model, PatchWhitening(exponent=0.0), seed=0, batch=images)
    singular = torch.linalg.svdvals(model[0].weight.detach().flatten(1).double())
    assert (singular[-1] / singular[0]).item() == pytest.approx(1, abs=1e-5)
    assert outputs(model[0], images).square().mean().sqrt().item() == pytest.approx(0.7, rel=1e-5)
    assert spread(model[0], images)[-48:].div(spread(model[0], images)[-1])[0] < 0.01


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: create_network("vit_nano_patch2_8", image_size=16), "patch_embed.proj"),
        (lambda: create_network("convmixer_8_1_k3_p2", image_size=16), "stem.0"),
        (lambda: create_network("cct_2_3x2_32", image_size=16), None),
        (lambda: timm.create_model("resnet10t", num_classes=3), "conv1.0"),
    ],
    ids=["ViT", "ConvMixer", "CCT", "ResNet"],
)
def test_the_first_layer_of_an_image_network_is_found(images, build, name):
    model = build()
    report = initialize(model, PatchWhitening(), seed=0, batch=images)
    changed = {each.rpartition(".")[0] for entry in report.changed for each in entry.names}
    first = next(each for each, module in model.named_modules() if isinstance(module, nn.Conv2d))
    assert changed == {name or first} == {first}


class OfPatches(nn.Module):
    """A patch embedding by a linear layer, which stands last in the list of modules."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(48, 3)
        self.embed = nn.Linear(48, 48, bias=False)

    def forward(self, x):
        patches = nn.functional.unfold(x, 4, stride=4).mT
        return self.head(self.embed(patches).mean(1))


def test_a_linear_patch_embedding_is_whitened_in_the_order_of_running(images):
    model = OfPatches()
    head = model.head.weight.detach().clone()
    report = initialize(model, PatchWhitening(floor=1e-9), seed=0, batch=images)
    assert [entry.names for entry in report.changed] == [("embed.weight",)]
    written = model.embed(nn.functional.unfold(images, 4, stride=4).mT).flatten(0, 1)
    values = torch.linalg.eigvalsh((written.mT @ written).double())
    assert values[-1] / values[0] < 1.05
    assert torch.equal(model.head.weight, head)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (None, r"PatchWhitening needs real images, as one tensor: initialize\(model, initializer, batch=images\)"),
        ("black", "PatchWhitening: the patches that '0' sees in the batch are all zero, or not finite"),
        ("nan", "PatchWhitening: the patches that '0' sees in the batch are all zero, or not finite"),
        ("grey", r"expected input.* to have 3 channels, but got 1 channels instead \(in '0'\)"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(images, batch, message):
    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 1, groups=8))
    given = {"black": torch.zeros_like(images), "nan": images / 0, "grey": images[:, :1]}.get(batch)
    with pytest.raises(StructuredInitError, match=message):
        initialize(model, PatchWhitening(), seed=0, batch=given)


VIDEO = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv3d(3, 3, (1, 4, 4)))


@pytest.mark.parametrize(("stem", "name"), [(nn.Conv2d(3, 3, 4, 4, groups=3), "Conv2d"), (VIDEO, "Conv3d")])
def test_a_layer_behind_a_first_one_of_another_kind_is_left_alone(images, stem, name):
    model = nn.Sequential(stem, nn.Flatten(), nn.LazyLinear(8))
    model(images)
    before = model[2].weight.detach().clone()
    with pytest.raises(StructuredInitError, match=rf"'0.*' \({name}\), is no nn.Conv2d without groups"):
        initialize(model, PatchWhitening(), seed=0, batch=images)
    assert torch.equal(model[2].weight, before)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(2, 2, 1), (3, 1, 2)])
def test_patches_inside_the_images_are_those_of_the_layer(images, stride, padding, dilation):
    layer = nn.Conv2d(3, 96, 3, stride, padding, dilation, bias=False)
    model = nn.Sequential(layer)
    initialize(model, PatchWhitening(exponent=0.5, floor=1e-9), seed=0, batch=images)
    plain = nn.functional.conv2d(images.double(), layer.weight.detach().double(), None, stride, 0, dilation)
    written = plain.movedim(1, -1).flatten(0, -2)
    values = torch.linalg.eigvalsh(written.mT @ written)[-27:]
    eye = torch.eye(27, dtype=torch.float64).reshape(27, 3, 3, 3)
    patches = nn.functional.conv2d(images.double(), eye, None, stride, 0, dilation).movedim(1, -1).flatten(0, -2)
    raw = torch.linalg.eigvalsh(patches.mT @ patches)
    assert written.square().mean().sqrt().item() == pytest.approx(0.7, rel=1e-4)
    assert values[-1] / values[0] == pytest.approx((raw[-1] / raw[0]).item() ** 0.5, rel=1e-2)


def test_too_few_patches_are_warned_of(images):
    model = nn.Sequential(nn.Conv2d(3, 16, 8, 8))
    assert not initialize(model, PatchWhitening(), seed=0, batch=images.repeat(4, 1, 1, 1)).warnings
    (warning,) = initialize(model, PatchWhitening(), seed=0, batch=images[:8]).warnings
    assert "'0' saw 32 patches of 192 numbers, too few" in warning


def test_the_callback_gives_training_images_beside_the_positions_of_the_preset(images, tmp_path):
    settings = [find_config(f"init/{name}").content()["init"] for name in ("patch_whitening", "patch_orthonormal")]
    assert [each["samples"] for each in settings] == [256, 256]
    assert settings[1]["initializer"]["init_args"]["initializers"][-1]["init_args"] == {"exponent": 0.0}
    callback = InitCallback(Compose([Positions("codes", kappa=2.0), PatchWhitening()]), seed=0, samples=16)
    loader = DataLoader(TensorDataset(images, torch.arange(16) % 10), batch_size=8)
    trainer = quiet_trainer(max_steps=1, limit_val_batches=0, callbacks=[callback], default_root_dir=tmp_path)
    trainer.fit(Classifier(create_network("vit_nano_patch2_8", image_size=16)), loader, loader)
    set_by = {entry.names[0]: entry.set_by for entry in callback.report.changed}
    assert set_by["network.patch_embed.proj.weight"] == ("PatchWhitening: filters",)
    assert "network.pos_embed" in set_by
    assert "1,024 patches of 12 numbers" in callback.report.notes["network.patch_embed.proj"]
