"""Compact transformers against the counts of the public code and a transcription of its description."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lightning_modules import ImageClassifier
from lightning_modules.networks import COMPACT_TRANSFORMERS, compact_transformer, create_network
from lightning_modules.networks.compact_transformer import CompactTransformer
from lightning_modules.tasks.optim import parameter_groups
from structured_init import StructuredInitError, attention_sites, initialize, mlp_sites, position_sites
from structured_init.analysis import capture_attention

# Counted on the public code at cd11f09; the number of classes where it is not 10.
PARAMETERS = {
    ("vit_lite_6_4_32", 10): 3_190_538,
    ("vit_lite_7_4_32", 10): 3_716_874,
    ("cvt_6_4_32", 10): 3_190_283,
    ("cvt_7_4_32", 10): 3_716_619,
    ("cvt_2_4_32", 10): 214_539,
    ("cvt_4_4_32", 10): 412_939,
    ("cct_2_3x2_32", 10): 283_723,
    ("cct_4_3x2_32", 10): 482_123,
    ("cct_6_3x1_32", 10): 3_233_803,
    ("cct_6_3x2_32", 10): 3_326_923,
    ("cct_7_3x1_32", 10): 3_760_139,
    ("cct_7_3x2_32", 10): 3_853_259,
    ("cct_7_7x2_224", 102): 4_573_735,
    ("cct_14_7x2_224", 1000): 22_367_273,
    ("cct_14_7x2_384", 1000): 22_513_193,
}
# tokens along a side
SIDES = {"cct_7_3x1_32": 16, "cct_2_3x2_32": 8, "cct_14_7x2_224": 14, "cct_14_7x2_384": 24, "vit_lite_7_4_32": 8}
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
        network = compact_transformer(name)
    assert sum(parameter.numel() for parameter in network.parameters()) == PARAMETERS[name, classes]
    assert network.encoder.head.out_features == classes


@pytest.mark.parametrize("name", COMPACT_TRANSFORMERS)
def test_every_published_name_is_built_with_the_positions_and_classes_that_it_says(name):
    with torch.device("meta"):
        network = compact_transformer(name)
    encoder = network.encoder
    assert encoder.pos_embed.requires_grad == ("sine" not in name)
    classes = {"c100": 100, "_fl": 102, "cct_7_7x2_224": 102, "cct_14": 1000}
    assert encoder.head.out_features == next((classes[part] for part in classes if part in name), 10)
    assert (encoder.cls_token is None) == (not name.startswith("vit"))
    assert len(encoder.blocks) == int(
        name.removeprefix("vit_lite_").removeprefix("cvt_").removeprefix("cct_").split("_")[0]
    )
    if name in SIDES:
        assert encoder.grid == (SIDES[name], SIDES[name])


def test_a_name_of_the_public_code_and_other_sizes_work_too():
    assert compact_transformer("vit_7_4_32").encoder.cls_token is not None
    assert compact_transformer("cct_2_3x2_32_none").encoder.pos_embed is None
    network = compact_transformer("cct_2_3x2_32", image_size=28, in_channels=1, num_classes=7)
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 7)
    assert network.encoder.grid == (7, 7)
    assert create_network("cct_2_3x2_32", image_size=28, in_channels=1)(torch.randn(1, 1, 28, 28)).shape == (1, 10)
    assert ImageClassifier("cvt_2_4_32")(torch.randn(1, 3, 32, 32)).shape == (1, 10)


def transcribed(network, images, norm_order):
    """The description of reference §2.1, written with functions of torch on the network's numbers alone."""
    weights = {name: tensor.double() for name, tensor in network.state_dict().items()}
    x = images.double()
    convolutional = len(network.tokenizer.conv_layers[0]) > 1
    for layer in range(len(network.tokenizer.conv_layers)):
        kernel = weights[f"tokenizer.conv_layers.{layer}.0.weight"]
        size = kernel.shape[-1]
        if convolutional:
            x = F.conv2d(x, kernel, stride=max(1, size // 2 - 1), padding=max(1, size // 2)).clamp(min=0)
            x = F.max_pool2d(x, 3, 2, 1)
        else:
            x = F.conv2d(x, kernel, weights[f"tokenizer.conv_layers.{layer}.0.bias"], stride=size)
    x = torch.stack([x[:, :, row, column] for row in range(x.shape[2]) for column in range(x.shape[3])], dim=1)
    if "encoder.cls_token" in weights:
        x = torch.cat([weights["encoder.cls_token"].repeat(len(x), 1, 1), x], dim=1)
    if "encoder.pos_embed" in weights:
        x = x + weights["encoder.pos_embed"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"encoder.{name}.weight"] + weights[f"encoder.{name}.bias"]

    def linear(x, name):
        return x @ weights[f"encoder.{name}.weight"].T + weights.get(f"encoder.{name}.bias", 0)

    def attention(x, name):
        width, heads = x.shape[-1], SMALL["num_heads"]
        parts = linear(x, f"{name}.qkv").reshape(*x.shape[:2], 3, heads, width // heads)
        outputs = []
        for head in range(heads):
            query, key, value = (parts[:, :, part, head] for part in range(3))
            outputs.append((query @ key.mT * (width // heads) ** -0.5).softmax(-1) @ value)
        return linear(torch.cat(outputs, -1), f"{name}.proj")

    def mlp(x, name):
        hidden = linear(x, f"{name}.fc1")
        return linear(hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2, f"{name}.fc2")

    for block in (f"blocks.{i}" for i in range(SMALL["depth"])):
        x = x + attention(norm(x, f"{block}.norm1"), f"{block}.attn")
        if norm_order == "published":
            x = norm(x, f"{block}.norm2")
            x = x + mlp(x, f"{block}.mlp")
        else:
            x = x + mlp(norm(x, f"{block}.norm2"), f"{block}.mlp")
    x = norm(x, "norm")
    if "encoder.cls_token" in weights:
        pooled = x[:, 0]
    else:
        pooled = torch.einsum("bn,bnd->bd", linear(x, "pool.score")[..., 0].softmax(1), x)
    return linear(pooled, "head")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["learnable", "sine", "none"])
@pytest.mark.parametrize("norm_order", ["published", "pre"])
def test_logits_are_those_of_the_description(kind, positions, norm_order):
    network = small(kind, positions=positions, norm_order=norm_order)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(network.double()(images.double()), transcribed(network, images, norm_order))


def test_the_larger_kernel_has_the_published_stride():
    network = small("cct", kernel_size=7, image_size=32)
    images = torch.randn(1, 3, 32, 32)
    assert network.encoder.grid == (2, 2)  # 32 → 16 → 8 → 4 → 2
    torch.testing.assert_close(network.double()(images.double()), transcribed(network, images, "published"))


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
    assert [block.drop_path.drop_prob for block in encoder.blocks] == pytest.approx([0.1 * i / 6 for i in range(7)])
    assert encoder.blocks[0].attn.attn_drop.p == 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_sites_give_and_take_every_matrix(kind):
    network = small(kind)
    sites = attention_sites(network)
    assert [site.name for site in sites] == ["encoder.blocks.0.attn", "encoder.blocks.1.attn"]
    prefix = int(kind == "vit_lite")
    assert [(site.grid, site.prefix_tokens, site.num_heads) for site in sites] == [((4, 4), prefix, 3)] * 2
    assert len(mlp_sites(network)) == 2
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


@pytest.mark.parametrize("kind", ["cct", "vit_lite"])
def test_default_mimetic_and_impulse_start_compact_transformers(kind):
    from structured_init import Default, Impulse, Mimetic

    width = {"embed_dim": 64, "num_heads": 2}
    before = small(kind, **width)
    network = small(kind, **width)
    assert initialize(network, Default(), seed=0).changed == []
    torch.testing.assert_close(network.state_dict(), before.state_dict())

    initialize(network, Mimetic(positions="keep", value_output=True), seed=0)
    for site in attention_sites(network):
        product = sum(site.value[h] @ site.output[h] for h in range(2))
        assert product.diagonal().mean().item() == pytest.approx(-0.4, abs=0.05)
        for head in range(2):  # rank k of 0.7 Z + 0.7 I: its trace is positive
            assert (site.query[head] @ site.key[head].T).diagonal().mean().item() > 0.3

    report = initialize(network, Impulse(kernel_size=3), seed=0)
    assert any("pos_embed" in name for entry in report.changed for name in entry.names)
    start = network.encoder.grid[0] * 1 + 1 + network.encoder.num_prefix_tokens
    tokens = F.layer_norm(network.encoder.pos_embed[0].detach(), (64,))  # what the first block sees of blank images
    site = attention_sites(network)[0]
    for head in range(2):
        attention = (tokens @ site.query[head] @ (tokens @ site.key[head]).T * site.scale).softmax(-1)
        row = attention[start, network.encoder.num_prefix_tokens :].view(4, 4)
        peak = divmod(int(row.argmax()), 4)
        assert max(abs(peak[0] - 1), abs(peak[1] - 1)) <= 1  # one of the 3 × 3 neighbours
        assert row.max() > 0.5


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cct_7_3x1_23_", {}, "unknown compact transformer 'cct_7_3x1_23_': did you mean 'cct_7_3x"),
        ("cct_5_3x1_32", {}, "'cct_5_3x1_32': there is no size of 5 layers: choose from 2, 4, 6, 7, 8, 14"),
        ("cct_7_4_32", {}, "the tokenizer of cct is <kernel>x<layers>, as in 3x1, not 4"),
        ("cvt_7_3x1_32", {}, "the tokenizer of cvt is a patch size, as in 4, not 3x1"),
        ("vit_lite_7_5_32", {}, "patch_size 5 does not divide image_size 32"),
        ("cct_2_3x2_32", {"image_size": 1, "padding": 0}, "leaves no token of image_size 1: kernel_size 3, stride 1"),
        ("cct_2_3x2_32", {"stride": 9, "padding": 0}, "leaves no token of image_size 32: .* meet 2 pixels"),
        ("cct_2_3x2_32", {"stride": 0}, "stride of at least 1"),
        ("cvt_2_4_32", {"stride": 2}, "patches have no stride or padding of their own"),
        ("cct_2_3x2_32", {"num_heads": 3}, "embed_dim 128 is not a multiple of num_heads 3"),
        ("cct_2_3x2_32", {"positions": "sin"}, "unknown positions 'sin': did you mean 'sine'"),
        ("cct_2_3x2_32", {"norm_order": "post"}, "unknown norm_order 'post': choose from pre, published"),
        ("cct_2_3x2_32", {"stochastic_depth": 1.0}, "stochastic_depth must be below 1, got 1.0"),
        ("cct_2_3x2_32", {"token_softmax": {"mode": "remix", "alpha": 1.2}}, r"alpha must be in \[0, 1\], not 1.2"),
        ("cct_2_3x2_32", {"token_softmax": {"mod": "remix"}}, "takes no argument 'mod': did you mean 'mode'"),
        ("cct_2_3x2_32", {"pool_softmax": {"per_head": True}}, "pool_softmax takes no 'per_head'"),
        ("vit_lite_2_4_32", {"pool_softmax": {}}, "pool_softmax needs sequence pooling"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(as_installed, name, arguments, message):
    with pytest.raises(StructuredInitError, match=message) as raised:
        compact_transformer(name, **arguments)
    assert "\n" not in str(raised.value)


def test_an_unknown_argument_of_a_network_by_name_is_answered_with_the_nearest():
    with pytest.raises(StructuredInitError, match="takes no argument 'stochastic_dept': did you mean 'stochastic_d"):
        create_network("cct_2_3x2_32", stochastic_dept=0.1)


def test_another_image_size_and_a_wrong_mask_are_refused_by_the_network():
    network = small("cct")
    with pytest.raises(StructuredInitError, match="built for 16 tokens and got 64"):
        network(torch.randn(1, 3, 32, 32))
    with pytest.raises(StructuredInitError, match=r"the mask has shape \(2, 15\); .* = \(2, 16\)"):
        network.encoder(torch.randn(2, 16, 12), torch.ones(2, 15))
