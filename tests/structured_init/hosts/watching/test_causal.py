"""Whether attention is causal is read from its maps, and PreviousToken and Induction go by it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
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
from structured_init.hosts.watching.records import agreed, hides_what_follows

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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Nano(attend).eval()


CAUSAL = [by_flag, by_fused_kernel, by_mask, by_fused_kernel_with_mask, written_out]
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


@pytest.mark.parametrize("attend", CAUSAL)
def test_a_causal_mask_is_seen_however_it_is_written(attend):
    assert [found.layout.causal for found in discover_attention(nano(attend), BATCH)] == [True, True]


def test_attention_without_a_mask_is_seen_to_look_both_ways():
    assert [found.layout.causal for found in discover_attention(nano(both_ways), BATCH)] == [False, False]


def test_one_token_alone_says_nothing():
    mha = nn.MultiheadAttention(8, 2, batch_first=True)
    tokens = torch.randn(2, 1, 8)
    assert all(found.layout is None or found.layout.causal is None for found in discover_attention(mha, (tokens,) * 3))


def lower(**changes):
    """Causal maps (4, 5, 5), some entries of which are changed."""
    maps = torch.rand(4, 5, 5).tril() + 0.1 * torch.eye(5)
    for place, value in changes.items():
        maps[tuple(map(int, place[1:]))] = value
    return maps


@pytest.mark.parametrize(
    ("maps", "said"),
    [
        (lower(), True),
        (lower(_213=1e-30), False),  # one head or sample that looks ahead is enough
        (lower(_00=0.2), True),  # padding before a text: softmax makes equal entries of minus infinities, or none
        (lower(_00=float("nan")), True),
        (torch.full((1, 4, 4), 0.25), None),
        (torch.ones(3, 4, 5), None),
        (torch.ones(3, 1, 1), None),
    ],
)
def test_maps_that_hide_what_follows_are_told_from_others(maps, said):
    assert hides_what_follows(maps) is said


def test_of_several_answers_those_count_that_say_anything():
    assert (agreed([]), agreed([None, True]), agreed([None, True, False])) == (None, True, False)


@pytest.mark.parametrize("attend", CAUSAL)
def test_heads_of_a_causal_model_of_ones_own_look_back_alone(attend):
    model = nano(attend)
    told = initialize(model, PreviousToken(), batch=BATCH).notes[FIRST]
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
    assert (
        "attention on what followed"
        in initialize(nano(both_ways), Induction(causal=True), batch=BATCH).notes["stack.1.1"]
    )
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


def test_without_a_batch_the_layout_says_whether_it_is_causal(described):
    register_attention(SelfAttn)(lambda module: described(module, causal=True))
    told = initialize(nano(), PreviousToken()).notes[FIRST]
    assert " token ahead: " not in told
    assert "bidirectional" not in told


def test_where_nothing_says_it_the_report_does(described):
    told = initialize(nano(), PreviousToken()).notes[FIRST]
    assert " token ahead: " in told
    assert "taken for bidirectional; if it is causal, say causal=True" in told
    with pytest.raises(StructuredInitError, match=r"it is unknown whether 'stack.0.1' is causal.*pass causal=True"):
        initialize(nano(), Induction())
    assert "bidirectional" not in initialize(nano(), PreviousToken(causal=False)).notes[FIRST]


@pytest.mark.parametrize(
    ("batch", "cause"),
    [
        (torch.rand(2, LENGTH), r"Expected tensor .*scalar types: Long, Int.* \(in 'tokens'\)"),
        (torch.zeros(2, LENGTH + 1, dtype=torch.long), rf"an index is not from 0 to {LENGTH - 1} \(in 'positions'\)"),
        (torch.full((2, LENGTH), TOKENS), rf"an index is not from 0 to {TOKENS - 1} \(in 'tokens'\)"),
        (
            {"words": BATCH},
            "got an unexpected keyword argument 'words': give .* a tuple of one, .* a method probe_inputs\\(batch\\)",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_named_before_any_remedy(batch, cause):
    with pytest.raises(StructuredInitError, match=rf"^Nano fails on the batch: .*{cause}$") as refusal:
        initialize(nano(), PreviousToken(), batch=batch)
    assert "\n" not in str(refusal.value)


def test_torchs_own_layer_is_asked_what_it_does_with_its_mask():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, ids):
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            return self.layers(x, mask, is_causal=True)

    told = initialize(Reader().eval(), PreviousToken(), batch=BATCH).notes["layers.layers.0.self_attn"]
    assert " token ahead: " not in told


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("normed", ["queries", "keys", "both"])
def test_norms_of_queries_or_keys_alone_leave_it_self_attention(own, normed):
    class SASRec(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH) if own else nn.LayerNorm(WIDTH)
            self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=own)

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(LENGTH))
            x = x if self.attn.batch_first else x.transpose(0, 1)
            queries, keys = x if normed == "keys" else self.one(x), x if normed == "queries" else self.two(x)
            hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
            return x + self.attn(queries, keys, keys, attn_mask=hidden, need_weights=False)[0]

    torch.manual_seed(0)
    [found] = discover_attention(SASRec(), torch.randint(TOKENS, (2, LENGTH)))
    assert (found.layout.cross, found.layout.causal) == (False, True)


@pytest.mark.parametrize("how", ["zeros_like", "new_zeros", "randn_like", "lstm"])
def test_queries_that_only_have_the_shape_of_the_tokens_are_cross_attention(how):
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.queries = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
            self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x):
            m = self.tokens(x)
            made = {"zeros_like": torch.zeros_like, "new_zeros": lambda m: m.new_zeros(m.shape)}
            made |= {"randn_like": torch.randn_like, "lstm": lambda m: self.lstm(m)[0]}
            return self.attn(made[how](m) + self.queries, m, m, need_weights=False)[0]

    [found] = discover_attention(Reads(), torch.randn(2, LENGTH, WIDTH))
    assert found.layout.cross
