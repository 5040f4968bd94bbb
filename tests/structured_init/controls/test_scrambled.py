"""Scrambled keeps sizes and destroys alignment; SamePositions keeps positions alone; RandomOffset looks elsewhere."""

from __future__ import annotations

import re
import statistics

import pytest
import timm
import torch
import torch.nn.functional as functional
from timm.models.convmixer import ConvMixer
from timm.models.vision_transformer import Block, VisionTransformer
from transformers import (
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    Mamba2Config,
    Mamba2Model,
    MambaConfig,
    MambaModel,
    Qwen2Config,
    Qwen2Model,
    T5Config,
    T5EncoderModel,
)

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
    RandomOffset,
    SamePositions,
    Scrambled,
    Sharpened,
    SpatialFilters,
    StructuredInitError,
    WeightSelection,
    attention_sites,
    initialize,
    position_sites,
    state_space_sites,
)
from structured_init.analysis import capture_attention
from structured_init.hosts.layout import projection_bias
from structured_init.overlay import Weights
from structured_init.ssm.mimetic import match_distance, scan_scale

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 11}
MAMBA = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1}
TEXT = {**SIZES, "max_position_embeddings": 24, "pad_token_id": 0}


def vit():
    return VisionTransformer(img_size=16, patch_size=2, embed_dim=32, depth=2, num_heads=2, num_classes=3)


def gpt2():
    return GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, vocab_size=11))


def grouped_llama():
    return LlamaModel(LlamaConfig(**TEXT, num_key_value_heads=2))


def built(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def pair(make, initializer: Initializer):
    """A host with an initialization, and one with the same scrambled."""
    plain, scrambled = built(make), built(make)
    initialize(plain, initializer, seed=1)
    initialize(scrambled, Scrambled(initializer), seed=1)
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


@pytest.mark.parametrize("make", [vit, gpt2, grouped_llama])
def test_every_product_keeps_its_singular_values_and_loses_its_diagonal(make):
    plain, scrambled = pair(make, Mimetic(positions="keep"))
    for one, other in zip(attention_sites(plain), attention_sites(scrambled), strict=True):
        for before, after in zip(products(one), products(other), strict=True):
            singular = (torch.linalg.svdvals(each) for each in (before, after))
            torch.testing.assert_close(*singular, rtol=1e-4, atol=1e-5)
        for part in ("query", "key", "value", "output"):
            before, after = (torch.linalg.svdvals(getattr(site, part).double()) for site in (one, other))
            torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-5)
        diagonals = [products(site)[0].diagonal(dim1=1, dim2=2).mean().item() for site in (one, other)]
        assert diagonals[0] > 0.1
        assert abs(diagonals[1]) < diagonals[0] / 4


def test_the_product_of_a_whole_layer_keeps_its_singular_values_too():
    plain, scrambled = pair(vit, Mimetic(positions="keep"))
    for one, other in zip(attention_sites(plain), attention_sites(scrambled), strict=True):
        before, after = (torch.linalg.svdvals(products(site)[1].sum(0)) for site in (one, other))
        torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)


def test_positions_and_what_a_baseline_wrote_are_as_in_what_is_scrambled():
    plain, scrambled = pair(vit, Compose([KaimingUniform(), Mimetic()]))
    attention = {name for name, _ in plain.named_parameters() if ".attn." in name and name.endswith("weight")}
    differing = {n for n, p in plain.named_parameters() if not torch.equal(p, dict(scrambled.named_parameters())[n])}
    assert differing == attention


def test_a_part_that_is_off_stays_as_the_initializer_wrote_it():
    plain, scrambled = built(vit), built(vit)
    initialize(plain, Mimetic(), seed=1)
    initialize(scrambled, Scrambled(Mimetic(), value_output=False), seed=1)
    for one, other in zip(attention_sites(plain), attention_sites(scrambled), strict=True):
        assert torch.equal(one.value, other.value)
        assert not torch.equal(one.query, other.query)


def test_values_that_were_not_written_are_not_touched():
    host, (_, scrambled) = built(vit), pair(vit, Mimetic(value_output=False))
    for one, other in zip(attention_sites(host), attention_sites(scrambled), strict=True):
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.output, other.output)


def qwen2():
    return Qwen2Model(Qwen2Config(**TEXT, num_key_value_heads=4))


def t5():
    config = T5Config(vocab_size=11, d_model=32, d_kv=8, d_ff=16, num_layers=2, num_heads=4)
    return T5EncoderModel(config)


@pytest.mark.parametrize("make", [gpt2, grouped_llama, qwen2, t5])
def test_heads_that_looked_at_the_token_before_do_so_no_longer(make):
    tokens = torch.randint(1, 11, (2, 16), generator=torch.Generator().manual_seed(0))
    looking, model, shares = PreviousToken([1, -1] if make is t5 else [1, 2]), built(make), []
    initialize(model, looking, seed=0)
    assert previous_share(model, tokens) > 0.6
    for seed in range(3):  # one may peak there by chance
        model = built(make)
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


def test_what_is_true_of_the_scrambled_too_is_said_once():
    def convnext():
        return timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8), ls_init_value=1e-6)

    plain, scrambled = (initialize(convnext(), each) for each in (FilterCovariance(), Scrambled(FilterCovariance())))
    assert scrambled.notes == plain.notes


class Zeros(Initializer):
    """Writes zeros into a layer."""

    def plan(self, weights, *, rng, batch=None):
        weights.write(weights.model.weight, torch.zeros(4, 4), "Zeros")


@pytest.mark.parametrize(
    ("model", "initializer"),
    [
        (ConvMixer(8, 2, kernel_size=3, patch_size=4), SpatialFilters("box")),  # all filters are equal
        (torch.nn.Linear(4, 4), Zeros()),
    ],
)
def test_what_no_scrambling_changes_is_refused(model, initializer):
    with pytest.raises(
        StructuredInitError, match=r"^Scrambled: .* wrote nothing in this model that scrambling changes"
    ):
        initialize(model, Scrambled(initializer), seed=0)


def test_the_same_positions_are_those_of_the_initializer_and_nothing_else_is_written():
    plain, control, host = built(vit), built(vit), built(vit)
    initialize(plain, Impulse(solver="separable"), seed=1)
    report = initialize(control, SamePositions(Impulse(solver="separable")), seed=1)
    assert torch.equal(position_sites(plain)[0].value, position_sites(control)[0].value)
    assert [entry.names for entry in report.changed] == [("pos_embed",)]
    assert not torch.equal(position_sites(plain)[0].value, position_sites(host)[0].value)


def test_the_same_positions_of_a_composition_come_with_its_baseline():
    baseline, control = built(vit), built(vit)
    initialize(baseline, KaimingUniform(), seed=1)
    initialize(control, SamePositions(Compose([KaimingUniform(), Mimetic()])), seed=1)
    for one, other in zip(attention_sites(baseline), attention_sites(control), strict=True):
        assert torch.equal(one.query, other.query)
        assert torch.equal(one.output, other.output)


def test_positions_of_a_member_of_their_own_are_the_control_of_a_structure_without_any():
    arm, control = built(vit), built(vit)
    start = Compose([Mimetic(positions="keep"), Positions("codes")])
    initialize(arm, start, seed=1)
    report = initialize(control, SamePositions(start), seed=1)
    assert torch.equal(control.pos_embed, arm.pos_embed)
    assert [entry.names for entry in report.changed] == [("pos_embed",)]


def test_a_relative_bias_table_holds_no_positions_to_keep():
    with pytest.raises(StructuredInitError, match=r"SamePositions: PreviousToken.* writes no positions of this model"):
        initialize(built(t5), SamePositions(PreviousToken([1, -1])))


def entropies(model, inputs):
    """Mean entropy of every head of every layer, from the maps that a listener computes."""
    maps = capture_attention(model, inputs)
    return torch.stack([-(m.double() * m.double().clamp_min(1e-300).log()).sum(-1).mean((0, 2)) for m in maps.values()])


@pytest.mark.parametrize(
    ("make", "initializer", "inputs"),
    [
        (vit, Mimetic(), torch.randn(3, 3, 16, 16)),
        (gpt2, PreviousToken(), torch.randint(11, (3, 12))),
        (grouped_llama, PreviousToken(), torch.randint(11, (3, 12))),
    ],
    ids=["vit", "gpt2", "grouped_llama"],
)
def test_sharpened_has_the_entropy_of_each_head_and_the_directions_of_scrambled(make, initializer, inputs):
    plain, scrambled = pair(make, initializer)
    sharpened = built(make)
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


class Filtered(torch.nn.Module):
    """Attention behind depthwise filters."""

    def __init__(self):
        super().__init__()
        self.filters = torch.nn.Conv1d(16, 16, 5, padding=2, groups=16)
        self.layer = Block(16, 2)

    def forward(self, x):
        return self.layer(self.filters(x).mT)


def test_sharpened_has_the_entropy_of_the_arm_behind_what_else_it_wrote():
    series = torch.randn(8, 16, 24, generator=torch.Generator().manual_seed(0)).cumsum(-1)
    arm = Compose([FilterCovariance(), Mimetic(positions="keep")])
    plain, scrambled = pair(Filtered, arm)
    sharpened = built(Filtered)
    initialize(sharpened, Sharpened(arm), seed=1, batch=series)
    assert torch.equal(sharpened.filters.weight, scrambled.filters.weight)
    wanted, behind, reached = (entropies(each, series) for each in (plain, scrambled, sharpened))
    assert (behind - wanted).abs().max() > 0.03
    torch.testing.assert_close(reached, wanted, rtol=0, atol=0.01)


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
        initialize(model := built(Padded), initializer, seed=1, batch=inputs)
        maps = capture_attention(model, inputs, max_samples=None)["block.attn"].double()
        rows = -(maps * maps.clamp_min(1e-30).log()).sum(-1).transpose(0, 1)
        found.append(rows[:, real].mean(-1))
    assert (found[1] - found[0]).abs().max() > 0.03
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=1e-4)


def test_sharpened_says_in_one_line_what_it_cannot_do():
    images = torch.randn(2, 3, 16, 16)
    with pytest.raises(
        StructuredInitError, match=r"^Sharpened measures attention on real inputs: give batch=… or batches=…$"
    ):
        initialize(built(vit), Sharpened(Mimetic()))
    with pytest.raises(StructuredInitError, match=r"writes no queries and keys of this model$"):
        initialize(built(vit), Sharpened(Mimetic(query_key=False)), batch=images)
    by_hand = built(vit)
    for block in by_hand.blocks:
        block.attn.fused_attn = False
    with pytest.raises(StructuredInitError, match=r"F.scaled_dot_product_attention, or has it computed by the mod"):
        initialize(by_hand, Sharpened(Mimetic()), batch=images)


def peaks(model, inputs, columns=0):
    """How far each head of the first layer looks, from a query in the middle: (rows, columns), or tokens back."""
    first = next(iter(capture_attention(model, inputs).values())).double().mean(0)
    prefix = first.shape[-1] - columns**2 if columns else 0  # a class token stands first
    maps = first[:, prefix:, prefix:]
    query = maps.shape[-1] - 1 if not columns else columns * (columns // 2) + columns // 2
    found = maps[:, query].argmax(-1)
    return {tuple(divmod(int(at), columns)) if columns else query - int(at) for at in found}


def test_heads_of_an_impulse_look_outside_of_its_kernel_as_sharply():
    images, sharp = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)), {}
    impulse = Impulse(solver="separable")
    for control in (impulse, RandomOffset(impulse), Scrambled(impulse)):
        model = built(vit)
        initialize(model, control, seed=1)
        sharp[type(control)] = entropies(model, images)[0].mean()
        distances = {max(abs(row - 4), abs(column - 4)) for row, column in peaks(model, images, columns=8)}
        if control is impulse:
            assert max(distances) <= 1
        elif isinstance(control, RandomOffset):
            assert min(distances) >= 2
    assert sharp[RandomOffset] - sharp[Impulse] < 0.5 * (sharp[Scrambled] - sharp[Impulse])


@pytest.mark.parametrize("make", [gpt2, grouped_llama])
def test_heads_that_looked_at_the_tokens_before_look_further_back(make):
    tokens = torch.randint(1, 11, (4, 24), generator=torch.Generator().manual_seed(0))
    looking, model, plain = PreviousToken(context=24), built(make), built(make)
    initialize(plain, looking, seed=1)
    initialize(model, RandomOffset(looking), seed=1)
    assert peaks(plain, tokens) == {1, 2, 3, 4}
    assert min(peaks(model, tokens)) > 4
    assert max(peaks(model, tokens)) <= 12  # at most half of the tokens
    initialize(model, RandomOffset(PreviousToken()), seed=1, batch=tokens)  # of those that the batch has
    assert max(peaks(model, tokens)) <= 12
    for one, other in zip(attention_sites(plain), attention_sites(model), strict=True):
        assert torch.equal(one.value, other.value)


@pytest.mark.parametrize("seed", range(4))
def test_heads_that_look_elsewhere_keep_the_size_of_positions(seed):
    plain, control = built(gpt2), built(gpt2)
    initialize(plain, PreviousToken(context=24), seed=seed)
    initialize(control, RandomOffset(PreviousToken(context=24)), seed=seed)
    assert torch.equal(position_sites(plain)[0].value, position_sites(control)[0].value)


def test_what_is_composed_with_heads_that_look_elsewhere_is_as_it_was():
    both = Compose([Impulse(solver="separable"), Mimetic(query_key=False, positions="keep")])
    plain, control = built(vit), built(vit)
    initialize(plain, both, seed=1)
    initialize(control, RandomOffset(both), seed=1)
    assert torch.equal(position_sites(plain)[0].value, position_sites(control)[0].value)
    for one, other in zip(attention_sites(plain), attention_sites(control), strict=True):
        assert torch.equal(one.value, other.value)
        assert not torch.equal(one.query, other.query)


def test_random_offsets_say_in_one_line_what_they_cannot_do():
    with pytest.raises(StructuredInitError, match=r"^RandomOffset: Mimetic\(.*\) has no heads that look at off"):
        RandomOffset(Mimetic())
    small = VisionTransformer(img_size=6, patch_size=2, embed_dim=32, depth=1, num_heads=2)  # 3×3 tokens
    with pytest.raises(StructuredInitError, match=r"^RandomOffset: the tokens of 'blocks.0.attn' leave no other"):
        initialize(small, RandomOffset(Impulse()))


def test_what_was_measured_of_a_state_space_is_measured_of_what_stands_there_after_scrambling():
    model = built(lambda: Mamba2Model(Mamba2Config(**MAMBA)))
    report = initialize(model, Scrambled(MimeticStateSpace()), seed=0)
    for site in state_space_sites(model):
        measured = report.measures[site.name]
        assert measured["‖CᵀB − I‖"][1] == pytest.approx(match_distance(site.B, site.C).mean().item())
        assert measured["scan output at token 256 (rms)"][1] == pytest.approx(scan_scale(site).late)


def test_random_rotations_are_only_drawn_again_and_refused():
    with pytest.raises(StructuredInitError, match="wrote nothing in this model that scrambling changes"):
        initialize(
            torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)), Scrambled(DeltaOrthogonal(gain=2.0))
        )
    convolution = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3))  # whose centre loses its place
    initialize(convolution, Scrambled(DeltaOrthogonal()))
    assert convolution[0].weight[..., 0, 0].any()


def test_attention_over_other_tokens_is_turned_too():
    def build():
        torch.manual_seed(0)
        return torch.nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    arm, control, initializer = build(), build(), Mimetic(cross=True, positions="keep")
    initialize(arm, initializer, seed=0)
    initialize(control, Scrambled(initializer), seed=0)
    both = zip(attention_sites(arm, cross=True), attention_sites(control, cross=True), strict=True)
    for aligned, turned in both:
        products = [(site.query @ site.key.mT).double() for site in (aligned, turned)]
        diagonals = [each.diagonal(dim1=1, dim2=2).mean() for each in products]
        assert diagonals[0] > 0.2 > 10 * diagonals[1].abs()
        torch.testing.assert_close(*map(torch.linalg.svdvals, products), rtol=1e-4, atol=1e-5)


def test_of_a_matrix_that_state_spaces_share_only_what_was_written_is_turned():
    def parts(initializer):
        torch.manual_seed(0)
        model = Mamba2Model(Mamba2Config(**MAMBA, vocab_size=11, expand=2))
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


def test_what_a_baseline_wrote_of_a_state_space_is_not_turned_and_a_matrix_written_whole_is():
    def mamba():
        torch.manual_seed(0)
        return MambaModel(MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, vocab_size=11))

    arm, control = mamba(), mamba()
    both = Compose([MambaReference(), MimeticStateSpace(input_dependent_step=True)])
    initialize(arm, both, seed=0)
    initialize(control, Scrambled(both), seed=0)
    one, two = (model.layers[0].mixer for model in (arm, control))
    assert torch.equal(one.dt_proj.weight, two.dt_proj.weight)
    assert not torch.equal(one.x_proj.weight, two.x_proj.weight)

    def small():
        torch.manual_seed(1)
        return Mamba2Model(Mamba2Config(**MAMBA, vocab_size=11, expand=2))

    torch.manual_seed(0)
    teacher = Mamba2Model(Mamba2Config(**{**MAMBA, "hidden_size": 32, "num_heads": 8}, vocab_size=11, expand=2))
    arm, control = small(), small()
    both = Compose([WeightSelection(teacher), MimeticStateSpace()])
    initialize(arm, both, seed=0)
    initialize(control, Scrambled(both), seed=0)
    gates = [model.layers[0].mixer.in_proj.weight[:32] for model in (arm, control)]
    assert not torch.allclose(*gates, atol=0.01)


def test_heads_of_every_layer_that_is_written_look_elsewhere_in_the_control():
    def build():
        torch.manual_seed(0)
        return timm.models.SwinTransformer(
            img_size=16, patch_size=2, window_size=4, embed_dim=16, depths=(1, 1), num_heads=(2, 4), num_classes=2
        )

    arm, control, host, other = build(), build(), build(), PreviousToken(where="layers.*")
    initialize(arm, other, seed=0)
    report = initialize(control, RandomOffset(other), seed=0)
    for stage in range(2):
        tables = [model.layers[stage].blocks[0].attn.relative_position_bias_table for model in (arm, control, host)]
        written = [(each != tables[2]).any(dim=0).sum().item() for each in tables[:2]]
        assert written == [tables[2].shape[1]] * 2
        best = [each.argmax(dim=0).tolist() for each in tables[:2]]
        assert not {*best[0]} & {*best[1]}
    assert report.warnings == []


class Heads(torch.nn.Module):
    """A layer whose heads are modules of their own, or one head without an axis for it; some tokens may be padding."""

    def __init__(self, count):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(32, 96 // count) for _ in range(count))
        self.out, self.mask = torch.nn.Linear(32, 32), None

    def forward(self, x, **_):
        each = (functional.scaled_dot_product_attention(*part(x).chunk(3, -1), self.mask) for part in self.parts)
        return self.out(torch.nan_to_num(torch.cat(list(each), -1)))


class Table(torch.nn.Module):
    """A small module that holds positions."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 32))

    def forward(self, x):
        return x + self.weight


class Placed(torch.nn.Module):
    """The small ViT with such a module."""

    image_size, patch_size = 16, 2

    def __init__(self):
        super().__init__()
        host = vit()
        self.patch_embed, self.pos_embed, self.blocks = host.patch_embed, Table(), host.blocks

    def forward(self, images):
        return self.blocks(self.pos_embed(self.patch_embed(images)))


def with_heads(count, runs=1):
    """The small ViT with such heads; its blocks may run several times."""
    model = built(vit)
    for block in model.blocks:
        block.attn = Heads(count)
    if runs > 1:
        model.blocks = torch.nn.Sequential(Again(model.blocks, runs))
    return model


class Again(torch.nn.Module):
    """Layers that run several times."""

    def __init__(self, layers, runs):
        super().__init__()
        self.layers, self.runs = layers, runs

    def forward(self, x):
        for _ in range(self.runs):
            x = self.layers(x)
        return x


IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_heads_that_are_modules_of_their_own_are_turned_and_have_their_biases():
    arm, control = built(lambda: with_heads(2)), built(lambda: with_heads(2))
    initialize(arm, Mimetic(), seed=0, batch=IMAGES)
    initialize(control, Scrambled(Mimetic()), seed=0, batch=IMAGES)
    weights = Weights(arm, batch=IMAGES)
    for one, two in zip(attention_sites(weights), attention_sites(control, batch=IMAGES), strict=True):
        before, after = (torch.linalg.svdvals(site.query.double()) for site in (one, two))
        torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)
        bias = projection_bias(one.module, one.layout.key).get(weights)
        assert torch.equal(bias, torch.stack([part.bias[16:32] for part in one.module.parts]))
    assert not torch.equal(arm.blocks[0].attn.parts[0].weight, control.blocks[0].attn.parts[0].weight)
    with pytest.raises(StructuredInitError, match=r"queries of shape \(3, 65, 16\), not \(batch, 2 heads, tokens"):
        initialize(built(lambda: with_heads(2)), Sharpened(Mimetic()), batch=IMAGES)


@pytest.mark.parametrize("runs", [1, 3])
def test_one_head_without_an_axis_is_sharpened_over_all_its_runs(runs):
    labelled = {"batch": IMAGES, "batches": [(IMAGES, torch.zeros(3))]}
    report = initialize(built(lambda: with_heads(1, runs)), Sharpened(Mimetic()), **labelled)
    said = [note for note in report.notes.values() if "nats, as in what is scrambled" in note]
    assert len(said) == 2
    plain = built(lambda: with_heads(1, runs))
    initialize(plain, Mimetic(), batch=IMAGES)
    found = capture_attention(plain, IMAGES)
    first = [each.double() for name, each in found.items() if "0.attn" in name]
    assert len(first) == runs
    mean = sum(-(each * each.clamp_min(1e-300).log()).sum(-1).mean() for each in first) / runs
    assert any(f"entropy {mean:.3g} nats" in note for note in said)


class Masked(torch.nn.Module):
    """Tokens by number and a mask over them, in one of the ways to write that."""

    def __init__(self):
        super().__init__()
        self.words, self.blocks, self.masks = torch.nn.Embedding(9, 32), vit().blocks, []

    def run(self, ids, mask=None):
        self.masks.append(mask)
        return self.blocks(self.words(ids))


class Optional(Masked):
    def forward(self, ids, mask=None, other=None):
        return self.run(ids, mask)


class Starred(Masked):
    def forward(self, *args):
        return self.run(args[0], args[1])


class ByPlace(Masked):
    def forward(self, ids, mask, /):
        return self.run(ids, mask)


@pytest.mark.parametrize("kind", [Optional, Starred, ByPlace])
def test_a_mask_of_a_loader_is_given_to_the_model_and_its_labels_are_not(kind):
    ids, mask = torch.randint(2, 9, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    ids[0, 0] = 8
    model = built(kind)
    initialize(model, Sharpened(Mimetic(positions="keep")), batch=(ids, mask), batches=[(ids, mask, ids)])
    assert all(torch.equal(each, mask) for each in model.masks)
    if kind is Optional:
        model = built(kind)
        initialize(model, Sharpened(Mimetic(positions="keep")), batch=ids, batches=[(ids, ids)])
        assert all(each is None for each in model.masks)


def test_padding_that_sees_no_token_does_not_count_and_what_is_not_finite_is_one_line():
    model = built(lambda: with_heads(1))
    seen = torch.ones(65, 65, dtype=torch.bool).tril()
    seen[:9] = False
    for block in model.blocks:
        block.attn.mask = seen
    report = initialize(model, Sharpened(Mimetic(positions="keep")), batch=IMAGES)
    said = [re.search(r"entropy ([\d.]+) nats", note) for note in report.notes.values()]
    assert len(said) == 2
    assert all(0 < float(each[1]) < 4.2 for each in said)
    with pytest.raises(StructuredInitError, match=r"^Sharpened: the attention of 'blocks.0.attn' is not finite"):
        initialize(built(vit), Sharpened(Mimetic()), batches=[float("nan") * IMAGES])


def test_positions_in_a_module_of_their_own_are_not_turned():
    plain, scrambled = pair(Placed, Mimetic())
    assert torch.equal(plain.pos_embed.weight, scrambled.pos_embed.weight)
    assert not torch.equal(plain.pos_embed.weight, built(Placed).pos_embed.weight)
    assert not torch.equal(plain.blocks[0].attn.qkv.weight, scrambled.blocks[0].attn.qkv.weight)
