import copy
import functools
from types import SimpleNamespace

import pytest
import torch
from hosts import of_transformers
from timm.models.vision_transformer import VisionTransformer

from structured_init.analysis import weight_products
from structured_init.hosts import attention_sites
from structured_init.util.errors import StructuredInitError


def test_products_of_timm_attention_equal_slices_of_its_weights():
    torch.manual_seed(0)
    model = VisionTransformer(img_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3, num_classes=2)
    products = weight_products(attention_sites(model)[0])
    attention = model.blocks[0].attn
    query, key, value = attention.qkv.weight.detach().split(12)
    for head in range(3):
        rows = slice(4 * head, 4 * head + 4)
        torch.testing.assert_close(products.query_key[head], query[rows].T @ key[rows])
    torch.testing.assert_close(products.value_output, value.T @ attention.proj.weight.detach().T)


def test_grouped_key_heads_serve_neighbouring_query_heads():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    site = SimpleNamespace(query=draw(4, 6, 3), key=draw(2, 6, 3), value=draw(2, 6, 5), output=draw(4, 5, 6))
    products = weight_products(site)
    for head in range(4):
        torch.testing.assert_close(products.query_key[head], site.query[head] @ site.key[head // 2].T)
    expected = sum(site.value[head // 2] @ site.output[head] for head in range(4))
    torch.testing.assert_close(products.value_output, expected)


def test_summary_reads_a_multiple_of_the_identity():
    identity = torch.eye(8).expand(2, 8, 8)
    site = SimpleNamespace(query=0.7 * identity, key=identity, value=identity, output=-0.2 * identity)
    summary = weight_products(site).summary()
    assert summary["query_key_diagonal"] == pytest.approx([0.7, 0.7])
    assert summary["query_key_off_diagonal_std"] == [0, 0]
    assert summary["value_output_diagonal"] == pytest.approx(-0.4)


TINY = {
    "LlamaForCausalLM": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "GPT2LMHeadModel": {"n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2},
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`", "ignore:Already following adapters")  # PEFT's
@pytest.mark.parametrize(("name", "targets"), [("LlamaForCausalLM", "[qko]_proj"), ("GPT2LMHeadModel", "c_attn")])
def test_products_below_lora_are_those_that_the_model_computes_with(name, targets):
    peft = pytest.importorskip("peft")
    model = of_transformers(name, seed=0, vocab_size=16, **TINY[name])
    options = {"target_modules": f".*{targets}", "fan_in_fan_out": targets == "c_attn"}
    adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=2, init_lora_weights="pissa", **options))
    (before,), (site,) = attention_sites(model), attention_sites(adapted)
    assert not torch.allclose(site.query, before.query)
    torch.testing.assert_close(weight_products(site), weight_products(before))  # pissa leaves the function
    adapted.add_adapter("second", peft.LoraConfig(r=4, init_lora_weights=False, **options))
    adapted.base_model.set_adapter(["default", "second"])
    both = weight_products(site)
    with adapted.disable_adapter():
        torch.testing.assert_close(weight_products(site).query_key, site.query @ site.key.mT)
    adapted.merge_adapter(["default"])
    torch.testing.assert_close(weight_products(site), both)  # one is merged, one is not
    adapted.merge_adapter()
    torch.testing.assert_close(weight_products(site), both)
    torch.testing.assert_close(both.query_key, site.query @ site.key.mT)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # PEFT's
@pytest.mark.parametrize("kind", ["DoRA", "IA3"])
def test_products_below_adapters_that_do_more_than_add_are_refused(kind):
    peft = pytest.importorskip("peft")
    make = {
        "DoRA": functools.partial(peft.LoraConfig, use_dora=True),
        "IA3": functools.partial(peft.IA3Config, feedforward_modules=[]),
    }
    model = of_transformers("LlamaForCausalLM", seed=0, vocab_size=16, **TINY["LlamaForCausalLM"])
    adapted = peft.get_peft_model(model, make[kind](target_modules=["q_proj"]))
    said = "'model.layers.0.self_attn.q_proj' has adapters: merge them first (merge_and_unload)"
    with pytest.raises(StructuredInitError) as error:
        weight_products(attention_sites(adapted)[0])
    assert str(error.value) == said
    weight_products(attention_sites(adapted.merge_and_unload())[0])
