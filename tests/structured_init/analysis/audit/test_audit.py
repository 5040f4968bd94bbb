"""The audit as a whole: what it says of a model, and what it leaves alone."""

from __future__ import annotations

import functools
import math
import re
import warnings

import peft
import pytest
import timm
import torch
import torch.utils.checkpoint
import transformers
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from structured_init import Mimetic, MimeticStateSpace, initialize
from structured_init.analysis import audit, capture_attention, weight_products
from structured_init.errors import StructuredInitError
from structured_init.hosts import attention_sites
from structured_init.names import folded_name
from structured_init.running import as_inputs, host_inputs
from structured_init.testing import assert_initialized, check_initialized


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=4, embed_dim=32, num_heads=2)


@pytest.fixture(scope="module")
def seen(model):
    return audit(model)


def test_every_parameter_has_one_record_in_the_order_of_the_model(model, seen):
    assert [record.name for record in seen.records] == [name for name, _ in model.named_parameters()]
    assert len(seen.table()) == len(seen.records)
    assert seen.recognized == 1.0


def test_equal_blocks_stand_in_one_line(seen):
    (line,) = [each for each in seen.summary().splitlines() if each.startswith("blocks.")]
    assert line.startswith("blocks.0–3 ")
    assert "attn.qkv, attn.proj, mlp.fc1, mlp.fc2: normal σ 0.02 (timm, transformers)" in line
    assert "; norms ones; biases zeros" in line
    assert "nothing suspicious was found" in seen.summary()


def test_blocks_that_are_parts_of_dictionaries_share_their_lines():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            mixer = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))  # noqa: E731
            self.layers = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(8), "mixer": mixer()}) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer["mixer"](layer["norm"](x))
            return x

    norms, mixers = audit(Net(), torch.randn(2, 8)).lines()
    assert (norms.name, mixers.name) == ("layers.0–2", "layers.0–2.mixer")
    assert mixers.scales.count("→") == 2


def test_a_table_that_nobody_wrote_is_not_said_to_be_drawn_as_the_matrices_beside_it():
    block = nn.ModuleDict({"q": nn.Linear(32, 32, bias=False), "table": nn.Embedding(128, 2)})
    generator = torch.Generator().manual_seed(0)
    nn.init.normal_(block["q"].weight, std=0.3, generator=generator)
    nn.init.normal_(block["table"].weight, std=0.28, generator=generator)
    said = audit(nn.ModuleDict({"block": block})).summary()
    assert "block  q: normal σ 0.31; table: normal σ 0.29" in said


def test_a_block_that_differs_stands_in_a_line_of_its_own(model):
    other = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=4, embed_dim=32, num_heads=2)
    nn.init.orthogonal_(other.blocks[2].attn.proj.weight)
    names = [line.name for line in audit(other).lines() if line.name.startswith("blocks")]
    assert names == ["blocks.0–1", "blocks.2", "blocks.3"]


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        (["head"], "head"),
        (["layers.1.blocks.0", "layers.1.blocks.1"], "layers.1.blocks.0–1"),
        (["h.9.x", "h.10.x", "h.11.x"], "h.9–11.x"),
        (["f.0.bias", "f.2.bias"], "f.(0, 2).bias"),
        (["backbone.0", "backbone.2"], "backbone.(0, 2)"),
        (["stages.0.blocks.1", "stages.1.blocks.0"], "stages.0.blocks.1 … stages.1.blocks.0 (2 in all)"),
    ],
)
def test_a_run_of_blocks_is_named_by_the_number_in_which_they_differ(blocks, name):
    assert folded_name(blocks) == name


def test_activations_and_gradients_are_those_of_autograd(model):
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    found = audit(model, images, seed=5)
    kept = {}
    handles = [
        block.register_forward_hook(lambda m, a, out, i=i: kept.update({f"blocks.{i}": out}))
        for i, block in enumerate(model.blocks)
    ]
    output = model.eval()(images)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    loss = (output * direction).sum() / output.numel() ** 0.5
    gradients = torch.autograd.grad(loss, [*kept.values(), model.blocks[1].attn.qkv.weight])
    for handle in handles:
        handle.remove()
    for (name, out), gradient, scale in zip(kept.items(), gradients, found.blocks, strict=False):
        assert scale.name == name
        assert scale.activation == pytest.approx(out.square().mean().sqrt().item(), rel=1e-4)
        assert scale.gradient == pytest.approx(gradient.square().mean().sqrt().item(), rel=1e-4)
    weight = gradients[-1].square().mean().sqrt().item()
    assert found.gradients["blocks.1.attn.qkv.weight"] == pytest.approx(weight, rel=1e-4)


def test_only_the_first_samples_of_a_large_batch_are_run(model):
    images = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert audit(model, images).blocks == audit(model, images[:8]).blocks
    assert audit(model, images, max_samples=None).blocks != audit(model, images[:8]).blocks


@pytest.mark.parametrize(("nodes", "options"), [(6, {}), (12, {"max_samples": None})])
def test_a_graph_is_not_cut_where_all_is_asked_for_and_else_the_cut_is_named(nodes, options):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, nodes, adjacency):
            return adjacency @ self.layer(nodes)

    assert audit(Graph(), (torch.randn(nodes, 5), torch.eye(nodes)), **options).gradients
    cut = "; the first 8 along axis 0 were taken, max_samples=None gives all"
    for run in (lambda *given: audit(Graph(), given), functools.partial(capture_attention, Graph())):
        with pytest.raises(StructuredInitError, match=f"Graph fails on the batch: .*{cut}$"):
            run(torch.randn(12, 5), torch.eye(12))


def test_batch_norms_see_the_batch_as_in_training_and_keep_their_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in range(2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = audit(model, 50 * torch.randn(4, 3, 8, 8))
    assert [each.activation for each in found.blocks] == [pytest.approx(1, rel=1e-3)] * 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_model_is_left_as_it_was(dtype):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=32, num_heads=2, drop_rate=0.1)
    model.to(dtype).train()
    model.blocks[0].norm1.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    found = audit(model)
    assert found.blocks
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.blocks[0].norm1.weight.requires_grad
    assert not any(module._forward_hooks for module in model.modules())


def test_parts_of_a_fused_weight_with_several_scales_are_no_draws_of_one():
    layer = nn.MultiheadAttention(32, 4)
    initialize(layer, Mimetic(), seed=0)
    nn.init.normal_(layer.out_proj.bias, std=0.1)
    (line,) = audit(nn.Sequential(layer, nn.LayerNorm(32))).lines()[:1]
    assert line.parameters.startswith("in_proj_weight: no known distribution, std 0.")
    assert line.parameters.endswith("; other biases zeros")
    (norm,) = [each for each in audit(nn.Sequential(layer, nn.LayerNorm(32))).lines() if each.name == "1"]
    assert norm.parameters == "norms ones; biases zeros"


@pytest.mark.parametrize("norm", [spectral_norm, torch.nn.utils.spectral_norm])
def test_the_vectors_of_spectral_norms_are_left_as_they_were(norm):
    model = nn.Sequential(norm(nn.Linear(16, 16)), norm(nn.Linear(16, 16)))
    before = {name: value.clone() for name, value in model.train().state_dict().items()}
    audit(model, torch.randn(2, 5, 16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert_initialized(lambda: norm(nn.Linear(16, 16)), torch.randn(2, 16), skip="meta,own")


def test_products_are_those_of_the_sites_and_stand_in_the_line_where_they_are_no_chance(tiny_vit):
    model = tiny_vit(embed_dim=64, depth=2)
    assert not any(line.mixing for line in audit(model).lines())
    initialize(model, Mimetic(), seed=0)
    found = audit(model)
    (line,) = [line for line in found.lines() if line.name == "blocks.0–1"]
    summary = weight_products(attention_sites(model)[0]).summary()
    mean = sum(summary["query_key_diagonal"]) / 2
    assert f"W_q W_kᵀ diagonal {mean:+.2g}" in line.mixing
    assert found.products["blocks.0.attn"]["value_output_diagonal"] == pytest.approx(summary["value_output_diagonal"])


def test_half_lives_of_states_are_told_of_any_weights():
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=2, state_size=3, vocab_size=20)
    model = transformers.MambaForCausalLM(config)
    mixers = [layer.mixer for layer in model.backbone.layers]
    lives = torch.cat([math.log(2) / (each.A_log.exp() * each.dt_proj.bias.exp().log1p()[:, None]) for each in mixers])
    (both,) = [line.mixing for line in audit(model).lines() if line.mixing]
    assert both.startswith(f"half-lives {lives.min():.2g} to {lives.max():.0f} tokens")
    with torch.no_grad():
        for mixer, step in zip(mixers, (0.1, 0.001), strict=True):  # of states that decay as 1, 2, 3
            mixer.dt_proj.bias.fill_(math.log(math.expm1(step)))
    found = audit(model)
    first, _ = [line.mixing for line in found.lines() if line.mixing]
    assert first == "half-lives 2.3 to 6.9 tokens, median 3.5"
    assert "| `backbone.layers.1.mixer` | 231 to 693 tokens, median 347 |  |" in found.markdown()
    assert not found.half_lives_on_batch
    batch = torch.randint(0, 20, (2, 9), generator=torch.Generator().manual_seed(0))
    found = audit(model, batch)  # whose mean Δ is what the host's own projection gives
    seen = []
    mixers[1].x_proj.register_forward_hook(lambda module, args, out: seen.append(out))
    model(batch)
    steps = nn.functional.softplus(mixers[1].dt_proj(seen[0][..., : config.time_step_rank]))
    lives = math.log(2) / (steps.mean((0, 1))[:, None] * mixers[1].A_log.exp())
    torch.testing.assert_close(
        found.half_lives_on_batch["backbone.layers.1.mixer"].float(), lives, atol=1e-3, rtol=1e-4
    )
    assert "on the batch" in found.lines()[1].mixing
    mask = torch.ones(2, 9, dtype=torch.long)
    padded = torch.cat([torch.full((2, 4), 3), batch], dim=1)
    given = {"input_ids": padded, "attention_mask": torch.cat([torch.zeros(2, 4, dtype=torch.long), mask], dim=1)}
    alone = audit(model, {"input_ids": batch, "attention_mask": mask}).half_lives_on_batch
    for name, lives in audit(model, given).half_lives_on_batch.items():  # padding does not count
        torch.testing.assert_close(lives, alone[name], rtol=2e-2, atol=0)
    assert not any("no products" in note for note in found.notes)


def test_half_lives_on_a_batch_are_over_all_passes_of_a_layer():
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, state_size=3, vocab_size=20)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = transformers.MambaModel(config).layers[0].mixer

        def forward(self, hidden, other=None):
            first = self.mixer(hidden)
            return first if other is None else first + self.mixer(other)

    model, (one, two) = Twice(), 30 * torch.randn(2, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    (a,), (b,), (both,) = (audit(model, given).half_lives_on_batch.values() for given in ((one,), (two,), (one, two)))
    torch.testing.assert_close(1 / both, (1 / a + 1 / b) / 2)  # the mean of the steps


def test_a_step_that_no_input_moves_is_no_problem():
    config = transformers.Mamba2Config(
        hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, state_size=16, n_groups=1, vocab_size=20
    )
    model = transformers.Mamba2ForCausalLM(config)
    initialize(model, MimeticStateSpace())
    assert not any(finding.problem for finding in audit(model, torch.randint(0, 20, (2, 9))).findings)
    with torch.no_grad():
        model.backbone.layers[0].mixer.in_proj.weight[:3] = 0
    assert any("7 of 292 rows are zero" in str(each) for each in audit(model, torch.randint(0, 20, (2, 9))).findings)


def test_the_table_has_a_row_per_parameter_with_kind_scale_and_reference(seen):
    table = seen.table().set_index("parameter")
    row = table.loc["blocks.3.mlp.fc2.weight"]
    assert (row["kind"], row["equals"], row["shape"]) == ("normal", "timm; transformers", "32×128")
    assert row["scale"] == pytest.approx(0.02, rel=0.05)
    assert table["gradient"].notna().all()


def test_the_page_is_markdown_with_a_row_per_line_and_per_attention_layer(seen):
    page = seen.markdown()
    assert page.startswith("# Audit of VisionTransformer\n")
    assert sum(line.startswith("| `") for line in page.splitlines()) == len(seen.lines()) + 4
    assert page.rstrip().endswith("Nothing suspicious was found.")


def test_wrappers_do_not_show_in_names(model):
    wrapped = nn.DataParallel(model)
    found = audit(wrapped, torch.randn(2, 3, 32, 32, device=next(wrapped.parameters()).device))
    assert found.records[2].name == "patch_embed.proj.weight"
    assert [scale.name for scale in found.blocks] == [f"blocks.{i}" for i in range(4)]


def test_hosts_name_their_own_inputs(model):
    (images,), _ = host_inputs(model)
    assert images.shape == (2, 3, 32, 32)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_channels=1, **small)
    _, named = host_inputs(transformers.ViTModel(config))
    assert named["pixel_values"].shape == (2, 1, 16, 16)
    _, named = host_inputs(transformers.BertModel(transformers.BertConfig(vocab_size=60, **small)))
    assert set(named) == {"input_ids"}
    assert host_inputs(nn.Linear(3, 4)) is None


def test_a_batch_is_one_argument_several_or_named_ones():
    one = torch.ones(2)
    assert as_inputs(one) == ((one,), {})
    assert as_inputs((one, one)) == ((one, one), {})
    assert as_inputs({"x": one}) == ((), {"x": one})


def test_a_host_that_does_not_run_on_its_own_inputs_is_audited_without_them(model):
    other = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=32, num_heads=2)
    other.forward = lambda images: 1 / 0
    found = audit(other)
    assert found.blocks == []
    assert found.notes == [
        "activations and gradients left out: the model does not run on its host's inputs: division by zero"
    ]
    with pytest.raises(ZeroDivisionError):
        audit(other, torch.randn(2, 3, 32, 32))


def test_a_batch_of_another_size_is_answered_with_one_that_fits(model):
    answer = "Input height (4) doesn't match model (32). (in 'patch_embed'); it takes torch.randn(2, 3, 32, 32)"
    with pytest.raises(StructuredInitError, match=re.escape(f"VisionTransformer fails on the batch: {answer}")):
        audit(model, torch.randn(2, 3, 4, 4))


@pytest.mark.parametrize("seed", range(4))
def test_equal_draws_of_all_blocks_stand_together(seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = nn.ModuleList(nn.Module() for _ in range(3))
    for number, block in enumerate(blocks):
        for name in ("query", "key", "value", "output"):
            setattr(block, name, nn.Parameter(0.11 * torch.randn(48, 48, generator=generator)))
        block.query.data += 0.01 * (number == 1)  # 4.2 standard errors of its mean, 9 % of its scale
        block.wide = nn.Parameter(0.16 * torch.randn(48, 48, generator=generator))
        block.few = nn.Parameter(torch.tensor([0.1, -0.2, 0.3]))  # of so few numbers nobody knows
    (line,) = audit(blocks).lines()
    many = "query, key, value, output: normal σ 0.11; wide: normal σ 0.16"
    assert line.parameters.startswith(f"{many}; few: unclear, std 0.21")


def test_a_line_names_the_reference_of_layers_whose_fans_are_nearly_equal():
    torch.manual_seed(0)
    model = nn.Module()
    model.a, model.b = nn.Linear(25, 24), nn.Linear(24, 25)
    (line,) = audit(nn.Sequential(model)).lines()
    assert line.parameters == "a, a.bias, b, b.bias: uniform ± 0.2 (torch)"


def test_a_line_calls_unclear_what_the_table_calls_unclear():
    generator = torch.Generator().manual_seed(0)
    few, two, many = (0.3 * torch.randn(size, generator=generator) for size in (64, 1024, 1024))
    two *= torch.tensor([0.1, 1.4]).repeat(512)  # of two scales, together that of the others
    few.clamp_(-0.55, 0.55)  # as normal ones, or ones cut at 2 σ
    block = nn.ParameterDict({"few": few, "many": many, "two": two})
    found = audit(nn.ModuleList([block]))
    assert [each.distribution.kind for each in found.records] == ["unclear", "normal", "other"]
    (line,) = found.lines()
    said = dict(zip(found.table().parameter, found.table().in_words, strict=True))
    assert line.parameters == "; ".join(f"{name.removeprefix('0.')}: {words}" for name, words in said.items())
    assert said["0.few"].startswith("unclear")
    assert ", 1 of them recognized" in found.headline()
    draws = 0.3 * torch.randn(12, 150, generator=generator)
    blocks = audit(nn.ModuleList(nn.ParameterDict({"w": each}) for each in draws))
    kind = {each.block: each.distribution.kind for each in blocks.records}
    assert set(kind.values()) == {"normal", "unclear"}  # some cannot be told from ones cut at 2 σ
    assert all(kind[block] in line.parameters for line in blocks.lines() for block in line.blocks)


def test_parameters_share_one_scale_where_the_numbers_of_all_blocks_allow_it():
    generator = torch.Generator().manual_seed(0)
    blocks = nn.ModuleList(nn.Module() for _ in range(40))
    for block in blocks:
        for name, scale in (("big", 0.1), ("same", 0.1), ("less", 0.094)):  # 2 standard errors apart in one block
            setattr(block, name, nn.Parameter(scale * torch.randn(1024, generator=generator)))
        for name in "abcd":
            setattr(block, name, nn.Parameter(torch.empty(1024).uniform_(-0.29, 0.29, generator=generator)))
    (line,) = audit(blocks).lines()
    assert line.parameters.startswith("big, same: normal σ 0.1; less: normal σ 0.094; a, b, c, d: uniform ± 0.29")


def test_a_normal_weight_is_not_counted_among_uniform_biases_that_it_resembles():
    for seed in range(4):
        torch.manual_seed(seed)
        block = nn.Module()
        block.first, block.second = nn.Linear(64, 64), nn.Linear(64, 64)
        nn.init.normal_(block.first.weight, 0, 0.14)
        nn.init.normal_(block.second.weight, 0, 0.088)
        (line,) = audit(nn.ModuleList([block])).lines()
        assert "second: normal σ 0.0" in line.parameters, line


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (None, "loss left out: its output does not say how many classes it has: give 'classes' if it has any"),
        (7, "loss left out: its output has no 7 logits"),
    ],
)
def test_classes_give_a_loss_and_without_them_a_line_says_why_there_is_none(classes, said):
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 20)), torch.randn(8, 8)
    found = audit(model, batch, classes=classes)
    assert found.loss is None
    assert said in str(found).splitlines()
    expected = nn.functional.cross_entropy(model(batch), torch.full((8, 20), 0.05)).item()
    assert audit(model, batch, classes=20).loss == (pytest.approx(expected, rel=1e-5), 20)


def test_a_head_gives_a_loss_that_is_said_to_hold_if_these_are_classes():
    model = nn.ModuleDict({"head": nn.Linear(16, 3)})
    model.forward = lambda x: model["head"](x)
    model["head"].bias.data = torch.tensor([40.0, 50.0, 60.0])
    (finding,) = (found := audit(model, torch.randn(8, 16))).findings
    assert finding.text.endswith("guessing among 3 classes has 1.1, if these are classes")
    assert found.loss is not None
    assert found.headline().endswith("ln 3 = 1.1, if these are classes")
    assert audit(model, torch.randn(8, 16), classes=3).findings[0].text.endswith("classes has 1.1")  # it was said


def bert(labels: int, **more: str) -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=20, max_position_embeddings=12, num_labels=labels, **sizes, **more)
    )


def test_a_configuration_with_several_right_answers_has_no_loss_of_one_class():
    torch.manual_seed(0)
    found = audit(bert(5, problem_type="multi_label_classification"))
    assert found.loss is None
    assert "loss left out: its configuration says problem_type='multi_label_classification'" in str(found)
    assert audit(bert(5)).loss[1] == 5


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # of peft's
def test_prompts_of_peft_are_a_part_of_what_is_run():
    torch.manual_seed(0)
    model = peft.get_peft_model(bert(3), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)).eval()
    assert "no gradient" not in str(audit(model, {"input_ids": torch.randint(20, (2, 5))}))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.value, self.log_std = nn.Linear(8, 4), nn.Linear(8, 1), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        chosen = torch.distributions.Normal(self.mean(x), self.log_std.exp())
        return torch.distributions.Independent(chosen, 1), self.value(x)


def test_distributions_in_the_output_are_looked_into():
    found = audit(Policy(), torch.randn(4, 8))
    assert set(found.gradients) == {"mean.weight", "mean.bias", "value.weight", "value.bias", "log_std"}
    assert not any("no gradient" in note for note in found.notes)


class Named(nn.Module):
    """A linear map whose output is called logits, in a shape of its own."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear, self.shape = nn.Linear(8, classes), shape

    def forward(self, x):
        return {"logits": self.linear(x).movedim(-1, 1).reshape(self.shape)}


def test_a_score_per_sample_has_no_loss_and_logits_of_images_have_their_classes_on_axis_1():
    torch.manual_seed(0)
    assert audit(Named(1, (4,)), torch.randn(4, 8)).loss is None
    assert_initialized(lambda: Named(1, (4,)), torch.randn(4, 8), skip=("own",))
    model, images = Named(7, (4, 7, 3, 3)), torch.randn(4, 9, 8)
    even = torch.full((4, 7, 3, 3), 1 / 7)
    expected = nn.functional.cross_entropy(model(images)["logits"], even).item()
    assert audit(model, images).loss == (pytest.approx(expected, rel=1e-5), 7)


def test_of_several_outputs_the_loss_is_that_of_as_many_classes_as_somebody_says():
    model = nn.ModuleDict({"price": nn.Linear(8, 1), "kind": nn.Linear(8, 6)})
    model.forward = lambda x: {name: model[name](x) for name in ("price", "kind")}
    x = torch.randn(4, 8)
    expected = nn.functional.cross_entropy(model["kind"](x), torch.full((4, 6), 1 / 6)).item()
    assert audit(model, x, classes=6).loss == (pytest.approx(expected, rel=1e-5), 6)
    assert "its output has no 5 logits" in str(check_initialized(model, x, classes=5))


class Tabled(nn.Module):
    """Tokens or measurements, and a table beside them that is as long as its output."""

    def __init__(self, rows: int, outputs: int) -> None:
        super().__init__()
        self.words, self.table, self.out = nn.Embedding(27, 8), nn.Embedding(rows, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.out((x if x.is_floating_point() else self.words(x)) + self.table.weight.mean(0))


@pytest.mark.parametrize(
    ("rows", "outputs", "batch", "classes"),
    [
        (2, 2, torch.zeros(4, 8), None),  # two teams, and the position (x, y)
        (207, 207, torch.zeros(4, 8), None),  # stations, and what each of them measures
        (2, 2, torch.zeros(4, 8).long(), None),  # two segments, and where an answer begins and ends
        (2, 27, torch.zeros(4, 8).long(), 27),
        (207, 207, torch.zeros(4, 8).long(), 207),  # words of another language
    ],
)
def test_only_a_table_of_tokens_says_how_many_classes_there_are(rows, outputs, batch, classes):
    loss = audit(Tabled(rows, outputs), batch).loss
    assert (loss and loss[1]) == classes


class Stranger(nn.Module):
    """Attention that no layout was written for, in a block of its own."""

    def __init__(self):
        super().__init__()
        self.embed, self.stack = nn.Embedding(20, 16), nn.ModuleList(OwnAttention() for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for attention in self.stack:
            x = x + attention(x)
        return x


class OwnAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.wide(x).chunk(3, -1))
        return self.back(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_products_of_attention_that_nobody_described_are_found_on_the_batch():
    model = Stranger()
    with torch.no_grad():
        model.stack[1].wide.weight[16:32] = model.stack[1].wide.weight[:16]  # W_k = W_q: traces are squared norms
    found = audit(model, torch.arange(12).view(2, 6))
    assert list(found.products) == ["stack.0", "stack.1"]
    query = model.stack[1].wide.weight[:16].double()
    expected = query.square().sum() / (2 * 16)  # mean over heads and the diagonal
    assert found.products["stack.1"]["query_key_diagonal"] == pytest.approx(expected.item(), rel=1e-4)


def test_without_a_batch_it_is_said_that_attention_is_not_known():
    found = audit(Stranger())
    assert found.products == {}
    [line] = [note for note in found.notes if "no products" in note]
    assert line.startswith("stack.0–1: no products: OwnAttention is not known: ")
    assert "give a batch" in line


class Looped(nn.Module):
    """One block that runs several times on what it gave, or on two inputs."""

    def __init__(self, runs, std):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.runs = nn.Linear(16, 16), runs
        self.block = nn.Module()
        self.block.mlp = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        self.block.forward = lambda x: x + std * x * self.block.mlp(x).norm() / 16
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.inner(x)
        if self.runs == 0:
            return self.head(self.block(x) + self.block(-x))
        for _ in range(self.runs):
            x = self.block(x)
        return self.head(x)


def test_a_block_that_runs_on_its_own_output_is_looked_at_in_every_run():
    batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    model, outputs = Looped(5, 40.0), []
    model.block.register_forward_hook(lambda *given: outputs.append(given[2].square().mean().sqrt().item()))
    model(batch)
    found = audit(model, batch, classes=5)
    assert [(each.name, each.run) for each in found.blocks] == [("block", run) for run in range(1, 6)]
    assert [each.activation for each in found.blocks] == pytest.approx(outputs[:5], rel=1e-5)
    (line,) = (line for line in found.lines() if line.name == "block")
    assert "over 5 runs" in line.scales
    growth = [each for each in found.findings if each.kind == "explodes"]
    assert [each.text.endswith("from block to block (run 5)") for each in growth if "activations" in each.text] == [
        True
    ]


class Twice(nn.Module):
    """An encoder that sees two inputs; of its blocks the last may not run."""

    def __init__(self, last=True, looped=False):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(3)]
        self.blocks = nn.ModuleList(layers[:1] if looped else layers)
        self.last, self.looped = last, looped

    def encode(self, x):
        for block in [self.blocks[0]] * 3 if self.looped else self.blocks if self.last else self.blocks[:-1]:
            x = block(x)
        return x

    def forward(self, x):
        return self.encode(x) - self.encode(0 * x)


def test_of_blocks_that_run_on_two_inputs_the_first_run_counts():
    batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    assert [each.name for each in audit(Looped(0, 1.0), batch, classes=5).blocks] == ["block.mlp.0", "block.mlp.2"]
    found = audit(Twice(), batch[:, None])
    assert [(each.name, each.run) for each in found.blocks] == [(f"blocks.{n}", 1) for n in range(3)]
    assert "runs" not in str(found)


def test_a_loop_in_an_encoder_of_two_inputs_is_one_of_the_first_input():
    found = audit(Twice(looped=True), torch.randn(4, 1, 16, generator=torch.Generator().manual_seed(0)))
    assert [(each.name, each.run) for each in found.blocks] == [("blocks.0", run) for run in (1, 2, 3)]


def test_a_block_that_does_not_run_stays_a_block():
    found = audit(Twice(last=False), torch.randn(4, 1, 16, generator=torch.Generator().manual_seed(0)))
    assert [line.name for line in found.lines()] == ["blocks.0–2"]


def test_blocks_under_checkpoints_are_those_of_the_way_there():
    class Checkpointed(Twice):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=False)

    found = audit(Checkpointed(), torch.randn(4, 1, 16, generator=torch.Generator().manual_seed(0)))
    assert [(each.name, each.run) for each in found.blocks] == [(f"blocks.{n}", 1) for n in range(3)]


class Forces(nn.Module):
    """A molecule's energy by attention between its atoms, and its forces: a model that needs gradients itself."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, places):
        places = places.detach().requires_grad_(True)
        x = self.embed(places)
        energy = self.head((x @ x.mT).softmax(-1) @ x).sum()
        return {"energy": energy, "forces": -torch.autograd.grad(energy, places, create_graph=True)[0]}


def test_a_model_that_needs_gradients_itself_is_audited_and_runs_in_bfloat16():
    places = torch.randn(2, 5, 3)
    found = audit(Forces(), places)
    assert set(found.gradients) == {record.name for record in found.records}
    assert "bfloat16  passed" in str(check_initialized(Forces, places))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_graph_with_a_sparse_adjacency_is_audited_whole(layout):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x, adjacency):
            return adjacency @ self.linear(x)

    model, x, dense = Graph(), torch.randn(9, 6), torch.ones(9, 9).triu()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR|invariant)")  # torch calls them young
        sparse = dense.to_sparse(layout=layout)
        found = audit(model, (x, sparse))
    assert found.gradients == pytest.approx(audit(model, (x, dense), max_samples=None).gradients)


@pytest.mark.parametrize("samples", [8, None])
def test_a_nested_batch_is_refused_in_one_line(samples):
    batch = torch.nested.nested_tensor([torch.randn(3, 6), torch.randn(5, 6)], layout=torch.jagged)
    with pytest.raises(StructuredInitError, match="the batch has a nested tensor, which is not measured"):
        audit(nn.Linear(6, 4), batch, max_samples=samples)


class Spectral(nn.Module):
    def __init__(self, generator=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64, generator=generator))

    def forward(self, x):
        return x.to(torch.complex64) @ self.weight


def test_complex_weights_are_measured():
    torch.manual_seed(0)
    model, x = nn.Sequential(Spectral(), Spectral()), torch.randn(4, 8)
    found = audit(model, x)
    assert found.blocks[1].activation == pytest.approx(model(x).abs().square().mean().sqrt().item(), rel=1e-5)
    assert set(found.gradients) == {"0.weight", "1.weight"}
    assert not any("no gradient" in note for note in found.notes)


def test_complex_weights_of_a_fixed_seed_are_not_said_to_differ():
    def build():
        return Spectral(torch.Generator().manual_seed(0))

    said = str(check_initialized(build, torch.randn(4, 8)))
    assert "left out: there is no complex bfloat16" in said


def test_a_configuration_without_a_last_position_has_tokens_of_the_usual_number():
    config = transformers.XLNetConfig(vocab_size=50, d_model=32, n_layer=2, n_head=4, d_inner=64)
    model = transformers.XLNetModel(config)
    assert host_inputs(model)[1]["input_ids"].shape == (2, 12)
    assert not audit(model).findings
