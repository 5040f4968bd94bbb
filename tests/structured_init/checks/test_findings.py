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
from hosts import of_transformers
from torch import nn

from structured_init.analysis import Audit, audit

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60}

WORDS = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}


def problems(found: Audit) -> list[str]:
    return [finding.text for finding in found.findings]


def kinds(found: Audit) -> list[str]:
    return [finding.kind for finding in found.findings]


def vit(**changes) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, embed_dim=32, num_heads=2, **changes)


def gpt2(layers: int = 3) -> nn.Module:
    return of_transformers("GPT2LMHeadModel", n_embd=32, n_layer=layers, n_head=4, n_positions=32, **WORDS)


def mamba() -> nn.Module:
    return of_transformers("MambaForCausalLM", hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=60)


HEALTHY = {
    "timm ViT": lambda: (vit(), None),
    "timm ViT with LayerScale": lambda: (vit(init_values=1e-5), None),
    "torchvision ResNet": lambda: (
        torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 1, 1, 1]), torch.randn(4, 3, 32, 32)
    ),
    "GPT-2": lambda: (gpt2(), None),
    "Llama": lambda: (of_transformers("LlamaForCausalLM", **SMALL), None),
    "BERT": lambda: (of_transformers("BertModel", **SMALL), None),
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
    assert "depth" not in kinds(found)
    model.forward = lambda inputs: model["heads"][2](model["heads"][1](model["heads"][0](inputs)))
    assert "depth" in kinds(audit(model, torch.randn(4, 8)))


def test_memory_that_was_never_initialized_is_a_problem():
    model = vit()
    for block in model.blocks[1:]:
        bits = torch.randint(-(2**31), 2**31 - 1, block.mlp.fc1.weight.shape, dtype=torch.int32)
        block.mlp.fc1.weight.data = bits.view(torch.float32)
    found = audit(model)
    assert kinds(found).count("memory") == 1  # a line for all that differ in numbers alone
    assert found.findings[0].names == ("blocks.1.mlp.fc1.weight", "blocks.2.mlp.fc1.weight")


def test_a_copy_that_gets_no_gradient_is_meant():
    model = nn.ModuleDict({"online": nn.Linear(32, 32)})
    model["target"] = copy.deepcopy(model["online"])
    model.forward = lambda x: (model["online"](x), model["target"](x).detach())
    assert problems(audit(model, torch.randn(4, 32))) == []
    assert "copies" in kinds(audit(model))


def test_tied_weights_are_no_copies():
    model = nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 40, bias=False))
    model[1].weight = model[0].weight
    found = audit(model, torch.zeros(2, 3, dtype=torch.long))
    assert kinds(found) == ["loss"]  # embeddings of σ 1 give logits of σ √32
    assert [record.names for record in found.records] == [("0.weight", "1.weight")]


def test_two_zero_factors_never_get_a_gradient_and_one_does():
    model = vit()
    nn.init.zeros_(model.blocks[1].mlp.fc2.weight)
    assert kinds(audit(model)) == ["odd"]
    nn.init.zeros_(model.blocks[1].mlp.fc1.weight)
    (finding,) = [each for each in audit(model).findings if each.kind != "odd"]
    stuck = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "norm2.weight", "norm2.bias"}  # fc2.bias alone moves
    assert (finding.kind, set(finding.names)) == ("stuck", {f"blocks.1.{name}" for name in stuck})
    assert finding.text.endswith("the gradient is exactly zero, and stays so when all others have moved")


def test_layers_of_one_class_in_no_stack_are_not_compared():
    layers = [nn.Linear(32, 32) for _ in range(3)]
    nn.init.zeros_(layers[1].weight)
    assert kinds(audit(nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]))) == []
    assert kinds(audit(nn.Sequential(*layers))) == ["odd"]


def test_biases_of_layers_with_another_number_of_inputs_differ_rightly():
    """Torch draws a bias from U(±1/√fan_in): 1/√8 in the first block, as where a RegNet's squeeze is wider."""
    blocks = [nn.Sequential(nn.Linear(inputs, 64), nn.ReLU()) for inputs in (8, 64, 64, 64)]
    assert kinds(audit(nn.Sequential(*blocks))) == []
    nn.init.uniform_(blocks[2][0].bias, -1 / 8**0.5, 1 / 8**0.5)
    assert kinds(audit(nn.Sequential(*blocks))) == ["odd"]


def test_a_dead_relu_is_found_by_its_gradient():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    nn.init.constant_(model[0].bias, -100.0)
    stuck, blind = audit(model, torch.randn(8, 16)).findings
    assert (stuck.kind, set(stuck.names)) == ("stuck", {"0.weight", "0.bias", "2.weight"})
    assert blind.text == "two different samples give one output: it does not depend on what comes in"


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression", "single_label_classification"])
def test_the_first_loss_is_of_a_model_that_chooses_one_class(problem):
    found = audit(of_transformers("BertForSequenceClassification", **SMALL, num_labels=5, problem_type=problem))
    assert (found.loss is not None) == problem.startswith("single")


@pytest.mark.parametrize(("gain", "power"), [(2.0, 13), (0.5, -13)])  # of 2, in the blocks between
def test_activations_that_run_away_are_found(gain, power):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32, bias=False), nn.Identity()) for _ in range(14)))
    for block in model:
        nn.init.normal_(block[0].weight, std=gain / math.sqrt(32))
    (finding,) = audit(model, torch.randn(4, 32)).findings
    what, _, fold, *_ = finding.text.split()
    assert (finding.kind, what) == ("depth", "activations")
    assert math.log2(float(fold.removesuffix("-fold"))) == pytest.approx(power, abs=1)


def test_residual_branches_of_zeros_are_not_dead():
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(16, 16)) for _ in range(3))})
    for layer in model["layers"]:
        nn.init.zeros_(layer[0].weight)
        nn.init.zeros_(layer[0].bias)
    model["out"] = nn.Linear(16, 4)
    model.forward = lambda x: model["out"](functools.reduce(lambda x, layer: x + layer(x), model["layers"], x))
    found = audit(model, torch.randn(4, 16))
    assert [each.activation for each in found.blocks] == [0, 0, 0]
    assert kinds(found) == []


@pytest.mark.parametrize(("times", "count"), [(80, 1), (60, 0)])  # of σ 0.02: up to 8/√32 is spared
def test_matrices_far_beyond_what_is_usual_for_their_shape_are_found(times, count):
    model = of_transformers("LlamaForCausalLM", **{**SMALL, "intermediate_size": 512})
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(times)
    found = [finding for finding in audit(model).findings if finding.kind == "scale"]
    assert len(found) == count
    for finding in found:
        assert finding.names == ("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight")
        assert finding.text.startswith("model.layers.0.mlp.down_proj.weight: σ 1.6 is 36/√fan_in")  # 1.6·√512


@pytest.mark.filterwarnings("ignore")
def test_steps_outside_of_what_mamba_ssm_draws_are_found():
    model = mamba()
    for layer in model.backbone.layers:
        nn.init.constant_(layer.mixer.dt_proj.bias, 1.0)
    (text,) = [finding.text for finding in audit(model).findings if finding.kind == "step"]
    assert f"the median step is {math.log1p(math.e):.2g};" in text
    assert "mixer.A_log: log(1 … N)" in audit(model).summary()


def test_weights_that_look_trained_are_noted():
    model = vit()
    with torch.no_grad():
        model.norm.weight.add_(0.1 * torch.randn(32))
        assert kinds(audit(model)) == []  # beside a bias of zeros this is a draw, as DCGAN's
        model.norm.bias.requires_grad_(False)  # training leaves it zero, as in BNNeck
    found = audit(model)
    assert kinds(found) == []
    assert "the weights look trained: 'norm.weight' is not constant" in found.notes


def test_only_blocks_of_one_stack_are_compared():
    stack = [nn.Sequential(nn.Linear(16, 16), nn.Identity()) for _ in range(4)]
    model = nn.ModuleDict({"encoder": nn.Sequential(*stack[:2]), "decoder": nn.Sequential(*stack[2:])})
    model.forward = lambda x: model.decoder(1e4 * model.encoder(x))
    found = audit(model, 1e-3 * torch.randn(4, 16))
    assert [scale.name for scale in found.blocks] == ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]
    assert found.blocks[-1].activation > 1000 * found.blocks[0].activation
    assert kinds(found) == []


def test_matrices_that_leave_nothing_of_what_comes_in_are_found():
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    assert problems(audit(model)) == []
    nn.init.normal_(model[0].weight, std=1e-10)  # as transformers' default has the images of BLIP
    assert re.fullmatch(r"0.weight: σ \S+ leaves 6e-10 of what comes in", problems(audit(model))[0])
