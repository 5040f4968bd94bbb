"""Generated sequences: words that a stack accepts, and automata by their written rules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.pretraining.procedural_warmup import automaton_rows, dyck_words
from structured_init.pretraining.training import draw_hidden, hidden_patch_loss, image_patches, next_token_loss

FEW = settings(max_examples=30, deadline=None, derandomize=True)
# Neighbourhoods and what becomes of the cell in the middle, as Wolfram (1983) and Cook (2004) print them.
WRITTEN = {
    110: {"111": 0, "110": 1, "101": 1, "100": 0, "011": 1, "010": 1, "001": 1, "000": 0},
    90: {"111": 0, "110": 1, "101": 0, "100": 1, "011": 1, "010": 0, "001": 1, "000": 0},
    184: {"111": 1, "110": 0, "101": 1, "100": 1, "011": 1, "010": 0, "001": 0, "000": 0},
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def left_open(word, kinds):
    """The brackets that are still open at the end, or None where one closes another kind or nothing."""
    stack = []
    for token in word:
        if token < kinds:
            stack.append(token)
        elif not stack or stack.pop() != token - kinds:
            return None
    return stack


@FEW
@given(st.integers(1, 40), st.integers(1, 9), st.floats(0.05, 0.95), st.integers(0, 99))
def test_a_stack_accepts_every_word_and_is_empty_at_its_end(length, kinds, probability, seed):
    words = dyck_words(4, length, kinds=kinds, open_probability=probability, generator=generator(seed))
    assert words.shape == (4, length)
    for word in words.tolist():
        open_brackets = left_open(word, kinds)
        assert open_brackets is not None
        assert len(open_brackets) == length % 2


def test_brackets_nest_deeper_where_opening_is_likelier_and_all_kinds_occur():
    depths = []
    for probability in (0.2, 0.8):
        words = dyck_words(200, 40, kinds=5, open_probability=probability, generator=generator())
        assert set(words.flatten().tolist()) == set(range(10))
        depths.append(torch.where(words < 5, 1, -1).cumsum(1).amax(1).float().mean())
    assert depths[0] + 4 < depths[1]


@pytest.mark.parametrize("rule", WRITTEN)
def test_rows_follow_the_written_rule_on_a_ring(rule):
    width, rows = 7, 6
    tokens = automaton_rows(5, width * rows - 3, rules=[rule], width=width, generator=generator(1)).tolist()
    for sequence in tokens:
        assert set(sequence) <= {0, 1}
        for place in range(width, len(sequence)):
            above, column = sequence[place - place % width - width :], place % width
            seen = "".join(str(above[(column + step) % width]) for step in (-1, 0, 1))
            assert sequence[place] == WRITTEN[rule][seen]


def test_of_several_rules_each_sequence_follows_one():
    rows = automaton_rows(60, 10, rules=[0, 255], width=5, generator=generator())
    ends = rows[:, 5:].float().mean(1)
    assert set(ends.tolist()) == {0.0, 1.0}


def test_the_next_token_is_foretold_from_those_before_it_alone():
    tokens = torch.tensor([[2, 0, 1]])
    certain = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2]]), 3) * 100.0  # right for tokens 1 and 2
    assert next_token_loss(certain, tokens).item() == pytest.approx(0, abs=1e-6)
    counted = torch.tensor([[True, True, False]])
    wrong_where_padded = certain.clone()
    wrong_where_padded[0, 1] = certain[0, 0]
    assert next_token_loss(wrong_where_padded, tokens, counted).item() == pytest.approx(0, abs=1e-6)
    assert next_token_loss(wrong_where_padded, tokens).item() == pytest.approx(50)


def test_patches_are_the_pixels_that_the_convolution_multiplies():
    convolution, images = torch.nn.Conv2d(3, 4, 2, stride=2, bias=False), torch.randn(2, 3, 6, 4)
    patches = image_patches(images, convolution, normalized=False)
    wanted = convolution(images).flatten(2).mT
    torch.testing.assert_close(patches @ convolution.weight.flatten(1).T, wanted)
    even = image_patches(images, convolution, normalized=True)
    torch.testing.assert_close(even.mean(-1), torch.zeros(2, 6), atol=1e-6, rtol=0)
    hidden = torch.zeros(2, 6, dtype=torch.bool)
    hidden[1, 2] = True
    assert hidden_patch_loss(patches + hidden[..., None] * 3, patches, hidden).item() == pytest.approx(9, rel=1e-5)


def test_padding_is_never_hidden_and_something_always_is():
    counted = torch.tensor([[True, False, True], [False, False, True]])
    for seed in range(20):
        hidden = draw_hidden(2, 3, 1e-6, generator=generator(seed), counted=counted)
        assert hidden.sum() == 1
        assert not (hidden & ~counted).any()
    assert draw_hidden(50, 100, 0.3, generator=generator()).float().mean().item() == pytest.approx(0.3, abs=0.03)
