"""Scrambled keeps sizes and destroys alignment; SamePositions keeps positions alone."""

from __future__ import annotations

import statistics
from functools import partial

import pytest
import torch
from hosts import Does, of_transformers, seeded
from timm.models.convmixer import ConvMixer
from timm.models.vision_transformer import Block, VisionTransformer

from structured_init import (
    Compose,
    DeltaOrthogonal,
    FilterCovariance,
    Impulse,
    Initializer,
    KaimingUniform,
    MambaReference,
    Mimetic,
    MimeticStateSpace,
    Positions,
    PreviousToken,
    SamePositions,
    Scrambled,
    Sharpened,
    SpatialFilters,
    StructuredInitError,
    attention_sites,
    initialize,
    position_sites,
    state_space_sites,
)
from structured_init.analysis import capture_attention
from structured_init.ssm.mimetic import match_distance, scan_scale

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 11}
MAMBA = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1}
TEXT = {**SIZES, "max_position_embeddings": 24, "pad_token_id": 0}


def vit():
    return VisionTransformer(img_size=16, patch_size=2, embed_dim=32, depth=2, num_heads=2, num_classes=3)


def unfused_vit():
    model = vit()
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def grouped_llama():
    return of_transformers("LlamaModel", **TEXT, num_key_value_heads=2)


def pair(make, initializer: Initializer, seed=1):
    """A host with an initialization, and one with the same scrambled."""
    plain, scrambled = seeded(make), seeded(make)
    initialize(plain, initializer, seed=seed)
    initialize(scrambled, Scrambled(initializer), seed=seed)
    return plain, scrambled


def products(site):
    """W_q W_kᵀ (H, D, D) and W_v W_o (H, D, D) of every head."""
    heads, keys = site.num_heads, site.num_key_value_heads
    key, value = (part.repeat_interleave(heads // keys, dim=0).double() for part in (site.key, site.value))
    return site.query.double() @ key.mT, value @ site.output.double()


def previous_share(model, tokens):
    """The share of attention that the first head of the first layer puts on the token before."""
    first = next(iter(capture_attention(model, tokens).values()))
    return first[:, 0].double().diagonal(-1, dim1=-2, dim2=-1).mean().item()


@pytest.mark.parametrize("make", [vit, grouped_llama])
def test_every_product_and_that_of_a_layer_keep_their_singular_values_and_lose_their_diagonal(make):
    plain, scrambled = pair(make, Mimetic(positions="keep"))
    for one, other in zip(attention_sites(plain), attention_sites(scrambled), strict=True):
        for before, after in zip(products(one), products(other), strict=True):
            singular = (torch.linalg.svdvals(each) for each in (before, after))
            torch.testing.assert_close(*singular, rtol=1e-4, atol=1e-5)
        whole = (torch.linalg.svdvals(products(site)[1].sum(0)) for site in (one, other))
        torch.testing.assert_close(*whole, rtol=1e-4, atol=1e-5)
        for part in ("query", "key", "value", "output"):
            before, after = (torch.linalg.svdvals(getattr(site, part).double()) for site in (one, other))
            torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-5)
        diagonals = [products(site)[0].diagonal(dim1=1, dim2=2).mean().item() for site in (one, other)]
        assert diagonals[0] > 0.1
        assert abs(diagonals[1]) < diagonals[0] / 4


def test_positions_and_what_a_baseline_wrote_are_as_in_what_is_scrambled():
    plain, scrambled = pair(vit, Compose([KaimingUniform(), Mimetic()]))
    attention = {name for name, _ in plain.named_parameters() if ".attn." in name and name.endswith("weight")}
    differing = {n for n, p in plain.named_parameters() if not torch.equal(p, dict(scrambled.named_parameters())[n])}
    assert differing == attention


def test_values_that_were_not_written_are_not_touched():
    host, (_, scrambled) = seeded(vit), pair(vit, Mimetic(value_output=False))
    for one, other in zip(attention_sites(host), attention_sites(scrambled), strict=True):
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.output, other.output)


def t5():
    return of_transformers("T5EncoderModel", vocab_size=11, d_model=32, d_kv=8, d_ff=16, num_layers=2, num_heads=4)


@pytest.mark.parametrize("make", [grouped_llama, t5])
def test_heads_that_looked_at_the_token_before_do_so_no_longer(make):
    tokens = torch.randint(1, 11, (2, 16), generator=torch.Generator().manual_seed(0))
    looking, model, shares = PreviousToken([1, -1] if make is t5 else [1, 2]), seeded(make), []
    initialize(model, looking, seed=0)
    assert previous_share(model, tokens) > 0.6
    for seed in range(3):  # one may peak there by chance
        model = seeded(make)
        report = initialize(model, Scrambled(looking), seed=seed)
        shares.append(previous_share(model, tokens))
        measured = [what for what in report.notes.values() if "measured" in what]
        assert measured
        assert all(what.startswith("before scrambling: ") for what in (*measured, *report.warnings))
    assert statistics.median(shares) < 0.35


def test_filters_keep_the_variance_of_every_pixel_and_lose_the_correlation_between_pixels():
    plain, scrambled = pair(lambda: ConvMixer(256, 2, kernel_size=5, patch_size=4), FilterCovariance())
    before, after = (model.blocks[1][0].fn[0].weight.detach().double().flatten(1) for model in (plain, scrambled))
    torch.testing.assert_close(before.var(0), after.var(0))
    neighbours = [torch.corrcoef(filters.T)[11, 12].item() for filters in (before, after)]
    assert neighbours[0] > 0.4
    assert abs(neighbours[1]) < 0.25  # 4 standard errors of 256 unrelated pairs


@pytest.mark.parametrize(
    ("model", "initializer"),
    [
        (ConvMixer(8, 2, kernel_size=3, patch_size=4), SpatialFilters("box")),  # all filters are equal
        (torch.nn.Linear(4, 4), Does(lambda weights: weights.write(weights.model.weight, torch.zeros(4, 4), "zeros"))),
    ],
)
def test_what_no_scrambling_changes_is_refused(model, initializer):
    with pytest.raises(StructuredInitError, match=r"^Scrambled: .* wrote nothing .* that scrambling changes"):
        initialize(model, Scrambled(initializer), seed=0)


def test_the_same_positions_are_those_of_the_initializer_and_nothing_else_is_written():
    plain, control, host = seeded(vit), seeded(vit), seeded(vit)
    initialize(plain, Impulse(solver="separable"), seed=1)
    report = initialize(control, SamePositions(Impulse(solver="separable")), seed=1)
    assert torch.equal(position_sites(plain)[0].value, position_sites(control)[0].value)
    assert [entry.names for entry in report.changed] == [("pos_embed",)]
    assert not torch.equal(position_sites(plain)[0].value, position_sites(host)[0].value)


def test_the_same_positions_of_a_composition_come_with_its_baseline():
    baseline, control = seeded(vit), seeded(vit)
    initialize(baseline, KaimingUniform(), seed=1)
    initialize(control, SamePositions(Compose([KaimingUniform(), Mimetic()])), seed=1)
    for one, other in zip(attention_sites(baseline), attention_sites(control), strict=True):
        assert torch.equal(one.query, other.query)
        assert torch.equal(one.output, other.output)


def test_positions_of_a_member_of_their_own_are_the_control_of_a_structure_without_any():
    arm, control = seeded(vit), seeded(vit)
    start = Compose([Mimetic(positions="keep"), Positions("codes")])
    initialize(arm, start, seed=1)
    report = initialize(control, SamePositions(start), seed=1)
    assert torch.equal(control.pos_embed, arm.pos_embed)
    assert [entry.names for entry in report.changed] == [("pos_embed",)]


def test_a_relative_bias_table_holds_no_positions_to_keep():
    with pytest.raises(StructuredInitError, match=r"SamePositions: PreviousToken.* writes no positions of this model"):
        initialize(seeded(t5), SamePositions(PreviousToken([1, -1])))


def entropies(model, inputs):
    """Mean entropy of every head of every layer, from the maps that a listener computes."""
    maps = capture_attention(model, inputs)
    return torch.stack([-(m.double() * m.double().clamp_min(1e-300).log()).sum(-1).mean((0, 2)) for m in maps.values()])


@pytest.mark.parametrize(
    ("make", "initializer", "inputs"),
    [
        (vit, Mimetic(), torch.randn(3, 3, 16, 16)),
        (unfused_vit, Mimetic(), torch.randn(3, 3, 16, 16)),
        (grouped_llama, PreviousToken(), torch.randint(11, (3, 12))),
    ],
    ids=["vit", "unfused_vit", "grouped_llama"],
)
def test_sharpened_has_the_entropy_of_each_head_and_the_directions_of_scrambled(make, initializer, inputs):
    plain, scrambled = pair(make, initializer)
    sharpened = seeded(make)
    report = initialize(sharpened, Sharpened(initializer), seed=1, batch=inputs)
    wanted, lost, reached = (entropies(each, inputs) for each in (plain, scrambled, sharpened))
    assert (lost - wanted).abs().max() > 0.1
    torch.testing.assert_close(reached, wanted, rtol=0, atol=0.02)
    assert all("as in what is scrambled" in note for note in report.notes.values() if "entropy" in note)
    for one, other in zip(attention_sites(scrambled), attention_sites(sharpened), strict=True):
        for before, after in zip(products(one)[0], products(other)[0], strict=True):
            factor = (before * after).sum() / before.square().sum()  # one number for each head
            torch.testing.assert_close(after, factor * before, rtol=1e-3, atol=1e-4 * after.abs().max().item())
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.output, other.output)


def test_sharpened_leaves_padding_out():
    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(16, num_heads=2)

        def forward(self, tokens, real):
            return self.block(tokens, attn_mask=real[:, None, None])

    real = torch.arange(12) < torch.arange(5, 13)[:, None]
    inputs = torch.randn(8, 12, 16, generator=torch.Generator().manual_seed(0)), real
    found = []
    for initializer in (arm := Mimetic(positions="keep"), Scrambled(arm), Sharpened(arm)):
        initialize(model := seeded(Padded), initializer, seed=1, batch=inputs)
        maps = capture_attention(model, inputs, max_samples=None)["block.attn"].double()
        rows = -(maps * maps.clamp_min(1e-30).log()).sum(-1).transpose(0, 1)
        found.append(rows[:, real].mean(-1))
    assert (found[1] - found[0]).abs().max() > 0.03
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-4)


def test_sharpened_says_in_one_line_what_it_cannot_do():
    images = torch.randn(2, 3, 16, 16)
    with pytest.raises(StructuredInitError, match=r"^Sharpened measures attention on real inputs: give batch=…$"):
        initialize(seeded(vit), Sharpened(Mimetic()))
    with pytest.raises(StructuredInitError, match=r"writes no queries and keys of this model$"):
        initialize(seeded(vit), Sharpened(Mimetic(query_key=False)), batch=images)
    with_idle = seeded(vit)
    with_idle.idle = Block(32, num_heads=2)
    with pytest.raises(StructuredInitError, match=r"the maps of 'idle.attn' are not seen, so they cannot be matched$"):
        initialize(with_idle, Sharpened(Mimetic()), batch=images)


def test_what_was_measured_of_a_state_space_is_measured_of_what_stands_there_after_scrambling():
    model = of_transformers("Mamba2Model", 0, **MAMBA)
    report = initialize(model, Scrambled(MimeticStateSpace()), seed=0)
    for site in state_space_sites(model):
        measured = report.measures[site.name]
        assert measured["‖CᵀB − I‖"][1] == pytest.approx(match_distance(site.B, site.C).mean().item())
        assert measured["scan output at token 256 (rms)"][1] == pytest.approx(scan_scale(site).late)


def test_the_centre_of_a_convolution_loses_its_place():
    convolution = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3))
    initialize(convolution, Scrambled(DeltaOrthogonal()))
    assert convolution[0].weight[..., 0, 0].any()


def test_attention_over_other_tokens_is_turned_too():
    initializer = Mimetic(cross=True, positions="keep")
    arm, control = pair(lambda: torch.nn.Transformer(32, 4, 1, 1, 64, batch_first=True), initializer, seed=0)
    both = zip(attention_sites(arm, cross=True), attention_sites(control, cross=True), strict=True)
    for aligned, turned in both:
        products = [(site.query @ site.key.mT).double() for site in (aligned, turned)]
        diagonals = [each.diagonal(dim1=1, dim2=2).mean() for each in products]
        assert diagonals[0] > 0.2 > 10 * diagonals[1].abs()
        torch.testing.assert_close(*map(torch.linalg.svdvals, products), rtol=1e-4, atol=1e-5)


def test_of_a_matrix_that_state_spaces_share_only_what_was_written_is_turned():
    def parts(initializer):
        model = of_transformers("Mamba2Model", 0, **MAMBA, vocab_size=11, expand=2)
        initialize(model, initializer, seed=0)
        return model.layers[0].mixer.in_proj.weight.detach().split([32, 32, 4, 4, 4])

    arm, control = parts(MimeticStateSpace()), parts(Scrambled(MimeticStateSpace()))
    for place in (0, 1, 2):  # the gate, what is scanned, and W_B
        assert torch.equal(arm[place], control[place])
    assert not torch.allclose(arm[3], control[3], atol=0.01)  # W_C
    torch.testing.assert_close(*map(torch.linalg.svdvals, (arm[3], control[3])), rtol=1e-4, atol=1e-5)
    assert not arm[4].any()
    assert not control[4].any()  # W_Δ
    with pytest.raises(StructuredInitError, match="wrote nothing in this model that scrambling changes"):
        parts(Scrambled(MimeticStateSpace(correlate=False)))


def test_what_a_baseline_wrote_of_a_state_space_is_not_turned():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 11}
    build = partial(of_transformers, "MambaModel", **sizes)
    arm, control = pair(build, Compose([MambaReference(), MimeticStateSpace(step=False)]))
    one, two = (model.layers[0].mixer for model in (arm, control))
    assert torch.equal(one.dt_proj.weight, two.dt_proj.weight)
    assert not torch.equal(one.x_proj.weight, two.x_proj.weight)
