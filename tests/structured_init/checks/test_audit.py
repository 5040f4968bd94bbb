"""The audit as a whole: what it says of a model, and what it leaves alone."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from structured_init.analysis import audit


def vit(depth: int = 2, **changes) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=depth, embed_dim=32, num_heads=2, **changes)


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return vit(depth=4)


@pytest.fixture(scope="module")
def seen(model):
    return audit(model)


def test_every_parameter_has_one_record_in_the_order_of_the_model(model, seen):
    assert [record.name for record in seen.records] == [name for name, _ in model.named_parameters()]
    assert len(seen.table()) == len(seen.records)
    assert f"{len(seen.records)} of them recognized" in seen.headline()


def test_equal_blocks_stand_in_one_line(seen):
    (line,) = [each for each in seen.summary().splitlines() if each.startswith("blocks.")]
    assert line.startswith("blocks.0–3 ")
    assert "attn.qkv, attn.proj, mlp.fc1, mlp.fc2: normal σ 0.02 (timm, transformers)" in line
    assert "; norms: ones; biases: zeros | activations " in line
    assert "nothing suspicious was found" in seen.summary()
    assert str(seen) in seen.markdown()


def test_a_block_that_differs_stands_in_a_line_of_its_own():
    other = vit(depth=4)
    nn.init.orthogonal_(other.blocks[2].attn.proj.weight)
    names = [line.name for line in audit(other).lines() if line.name.startswith("blocks")]
    assert names == ["blocks.0–1", "blocks.2", "blocks.3"]


def test_activations_and_gradients_are_those_of_autograd(model):
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    found = audit(model, images, seed=5)
    kept = {}
    handles = [
        block.register_forward_hook(lambda m, a, out, i=i: kept.update({f"blocks.{i}": out}))
        for i, block in enumerate(model.blocks)
    ]
    output = model.eval()(images)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    loss = (output * direction).sum() / output.numel() ** 0.5
    (gradient,) = torch.autograd.grad(loss, model.blocks[1].attn.qkv.weight)
    for handle in handles:
        handle.remove()
    expected = {name: pytest.approx(out.square().mean().sqrt().item(), rel=1e-4) for name, out in kept.items()}
    assert {scale.name: scale.activation for scale in found.blocks} == expected
    rms = gradient.square().mean().sqrt().item()
    assert found.gradients["blocks.1.attn.qkv.weight"] == pytest.approx(rms, rel=1e-4)


def test_only_the_first_samples_of_a_large_batch_are_run(model):
    images = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert audit(model, images).blocks == audit(model, images[:8]).blocks
    assert audit(model, images, max_samples=None).blocks != audit(model, images[:8]).blocks


def test_batch_norms_see_the_batch_as_in_training_and_keep_their_statistics():
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in range(2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = audit(model, 50 * torch.randn(4, 3, 8, 8))
    assert [each.activation for each in found.blocks] == [pytest.approx(1, rel=1e-3)] * 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_is_left_as_it_was(dtype):
    model = vit(drop_rate=0.1).to(dtype).train()
    model.blocks[0].norm1.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    found = audit(model)
    assert found.blocks
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.blocks[0].norm1.weight.requires_grad
    assert not any(module._forward_hooks for module in model.modules())


def test_the_vectors_of_spectral_norms_are_left_as_they_were():
    model = nn.Sequential(spectral_norm(nn.Linear(16, 16)), spectral_norm(nn.Linear(16, 16)))
    before = {name: value.clone() for name, value in model.train().state_dict().items()}
    audit(model, torch.randn(2, 5, 16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_table_has_a_row_per_parameter_with_kind_scale_and_reference(seen):
    table = seen.table().set_index("parameter")
    row = table.loc["blocks.3.mlp.fc2.weight"]
    assert (row["kind"], row["equals"], row["shape"]) == ("normal", "timm; transformers", "32×128")
    assert row["scale"] == pytest.approx(0.02, rel=0.05)
    assert table["gradient"].notna().all()


def test_wrappers_do_not_show_in_names(model):
    wrapped = nn.DataParallel(model)
    found = audit(wrapped, torch.randn(2, 3, 32, 32, device=next(wrapped.parameters()).device))
    assert found.records[2].name == "patch_embed.proj.weight"
    assert [scale.name for scale in found.blocks] == [f"blocks.{i}" for i in range(4)]


def test_a_host_that_does_not_run_on_its_own_inputs_is_audited_without_them():
    other = vit()
    other.forward = lambda images: 1 / 0
    found = audit(other)
    assert found.blocks == []
    assert found.notes == [
        "depth, stuck, blind, loss left out: VisionTransformer fails on the host's own example, "
        "torch.randn(2, 3, 32, 32): division by zero: give batch=, what the model is called with"
    ]
    with pytest.raises(ZeroDivisionError):
        audit(other, torch.randn(2, 3, 32, 32))


class Forces(nn.Module):
    """A molecule's energy by attention between its atoms, and its forces: a model that needs gradients itself."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, places):
        places = places.detach().requires_grad_(True)
        x = self.embed(places)
        energy = self.head((x @ x.mT).softmax(-1) @ x).sum()
        return {"energy": energy, "forces": -torch.autograd.grad(energy, places, create_graph=True)[0]}


def test_a_model_that_needs_gradients_itself_is_audited():
    found = audit(Forces(), torch.randn(2, 5, 3))
    assert set(found.gradients) == {record.name for record in found.records}
