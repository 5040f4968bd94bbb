"""Order, ranks and the position in an epoch."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules.data import EpochSampler, ResumableLoader
from structured_init.util.errors import StructuredInitError


def loader(size: int = 23, batch_size: int = 4, workers: int = 0, seed: int = 0) -> ResumableLoader:
    sampler = EpochSampler(size, shuffle=True, seed=seed)
    return ResumableLoader(
        [*range(size)], batch_size, sampler=sampler, drop_last=True, num_workers=workers,
        collate_fn=tuple, generator=torch.Generator(), persistent_workers=workers > 0,
    )  # fmt: skip


class Pairs(list):
    """Gives back its key."""

    def __getitem__(self, key):
        return key


def pairs(**arguments) -> ResumableLoader:
    made = loader(**arguments)
    made.__dict__["dataset"] = Pairs(made.dataset)
    return made


@given(size=st.integers(1, 60), replicas=st.integers(1, 5), epoch=st.integers(0, 3))
def test_ranks_partition_the_data(size, replicas, epoch):
    def shares(shuffle):
        samplers = [EpochSampler(size, shuffle=shuffle, num_replicas=replicas, rank=rank) for rank in range(replicas)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        indices = [[index for _, index in sampler] for sampler in samplers]
        assert [len(sampler) for sampler in samplers] == [len(share) for share in indices]
        return indices

    assert sorted(chain(*shares(shuffle=False))) == list(range(size))
    shuffled = shares(shuffle=True)
    assert {len(share) for share in shuffled} == {size // replicas}
    assert len(set(chain(*shuffled))) == size // replicas * replicas


def test_each_epoch_has_its_own_order_whatever_the_seed():
    orders = set()
    for seed in range(3):
        for epoch in range(3):
            sampler = EpochSampler(50, shuffle=True, seed=seed)
            sampler.set_epoch(epoch)
            keys = list(sampler)
            assert {key[0] for key in keys} == {epoch}
            orders.add(tuple(index for _, index in keys))
    assert len(orders) == 9


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_goes_on_where_its_state_was_taken(workers):
    whole = pairs(workers=workers)
    whole.sampler.set_epoch(2)
    iterator = iter(whole)
    head = [next(iterator), next(iterator)]
    state = whole.state_dict()
    tail = list(iterator)
    assert len(head + tail) == 5

    resumed = pairs(workers=workers)
    resumed.load_state_dict(state)
    iterator = iter(resumed)  # Lightning makes the iterator first and says the epoch then
    resumed.sampler.set_epoch(2)
    assert len(resumed) == 5
    assert list(iterator) == tail
    resumed.sampler.set_epoch(3)
    assert len(list(resumed)) == 5


def test_position_of_an_epoch_that_is_over_is_not_used_in_the_next():
    finished = pairs()
    list(finished)
    resumed = pairs()
    resumed.load_state_dict(finished.state_dict())
    resumed.sampler.set_epoch(1)
    assert len(list(resumed)) == 5


def test_state_of_a_loader_of_other_length_is_refused():
    with pytest.raises(StructuredInitError, match="with number of batches 5, now it is 10"):
        loader(size=40).load_state_dict(loader().state_dict())
