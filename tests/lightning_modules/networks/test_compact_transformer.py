"""Compact transformers against the counts of the public code and a transcription of its description."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_modules import ImageClassifier
from lightning_modules.networks import compact_transformer, create_network
from lightning_modules.networks.compact_transformer import CompactTransformer, compact_arguments, text_arguments
from lightning_modules.tasks.optim import parameter_groups
from structured_init import StructuredInitError, attention_sites, position_sites
from structured_init.analysis import capture_attention
from structured_init.hosts.mlp import mlps

# Counted on the public code at cd11f09, with its numbers of classes.
PARAMETERS = {
    ("vit_lite_6_4_32", 10): 3_190_538,
    ("vit_lite_7_4_32", 10): 3_716_874,
    ("cvt_6_4_32", 10): 3_190_283,
    ("cvt_7_4_32", 10): 3_716_619,
    ("cvt_4_4_32", 10): 412_939,
    ("cct_4_3x2_32", 10): 482_123,
    ("cct_6_3x1_32", 10): 3_233_803,
    ("cct_6_3x2_32", 10): 3_326_923,
    ("cct_7_3x1_32", 10): 3_760_139,
    ("cct_7_3x2_32", 10): 3_853_259,
    ("cct_7_7x2_224", 102): 4_573_735,
    ("cct_14_7x2_224", 1000): 22_367_273,
    ("cct_14_7x2_384", 1000): 22_513_193,
}
SMALL = {"embed_dim": 12, "depth": 2, "num_heads": 3, "mlp_ratio": 2}
KINDS = {
    "cct": {"kernel_size": 3, "conv_layers": 2, "image_size": 16},
    "cvt": {"kernel_size": 4, "image_size": 16},
    "vit_lite": {"kernel_size": 4, "image_size": 16, "class_token": True},
}


def small(kind, seed=0, **changes):
    torch.manual_seed(seed)
    network = CompactTransformer(**{**SMALL, **KINDS[kind], "num_classes": 5, **changes})
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


@pytest.mark.parametrize(("name", "classes"), PARAMETERS)
def test_parameters_are_as_many_as_in_the_public_code(name, classes):
    with torch.device("meta"):
        network = compact_transformer(name, num_classes=classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS[name, classes]


def test_a_name_of_the_public_code_and_other_sizes_work_too():
    assert compact_transformer("vit_7_4_32").encoder.cls_token is not None
    assert compact_transformer("cct_2_3x2_32_none").encoder.pos_embed is None
    network = compact_transformer("cct_2_3x2_32", image_size=28, in_channels=1, num_classes=7)
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 7)
    assert network.encoder.grid == (7, 7)
    assert create_network("cct_2_3x2_32", image_size=28, in_channels=1)(torch.randn(1, 1, 28, 28)).shape == (1, 10)
    assert ImageClassifier("cvt_2_4_32")(torch.randn(1, 3, 32, 32)).shape == (1, 10)


def test_sine_positions_are_the_formula_and_frozen():
    positions = compact_transformer("cct_2_3x2_32_sine").encoder.pos_embed
    assert not positions.requires_grad
    for p, i in [(0, 0), (0, 1), (1, 0), (5, 17), (63, 126), (63, 127)]:
        angle = p / 10000 ** (2 * (i // 2) / 128)
        assert positions[0, p, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-6)
    learned = compact_transformer("cct_2_3x2_32").encoder.pos_embed
    assert learned.requires_grad
    assert learned.std().item() == pytest.approx(0.2, rel=0.05)


def test_the_start_is_the_published_one():
    encoder = (network := compact_transformer("cct_7_3x2_32")).encoder
    for linear in (encoder.blocks[3].attn.qkv, encoder.blocks[0].mlp.fc1, encoder.pool.score):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert linear.bias is None or (linear.bias == 0).all()
    assert encoder.blocks[0].attn.qkv.bias is None
    first, second = (layer[0].weight for layer in network.tokenizer.conv_layers)
    assert first.std().item() == pytest.approx((2 / 27) ** 0.5, rel=0.05)
    assert second.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    rates = [block.drop_path2.drop_prob for block in encoder.blocks[1:]]
    assert rates == pytest.approx([0.1 * i / 6 for i in range(1, 7)])
    assert encoder.blocks[0].attn.attn_drop.p == 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_sites_give_and_take_every_matrix(kind):
    network = small(kind)
    sites = attention_sites(network)
    assert [site.name for site in sites] == ["encoder.blocks.0.attn", "encoder.blocks.1.attn"]
    prefix = int(kind == "vit_lite")
    assert [(site.grid, site.prefix_tokens, site.num_heads) for site in sites] == [((4, 4), prefix, 3)] * 2
    assert len(mlps(dict(network.named_modules()))) == 2
    decayed = {id(parameter) for parameter in parameter_groups(network)[0]["params"]}
    assert {id(network.encoder.pos_embed), id(network.encoder.cls_token)}.isdisjoint(decayed)
    (positions,) = position_sites(network)
    assert torch.equal(positions.value, network.encoder.pos_embed[0, prefix:])
    site = sites[0]
    x = torch.randn(2, 5, 12)
    heads = [
        (x @ site.query[h] @ (x @ site.key[h]).mT * 4**-0.5).softmax(-1) @ x @ site.value[h] @ site.output[h]
        for h in range(3)
    ]
    torch.testing.assert_close(network.encoder.blocks[0].attn(x), sum(heads) + site.module.proj.bias)
    maps = capture_attention(network, torch.randn(2, 3, 16, 16))
    assert {name: tuple(each.shape) for name, each in maps.items()} == {
        site.name: (2, 3, 16 + prefix, 16 + prefix) for site in sites
    }


def test_what_has_no_meaning_is_refused():
    for kind, changes, message in [
        ("cvt", {"image_size": 18}, "patch_size 4 does not divide image_size 18"),
        (
            "vit_lite",
            {"pool_softmax": {"mode": "add"}},
            "pool_softmax needs sequence pooling",
        ),
        ("cct", {"positions": "rotary"}, "positions must be learnable, sine or none, got 'rotary'"),
    ]:
        with pytest.raises(StructuredInitError, match=message):
            small(kind, **changes)
    for name in ("cct_7_3_32", "cvt_7_3x1_32", "cct_3_3x1_32", "text_transformer_2_4", "text_cct_4_2x2"):
        assert compact_arguments(name) is None
        assert text_arguments(name) is None
