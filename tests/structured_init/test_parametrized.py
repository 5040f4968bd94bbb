"""Weights that a module computes: written through the parametrization's own inverse, or refused by name."""

from __future__ import annotations

import pytest
import torch
from hosts import of_transformers
from torch import nn
from torch.nn.utils import parametrizations, parametrize

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


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def test_one_without_an_inverse_is_refused_by_the_names_of_layer_and_parametrization():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    parametrize.register_parametrization(model[1], "weight", Doubled())
    said = "'1.weight' is computed by the parametrization Doubled and cannot be set: .* no attribute 'right_inverse'"
    with pytest.raises(StructuredInitError, match=said):
        initialize(model, KaimingUniform())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("wrap", "hook"), [(torch.nn.utils.weight_norm, "WeightNorm"), (torch.nn.utils.spectral_norm, "SpectralNorm")]
)
def test_a_hook_of_the_older_kind_is_refused_by_name_with_the_way_out(wrap, hook):
    said = f"'0.weight' is computed by {hook} before each forward pass .*: initialize the model before that"
    with pytest.raises(StructuredInitError, match=said):
        initialize(layer(wrap), KaimingUniform())


def test_attention_behind_a_parametrization_is_written_like_any_other():
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8}
    plain, normed = (of_transformers("LlamaModel", 0, **sizes, vocab_size=13) for _ in range(2))
    parametrizations.weight_norm(normed.layers[0].self_attn.q_proj)
    for model in (plain, normed):
        initialize(model, Mimetic(positions="keep"))
    torch.testing.assert_close(
        normed.layers[0].self_attn.q_proj.weight, plain.layers[0].self_attn.q_proj.weight, rtol=1e-5, atol=1e-6
    )
    with pytest.raises(StructuredInitError, match="computed by a parametrization can be read and set by initialize"):
        _ = attention_sites(normed)[0].query


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
