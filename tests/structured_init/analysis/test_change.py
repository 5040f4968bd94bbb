import math

import pytest
import torch

from structured_init.analysis import best_offset, impulse_mass_change, structure_left, summarize_change
from structured_init.errors import StructuredInitError


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values).expand(1, 1, len(values), len(values))


def random_maps(seed: int, sharpness: float = 2.0) -> torch.Tensor:
    return torch.randn(3, 2, 9, 9, generator=torch.Generator().manual_seed(seed)).mul(sharpness).softmax(-1)


def test_cosine_of_three_tokens_by_hand():
    identity = torch.eye(3).expand(1, 1, 3, 3)
    shifted = rows([0.0, 1, 0], [0, 0, 1], [1, 0, 0])
    half = 0.5 * identity + 0.5 * shifted
    # Without 1/3: rows (2, −1, −1)/3 and (−1, 2, −1)/3, product −3/9, squares 6/9.
    torch.testing.assert_close(structure_left(identity, shifted).item(), -0.5)
    # (1, 1, −2)/6 with (2, −1, −1)/3: 3/18; squares 6/36 and 6/9.
    expected = (3 / 18) / math.sqrt(6 / 36 * 6 / 9)
    torch.testing.assert_close(structure_left(identity, half).item(), expected)


def test_softer_version_of_the_start_is_all_of_it_and_its_opposite_none():
    before = random_maps(0)
    softer = 0.2 * before + 0.8 / 9
    torch.testing.assert_close(structure_left(before, softer), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    opposite = 2 / 9 - before.clamp_max(2 / 9)
    assert (structure_left(before, opposite) < 0).all()
    assert structure_left(before, random_maps(1)).abs().max() < 0.2


def test_uniform_head_has_no_structure_to_lose():
    uniform = torch.full((3, 2, 9, 9), 1 / 9)
    assert structure_left(uniform, random_maps(0)).isnan().all()


def test_class_token_is_left_out():
    before, after = random_maps(0), random_maps(1)
    patches = [maps[..., 1:, 1:] / maps[..., 1:, 1:].sum(-1, keepdim=True) for maps in (before, after)]
    torch.testing.assert_close(structure_left(before, after, prefix_tokens=1), structure_left(*patches))


def test_causal_mask_is_no_structure():
    causal = torch.ones(9, 9).tril()
    uniform = (causal / causal.sum(-1, keepdim=True)).expand(3, 2, 9, 9)
    sharp = (random_maps(0) * causal).div((random_maps(0) * causal).sum(-1, keepdim=True))
    other = (random_maps(1) * causal).div((random_maps(1) * causal).sum(-1, keepdim=True))
    assert structure_left(uniform, sharp, causal=True).isnan().all()
    assert structure_left(sharp, other, causal=True).abs().max() < 0.25
    assert (structure_left(sharp, other) > 0.3).all()  # the mask alone


def test_impulse_that_moves_is_lost_at_its_old_place():
    # A sequence of three: every token looks at the next (the last at itself), then half of it at itself.
    before = rows([0.0, 1, 0], [0, 0, 1], [0, 0, 1])
    after = 0.5 * before + 0.5 * torch.eye(3)
    offsets = best_offset(before, (1, 3))
    assert offsets.tolist() == [[0, 1]]
    torch.testing.assert_close(impulse_mass_change(before, after, offsets, (1, 3)), torch.tensor([-0.5]))
    change = summarize_change(before, after)
    assert change["offset"] == [[0, 1]]
    assert (change["impulse_mass_before"], change["impulse_mass_after"]) == ([1.0], [0.5])
    assert change["impulse_mass_change"] == [-0.5]
    assert change["structure_left"] == [round(structure_left(before, after).item(), 6)]


def test_summary_of_causal_maps_knows_that_they_are():
    causal = torch.ones(9, 9).tril()
    before, after = ((maps := random_maps(seed) * causal) / maps.sum(-1, keepdim=True) for seed in (0, 1))
    expected = structure_left(before, after, causal=True).tolist()
    assert summarize_change(before, after)["structure_left"] == pytest.approx(expected, abs=1e-6)


def test_maps_of_other_samples_are_an_error(as_installed):
    with pytest.raises(
        StructuredInitError, match=r"must come from the same samples, got shapes \(3, 2, 9, 9\) and \(2, 2"
    ):
        structure_left(random_maps(0), random_maps(1)[:2])
