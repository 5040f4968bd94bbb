"""Each reference is met by the library that it is named after."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn.utils import parametrizations

from structured_init import MambaReference, initialize
from structured_init.analysis import audit
from structured_init.analysis.audit.distribution import normal
from structured_init.analysis.audit.references import Place, num_layers, places, references
from structured_init.testing import CHECKS, check_initialized

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def equals(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameter → the references that it equals."""
    return {record.name: tuple(each.name for each in record.references) for record in audit(model).records}


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def vit(**changes) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=64, num_heads=4, **changes)


def test_layers_of_torch_equal_torchs_default():
    model = nn.ModuleDict({
        "linear": nn.Linear(64, 96), "conv": nn.Conv2d(8, 16, 3), "depthwise": nn.Conv2d(32, 32, 5, groups=32),
        "embedding": nn.Embedding(50, 32), "lstm": nn.LSTM(48, 32), "norm": nn.LayerNorm(64),
        "batch_norm": nn.BatchNorm2d(8), "attention": nn.MultiheadAttention(64, 4), "bilinear": nn.Bilinear(12, 32, 40),
        "crossed": nn.MultiheadAttention(64, 4, kdim=32, vdim=48, add_bias_kv=True),
    })  # fmt: skip
    found = equals(model)
    others = {name for name, names in found.items() if "torch" not in names}
    assert others == {"crossed.bias_k", "crossed.bias_v"}
    assert found["attention.in_proj_bias"] == ("torch", "zeros")
    assert "Xavier uniform" in found["attention.in_proj_weight"]
    assert all("Xavier normal" in found[name] for name in others)
    (line,) = check_initialized(model, like="torch", skip=set(CHECKS) - {"like"}).checks
    assert (line.failures, line.uncovered) == ((), "not compared: conv.bias, crossed.bias_k, crossed.bias_v")


@pytest.mark.parametrize(
    ("norm", "drawn"),
    [
        (parametrizations.weight_norm, "parametrizations.weight.original1"),
        (parametrizations.spectral_norm, "parametrizations.weight.original"),
        (nn.utils.weight_norm, "weight_v"),
        (nn.utils.spectral_norm, "weight_orig"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weights_that_torch_norms_equal_its_default_and_have_the_fans_of_their_layer(norm, drawn):
    model = nn.Sequential(norm(nn.Conv1d(24, 24, 3)), norm(nn.Conv1d(24, 1, 3)))
    found = equals(model)
    assert (found[f"0.{drawn}"][0], found["0.bias"]) == ("torch", ("torch",))
    (head,) = (each for each in audit(model).records if each.name == "1.bias")
    assert (head.role, head.place.fan_in, head.distribution.kind) == ("bias", 72, "unclear")


def test_recurrent_cells_are_known_as_recurrent_layers_are_and_xavier_has_the_fans_of_the_matrix():
    model = nn.ModuleDict({"gru": nn.GRU(144, 40), "cell": nn.GRUCell(24, 40), "lstm": nn.LSTMCell(24, 40)})
    assert {names[:1] for names in equals(model).values()} == {("torch",)}
    for name, parameter in model.named_parameters():
        if "weight" in name:
            nn.init.xavier_uniform_(parameter)
    assert {names[0] for name, names in equals(model).items() if "weight" in name} == {"Xavier uniform"}


@pytest.mark.parametrize(
    ("mode", "qkv", "patches", "head"),
    [
        ("", "timm", "torch", "timm"),
        ("jax", "Xavier uniform", "LeCun normal cut at 2 σ", None),
        ("moco", "Xavier uniform per third", "torch", "Xavier uniform"),
    ],
)
def test_the_modes_of_timms_vision_transformer_are_told_apart(mode, qkv, patches, head):
    found = equals(vit(weight_init=mode))
    assert qkv in found["blocks.0.attn.qkv.weight"]
    assert patches in found["patch_embed.proj.weight"]
    assert found["head.weight"] == () if head is None else head in found["head.weight"]
    assert "timm" in found["pos_embed"]
    assert found["cls_token"] == ("timm token, N(0, 1e-6²)",)
    if mode != "jax":
        assert "JAX ViT, N(0, 1e-6²)" not in found["blocks.0.mlp.fc1.bias"]


def test_layer_scale_of_timm_is_named():
    assert equals(vit(init_values=1e-5))["blocks.0.ls1.gamma"] == ("LayerScale 1e-05",)


def test_a_convolutional_network_equals_kaiming_by_outputs():
    found = equals(torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10))
    convolutions = [name for name in found if "conv" in name or "downsample.0" in name]
    assert len(convolutions) == 12
    assert all(found[name][0] == "Kaiming normal fan_out" for name in convolutions)
    assert found["fc.weight"] == ("torch",)


def test_torchvisions_vision_transformer_is_what_jax_began_with():
    found = equals(torchvision.models.VisionTransformer(16, 8, 1, 2, 64, 128, num_classes=10))
    layer = "encoder.layers.encoder_layer_0"
    assert "torch" in found[f"{layer}.self_attention.in_proj_weight"]
    assert "Xavier uniform" in found[f"{layer}.mlp.0.weight"]
    assert found[f"{layer}.mlp.0.bias"] == ("JAX ViT, N(0, 1e-6²)",)
    assert "LeCun normal" in found["conv_proj.weight"]


def test_gpt2_scales_what_goes_into_the_residual_stream_with_depth():
    config = transformers.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=90, bos_token_id=0, eos_token_id=0)
    found = equals(transformers.GPT2LMHeadModel(config))
    for block in range(3):
        assert "transformers" in found[f"transformer.h.{block}.attn.c_attn.weight"]
        for name in ("attn.c_proj", "mlp.c_proj"):
            assert found[f"transformer.h.{block}.{name}.weight"][0] == "GPT-2 depth scale σ/√(2n)"
    assert {"timm", "transformers"} <= set(found["transformer.wte.weight"])


@pytest.mark.parametrize("off", [1, 1.04])
def test_a_depth_scale_that_all_blocks_together_miss_is_not_named(off):
    config = transformers.GPT2Config(n_embd=48, n_layer=3, n_head=4, vocab_size=90, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2Model(config)
    for block in model.h:
        nn.init.normal_(block.attn.c_proj.weight, std=off * 2 / (3 * 48**0.5))  # each alone is near enough
    named = ["GPT-NeoX depth scale 2/(n√i)" in equals(model)[f"h.{block}.attn.c_proj.weight"] for block in range(3)]
    assert named == [off == 1] * 3


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_a_visibly_different_scale_do_not_take_the_name_from_others(seed):
    torch.manual_seed(seed)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=60, max_position_embeddings=32, **SMALL))
    initialize(model, "previous_token")
    name = "encoder.layer.{}.attention.self.query.weight"
    assert "transformers" in equals(model)[name.format(1)]
    assert "transformers" not in equals(model)[name.format(0)]


@pytest.mark.parametrize(("off", "named"), [(1, True), (1.04, False)])
def test_a_scale_that_all_blocks_together_miss_is_not_named(off, named):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)))
    for block in model:
        nn.init.normal_(block[0].weight, std=off * (2 / (5 * 64)) ** 0.5)
    assert ("small init √(2/5i)" in equals(model)["0.0.weight"]) == named


@pytest.mark.parametrize(("shape", "bound"), [((4, 8), 0.707), ((2, 16), 0.577)])  # of Xavier, √(6/(i + o))
@pytest.mark.parametrize("beside", [[], [nn.Conv2d(1, 8, 3)]])  # 72 numbers that equal many references
def test_few_numbers_of_each_block_together_decide_between_references(shape, bound, beside):
    blocks = [nn.ParameterDict({"u": nn.init.xavier_uniform_(torch.empty(shape))}) for _ in range(12)]
    model = nn.Sequential(*beside, *(nn.Sequential(block, nn.Linear(32, 32)) for block in blocks))
    rows = audit(model).table().set_index("parameter").filter(like=".u", axis=0)
    assert set(rows["in_words"]) == {f"uniform ± {bound:.2g}"}


def test_a_reference_is_of_the_kind_that_the_numbers_tell_or_decides_where_that_is_unclear():
    kinds = Counter()
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False))
        tails = torch.distributions.StudentT(5.0).sample((4, 64))
        with torch.no_grad():
            model[0].weight.copy_(tails * 0.9 * (2 / (5 * 64) / (5 / 3)) ** 0.5)  # near small init's size
        for row in audit(model, seed=seed).table().itertuples():
            kinds[row.kind, row.in_words.partition(" ")[0]] += 1
    assert set(kinds) >= {("other", "no"), ("unclear", "uniform"), ("normal", "normal")}
    assert all(kind in ("unclear", words) for kind, words in kinds if kind != "other"), kinds
    assert all(words == "no" for kind, words in kinds if kind == "other"), kinds


@pytest.mark.parametrize("std", [0.02, 0.05])
def test_bert_equals_the_range_of_its_configuration(std):
    config = transformers.BertConfig(vocab_size=60, max_position_embeddings=32, initializer_range=std, **SMALL)
    model = transformers.BertModel(config)
    found = {name: names for name, names in equals(model).items() if name.endswith("weight") and "Norm" not in name}
    assert len(found) == 16
    assert all("transformers" in names for names in found.values())
    assert any("timm" in names for names in found.values()) == (std == 0.02)


def mamba(kind: str) -> nn.Module:
    if kind == "Mamba":
        return transformers.MambaForCausalLM(
            transformers.MambaConfig(hidden_size=64, num_hidden_layers=2, state_size=8, vocab_size=60)
        )
    return transformers.Mamba2ForCausalLM(
        transformers.Mamba2Config(
            hidden_size=64, num_hidden_layers=2, num_heads=32, head_dim=4, state_size=8, n_groups=1, vocab_size=60
        )
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Mamba", "Mamba-2"])
def test_what_mamba_ssm_draws_is_known(kind):
    model = mamba(kind)
    initialize(model, MambaReference(), seed=0)
    found = equals(model)
    mixer = "backbone.layers.1.mixer"
    steps = f"{mixer}.dt_proj.bias" if kind == "Mamba" else f"{mixer}.dt_bias"
    for name in (steps, f"{mixer}.A_log", f"{mixer}.D"):
        assert "mamba-ssm" in found[name], name
    assert "mamba-ssm depth scale 1/√(i·n)" in found[f"{mixer}.out_proj.weight"]
    assert "torch" in found[f"{mixer}.in_proj.weight"]


def test_fans_are_those_of_torch_and_turned_around_for_conv1d_of_transformers():
    linear, conv = nn.Linear(12, 20), nn.Conv2d(4, 6, 3)
    turned = transformers.pytorch_utils.Conv1D(20, 12)
    for module in (linear, conv, turned):
        place = places(nn.Sequential(module))[id(module.weight)]
        fans = nn.init._calculate_fan_in_and_fan_out(module.weight)
        assert (place.fan_in, place.fan_out) == (tuple(reversed(fans)) if module is turned else fans)


@pytest.mark.parametrize("shape", [(4, 16, 64), (4, 64, 16)])
def test_of_a_matrix_per_head_the_fans_are_those_of_one_head_in_either_order(shape):
    model = nn.Linear(5, 5)
    for fan in (16, 64, 1024):
        model.register_parameter(f"of_{fan}", nn.Parameter(torch.randn(shape) / fan**0.5))
    found = equals(model)
    assert ["LeCun normal" in found[f"of_{fan}"] for fan in (16, 64, 1024)] == [True, True, False]


def test_depth_scales_are_those_of_their_papers():
    found = {each.name: each.expected for each in references(Place("weight", 768, 768, layers=12))}
    assert found["GPT-2 depth scale σ/√(2n)"] == normal(0.02 / math.sqrt(24))
    assert found["GPT-NeoX depth scale 2/(n√i)"] == normal(2 / (12 * math.sqrt(768)))
    assert found["small init √(2/5i)"] == normal(math.sqrt(2 / (5 * 768)))


@pytest.mark.parametrize(
    "shape", [(64, 1), (1, 64)]
)  # inputs and outputs: the head of a critic, and a layer of one input
def test_a_single_row_or_column_of_norm_one_is_orthogonal(shape):
    layer = nn.Linear(*shape, bias=False)
    nn.init.orthogonal_(layer.weight)
    assert audit(layer).table()["in_words"][0] == "orthogonal"
    nn.init.normal_(layer.weight, std=1 / 8)
    assert audit(layer).table()["in_words"][0] != "orthogonal"


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (nn.init.xavier_normal_, "Xavier normal"),
        (nn.init.xavier_uniform_, "Xavier uniform"),
        (nn.init.kaiming_normal_, "Kaiming normal fan_in"),
        (nn.init.kaiming_uniform_, "Kaiming uniform"),
    ],
)
def test_an_embedding_equals_what_torch_draws_by_its_fans(draw, name):
    embedding = nn.Embedding(300, 16)
    draw(embedding.weight)
    assert equals(embedding) == {"weight": (name,)}


def test_a_name_that_fits_by_two_pairs_of_fans_has_one_vote():
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Module()
        for name, rows in (("one", 1), ("six", 6)):
            model.register_parameter(name, nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, rows, 32))))
        rows = audit(model).table()
        assert all(words.startswith("uniform") for words in rows["in_words"]), seed
        assert all(len(set(names.split("; "))) == len(names.split("; ")) for names in rows["equals"])


def test_what_other_layers_equal_does_not_name_a_draw_that_is_likelier_another():
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(*(nn.Linear(12, 12, bias=False) for _ in range(4)), nn.Linear(12, 6, bias=False))
        for layer in model[:4]:
            nn.init.normal_(layer.weight, std=(2 / 60) ** 0.5)
        words = list(audit(model).table()["in_words"])
        assert words == ["normal σ 0.18"] * 4 + ["uniform ± 0.29"], seed


@pytest.mark.parametrize("blocks", [1, 2])
def test_scales_for_the_depth_are_named_of_matrices_of_a_network_with_layers_alone(blocks):
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(24, 24, 3, groups=24), nn.Linear(24, 24)) for _ in range(blocks)))
    for filters, matrix in model:
        nn.init.normal_(filters.weight, std=2 / blocks / 9**0.5)
        nn.init.normal_(matrix.weight, std=2 / blocks / 24**0.5)
    found = equals(model)
    named = {name[2:] for name, names in found.items() if "GPT-NeoX depth scale 2/(n√i)" in names}
    assert named == ({"1.weight"} if blocks > 1 else set())


def test_the_standard_deviation_in_words_is_that_of_the_table_beside_outliers():
    layer = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(64, 64) * torch.linspace(0.1, 1, 64)[:, None])  # follows no draw
        layer.weight[0, 0] = 40
    row = audit(layer).table().iloc[0]
    assert row["in_words"] == f"no known distribution, std {row['std']:.2g}"


def test_a_parameter_of_three_axes_is_compared_by_the_fans_of_torch_too():
    model, generator = nn.Module(), torch.Generator().manual_seed(0)
    model.attention = nn.Parameter(nn.init.xavier_uniform_(torch.empty(4, 8, 1), generator=generator))  # GAT
    assert audit(model).table()["in_words"][0] == "uniform ± 0.71"


def test_a_table_of_positions_is_no_stack_of_one_matrix():
    model = nn.Module()
    model.pos_embed = nn.Parameter(torch.randn(1, 77, 64, generator=torch.Generator().manual_seed(0)) * 0.02)
    assert audit(model).table()["equals"][0].startswith("timm; transformers")


class Normed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), inner


def test_parts_that_stand_together_are_one_layer_and_blocks_of_a_stage_are_several():
    pairs = [nn.ModuleList([Normed(nn.MultiheadAttention(8, 2)), Normed(nn.Linear(8, 8))]) for _ in range(4)]
    assert num_layers(nn.ModuleList(pairs)) == 4
    assert (
        num_layers(nn.ModuleList(nn.ModuleDict({"mix": nn.Linear(8, 8), "add": nn.Linear(8, 8)}) for _ in range(4)))
        == 4
    )
    assert num_layers(nn.ModuleList(nn.ModuleList(Normed(nn.Linear(8, 8)) for _ in range(3)) for _ in range(4))) == 12
