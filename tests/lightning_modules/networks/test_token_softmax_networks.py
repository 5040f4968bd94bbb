"""The token-softmax value in networks of timm, of transformers, and in compact transformers."""

from __future__ import annotations

import pytest
import timm
import torch
from hosts import TOKENS, of_transformers

from lightning_modules import ImageClassifier
from lightning_modules.networks import compact_transformer, create_network, place_token_softmax
from lightning_modules.tasks.optim import parameter_groups
from structured_init import Mimetic, StructuredInitError, initialize
from structured_init.analysis import capture_attention
from structured_init.layers import TokenSoftmaxValue

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])


SMALL = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **TOKENS}
HOSTS = {
    "GPT2LMHeadModel": {"n_positions": 24},
    "LlamaForCausalLM": {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24},
    "BertForSequenceClassification": {"intermediate_size": 24},
}
CAUSAL = [name for name in HOSTS if not name.startswith("Bert")]


def host(name):
    """A small model of transformers, away from its start."""
    torch.manual_seed(0)
    network = of_transformers(name, **{**SMALL, **HOSTS[name]}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def values_of(network):
    return [module for module in network.modules() if isinstance(module, TokenSoftmaxValue)]


# timm and ours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "scale_attn_norm": True}])
def test_timms_attention_is_that_of_softmaxed_values(tiny_vit, changes):
    network = place_token_softmax(tiny_vit(**changes).eval().double(), mode="replace", scale=7.0)
    attention = network.blocks[0].attn
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    query, key, value = attention.qkv(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
    weights = (attention.q_norm(query) @ attention.k_norm(key).mT * 8**-0.5).softmax(-1)
    mixed = weights @ (7 * value.exp() / value.exp().sum(2, keepdim=True))
    expected = attention.proj(attention.norm(mixed.transpose(1, 2).reshape(2, 6, 16)))
    torch.testing.assert_close(attention(x), expected)


def test_a_learned_alpha_is_there_before_the_optimizer_and_does_not_decay():
    network_args = {"depth": 2, "token_softmax": {"mode": "remix", "alpha": 0.5, "learnable": True}}
    module = ImageClassifier("vit_nano_patch2_8", network_args, image_size=8)
    alphas = {id(values.alpha) for values in values_of(module)}
    assert [tuple(values.alpha.shape) for values in values_of(module)] == [(1,), (1,)]

    _, undecayed = parameter_groups(module)
    assert alphas <= {id(parameter) for parameter in undecayed["params"]}
    module(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert all(values.alpha.grad.abs().min() > 0 for values in values_of(module))


def test_compact_transformers_take_it_by_argument():
    name = "vit_lite_2_4_32"
    network = create_network(name, image_size=16, token_softmax={"mode": "add", "scale": 10.0})
    assert len(values_of(network)) == 2
    assert sum(p.numel() for p in network.parameters()) == sum(
        p.numel() for p in compact_transformer(name, image_size=16).parameters()
    )
    assert list(capture_attention(network, torch.randn(1, 3, 16, 16))) == [f"encoder.blocks.{i}.attn" for i in (0, 1)]
    assert initialize(network, Mimetic(positions="keep"), seed=0).changed


def test_the_pooling_takes_it_alone():
    network = compact_transformer("cct_2_3x2_32", image_size=16, pool_softmax={"mode": "subtract"}).eval()
    assert len(values_of(network)) == 1
    pooled = {}
    network.encoder.norm.register_forward_hook(lambda module, args, output: pooled.update(x=output))
    logits = network(torch.randn(2, 3, 16, 16))
    x, pool = pooled["x"], network.encoder.pool
    weights = pool.score(x).softmax(1)
    expected = network.encoder.head((weights * (x - x.softmax(1))).sum(1))
    torch.testing.assert_close(logits, expected)


# transformers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTS)
def test_a_model_of_transformers_is_the_same_at_alpha_zero(name):
    plain, mixed = host(name), place_token_softmax(host(name), mode="remix", alpha=0.0, learnable=True)
    with torch.no_grad():
        torch.testing.assert_close(plain(IDS).logits, mixed(IDS).logits, rtol=1e-4, atol=1e-5)
    assert len(values_of(mixed)) == 2


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_sees_no_future_and_generates_alike_with_and_without_a_cache(name):
    from transformers import Cache

    model = place_token_softmax(host(name), mode="remix", alpha=0.7, scale=3.0)
    other = IDS.clone()
    other[:, 5:] = 0
    with torch.no_grad():
        logits, changed = model(IDS).logits, model(other).logits
        torch.testing.assert_close(logits[:, :5], changed[:, :5], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(logits[:, 5:], changed[:, 5:], atol=1e-2)
        first = model(IDS[:, :3], use_cache=True)
        past = {name: value for name, value in first.items() if isinstance(value, Cache)}  # 5.24 has renamed it
        torch.testing.assert_close(model(IDS[:, 3:], **past).logits, logits[:, 3:], rtol=1e-4, atol=1e-5)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    cached, recomputed = (model.generate(IDS, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, recomputed)


def test_gpt2s_attention_is_that_of_softmaxes_over_the_past():
    model = place_token_softmax(host("GPT2LMHeadModel").double(), mode="replace")
    attention = model.transformer.h[0].attn
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    query, key, value = (part.view(1, 5, 2, 8).transpose(1, 2) for part in attention.c_attn(x).split(16, dim=-1))
    future = torch.ones(5, 5).triu(1).bool()
    weights = (query @ key.mT * 8**-0.5).masked_fill(future, -torch.inf).softmax(-1)
    rows = []
    for i in range(5):
        past = value[:, :, : i + 1]
        rows.append(weights[:, :, i : i + 1, : i + 1] @ (past.exp() / past.exp().sum(2, keepdim=True)))
    expected = attention.c_proj(torch.cat(rows, dim=2).transpose(1, 2).reshape(1, 5, 16))
    torch.testing.assert_close(attention(x)[0], expected)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertForSequenceClassification"])
def test_padding_changes_nothing(name):
    model = place_token_softmax(host(name), mode="add", scale=5.0)
    padded, mask = torch.cat([IDS, torch.zeros_like(IDS[:, :3])], 1), torch.ones(2, 11, dtype=torch.int64)
    mask[:, 8:] = 0
    with torch.no_grad():
        alone, beside = model(IDS).logits, model(padded, attention_mask=mask).logits
    torch.testing.assert_close(beside[:, :8] if beside.ndim == 3 else beside, alone, rtol=1e-4, atol=1e-5)


def test_a_network_without_attention_or_of_another_kind_is_refused():
    for network, message in [
        (timm.create_model("resnet18"), "ResNet has neither"),
        (torch.nn.TransformerEncoderLayer(8, 2), "TransformerEncoderLayer has neither"),
    ]:
        with pytest.raises(StructuredInitError, match=message):
            place_token_softmax(network)
    with pytest.raises(StructuredInitError, match="takes no argument 'learnabl': did you mean 'learnable'"):
        create_network("vit_nano_patch2_8", image_size=8, token_softmax={"learnabl": True})
