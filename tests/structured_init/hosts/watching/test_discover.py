"""Attention that nobody described is found in one forward pass, with its matrices, or refused with the reason."""

from __future__ import annotations

import pytest
import strangers
import torch
from hosts import TOKENS as SPECIAL
from hosts import of_transformers
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from structured_init import Mimetic, StructuredInitError, Weights, check_attention, initialize
from structured_init.analysis import capture_attention
from structured_init.hosts.watching.discover import discover_attention

TOKENS, MAPS = (2, 5, strangers.WIDTH), (2, strangers.WIDTH, 3, 3)


def parts(found, model):
    layout, weights = found.layout, Weights(model)
    return (getattr(layout, part).get(weights) for part in ("query", "key", "value", "output"))


def block(linear):
    """Return the heads of an ``nn.Linear`` that keeps them one after another, (H, k, D)."""
    return linear.weight.detach().unflatten(0, (-1, strangers.DIM))


APART = [
    strangers.Apart, strangers.GroupedQueries, strangers.RotaryByHalves, strangers.RotaryByPairs,
    strangers.RotaryInPlace, strangers.RotaryFilled, strangers.RotaryByAssignment, strangers.RotaryByComplexNumbers,
    strangers.RotaryByComplexNumbersInPlace,
    strangers.NormalizedQueries, strangers.InPlace, strangers.HeadByHead, strangers.TalkingHeads, strangers.Sink,
    strangers.Windows,
    strangers.ReorderedChannels, strangers.FusedKernel, strangers.TransformerXL, strangers.ShortConvolution,
    strangers.QueriesAdded, strangers.TwoKindsOfTokens, strangers.ScaledValues, strangers.FarClamp,
    strangers.BatchNormed, strangers.GatedValues, strangers.PaddedWithOnes, strangers.BiasInAStep,
    strangers.StableSoftmax, strangers.MaskedByChoice,
]  # fmt: skip


@pytest.mark.parametrize("kind", APART)
def test_four_linear_maps_are_found_whatever_lies_between(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(strangers.WIDTH, strangers.WIDTH), kind())
    [found] = discover_attention(model, torch.randn(TOKENS))
    assert (found.name, found.reason) == ("1", None)
    query, key, value, output = parts(found, model)
    torch.testing.assert_close(query, block(model[1].ask))
    torch.testing.assert_close(key, block(model[1].meet))
    torch.testing.assert_close(value, block(model[1].carry))
    torch.testing.assert_close(output, model[1].write.weight.detach().T.unflatten(0, (-1, strangers.DIM)))
    assert found.evidence.error < 1e-5


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (strangers.Apart, {"scale": 0.5}),
        (strangers.InPlace, {"scale": 0.5}),
        (strangers.Sink, {"scale": 1.0}),
        (strangers.StableSoftmax, {"scale": 0.5}),
        (strangers.TwoSigns, {"scale": 1.0}),  # which cancel in front of the softmax
        (strangers.RotaryByHalves, {"rope": True, "scale": 0.5}),
        (strangers.RotaryByPairs, {"rope": True}),
        (strangers.RotaryInPlace, {"rope": True, "scale": 0.5}),
        (strangers.RotaryByAssignment, {"rope": True, "scale": 0.5}),
        (strangers.RotaryFilled, {"rope": True, "scale": 0.5}),
        (strangers.RotaryByComplexNumbers, {"rope": True, "scale": 0.5}),
        (strangers.NormalizedQueries, {"query_key_norm": True, "rope": False}),
        (strangers.BatchNormed, {"query_key_norm": True, "value_norm": True, "between": None}),
        (strangers.TalkingHeads, {"mixes_heads": True}),
        (strangers.GatedOutput, {"between": "a gate, relu", "value_norm": False}),
        (strangers.GatedValues, {"between": "sigmoid"}),
        (strangers.QueriesAdded, {"between": "its queries, added", "value_norm": False}),
        (strangers.ScaledValues, {"between": "a factor of 0.7 on the values", "scale": 0.5}),
        (strangers.TransformerXL, {"between": None, "scale": 0.5, "cross": False}),
        (strangers.TwoKindsOfTokens, {"cross": False, "scale": 0.5}),
        (strangers.GroupedQueries, {"cross": False, "mixes_heads": False, "value_norm": False}),
    ],
)
def test_what_the_host_does_between_is_recognized(kind, said):
    torch.manual_seed(0)
    [found] = discover_attention(kind(), torch.randn(TOKENS))
    for name, value in said.items():
        assert getattr(found.layout, name) == value, name


def fused(model):
    """A pointwise convolution whose heads alternate channel by channel."""
    query, _, value = model.qkv.weight.flatten(1).unflatten(0, (3, 4, 3)).transpose(1, 2)
    return query, None, value, model.out.weight.flatten(1).T.unflatten(0, (4, 3)).transpose(0, 1)


def grouped(model):
    """Groups of two queries before their key and value, in one map."""
    rows = model.wqkv.weight.view(2, 4, 4, 16)
    return rows[:, :2].flatten(0, 1), rows[:, 2], rows[:, 3], None


def tiled(model):
    """Heads that share a key become neighbours."""
    output = model.write.weight.T.unflatten(0, (4, 4))[[0, 2, 1, 3]]
    return block(model.ask)[[0, 2, 1, 3]], block(model.meet), None, output


def of_their_own(model):
    """Heads that are modules of their own are one layer."""
    names = ("query", "key", "value")
    heads = [torch.stack([getattr(head, name).weight for head in model.heads]) for name in names]
    return *heads, model.proj.weight.T.unflatten(0, (3, 4))


@pytest.mark.parametrize(
    ("model", "shape", "matrices"),
    [
        (strangers.Einsum, TOKENS, lambda m: (m.q.mT, m.k.mT, m.v.mT, m.o)),
        (strangers.EinsumOutput, TOKENS, lambda m: (None, None, None, m.o.transpose(0, 1))),
        (strangers.PointwiseConvolution, MAPS, fused),
        (strangers.AlternatingHeads, (2, 5, 16), grouped),
        (strangers.TiledKeys, TOKENS, tiled),
        (strangers.HeadsOfTheirOwn, TOKENS, of_their_own),
    ],
)
def test_matrices_that_lie_in_no_plain_rows_are_read_and_written(model, shape, matrices):
    torch.manual_seed(0)
    model = model()
    [found] = discover_attention(model, torch.randn(shape))
    assert found.name == ""
    for read, wanted in zip(parts(found, model), matrices(model), strict=True):
        if wanted is not None:
            torch.testing.assert_close(read, wanted.detach())
    weights = Weights(model)
    new = torch.randn_like(found.layout.query.get(weights))
    found.layout.query.set(weights, new, "test")
    torch.testing.assert_close(found.layout.query.get(weights), new)


SIGNS = torch.tensor([1.0, -1.0, 1.0]).view(1, 3, 1, 1)
NEGATED = "what its heads give, or some of them, is taken times −1 in front of 'write'"
SIGN = "its logits or maps go through a change of sign"
TWO_MAPS = "its queries are made by two linear maps, one after the other ('down', 'ask')"
REFUSED = [
    (strangers.PointwiseConvolution(3), "its queries are made by a convolution of kernel 3×3 ('qkv')"),
    (strangers.LowRankQueries(), TWO_MAPS),
    (strangers.LowRankQueries(12), TWO_MAPS),
    (strangers.Latent(), "its keys are put together from several linear maps (meet, also)"),
    (strangers.ComputedWeights(), "its values are made by weights that are computed"),
    (strangers.GeneratedWeights(), "its queries are made by weights that are computed"),
    # Behind the linear maps.
    (strangers.ValuesTimesValues(), "its values go through a gate behind their linear map"),
    (strangers.NormalizedValues(), "its values go through _softmax behind their linear map"),
    (strangers.SquaredQueries(), "its queries go through pow behind their linear map"),
    (strangers.NearClamp(), "its queries go through clamp behind their linear map"),
    (strangers.BackwardKeys(), "the channels of its keys lie backwards in 'meet', those that they meet do not"),
    (strangers.BackwardValues(), "the channels of its values lie backwards in 'carry', those that they"),
    (strangers.ReachByHead(), "its heads are of different numbers of tokens"),
    (strangers.Sizes(), "its heads are of different sizes"),
    # Logits and maps.
    (strangers.NoSoftmax(), "no softmax lies between the product of queries and keys and that with the"),
    (strangers.SoftmaxOfSoftmax(), "its softmax is taken more than once"),
    (strangers.Transposed(), "its softmax is taken over queries and not over keys"),
    (strangers.Slots(), "its softmax is taken over queries and not over keys"),
    (strangers.RolesReversed(), "its queries and keys change places between their product and the values"),
    (strangers.BetweenChannels(), "it attends between channels, not between tokens"),
    (strangers.Reversed(), "its logits or maps go through neg"),
    (strangers.Inverted(), "its logits or maps go through rsub"),
    (strangers.Squared(), "its logits or maps go through pow"),
    (strangers.MapsThrough(lambda maps: 2 * torch.eye(5) - maps), SIGN),
    (strangers.Temperatures(1.0, 0.5, -1.0), "some of its logits are multiplied with negative numbers"),
    # What the heads give.
    (strangers.QueriesByChunks(), "its tokens are put together with others before 'write'"),
    (strangers.FewQueries(), "its tokens are put together with others before 'write'"),
    (strangers.TiedRows(), "tokens take different channels of it before 'write'"),
    (strangers.LocalAndGlobal(), "what it gives is added to what another product with values gives"),
    (strangers.HeadsThrough(lambda out, v: -out), NEGATED),
    (strangers.HeadsThrough(lambda out, v: out * SIGNS), NEGATED),
    (strangers.HeadsThrough(lambda out, v: 2 * v - out), NEGATED),
    (strangers.NoOutput(), "no linear map takes what it gives"),
    (strangers.ResidualWithoutOutput(), "no linear map takes what it gives"),
    (strangers.Twice(), "what it gives goes into 'write' more than once"),
    (strangers.Twice(2), "what it gives goes into several linear maps ('write', 'also')"),
    (strangers.TiedOutput(), "its values and its output are the same numbers"),
    (strangers.BehindTorchsBack(), "what its matrices predict is not what came out: relative error"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSED)
def test_what_four_matrices_cannot_describe_is_refused_with_the_reason(model, reason):
    torch.manual_seed(0)
    shape = MAPS if isinstance(model, strangers.PointwiseConvolution) else TOKENS
    found = discover_attention(model, torch.randn(shape))
    assert found
    assert all(each.layout is None for each in found)
    assert found[0].reason.startswith(reason)


def test_tokens_that_are_nearly_alike_are_told_apart():
    torch.manual_seed(0)
    alike = torch.ones(1, 256, strangers.WIDTH) + 0.005 * torch.randn(1, 256, strangers.WIDTH)
    assert discover_attention(strangers.Apart(), alike)[0].reason is None


def test_a_second_pair_of_queries_and_keys_is_named():
    torch.manual_seed(0)
    model, tokens = strangers.Differential(), torch.randn(TOKENS)
    [found] = discover_attention(model, tokens)
    assert found.layout.others == "'ask_2', 'meet_2'"
    report = initialize(model, Mimetic(positions="keep"), batch=tokens)
    assert "maps of other queries and keys, left alone: 'ask_2', 'meet_2'" in next(iter(report.notes.values()))


def test_tokens_of_others_are_cross_attention():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    found = discover_attention(model, (torch.randn(1, 5, 8), torch.randn(1, 4, 8)))
    assert {each.name: each.layout.cross for each in found} == {
        "encoder.layers.0.self_attn": False,
        "decoder.layers.0.self_attn": False,
        "decoder.layers.0.multihead_attn": True,
    }


def test_a_layer_that_runs_twice_is_one():
    torch.manual_seed(0)
    layer = strangers.Apart()
    [found] = discover_attention(nn.Sequential(layer, nn.Tanh(), layer), torch.randn(TOKENS))
    assert (found.name, found.calls) == ("0", 2)


def test_the_model_and_the_random_states_are_left_as_they_were():
    model = nn.Sequential(nn.Dropout(), strangers.Apart()).train()
    before = [parameter.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    discover_attention(model, torch.randn(TOKENS, generator=torch.Generator().manual_seed(0)))
    assert model.training
    assert model[1].training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.backends.mha.get_fastpath_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_buffers_that_a_model_writes_to_are_left_as_they_were():
    class Queue(strangers.Apart):
        def __init__(self):
            super().__init__()
            self.register_buffer("place", torch.zeros((), dtype=torch.long))
            self.register_buffer("seen", torch.zeros(0))

        def forward(self, x):
            self.place += 1
            self.seen.resize_(len(x))
            return super().forward(x)

    model = Queue()
    discover_attention(model, torch.randn(TOKENS))
    assert model.place == 0


class Counting(nn.Module):
    """A layer that notes how many there are along the first axis, and may ask for three."""

    def __init__(self, samples_first, asks_for_three=False):
        super().__init__()
        self.attn, self.asks = nn.MultiheadAttention(8, 2, batch_first=samples_first), asks_for_three
        self.ran = []

    def forward(self, x):
        self.ran.append(len(x))
        if self.asks and len(x) != 3:
            raise ValueError("three, please")
        return self.attn(x, x, x)[0]


@pytest.mark.parametrize(
    ("model", "ran", "length"),
    [
        (Counting(samples_first=True), [2], 5),  # axis 0 are samples: two tell
        (Counting(samples_first=True, asks_for_three=True), [2, 3], 5),
        (Counting(samples_first=False), [2, 3], 3),  # axis 0 are tokens
    ],
)
def test_two_samples_are_watched_and_all_where_these_do_not_tell(model, ran, length):
    [layer] = discover_attention(model, torch.randn(3, 5, 8))
    assert (model.ran, layer.length) == (ran, length)
    assert layer.evidence.error < 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_refused_with_the_way_out():
    class Flexible(nn.Module):
        def forward(self, x):
            return flex_attention(x[None], x[None], x[None])

    for call in (discover_attention, capture_attention):
        with pytest.raises(StructuredInitError, match="flex_attention cannot be watched: use scaled_dot"):
            call(Flexible(), torch.randn(TOKENS))


def test_a_batch_may_be_a_dictionary_and_one_line_says_what_is_wrong_without_it_or_with_another():
    [found] = discover_attention(strangers.Apart(), {"x": torch.randn(TOKENS)})
    assert found.layout.query.heads == 3
    with pytest.raises(StructuredInitError, match=r"^Apart does not say what it takes: give a batch"):
        discover_attention(strangers.Apart())
    with pytest.raises(StructuredInitError, match=r"^Apart fails on the batch: "):
        discover_attention(strangers.Apart(), torch.randn(2, 5, 7))


def test_every_layer_has_a_name_of_its_own_and_so_its_own_draws():
    torch.manual_seed(0)
    model, tokens = strangers.StackedLayers(), torch.randn(TOKENS)
    found = discover_attention(model, tokens)
    assert len({each.name for each in found}) == 2
    initialize(model, Mimetic(positions="keep"), batch=tokens)
    one, two = (list(parts(each, model)) for each in discover_attention(model, tokens))
    assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    for _, _, value, output in (one, two):
        assert torch.einsum("hkd,hke->de", value, output).diagonal().mean() == pytest.approx(-0.4, abs=0.1)


def test_the_reason_stands_in_the_error_of_an_initialization():
    with pytest.raises(StructuredInitError, match="its logits or maps go through neg"):
        initialize(nn.Sequential(strangers.Reversed()), Mimetic(positions="keep"), batch=torch.randn(TOKENS))
    with pytest.raises(StructuredInitError, match="no attention could be checked: '0': its logits or maps go"):
        check_attention(nn.Sequential(strangers.Reversed()), torch.randn(TOKENS))


def test_numbers_that_are_not_finite_are_named():
    model = strangers.Apart()
    model.meet.weight.data[0, 0] = float("nan")
    [found] = discover_attention(model, torch.randn(TOKENS))
    assert (found.layout, found.reason) == (None, "'meet.weight' holds numbers that are not finite")
    [found] = discover_attention(strangers.Apart(), torch.full(TOKENS, float("inf")))
    assert found.reason == "its queries, keys or values are not finite"


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        (strangers.RotaryByHalves, (2, 9)),
        (strangers.RotaryByAssignment, (2, 9)),
        (strangers.RotaryTokensFirst, (9, 1)),
        (strangers.RotaryTokensFirst, (9, 2)),
        (strangers.RotaryTokensFirst, (9, 3)),
    ],
)
def test_angles_are_read_off_queries_however_the_host_turns_and_orders_them(kind, tokens):
    torch.manual_seed(0)
    [found] = discover_attention(kind(), torch.randn(*tokens, strangers.WIDTH))
    half = strangers.DIM // 2
    assert found.turns.frequencies.tolist() == pytest.approx([0.7**pair for pair in range(half)], rel=1e-5)
    assert found.turns.pairs.tolist() == [[pair, pair + half] for pair in range(half)]


@pytest.mark.parametrize(("kind", "padded"), [("Llama", slice(0, 9)), ("Cohere", slice(14, None))])
def test_angles_are_read_off_tokens_beside_padding_whose_embedding_is_zero(kind, padded):
    """Of hosts that pair coordinates by halves, and neighbours."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = of_transformers(f"{kind}Model", **sizes, **SPECIAL)
    ids = torch.randint(1, 50, (2, 20))
    [known] = discover_attention(model, ids)
    ids[0, padded] = 0
    [found] = discover_attention(model, ids)
    torch.testing.assert_close(found.turns.frequencies, known.turns.frequencies, rtol=1e-3, atol=1e-7)
    assert found.turns.pairs.equal(known.turns.pairs)


def test_angles_are_read_where_most_of_a_head_is_not_turned():
    """A quarter of 32 coordinates, as in Pythia: the other 24 are evenly turned by no angle at all."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = of_transformers("GPTNeoXModel", **sizes, **SPECIAL)
    [found] = discover_attention(model, torch.randint(1, 50, (2, 20)))
    assert found.turns.pairs.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert found.turns.frequencies.tolist() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-3)


class Cached(nn.Module):
    """Keys and values are written into a buffer, and read from it, as in the reference code of LLaMA."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.register_buffer("cache", torch.zeros(2, 4, 8, 16), persistent=False)

    def forward(self, x):
        self.cache[0, : len(x), : x.shape[1]], self.cache[1, : len(x), : x.shape[1]] = self.k(x), self.v(x)
        keys, values = self.cache[:, : len(x), : x.shape[1]]
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.q(x), keys, values))
        return self.o(((q @ k.mT / 8**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_keys_and_values_are_followed_through_a_buffer_that_is_filled():
    model = Cached()
    (found,) = discover_attention(model, torch.randn(2, 6, 16))
    assert [id(each.weight) for each in found.layout.matrices] == [id(each.weight) for each in model.children()]
    assert not model.cache.any()


class OneKey(strangers.Apart):
    """Every token looks at the one token that sums them up, by ``einsum``, which then multiplies number by number."""

    def forward(self, x):
        few = x.mean(1, keepdim=True)
        q, k, v = (y.unflatten(-1, (strangers.HEADS, -1)) for y in (self.ask(x), self.meet(few), self.carry(few)))
        maps = torch.einsum("bqhk,bshk->bhqs", q, k).softmax(-1)
        return x + self.write(torch.einsum("bhqs,bshk->bqhk", maps, v).flatten(2))


def test_maps_of_one_key_are_no_maps_of_what_comes_behind():
    torch.manual_seed(0)
    model, tokens = nn.Sequential(OneKey(), nn.LayerNorm(strangers.WIDTH), strangers.Apart()), torch.randn(TOKENS)
    [found] = discover_attention(model, tokens)
    assert (found.name, found.reason) == ("2", None)
    assert list(capture_attention(model, tokens)) == ["2"]


def test_what_attention_gives_is_followed_through_pixels_of_another_number():
    model = strangers.PointwiseConvolution()
    model.out = nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), model.out)  # as in EfficientFormer v2
    [found] = discover_attention(model, torch.randn(MAPS))
    assert (found.reason, found.layout.output.weight) == (None, model.out[1].weight)
