"""RecallData: every format against its definition, and what no example may do."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_modules.cli.configurations import find_config
from lightning_modules.data.recall import TASKS, RecallData
from structured_init import StructuredInitError

SIZES = settings(max_examples=25, deadline=None, derandomize=True)
SMALL = {
    "copying": {"num_letters": 3},
    "mqar": {"vocab_size": 20, "num_pairs": 3},
}


def data(task="copying", task_args=None, **changes):
    sizes = {"min_length": 12, "max_length": 24, "train_examples": 40, "val_examples": 20, "test_examples": 20}
    return RecallData(task, SMALL[task] if task_args is None else task_args, **{**sizes, "seed": 0, **changes})


def rows(dataset, epoch=0):
    """Every example as (inputs, targets), without what fills the batch up."""
    batch = dataset.__getitems__([(epoch, index) for index in range(len(dataset))])
    for inputs, targets in zip(batch["input_ids"].tolist(), batch["targets"].tolist(), strict=True):
        last = max(i for i, target in enumerate(targets) if target != -100)
        yield inputs[: last + 1], targets[: last + 1]


def text(numbers, letters=3):
    """The published code's alphabet: letters from 0, then $ | . and *."""
    return "".join("abcdefghijklmnopqrstuvwxyz"[:letters][n] if n < letters else "$|.*"[n - letters] for n in numbers)


def test_strings_have_the_published_form_and_their_answers():
    lengths = Counter()
    for inputs, targets in rows(data().train_set):
        full = text([*inputs, targets[-1]])
        string, response = re.fullmatch(r"\$([abc]+)\|([abc]+)\.", full).groups()
        assert response == string
        lengths[len(string)] += 1
        asked = [i for i, target in enumerate(targets) if target != -100]
        assert asked == list(range(len(string) + 1, len(inputs)))  # from the bar on, the full stop included
        assert text(targets[i] for i in asked) == f"{response}."
    assert min(lengths) >= 12
    assert max(lengths) <= 24
    assert len(lengths) > 5


def test_the_full_stop_is_trained_on_and_not_scored():
    batch = data().train_set.__getitems__([(0, i) for i in range(20)])
    predicted = batch["targets"] != -100
    assert not (batch["scored"] & ~predicted).any()
    assert (batch["targets"][predicted & ~batch["scored"]] == 5).all()
    assert torch.equal((predicted & ~batch["scored"]).sum(1), torch.ones(20, dtype=torch.int64))
    assert torch.equal(batch["scored"].sum(1), batch["lengths"])


def test_mqar_asks_every_key_once_and_its_value_is_the_one_that_followed_it():
    for inputs, targets in rows(data("mqar").train_set):
        assert len(inputs) % 2 == 1  # up to the last query, which stands at an even place
        pairs = dict(zip(inputs[:6:2], inputs[1:6:2], strict=True))
        assert len(pairs) == 3
        assert all(1 <= key < 10 <= value < 20 for key, value in pairs.items())
        assert len(set(pairs.values())) == 3
        queries = {i: token for i, token in enumerate(inputs) if i >= 6 and token}
        assert sorted(queries.values()) == sorted(pairs)
        assert {i: target for i, target in enumerate(targets) if target != -100} == {
            i: pairs[key] for i, key in queries.items()
        }
        assert all(i % 2 == 0 for i in queries)


def test_the_gaps_of_mqar_follow_the_published_power_law():
    """The published code: np.random.choice without replacement, with weights a i^(a−1)."""
    task = {"vocab_size": 64, "num_pairs": 2}
    dataset = data("mqar", task, min_length=20, max_length=20, train_examples=4000).train_set
    batch = dataset.__getitems__([(0, i) for i in range(4000)])
    asked = (batch["targets"] != -100)[:, 4::2].float().mean(0)
    weights = 0.01 * np.arange(1, 9) ** (0.01 - 1)
    weights /= weights.sum()
    chosen, rng = np.zeros(8), np.random.RandomState(0)
    for _ in range(4000):
        chosen[rng.choice(8, size=2, replace=False, p=weights)] += 1 / 4000
    np.testing.assert_allclose(asked.numpy(), chosen, atol=7 * (0.25 / 4000) ** 0.5)


@pytest.mark.parametrize("task", TASKS)
def test_no_example_of_one_part_is_in_another_even_where_there_are_few(task):
    small = {"copying": 4, "mqar": 12}[task]
    args = {"mqar": {"vocab_size": 8, "num_pairs": 2}}
    parts = {}
    for seed in (0, 1):
        many = data(
            task,
            args.get(task),
            min_length=small,
            max_length=small,
            train_examples=200,
            val_examples=40,
            test_examples=40,
            test_lengths=[small],
            seed=seed,
        )
        for name in ("train", "val", "test"):
            found = {(tuple(i), tuple(t)) for i, t in rows(getattr(many, f"{name}_set"))}
            parts.setdefault(name, set()).update(found)
    assert all(parts.values())
    assert not parts["train"] & parts["test"]
    assert not parts["train"] & parts["val"]
    assert not parts["val"] & parts["test"]


@SIZES
@given(st.sampled_from(sorted(TASKS)), st.integers(0, 9), st.integers(0, 3))
def test_an_example_is_a_function_of_seed_epoch_and_index(task, index, epoch):
    first, second = data(task).train_set, data(task).train_set
    second.__getitems__([(0, 5)])
    alone = second.__getitems__([(epoch, index)])
    beside = first.__getitems__([(epoch, other) for other in range(10)])
    width = alone["input_ids"].shape[1]
    for name, values in alone.items():
        assert torch.equal(values[0], beside[name][index] if name == "lengths" else beside[name][index][:width])


def test_another_seed_and_another_epoch_draw_other_examples():
    one = list(rows(data().train_set))
    assert one != list(rows(data(seed=1).train_set))
    assert one != list(rows(data().train_set, epoch=1))
    assert list(rows(data().test_set)) == list(rows(data().test_set))


def test_the_test_part_goes_beyond_the_training_length():
    prepared = data(test_examples=5)
    assert prepared.test_lengths == [24, 48, 96]
    lengths = [length for batch in prepared.test_dataloader() for length in batch["lengths"].tolist()]
    assert lengths == [24] * 5 + [48] * 5 + [96] * 5
    assert prepared.block_size == 2 * 96 + 2
    (validated,) = {length for batch in prepared.val_dataloader() for length in batch["lengths"].tolist()}
    assert validated == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "copyin"}, "unknown task 'copyin': did you mean 'copying'?"),
        (
            {"task": "copying", "task_args": {"num_letter": 3}},
            "task 'copying' takes no argument 'num_letter': did you mean 'num_letters'?",
        ),
        (
            {"task": "mqar", "task_args": {"vocab_size": 16, "num_pairs": 8}},
            "MultiQueryRecall: a vocabulary of 16 has 7 keys, too few for 8 key–value pairs: vocab_size is at least 18",
        ),
        ({"min_length": 60}, "min_length=60 and max_length=50 are not a range"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(arguments, message):
    with pytest.raises(StructuredInitError, match=re.escape(message)) as caught:
        RecallData(**arguments)
    assert "\n" not in str(caught.value)


def test_the_shipped_configuration_draws_batches():
    section = find_config("llama_mqar_short").content()["data"]
    assert section["class_path"] == "RecallData"
    prepared = RecallData(**section["init_args"], seed=0)
    batch = prepared.train_set.__getitems__([(0, 0), (0, 1)])
    assert (batch["targets"] != -100).any(1).all()
    assert prepared.test_set.__getitems__([len(prepared.test_set) - 1])["scored"].any()
