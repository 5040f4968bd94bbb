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


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # PEFT's
def test_products_below_adapters_are_refused_until_they_are_merged():
    peft = pytest.importorskip("peft")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = of_transformers("LlamaForCausalLM", seed=0, vocab_size=16, **sizes)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj"]))
    with pytest.raises(StructuredInitError) as error:
        weight_products(attention_sites(adapted)[0])
    assert str(error.value) == "'model.layers.0.self_attn.q_proj' has adapters: merge them first (merge_and_unload)"
    adapted.merge_adapter()
    weight_products(attention_sites(adapted)[0])
