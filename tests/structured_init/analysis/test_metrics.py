"""Each metric against a hand-computed case, and against its function over all batches at once."""

import pickle

import pytest
import torch

from structured_init import analysis
from structured_init.analysis import (
    CKA,
    ArgmaxAccuracy,
    AttentionEntropy,
    Diagonality,
    DiagonalMass,
    EffectiveRank,
    FarMass,
    ImpulseMass,
    MeanAttentionDistance,
    OffsetProfile,
    ProfileEnergy,
    cka_matrix,
    gram_matrix,
)

GRID, HEADS, PREFIX = (2, 3), 2, 1
OFFSETS = torch.tensor([[0, 1], [-1, 0]])
PLACE = {"grid": GRID, "prefix_tokens": PREFIX}

# Metric, and the function that it is over all samples at once.
CASES = {
    "MeanAttentionDistance": (
        lambda: MeanAttentionDistance(HEADS, **PLACE, patch_size=4),
        lambda maps: analysis.mean_distance(maps, **PLACE, patch_size=4),
    ),
    "AttentionEntropy": (lambda: AttentionEntropy(HEADS), analysis.entropy),
    "DiagonalMass": (
        lambda: DiagonalMass(HEADS, prefix_tokens=PREFIX),
        lambda maps: analysis.diagonal_mass(maps, PREFIX),
    ),
    "Diagonality": (lambda: Diagonality(HEADS, **PLACE), lambda maps: analysis.diagonality(maps, **PLACE)),
    "FarMass": (
        lambda: FarMass(HEADS, **PLACE, radius=1),
        lambda maps: analysis.far_mass(maps, **PLACE, radius=1),
    ),
    "ImpulseMass": (lambda: ImpulseMass(OFFSETS, **PLACE), lambda maps: analysis.impulse_mass(maps, OFFSETS, **PLACE)),
    "ArgmaxAccuracy": (
        lambda: ArgmaxAccuracy(OFFSETS.tolist(), **PLACE),
        lambda maps: analysis.argmax_accuracy(maps, OFFSETS, **PLACE),
    ),
    "EffectiveRank": (lambda: EffectiveRank(HEADS), analysis.effective_rank),
    "OffsetProfile": (lambda: OffsetProfile(HEADS, **PLACE), lambda maps: analysis.offset_profile(maps, **PLACE)),
    "ProfileEnergy": (lambda: ProfileEnergy(HEADS, **PLACE), lambda maps: analysis.profile_energy(maps, **PLACE)),
}


def maps(seed: int = 0, batch: int = 5, tokens: int = 7) -> torch.Tensor:
    return torch.randn(batch, HEADS, tokens, tokens, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)


def features(seed: int, samples: int = 8, width: int = 3) -> torch.Tensor:
    return torch.randn(samples, width, generator=torch.Generator().manual_seed(seed))


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_batches_of_unequal_size_and_processes_count_like_one_batch_of_all_in_constant_memory(name):
    make, function = CASES[name]
    first, second, whole = make(), make(), maps()
    assert_equal(first(whole[:3]), function(whole[:3]))  # the value of a batch comes from the same call
    sizes = {state: value.numel() for state, value in first.metric_state.items()}
    first.update(whole[3:4])
    second.update(whole[4:])
    first.merge_state(second)
    assert {state: value.numel() for state, value in first.metric_state.items()} == sizes
    assert_equal(pickle.loads(pickle.dumps(first)).compute(), function(whole))
    first.reset()
    first.update(whole[:2])
    assert_equal(first.compute(), function(whole[:2]))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_cka_over_minibatches_is_the_function_of_their_gram_matrices(kernel):
    x, y = [features(seed) for seed in range(3)], [features(seed, width=5) for seed in range(10, 13)]
    metrics = CKA(kernel), CKA(kernel)
    for index, pair in enumerate(zip(x, y, strict=True)):
        metrics[index % 2].update(*pair)
    metrics[0].merge_state(metrics[1])
    grams = [{"": torch.stack([gram_matrix(block) for block in blocks])} for blocks in (x, y)]
    assert_equal(metrics[0].compute(), cka_matrix(*grams, kernel=kernel)[0, 0])
