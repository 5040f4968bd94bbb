"""What the study of descriptions writes is what it says, and its page is that of its committed runs."""

import json
from pathlib import Path

import pytest
import timm
import torch
import transformers

from benchmarks.described import ARMS, describe, heads, kernel, layers, turn_part, with_kernel, write
from benchmarks.described_page import RESULTS, interval, page
from structured_init import attention_sites
from structured_init.analysis import weight_products


def vit(depth: int = 3, dim: int = 24) -> torch.nn.Module:
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": dim, "depth": depth, "num_heads": 3, "num_classes": 5}
    return timm.models.vision_transformer.VisionTransformer(
        **sizes, class_token=False, global_pool="avg", fc_norm=True
    ).eval()


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def stirred(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("build", [vit, llama])
@torch.no_grad()
def test_cosine_of_queries_and_keys_is_the_share_of_the_products_diagonal(build):
    model = stirred(build(), 1)
    site, found = attention_sites(model)[1], describe(model)
    diagonals = weight_products(site).query_key.diagonal(dim1=1, dim2=2).sum(1)
    keys = site.key.repeat_interleave(site.num_heads // site.num_key_value_heads, dim=0)
    shares = diagonals / (site.query.flatten(1).norm(dim=1) * keys.flatten(1).norm(dim=1))
    assert found["query key"][1] == pytest.approx(shares.mean().item(), abs=1e-5)
    values = site.value.repeat_interleave(site.num_heads // site.num_key_value_heads, dim=0)
    passed = (values * site.output.mT).flatten(1).sum(1) / (
        values.flatten(1).norm(dim=1) * site.output.flatten(1).norm(dim=1)
    )
    assert found["value output"][1] == pytest.approx(passed.mean().item(), abs=1e-5)


@torch.no_grad()
def test_a_description_is_found_again_in_a_network_of_another_width_and_depth():
    told, student = describe(stirred(vit(3), 1)), vit(5, 36)
    write(student, told, torch.Generator().manual_seed(0), ("scale", "diagonals", "positions"))
    found = describe(student)
    for name in found.keys() - {"positions"}:
        assert found[name][:: 2 if len(found[name]) > 1 else 1] == pytest.approx(told[name], rel=1e-4), name
    middle = (told["fc1"][0] + told["fc1"][1]) / 2
    assert student.blocks[1].mlp.fc1.weight.square().mean().sqrt().item() * 36**0.5 == pytest.approx(middle, rel=1e-5)
    assert student.blocks[0].norm1.weight.unique().numel() == 1


def test_positions_of_a_kernel_have_its_products():
    rows = torch.eye(4).double() * 2 + torch.ones(4, 4)
    products = torch.kron(rows, rows)  # of a grid of 4 × 4, by distance alone
    root = torch.linalg.cholesky(products)
    found = kernel(root * 4)  # D is 16
    assert found.tolist() == pytest.approx([9, 3, 3, 3, *[3, 1, 1, 1] * 3])
    again = with_kernel(found, 20, torch.Generator().manual_seed(0))
    torch.testing.assert_close(again @ again.T / 20, products)


@pytest.mark.parametrize("build", [vit, llama])
@torch.no_grad()
def test_a_spectrum_has_the_teachers_singular_values_and_not_its_directions(build):
    teacher, student = stirred(build(), 1), build()
    ARMS["spectrum"](student, teacher, torch.Generator().manual_seed(0))
    for own, its in zip(layers(student), layers(teacher), strict=True):
        torch.testing.assert_close(torch.linalg.svdvals(own["key"]), torch.linalg.svdvals(its["key"]))
        assert abs(torch.cosine_similarity(own["key"].flatten(), its["key"].flatten(), dim=0)) < 0.5


@torch.no_grad()
def test_a_part_that_is_turned_computes_the_same_of_a_stream_that_is_turned():
    block, tokens = stirred(vit(), 2).blocks[0], torch.randn(2, 7, 24)
    before = block.attn(block.norm1(tokens))
    turn_part(block.norm1, [block.attn.qkv], block.attn.proj, torch.Generator().manual_seed(3))
    last = torch.nn.Linear(24, 24, bias=False)  # of a part that writes what it is given: it becomes the turn itself
    last.weight.copy_(torch.eye(24))
    turn_part(torch.nn.LayerNorm(24), [torch.nn.Linear(24, 24)], last, torch.Generator().manual_seed(3))
    turn = last.weight
    assert not torch.allclose(turn, torch.eye(24), atol=0.1)
    torch.testing.assert_close(turn @ turn.T, torch.eye(24), atol=1e-5, rtol=0)
    torch.testing.assert_close(block.attn(block.norm1(tokens @ turn.T)), before @ turn.T, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_copied_attention_leaves_the_rest_alone():
    teacher, student = stirred(llama(), 1), llama()
    mlp = student.model.layers[1].mlp.up_proj.weight.clone()
    ARMS["attention"](student, teacher, torch.Generator())
    assert torch.equal(heads(student, layers(student)[1])[0][0], heads(teacher, layers(teacher)[1])[0][0])
    assert torch.equal(student.model.layers[1].mlp.up_proj.weight, mlp)


def test_intervals_are_students_with_bonferroni():
    mean, half = interval([1.0, 2.0, 3.0], references=2)
    assert (mean, half) == pytest.approx((2.0, 6.205 * 1 / 3**0.5), rel=1e-3)  # t of 2 degrees of freedom at 0.9875


def test_the_page_is_that_of_the_committed_runs():
    runs = json.loads((RESULTS / "described.json").read_text())
    assert (RESULTS / "described.md").read_text() == page(runs["runs"], runs["numbers"])
    assert Path(RESULTS / "described.png").stat().st_size < 200_000
