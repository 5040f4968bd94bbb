"""Threads: how many there are changes no bit of a method, and a plan gives back what it takes."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import timm
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from structured_init import Impulse, Initializer, Mimetic, initialize


@contextmanager
def threads(number):
    """Give torch, numpy and scipy so many threads."""
    before = torch.get_num_threads()
    with threadpool_limits(number):
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("initializer", [Mimetic(), Impulse(solver="svd")], ids=["Mimetic", "Impulse"])
def test_the_number_of_threads_changes_no_bit(initializer):
    """Of the weights and of what the report says of them."""
    model, found = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64, num_classes=0), []
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for number in (1, 4):
        model.load_state_dict(start)
        with threads(number):
            report = initialize(model, initializer, seed=3)
        found.append(({name: value.clone() for name, value in model.state_dict().items()}, report.to_dict()))
    assert any(not torch.equal(value, start[name]) for name, value in found[0][0].items())
    assert found[0][1] == found[1][1]
    assert all(torch.equal(value, found[1][0][name]) for name, value in found[0][0].items())


def test_a_failure_gives_the_threads_back():
    class Fails(Initializer):
        def plan(self, weights, *, rng, batch=None):
            raise RuntimeError("half way")

    with threads(3):
        with pytest.raises(RuntimeError, match="half way"):
            initialize(torch.nn.Linear(2, 2), Fails())
        pools = ThreadpoolController().select(user_api="blas").lib_controllers
        assert {torch.get_num_threads(), *(pool.num_threads for pool in pools)} == {3}
