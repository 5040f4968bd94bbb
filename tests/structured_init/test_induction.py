"""Induction: in the second layer, tokens look at what followed their equals."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from structured_init import Induction, StructuredInitError, attention_sites, initialize
from structured_init.analysis import capture_attention

LENGTH = 64
WIDTH = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 120, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZE = {"max_position_embeddings": LENGTH}


def gpt2(**options):
    settings = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, **TEXT, **options}
    return transformers.GPT2Model(transformers.GPT2Config(**settings))


def rotary(kind, **options):
    return getattr(transformers, f"{kind}Model")(
        getattr(transformers, f"{kind}Config")(**WIDTH, **TEXT, **SIZE, **options)
    )


def t5_decoder():
    config = transformers.T5Config(d_model=64, d_kv=32, d_ff=32, num_layers=2, num_heads=2, vocab_size=120)
    return transformers.T5Model(config).decoder


HOSTS = {
    "GPT-2": gpt2,
    "Qwen2, with shared keys": lambda: rotary("Qwen2", num_key_value_heads=1),
    "Llama": lambda: rotary("Llama"),
    "GPT-NeoX": lambda: rotary("GPTNeoX"),
    "the decoder of T5": t5_decoder,
}


def seeded(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def without_branches(model):
    """Silence MLPs and the host's own outputs of attention, so that the stream is embeddings, positions and copies."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(
                part in name for part in ("mlp", "DenseReluDense", "c_proj", "o_proj", "attention.dense", ".o.weight")
            ):
                parameter.zero_()
    return model


@pytest.fixture(scope="module")
def twice():
    """Eight sequences of unrelated tokens, each of which comes twice."""
    generator = torch.Generator().manual_seed(0)
    half = torch.stack([torch.randperm(110, generator=generator)[: LENGTH // 2] + 5 for _ in range(8)])
    return half.repeat(1, 2)


def induction_score(maps):
    """The attention of tokens of the second half on the token behind their first occurrence: in a loop."""
    half = LENGTH // 2
    return sum(maps[:, t, t - half + 1].mean().item() for t in range(half, LENGTH)) / half


@pytest.mark.parametrize("name", HOSTS)
def test_tokens_look_at_what_followed_their_equals(name, twice):
    model = without_branches(seeded(HOSTS[name]))
    first, second = (site.name for site in attention_sites(model)[:2])
    before = capture_attention(model, twice)[second]
    report = initialize(model, Induction())
    after = capture_attention(model, twice)
    head = after[second].shape[1] - 1
    assert induction_score(before[:, head]) < 0.05
    score = induction_score(after[second][:, head])
    assert score > 0.15
    assert score > 5 * induction_score(after[second][:, 0]) or head == 0
    predicted = float(report.notes[second].partition(f"head {head}: ")[2][:4])
    assert score == pytest.approx(predicted, abs=0.25)
    assert "the end of" in report.notes[first]


def test_what_is_passed_on_is_the_token_that_is_seen():
    """W_v W_o of the second head is a positive projector, beside what was copied."""
    model = seeded(gpt2)
    initialize(model, Induction())
    first, second = attention_sites(model)
    product = second.value[1].double() @ second.output[1].double()
    values = torch.linalg.eigvalsh((product + product.mT) / 2)
    assert torch.allclose(product, product.mT, atol=1e-7)
    assert (values > 1e-4).sum() == 32
    assert values.min() > -1e-6
    copies = first.output[0].double()
    assert torch.allclose(copies @ product, torch.zeros(32, 64, dtype=torch.float64), atol=1e-6)


def test_the_second_head_holds_what_the_first_reads_against_where_it_writes():
    model = seeded(gpt2)
    initialize(model, Induction())
    first, second = attention_sites(model)
    query, key = (part[1] / part[1].norm(dim=0) for part in (second.query, second.key))
    written = (first.output[0] / first.output[0].norm(dim=1, keepdim=True)).mT
    assert torch.allclose(query, first.value[0], atol=1e-5)
    assert torch.allclose(key, written, atol=1e-5)


def test_two_circuits_have_heads_and_subspaces_of_their_own(twice):
    model = without_branches(seeded(lambda: gpt2(n_head=4)))
    initialize(model, Induction(circuits=2))
    first, _ = attention_sites(model)
    assert torch.allclose(first.output[0] @ first.output[1].mT, torch.zeros(16, 16), atol=1e-6)
    maps = capture_attention(model, twice)["h.1.attn"]
    scores = [induction_score(maps[:, head]) for head in range(4)]
    assert min(scores[2:]) > 2 * max(scores[:2])


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (
            lambda: gpt2(n_layer=1),
            {},
            "'h.0.attn' is the only attention layer of its stack: an induction circuit takes two",
        ),
        (gpt2, {"circuits": 3}, "3 circuits for the 2 keys of 'h.0.attn'"),
        (
            lambda: transformers.BertModel(transformers.BertConfig(**WIDTH, **TEXT, **SIZE)),
            {},
            "is not causal, so it predicts no next token: use PreviousToken",
        ),
        (
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), 2, enable_nested_tensor=False
            ),
            {},
            "^Induction: 'layers.0.self_attn' has no positions that are known",
        ),
        (gpt2, {"where": "h.7.attn"}, "where='h.7.attn' selects none of the 2 attention layers"),
        (t5_decoder, {"circuits": 2}, "share their table with the layer before, which leaves too few for 2 circuits"),
    ],
)
def test_what_a_host_cannot_hold_is_one_line(build, options, message):
    with pytest.raises(StructuredInitError, match=message) as refusal:
        initialize(seeded(build), Induction(**options))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"circuits": 0}, "circuits must be at least 1"),
        ({"share": 0.0}, "share must lie between 0 and 1"),
        ({"copy_scale": -1.0}, "copy_scale must be positive"),
        ({"context": 3}, "context must be at least 4"),
    ],
)
def test_wrong_arguments_are_one_line(options, message):
    with pytest.raises(StructuredInitError, match=message):
        Induction(**options)
