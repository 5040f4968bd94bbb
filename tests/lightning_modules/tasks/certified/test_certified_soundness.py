"""No attack changes a certified prediction; and the same attack catches a certificate that is none."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training import quiet_trainer

from lightning_modules import CertifiedClassifier, ImageData
from lightning_modules.tasks.certified import certified, l2_pgd, margins
from structured_init.analysis import lipschitz_bound
from structured_init.layers import CayleyConv2d, CayleyLinear, MaxMin

LEVELS = (36, 108, 255)


def cayley():
    return nn.Sequential(
        CayleyConv2d(1, 8, 3), MaxMin(), CayleyConv2d(8, 16, 3, stride=2), MaxMin(), nn.Flatten(), CayleyLinear(256, 10)
    )  # fmt: skip


def plain():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, padding_mode="circular"), MaxMin(),
        nn.Conv2d(8, 16, 3, 2, padding=1, padding_mode="circular"), MaxMin(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def digits():
    return ImageData("digits", batch_size=128, test_fraction=0.3, mean=[0.3], std=[1.0])


@functools.cache
def trained(build):
    """A network that has learned the digits, and images it has not seen, with their labels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build()
        model = CertifiedClassifier(network, image_size=8, in_channels=1, epsilons=[])
        data = digits()
        quiet_trainer(max_epochs=12).fit(model, datamodule=data)
    data.setup("test")
    images, labels = (torch.cat(parts)[:100] for parts in zip(*data.test_dataloader(), strict=True))
    return network.eval().requires_grad_(False), images, labels


def lead_of(rank):
    """The loss whose ascent makes the class that comes at ``rank`` among the others pass the label."""

    def loss(logits, labels):
        own = logits.gather(1, labels[:, None])
        return (logits.scatter(1, labels[:, None], -1e9).topk(rank + 1).values[:, rank:] - own)[:, 0]

    return loss


def logit_ratio(logits, labels):
    """A loss whose gradient does not fade: the lead over the spread of the logits (Croce & Hein 2020, 2003.01690)."""
    ordered = logits.sort(1, descending=True).values
    return -margins(logits, labels) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def strongest(network, images, labels, epsilon):
    """The smallest leads that many steps from several starts, short and long, up several losses leave."""
    leads = margins(network(images), labels)
    for number, loss in enumerate([F.cross_entropy, logit_ratio, lead_of(0), lead_of(1), lead_of(2)]):
        for share in (0.25, 0.05):
            attack = {"steps": 20, "step_size": share * epsilon, "generator": torch.Generator().manual_seed(number)}
            found = l2_pgd(network, images, labels, epsilon=epsilon, loss=loss, **attack)
            leads = torch.minimum(leads, margins(network(found), labels))
    return leads


def broken(network, images, labels, bound):
    """How many predictions are certified by a bound, and how many of them the attack changes, by radius."""
    found = {}
    for level in LEVELS:
        epsilon = level / 255
        sure = certified(network(images), labels, epsilon=epsilon, lipschitz=bound)
        wrong = strongest(network, images[sure], labels[sure], epsilon) <= 0 if sure.any() else sure[:0]
        found[level] = (int(sure.sum()), int(wrong.sum()))
    return found


@pytest.mark.slow
def test_no_attack_inside_the_certified_radius_changes_a_prediction():
    network, images, labels = trained(cayley)
    bound = lipschitz_bound(network, images[:1])
    assert bound == pytest.approx(1.0, abs=1e-3)
    found = broken(network, images, labels, bound)
    assert found[36][0] > 30  # there is something to attack
    assert all(wrong == 0 for _, wrong in found.values())


@pytest.mark.slow
def test_a_plain_network_is_certified_by_its_computed_bound_and_not_by_one():
    network, images, labels = trained(plain)
    bound = lipschitz_bound(network, images[:1])
    assert bound > 1.5
    assert all(wrong == 0 for _, wrong in broken(network, images, labels, bound).values())
    assert max(wrong for _, wrong in broken(network, images, labels, 1.0).values()) > 5  # the control: 1 is wrong
