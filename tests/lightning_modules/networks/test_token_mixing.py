"""Mixing of each token with its neighbours, built into a network: what it computes, and whom it lets see whom."""

import copy

import pytest
import torch
from timm.optim import Muon
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lightning_modules import LanguageModel, SequenceRecall
from lightning_modules.networks import create_network
from lightning_modules.networks.token_mixing import KINDS, NAME, ShortConvolution, mix_tokens
from lightning_modules.tasks.optim import build_optimizer
from structured_init import StructuredInitError

TOKENS = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def gpt2(**more):
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=11, n_positions=8, **more)).eval()


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(intermediate_size=24, vocab_size=11, **SIZES)).eval()


def test_a_short_convolution_adds_a_weighted_sum_of_the_last_four_tokens():
    mixing = ShortConvolution(6)
    weight, bias = mixing.convolution.weight[:, 0], mixing.convolution.bias
    for t in range(5):
        expected = TOKENS[:, t] + bias
        for back in range(min(t + 1, 4)):
            expected = expected + weight[:, 3 - back] * TOKENS[:, t - back]
        torch.testing.assert_close(mixing(TOKENS)[:, t], expected)


@pytest.mark.parametrize(("build", "kind"), [*((llama, kind) for kind in KINDS), (gpt2, "canon")])
def test_no_token_sees_a_later_one_and_the_copy_of_a_network_has_mixings_of_its_own(build, kind):
    network, plain = build(), build()
    mix_tokens(network, kind)
    tokens = torch.arange(8)[None] % 11
    other = tokens.clone()
    other[0, 5] = 10
    with torch.no_grad():
        one, two = network(tokens).logits, network(other).logits
        assert not torch.allclose(one, plain(tokens).logits, atol=1e-4)
        torch.testing.assert_close(one[:, :5], two[:, :5])
        twin = copy.deepcopy(network)
        for parameter in network.parameters():
            parameter.zero_()
        network(other)
        torch.testing.assert_close(twin(tokens).logits, one)


def causal_sum(module, tokens):
    """x_t + Σ w_s x_{t−s} over the last four tokens, one channel at a time."""
    (weight,) = module.get_submodule(NAME).parameters()
    shifted = [torch.nn.functional.pad(tokens, (0, 0, back, 0))[:, : tokens.shape[1]] for back in range(4)]
    return tokens + sum(weight[:, 0, 3 - back] * each for back, each in enumerate(shifted))


def test_canon_layers_stand_before_attention_on_its_projections_before_the_mlp_and_before_its_activation():
    network = llama()
    mix_tokens(network, "canon")
    attention, mlp = network.model.layers[0].self_attn, network.model.layers[0].mlp
    seen = {}
    for name in ("q_proj", "k_proj", "v_proj"):
        attention.get_submodule(name).register_forward_hook(lambda module, args, output: seen.update({module: output}))
    norms = network.model.layers[0].input_layernorm, network.model.layers[0].post_attention_layernorm
    for module in (*norms, mlp):
        module.register_forward_hook(lambda module, args, output: seen.update({module: output}))
    network(torch.tensor([[1, 5, 9, 2, 2]]))
    for name in ("q_proj", "k_proj", "v_proj"):
        layer = attention.get_submodule(name)
        read = causal_sum(attention, seen[norms[0]])
        torch.testing.assert_close(seen[layer], causal_sum(layer, read @ layer.weight.mT))
    read = causal_sum(mlp, seen[norms[1]])
    gate, up = (causal_sum(each, read @ each.weight.mT) for each in (mlp.gate_proj, mlp.up_proj))
    torch.testing.assert_close(seen[mlp], (torch.nn.functional.silu(gate) * up) @ mlp.down_proj.weight.mT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixing_changes_neither_the_network_around_it_nor_what_is_drawn_later(kind):
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(LlamaConfig(intermediate_size=24, vocab_size=11, **SIZES))
        plain = copy.deepcopy(network.state_dict())
        state = torch.get_rng_state()
        mix_tokens(network, kind)
        assert torch.equal(torch.get_rng_state(), state)
        own = {name: value for name, value in network.state_dict().items() if NAME in name}
        assert all(torch.equal(network.state_dict()[name], value) for name, value in plain.items())
        assert len(network.state_dict()) == len(plain) + len(own)
        drawn.append(own)
    assert all(torch.equal(drawn[1][name], value) for name, value in drawn[0].items())
    assert all(not torch.equal(drawn[2][name], value) for name, value in drawn[0].items())


@pytest.mark.parametrize(("kind", "filters"), [("canon", 7), ("short_convolution", 1)])
def test_muon_gets_nothing_of_a_mixing_whose_filters_alone_decay(kind, filters):
    """Adam has depthwise filters in MaxText."""
    task = LanguageModel("llama", {**SIZES, "num_hidden_layers": 1, "intermediate_size": 24}, token_mixing=kind)
    names = {id(each): name.split(f"{NAME}.")[1] for name, each in task.named_parameters() if NAME in name}
    groups = build_optimizer(lambda groups: Muon(groups, weight_decay=0.1), task).param_groups
    assert names.keys() <= {id(each) for group in groups if group.get("use_fallback") for each in group["params"]}
    decay = [names[id(p)] for g in groups if g["weight_decay"] for p in g["params"] if id(p) in names]
    assert decay == ["convolution.weight"] * filters


def test_what_cannot_be_mixed_is_said_in_a_line():
    with pytest.raises(StructuredInitError, match="unknown token_mixing 'cannon': did you mean 'canon'"):
        LanguageModel("gpt2", SIZES, token_mixing="cannon")
    with pytest.raises(StructuredInitError, match=r"'blocks\.0\.attn' sees a grid of patches"):
        mix_tokens(create_network("vit_nano_patch2_8", image_size=8), "canon")
    with pytest.raises(StructuredInitError, match="Mamba2ForCausalLM has no attention layer that is known"):
        SequenceRecall("mamba2", token_mixing="canon")
