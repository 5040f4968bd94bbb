"""Models whose tensors cannot be initialized are answered in one line that says what to do."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from structured_init import Default, KaimingUniform, Mimetic, StructuredInitError, initialize
from structured_init.analysis import audit, capture_attention


def quantized(model):
    with warnings.catch_warnings():  # torch 2.11 says that torch.ao moves to torchao
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("initializer", [Default(), KaimingUniform(), Mimetic()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_lazy_layer_is_named_with_the_way_out(initializer, dry_run):
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4))
    with pytest.raises(StructuredInitError, match=r"'1\.weight' of a lazy layer .*: call the model once on a batch"):
        initialize(model, initializer, dry_run=dry_run)


@pytest.mark.parametrize("call", [lambda model: initialize(model, Mimetic()), audit, capture_attention])
def test_a_script_is_refused(call):
    with warnings.catch_warnings():  # torch.jit is deprecated
        warnings.simplefilter("ignore")
        script = torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3))
    with pytest.raises(StructuredInitError, match="TorchScript hides what a model calls"):
        call(script)


def test_a_lazy_layer_that_has_seen_a_batch_is_initialized():
    model = nn.Sequential(nn.LazyLinear(4))
    model(torch.ones(1, 3))
    assert len(initialize(model, KaimingUniform()).changed) == 2


def test_quantized_attention_is_named_with_the_way_out(tiny_vit, as_installed):
    with pytest.raises(StructuredInitError, match="query is quantized: initialize the model before"):
        initialize(quantized(tiny_vit()), Mimetic())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_attention_of_ones_own_that_is_quantized_is_named_too():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.query, self.key, self.value, self.out = nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in "qkvo")

        def forward(self, x):
            x = self.norm(x)
            return self.out((self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x))

    with pytest.raises(StructuredInitError, match="its weights are quantized: initialize the model before"):
        initialize(quantized(Single()), Mimetic(), batch=torch.randn(2, 5, 8))


def test_a_model_of_quantized_layers_alone_is_not_said_to_have_nothing():
    with pytest.raises(StructuredInitError, match="quantized Linear, out of reach: initialize the model before"):
        initialize(quantized(nn.Sequential(nn.Linear(4, 4))), KaimingUniform())


def test_quantized_layers_beside_others_are_reported_as_skipped(tiny_vit):
    report = initialize(quantized(tiny_vit()), KaimingUniform())
    assert {entry.names[0] for entry in report.changed} >= {"patch_embed.proj.weight"}
    assert report.skipped["blocks.0.mlp.fc1"].startswith("quantized weights are out of reach")


def test_parameters_made_under_inference_mode_can_be_left_alone(tiny_vit):
    with torch.inference_mode():
        model = tiny_vit()
    assert initialize(model, Default()).changed == []


def with_weight(change):
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(change(model.weight.detach()), requires_grad=False)
    return model


def overlapping():
    model, memory = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(96)
    model[0].weight.data, model[1].weight.data = memory[:64].view(8, 8), memory[32:].view(8, 8)
    return model


UNWRITABLE = {
    "float8": (lambda: with_weight(lambda weight: weight.to(torch.float8_e4m3fn)), "before it is quantized"),
    "sparse": (lambda: with_weight(torch.Tensor.to_sparse), "'weight' is sparse .*: make it dense"),
    "stride 0": (lambda: with_weight(lambda weight: weight[:1].expand(8, 8)), "'weight' lie in one place of memory"),
    "overlap": (overlapping, r"'1\.weight' overlaps another parameter in memory"),
    "no inputs": (lambda: nn.Linear(0, 5), "'weight' belongs to a layer without inputs"),
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("build", "said"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_weight_that_cannot_be_set_is_named_in_one_line_and_nothing_is_written(build, said):
    model = build()
    before = [each.detach().to_dense().float().clone() for each in model.parameters()]
    with pytest.raises(StructuredInitError, match=said):
        initialize(model, KaimingUniform())
    assert all(map(torch.equal, [each.detach().to_dense().float() for each in model.parameters()], before))


def test_columns_of_one_memory_and_tied_weights_do_not_overlap():
    model, memory = nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8)), torch.zeros(8, 8)
    model[0].weight.data, model[1].weight.data = memory[:, :4], memory[:, 4:]
    model[2].weight.data = model[1].weight.data
    initialize(model, KaimingUniform())
    assert memory.all()
