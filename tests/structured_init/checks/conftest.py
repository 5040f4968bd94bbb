"""Tests of checks draw from one seed, and write snapshots, which continuous integration refuses."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_seed_on_a_machine_of_ones_own(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
