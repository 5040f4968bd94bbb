"""Structured starts of text models: what reaches the weights, and what the report says of the host."""

from __future__ import annotations

import math

import pytest
import torch

from structured_init import Mimetic, attention_sites, initialize


def identity_share(product):
    """Mean of the diagonal: β where the product is αZ + βI, of the part that its rank can hold."""
    return product.diagonal(dim1=-2, dim2=-1).mean().item()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("network", ["gpt2", "bert"])
def test_the_products_of_a_text_model_are_those_asked_for(network, sign, language_model):
    model = language_model(network)
    start = Mimetic(qk_alpha=0.0, vo_alpha=0.0, qk_beta=0.5, vo_beta=0.3, qk_sign=sign, vo_sign=sign, positions="keep")
    initialize(model, start, seed=0)
    sites = attention_sites(model)
    assert len(sites) == 2
    for site in sites:
        value_output = torch.einsum("hdk,hko->do", site.value, site.output)
        torch.testing.assert_close(value_output, sign * 0.3 * torch.eye(16), atol=1e-5, rtol=0)
        for query, key in zip(site.query, site.key, strict=True):  # 0.5 times a projection of rank 4 in 16 dimensions
            assert identity_share(query @ key.mT) == pytest.approx(sign * 0.5 * 4 / 16, rel=1e-4)


def test_grouped_queries_take_their_target_on_the_span_of_their_key(language_model):
    model = language_model("llama")
    report = initialize(model, Mimetic(qk_alpha=0.0, vo_alpha=0.0, qk_beta=0.5, vo_sign=1, positions="keep"), seed=0)
    for site in attention_sites(model):
        assert (site.num_heads, site.num_key_value_heads) == (4, 2)
        for head in range(4):
            assert identity_share(site.query[head] @ site.key[head // 2].mT) == pytest.approx(0.5 * 4 / 16, rel=1e-4)
        values = site.value.repeat_interleave(2, dim=0)
        value_output = torch.einsum("hdk,hko->do", values, site.output)
        assert torch.linalg.matrix_rank(value_output, atol=1e-5) == 8
        assert identity_share(value_output) == pytest.approx(0.4 * 8 / 16, rel=1e-4)
    said = str(report)
    assert "RoPE turns queries and keys" in said
    assert "2 query heads share a key" in said


@pytest.mark.parametrize(
    ("choice", "factor", "words"),
    [("replace", 1.0, "replaced, scale included"), ("keep", 1 / math.sqrt(4), "that scale is kept")],
)
def test_the_hosts_scale_for_depth_is_replaced_or_kept_and_the_report_says_so(choice, factor, words, language_model):
    model = language_model("gpt2")
    mlp = {name: value.clone() for name, value in model.state_dict().items() if ".mlp.c_proj" in name}
    start = Mimetic(query_key=False, vo_alpha=0.0, vo_sign=1, positions="keep", residual_scale=choice)
    report = initialize(model, start, seed=0)
    for site in attention_sites(model):
        value_output = torch.einsum("hdk,hko->do", site.value, site.output)
        torch.testing.assert_close(value_output, 0.4 * factor * torch.eye(16), atol=1e-5, rtol=0)
    assert f"the host draws the output projection 1/√4 smaller, for its depth: {words}" in str(report)
    for name, value in mlp.items():  # those of the MLPs keep the host's scaled start
        assert torch.equal(model.state_dict()[name], value)


@pytest.mark.parametrize("network", ["gpt2", "llama", "bert"])
def test_a_start_of_queries_and_keys_leaves_all_else_to_the_host(network, language_model):
    model, built = language_model(network), language_model(network).state_dict()
    initialize(model, Mimetic(value_output=False, positions="keep"), seed=0)
    heads = slice(None, 32)  # of GPT-2's fused projection, the columns of queries and keys
    for name, value in model.state_dict().items():
        if name.endswith("c_attn.weight"):
            assert torch.equal(value[:, 32:], built[name][:, 32:])
            assert not torch.equal(value[:, heads], built[name][:, heads])
        else:
            written = name.endswith(("q_proj.weight", "k_proj.weight", "query.weight", "key.weight"))
            assert torch.equal(value, built[name]) != written, name
