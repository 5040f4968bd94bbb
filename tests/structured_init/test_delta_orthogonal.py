"""DeltaOrthogonal: an orthogonal matrix at the centre, for every convolution."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from structured_init import DeltaOrthogonal, StructuredInitError, initialize


def centre_and_rest(weight):
    centre = (..., *((size - 1) // 2 for size in weight.shape[2:]))
    rest = weight.detach().clone()
    rest[centre] = 0
    return weight.detach()[centre].double(), rest


@pytest.mark.parametrize(
    ("kind", "kernel", "gain"),
    [(nn.Conv1d, [4], 1.0), (nn.Conv2d, [3], 0.5), (nn.Conv3d, [1], 1.0), (nn.Linear, [], 1.0)],
)
@pytest.mark.parametrize(("inside", "outside"), [(4, 4), (3, 8), (8, 3)])
def test_the_centre_is_orthogonal_and_all_else_zero(kind, kernel, inside, outside, gain):
    model = nn.Sequential(kind(inside, outside, *kernel))
    report = initialize(model, DeltaOrthogonal(gain=gain))
    centre, rest = centre_and_rest(model[0].weight)
    assert not rest.any()
    assert torch.linalg.svdvals(centre).tolist() == pytest.approx([gain] * min(inside, outside), abs=1e-6)
    assert not model[0].bias.any()
    assert ("a contraction" in report.notes.get("0", "")) == (outside < inside)


@pytest.mark.parametrize("kernel", [3, 4])
def test_norms_are_kept_under_zero_padding(kernel):
    model = nn.Sequential(nn.ZeroPad2d((1, kernel - 2, 1, kernel - 2)), nn.Conv2d(4, 6, kernel)).double()
    initialize(model, DeltaOrthogonal())
    x = torch.randn(5, 4, 7, 6, dtype=torch.float64)
    assert model(x).flatten(1).norm(dim=1).tolist() == pytest.approx(x.flatten(1).norm(dim=1).tolist(), rel=1e-12)


def test_every_group_has_a_matrix_of_its_own():
    model = nn.Sequential(nn.Conv2d(6, 9, 3, groups=3), nn.Conv2d(5, 5, 3, groups=5))
    initialize(model, DeltaOrthogonal())
    centres = [centre_and_rest(model[0].weight)[0][i : i + 3] for i in (0, 3, 6)]
    for centre in centres:
        torch.testing.assert_close(centre.T @ centre, torch.eye(2).double(), rtol=0, atol=1e-6)
    assert not torch.equal(centres[0], centres[1])
    assert centre_and_rest(model[1].weight)[0].abs().flatten().tolist() == [1.0] * 5


def test_only_what_is_asked_for_is_touched():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4))
    start = DeltaOrthogonal(where=lambda module: module.weight.shape[1] == 3)
    assert [e.names for e in initialize(model, start, seed=1).changed] == [("0.weight",), ("0.bias",)]


def test_a_stride_is_reported():
    report = initialize(nn.Sequential(nn.Conv2d(3, 4, 3, 2)), DeltaOrthogonal())
    assert report.notes["0"] == "its stride reads one position of 4: it does not see the others at the start"


@pytest.mark.parametrize("sizes", [(2, 8), (8, 2)])
def test_a_conv1d_of_transformers_is_a_linear_layer_stored_transposed(sizes):
    inputs, outputs = sizes
    layer = Conv1D(outputs, inputs)
    notes = initialize(nn.ModuleDict({"c_fc": layer}), DeltaOrthogonal(gain=2.0)).notes
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight), torch.full((2,), 2.0))
    assert not layer.bias.any()
    assert ("2 outputs of 8 inputs" in str(notes)) == (outputs < inputs)


def test_mistakes_are_one_line():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(StructuredInitError, match=r"^DeltaOrthogonal found no linear or convolutional layer; "):
        initialize(nn.Sequential(nn.LayerNorm(2)), DeltaOrthogonal())
    with pytest.raises(StructuredInitError, match="where='x' selects none of the 1 layers"):
        initialize(model, DeltaOrthogonal(where="x"))


def test_an_output_that_is_tied_to_an_embedding_is_left_alone():
    model = nn.ModuleDict({"words": nn.Embedding(9, 8), "layer": nn.Linear(8, 8), "head": nn.Linear(8, 9, bias=False)})
    model["head"].weight = model["words"].weight
    changed = {entry.names for entry in initialize(model, DeltaOrthogonal()).changed}
    assert changed == {("layer.weight",), ("layer.bias",)}
