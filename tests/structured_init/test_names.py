"""A model's names, and so its draws, do not depend on what it has been wrapped in."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.optim.swa_utils import AveragedModel

from structured_init import Compose, KaimingUniform, Mimetic, attention_sites, initialize
from structured_init.analysis import capture_attention, repeated_blocks
from structured_init.util.names import named_plain_modules, short_names


def wrapper(path, child):
    """A class of another library, which need not be installed: its path and the child that it keeps are what counts."""

    class Wrapper(nn.Module):
        def __init__(self, wrapped):
            super().__init__()
            self.add_module(child, wrapped)

        def forward(self, *args, **kwargs):
            return self._modules[child](*args, **kwargs)

    Wrapper.__module__, _, Wrapper.__qualname__ = path.rpartition(".")
    return Wrapper


def with_lora(model):
    """What PEFT makes of a model: PeftModel(LoraModel(model)), and LoRA around the layers chosen."""
    layer = type("Linear", (wrapper("peft.tuners.tuners_utils.BaseTunerLayer", "base_layer"),), {})
    for block in model.blocks:
        linear = block.attn.qkv
        block.attn.qkv = layer(linear)
        block.attn.qkv.weight = linear.weight  # as PEFT's property
        block.attn.qkv.in_features, block.attn.qkv.out_features = linear.in_features, linear.out_features
    return wrapper("peft.peft_model.PeftModel", "base_model")(
        wrapper("peft.tuners.tuners_utils.BaseTuner", "model")(model)
    )


def with_checkpoints(model):
    apply_activation_checkpointing(model, check_fn=lambda module: module in set(model.blocks))
    return model


@contextlib.contextmanager
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def data_parallel(model):
    """The wrapper without devices, as on a CPU: the model stays where it is."""
    wrapped = nn.DataParallel(model)
    wrapped.device_ids, wrapped.module = [], model.cpu()
    return wrapped


WRAPPED = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "data parallel": data_parallel,
    "averaged": AveragedModel,
    "Fabric": Fabric(accelerator="cpu").setup,
    "DDP of compiled of checkpointed": lambda model: nn.parallel.DistributedDataParallel(
        torch.compile(with_checkpoints(model), backend="eager")
    ),
    "LoRA": with_lora,
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapped_model_has_the_plain_names_the_same_draws_and_the_same_maps(kind, tiny_vit, tmp_path):
    with one_process(tmp_path):
        plain, wrapped = tiny_vit(), WRAPPED[kind](tiny_vit())
        start = Compose([KaimingUniform(), Mimetic(where="blocks.*.attn")])
        reports = [initialize(model, start, seed=3).to_dict() for model in (plain, wrapped)]
        assert reports[0] == reports[1]
        assert [site.name for site in attention_sites(wrapped)] == ["blocks.0.attn", "blocks.1.attn"]
        for ours, theirs in zip(attention_sites(plain), attention_sites(wrapped), strict=True):
            assert torch.equal(ours.query, theirs.query)
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        maps = [capture_attention(model, images) for model in (plain, wrapped)]
        assert list(maps[1]) == ["blocks.0.attn", "blocks.1.attn"]
        assert all(torch.equal(maps[0][name], maps[1][name]) for name in maps[0])
        assert list(repeated_blocks(wrapped)) == ["blocks.0", "blocks.1"]


def test_a_users_own_child_called_as_a_wrappers_keeps_its_name():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.ModuleDict({"model": nn.Linear(2, 2), "base_model": nn.Linear(2, 2)})

    names = [name for name, _ in named_plain_modules(nn.DataParallel(Mine()))]
    assert names == ["", "module", "module.model", "module.base_model"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["network.blocks.0.attn", "network.blocks.11.attn"], ["0", "11"]),
        (["encoder.0.attn", "decoder.0.attn"], ["encoder.0", "decoder.0"]),
        (["a.b", "a.b.c"], ["a.b", "c"]),
        (
            [
                "vision.encoder.layers.0.attn",
                "vision.encoder.layers.1.attn",
                "text.layers.0.self_attn",
                "text.layers.1.x",
            ],
            ["vision.0", "vision.1", "text.0", "text.1"],
        ),
        (
            ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"],
            ["encoder", "decoder.self_attn", "decoder.encoder_attn"],
        ),
    ],
)
def test_layer_names_are_shortened_to_where_they_differ(names, short):
    assert short_names(names) == short
