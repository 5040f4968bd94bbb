"""Every suspicion is found in a model built to have it, and none in a healthy one."""

from __future__ import annotations

import copy
import functools
import math
import re

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

from structured_init import MimeticStateSpace, initialize
from structured_init.analysis import Audit, audit
from structured_init.analysis.audit.findings import NO_STACK
from structured_init.attention.conditioned import identity_heads
from structured_init.names import folded_name
from structured_init.testing import assert_initialized

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60}


def problems(found: Audit) -> list[str]:
    return [finding.text for finding in found.findings if finding.problem]


def kinds(found: Audit) -> list[str]:
    return [finding.kind for finding in found.findings]


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def vit(**changes) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=32, num_heads=2, **changes)


def gpt2(layers: int = 3) -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=layers, n_head=4, vocab_size=60, bos_token_id=0, eos_token_id=0, n_positions=32
    )
    return transformers.GPT2LMHeadModel(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=60)
    return transformers.MambaForCausalLM(config)


def residual(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), block) for block in blocks))


HEALTHY = {
    "timm ViT": lambda: (vit(), None),
    "timm ViT of JAX, with a head of zeros": lambda: (vit(weight_init="jax"), None),
    "timm ViT with LayerScale": lambda: (vit(init_values=1e-5), None),
    "torchvision ResNet": lambda: (
        torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 1, 1, 1]), torch.randn(4, 3, 32, 32)
    ),
    "torchvision ViT": lambda: (torchvision.models.VisionTransformer(16, 8, 2, 2, 32, 64), torch.randn(2, 3, 16, 16)),
    "GPT-2": lambda: (gpt2(), None),
    "Llama": lambda: (transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), None),
    "BERT": lambda: (transformers.BertModel(transformers.BertConfig(**SMALL)), None),
    "Mamba": lambda: (mamba(), None),
    "LSTM": lambda: (nn.LSTM(32, 32, 2), torch.randn(3, 2, 32)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("host", HEALTHY)
def test_nothing_is_found_in_a_healthy_host(host):
    model, batch = HEALTHY[host]()
    found = audit(model, batch)
    assert [str(finding) for finding in found.findings] == []
    assert found.gradients


def test_heads_beside_each_other_are_not_compared_through_depth():
    model = nn.ModuleDict({"heads": nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(3))})
    nn.init.normal_(model["heads"][2][0].weight, std=1e5)
    model.forward = lambda inputs: [head(inputs) for head in model["heads"]]
    found = audit(model, torch.randn(4, 8))
    assert "explodes" not in kinds(found)
    assert NO_STACK in found.notes
    nn.init.normal_(model["heads"][2][0].weight)
    assert re.search(r"activations \S+ to \S+, gradients \S+ to ", str(audit(model, torch.randn(4, 8)).lines()[0]))
    nn.init.normal_(model["heads"][2][0].weight, std=1e5)
    model.forward = lambda inputs: model["heads"][2](model["heads"][1](model["heads"][0](inputs)))
    assert "explodes" in kinds(audit(model, torch.randn(4, 8)))


def test_the_gradient_of_padding_which_is_zero_does_not_count():
    words = nn.Embedding(301, 48, padding_idx=0)
    blocks = (nn.Sequential(nn.LayerNorm(48, eps=1e-8), nn.Linear(48, 48, bias=False)) for _ in range(2))
    model = nn.Sequential(words, *blocks, nn.LayerNorm(48, eps=1e-8))
    padded = torch.randint(1, 301, (8, 20)).index_fill(1, torch.arange(5), 0)
    found = audit(model, padded)
    assert found.blocks[0].gradient > 1e3 * found.blocks[1].gradient
    assert problems(found) == []


def test_memory_that_was_never_initialized_is_a_problem():
    model = vit()
    for block in model.blocks[1:]:
        bits = torch.randint(-(2**31), 2**31 - 1, block.mlp.fc1.weight.shape, dtype=torch.int32)
        block.mlp.fc1.weight.data = bits.view(torch.float32)
    found = audit(model)
    assert kinds(found).count("memory") == 1  # a line for all that differ in numbers alone
    assert re.fullmatch(
        r"blocks\.1\.mlp\.fc1\.weight was never initialized: .* \(and 1 more like it\)", problems(found)[0]
    )
    assert found.findings[0].names == ("blocks.1.mlp.fc1.weight", "blocks.2.mlp.fc1.weight")
    assert "blocks.1–2: activations are not finite" in problems(found)


def test_layers_that_torch_copies_are_equal_and_found():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 3)
    (text,) = problems(audit(model))
    some = "self_attn.in_proj_weight, self_attn.out_proj.weight, linear1.weight, linear1.bias and 2 more"
    assert text == f"6 parameters are equal in layers.0–2 ({some}): copied, or drawn from the same seed"


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_one_draw_whose_reference_is_named(seed):
    torch.manual_seed(seed)
    found = audit(nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 12))
    assert "no reference" not in str(found)
    (line,) = found.lines()
    assert line.parameters.startswith("self_attn.in_proj_weight: uniform ± 0.22 (torch); ")


def test_experts_are_folded_where_they_are_equal_and_in_lines():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            expert = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
            self.experts = nn.ModuleList(copy.deepcopy(expert) for _ in range(3))

    found = audit(nn.ModuleList(Block() for _ in range(2)))
    why = "copied, or drawn from the same seed"
    assert problems(found) == [
        f"2 parameters are equal in {n}.experts.0–2 (0.weight, 1.weight): {why}" for n in range(2)
    ]
    assert "experts.0–2.0, experts.0–2.0.bias, experts.0–2.1, experts.0–2.1.bias: " in str(found)


def test_only_the_blocks_that_are_equal_are_named():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 4)
    for parameter in model.layers[1].self_attn.parameters():
        nn.init.zeros_(parameter)
    nn.init.normal_(model.layers[2].linear1.weight)
    why = "copied, or drawn from the same seed"
    assert set(problems(audit(model))) >= {
        f"2 parameters are equal in layers.(0, 2–3) (self_attn.in_proj_weight, self_attn.out_proj.weight): {why}",
        f"linear1.weight is equal in layers.(0–1, 3): {why}",
        f"3 parameters are equal in layers.0–3 (linear1.bias, linear2.weight, linear2.bias): {why}",
    }


def test_equal_parameters_of_other_names_are_named_both():
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), 1)
    with torch.no_grad():
        layer.layers[0].linear2.weight.copy_(layer.layers[0].linear1.weight)
    names = "layers.0.linear1.weight, layers.0.linear2.weight"
    assert problems(audit(layer)) == [f"{names} are equal: copied, or drawn from the same seed"]
    frozen = copy.deepcopy(layer).requires_grad_(False)  # a teacher, or what peft keeps of a head
    assert problems(audit(nn.ModuleDict({"a": layer, "b": frozen}))) == [
        "a.layers.0.linear1.weight, a.layers.0.linear2.weight are equal: copied, or drawn from the same seed"
    ]


def test_biases_that_trained_alike_are_no_copies():
    model = nn.ModuleDict({"branch": nn.BatchNorm2d(32), "skip": nn.BatchNorm2d(32), "last": nn.Conv2d(32, 32, 3)})
    for name in ("branch", "skip"):  # their outputs are added, so both get the same gradients
        model[name].bias.data = torch.linspace(-1, 1, 32).roll(7) ** 3
    assert model["branch"].bias.equal(model["skip"].bias)
    model.first, model.second = (nn.Parameter(torch.linspace(-1, 1, 32).roll(5).view(1, 1, 32) ** 3) for _ in range(2))
    assert "copied" not in kinds(audit(model))


def test_a_copy_that_gets_no_gradient_is_meant():
    model = nn.ModuleDict({"online": nn.Linear(32, 32)})
    model["target"] = copy.deepcopy(model["online"])
    model.forward = lambda x: (model["online"](x), model["target"](x).detach())
    assert problems(audit(model, torch.randn(4, 32))) == []
    assert "copied" in kinds(audit(model))


def test_heads_in_one_parameter_are_copies_only_where_all_their_numbers_are_equal():
    model = nn.Module()
    model.heads = nn.Parameter(torch.rand(64).diag().reshape(4, 16, 64))  # first columns are zero in three of four
    assert kinds(audit(model)) == []
    model.heads.data[3] = model.heads.data[1]
    assert problems(audit(model)) == ["heads: of 4 parts, 3 differ: the others are copied, or drawn alike"]


@pytest.mark.parametrize("identity", ["head", "layer"])
def test_identities_in_heads_and_layers_are_no_copies(identity):
    heads = 0.5 * identity_heads(4, 64, 16, identity)
    model = nn.ModuleList(nn.Module() for _ in range(2))
    for each in model:
        each.heads = nn.Parameter(heads.clone())
    assert kinds(audit(model)) == []


def test_tied_weights_are_no_copies():
    model = nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 40, bias=False))
    model[1].weight = model[0].weight
    found = audit(model, torch.zeros(2, 3, dtype=torch.long))
    assert kinds(found) == ["loss"]  # embeddings of σ 1 give logits of σ √32
    assert [record.names for record in found.records] == [("0.weight", "1.weight")]


def test_two_zero_factors_never_get_a_gradient_and_one_does():
    model = vit()
    nn.init.zeros_(model.blocks[1].mlp.fc2.weight)
    assert kinds(audit(model)) == []
    nn.init.zeros_(model.blocks[1].mlp.fc1.weight)
    (finding,) = audit(model).findings
    stuck = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "norm2.weight", "norm2.bias"}  # fc2.bias alone moves
    assert (finding.kind, set(finding.names)) == ("stuck", {f"blocks.1.{name}" for name in stuck})
    assert finding.text.endswith("the gradient is exactly zero, and stays so when all others have moved")


def test_a_dead_relu_is_found_by_its_gradient():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    nn.init.constant_(model[0].bias, -100.0)
    (finding,) = audit(model, torch.randn(8, 16)).findings
    assert (finding.kind, set(finding.names)) == ("stuck", {"0.weight", "0.bias", "2.weight"})


def test_parameters_that_the_output_does_not_depend_on_are_noted():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    model.unused, model.frozen = nn.Linear(16, 4), nn.Linear(16, 4).requires_grad_(False)
    model.forward = lambda x: model[1](model[0](x))
    said = "unused.weight, unused.bias: no gradient on this batch"
    assert said in audit(model, torch.randn(8, 16)).notes
    assert not any("no gradient" in note for note in audit(model).notes)  # nothing is run


def test_zero_attention_is_found_without_a_batch():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 4)

    model = Plain()
    nn.init.zeros_(model.attention.out_proj.weight)
    with torch.no_grad():
        model.attention.in_proj_weight[64:] = 0
    found = audit(model)
    assert problems(found) == ["attention: value and output are both zero, so neither gets a gradient"]
    assert found.notes == [
        "no batch was given and the host names none: activations, gradients and the first loss are left out"
    ]


@pytest.mark.parametrize(("gain", "kind"), [(2.0, "explodes"), (0.5, "vanishes")])
def test_activations_that_run_away_are_found(gain, kind):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32, bias=False), nn.Identity()) for _ in range(14)))
    for block in model:
        nn.init.normal_(block[0].weight, std=gain / math.sqrt(32))
    (finding,) = audit(model, torch.randn(4, 32)).findings
    assert finding.kind == kind
    what, _, fold, *_ = finding.text.split()
    assert what == "activations"
    assert math.log2(float(fold.removesuffix("-fold"))) == pytest.approx(13, abs=1)  # blocks between


@pytest.mark.parametrize(("gain", "kind"), [(4.0, "explodes"), (0.25, "vanishes")])
def test_gradients_that_run_away_behind_steady_activations_are_found(gain, kind):
    class Block(nn.Module):
        """Turns its input and hands on ``gain`` of the deviation from ones, which are steady."""

        def __init__(self):
            super().__init__()
            self.turn = nn.Linear(16, 16, bias=False)
            nn.init.orthogonal_(self.turn.weight, gain)

        def forward(self, x):
            return 1 + self.turn(x - 1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(Block(), nn.Identity()) for _ in range(8))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    (finding,) = audit(Model().double(), 1 + 1e-6 * torch.randn(4, 16, dtype=torch.float64)).findings
    assert finding.kind == kind
    what, _, fold, *_ = finding.text.split()
    assert what == "gradients"
    assert finding.text.endswith("each times its block's activations")
    assert float(fold.removesuffix("-fold")) == pytest.approx(4.0**7, rel=0.1)


def test_a_layer_without_any_output_is_dead():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Identity()) for _ in range(3)))
    for parameter in model[1].parameters():
        nn.init.zeros_(parameter)
    found = audit(model, torch.randn(4, 16))
    assert "1: all activations are zero" in problems(found)


@pytest.mark.parametrize("dead", [[1], [0, 1, 2]])
def test_layers_that_pass_on_nothing_are_dead_where_no_gradient_tells(dead):
    layers = nn.Sequential(*(nn.Sequential(nn.ReLU(), nn.Linear(16, 16)) for _ in range(3)))
    model = nn.Sequential(layers, nn.Sequential(nn.ReLU(), nn.Linear(16, 4)))
    for parameter in (model[1][1].weight, *(each for number in dead for each in layers[number].parameters())):
        nn.init.zeros_(parameter)
    found = audit(model, torch.randn(4, 16))
    assert not any(each.gradient for each in found.blocks)
    assert f"{folded_name([f'0.{number}' for number in dead])}: all activations are zero" in problems(found)


@pytest.mark.parametrize("head", [nn.init.normal_, nn.init.zeros_])
def test_residual_branches_of_zeros_are_not_dead(head):
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(16, 16)) for _ in range(3))})
    for layer in model["layers"]:
        nn.init.zeros_(layer[0].weight)
        nn.init.zeros_(layer[0].bias)
    model["out"] = nn.Linear(16, 4)
    head(model["out"].weight)
    model.forward = lambda x: model["out"](functools.reduce(lambda x, layer: x + layer(x), model["layers"], x))
    found = audit(model, torch.randn(4, 16))
    assert [each.activation for each in found.blocks] == [0, 0, 0]
    assert kinds(found) == []


def test_numbers_beyond_float16_are_found():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    nn.init.normal_(model[0].weight, std=1e5)
    found = audit(model, torch.randn(4, 16))
    assert set(kinds(found)) == {"overflow", "scale"}
    assert any("float16 ends at 65,504" in text for text in problems(found))
    assert any(text.startswith("0.weight holds") for text in problems(found))


@pytest.mark.parametrize(("times", "count"), [(40, 1), (15, 0)])  # of σ 0.02: of 64 columns, a σ up to 0.5 is spared
def test_matrices_far_beyond_what_is_usual_for_their_shape_are_found(times, count):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, "intermediate_size": 512}))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(times)
    found = [finding for finding in audit(model).findings if finding.kind == "scale"]
    assert len(found) == count
    for finding in found:
        assert finding.names == ("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight")
        assert "times the largest that is usual for its shape, 0.25 (Kaiming normal fan_out)" in finding.text  # √(2/32)


def test_a_gpt_without_depth_scale_is_noted():
    model = gpt2(4)
    for block in model.transformer.h:
        for module in (block.attn.c_proj, block.mlp.c_proj):
            nn.init.normal_(module.weight, std=0.02)
    (finding,) = audit(model).findings
    assert (finding.kind, finding.problem, len(finding.names)) == ("depth scale", False, 8)
    assert "GPT-2 divides that of outputs by √(2·4) = 2.8" in finding.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bias", [1.0, "mimetic"])
def test_steps_outside_of_what_mamba_ssm_draws_are_noted(bias):
    model = mamba()
    if bias == "mimetic":
        initialize(model, MimeticStateSpace(), seed=0)
    else:
        for layer in model.backbone.layers:
            nn.init.constant_(layer.mixer.dt_proj.bias, bias)
    notes = [finding for finding in audit(model).findings if finding.kind == "step"]
    assert len(notes) == 1
    assert not notes[0].problem
    assert "mamba-ssm draws 0.001 to 0.1" in notes[0].text
    said = audit(model).summary()
    if bias == 1.0:
        assert f"the median step is {math.log1p(math.e):.2g};" in notes[0].text
        assert f"mixer.dt_proj.bias: Δ = {math.log1p(math.e):.3g}" in said
        assert "mixer.A_log: log(1 … N) (mamba-ssm)" in said
    else:
        decay = audit(model).table().set_index("parameter").loc["backbone.layers.0.mixer.A_log"]
        assert decay["in_words"] == f"−A = {math.exp(decay['mean']):.3g}"


def test_the_cut_of_a_truncated_normal_among_normal_numbers_hides_no_distribution():
    model = vit()
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight[3, 5] = -2.0  # what timm's trunc_normal_(std=0.02) gives of a draw of −1
    found = audit(model)
    assert found.findings == []
    std = model.blocks[0].mlp.fc1.weight.std(correction=0).item()  # of all numbers
    record = next(each for each in found.records if each.name == "blocks.0.mlp.fc1.weight")
    assert (record.distribution.kind, record.std) == ("normal", pytest.approx(std, rel=1e-4))
    assert (record.outliers, bool(record.references)) == (1, True)


def test_the_tail_of_a_mixture_does_not_stand_alone():
    linear = nn.Linear(100, 100, bias=False)
    nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        linear.weight[0, :6] = torch.tensor([8.6, 7.2, 6.4, 5.6, 5.2, 4.8])
    assert audit(linear).records[0].outliers == 0


def test_weights_that_look_trained_are_noted():
    model = vit()
    with torch.no_grad():
        model.norm.weight.add_(0.1 * torch.randn(32))
        assert kinds(audit(model)) == []  # beside a bias of zeros this is a draw, as DCGAN's
        assert re.search(r"norm +weight: unclear, std 0\.\d+, mean (1|0\.9\d)", str(audit(model)))
        model.norm.bias.requires_grad_(False)  # training leaves it zero, as in BNNeck
    (finding,) = audit(model).findings
    assert finding.text.startswith("the weights look trained: 'norm.weight' is not constant")
    normal = [each for each in audit(model).records if each.distribution.kind == "normal"]
    assert normal
    assert not any(each.references for each in normal)  # which would be by chance


def test_equal_formulas_in_every_layer_are_no_copies():
    blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
    for block in blocks:
        block.bias.data = torch.linspace(0, 1, 64) ** 0.5
        root = (2 * torch.arange(64) + 1.0).sqrt()  # HiPPO-LegS
        block.weight.data = -torch.outer(root, root).tril(-1) - torch.diag(torch.arange(64) + 1.0)
    found = audit(blocks)
    assert "copied" not in kinds(found)
    assert set(found.table().kind) == {"computed"}


def test_what_a_host_keeps_of_its_first_pass_is_not_called_stuck():
    class Caching(nn.Module):
        """Like LeViT, which keeps its attention biases in evaluation mode."""

        def __init__(self):
            super().__init__()
            self.bias, self.gate = nn.Parameter(0.1 * torch.randn(32)), nn.Parameter(torch.zeros(32))
            self.kept = None

        def forward(self, x):
            self.kept = 2 * self.bias if self.kept is None else self.kept
            return x + self.gate * self.kept

    assert kinds(audit(Caching(), torch.randn(2, 32))) == []


def test_only_blocks_of_one_stack_are_compared():
    stack = [nn.Sequential(nn.Linear(16, 16), nn.Identity()) for _ in range(4)]
    model = nn.ModuleDict({"encoder": nn.Sequential(*stack[:2]), "decoder": nn.Sequential(*stack[2:])})
    model.forward = lambda x: model.decoder(1e4 * model.encoder(x))
    found = audit(model, 1e-3 * torch.randn(4, 16))
    assert [scale.name for scale in found.blocks] == ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]
    assert found.blocks[-1].activation > 1000 * found.blocks[0].activation
    assert kinds(found) == []
    model["decoder"].append(copy.deepcopy(stack[3]).requires_grad_(False))
    nn.init.constant_(stack[1][0].weight, 1e5)  # in the shorter one
    assert "activations grow" in problems(audit(model, torch.ones(4, 16)))[0]


def test_a_scale_for_the_depth_that_fits_one_block_alone_is_not_named():
    def blocks(stds):
        made = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(128, 64), "down": nn.Linear(64, 128)}) for _ in stds)
        for block, std in zip(made, stds, strict=True):
            nn.init.normal_(block["down"].weight, std=std)
        return {name for each in audit(made).records for name in (r.name for r in each.references) if "NeoX" in name}

    scale = 2 / (3 * 64**0.5)
    assert blocks([scale] * 3)
    assert not blocks([scale, 1.3 * scale, 1.3 * scale])


def test_matrices_that_leave_nothing_of_what_comes_in_are_found():
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    assert problems(audit(model)) == []
    nn.init.normal_(model[0].weight, std=1e-10)  # as transformers' default has the images of BLIP
    assert re.fullmatch(r"0.weight: σ \S+ leaves 6e-10 of what comes in", problems(audit(model))[0])
    with pytest.raises(AssertionError, match=r"depth: 0.weight: σ .* leaves 6e-10 of what comes in"):
        assert_initialized(model, torch.randn(2, 32), classes=10)
