"""A token shift or a short convolution before attention: what it computes, and whom it lets see whom."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lightning_modules import LanguageModel
from lightning_modules.networks import create_network
from lightning_modules.networks.token_mixing import (
    SEQUENCES,
    DepthwiseConvolution,
    ShortConvolution,
    TokenShift,
    mix_before_attention,
)
from structured_init import StructuredInitError, check_attention

TOKENS = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def gpt2(**more):
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=11, n_positions=8, **more)).eval()


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(intermediate_size=16, vocab_size=11, **SIZES)).eval()


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


@pytest.mark.parametrize("kind", SEQUENCES)
@pytest.mark.parametrize("build", [gpt2, llama])
def test_no_token_sees_a_later_one_and_the_copy_of_a_network_has_mixings_of_its_own(build, kind):
    network, plain = build(), build()
    mix_before_attention(network, kind)
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
        torch.testing.assert_close(twin(tokens).logits, one)


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


def test_layouts_hold_behind_a_mixing():
    network = gpt2()
    mix_before_attention(network, "short_convolution")
    errors = check_attention(network, torch.arange(8)[None])
    assert len(errors) == 2
    assert max(max(each) for each in errors.values()) < 1e-4


def test_what_cannot_be_mixed_is_said_in_a_line():
    with pytest.raises(StructuredInitError, match=r"no token_mixing 'token_shfit'.*token_shift"):
        LanguageModel("gpt2", SIZES, token_mixing="token_shfit")
    with pytest.raises(StructuredInitError, match="token_mixing is for causal models"):
        LanguageModel("bert", SIZES, objective="masked", token_mixing="token_shift")
    with pytest.raises(StructuredInitError, match=r"'depthwise_convolution': 'transformer.h.0.attn' sees a sequence"):
        LanguageModel("gpt2", SIZES, token_mixing="depthwise_convolution")
    with pytest.raises(StructuredInitError, match=r"sees a grid of patches, which takes depthwise_convolution"):
        create_network("vit_nano_patch2_8", token_mixing="token_shift", image_size=8)
    with pytest.raises(StructuredInitError, match="Linear has no attention layer"):
        mix_before_attention(torch.nn.Linear(2, 2), "token_shift")
