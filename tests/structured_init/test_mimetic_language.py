"""Mimetic on language models: the presets' products are the formulas with the signs asked for, computed in numpy.

Letters: H heads, Hkv key–value heads, D embed_dim, k head_dim.
"""

from __future__ import annotations

import pytest
import torch
from hosts import of_transformers

from structured_init import Mimetic, attention_sites, initialize, preset

WIDTH = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8, "vocab_size": 13}
MODELS = {
    "gpt2": lambda: of_transformers("GPT2Model", n_embd=24, n_layer=2, n_head=4, n_positions=12, vocab_size=13),
    "llama": lambda: of_transformers("LlamaModel", **WIDTH, num_key_value_heads=2),
    "bert": lambda: of_transformers("BertModel", **WIDTH),
}


IDENTITY = Mimetic(qk_alpha=0.0, qk_beta=0.5, value_output=False, positions="keep")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("name", "sign"), [("mimetic_language", 1), ("mimetic_language{qk_sign=-1}", -1)])
def test_the_language_presets_give_the_products_with_their_signs(kind, name, sign, check_mimetic):
    model = MODELS[kind]().double()
    others = {name: value.clone() for name, value in model.state_dict().items() if "embed" in name or "wpe" in name}
    check_mimetic(model, preset(name), query_key=0.7 * sign, value_output=0.4)
    assert len(attention_sites(model)) == 2
    assert others
    assert all(torch.equal(model.state_dict()[name], value) for name, value in others.items())


@pytest.mark.parametrize("kind", MODELS)
def test_identity_query_key_is_half_the_identity_on_a_subspace_of_each_heads_own(kind):
    model = MODELS[kind]().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    initialize(model, IDENTITY)
    kept = []
    for site in attention_sites(model):
        group = site.num_heads // site.num_key_value_heads
        for head in range(site.num_heads):
            product = site.query[head] @ site.key[head // group].mT
            values, vectors = torch.linalg.eigh((product + product.mT) / 2)
            torch.testing.assert_close(product, product.mT)
            expected = torch.tensor([0.0] * (24 - 6) + [0.5] * 6, dtype=torch.float64)
            torch.testing.assert_close(values, expected)
            if head % group == 0:
                kept.append(vectors[:, -6:])
    overlaps = [torch.linalg.matrix_norm(a.mT @ b) ** 2 / 6 for i, a in enumerate(kept) for b in kept[:i]]
    assert max(overlaps) < 0.6  # of random subspaces 6/24; the first coordinates of all heads would give 1
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(any(part in name for part in ("q_proj", "k_proj", "query", "key", "c_attn")) for name in changed)
    if kind == "gpt2":  # queries and keys share their parameter with values
        assert torch.equal(model.h[0].attn.c_attn.weight[:, 48:], before["h.0.attn.c_attn.weight"][:, 48:])


def test_the_random_subspace_is_what_a_little_noise_would_choose():
    """At α → 0 the best rank-k part of αZ + βI is that of Z + Zᵀ, whose eigenvectors are uniform: so are ours."""
    model = MODELS["bert"]().double()
    shares = []
    for seed in range(30):
        initialize(model, Mimetic(qk_alpha=0.0, value_output=False, positions="keep"), seed=seed)
        for site in attention_sites(model):
            shares.append((site.query @ site.key.mT).diagonal(dim1=1, dim2=2) / 0.7)
    mean = torch.cat(shares).mean(dim=0)
    torch.testing.assert_close(mean, torch.full_like(mean, 6 / 24), atol=0.03, rtol=0)  # no coordinate is preferred


@pytest.mark.parametrize("sign", [1, -1])
def test_without_noise_the_value_output_product_is_the_identity_itself(sign):
    model = MODELS["gpt2"]().double()
    initialize(model, Mimetic(query_key=False, vo_alpha=0.0, vo_beta=0.3, vo_sign=sign, positions="keep"))
    for site in attention_sites(model):
        product = (site.value @ site.output).sum(dim=0)
        torch.testing.assert_close(product, sign * 0.3 * torch.eye(24, dtype=torch.float64))


def test_a_sign_and_a_negative_strength_are_the_same():
    models = [MODELS["bert"]() for _ in range(2)]
    initialize(models[0], Mimetic(qk_sign=-1, vo_sign=1, positions="keep"))
    initialize(models[1], Mimetic(qk_beta=-0.7, vo_beta=-0.4, positions="keep"))
    for one, other in zip(*(attention_sites(model) for model in models), strict=True):
        for part in ("query", "key", "value", "output"):
            assert torch.equal(getattr(one, part), getattr(other, part))


def test_the_report_says_that_gpt2s_scaling_by_depth_is_replaced():
    report = initialize(MODELS["gpt2"](), preset("mimetic_language"))
    note = "the host draws the output projection 1/√4 smaller, for its depth: what is written is not made smaller"
    assert report.notes == {f"h.{layer}.attn": note for layer in (0, 1)}
    assert initialize(MODELS["gpt2"](), IDENTITY).notes == {}
    assert initialize(MODELS["bert"](), preset("mimetic_language")).notes == {}
