from __future__ import annotations

import pytest
import timm
import torch

from lightning_modules.networks import PRESETS, create_network, vision_transformer
from structured_init import StructuredInitError
from structured_init.hosts import attention_sites

SMALL = {"image_size": 8, "patch_size": 2, "embed_dim": 16, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_sizes_of_its_row(name):
    row = PRESETS[name]
    with torch.device("meta"):
        network = create_network(name, image_size=row["image_size"], depth=1)
    assert network.patch_embed.grid_size == (row["image_size"] // row["patch_size"],) * 2
    assert network.blocks[0].attn.num_heads == row["num_heads"]
    assert network.head.in_features == row["embed_dim"]


def test_the_papers_network_pools_by_mean_and_has_no_class_token():
    network = vision_transformer(**SMALL)
    assert network.cls_token is None
    assert isinstance(network.norm, torch.nn.Identity)
    assert isinstance(network.fc_norm, torch.nn.LayerNorm)
    tokens = network.forward_features(torch.randn(3, 3, 8, 8))
    expected = network.head(network.fc_norm(tokens.mean(1)))
    torch.testing.assert_close(network.forward_head(tokens), expected)


@pytest.mark.parametrize(
    ("class_token", "register_tokens", "pos_embed"),
    [(False, 0, "none"), (True, 0, "learn"), (False, 2, "learn"), (True, 2, "none")],
)
def test_tokens_and_positions_combine(class_token, register_tokens, pos_embed):
    network = vision_transformer(**SMALL, class_token=class_token, register_tokens=register_tokens, pos_embed=pos_embed)
    assert network(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    assert network.num_prefix_tokens == class_token + register_tokens


def test_a_convolutional_stem_sees_three_pixels_before_its_patch_and_keeps_the_grid():
    network = create_network("vit_micro_patch4_32", stem="convolutional", register_tokens=4, qk_norm=True).eval()
    (site, *_) = attention_sites(network)
    assert (site.grid, site.prefix_tokens) == ((8, 8), 4)
    images = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    network.patch_embed(images)[0, 27].sum().backward()  # row 3, column 3: its patch begins at pixel 12
    seen = images.grad[0].abs().sum(0).nonzero()
    assert (seen.min().item(), seen.max().item()) == (9, 15)  # 4·3 − 2 − 1 to 4·3 + 2 + 1


def test_a_name_of_timm_gives_the_model_of_timm():
    network = create_network("vit_tiny_patch16_224", num_classes=7, image_size=32, depth=1)
    expected = timm.create_model("vit_tiny_patch16_224", num_classes=7, img_size=32, depth=1)
    assert {n: p.shape for n, p in network.state_dict().items()} == {
        n: p.shape for n, p in expected.state_dict().items()
    }


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet5o", {}, "unknown network 'resnet5o': did you mean 'resnet50'?"),
        ("vit_tiny_patch2_32", {"image_size": 33}, "patch_size 2 does not divide image_size 33"),
        ("vit_tiny_patch2_32", {"depht": 5}, "built with {'depht': 5}: .* unexpected keyword argument 'depht'"),
        ("resnet10t", {"embed_dim": 5}, "'embed_dim'; what is left over .* goes by --model.network_args=null"),
        ("vit_tiny_patch2_32", {"pool": "token"}, "pool 'token' needs class_token: true"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_what_would_be_right(name, arguments, message):
    with pytest.raises(StructuredInitError, match=message.replace("?", r"\?")) as mistake:
        create_network(name, **arguments)
    assert "\n" not in str(mistake.value)
