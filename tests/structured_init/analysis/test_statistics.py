"""Statistics of attention maps against cases by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.analysis import (
    STATISTICS,
    argmax_accuracy,
    best_offset,
    diagonal_mass,
    diagonality,
    effective_rank,
    entropy,
    far_mass,
    impulse_mass,
    mean_distance,
    offset_profile,
    previous_token_score,
    profile_energy,
    summarize,
    to_csv,
)


def shift(grid: tuple[int, int], down: int, right: int, spread: float = 0.0) -> torch.Tensor:
    """Maps (1, 1, P, P) in which every patch looks at the one (down, right) of it, at itself where there is none."""
    rows, columns = grid
    maps = torch.full((1, 1, rows * columns, rows * columns), spread / (rows * columns))
    for y in range(rows):
        for x in range(columns):
            inside = 0 <= y + down < rows and 0 <= x + right < columns
            target = (y + down) * columns + x + right if inside else y * columns + x
            maps[0, 0, y * columns + x, target] += 1 - spread
    return maps


def random_maps(heads: int, tokens: int, seed: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)


def test_mean_distance_of_uniform_attention_is_the_mean_of_the_distances():
    uniform = torch.full((1, 1, 4, 4), 0.25)
    torch.testing.assert_close(mean_distance(uniform, (2, 2)), torch.tensor([(2 + math.sqrt(2)) / 4]))


def test_the_share_of_the_class_token_is_given_back():
    # Half of every row on the class token, the other half one patch to the side: 1 × 2 patches.
    maps = torch.tensor([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]).expand(1, 1, 3, 3)
    torch.testing.assert_close(mean_distance(maps, (1, 2), prefix_tokens=1), torch.tensor([1.0]))


def test_entropy_of_uniform_attention_is_log_n_and_of_an_impulse_zero():
    uniform = torch.full((2, 3, 5, 5), 0.2)
    torch.testing.assert_close(entropy(uniform), torch.full((3,), math.log(5)))
    torch.testing.assert_close(entropy(uniform, normalised=True), torch.ones(3))
    assert entropy(torch.eye(5).expand(2, 3, 5, 5)).eq(0).all()


def test_diagonal_mass_and_diagonality_of_known_maps():
    identity = torch.eye(6).expand(1, 2, 6, 6)
    assert diagonal_mass(identity).eq(1).all()
    assert diagonality(identity, (2, 3)).eq(1).all()
    # A sequence of three: the middle at distance 1 of at most 1, the ends at distance 2 of at most 2.
    farthest = torch.tensor([[0.0, 0, 1], [1, 0, 0], [1, 0, 0]]).expand(1, 1, 3, 3)
    torch.testing.assert_close(diagonality(farthest, (1, 3)), torch.zeros(1))


def test_diagonality_on_a_grid_measures_across_it():
    # 2 × 2: every patch looks at itself and at its neighbour to the side with ½ each; the farthest is √2 away.
    side = torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5))
    expected = torch.tensor([1 - 0.5 / math.sqrt(2)])
    torch.testing.assert_close(diagonality(side.expand(1, 1, 4, 4), (2, 2)), expected)
    # The neighbour below is as near, though its number is two away.
    below = 0.5 * torch.eye(4) + 0.5 * torch.eye(4).roll(2, dims=1)
    torch.testing.assert_close(diagonality(below.expand(1, 1, 4, 4), (2, 2)), expected)


def test_entropy_and_diagonal_mass_of_unequal_rows():
    maps = torch.tensor([[0.75, 0.25], [0.0, 1.0]]).expand(1, 1, 2, 2)
    nats = (0.25 * math.log(4) + 0.75 * math.log(4 / 3)) / 2
    torch.testing.assert_close(entropy(maps), torch.tensor([nats]))
    torch.testing.assert_close(diagonal_mass(maps), torch.tensor([0.875]))


def test_argmax_accuracy_counts_queries_whose_target_is_inside():
    # A sequence of four: right neighbours are asked of the first three, and two of these look there.
    maps = torch.zeros(1, 1, 4, 4)
    maps[0, 0, [0, 1, 2, 3], [1, 2, 0, 0]] = 1
    torch.testing.assert_close(argmax_accuracy(maps, torch.tensor([[0, 1]]), (1, 4)), torch.tensor([2 / 3]))


def test_far_mass_is_what_lies_beyond_the_radius():
    # A sequence of four: the first looks at all with ¼; of the others each at itself.
    maps = torch.eye(4).clone()
    maps[0] = 0.25
    maps = maps.expand(1, 1, 4, 4)
    torch.testing.assert_close(far_mass(maps, (1, 4), radius=1), torch.tensor([0.5 / 4]))
    torch.testing.assert_close(far_mass(maps, (1, 4), radius=0), torch.tensor([0.75 / 4]))
    assert far_mass(maps, (1, 4), radius=3).item() == 0


@settings(max_examples=25, deadline=None)
@given(
    grid=st.tuples(st.integers(2, 6), st.integers(2, 6)),
    down=st.integers(-1, 1),
    right=st.integers(-1, 1),
    spread=st.floats(0, 0.6),
)
def test_impulse_is_found_with_its_mass_wherever_its_target_is_inside(grid, down, right, spread):
    maps = shift(grid, down, right, spread)
    offsets = torch.tensor([[down, right]])
    assert best_offset(maps, grid).tolist() == [[down, right]]
    expected = torch.tensor([1 - spread + spread / (grid[0] * grid[1])])
    torch.testing.assert_close(impulse_mass(maps, offsets, grid), expected)
    assert argmax_accuracy(maps, offsets, grid).item() == pytest.approx(1)
    assert argmax_accuracy(maps, -offsets, grid).item() == pytest.approx(float(down == right == 0))


def test_offset_that_does_not_fit_on_the_grid_has_no_mass():
    outside = shift((2, 2), 0, 1), torch.tensor([[0, 5]]), (2, 2)
    assert impulse_mass(*outside).isnan().all()
    assert argmax_accuracy(*outside).isnan().all()


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 4), columns=st.integers(2, 4), heads=st.integers(1, 3), prefix=st.integers(0, 2))
def test_offset_profile_is_the_plain_average_over_pairs(rows, columns, heads, prefix):
    maps = random_maps(heads, rows * columns + prefix, seed=rows * columns + heads)
    profile = offset_profile(maps, (rows, columns), prefix)
    patches = maps[:, :, prefix:, prefix:]
    patches = (patches / patches.sum(-1, keepdim=True)).mean(0)
    for dy in range(1 - rows, rows):
        for dx in range(1 - columns, columns):
            values = [
                patches[:, y * columns + x, (y + dy) * columns + x + dx]
                for y in range(rows)
                for x in range(columns)
                if 0 <= y + dy < rows and 0 <= x + dx < columns
            ]
            torch.testing.assert_close(profile[:, dy + rows - 1, dx + columns - 1], torch.stack(values).mean(0))


def test_profile_explains_a_convolution_and_not_a_random_map():
    uniform = torch.full((1, 1, 9, 9), 1 / 9)
    torch.testing.assert_close(profile_energy(uniform, (3, 3)), torch.ones(1))
    sharp = (20 * torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))).softmax(-1)
    assert profile_energy(sharp, (4, 4)).item() < 0.5


def test_effective_rank_counts_equal_singular_values():
    torch.testing.assert_close(effective_rank(torch.eye(6).expand(2, 1, 6, 6)), torch.tensor([6.0]))
    torch.testing.assert_close(effective_rank(torch.full((1, 1, 6, 6), 1 / 6)), torch.ones(1))
    # σ = (2, 1, 1) / 4: exp(½ ln 2 + ½ ln 4) = 2√2
    diagonal = torch.diag(torch.tensor([2.0, 1, 1])).expand(1, 1, 3, 3)
    torch.testing.assert_close(effective_rank(diagonal), torch.tensor([2 * 2**0.5]))


@pytest.mark.parametrize("grid", [None, (2, 4)])
def test_summary_has_every_statistic_for_every_head_and_becomes_a_table(grid):
    tokens = 9
    summary = summarize(random_maps(3, tokens, 0), grid, prefix_tokens=1)
    assert set(summary) == {*STATISTICS, "offset"}
    assert all(len(values) == 3 for values in summary.values())
    lines = to_csv({"before": {"a": summary}, "after": {"a": summary, "b": summary}}).splitlines()
    assert len(lines) == 1 + 3 * 3
    assert lines[0].split(",")[:4] == ["phase", "layer", "head", "mean_distance"]
    assert lines[-1].startswith("after,b,2,")


def test_a_summary_of_cross_attention_has_what_needs_no_places():
    summary = summarize(torch.rand(2, 3, 1, 9).softmax(-1))
    known = {name for name, values in summary.items() if not any(map(math.isnan, torch.tensor(values).flatten()))}
    assert known == {"entropy", "normalised_entropy", "effective_rank"}
    assert summary["normalised_entropy"] == pytest.approx([1, 1, 1], abs=0.1)
    assert {len(values) for values in summary.values()} == {3}


def test_sequence_is_measured_in_tokens():
    # Every token looks at the one before it, the first at itself.
    previous = torch.zeros(1, 1, 4, 4)
    previous[0, 0, [0, 1, 2, 3], [0, 0, 1, 2]] = 1
    summary = summarize(previous)
    assert summary["offset"] == [[0, -1]]
    assert summary["mean_distance"] == [0.75]
    assert summary["impulse_mass"] == [1.0]


def test_heads_of_a_sequence_are_found_at_any_offset():
    maps = torch.zeros(1, 4, 12, 12)
    for head, distance in enumerate((2, 3, 4, -5)):  # tokens before; at the ends a token looks at itself
        for token in range(12):
            seen = token - distance
            maps[0, head, token, seen if 0 <= seen < 12 else token] = 1
    summary = summarize(maps, window=3)
    assert summary["offset"] == [[0, -2], [0, -3], [0, -4], [0, 5]]
    assert summary["impulse_mass"] == [1.0] * 4
    assert summary["argmax_accuracy"] == [1.0] * 4
    assert summarize(maps, grid=(1, 12)) == summary  # one row is a sequence


def masked(lengths: list[int], left: bool, causal: bool, tokens: int = 9, heads: int = 2) -> torch.Tensor:
    """Softmax maps of samples of so many tokens, padded at one side; what may look at nothing looks at all alike."""
    number = torch.arange(tokens)
    real = torch.stack([number >= tokens - n if left else number < n for n in lengths])
    allowed = real[:, None, None, :] & (torch.ones(tokens, tokens).tril().bool() if causal else True)
    logits = torch.randn(len(lengths), heads, tokens, tokens, generator=torch.Generator().manual_seed(0))
    return logits.masked_fill(~allowed, torch.finfo(torch.float32).min).softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_padding_counts_neither_as_query_nor_as_key(left, causal):
    def cut(maps: torch.Tensor) -> torch.Tensor:
        return maps[..., -6:, -6:] if left else maps[..., :6, :6]

    maps = masked([6, 6, 6], left, causal)
    assert summarize(maps) == summarize(cut(maps))
    assert_equal = torch.testing.assert_close
    mixed = masked([6, 9, 4], left, causal)
    own = [(m[..., -n:, -n:] if left else m[..., :n, :n]) for m, n in zip(mixed.split(1), [6, 9, 4], strict=True)]
    counts = torch.tensor([6.0, 9.0, 4.0])
    for statistic in (diagonal_mass, entropy, lambda m: mean_distance(m, (1, m.shape[-1]))):
        expected = torch.stack([statistic(each) for each in own], dim=1) @ counts / counts.sum()
        assert_equal(statistic(mixed), expected)
    previous = torch.stack([previous_token_score(each) for each in own], dim=1)
    assert_equal(effective_rank(mixed), torch.stack([effective_rank(each) for each in own]).mean(0))
    assert_equal(previous_token_score(mixed), previous @ (counts - 1) / 16)


def test_a_map_of_zeros_and_ones_has_no_padding():
    for map_ in ([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]], [[1.0, 0, 0], [1, 0, 0], [1, 0, 0]]):
        assert diagonal_mass(torch.tensor([[map_]])).item() == pytest.approx(1 / 3)
