"""Mixing of each token with its neighbours, built into a network: what it computes, and whom it lets see whom."""

import copy

import pytest
import torch
from timm.optim import Muon
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lightning_modules import LanguageModel
from lightning_modules.networks import create_network
from lightning_modules.networks.token_mixing import (
    CAUSAL,
    NAME,
    DepthwiseConvolution,
    ShortConvolution,
    TokenShift,
    mix_tokens,
)
from lightning_modules.tasks.optim import build_optimizer
from structured_init import StructuredInitError, check_attention

TOKENS = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def gpt2(**more):
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=11, n_positions=8, **more)).eval()


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(intermediate_size=24, vocab_size=11, **SIZES)).eval()


def test_a_shift_takes_half_of_the_coordinates_from_the_token_before():
    out = TokenShift(6)(TOKENS)
    assert out[:, 0, :3].abs().max() == 0
    for t in range(1, 5):
        assert torch.equal(out[:, t, :3], TOKENS[:, t - 1, :3])
    assert torch.equal(out[..., 3:], TOKENS[..., 3:])


def test_a_short_convolution_adds_a_weighted_sum_of_the_last_four_tokens():
    mixing = ShortConvolution(6)
    weight, bias = mixing.convolution.weight[:, 0], mixing.convolution.bias
    for t in range(5):
        expected = TOKENS[:, t] + bias
        for back in range(min(t + 1, 4)):
            expected = expected + weight[:, 3 - back] * TOKENS[:, t - back]
        torch.testing.assert_close(mixing(TOKENS)[:, t], expected)


def mixed(network, kind):
    """Mix the tokens of a network, and let what starts at zero do something."""
    mix_tokens(network, kind)
    torch.manual_seed(1)
    for name, parameter in network.named_parameters():
        if NAME in name:
            torch.nn.init.normal_(parameter)
    return network


@pytest.mark.parametrize(("build", "kind"), [*((llama, kind) for kind in CAUSAL), (gpt2, "canon")])
def test_no_token_sees_a_later_one_and_the_copy_of_a_network_has_mixings_of_its_own(build, kind):
    network, plain = mixed(build(), kind), build()
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


@pytest.mark.parametrize("kind", ["canon", "short_convolution"])
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
    random = [name for name, value in drawn[0].items() if value.count_nonzero()]
    assert all(not torch.equal(drawn[2][name], drawn[0][name]) for name in random)


def test_muon_gets_nothing_of_a_mixing_and_gates_and_shares_do_not_decay():
    """Tables, gates and shares go to Adam in nanochat and modded-nanogpt, depthwise filters in MaxText."""
    decaying = {"smear": [], "bigram_hash": ["table.weight"], "value_embeddings": ["table.weight"]}
    decaying |= {"canon": ["convolution.weight"] * 7, "short_convolution": ["convolution.weight"], "token_shift": []}
    for kind in CAUSAL:
        task = LanguageModel("llama", {**SIZES, "num_hidden_layers": 1, "intermediate_size": 24}, token_mixing=kind)
        names = {id(each): name.split(f"{NAME}.")[1] for name, each in task.named_parameters() if NAME in name}
        groups = build_optimizer(lambda groups: Muon(groups, weight_decay=0.1), task).param_groups
        assert names.keys() <= {id(each) for group in groups if group.get("use_fallback") for each in group["params"]}
        decay = [names[id(p)] for g in groups if g["weight_decay"] for p in g["params"] if id(p) in names]
        assert decay == decaying[kind], kind


def test_a_depthwise_convolution_adds_a_weighted_sum_of_the_patches_around_and_leaves_what_stands_before_the_grid():
    mixing = DepthwiseConvolution(6, (2, 3), prefix_tokens=1)
    weight, bias = mixing.convolution.weight[:, 0], mixing.convolution.bias
    tokens = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1))
    out, grid = mixing(tokens), tokens[:, 1:].unflatten(1, (2, 3))
    assert torch.equal(out[:, 0], tokens[:, 0])
    for row in range(2):
        for column in range(3):
            expected = grid[:, row, column] + bias
            for y in range(max(row - 1, 0), min(row + 2, 2)):
                for x in range(max(column - 1, 0), min(column + 2, 3)):
                    expected = expected + weight[:, y - row + 1, x - column + 1] * grid[:, y, x]
            torch.testing.assert_close(out[:, 1 + 3 * row + column], expected)


def test_a_vision_transformer_is_built_with_a_convolution_before_each_attention():
    network = create_network("vit_nano_patch2_8", token_mixing="depthwise_convolution", image_size=8, in_channels=1)
    mixings = [module for module in network.modules() if isinstance(module, DepthwiseConvolution)]
    assert [mixing.grid for mixing in mixings] == [(4, 4)] * 4
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    errors = check_attention(network, images)
    assert max(max(each) for each in errors.values()) < 1e-4
    before = network(images)
    torch.nn.init.zeros_(mixings[0].convolution.weight)
    assert not torch.allclose(network(images), before)


def test_what_cannot_be_mixed_is_said_in_a_line():
    with pytest.raises(StructuredInitError, match=r"no token_mixing 'token_shfit'.*token_shift"):
        LanguageModel("gpt2", SIZES, token_mixing="token_shfit")
    with pytest.raises(StructuredInitError, match=r"'depthwise_convolution': 'transformer.h.0.attn' sees a sequence"):
        LanguageModel("gpt2", SIZES, token_mixing="depthwise_convolution")
    with pytest.raises(StructuredInitError, match=r"sees a grid of patches, which takes depthwise_convolution"):
        create_network("vit_nano_patch2_8", token_mixing="canon", image_size=8)
