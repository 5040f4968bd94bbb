"""Weights that a module computes: written through the parametrization's own inverse, or refused by name."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from structured_init import (
    Compose,
    Default,
    KaimingUniform,
    Mimetic,
    StructuredInitError,
    TruncatedNormal,
    attention_sites,
    initialize,
)

NAME = "0.weight"


def layer(wrap=None, kind=nn.Linear):
    torch.manual_seed(0)
    module = nn.Linear(6, 6) if kind is nn.Linear else nn.Conv1d(6, 6, 3)
    return nn.Sequential(wrap(module) if wrap else module)


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d])
def test_a_weight_normed_layer_has_the_weights_of_the_same_layer_without(kind):
    plain, normed = layer(kind=kind), layer(parametrizations.weight_norm, kind)
    initialize(plain, KaimingUniform(), seed=3)
    report = initialize(normed, KaimingUniform(), seed=3)
    torch.testing.assert_close(normed[0].weight, plain[0].weight, rtol=1e-5, atol=1e-7)
    assert torch.equal(normed[0].bias, plain[0].bias)
    originals = {"0.parametrizations.weight.original0", "0.parametrizations.weight.original1"}
    assert {name for entry in report.changed for name in entry.names} == originals | {"0.bias"}
    assert report.notes == {}


def test_wav2vec2_is_initialized_and_still_runs():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (4, 4), "num_feat_extract_layers": 2}
    config = transformers.Wav2Vec2Config(
        **sizes, **convolutions, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2
    )
    model = transformers.Wav2Vec2Model(config).eval()
    before = model.encoder.pos_conv_embed.conv.weight.detach().clone()
    initialize(model, KaimingUniform())
    after = model.encoder.pos_conv_embed.conv.weight.detach()
    assert not torch.equal(before, after)
    assert after.abs().max().item() == pytest.approx((8 * 4) ** -0.5, rel=0.05)
    assert model(torch.randn(1, 400)).last_hidden_state.isfinite().all()


def test_later_parts_see_what_earlier_ones_wrote_and_a_model_that_runs_in_between_has_it():
    class Reading(Default):
        def plan(self, weights, *, rng, batch=None):
            self.read = weights.read(weights.model[0].weight).clone()
            self.seen = weights.model(torch.eye(6)).detach() - weights.model[0].bias.detach()

    model, reading = layer(parametrizations.weight_norm), Reading()
    initialize(model, Compose([KaimingUniform(), reading]))
    torch.testing.assert_close(reading.read, model[0].weight.detach())
    torch.testing.assert_close(reading.seen, model[0].weight.detach().T)


def test_a_spectral_norm_keeps_its_constraint_belongs_to_the_new_weight_and_the_report_says_so():
    model = layer(parametrizations.spectral_norm)
    report = initialize(model, KaimingUniform(), seed=3)
    plain = layer()
    initialize(plain, KaimingUniform(), seed=3)
    wanted = plain[0].weight / torch.linalg.matrix_norm(plain[0].weight, ord=2)
    torch.testing.assert_close(model.eval()[0].weight, wanted, rtol=0.02, atol=2e-3)
    assert report.notes == {NAME: "SpectralNorm keeps the weight to a constraint: it is not what was asked for"}


def test_an_orthogonal_layer_stays_orthogonal_and_draws_nothing_from_the_global_state():
    model = layer(parametrizations.orthogonal)
    before = model[0].weight.detach().clone()
    state = torch.get_rng_state()
    report = initialize(model, KaimingUniform())
    assert torch.equal(torch.get_rng_state(), state)
    after = model[0].weight.detach()
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after @ after.T, torch.eye(6), atol=1e-5, rtol=0)
    assert "Orthogonal keeps the weight to a constraint" in report.notes[NAME]


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Halving(Doubled):
    def right_inverse(self, x):
        return x / 2


def test_any_parametrization_with_an_inverse_is_written_through_it():
    model, plain = layer(), layer()
    parametrize.register_parametrization(model[0], "weight", Halving())
    for each in (model, plain):
        initialize(each, KaimingUniform())
    torch.testing.assert_close(model[0].weight, plain[0].weight)


def refused(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StructuredInitError) as caught:
        initialize(model, KaimingUniform())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    return str(caught.value)


def test_one_without_an_inverse_is_refused_by_the_names_of_layer_and_parametrization():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    parametrize.register_parametrization(model[1], "weight", Doubled())
    message = "'1.weight' is computed by the parametrization Doubled and cannot be set: has no right_inverse"
    assert refused(model) == message


def test_one_that_refuses_the_value_is_refused_with_its_reason():
    model = nn.Sequential(nn.Linear(6, 6))
    parametrizations.orthogonal(model[0], orthogonal_map="cayley", use_trivialization=False)
    message = refused(model)
    assert message.startswith("'0.weight' is computed by the parametrization _Orthogonal and cannot be set: It is not")
    assert "\n" not in message


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("wrap", "hook"), [(torch.nn.utils.weight_norm, "WeightNorm"), (torch.nn.utils.spectral_norm, "SpectralNorm")]
)
def test_a_hook_of_the_older_kind_is_refused_by_name_with_the_way_out(wrap, hook):
    message = refused(layer(wrap))
    assert message.startswith(
        f"'0.weight' is computed by {hook} before each forward pass and cannot be set: use torch."
    )


def test_attention_behind_a_parametrization_is_written_like_any_other():
    def build():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8, vocab_size=13
        )
        return transformers.LlamaModel(config)

    plain, normed = build(), build()
    parametrizations.weight_norm(normed.layers[0].self_attn.q_proj)
    for model in (plain, normed):
        initialize(model, Mimetic(positions="keep"))
    torch.testing.assert_close(
        normed.layers[0].self_attn.q_proj.weight, plain.layers[0].self_attn.q_proj.weight, rtol=1e-5, atol=1e-6
    )
    with pytest.raises(StructuredInitError, match=r"of that shape is 'layers.0.self_attn.q_proj.weight', computed by "):
        _ = attention_sites(normed)[0].query


class Behind(nn.Module):
    """Attention of a class of one's own behind a linear layer, with weight-normed queries."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
            parametrizations.weight_norm(self.query)

        def forward(self, x):
            return self.out(nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)))

    def __init__(self):
        super().__init__()
        self.stem, self.attention = nn.Linear(6, 8), self.Attention()

    def forward(self, x):
        return self.attention(self.stem(x))


@pytest.mark.parametrize("before", [[], [KaimingUniform()], [TruncatedNormal()]])
def test_computed_weights_are_the_reason_whatever_an_earlier_part_has_asked_for(before):
    with pytest.raises(StructuredInitError, match=r"Attention has no layout: .* are computed \('attention.query'\)$"):
        initialize(Behind(), Compose([*before, Mimetic(positions="keep")]), batch=torch.randn(2, 5, 6))


def test_a_failure_later_on_undoes_what_was_written_through_the_inverse():
    class Failing(Default):
        def plan(self, weights, *, rng, batch=None):
            raise StructuredInitError("no")

    model = layer(parametrizations.weight_norm)
    before = model[0].weight.detach().clone()
    with pytest.raises(StructuredInitError, match=r"^no$"):
        initialize(model, Compose([KaimingUniform(), Failing()]))
    assert torch.equal(model[0].weight, before)


def test_a_plan_alone_changes_nothing():
    model = layer(parametrizations.spectral_norm).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert initialize(model, KaimingUniform(), dry_run=True).changed
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Mask(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, weight):
        return weight * self.mask

    def right_inverse(self, weight):
        return weight


def test_a_mask_is_left_alone_and_the_report_does_not_count_it():
    model = nn.Sequential(nn.Linear(8, 8))
    mask = (torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    parametrize.register_parametrization(model[0], "weight", Mask(mask))
    report = initialize(model, TruncatedNormal(), seed=0)
    assert torch.equal(model[0].parametrizations.weight[0].mask, mask)
    assert ((model[0].weight != 0).float() == mask).all()
    assert [entry.names[0] for entry in report.changed] == ["0.bias", "0.parametrizations.weight.original"]


def test_a_pruned_layer_is_refused_with_the_order_that_works():
    model = nn.Sequential(nn.Linear(8, 8))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    with pytest.raises(
        StructuredInitError, match=r"'0\.weight' is computed by L1Unstructured .*: initialize before you"
    ):
        initialize(model, TruncatedNormal(), seed=0)
