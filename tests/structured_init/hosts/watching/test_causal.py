"""Whether attention is causal is read from its maps, and PreviousToken and Induction go by it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hosts import seeded
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from structured_init import (
    AttentionLayout,
    Induction,
    PreviousToken,
    Projection,
    StructuredInitError,
    check_attention,
    discover_attention,
    initialize,
    register_attention,
)

WIDTH, HEADS, LENGTH, TOKENS = 32, 2, 24, 30


def by_flag(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_fused_kernel(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return by_flag(q, k, v)


def by_mask(q, k, v):
    lower = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, lower)


def by_fused_kernel_with_mask(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return by_mask(q, k, v)


def written_out(q, k, v):
    logits = q @ k.mT / q.shape[-1] ** 0.5
    return (logits + torch.full(logits.shape[-2:], -1e9).triu(1)).softmax(-1) @ v


def both_ways(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


class SelfAttn(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.in_map, self.out_map, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), attend

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.in_map(x).chunk(3, -1))
        return self.out_map(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Nano(nn.Module):
    """A small language model, nothing in which is called causal."""

    def __init__(self, attend=by_flag):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.stack = nn.ModuleList(nn.ModuleList([nn.LayerNorm(WIDTH), SelfAttn(attend)]) for _ in range(2))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for norm, attention in self.stack:
            x = x + attention(norm(x))
        return x @ self.tokens.weight.T


def nano(attend=by_flag):
    return seeded(lambda: Nano(attend))


BATCH = torch.arange(2 * LENGTH).view(2, LENGTH) % TOKENS
FIRST = "stack.0.1"


@pytest.fixture
def described():
    """A layout of one's own."""

    def layout(module, causal=None):
        size = WIDTH // HEADS
        query, key, value = (Projection(module.in_map.weight, HEADS, size, start=i * WIDTH) for i in range(3))
        return AttentionLayout(query, key, value, Projection(module.out_map.weight, HEADS, size, 1), causal=causal)

    register_attention(SelfAttn)(layout)
    return layout


@pytest.mark.parametrize(
    "attend", [by_flag, by_fused_kernel, by_mask, by_fused_kernel_with_mask, written_out, both_ways]
)
def test_a_causal_mask_is_seen_however_it_is_written(attend):
    causal = attend is not both_ways
    assert [found.layout.causal for found in discover_attention(nano(attend), BATCH)] == [causal] * 2


def test_heads_of_a_causal_model_of_ones_own_look_back_alone():
    told = initialize(nano(), PreviousToken(), batch=BATCH).notes[FIRST]
    assert "measured: head 0 looks 1 token back: 0." in told
    assert ", head 1 looks 2 tokens back: 0." in told
    assert " token ahead: " not in told


def test_induction_is_written_where_the_mask_was_seen():
    assert "attention on what followed" in initialize(nano(), Induction(), batch=BATCH).notes["stack.1.1"]
    with pytest.raises(StructuredInitError, match="is not causal"):
        initialize(nano(both_ways), Induction(), batch=BATCH)


def test_what_the_user_says_counts_more_than_what_was_seen():
    told = initialize(nano(), PreviousToken(causal=False), batch=BATCH).notes[FIRST]
    assert "looks 1 token back: 0." in told
    assert "looks 1 token ahead: 0." in told
    told = initialize(nano(both_ways), Induction(causal=True), batch=BATCH).notes["stack.1.1"]
    assert "attention on what followed" in told
    with pytest.raises(StructuredInitError, match="is not causal"):
        initialize(nano(), Induction(causal=False), batch=BATCH)


def test_what_was_seen_counts_more_than_what_the_module_says():
    model = nano(both_ways)
    for _, attention in model.stack:
        attention.is_causal = True
    assert "looks 1 token ahead: 0." in initialize(model, PreviousToken(), batch=BATCH).notes[FIRST]


def test_a_described_layer_is_seen_on_the_batch(described):
    told = initialize(nano(), PreviousToken(), batch=BATCH).notes[FIRST]
    assert " token ahead: " not in told
    assert "bidirectional" not in told
    check_attention(nano(), BATCH)


@pytest.mark.parametrize("initializer", [PreviousToken(), Induction(causal=True)])
def test_a_described_layer_of_a_model_that_nothing_says_how_to_run_needs_a_batch(described, initializer):
    with pytest.raises(StructuredInitError, match=r"no positions that are known.*; given a batch, as batch=…"):
        initialize(nano(), initializer)


def test_a_batch_that_does_not_fit_is_named_before_any_remedy():
    with pytest.raises(StructuredInitError, match=r"^Nano fails on the batch: index out of range .*\(in 'tokens'\)$"):
        initialize(nano(), PreviousToken(), batch=torch.full((2, LENGTH), TOKENS))
