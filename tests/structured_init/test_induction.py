"""Induction: in the second layer, tokens look at what followed their equals."""

from __future__ import annotations

import re

import pytest
import torch
from hosts import of_transformers, seeded
from torch import nn

from structured_init import Induction, PreviousToken, StructuredInitError, attention_sites, initialize
from structured_init.analysis import capture_attention, induction_score
from structured_init.hosts import watched

LENGTH = 64
WIDTH = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": 120, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZE = {"max_position_embeddings": LENGTH}


def gpt2(**options):
    settings = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, **TEXT, **options}
    return of_transformers("GPT2Model", **settings)


def rotary(kind, **options):
    return of_transformers(f"{kind}Model", **{**WIDTH, **TEXT, **SIZE, **options})


def t5_decoder():
    sizes = {"d_model": 64, "d_kv": 32, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 120}
    return of_transformers("T5Model", **sizes).decoder


HOSTS = {
    "GPT-2": gpt2,
    "Qwen2, with shared keys": lambda: rotary("Qwen2", num_key_value_heads=1),
    "the decoder of T5": t5_decoder,
}


@pytest.fixture(scope="module")
def twice():
    """Eight sequences of unrelated tokens, each of which comes twice."""
    generator = torch.Generator().manual_seed(0)
    half = torch.stack([torch.randperm(110, generator=generator)[: LENGTH // 2] + 5 for _ in range(8)])
    return half.repeat(1, 2)


def recorded(model, tokens):
    """What the host's own eager attention says of its second layer, (heads,): attention on what followed an equal."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(tokens, output_attentions=True, use_cache=False).attentions[1]
    queries = torch.arange(tokens.shape[1] // 2, tokens.shape[1])
    return maps[:, :, queries, queries - tokens.shape[1] // 2 + 1].mean(dim=(0, 2))


def said(note):
    """The share that a note names for its last head."""
    return float(note.partition("equal token: head ")[2].partition(": ")[2][:4])


@pytest.mark.parametrize("name", HOSTS)
def test_tokens_look_at_what_followed_their_equals(name, twice):
    model = seeded(HOSTS[name])
    second = attention_sites(model)[1].name
    before = recorded(model, twice)
    report = initialize(model, Induction(context=LENGTH))
    after = recorded(model, twice)
    assert before[-1] < 0.05
    assert after[-1] > 0.5
    assert after[-1] > 5 * after[0]
    assert said(report.notes[second]) == pytest.approx(after[-1].item(), abs=0.1)  # 128 queries
    assert re.search(r" at \d+ tokens, measured on random tokens that come twice(;|$)", report.notes[second])
    assert report.warnings == []


class Beside(nn.Module):
    """The blocks of a GPT-2, whose parts the model calls itself; an MLP adds more than the embeddings are."""

    def __init__(self):
        super().__init__()
        host = seeded(gpt2)
        host.h[0].mlp.c_proj.weight.data.mul_(100)
        self.wte, self.wpe = host.wte, host.wpe
        self.layers = [(each.ln_1, each.attn, each.ln_2, each.mlp) for each in host.h]  # no modules
        self.h = nn.ModuleList(map(nn.ModuleList, zip(*self.layers, strict=True)))  # a list for each kind

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for norm, attention, other, mlp in self.layers:
            x = x + attention(norm(x))[0]
            x += mlp(other(x))
        return x


def test_the_stream_is_what_attention_is_added_to_whatever_holds_the_layers(twice):
    model = Beside().eval()
    built = [each[3].c_proj.weight.clone() for each in model.layers]
    report = initialize(model, Induction(context=LENGTH), batch=twice)
    assert said(report.notes[attention_sites(model)[1].name]) > 0.5
    factors = [(each[3].c_proj.weight / old).median().item() for each, old in zip(model.layers, built, strict=True)]
    assert 0 < factors[0] < 0.3
    assert factors[1] == 1
    assert report.warnings == []


WIDE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048, "max_position_embeddings": 512}
SIZES = {
    "GPT-2, 768 wide": lambda: gpt2(n_embd=768, n_head=12, n_positions=1024, vocab_size=512),
    "Qwen3, 768 wide": lambda: rotary("Qwen3", **WIDE, vocab_size=512, num_key_value_heads=6, head_dim=128),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_the_circuit_holds_in_the_whole_network_at_real_widths(name):
    """Two layers of each, 128 tokens: the host's MLP and other heads add more than embeddings and copies there."""
    generator = torch.Generator().manual_seed(1)
    half = torch.stack([torch.randperm(500, generator=generator)[:64] + 5 for _ in range(4)])
    model = seeded(SIZES[name])
    report = initialize(model, Induction(context=128))
    share = recorded(model, half.repeat(1, 2))[-1].item()
    assert share > 0.5
    assert said(report.notes[attention_sites(model)[1].name]) == pytest.approx(share, abs=0.06)
    assert report.warnings == []


def test_narrow_rotary_heads_of_a_long_context_are_warned_of_with_the_way_out():
    narrow = rotary("Llama", max_position_embeddings=1024, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    report = initialize(narrow, Induction())
    assert "heads are too narrow to tell so many apart" in report.warnings[-1]
    wide = rotary("Llama", max_position_embeddings=64, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
    assert not initialize(wide, Induction()).warnings


def test_a_window_that_hides_what_followed_is_warned_of_and_strict_refuses():
    def build():
        return rotary("Mistral", sliding_window=8, num_key_value_heads=2)

    report = initialize(seeded(build), Induction())
    set_by = {entry.names[0]: entry.set_by for entry in report.entries}
    written = {part: set_by[f"layers.0.self_attn.{part}_proj.weight"] for part in "qv"}
    assert written == {"q": ("PreviousToken: query_key",), "v": ("PreviousToken: value_output",)}
    assert said(report.notes["layers.1.self_attn"]) < 0.2  # what followed is 32 tokens back, or now and then nearer
    assert "head 1 of 'layers.1.self_attn' has 0." in report.warnings[-1]
    assert "a mask hides these tokens" in report.warnings[-1]
    with pytest.raises(StructuredInitError, match=r"Induction, strict: head 1 of 'layers\.1\.self_attn' has 0\."):
        initialize(seeded(build), Induction(), strict=True)


def branches(model, tokens):
    """Root mean squares of what enters the first block of a GPT-2, and of what its two branches add."""
    seen = {}
    block = model.h[0]
    handles = [
        block.register_forward_pre_hook(lambda _, args: seen.update(stream=args[0])),
        block.attn.register_forward_hook(lambda _, __, output: seen.update(attention=output[0])),
        block.mlp.register_forward_hook(lambda _, __, output: seen.update(mlp=output)),
    ]
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    return {name: each.double().square().mean().sqrt().item() for name, each in seen.items()}


def test_other_branches_are_as_large_as_the_note_says():
    def build():
        return gpt2(n_embd=256, n_head=4)

    tokens = torch.randint(5, 110, (16, LENGTH), generator=torch.Generator().manual_seed(1))
    assert (built := branches(seeded(build), tokens))["mlp"] > built["stream"]
    model = seeded(build)
    note = initialize(model, Induction()).notes["h.0.attn"]
    heads, mlp = re.search(r"they are ([\d.]+) and ([\d.]+) times the stream", note).groups()
    with torch.no_grad():
        model.h[0].attn.c_proj.weight[:64] = 0  # what the copying head adds
    parts = branches(model, tokens)
    assert parts["mlp"] == pytest.approx(float(mlp) * parts["stream"], rel=0.15)
    assert parts["attention"] == pytest.approx(float(heads) * parts["stream"], rel=0.35)


def test_copies_are_as_large_as_the_stream_where_the_model_scales_its_embeddings(twice):
    model, seen = seeded(lambda: rotary("Llama")), {}
    model.embed_tokens.register_forward_hook(lambda _, __, rows: 8 * rows)
    report = initialize(model, Induction(), batch=twice)
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.update(stream=args[0].square().mean().sqrt()))
    model(twice)
    sizes = attention_sites(model)[0].output[0].norm(dim=1) / seen["stream"]
    assert sizes.tolist() == pytest.approx([1.5] * 32, rel=0.05)
    assert said(report.notes["layers.1.self_attn"]) > 0.5


def test_other_branches_are_scaled_before_the_norms_behind_them(twice):
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    model = seeded(lambda: rotary("Gemma2", **sizes, intermediate_size=256))
    initialize(model, Induction())
    assert recorded(model, twice)[-1] > 0.7


def test_a_host_that_cannot_be_run_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(watched, "UNASKED", 0)
    with pytest.raises(StructuredInitError, match=r"heads are measured in a run, and .* too many to run unasked"):
        initialize(seeded(gpt2), Induction())


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
    """W_q = V R and W_k = O R, with two directions less than the head has: those of what all tokens have in common."""
    model = seeded(gpt2)
    initialize(model, Induction())
    first, second = attention_sites(model)
    written = (first.output[0] / first.output[0].norm(dim=1, keepdim=True)).mT
    read = first.value[0] / first.value[0].norm(dim=0)
    query, key = (subspace.mT @ part[1] for subspace, part in ((read, second.query), (written, second.key)))
    assert torch.allclose(query, key, atol=1e-5)
    assert torch.allclose(read @ query, second.query[1], atol=1e-5)
    assert torch.allclose(written @ key, second.key[1], atol=1e-5)
    assert torch.linalg.matrix_rank(query, rtol=1e-3) == 30


def test_positions_leave_what_is_copied_to_tokens():
    model = seeded(lambda: gpt2(n_head=4))
    initialize(model, Induction())
    first, _ = attention_sites(model)
    for subspace in (first.value[0], first.output[0].mT):
        assert (model.wpe.weight @ subspace).abs().max() < 1e-6


class Numbered(nn.Module):
    """GPT-2 with blocks in no list."""

    def __init__(self):
        super().__init__()
        host = seeded(gpt2)
        self.wte, self.wpe, (self.block1, self.block2) = host.wte, host.wpe, host.h
        self.lm_head = nn.Linear(64, 120, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in (self.block1, self.block2):
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.lm_head(x)


def test_blocks_in_no_list_are_layers_of_one_tower(twice):
    model = Numbered()
    before = model.block2.attn.c_attn.weight.detach().clone()
    initialize(model, PreviousToken(), seed=0, batch=twice)
    assert torch.equal(before, model.block2.attn.c_attn.weight)
    report = initialize(Numbered(), Induction(), seed=0, batch=twice)
    assert "what followed an equal token" in report.notes["block2.attn"]


def test_of_a_small_vocabulary_attention_on_all_that_followed_an_equal_token_counts():
    letters = torch.randint(4, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    report = initialize(model := seeded(Numbered), Induction(), seed=0, batch=letters)
    found = capture_attention(model, letters[:, : LENGTH // 2].tile(1, 2))
    _, score = (induction_score(maps, letters[:, : LENGTH // 2].tile(1, 2)).max().item() for maps in found.values())
    measured = r"head \d: ([\d.]+) at 64 tokens, measured on random tokens of the batch"
    said = re.search(measured, " ".join(report.notes.values()))
    assert float(said[1]) == pytest.approx(score, abs=0.1)
    assert score > 0.7
    assert not any("followed" in warning for warning in report.warnings)


def test_a_post_norm_host_has_copies_of_the_size_asked_for():
    class PostNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(60, 64), nn.Embedding(32, 64)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids):
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
            return self.layers(8 * self.tok(ids) + self.pos.weight[: ids.shape[1]], mask=mask)

    model, ids = seeded(PostNorm), torch.arange(128).view(4, 32) % 60
    report = initialize(model, Induction(), batch=ids)
    assert said(report.notes["layers.layers.1.self_attn"]) > 0.7
    stream = 8 * model.tok(ids) + model.pos.weight[:32]
    first = attention_sites(model)[0]
    copies = stream.double() @ first.value[0].double() @ first.output[0].double()
    share = (copies.square().mean() / stream.square().mean()).sqrt()
    assert 0.4 < share < 0.9  # 1.5 in 16 of 64 directions, less the positions


# What was wrong once.


@pytest.mark.parametrize("width", [64, 128])
def test_copies_are_as_large_as_documented_where_positions_leave_them_coordinates(width, twice):
    """W_o is 1.5 times the stream, whatever share of the coordinates positions keep."""
    model, seen = seeded(lambda: gpt2(n_embd=width, n_head=4)), {}
    initialize(model, Induction(context=LENGTH))
    model.h[0].register_forward_pre_hook(lambda _, args: seen.update(stream=args[0].square().mean().sqrt()))
    model(twice)
    sizes = attention_sites(model)[0].output[0].norm(dim=1) / seen["stream"]
    assert sizes.tolist() == pytest.approx([1.5] * (width // 4), rel=0.05)


def test_a_norm_over_all_heads_is_reckoned_with(twice):
    """OLMo 2 normalizes the queries of all heads together, and what layers add: the note says what the network does."""
    model = seeded(lambda: rotary("Olmo2", hidden_size=128, num_attention_heads=4, intermediate_size=512))
    notes = initialize(model, Induction(context=LENGTH)).notes
    first = capture_attention(model, twice, layers=[0], max_samples=None)["layers.0.self_attn"]
    queries = torch.arange(LENGTH // 2, LENGTH)
    share = first[:, 0, queries, queries - 1].mean().item()
    assert share > 0.9
    told = re.search(r"head 0 looks 1 token back: ([\d.]+)", notes["layers.0.self_attn"])
    assert float(told[1]) == pytest.approx(share, abs=0.03)
    assert "predicted" not in " ".join(notes.values())
    found = recorded(model, twice)[-1].item()
    assert found > 0.7
    assert said(notes["layers.1.self_attn"]) == pytest.approx(found, abs=0.1)


def test_the_balance_goes_on_until_the_share_is_had(twice):
    """At width 256 the MLP adds more than the embeddings are: at three quarters of the share it used to stop."""
    model, built = (seeded(lambda: gpt2(n_embd=256, n_head=4)) for _ in range(2))
    initialize(model, Induction(context=LENGTH))
    assert recorded(model, twice)[-1] > 0.85
    factor = model.h[0].mlp.c_proj.weight.norm() / built.h[0].mlp.c_proj.weight.norm()
    assert factor < 0.3


@pytest.mark.parametrize("method", [PreviousToken, Induction])
def test_a_model_on_the_meta_device_is_refused_in_one_line(method):
    with torch.device("meta"):
        model = gpt2()
    with pytest.raises(StructuredInitError) as refusal:
        initialize(model, method())
    why = "a model on the meta device, or a sharded one, cannot be run"
    assert str(refusal.value) == f"{method.__name__} measures its heads in a run of the network, and {why}"
