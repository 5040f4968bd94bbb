"""Parameters with a structure, and memory that nobody has written to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from structured_init import DeltaOrthogonal, initialize
from structured_init.analysis import audit
from structured_init.checks.structure import structured
from structured_init.storage import uninitialized
from structured_init.util.linalg import random_orthogonal

SEED = 0


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


BUILT = {
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(12, 40), gain=2.0, generator=generator()),
    "log(1 … N)": lambda: torch.arange(1, 17).log().expand(24, 16),
    "computed": lambda: torch.pi * torch.arange(16.0).repeat(48, 1),  # A_imag of S4D
    "impulse": lambda: torch.eye(5)[torch.arange(12) % 5].reshape(12, 1, 5) * 0.5,
}
SCALES = {"orthogonal": 2.0, "impulse": 0.5}


@pytest.mark.parametrize("kind", BUILT)
def test_a_structure_is_recognized_with_its_scale(kind):
    found = structured(BUILT[kind]().contiguous())
    assert (found.kind, found.scale) == (kind, pytest.approx(SCALES.get(kind, 0.0), rel=1e-4))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 8, 4, stride=2),
        nn.Conv2d(8, 8, 4),
        nn.Conv2d(6, 9, 3, groups=3),
        nn.Conv2d(16, 32, 4, groups=16),
    ],
)
def test_what_delta_orthogonal_wrote_is_named(layer):
    initialize(model := nn.Sequential(layer), DeltaOrthogonal(gain=1.5))
    assert audit(model).table()["description"][0] == "1.5 × delta orthogonal"


@pytest.mark.parametrize(
    "heads",
    [
        torch.stack([random_orthogonal(*shape, generator=generator()) for _ in range(4)])
        for shape in [(16, 64), (64, 16)]
    ],
)
def test_a_parameter_whose_heads_are_each_orthogonal_is_named_with_their_gain(heads):
    model = nn.Module()
    model.query = nn.Parameter(1.5 * heads)
    assert audit(model).table()["description"][0] == "1.5 × orthogonal"


@pytest.mark.parametrize("prefix", [torch.zeros(1, 32), torch.zeros(0, 32), 0.02 * torch.ones(2, 32)])
def test_sines_and_cosines_of_positions_are_recognized_behind_prefix_tokens(prefix):
    angles = torch.arange(20)[:, None] / 10000 ** (torch.arange(16) / 16)
    table = torch.cat([prefix, torch.cat([angles.sin(), angles.cos()], dim=1)])
    assert structured(table[None]).kind == "sinusoidal"
    table[-1] = 0  # of a padding token
    assert structured(table[None]).kind == "sinusoidal"


@pytest.mark.parametrize("shape", [(40, 40), (2, 1000), (64, 3, 3, 3)])
def test_a_draw_has_no_structure(shape):
    draws = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(50))
    assert all(structured(each) is None for each in draws)


def test_an_identity_is_orthogonal():
    assert structured(nn.init.eye_(torch.empty(6, 9))).kind == "orthogonal"


def test_an_orthogonal_matrix_with_noise_is_no_longer_called_so():
    matrix = BUILT["orthogonal"]()
    assert structured(matrix + 0.01 * torch.randn(matrix.shape, generator=generator())) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_bits_are_memory_that_was_never_initialized(dtype):
    whole = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[dtype]
    bits = torch.iinfo(whole)
    memory = torch.randint(bits.min, bits.max, (256,), dtype=whole, generator=generator()).view(dtype)
    assert uninitialized(memory) is not None


def test_integers_and_pointers_read_as_floats_are_memory():
    assert "below 1e-38" in uninitialized(torch.arange(64, dtype=torch.int32).view(torch.float32))
    assert "not finite" in uninitialized(torch.tensor([0.1, math.nan]))
    assert "largest number is 1.0e+20" in uninitialized(torch.tensor([0.1, 1e20]))


@pytest.mark.parametrize("scale", [1e-8, 1e-6, 0.02, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_of_any_usual_scale_are_no_bare_memory(scale, dtype):
    assert uninitialized((torch.randn(5000, generator=generator()) * scale).to(dtype)) is None
