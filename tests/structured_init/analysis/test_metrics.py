"""Each metric against a hand-computed case, and against its function over all batches at once."""

import pickle
import subprocess
import sys

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
    StructureLeft,
    cka_matrix,
    gram_matrix,
    structure_left,
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
    "MeanAttentionDistance as in the papers' code": (
        lambda: MeanAttentionDistance(HEADS, **PLACE, renormalise=False),
        lambda maps: analysis.mean_distance(maps, **PLACE, renormalise=False),
    ),
    "AttentionEntropy": (lambda: AttentionEntropy(HEADS), analysis.entropy),
    "AttentionEntropy normalised": (
        lambda: AttentionEntropy(HEADS, normalised=True),
        lambda maps: analysis.entropy(maps, normalised=True),
    ),
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


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values).expand(1, 1, len(values), len(values))


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


def test_energy_is_that_of_the_mean_map_and_not_the_mean_of_energies():
    # Two shifts that cancel to a convolution only together with their mirror image.
    left, right = rows([1.0, 0], [1, 0]), rows([0.0, 1], [0, 1])
    metric = ProfileEnergy(1, (1, 2))
    metric.update(left)
    assert metric.compute().item() < 0.8
    metric.update(right)
    assert metric.compute().item() == pytest.approx(1)  # their mean is uniform


def test_sequences_of_different_length_count_by_their_queries():
    short, long = maps(tokens=3, batch=2), maps(seed=1, tokens=6, batch=1)
    metric = AttentionEntropy(HEADS)
    metric.update(short)
    metric.update(long)
    entropies = [-(m * m.log()).sum(-1).movedim(1, 0).flatten(1) for m in (short, long)]
    assert_equal(metric.compute(), torch.cat(entropies, dim=1).mean(dim=1))


@pytest.mark.parametrize("name", CASES)
def test_padded_batches_count_like_one_batch_of_all_however_they_are_cut(name):
    make, function = CASES[name]
    padded = torch.zeros(3, HEADS, 7, 7)
    for sample, tokens in zip(padded, (7, 4, 5), strict=True):
        sample[..., :tokens] = maps(tokens, 1)[0, ..., :tokens].log().softmax(-1)  # rows of padding look, too
    for cuts in ([3], [1, 2], [2, 1]):
        metric = make()
        for batch in padded.split(cuts):
            metric.update(batch)
        assert_equal(metric.compute(), function(padded))


def test_structure_left_over_batches_is_that_of_all_samples():
    before, after = maps(0), maps(1)
    first, second = StructureLeft(HEADS, prefix_tokens=1), StructureLeft(HEADS, prefix_tokens=1)
    first.update(before[:4], after[:4])
    second.update(before[4:], after[4:])
    first.merge_state(second)
    assert_equal(first.compute(), structure_left(before, after, prefix_tokens=1))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_cka_over_minibatches_is_the_function_of_their_gram_matrices(kernel):
    x, y = [features(seed) for seed in range(3)], [features(seed, width=5) for seed in range(10, 13)]
    metrics = CKA(kernel), CKA(kernel)
    for index, pair in enumerate(zip(x, y, strict=True)):
        metrics[index % 2].update(*pair)
    metrics[0].merge_state(metrics[1])
    grams = [{"": torch.stack([gram_matrix(block) for block in blocks])} for blocks in (x, y)]
    assert_equal(metrics[0].compute(), cka_matrix(*grams, kernel=kernel)[0, 0])


def test_cka_takes_a_smaller_last_minibatch_by_its_samples():
    x, y = features(0, samples=12), features(1, samples=12)
    metric = CKA()
    for part in (slice(0, 8), slice(8, 12)):
        metric.update(x[part], y[part])
    grams = [[gram_matrix(z[part]) for part in (slice(0, 8), slice(8, 12))] for z in (x, y)]
    between, first, second = (
        8 * analysis.hsic1(a[0], b[0]) + 4 * analysis.hsic1(a[1], b[1])
        for a, b in ((grams[0], grams[1]), (grams[0], grams[0]), (grams[1], grams[1]))
    )
    assert_equal(metric.compute(), between / (first * second).sqrt())


def test_cka_flattens_tokens_and_lets_no_gradient_through():
    x = features(0, samples=6, width=12).requires_grad_()
    metric = CKA()
    metric.update(x.unflatten(1, (3, 4)), x)
    assert metric.compute().item() == pytest.approx(1)
    assert not metric.metric_state["between"].requires_grad


def test_torchmetrics_is_imported_when_a_metric_is_asked_for():
    code = (
        "import sys, structured_init, structured_init.analysis as a; print('torchmetrics' in sys.modules); "
        "print(a.CKA.__name__, 'torchmetrics' in sys.modules, 'lightning' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "CKA", "True", "False"]
    with pytest.raises(AttributeError, match="has no attribute 'Cka'"):
        _ = analysis.Cka


@pytest.mark.parametrize("metric", [ImpulseMass, ArgmaxAccuracy])
def test_an_offset_that_no_pair_has_is_nan_and_spoils_no_other_batch(metric):
    seen = metric([[0, 2], [5, 0]], (1, 3))
    seen.update(torch.eye(3).roll(2, 1).expand(1, 2, 3, 3))
    seen.update(torch.tensor([0.5, 0.5, 0]).expand(1, 2, 3, 3))  # the last token is padding
    assert seen.compute()[0] == 1
    assert seen.compute()[1].isnan()
