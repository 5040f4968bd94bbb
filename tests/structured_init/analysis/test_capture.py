import random

import numpy as np
import pytest
import torch
from hosts import TOKENS, of_transformers
from strangers import WIDTH, HeadsOfTheirOwn, OneHead
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from structured_init import discover_attention
from structured_init.analysis import NoAttentionError, audit, capture_attention, register_capture
from structured_init.util.errors import StructuredInitError


@pytest.fixture
def images():
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def vit(tiny_vit):
    return tiny_vit(img_size=16, patch_size=4, embed_dim=24, num_heads=3)


def assert_maps_equal(maps, expected, atol=1e-6):
    assert len(maps) == len(expected)
    for layer, reference in zip(maps.values(), expected, strict=True):
        torch.testing.assert_close(layer, reference.float(), atol=atol, rtol=1e-5)


PADDED = {
    "input_ids": torch.arange(14).view(2, 7),
    "attention_mask": torch.tensor([[1] * 7, [0] * 2 + [1] * 5]),
}
LLAMA = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
LLAMA |= {"num_key_value_heads": 2, "vocab_size": 20, "max_position_embeddings": 16, **TOKENS}


def test_maps_of_padded_texts_equal_the_eager_attention_of_transformers():
    eager, fused = (of_transformers("LlamaModel", 0, **LLAMA, attn_implementation=how) for how in ("eager", "sdpa"))
    with torch.no_grad():
        expected = eager.eval()(**PADDED, output_attentions=True).attentions
    real = PADDED["attention_mask"].bool()  # rows of padding: eager has a finite minus infinity, torch looks nowhere
    for layer, reference in zip(capture_attention(fused, **PADDED).values(), expected, strict=True):
        torch.testing.assert_close(layer.movedim(2, 1)[real], reference.movedim(2, 1)[real], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_maps_of_torch_multihead_attention_equal_its_own_weights(batch_first, training):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=batch_first).train(training)
    x = torch.randn(3, 5, 16)
    mask = torch.ones(x.shape[1 - (not batch_first)], x.shape[1 - (not batch_first)], dtype=torch.bool).triu(1)
    maps = capture_attention(nn.ModuleDict({"a": attention})["a"], x, x, x, attn_mask=mask, need_weights=False)
    _, expected = attention.eval()(x, x, x, attn_mask=mask, average_attn_weights=False)
    assert_maps_equal(maps, [expected])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("padded", [False, True])
def test_transformer_encoder_in_evaluation_mode_does_not_escape_on_its_fast_path(padded):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(3, 5, 16)
    padding = torch.arange(5).expand(3, 5) >= torch.tensor([[5], [3], [2]]) if padded else None
    maps = capture_attention(encoder, x, src_key_padding_mask=padding)
    assert list(maps) == ["layers.0.self_attn", "layers.1.self_attn"]
    _, expected = encoder.layers[0].self_attn(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    torch.testing.assert_close(maps["layers.0.self_attn"], expected)


def test_maps_are_computed_in_float32_under_autocast(vit, images):
    with torch.autocast("cpu", torch.bfloat16):
        maps = capture_attention(vit, images)["blocks.0.attn"]
    assert maps.dtype == torch.float32
    # Rows of bfloat16 would sum to one up to 2⁻⁹ only, and hold few distinct values.
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]), atol=1e-6, rtol=0)
    assert (maps != maps.bfloat16().float()).any()


@pytest.mark.parametrize("fused", [True, False])
def test_maps_of_a_model_in_bfloat16_are_computed_in_float32(vit, images, fused):
    for block in vit.blocks:
        block.attn.fused_attn = fused
    for layer in capture_attention(vit.bfloat16(), images.bfloat16()).values():
        torch.testing.assert_close(layer.sum(-1), torch.ones(layer.shape[:-1]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_model_is_captured_and_not_compiled_again(vit, images, in_place):
    expected = list(capture_attention(vit, images).values())
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    model = vit.eval()
    if in_place:
        model.compile(backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    with torch.no_grad():
        before = model(images)
        count = len(compilations)
        maps = capture_attention(model, images)
        torch.testing.assert_close(model(images), before)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    assert_maps_equal(maps, expected)
    assert len(compilations) == count > 0


class FusedAttention(nn.Module):
    """Four heads of 4, two by two with one key and value, in one call with options of its own."""

    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.q, self.k, self.v = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        query, key, value = (each(x).unflatten(-1, (-1, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True, **self.options)


def mask_of_a_row_that_looks_nowhere():
    mask = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[3] = False
    return mask


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"scale": 0.3, "attn_mask": torch.randn(5, 5)},
        {"attn_mask": mask_of_a_row_that_looks_nowhere()},
    ],
    ids=["causal", "scale and bias", "boolean mask"],
)
def test_maps_of_a_fused_call_give_what_the_call_gives(options):
    torch.manual_seed(0)
    attention, x = FusedAttention(**options), torch.randn(2, 5, 8)
    (maps,) = capture_attention(nn.Sequential(attention), x).values()
    with torch.no_grad():
        value = attention.v(x).unflatten(-1, (-1, 4)).transpose(1, 2)
        torch.testing.assert_close(maps @ value.repeat_interleave(2, dim=1), attention(x))


def test_model_and_random_states_are_left_as_they_were(images, as_installed):  # the checker draws from `random`
    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = VisionTransformer(img_size=16, patch_size=4, embed_dim=24, depth=1, num_heads=3, drop_rate=0.5)

        def forward(self, x):
            random.random(), np.random.rand()
            return self.vit(x + torch.randn_like(x))

    model = Restless().train()
    model.vit.blocks[0].eval()
    flags = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    first, second = capture_attention(model, images), capture_attention(model, images)
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])
    assert [module.training for module in model.modules()] == flags
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert torch.equal(first["vit.blocks.0.attn"], second["vit.blocks.0.attn"])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_model_is_restored_when_its_forward_fails(vit, images):
    vit.head.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        capture_attention(vit, images)
    assert vit.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in vit.modules())


def test_number_of_samples_is_capped_for_every_tensor_of_the_batch():
    maps = capture_attention(of_transformers("LlamaModel", **LLAMA), max_samples=1, **PADDED)
    assert {layer.shape[0] for layer in maps.values()} == {1}


def test_memory_cap_keeps_fewer_samples_and_says_so(vit, images):
    whole = capture_attention(vit, images.repeat(2, 1, 1, 1))
    bytes_of_all = sum(4 * layer.numel() for layer in whole.values())
    with pytest.warns(UserWarning, match=r"1 sample in 2 is kept \(raise max_megabytes"):
        maps = capture_attention(vit, images.repeat(2, 1, 1, 1), max_megabytes=0.6 * bytes_of_all / 2**20)
    assert [layer.shape[0] for layer in maps.values()] == [3, 3]
    torch.testing.assert_close(maps["blocks.1.attn"], whole["blocks.1.attn"][:3])


def test_layers_are_chosen_by_name_pattern_and_number(vit, images):
    assert list(capture_attention(vit, images, layers=["blocks.1.attn"])) == ["blocks.1.attn"]
    assert list(capture_attention(vit, images, layers=["blocks.*"])) == ["blocks.0.attn", "blocks.1.attn"]
    assert list(capture_attention(vit, images, layers=[1])) == ["blocks.1.attn"]
    with pytest.raises(StructuredInitError, match=r"'block.1.attn': did you mean 'blocks.1.attn'"):
        capture_attention(vit, images, layers=["block.1.attn"])


def test_repeated_calls_of_one_module_have_names_of_their_own():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            for _ in range(3):
                x = self.attn(x, x, x)[0]
            return x

    assert list(capture_attention(Recurrent(), torch.randn(1, 4, 8))) == ["attn", "attn:2", "attn:3"]


class Unheard(nn.Module):
    """Attention in which no softmax can be followed."""

    def forward(self, x):
        logits = x @ x.mT
        weights = (logits - logits.logsumexp(-1, keepdim=True)).exp()
        self.weights = weights.unsqueeze(1)
        return weights @ x


def test_model_without_captured_maps_is_an_error_that_names_what_it_has():
    with pytest.raises(NoAttentionError, match=r"Sequential has no attention module .*Conv2d, ReLU"):
        capture_attention(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8))

    class UnheardAttention(Unheard):
        pass

    with pytest.raises(NoAttentionError, match=r"0 \(UnheardAttention\).*register_capture"):
        capture_attention(nn.Sequential(UnheardAttention()), torch.randn(1, 4, 8))


def test_registered_adapter_reads_attention_that_cannot_be_heard():
    class Adapted(Unheard):
        pass

    @register_capture(Adapted)
    def read(module, args, kwargs, output):
        return module.weights

    x = torch.randn(2, 4, 8)
    maps = capture_attention(nn.Sequential(Adapted()), x)
    torch.testing.assert_close(maps["0"], (x @ x.mT).softmax(-1).unsqueeze(1))


def test_what_the_model_does_not_take_is_one_line(vit):
    with pytest.raises(StructuredInitError, match=r"^VisionTransformer fails on the batch: .*missing 1 required"):
        capture_attention(vit)


def test_a_keyword_goes_to_the_model_beside_a_dictionary_and_is_named_where_nobody_takes_it(vit, images):
    with pytest.raises(StructuredInitError, match="unexpected keyword argument 'max_sample'"):
        capture_attention(vit, images, max_sample=1)
    assert [*capture_attention(vit, {"x": images}, attn_mask=None)] == ["blocks.0.attn", "blocks.1.attn"]


class Mixer(nn.Module):
    """Attention by hand with 2 heads of 4 channels; no name says so."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def mixed(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.out(self.mixed(q, k, v).transpose(1, 2).flatten(2))


class EfficientAttention(Mixer):
    """No map between tokens is ever made."""

    def mixed(self, q, k, v):
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)


class BesideKnown(nn.Module):
    def __init__(self):
        super().__init__()
        self.known, self.mixer = nn.MultiheadAttention(8, 2, batch_first=True), Mixer()

    def forward(self, x):
        return self.mixer(self.known(x, x, x)[0])


def test_a_softmax_over_channels_is_no_map():
    with pytest.raises(NoAttentionError, match="no softmax lies between the product of queries and keys and that with"):
        capture_attention(nn.Sequential(EfficientAttention()), torch.randn(2, 5, 8))
    model = nn.Sequential(BesideKnown(), EfficientAttention())
    assert list(capture_attention(model, torch.randn(2, 5, 8))) == ["0.known", "0.mixer"]


class ProductForEachSample(nn.Module):
    """As experts that are called as often as there are samples for them."""

    def forward(self, x):
        return torch.cat([torch.bmm(one[None], torch.eye(8)[None]) for one in x])


def test_how_often_others_multiply_does_not_move_a_layer_s_maps():
    mixer, x = Mixer(), torch.randn(5, 5, 8)
    maps = capture_attention(nn.Sequential(ProductForEachSample(), mixer), x)
    torch.testing.assert_close(maps["1"], capture_attention(nn.Sequential(mixer), x)["0"])


def test_several_inputs_may_stand_in_one_tuple_or_dictionary():
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
    src, tgt = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    apart = capture_attention(model, src, tgt)
    for given in ((src, tgt), {"src": src, "tgt": tgt}):
        together = capture_attention(model, given)
        assert len(together) == 3
        assert together.keys() == apart.keys()
        assert all(torch.equal(together[name], apart[name]) for name in apart)


class OfOne(nn.Module):
    """It takes one tuple or dictionary, and perhaps something else."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, batch):
        query, tokens = batch.values() if isinstance(batch, dict) else batch
        return self.inner(query, tokens, tokens)[0]


@pytest.mark.parametrize("kind", [tuple, dict])
def test_one_tuple_or_dictionary_that_forward_takes_stands_in_a_tuple_of_one(kind):
    pair = {"query": torch.randn(2, 4, 16), "tokens": torch.randn(2, 5, 16)}
    one = pair if kind is dict else tuple(pair.values())
    maps = capture_attention(OfOne(), (one,))  # as initialize takes it
    assert [tuple(each.shape) for each in maps.values()] == [(2, 2, 4, 5)]
    with pytest.raises(StructuredInitError, match=r"give .* in a tuple of one, \(batch,\)"):
        capture_attention(OfOne(), one)


class Filling(OfOne):
    """It keeps what it has seen in a dictionary that it is given."""

    def forward(self, tokens, caches):
        before = caches[0].get("seen", tokens[:, :0])
        caches[0]["seen"] = seen = torch.cat([before, tokens], 1)
        return self.inner(tokens, seen, seen)[0]


def test_a_cache_in_the_batch_is_not_filled_by_looking():
    held = {"seen": torch.randn(2, 3, 16)}
    batch, before = {"tokens": torch.randn(2, 4, 16), "caches": [held]}, dict(held)
    (maps,) = capture_attention(Filling(), batch, max_samples=None).values()
    (found,) = discover_attention(Filling(), batch)
    audit(Filling(), batch, max_samples=None)
    assert maps.shape[-1] == found.length == 4 + 3
    assert held == before


class Head(OneHead):
    """As of the best-known course: a module for each head, whose softmax is written out."""

    def forward(self, x):
        logits = self.query(x) @ self.key(x).transpose(-2, -1) * 0.5
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        return logits.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x)


class ManyHeads(HeadsOfTheirOwn):
    def __init__(self, heads):
        super().__init__()
        self.heads, self.proj = nn.ModuleList(Head() for _ in range(heads)), nn.Linear(4 * heads, WIDTH)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_module_for_each_head_is_one_layer(heads):
    torch.manual_seed(0)
    model, x = nn.Sequential(ManyHeads(heads), ManyHeads(heads)), torch.randn(2, 5, WIDTH)
    maps = capture_attention(model, x)
    assert {name: tuple(each.shape) for name, each in maps.items()} == dict.fromkeys(("0", "1"), (2, heads, 5, 5))
    for number, head in enumerate(model[0].heads):
        logits = head.query(x) @ head.key(x).mT * 0.5
        expected = logits.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        torch.testing.assert_close(maps["0"][:, number], expected.detach())
