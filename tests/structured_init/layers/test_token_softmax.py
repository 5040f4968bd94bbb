"""The token-softmax value against loops over queries, coordinates and tokens."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from structured_init.analysis import capture_attention
from structured_init.layers import TokenSoftmaxValue
from structured_init.layers.token_softmax import token_softmax_attention

FEW = settings(max_examples=15, deadline=None, derandomize=True)
# mode → factors on V and on softmaxᵀ(V), for α and scale
FACTORS = {
    "replace": lambda alpha, scale: (0, scale),
    "add": lambda alpha, scale: (1, alpha * scale),
    "subtract": lambda alpha, scale: (1, -alpha * scale),
    "remix": lambda alpha, scale: (1 - alpha, alpha * scale),
}


def naive(query, key, value, visible, keep, gain):
    """Attention by loops: query i sees the tokens j with visible[i][j], in attention and in its softmax over tokens."""
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                seen = [j for j in range(key.shape[2]) if visible(b, h, i, j)]
                logits = [float(query[b, h, i] @ key[b, h, j]) / math.sqrt(query.shape[-1]) for j in seen]
                weights = [math.exp(logit - max(logits)) for logit in logits]
                for d in range(value.shape[-1]):
                    column = [float(value[b, h, j, d]) for j in seen]
                    powers = [math.exp(v - max(column)) for v in column]
                    mixed = [keep * v + gain * p / sum(powers) for v, p in zip(column, powers, strict=True)]
                    output[b, h, i, d] = sum(w * m for w, m in zip(weights, mixed, strict=True)) / sum(weights)
    return output


def projections(seed, batch=2, heads=2, tokens=5, head_dim=3, kv_heads=None, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(batch, count, tokens, head_dim) for count in (heads, kv_heads or heads, kv_heads or heads)]
    return [spread * torch.randn(*size, dtype=torch.float64, generator=generator) for size in sizes]


@st.composite
def cases(draw):
    mode = draw(st.sampled_from(sorted(FACTORS)))
    alpha = 1.0 if mode == "replace" else draw(st.floats(0, 1))
    scale = draw(st.sampled_from([1.0, 10.0, -0.5]))
    values = TokenSoftmaxValue(mode, scale, alpha).double()
    return projections(draw(st.integers(0, 99)), tokens=draw(st.integers(1, 6))), values, FACTORS[mode](alpha, scale)


@FEW
@given(cases())
def test_without_a_mask_every_query_has_the_softmax_of_all_tokens(case):
    qkv, values, factors = case
    torch.testing.assert_close(values.attend(*qkv), naive(*qkv, lambda *_: True, *factors), rtol=1e-6, atol=1e-6)


@FEW
@given(cases())
def test_a_causal_query_has_the_softmax_of_the_tokens_up_to_its_own(case):
    qkv, values, factors = case
    expected = naive(*qkv, lambda b, h, i, j: j <= i, *factors)
    torch.testing.assert_close(values.attend(*qkv, is_causal=True), expected, rtol=1e-6, atol=1e-6)
    mask = torch.ones(qkv[0].shape[2], qkv[0].shape[2]).tril().bool()
    torch.testing.assert_close(values.attend(*qkv, mask), expected, rtol=1e-6, atol=1e-6)
    added = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -math.inf)
    torch.testing.assert_close(values.attend(*qkv, added[None, None]), expected, rtol=1e-6, atol=1e-6)


def test_padding_and_packed_documents_leave_the_softmax_over_tokens():
    qkv, values = projections(3, tokens=6), TokenSoftmaxValue("remix", 3.0, 0.4).double()
    lengths, segments = [4, 6], torch.tensor([0, 0, 1, 1, 1, 2])
    padding = torch.tensor([[j < length for j in range(6)] for length in lengths])[:, None, None]
    expected = naive(*qkv, lambda b, h, i, j: j < lengths[b], 0.6, 1.2)
    torch.testing.assert_close(values.attend(*qkv, padding), expected)
    torch.testing.assert_close(values.attend(*qkv, padding.expand(2, 2, 6, 6)), expected)  # as some hosts write it
    packed = (segments[:, None] == segments) & torch.ones(6, 6).tril().bool()
    expected = naive(*qkv, lambda b, h, i, j: bool(segments[i] == segments[j]) and j <= i, 0.6, 1.2)
    torch.testing.assert_close(values.attend(*qkv, packed[None, None]), expected)
    by_head = torch.tensor([[True] * 6, [True, False] * 3])[None, :, None]  # (1, H, 1, M)
    expected = naive(*qkv, lambda b, h, i, j: h == 0 or j % 2 == 0, 0.6, 1.2)
    torch.testing.assert_close(values.attend(*qkv, by_head), expected)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_is_that_of_the_loop(is_causal):
    def written_out(query, key, value):
        visible = torch.ones(4, 4).tril().bool() if is_causal else torch.ones(4, 4).bool()
        weights = (query @ key.mT / 3**0.5).masked_fill(~visible, -math.inf).softmax(-1)
        over_tokens = value.unsqueeze(-3).masked_fill(~visible[..., None], -math.inf).softmax(-2)  # (B, H, N, M, d)
        return (1 - 0.3) * weights @ value + 0.3 * (weights.unsqueeze(-1) * over_tokens).sum(-2)

    values = TokenSoftmaxValue("remix", alpha=0.3).double()
    gradients = []
    for attend in (written_out, lambda *qkv: values.attend(*qkv, is_causal=is_causal)):
        qkv = [tensor.requires_grad_() for tensor in projections(5, tokens=4)]
        attend(*qkv).square().sum().backward()
        gradients.append([tensor.grad for tensor in qkv])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize(("size", "by_mask"), [(1.0, False), (15.0, True)])
def test_what_comes_later_changes_nothing_before_it(size, by_mask):
    query, key, value = (tensor.float() for tensor in projections(7, tokens=8))
    later = value.clone()
    later[:, :, 5:] += size * torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    how = {"mask": torch.ones(8, 8).tril().bool()} if by_mask else {"is_causal": True}
    values = TokenSoftmaxValue("remix", alpha=0.8)
    before, after = (values.attend(query, key, v, **how) for v in (value, later))
    torch.testing.assert_close(before[:, :, :5], after[:, :, :5], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before[:, :, 5:], after[:, :, 5:], atol=1e-2)
    assert after.isfinite().all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_grouped_values_are_repeated_and_alpha_is_learned(is_causal):
    query, key, value = projections(2, heads=4, kv_heads=2)
    values = TokenSoftmaxValue("remix", alpha=0.1, learnable=True).double()
    grouped = values.attend(query, key, value, is_causal=is_causal)
    for head in range(4):
        alone = [query[:, head : head + 1], *(tensor[:, head // 2 : head // 2 + 1] for tensor in (key, value))]
        expected = naive(*alone, lambda b, h, i, j: j <= i or not is_causal, 0.9, 0.1)
        torch.testing.assert_close(grouped[:, head : head + 1], expected, rtol=1e-6, atol=1e-6)
    grouped.square().sum().backward()
    assert values.alpha.grad.abs() > 0


def test_no_alpha_at_all_leaves_attention_as_it_was():
    query, key, value = (tensor.float() for tensor in projections(4))
    plain = F.scaled_dot_product_attention(query, key, value)
    assert torch.equal(TokenSoftmaxValue("remix", alpha=0.0).attend(query, key, value), plain)
    causal = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    close = TokenSoftmaxValue("remix", alpha=0.0).attend(query, key, value, is_causal=True)
    torch.testing.assert_close(close, causal)


def test_a_query_that_sees_nothing_gets_zeros():
    qkv = projections(1)
    mask = torch.ones(5, 5).tril().bool()
    mask[2] = False
    output = token_softmax_attention(*qkv, keep=0.5, gain=0.5, mask=mask)
    assert (output[:, :, 2] == 0).all()
    assert output.isfinite().all()


class Attention(torch.nn.Module):
    """Attention of three heads whose queries are their keys and values."""

    def __init__(self):
        super().__init__()
        self.heads, self.values = torch.nn.Linear(6, 12), TokenSoftmaxValue("remix", alpha=0.5)

    def forward(self, x):
        x = self.heads(x).unflatten(-1, (3, 4)).transpose(1, 2)
        return self.values.attend(x, x, x, is_causal=True)


def test_capture_sees_one_map_per_layer_and_it_is_the_ordinary_one():
    model = torch.nn.ModuleDict({"attn": Attention()})
    model.forward = lambda x: model["attn"](x)
    tokens = torch.randn(2, 5, 6)
    maps = capture_attention(model, tokens)
    assert list(maps) == ["attn"]
    x = model["attn"].heads(tokens).detach().unflatten(-1, (3, 4)).transpose(1, 2)
    logits = (x @ x.mT / 2).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    torch.testing.assert_close(maps["attn"], logits.softmax(-1))


@pytest.mark.parametrize("hidden", [-1e3, -1e9, -math.inf])
def test_an_added_mask_hides_a_token_whatever_large_number_it_takes(hidden):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 5, 4, generator=generator) for _ in range(3))
    visible = torch.ones(5, 5).tril().bool()
    added = torch.zeros(visible.shape).masked_fill(~visible, hidden)
    expected = token_softmax_attention(query, key, value, 0.5, 0.5, visible)
    torch.testing.assert_close(token_softmax_attention(query, key, value, 0.5, 0.5, added), expected)
