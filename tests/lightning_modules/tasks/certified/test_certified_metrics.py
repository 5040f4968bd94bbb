from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_modules.tasks.certified import certified, l2_pgd, margins

LOGITS = torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 5.0, 4.5], [2.0, 0.0, 9.0]])
LABELS = torch.tensor([0, 0, 1, 1])  # leads of 2, 0 (a tie), 0.5 and −9


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# Certificates ---------------------------------------------------------------------------------------------------------


def test_a_margin_is_the_lead_over_the_best_other_class():
    assert margins(LOGITS, LABELS).tolist() == [2.0, 0.0, 0.5, -9.0]


@pytest.mark.parametrize(
    ("epsilon", "lipschitz", "share"),
    [
        (0.0, 1.0, 0.5),  # right, and a tie is not right
        (0.35, 1.0, 0.5),  # √2·0.35 = 0.495
        (0.36, 1.0, 0.25),  # √2·0.36 = 0.509
        (0.36, 0.5, 0.5),
        (1.41, 1.0, 0.25),  # 1.994
        (1.42, 1.0, 0.0),  # 2.008
        (0.1, math.inf, 0.0),
        (0.0, math.inf, 0.0),  # 0·∞ is no number, and no certificate
    ],
)
def test_leads_above_root_two_epsilon_l_are_certified(epsilon, lipschitz, share):
    assert certified(LOGITS, LABELS, epsilon=epsilon, lipschitz=lipschitz).float().mean() == share


def test_a_lead_of_exactly_the_threshold_is_no_certificate():
    logits = torch.tensor([[math.sqrt(2) * 0.25, 0.0]], dtype=torch.float64)
    assert not certified(logits, torch.tensor([0]), epsilon=0.25, lipschitz=1.0)
    assert certified(logits * (1 + 1e-15), torch.tensor([0]), epsilon=0.25, lipschitz=1.0)


def test_no_number_certifies_nothing():
    logits = torch.tensor([[math.nan, 0.0], [9.0, math.nan], [math.inf, math.inf]])
    assert not certified(logits, torch.tensor([0, 0, 0]), epsilon=0.1, lipschitz=1.0).any()


# Attacks --------------------------------------------------------------------------------------------------------------


def convolutional(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5)).requires_grad_(False)


@pytest.mark.parametrize(("epsilon", "boxed"), [(0.01, False), (0.5, True), (30.0, False)])
def test_pgd_stays_in_the_ball_and_in_the_box(epsilon, boxed):
    images = torch.rand(6, 2, 8, 8, generator=generator()) - 0.5
    box = (torch.tensor(-0.5), torch.tensor(0.5)) if boxed else None
    labels = torch.arange(6) % 5
    adversarial = l2_pgd(
        convolutional(), images, labels, epsilon=epsilon, steps=5, step_size=epsilon / 4, generator=generator(), box=box
    )
    assert (adversarial - images).flatten(1).norm(dim=1).max() <= epsilon * (1 + 1e-5)
    assert (adversarial != images).any()
    if boxed:
        assert adversarial.abs().max() <= 0.5 + 1e-6


@pytest.mark.parametrize("scale", [1.0, 1e4])  # the second one saturates cross-entropy
def test_pgd_finds_the_nearest_point_of_the_other_side_of_a_linear_network(scale):
    layer = nn.Linear(12, 2).double().requires_grad_(False)
    layer.weight.copy_(torch.randn(2, 12, generator=generator(1)) * scale)
    x = torch.randn(20, 12, generator=generator(2), dtype=torch.float64)
    labels = layer(x).argmax(1)
    rows = layer.weight[1 - labels] - layer.weight[labels]
    exact = x + 0.3 * rows / rows.norm(dim=1, keepdim=True)
    loss = F.cross_entropy if scale == 1 else (lambda logits, labels: -margins(logits, labels))
    found = l2_pgd(layer, x, labels, epsilon=0.3, steps=100, step_size=0.075, generator=generator(), loss=loss)
    torch.testing.assert_close(found, exact, atol=1e-6, rtol=0)


def test_pgd_is_the_same_again_and_leaves_the_global_random_state_alone():
    images, labels = torch.rand(4, 2, 8, 8, generator=generator()), torch.tensor([0, 1, 2, 3])
    before = torch.get_rng_state()
    first, second, other = (
        l2_pgd(convolutional(), images, labels, epsilon=0.2, steps=2, step_size=0.05, generator=generator(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
