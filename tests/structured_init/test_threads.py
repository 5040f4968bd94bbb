"""Threads: how many there are changes no bit, and independent pieces stand side by side."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import timm
import torch
import transformers
from threadpoolctl import ThreadpoolController, threadpool_limits

from structured_init import (
    Conditioned,
    DeltaOrthogonal,
    Impulse,
    Initializer,
    Mimetic,
    PreviousToken,
    Skipless,
    initialize,
)
from structured_init.running import undisturbed
from structured_init.threads import all_threads, one_thread, side_by_side


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


def blas_threads():
    return [pool.num_threads for pool in ThreadpoolController().select(user_api="blas").lib_controllers]


def vit():
    return timm.create_model("vit_small_patch16_224", depth=1, embed_dim=256, num_heads=4, img_size=64, num_classes=0)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=300, max_position_embeddings=48,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize(
    ("build", "initializer"),
    [
        (vit, Mimetic()),
        (vit, Mimetic(precision="float32", balance_heads=False)),
        (vit, Impulse(solver="svd")),
        (vit, Impulse(solver="separable")),
        (vit, Skipless()),
        (vit, Conditioned()),
        (vit, DeltaOrthogonal()),
        (llama, PreviousToken(context=48)),
        (llama, Mimetic()),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_the_number_of_threads_changes_no_bit(build, initializer):
    """Of the weights and of what the report says of them."""
    model, found = build(), []
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for number in (1, 2, 4):
        model.load_state_dict(start)
        with threads(number):
            report = initialize(model, initializer, seed=3)
        found.append(({name: value.clone() for name, value in model.state_dict().items()}, report.to_dict()))
    assert any(not torch.equal(value, start[name]) for name, value in found[0][0].items())
    for weights, report in found[1:]:
        assert report == found[0][1]
        for name, value in weights.items():
            assert torch.equal(value, found[0][0][name]), name


class Looks(Initializer):
    """Note how many threads a plan, and a network that it runs, are given."""

    def plan(self, weights, *, rng, batch=None):
        self.inside = torch.get_num_threads(), *blas_threads()
        with undisturbed(weights.model):
            self.network = torch.get_num_threads(), *blas_threads()
        self.after = torch.get_num_threads(), *blas_threads()
        if batch is not None:
            raise RuntimeError("half way")


def test_a_plan_has_one_thread_and_a_network_that_it_runs_has_all():
    looks = Looks()
    with threads(3):
        initialize(torch.nn.Linear(2, 2), looks)
        assert {torch.get_num_threads(), *blas_threads()} == {3}
    assert set(looks.inside) == set(looks.after) == {1}
    assert set(looks.network) == {3}


def test_a_failure_gives_the_threads_back():
    with threads(3):
        with pytest.raises(RuntimeError, match="half way"):
            initialize(torch.nn.Linear(2, 2), Looks(), batch=torch.zeros(1))
        with pytest.raises(ZeroDivisionError):
            list(side_by_side(iter([lambda: 1 / 0]), scratch=1))
        assert {torch.get_num_threads(), *blas_threads()} == {3}


def test_other_threads_keep_their_number():
    """Those that compute for the first time while an initialization runs take what torch has been given."""
    seen = []
    with threads(3), one_thread():
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        with all_threads(), one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert seen == [3]


def test_the_last_of_several_gives_blas_back_its_threads():
    inside, outside = threading.Event(), threading.Event()

    def other():
        with one_thread():
            inside.set()
            outside.wait(10)

    with threads(3):
        thread = threading.Thread(target=other)
        with one_thread():
            thread.start()
            inside.wait(10)
        assert set(blas_threads()) == {1}
        outside.set()
        thread.join()
        assert set(blas_threads()) == {3}


def test_jobs_run_at_the_same_time_on_one_thread_each_and_come_in_order():
    meeting = threading.Barrier(3)

    def job(number):
        meeting.wait(10)
        return number, torch.get_num_threads()

    with threads(3):
        found = list(side_by_side([lambda n=n: job(n) for n in range(6)], scratch=1))
    assert found == [(number, 1) for number in range(6)]


@pytest.mark.parametrize(
    ("number", "scratch", "layer", "most"), [(1, 1, 0, 1), (4, 1, 0, 4), (4, 2**27, 0, 2), (4, 2**30, 2**29, 2)]
)
def test_few_jobs_are_held_and_few_run(number, scratch, layer, most):
    """As many run as there are threads and as fit into a layer or 256 MiB; results of as many more wait."""
    lock, running, peak, drawn = threading.Lock(), 0, 0, 0

    def job():
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        torch.randn(2000).sort()
        with lock:
            running -= 1

    def jobs():
        nonlocal drawn
        for _ in range(40):
            drawn += 1
            yield job

    with threads(number):
        for taken, _ in enumerate(side_by_side(jobs(), scratch=scratch, layer=layer), start=1):
            assert drawn - taken <= 2 * most
    assert drawn == 40
    assert peak <= most
