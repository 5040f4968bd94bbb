"""A failure anywhere leaves the model as it was."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch
from torch import nn

from structured_init import Initializer, StructuredInitError, initialize
from structured_init import writer as writer_module


class FailAt(Initializer):
    """Double every weight, layer by layer, and fail after a number of layers were already written."""

    def __init__(self, layer: int, error: type[BaseException] = RuntimeError) -> None:
        self.layer = layer
        self.error = error

    def plan(self, weights, *, rng, batch=None):
        for index, parameter in enumerate(weights.each(list(weights.model.parameters()))):
            if index == self.layer:
                raise self.error("half way")
            weights.write(parameter, 2 * weights.read(parameter) + 1, "FailAt")


def snapshot(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return state, [parameter.requires_grad for parameter in model.parameters()]


def assert_unchanged(model, taken):
    state, trainable = taken
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert [parameter.requires_grad for parameter in model.parameters()] == trainable


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("layer", "error"), [(1, RuntimeError), (9, RuntimeError), (5, KeyboardInterrupt)])
def test_a_failure_after_layers_were_written_restores_all(tiny_vit, monkeypatch, dtype, layer, error):
    model = tiny_vit().to(dtype)
    model.pos_embed.requires_grad_(False)
    taken, touched = snapshot(model), []
    write = writer_module.Writer.write

    def spy(self, target, value, name, **known):
        write(self, target, value, name, **known)
        touched.append(not torch.equal(target, taken[0][name]))

    monkeypatch.setattr(writer_module.Writer, "write", spy)
    with pytest.raises(error, match="half way"):
        initialize(model, FailAt(layer, error))
    assert touched == [True] * layer  # so there was something to restore
    assert_unchanged(model, taken)


def test_what_was_overwritten_is_not_kept_in_memory(tiny_vit, monkeypatch, tmp_path):
    """No full value of any tensor outlives its layer: all that is kept of it stands in the file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, sizes, alive = tiny_vit(), [], []

    class Watched(FailAt):
        def plan(self, weights, *, rng, batch=None):
            for parameter in weights.each(list(weights.model.parameters())):
                alive.append(sum(update.value is not None for update in weights.updates.values()))
                weights.write(parameter, weights.read(parameter) + 1, "Watched")
                sizes.append(os.fstat(weights.writer._file.fileno()).st_size)

    initialize(model, Watched(0))
    written = [4 * parameter.numel() for parameter in model.parameters()]
    assert alive == [0] * len(written)
    assert sizes == [sum(written[:index]) for index in range(len(written))]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
def test_a_full_disk_is_one_line_and_nothing_is_lost(tiny_vit, monkeypatch):
    full = open("/dev/full", "w+b", buffering=0)  # noqa: SIM115 - the writer closes it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full)
    model = tiny_vit()
    taken = snapshot(model)
    with pytest.raises(StructuredInitError, match=r"'cls_token' could not .*No space left.*TMPDIR") as raised:
        initialize(model, FailAt(9))
    assert "\n" not in str(raised.value)
    assert_unchanged(model, taken)


def test_a_failure_after_freezing_thaws(tiny_vit):
    class Both(Initializer):
        def plan(self, weights, *, rng, batch=None):
            weights.write(weights.model.head.weight, torch.ones(5, 16), "Both")

        def freezing(self, weights):
            return [(weights.model.head.weight, False), (torch.tensor(1), True)]  # integers take no gradient

    model = tiny_vit()
    taken = snapshot(model)
    with pytest.raises(RuntimeError, match="floating point"):
        initialize(model, Both())
    assert_unchanged(model, taken)


def test_scalars_empty_and_non_contiguous_tensors_are_restored():
    model = nn.Module()
    model.scalar = nn.Parameter(torch.tensor(3.0))
    model.transposed = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    model.last = nn.Parameter(torch.ones(2))
    taken, stride = snapshot(model), model.transposed.stride()
    with pytest.raises(RuntimeError, match="half way"):
        initialize(model, FailAt(2))
    assert_unchanged(model, taken)
    assert model.transposed.stride() == stride
