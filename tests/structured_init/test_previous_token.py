"""PreviousToken: in the whole network, on real text, heads put their attention on their offset."""

from __future__ import annotations

import math
import pydoc_data.topics
import re
from functools import partial
from itertools import product

import peft
import pytest
import timm
import torch
import transformers
from hosts import of_transformers
from torch import nn

from structured_init import (
    Induction,
    PreviousToken,
    StructuredInitError,
    attention_sites,
    initialize,
    position_sites,
)
from structured_init.analysis import capture_attention
from structured_init.attention.sequence.heads import copying_subspaces, least_strength
from structured_init.attention.sequence.rotary import best_weights

LENGTH, DIM, HEADS = 96, 64, 2
WIDTH = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32}
TEXT = {"vocab_size": 140, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZE = {"max_position_embeddings": LENGTH}
BEIT = {"img_size": 24, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 4, "use_abs_pos_emb": False}
SWIN = {"img_size": 16, "patch_size": 4, "window_size": 4, "embed_dim": 32, "depths": (1,), "num_heads": (4,)}


def config(kind, **options):
    return getattr(transformers, f"{kind}Config")(**options)


def gpt2(**options):
    settings = {"n_embd": DIM, "n_layer": 2, "n_head": HEADS, "n_positions": LENGTH, **TEXT, **options}
    return transformers.GPT2Model(transformers.GPT2Config(**settings))


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**WIDTH, **TEXT, **SIZE, **options}))


def qwen2(**options):
    settings = {**WIDTH, **TEXT, **SIZE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, **options}
    return transformers.Qwen2Model(transformers.Qwen2Config(**settings))


# Host, offsets of its heads by default, least share
HOSTS = {
    "GPT-2": (gpt2, [1, 2], 0.8),
    "OPT": (
        lambda: transformers.OPTModel(
            config(
                "OPT",
                hidden_size=DIM,
                word_embed_proj_dim=DIM,
                num_hidden_layers=1,
                num_attention_heads=2,
                ffn_dim=8,
                **SIZE,
                **TEXT,
            )
        ),
        [1, 2],
        0.8,
    ),
    "GPT-Neo, whose logits are not scaled": (
        lambda: transformers.GPTNeoModel(
            config(
                "GPTNeo", hidden_size=DIM, num_layers=1, num_heads=2, attention_types=[[["global"], 1]], **SIZE, **TEXT
            )
        ),
        [1, 2],
        0.8,
    ),
    "BERT": (lambda: transformers.BertModel(config("Bert", **WIDTH, **SIZE, **TEXT)), [1, -1], 0.8),
    "RoBERTa": (
        lambda: transformers.RobertaModel(config("Roberta", **WIDTH, max_position_embeddings=LENGTH + 2, **TEXT)),
        [1, -1],
        0.8,
    ),
    "T5's encoder": (
        lambda: transformers.T5EncoderModel(
            config("T5", d_model=DIM, d_kv=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=140)
        ),
        [1, -1],
        0.8,
    ),
    "umT5's encoder": (
        lambda: transformers.UMT5EncoderModel(
            config("UMT5", d_model=DIM, d_kv=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=140)
        ),
        [1, -1],
        0.8,
    ),
    "Qwen2, with shared keys": (qwen2, [1, 2, 3, 4], 0.6),
    "GPT-NeoX": (lambda: transformers.GPTNeoXModel(config("GPTNeoX", **WIDTH, **SIZE, **TEXT)), [1, 2], 0.6),
    "Phi": (lambda: transformers.PhiModel(config("Phi", **WIDTH, **SIZE, **TEXT)), [1, 2], 0.6),
    "Llama": (llama, [1, 2], 0.6),
    "Llama, tied, with shared keys": (lambda: llama(num_key_value_heads=1, tie_word_embeddings=True), [1, 2], 0.6),
}


@pytest.fixture(scope="module")
def text():
    """Four pieces of the language's own documentation, as numbers of characters."""
    words = pydoc_data.topics.topics["typesmapping"]
    return torch.tensor([min(ord(letter), 126) + 3 for letter in words[: 4 * LENGTH]]).view(4, LENGTH)


def share_on(maps, offset, start):
    """The mean attention of queries from ``start`` on upon the token ``offset`` before: in loops."""
    length = maps.shape[-1]
    queries = [t for t in range(start, length) if 0 <= t - offset < length]
    return sum(maps[:, t, t - offset].mean().item() for t in queries) / len(queries)


def reported(note):
    """The shares that a note names by their offsets."""
    found = re.findall(r"head \d+ looks (\d+) tokens? (back|ahead): (\d\.\d\d)", note)
    return {int(offset) * (1 if where == "back" else -1): float(share) for offset, where, share in found}


def seeded(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


@pytest.mark.parametrize("name", HOSTS)
def test_every_head_looks_at_its_offset_at_the_end_of_the_context_and_the_note_says_how_much(name, text):
    build, offsets, least = HOSTS[name]
    model = seeded(build)
    site = attention_sites(model)[0]
    before = capture_attention(model, text, layers=[0])[site.name]
    report = initialize(model, PreviousToken(context=LENGTH), batch=text)
    after = capture_attention(model, text, layers=[0])[site.name]
    told = report.notes[site.name]
    assert "tokens, measured: " in told
    for head, offset in enumerate(offsets):
        assert share_on(before[:, head], offset, LENGTH // 2) < 0.1
        assert share_on(after[:, head], offset, LENGTH // 2) >= least
        assert reported(told)[offset] == pytest.approx(share_on(after[:, head], offset, LENGTH // 2), abs=0.006)
    assert ("embed_tokens.weight, which were changed" in told) == ("Llama" in name)
    assert report.warnings == []


@pytest.mark.parametrize("kind", ["BEiT", "Swin", "Swin, wide windows"])
def test_heads_of_a_grid_look_left_right_up_and_down(kind):
    model = seeded(
        lambda: (
            timm.models.beit.Beit(**BEIT, use_rel_pos_bias=True)
            if kind == "BEiT"
            else timm.models.swin_transformer.SwinTransformer(
                **{**SWIN, "window_size": (2, 4) if "wide" in kind else SWIN["window_size"]}
            )
        )
    )
    initialize(model, PreviousToken())
    site = attention_sites(model)[0]
    rows, columns = site.grid
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, BEIT["img_size"], BEIT["img_size"], generator=generator)
    images = images if kind == "BEiT" else images[..., :16, :16]
    maps = capture_attention(model, images, layers=[0])[site.name][:, :, site.prefix_tokens :, site.prefix_tokens :]
    for head, (up, left) in enumerate([(0, 1), (0, -1), (1, 0), (-1, 0)]):
        seen = [
            maps[:, head, y * columns + x, (y - up) * columns + x - left].mean()
            for y in range(rows)
            for x in range(columns)
            if 0 <= y - up < rows and 0 <= x - left < columns
        ]
        assert sum(seen) / len(seen) >= 0.8


def test_alibi_gives_its_steepest_head_what_the_slope_gives(text):
    """Of weights e^(−slope·distance) from distance 1 on, the first has 1 − e^(−slope)."""
    model = seeded(lambda: transformers.BloomModel(config("Bloom", hidden_size=DIM, n_layer=1, n_head=4, **TEXT)))
    report = initialize(model, PreviousToken(offsets=[1, None, None, None]))
    maps = capture_attention(model, text, layers=[0])["h.0.self_attention"]
    assert share_on(maps[:, 0], 1, LENGTH // 2) == pytest.approx(1 - math.exp(-0.25), abs=0.03)
    assert share_on(maps[:, 0], 0, LENGTH // 2) < 0.1
    assert "gives at most 0.22" in report.notes["h.0.self_attention"]


def test_a_long_context_is_reached(text):
    model = seeded(lambda: gpt2(n_positions=1024, n_embd=128, n_head=2, n_layer=1))
    initialize(model, PreviousToken())
    maps = capture_attention(model, text.flatten().repeat(3)[None, :1024], layers=[0])["h.0.attn"]
    assert min(share_on(maps[:, head], head + 1, 900) for head in (0, 1)) >= 0.8


def test_norms_of_queries_and_keys_bound_the_strength_and_the_report_says_so():
    settings = {**WIDTH, **TEXT, **SIZE, "num_key_value_heads": 2, "head_dim": 32}
    report = initialize(seeded(lambda: transformers.Qwen3Model(config("Qwen3", **settings))), PreviousToken())
    assert report.warnings[0].endswith(
        "the norms of queries and keys bound its logits; where your texts are shorter, set context= to their length"
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # of peft's
@pytest.mark.parametrize("option", [True, "pissa"])
def test_heads_below_an_adapter_are_measured_and_compared_where_it_adds_nothing(text, option):
    options = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": option}
    model = peft.get_peft_model(seeded(llama), peft.LoraConfig(r=2, **options))
    note = initialize(model, PreviousToken(), batch={"input_ids": text}).notes["model.layers.0.self_attn"]
    not_compared = "its layout was not compared with a forward pass: its queries go through an adapter behind"
    assert note.startswith(not_compared) == (option == "pissa")
    assert "tokens, measured: " in note
    maps = capture_attention(model, input_ids=text)["model.layers.0.self_attn"]
    for offset, share in reported(note).items():
        assert share == pytest.approx(share_on(maps[:, offset - 1], offset, LENGTH // 2), abs=0.01)
    assert len(reported(note)) == HEADS


def test_what_is_measured_is_the_network_and_not_what_was_written(text):
    """A mask of the host's own hides the token before: the note says 0, the report warns and strict refuses."""

    def blind():
        model = seeded(gpt2)
        for layer in model.h:
            layer.attn.forward = partial(_without_the_token_before, layer.attn.forward)
        return model

    model, same = blind(), blind()
    report = initialize(model, PreviousToken(offsets=[1, None]))
    assert reported(report.notes["h.0.attn"])[1] == 0
    assert "head 0 looks 1 token back: 0.00 (predicted 0.90)" in report.notes["h.0.attn"]
    assert "head 0 of 'h.0.attn' has 0.00" in report.warnings[0]
    assert "hides the tokens at their offsets" in report.warnings[0]
    with pytest.raises(StructuredInitError, match=r"PreviousToken, strict: head 0 of 'h.0.attn' has 0\.00"):
        initialize(same, PreviousToken(offsets=[1, None]), strict=True)
    assert all(map(torch.equal, same.state_dict().values(), blind().state_dict().values()))


def _without_the_token_before(forward, hidden_states, *args, attention_mask=None, **kwargs):
    length = hidden_states.shape[1]
    hidden = torch.full((length, length), -torch.inf).triu(1)
    hidden[range(1, length), range(length - 1)] = -torch.inf
    return forward(hidden_states, *args, attention_mask=hidden[None, None], **kwargs)


def small(kind, **options):
    """A host of transformers of one layer, its width under whichever name it has."""
    settings = {**WIDTH, **TEXT, **SIZE, "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 32, **options}
    return getattr(transformers, f"{kind}Model")(config(kind, **settings))


def seq2seq(kind, **options):
    widths = {f"{tower}_{what}": 2 for tower in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    widths |= {"d_model": DIM, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    return getattr(transformers, f"{kind}Model")(config(kind, **widths, **TEXT, **SIZE, **options))


# Hosts that are not what their modules suggest, and the least share that each must have.
FORWARDS = {
    "CTRL, embeddings times √d": (
        lambda: transformers.CTRLModel(
            config("CTRL", n_embd=DIM, n_layer=1, n_head=2, dff=16, n_positions=LENGTH, **TEXT)
        ),
        0.75,
    ),
    "Pegasus, embeddings times √d": (lambda: seq2seq("Pegasus", scale_embedding=True), 0.75),
    "Marian, embeddings times √d": (lambda: seq2seq("Marian", scale_embedding=True, decoder_start_token_id=0), 0.75),
    "Marian, without a norm before attention": (lambda: seq2seq("Marian", decoder_start_token_id=0), 0.75),
    "BigBird, embeddings times √d": (lambda: small("BigBird", rescale_embeddings=True), 0.75),
    "Qwen3, a norm with an epsilon": (lambda: small("Qwen3"), 0.3),
    "OLMo 2, norms over all heads": (lambda: small("Olmo2"), 0.3),
    "Gemma 3, its logits scaled otherwise": (lambda: small("Gemma3Text", query_pre_attn_scalar=8), 0.75),
    "Llama, positions divided by 4": (
        lambda: small("Llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
        0.75,
    ),
    "ModernBERT, other frequencies in each layer": (lambda: small("ModernBert"), 0.75),
    "GPT-J, neighbouring coordinates": (
        lambda: transformers.GPTJModel(
            config("GPTJ", n_embd=DIM, n_layer=1, n_head=2, rotary_dim=16, n_positions=LENGTH, **TEXT)
        ),
        0.6,
    ),
    "GPT-OSS, queries and keys stretched": (
        lambda: small("GptOss", num_local_experts=2, num_experts_per_tok=1),
        0.75,
    ),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_what_a_host_does_in_its_forward_pass_is_reckoned_with(name, text):
    build, least = FORWARDS[name]
    model = seeded(build)
    report = initialize(model, PreviousToken(offsets=[1, 2], context=LENGTH))
    inputs = {"input_ids": text} | ({"decoder_input_ids": text} if model.config.is_encoder_decoder else {})
    maps = {name.removesuffix(".self"): each for name, each in capture_attention(model, **inputs).items()}
    told = {layer: note for layer, note in report.notes.items() if "tokens, measured: " in note}
    assert told
    for layer, note in told.items():
        for head, offset in enumerate([1, 2]):
            share = share_on(maps[layer][:, head], offset, LENGTH // 2)
            assert share >= least
            assert reported(note)[offset] == pytest.approx(share, abs=0.1)  # of other tokens


def test_heads_that_look_at_the_same_offset_are_named_together():
    note = initialize(seeded(lambda: gpt2(n_head=4)), PreviousToken(offsets=[1, None, 1, 2])).notes["h.0.attn"]
    share = r"0\.\d\d"
    said = f"measured: heads 0, 2 look 1 token back: {share}, {share}, head 3 looks 2 tokens back: {share} \\("
    assert re.search(said, note)


def test_a_small_cap_on_logits_is_not_taken_for_something_else_that_is_read():
    model = small("Gemma2", attn_logit_softcapping=2.0, attn_implementation="eager")
    warning = initialize(model, PreviousToken(offsets=[1, None])).warnings[0]
    assert "was predicted, and why the network gives less is not known" in warning


def test_an_offset_beyond_a_window_is_warned_of():
    windows = {"sliding_window": 8, "num_hidden_layers": 1}
    report = initialize(seeded(lambda: small("Mistral", **windows)), PreviousToken(offsets=[1, 2]))
    assert report.warnings == []
    report = initialize(seeded(lambda: small("Mistral", **windows)), PreviousToken(offsets=[1, 9]))
    assert "head 1 of 'layers.0.self_attn' has 0.00" in report.warnings[0]
    assert report.warnings[0].endswith("; ask for nearer ones, or the other way (offsets=)")


def test_a_dry_run_measures_what_would_be_written():
    planned, written = (initialize(seeded(gpt2), PreviousToken(), dry_run=dry) for dry in (True, False))
    assert planned.notes == written.notes
    assert "tokens, measured: " in planned.notes["h.0.attn"]


class TokensFirst(nn.Module):
    """The model of torch's tutorial: tokens on axis 0, or samples first and transposed inside."""

    def __init__(self, transposes):
        super().__init__()
        self.transposes, self.words, self.pe = (
            transposes,
            nn.Embedding(50, DIM),
            nn.Parameter(torch.zeros(LENGTH, 1, DIM)),
        )
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        ids = ids.T if self.transposes else ids
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        return self.encoder(self.words(ids) + self.pe[: len(ids)], mask)


@pytest.mark.parametrize("method", [PreviousToken, Induction])
def test_tokens_on_axis_0_are_told_and_a_model_that_transposes_inside_is_written_as_it_is(method):
    ids = torch.randint(0, 50, (4, 32), generator=torch.Generator().manual_seed(0))
    said = "'encoder.layers.0.self_attn' attends along axis 0 of the batch"
    report = initialize(TokensFirst(True), method(context=32), batch=ids)
    assert report.changed
    assert said not in " ".join(report.warnings)
    if method is Induction:
        with pytest.raises(StructuredInitError, match=said):
            initialize(TokensFirst(False), Induction(context=32), batch=ids.T)
    else:
        assert said in initialize(TokensFirst(False), PreviousToken(context=32), batch=ids.T).warnings[0]


class OddName(nn.Module):
    """Attention of a known class, and a table whose name says nothing."""

    def __init__(self):
        super().__init__()
        self.words, self.kringle = nn.Embedding(50, DIM), nn.Parameter(torch.zeros(1, 32, DIM))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(DIM, HEADS, 32, dropout=0.0, batch_first=True)])

    def forward(self, ids):
        return self.layers[0](self.words(ids) + self.kringle)


@pytest.mark.parametrize("offered", [False, True])
def test_a_table_of_any_name_is_found_on_a_batch_that_is_given_or_offered(offered):
    ids = torch.randint(0, 50, (4, 32), generator=torch.Generator().manual_seed(0))
    report = initialize(OddName(), PreviousToken(offsets=[1, -1]), batch=(lambda: ids) if offered else ids)
    assert [each.names[0] for each in report.changed] == ["kringle", "layers.0.self_attn.in_proj_weight"]


# What is written, and what is left alone


def test_heads_without_an_offset_and_later_layers_are_the_hosts():
    model, same = seeded(gpt2), seeded(gpt2)
    report = initialize(model, PreviousToken(offsets=[None, 3]))
    assert {name for entry in report.changed for name in entry.names} == {"wpe.weight", "h.0.attn.c_attn.weight"}
    (first, _), (before, _) = attention_sites(model), attention_sites(same)
    for part in ("query", "key"):
        assert torch.equal(getattr(first, part)[0], getattr(before, part)[0])
        assert not torch.equal(getattr(first, part)[1], getattr(before, part)[1])
    assert torch.equal(first.value, before.value)


def test_every_layer_that_where_selects_reads_the_same_positions(text):
    model = seeded(gpt2)
    initialize(model, PreviousToken(where="h.*.attn"))
    maps = capture_attention(model, text)
    assert all(share_on(maps[f"h.{layer}.attn"][:, 0], 1, LENGTH // 2) > 0.6 for layer in (0, 1))


def test_a_norm_before_attention_is_seen_through(text):
    model = seeded(gpt2)
    with torch.no_grad():
        model.h[0].ln_1.weight.copy_(torch.linspace(0.2, 3, DIM))
    initialize(model, PreviousToken())
    maps = capture_attention(model, text, layers=[0])["h.0.attn"]
    assert min(share_on(maps[:, head], head + 1, LENGTH // 2) for head in (0, 1)) >= 0.8


def test_all_tokens_of_llama_get_the_same_part_along_one_direction_and_padding_none(text):
    """So tied to the output it adds the same number to their logits, and the norm leaves the same of it in each."""
    model, same = seeded(llama), seeded(llama)
    initialize(model, PreviousToken())
    table, before = (m.model.embed_tokens.weight.detach().double() for m in (model, same))
    filled = before.norm(dim=1) > 0  # not that of padding
    along = torch.linalg.lstsq(table[filled], torch.ones(int(filled.sum()), 1, dtype=torch.float64)).solution[:, 0]
    direction = along / along.norm()
    part = table[filled] @ direction
    assert part.std() < 1e-6 * part.mean().abs()
    assert table[filled].norm(dim=1).std() < 1e-6
    content, was = (each - torch.outer(each @ direction, direction) for each in (table, before))
    cosine = nn.functional.cosine_similarity(content[filled], was[filled], dim=1)
    assert torch.allclose(cosine, torch.ones_like(cosine), atol=1e-9)
    assert content.norm() == pytest.approx(was.norm().item(), rel=1e-6)
    assert abs(direction.sum()) < 1e-4
    assert not table[~filled].any()
    begun = text.index_fill(1, torch.tensor([0]), TEXT["pad_token_id"])  # which no mask hides
    maps = capture_attention(model, begun, layers=[0])["model.layers.0.self_attn"]
    assert maps[:, :, LENGTH // 2 :, 0].mean() < 1e-3


class Alone(nn.Module):
    """Attention in the forward of the model itself."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, DIM), nn.Embedding(32, DIM)
        self.norm, self.qkv, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, ids):
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


def test_of_attention_in_the_model_itself_the_embeddings_are_known_too():
    ids = torch.randint(50, (4, 32), generator=torch.Generator().manual_seed(0))
    report = initialize(seeded(Alone), PreviousToken(), batch=ids)
    assert "whose root mean square is 1 (embeddings)" in report.notes[""]


class Steps(nn.Module):
    """Steps of two words, an action and a reward, from a table each, under rotary positions or none.

    ``types`` are added to the words. ``slot`` is added to all and repeats from step to step.
    """

    def __init__(self, slot, rotary=True):
        super().__init__()
        self.words, self.acts, self.rewards = nn.Embedding(50, DIM), nn.Embedding(5, DIM), nn.Embedding(3, DIM)
        self.types, self.slot = nn.Embedding(20, DIM), nn.Parameter(torch.randn(4, DIM)) if slot else 0.0
        self.rotary, self.layers = rotary, nn.ModuleList([nn.Module()])
        self.layers[0].norm1, self.layers[0].attn = nn.RMSNorm(DIM), nn.Module()
        self.layers[0].attn.qkv, self.layers[0].attn.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)

    def embed(self, words, acts, rewards):
        x = self.words(words) + 0.1 * self.types(words % 20)
        x = torch.cat([x, self.acts(acts)[:, :, None], self.rewards(rewards)[:, :, None]], 2) + self.slot
        return x.flatten(1, 2)

    def forward(self, *tokens):
        x, block = self.embed(*tokens), self.layers[0]
        q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary:
            angle = torch.arange(x.shape[1])[:, None] * 1000.0 ** -torch.linspace(0, 1, q.shape[-1] // 2)
            turn = lambda a, b: torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)  # noqa: E731
            q, k = turn(*q.chunk(2, -1)), turn(*k.chunk(2, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + block.attn.proj(y.transpose(1, 2).flatten(2))


def steps():
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(0))
    return draw(50, (8, 8, 2)), draw(5, (8, 8)), draw(3, (8, 8))


@pytest.mark.parametrize("slot", [False, True])
def test_tokens_of_several_tables_all_get_the_direction_beside_what_is_added_to_them(slot):
    """A table that repeats from step to step is no table of positions, so heads look through rotary ones."""
    model = seeded(partial(Steps, slot))
    report = initialize(model, PreviousToken(offsets=[1, 4], context=32), batch=steps())
    tables = [each.names[0] for each in report.changed if "norm" not in each.names[0]]
    assert tables == [*(f"{name}.weight" for name in ("words", "acts", "rewards", "types", "layers.0.attn.qkv"))]
    assert "all rows but zeros of words.weight, acts.weight, rewards.weight, which" in report.notes["layers.0.attn"]
    assert not report.warnings
    (maps,) = capture_attention(model, steps(), max_samples=None).values()
    for head, offset in enumerate([1, 4]):
        shares = maps[:, head].diagonal(-offset, 1, 2).mean(0)[16 - offset :]
        assert all(shares[kind::4].mean() > (0.45 if slot else 0.75) for kind in range(4))


class Bare(Steps):
    """The same with a parameter as the table of words."""

    def __init__(self):
        super().__init__(slot=False)
        del self.words
        self.table = nn.Parameter(torch.randn(50, DIM))

    def words(self, ids):
        return nn.functional.embedding(ids, self.table)


def test_a_parameter_that_a_pass_looks_up_is_a_table_of_tokens():
    report = initialize(seeded(Bare), PreviousToken(offsets=[1, 4], context=32), batch=steps())
    assert "of table, acts.weight, rewards.weight, which" in report.notes["layers.0.attn"]
    assert not report.warnings


class Codebooks(Steps):
    """Frames of sound, each the sum of a row of each of four tables in a list."""

    def __init__(self):
        super().__init__(slot=False)
        del self.words, self.acts, self.rewards, self.types
        self.books = nn.ModuleList(nn.Embedding(40, DIM) for _ in range(4))

    def embed(self, codes):
        return sum(book(codes[:, number]) for number, book in enumerate(self.books))


def test_of_tables_that_are_summed_the_first_has_the_direction_and_the_others_nothing_along_it():
    model = seeded(Codebooks)
    codes = torch.randint(40, (8, 4, 32), generator=torch.Generator().manual_seed(0))
    report = initialize(model, PreviousToken(offsets=[1, 4]), batch=codes)
    assert "all rows but zeros of books.0.weight, which" in report.notes["layers.0.attn"]
    assert not report.warnings
    others = torch.cat([book.weight.detach() for book in model.books[1:]])
    assert torch.linalg.svdvals(others)[-1] < 1e-4 < torch.linalg.svdvals(model.books[0].weight.detach())[-1]
    (maps,) = capture_attention(model, codes, max_samples=None).values()
    assert all(maps[:, head].diagonal(-offset, 1, 2)[:, 16:].mean() > 0.7 for head, offset in enumerate([1, 4]))


def test_a_table_that_repeats_is_named_where_there_are_no_other_positions():
    said = "'slot' gives 4 rows to the 32 tokens that 'layers.0.attn' sees, so it cannot tell those of one row apart"
    with pytest.raises(StructuredInitError, match=said):
        initialize(Steps(True, rotary=False), PreviousToken(offsets=[1, 4]), batch=steps())
    assert [site.name for site in position_sites(Steps(True), batch=steps())] == ["slot"]  # for places within a step


@pytest.mark.parametrize(("rows", "steps", "first"), [(4096, 20, 0), (60, 20, 0), (50, 12, 0), (50, 20, 7)])
def test_steps_of_several_tokens_are_no_positions_of_these(rows, steps, first):
    """Return, state and action of a step share its row, however long the table is."""
    sizes = {"state_dim": 7, "act_dim": 2, "hidden_size": DIM, "max_ep_len": rows, "n_layer": 1, "n_head": HEADS}
    model = of_transformers("DecisionTransformerModel", **sizes, bos_token_id=0, eos_token_id=0)
    batch = {"states": 7, "actions": 2, "rewards": 1, "returns_to_go": 1}
    batch = {name: torch.rand(2, steps, width) for name, width in batch.items()}
    batch |= {"timesteps": (first + torch.arange(steps)).repeat(2, 1), "attention_mask": torch.ones(2, steps)}
    said = f"'embed_timestep.weight' gives {steps} rows to the {3 * steps} tokens that 'encoder.h.0.attn' sees"
    with pytest.raises(StructuredInitError, match=said):
        initialize(model, PreviousToken(offsets=[1]), batch=batch)


class Captioned(nn.Module):
    """Eight words behind twenty-four patches; the words alone have positions."""

    def __init__(self):
        super().__init__()
        self.patches, self.words, self.places = nn.Linear(5, DIM), nn.Embedding(50, DIM), nn.Embedding(10, DIM)
        self.block = nn.TransformerEncoderLayer(DIM, HEADS, DIM, batch_first=True)

    def forward(self, patches, ids):
        words = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.block(torch.cat([self.patches(patches), words], 1))


def test_a_table_of_a_part_of_the_tokens_gives_each_of_these_a_row_of_its_own():
    torch.manual_seed(0)
    batch = torch.randn(2, 24, 5), torch.randint(50, (2, 8))
    report = initialize(Captioned(), PreviousToken(offsets=[1]), batch=batch)
    assert "head 0 looks 1 token back" in report.notes["block.self_attn"]
    assert "'places.weight' has 10 rows for 32 tokens" in report.warnings[-1]


def test_tables_that_may_lack_the_direction_are_a_warning(monkeypatch):
    monkeypatch.setattr("structured_init.attention.sequence.rotary.read_by", lambda layer: None)
    warned = initialize(seeded(partial(Steps, False)), PreviousToken(), batch=steps()).warnings
    assert "to 'words.weight' alone: it was not seen whether types.weight, acts.weight, rewards.weight" in warned[0]


def test_copies_lie_in_the_subspace_of_each_head_and_are_as_large_as_asked(text):
    model = seeded(gpt2)
    initialize(model, PreviousToken(values="copy", copy_scale=0.5))
    site, seen = attention_sites(model)[0], {}
    model.h[0].register_forward_pre_hook(lambda module, args: seen.update(stream=args[0]))
    model.h[0].ln_1.register_forward_hook(lambda module, args, output: seen.update(read=output))
    model.h[0].attn.register_forward_hook(lambda module, args, output: seen.update(out=output[0]))
    with torch.no_grad():
        model(text)
    stream = seen["stream"].square().mean().sqrt()
    for head in (0, 1):
        value, output = site.value[head], site.output[head]
        subspace = output / output.norm(dim=1, keepdim=True)
        assert torch.allclose(subspace @ subspace.mT, torch.eye(32), atol=1e-5)
        assert torch.allclose(value.mT @ value, torch.eye(32), atol=1e-5)
        assert torch.allclose(subspace @ value, torch.zeros(32, 32), atol=1e-5)  # it writes where it does not read
        copy, source = seen["out"] @ subspace.mT, seen["read"] @ value
        assert copy.square().mean().sqrt() / stream == pytest.approx(0.5, rel=0.2)
        shifted = nn.functional.cosine_similarity(copy[:, head + 1 :], source[:, : -head - 1], dim=-1)
        assert shifted.mean() > 0.9
    assert torch.allclose(site.output[0] @ site.output[1].mT, torch.zeros(32, 32), atol=1e-6)


def test_two_seeds_choose_other_frequencies_and_the_same_seed_the_same():
    tables = [seeded(gpt2) for _ in range(3)]
    for model, seed in zip(tables, (0, 0, 1), strict=True):
        initialize(model, PreviousToken(), seed=seed)
    assert torch.equal(tables[0].wpe.weight, tables[1].wpe.weight)
    assert not torch.equal(tables[0].wpe.weight, tables[2].wpe.weight)


# Equations


def test_no_other_weights_leave_less_to_other_distances():
    """Against many drawn weights and each frequency alone, at the strength for which they were found."""
    frequencies = 10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    distances = torch.tensor([tau for tau in range(-1, 200) if tau])
    gaps = 1 - (distances[:, None] * frequencies).cos()
    found = best_weights(frequencies, distances, 0.85)
    assert found.sum().item() == pytest.approx(1)
    assert (found >= 0).all()
    generator = torch.Generator().manual_seed(0)
    others = torch.distributions.Dirichlet(torch.full((8,), 0.5)).sample((2000,)).double()
    others = torch.cat(
        [others, torch.eye(8, dtype=torch.float64), found + 0.01 * torch.rand(50, 8, generator=generator)]
    )
    others = others / others.sum(dim=1, keepdim=True)

    def share(weights, strength):
        return 1 / (1 + (-strength * gaps @ weights.mT).exp().sum(dim=0))

    strength = least_strength(lambda s: share(found[None], s).item(), 0.85).strength
    assert share(others, strength).max() <= share(found[None], strength).item() + 1e-3


def test_the_least_strength_is_where_the_share_is_reached_or_nine_tenths_of_the_largest():
    assert least_strength(lambda s: 1 - math.exp(-s), 0.8).strength == pytest.approx(math.log(5), rel=1e-3)
    assert least_strength(lambda s: 0.6 * (1 - math.exp(-s)), 0.8).strength == pytest.approx(math.log(10), rel=1e-2)
    assert least_strength(lambda s: 0.9, 0.8).strength == 0


def test_copies_of_more_heads_than_there_is_room_for_are_still_orthonormal():
    read, write = copying_subspaces(8, 4, [0, 0, 1, 1, 2, 2], generator=torch.Generator().manual_seed(0))
    assert (sorted(read), len(write)) == ([0, 1, 2], 6)
    for each in (*(value.mT for value in read.values()), *write):
        assert torch.allclose(each @ each.mT, torch.eye(4, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize(("dim", "sources"), [(16, [0, 1]), (16, [0]), (16, [0, 0]), (8, [0, 1]), (16, [0, 1, 2, 3])])
def test_a_head_reads_from_where_it_does_not_write(dim, sources):
    """All subspaces are orthogonal where there is room for heads and values; else heads and what they read."""
    read, write = copying_subspaces(dim, 4, sources, generator=torch.Generator().manual_seed(0))
    for head, source in enumerate(sources):
        assert torch.allclose(write[head] @ read[source], torch.zeros(4, 4, dtype=torch.float64), atol=1e-9)
    for left in range(len(write)):
        for right in range(left):
            assert torch.allclose(write[left] @ write[right].mT, torch.zeros(4, 4, dtype=torch.float64), atol=1e-9)


# What cannot be


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), 1, enable_nested_tensor=False)


REFUSED = [
    (gpt2, {"offsets": [1, 2, 3]}, r"3 offsets for the 2 heads of 'h.0.attn'"),
    (gpt2, {"offsets": [96]}, r"offset 96 lies outside of the 96 tokens that 'h.0.attn' sees"),
    (gpt2, {"offsets": [8], "context": 8}, r"offset 8 lies outside of the 8 tokens that 'h.0.attn' sees"),
    (gpt2, {"offsets": [-1]}, r"offset -1 looks ahead, but 'h.0.attn' is causal"),
    (gpt2, {"offsets": [[1, 0]]}, r"offset \[1, 0\] lies outside of the 96 tokens that 'h.0.attn' sees"),
    (gpt2, {"where": "h.7.attn"}, r"where='h.7.attn' selects none of the 2 attention layers"),
    (encoder, {}, r"'layers.0.self_attn' has no positions .* with biases of the model's own this method cannot"),
    (lambda: timm.models.VisionTransformer(16, 4, embed_dim=16, depth=1, num_heads=2), {},
     r"sees a grid of 4 rows through absolute positions: use Impulse"),
    (lambda: transformers.BloomModel(config("Bloom", hidden_size=16, n_layer=1, n_head=2, **TEXT)), {"offsets": [2]},
     r"ALiBi decays with distance, so heads of .* at offset 1 alone"),
    (lambda: nn.ModuleDict({"cross_attn": nn.MultiheadAttention(16, 2, kdim=8, vdim=8)}), {},
     "PreviousToken found nothing but cross-attention"),
    (lambda: transformers.ElectraModel(config("Electra", **WIDTH, **TEXT, embedding_size=16)), {},
     "'embeddings.position_embeddings.weight' of width 16 reaches its tokens of width 64 through another layer, and"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "options", "message"), REFUSED)
def test_what_a_host_cannot_hold_is_one_line(build, options, message):
    with pytest.raises(StructuredInitError, match=message) as refusal:
        initialize(seeded(build), PreviousToken(**options))
    assert "\n" not in str(refusal.value)


def test_one_row_of_patches_is_a_sequence():
    vit = timm.models.vision_transformer.VisionTransformer
    model = seeded(lambda: vit(img_size=(8, 256), patch_size=8, embed_dim=64, depth=1, num_heads=2, num_classes=3))
    report = initialize(model, PreviousToken())
    assert position_sites(model)[0].grid == (1, 32)
    assert "looks 1 token back: 0.9" in report.notes["blocks.0.attn"]
    images = torch.randn(8, 3, 8, 256, generator=torch.Generator().manual_seed(0))
    maps = capture_attention(model, images, layers=[0])["blocks.0.attn"][:, :, 1:, 1:]
    assert min(share_on(maps[:, 0], 1, 16), share_on(maps[:, 1], -1, 16)) >= 0.8


def test_of_two_towers_that_which_cannot_is_skipped_with_the_reason():
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**vision, **TEXT, "max_position_embeddings": 16},
            vision_config={**vision, "image_size": 16, "patch_size": 4},
            projection_dim=8,
        )
    )
    report = initialize(model, PreviousToken())
    assert "use Impulse" in report.skipped["vision_model.encoder.layers.0.self_attn"]
    assert any("text_model" in name for entry in report.changed for name in entry.names)


def test_positions_that_checkpoints_leave_out_are_a_warning():
    class Small(nn.Module):
        """Positions in a buffer that is computed when the model is built."""

        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(20, 32)
            self.register_buffer("pos_embed", torch.zeros(16, 32), persistent=False)
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(32, 2, 32, batch_first=True)])

    model = seeded(Small)
    report = initialize(model, PreviousToken(causal=True))
    assert report.warnings == ["'pos_embed' is not saved in checkpoints: a reloaded model has its original positions"]
    assert "looks 1 token back: 0." in report.notes["layers.0.self_attn"]
    assert "looks 2 tokens back: 0." in report.notes["layers.0.self_attn"]  # causal, as was said


class Sensors(nn.Module):
    """Channels over time, a table of positions of one's own, and torch's encoder."""

    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Linear(3, 32), nn.Parameter(0.02 * torch.randn(1, 16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, values):
        return self.encoder(self.embed(values) + self.pos)


@pytest.mark.parametrize("samples", [2, 7, 16])
def test_what_torchs_attention_reads_is_measured_sample_by_sample(samples):
    torch.manual_seed(0)
    model, values = Sensors(), torch.randn(samples, 16, 3)
    content = model.embed(values).square().mean().sqrt().item()
    report = initialize(model, PreviousToken(), batch=values, seed=0)
    assert model.pos.detach().square().mean().sqrt() == pytest.approx(2.5 * content, rel=0.6)
    assert not report.warnings


class ScaledEmbeddings(nn.Module):
    """Words eight times as large as they are drawn, sinusoids in a buffer, and torch's encoder."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 64)
        self.register_buffer("pos_embed", torch.randn(1, 32, 64))
        layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids, labels=None):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.encoder(8 * self.words(ids) + self.pos_embed[:, : ids.shape[1]], mask)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("method", [PreviousToken, Induction])
@pytest.mark.parametrize("labelled", [False, True])
def test_one_text_is_enough_to_tell_positions_from_content(method, samples, labelled):
    ids = torch.randint(0, 50, (samples, 32), generator=torch.Generator().manual_seed(0))
    batch = {"ids": ids, "labels": torch.ones(samples)} if labelled else ids
    report = initialize(seeded(ScaledEmbeddings), method(), batch=batch)
    first, second = (report.notes.get(f"encoder.layers.{number}.self_attn", "") for number in (0, 1))
    shares = [float(share) for share in re.findall(r"back: (0\.\d+)", first)]
    assert min(shares) > 0.7
    assert "not measured" not in first + second
    assert ("measured on random tokens of the batch, repeated" in second) == (method is Induction)


def test_a_batch_that_is_only_offered_tells_content_and_causality_as_one_that_is_given():
    ids = torch.randint(0, 50, (2, 32), generator=torch.Generator().manual_seed(0))
    given, offered = (seeded(ScaledEmbeddings) for _ in range(2))
    notes = [initialize(model, PreviousToken(), batch=x).notes for model, x in ((given, ids), (offered, lambda: ids))]
    assert notes[0] == notes[1]
    assert all(map(torch.equal, given.state_dict().values(), offered.state_dict().values()))


class Halved(nn.Module):
    """A second stage of half as many tokens and twice as many heads, with positions of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.pos1, self.pos2 = nn.Embedding(50, 32), *(nn.Parameter(torch.zeros(32, d)) for d in (32, 64))
        self.stage1 = nn.ModuleList([nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)])
        self.stage2 = nn.ModuleList([nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)])

    def forward(self, ids):
        x = self.stage1[0](self.words(ids) + self.pos1)
        return self.stage2[0](x.reshape(len(x), -1, 64) + self.pos2[:16])


def test_stages_of_fewer_tokens_and_more_heads_are_read_in_a_batch_of_one():
    batch = torch.arange(32)[None]
    report = initialize(seeded(Halved), PreviousToken(causal=False, offsets=[1, -1]), batch=batch)
    assert list(report.notes) == ["pos1", "pos2", "stage1.0.self_attn", "stage2.0.self_attn"]


class Latents(nn.Module):
    """Attention among learned latents that have looked at a text with positions, or at nothing."""

    def __init__(self):
        super().__init__()
        self.words, self.pos = nn.Embedding(50, 32), nn.Parameter(torch.randn(20, 32))
        self.latents = nn.Parameter(torch.randn(6, 32))
        self.cross, self.among = (nn.MultiheadAttention(32, 2, batch_first=True) for _ in range(2))

    def forward(self, ids):
        x, latents = self.words(ids) + self.pos, self.latents.expand(len(ids), -1, -1)
        latents = latents + self.cross(latents, x, x)[0]
        return self.among(latents, latents, latents)[0]


def test_positions_of_a_text_are_not_those_of_latents_that_look_at_it():
    said = "'pos' is added to 20 tokens, and the 6 that 'among' sees are others, or a part of them"
    with pytest.raises(StructuredInitError, match=said):
        initialize(seeded(Latents), PreviousToken(), batch=torch.arange(40).view(2, 20))


class PadsItself(ScaledEmbeddings):
    """Takes texts of several lengths as a list."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(64, 2, 64, batch_first=True, norm_first=True)])

    def forward(self, texts):
        ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
        hidden = nn.utils.rnn.pad_sequence([torch.ones(len(each)) for each in texts], batch_first=True) == 0
        x = 8 * self.words(ids) + self.pos_embed[:, : ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) < 0
        return self.encoder[0](x, mask, hidden)


@pytest.mark.parametrize("lengths", [(32, 20, 10), (20, 32, 10)])
def test_texts_that_a_model_pads_itself_are_read_in_any_order(lengths):
    texts = [torch.randint(1, 50, (length,), generator=torch.Generator().manual_seed(length)) for length in lengths]
    report = initialize(seeded(PadsItself), PreviousToken(), batch=(texts,))
    assert min(float(share) for share in re.findall(r"back: (0\.\d+)", str(report.notes))) > 0.7


@pytest.mark.parametrize("samples", [1, 2])
def test_one_smooth_signal_is_enough_to_tell_positions_from_content(samples):
    """Samples that change slowly are alike by chance, which is not to be taken for positions."""
    torch.manual_seed(0)
    waves = 5 * torch.sin(6 * torch.rand(64, 1, 3) + 0.4 * torch.arange(16)[:, None])
    whole, few = (initialize(Sensors(), PreviousToken(), batch=batch) for batch in (waves, waves[:samples]))
    assert whole.warnings == few.warnings == []
    sizes = [re.search(r"root mean square is (\S+) \(measured\)", str(list(r.notes.values()))) for r in (whole, few)]
    assert 0.5 < float(sizes[0][1]) / float(sizes[1][1]) < 2


@pytest.mark.parametrize("size", [1.0, 0.75])
def test_content_of_patches_is_that_of_the_batch(size):
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.kringle = nn.Conv1d(6, 64, 4, stride=4), nn.Parameter(torch.randn(1, 32, 64))
            self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(64, 4, 64, batch_first=True, norm_first=True)])

        def forward(self, x):
            return self.encoder[0](self.stem(x).mT + self.kringle)

    windows, model = size * torch.randn(16, 6, 128, generator=torch.Generator().manual_seed(0)), seeded(Windows)
    initialize(model, PreviousToken(offsets=[1, -1]), batch=windows)
    with torch.no_grad():
        assert model.kringle.norm() / model.stem(windows[:1]).norm() == pytest.approx(1.5, rel=0.1)


class Items(nn.Module):
    """Texts of items that the model holds itself, padded behind: it is called with numbers of items."""

    def __init__(self, real):
        super().__init__()
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = transformers.BertConfig(**sizes, vocab_size=600, max_position_embeddings=14)
        self.text = transformers.BertModel(config, add_pooling_layer=False)
        ids = torch.randint(2, 600, (32, 14))
        self.register_buffer("ids", ids)
        self.register_buffer("mask", (torch.arange(14) < real).long().expand(32, -1))

    def forward(self, items):
        found = self.text(input_ids=self.ids, attention_mask=self.mask).last_hidden_state
        return found.mean(dim=1)[items]


@pytest.mark.parametrize("real", [14, 9, 6])
def test_padding_of_texts_that_are_not_the_batch_is_no_content(real):
    report = initialize(seeded(lambda: Items(real)), PreviousToken(), batch=torch.arange(32).view(4, 8))
    (note,) = report.notes.values()
    assert min(float(share) for share in re.findall(r"(?:back|ahead): (0\.\d+)", note)) > 0.85


class MixedHeads(nn.Module):
    """Attention whose logits and maps are mixed over the heads, behind a table of positions."""

    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(0.02 * torch.randn(1, 16, 32))
        self.query, self.key, self.value, self.output = (nn.Linear(32, 32) for _ in range(4))
        self.before, self.behind = (nn.Conv2d(4, 4, 1, bias=False) for _ in range(2))

    def forward(self, x):
        x = x + self.pos
        parts = (self.query, self.key, self.value)
        query, key, value = (each(x).unflatten(2, (4, 8)).transpose(1, 2) for each in parts)
        maps = self.behind(self.before(query @ key.mT / 8**0.5).softmax(dim=-1))
        return x + self.output((maps @ value).transpose(1, 2).flatten(2))


def test_heads_that_the_host_mixes_are_named_as_what_stands_in_the_way():
    torch.manual_seed(0)
    report = initialize(MixedHeads(), PreviousToken(), batch=torch.randn(4, 16, 32))
    assert [each for each in report.warnings if "the host mixes its heads, so no head has a map" in each]


def test_where_what_is_read_does_not_answer_to_positions_content_stays_what_was_taken_for_granted(monkeypatch):
    monkeypatch.setattr("structured_init.attention.sequence.absolute.positions_in", lambda reads: 1e-3)
    torch.manual_seed(0)
    model, values = Sensors(), torch.randn(4, 16, 3)
    report = initialize(model, PreviousToken(), batch=values, seed=0)
    assert model.pos.abs().max() < 20
    assert any("of 'pos' attention reads could not be measured" in line for line in report.warnings)


@pytest.mark.parametrize("offset", [0.0, 1.5, 10.0])
def test_positions_stand_out_from_what_is_common_to_all_samples(offset):
    torch.manual_seed(0)
    model, values = Sensors(), torch.randn(8, 16, 3) + offset  # as sounds, whose spectra have a mean of their own
    report = initialize(model, PreviousToken(), batch=values, seed=0)
    assert min(map(float, re.findall(r"back: (0\.\d+)", str(report.notes)))) > 0.7
    assert not report.warnings


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=25,
        max_target_positions=24, pad_token_id=0, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def bart():
    config = transformers.BartConfig(
        vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


def test_a_batch_that_is_too_short_is_not_used_and_the_report_says_so():
    batch = {"input_features": torch.randn(2, 8, 50), "decoder_input_ids": torch.randint(2, 64, (2, 12))}
    notes = initialize(whisper(), PreviousToken(), batch=batch).notes
    assert "at the end of 25 tokens" in notes["model.encoder.layers.0.self_attn"]
    assert "(on the batch; " in notes["model.encoder.layers.0.self_attn"]  # whose sounds are as long as asked
    assert "(on random tokens, as the batch has 12 of 24; " in notes["model.decoder.layers.0.self_attn"]
    both = {"input_ids": torch.randint(3, 60, (2, 43)), "decoder_input_ids": torch.randint(3, 60, (2, 12))}
    model = bart()  # whose encoder's heads look nowhere in texts that are as long as its table
    queries = model.model.encoder.layers[0].self_attn.q_proj
    queries.register_forward_hook(lambda _, __, out: out * (out.shape[1] < 64))
    report = initialize(model, PreviousToken(), batch=both)
    notes = report.notes
    assert report.warnings[0].endswith("; give a batch of your data that has 64 tokens (batch=)")
    assert "(on random tokens, as the batch has 43 of 64; " in notes["model.encoder.layers.0.self_attn"]
    assert "(on random tokens, as the batch has 12 of 64; " in notes["model.decoder.layers.0.self_attn"]


class Weather(nn.Module):
    """Attention over cells, then over hours, of tokens to which a table of each is added."""

    def __init__(self):
        super().__init__()
        self.hour, self.cell = nn.Parameter(torch.zeros(8, 1, 32)), nn.Parameter(torch.zeros(12, 32))
        self.norm, self.values = nn.LayerNorm(32), nn.Linear(5, 32)
        self.spatial, self.temporal = (nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))

    def forward(self, x):
        x = self.values(x) + self.hour + self.cell
        for attention in (self.spatial, self.temporal):
            y = self.norm(x).flatten(0, 1)
            x = (x + attention(y, y, y)[0].view_as(x)).transpose(1, 2)
        return x


def test_of_two_tables_that_are_added_to_the_same_tokens_the_earlier_layer_is_warned_of():
    batch = torch.randn(2, 8, 12, 5, generator=torch.Generator().manual_seed(0))
    [said] = initialize(seeded(Weather), PreviousToken(), batch=batch).warnings
    assert "of 'spatial' have" in said
    assert said.endswith("; choose another layer (where=)")
    for name in ("spatial", "temporal"):
        assert not initialize(seeded(Weather), PreviousToken(where=[name]), batch=batch).warnings


def test_the_note_says_no_more_of_an_mlp_than_was_done():
    torch.manual_seed(1)  # of some draws nothing is to be scaled
    model = whisper()
    before = {name: value.clone() for name, value in model.model.decoder.layers[0].named_parameters()}
    note = initialize(model, Induction()).notes["model.decoder.layers.0.self_attn"]
    assert "what follows it could not be scaled" in note
    assert "its MLP by" not in note
    assert torch.equal(model.model.decoder.layers[0].fc2.weight, before["fc2.weight"])


def test_padding_is_not_measured():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config)
    for lengths, said in (
        ([16, 9, 12, 6], "(on the batch; "),
        ([13, 6], "(on random tokens, as the batch has 13 of 16; "),
    ):
        mask = (torch.arange(16) < torch.tensor(lengths)[:, None]).long()
        batch = {"input_ids": torch.randint(3, 50, mask.shape) * mask, "attention_mask": mask}
        [note] = initialize(model, PreviousToken(causal=False), batch=batch, seed=0).notes.values()
        assert "at the end of 16 tokens, measured: " in note
        assert said in note


class PaddedEncoder(nn.Module):
    """Token 0 is padding; embeddings are as large as is said, so that a softmax of them may be sharp."""

    def __init__(self, scale):
        super().__init__()
        self.scale, self.tokens, self.places = scale, nn.Embedding(50, 32), nn.Embedding(40, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)

    def forward(self, tokens):
        added = self.tokens(tokens) * self.scale + self.places(torch.arange(tokens.shape[1]))
        return self.layers(added, src_key_padding_mask=tokens == 0)


PADDED = torch.randint(1, 50, (4, 18), generator=torch.Generator().manual_seed(0))
PADDED[0, 11:] = 0


@pytest.mark.filterwarnings("ignore:.*nested tensor")
@pytest.mark.parametrize("scale", [1, 3, 32**0.5])
def test_padding_is_told_from_what_a_sharp_softmax_leaves_out(scale):
    torch.manual_seed(0)
    model = PaddedEncoder(scale)
    note = initialize(model, PreviousToken(), batch=PADDED, seed=0).notes["layers.layers.0.self_attn"]
    maps = capture_attention(model, PADDED)["layers.layers.0.self_attn"]
    true = torch.cat([maps[i, 0, range(9, end), range(8, end - 1)] for i, end in enumerate([11, 18, 18, 18])]).mean()
    assert reported(note)[1] == pytest.approx(true.item(), abs=0.006)


@pytest.mark.filterwarnings("ignore:.*nested tensor")
def test_positions_that_two_layers_read_are_written_for_the_first():
    tables = []
    for where in ("layers.0.self_attn", "layers"):
        torch.manual_seed(0)
        model = PaddedEncoder(1.0)
        report = initialize(model, PreviousToken([1], where=where), batch=PADDED, seed=0)
        tables.append(model.places.weight.detach())
    assert torch.equal(*tables)
    assert "positions as written for a layer before" in report.notes["layers.layers.1.self_attn"]


def test_tokens_that_a_model_itself_takes_for_padding_are_not_measured():
    class Padded(transformers.BertModel):
        def forward(self, tokens):
            return super().forward(tokens, (tokens != 0).long())

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    whole = torch.randint(3, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    padded = whole * (torch.arange(16) < torch.tensor([[11], [9]]))
    shares = []
    for batch in (whole, padded):
        torch.manual_seed(0)
        report = initialize(Padded(config), PreviousToken([1, -1, 2, -2]), batch=batch, seed=0)
        assert not report.warnings
        shares.append(reported(next(iter(report.notes.values()))))
    assert shares[1] == pytest.approx(shares[0], abs=0.1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])  # of which the second lets padding see all that is padded
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_padding_of_causal_hosts_is_told_from_the_network_as_it_was(kind, attention):
    base = getattr(transformers, f"{kind}Model")

    class Padded(base):
        def forward(self, tokens):
            return super().forward(tokens, attention_mask=(tokens != 0).long())

    made = base.config_class(
        vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    made._attn_implementation = attention
    tokens = torch.randint(3, 50, (2, 32), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    padded = tokens * (torch.arange(32) >= torch.tensor([[12], [16]]))
    report = initialize(Padded(made), PreviousToken([1, 2, 3, 4]), batch=padded, seed=0, strict=True)
    assert min(reported(next(iter(report.notes.values()))).values()) > 0.85


def test_padding_on_the_left_is_not_measured_either():
    class Sessions(nn.Module):
        """Items with padding before them, which sees itself alone."""

        def __init__(self):
            super().__init__()
            self.items, self.pos = nn.Embedding(100, 32, padding_idx=0), nn.Embedding(16, 32)
            layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, items):
            hidden = torch.ones(16, 16).triu(1).bool() | (items == 0)[:, None]
            hidden = (hidden & ~torch.eye(16).bool()).repeat_interleave(2, dim=0)
            return self.blocks(self.items(items) + self.pos.weight, mask=hidden)

    whole = torch.randint(1, 100, (8, 16), generator=torch.Generator().manual_seed(0))
    padded = whole * (torch.arange(16) >= torch.arange(8)[:, None])
    found = []
    for batch in (whole, padded):
        torch.manual_seed(0)
        model = Sessions()
        report = initialize(model, PreviousToken([1, 2]), batch=batch, seed=0, strict=True)
        found.append((model.pos.weight.std().item(), reported(next(iter(report.notes.values())))))
    assert found[1][0] == pytest.approx(found[0][0], rel=0.05)
    assert found[1][1] == pytest.approx(found[0][1], abs=0.1)  # among fewer tokens it is a little more


def test_padding_that_a_causal_model_does_not_hide_is_neither_content_nor_measured():
    class Games(nn.Module):
        def __init__(self):
            super().__init__()
            self.moves, self.pos = nn.Embedding(100, 64, padding_idx=0), nn.Embedding(32, 64)
            layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, moves):
            return self.blocks(self.moves(moves) + self.pos.weight, mask=torch.ones(32, 32).triu(1).bool())

    whole = torch.randint(1, 100, (8, 32), generator=torch.Generator().manual_seed(0))
    real = torch.arange(32) < torch.tensor([32, 20, *[4] * 6])[:, None]
    sizes = []
    for batch in (whole, whole * real):
        model = seeded(Games)
        [note] = initialize(model, PreviousToken([1, 2]), batch=batch, seed=0, strict=True).notes.values()
        sizes.append(model.pos.weight.norm().item())
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    [maps] = capture_attention(model, batch, max_samples=None).values()
    for head in (0, 1):
        looks = [maps[n, head, t, t - head - 1].item() for n, own in enumerate(real) for t in range(16, 32) if own[t]]
        assert reported(note)[head + 1] == pytest.approx(sum(looks) / len(looks), abs=0.006)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("lengths", "longest"), [((32, 20, 18, 5), 32), ((8, 8, 8, 8), 8)])
def test_the_share_at_the_end_is_that_of_tokens_with_as_many_before_them_however_texts_are_padded(
    lengths, longest, left
):
    class Own(transformers.GPT2Model):
        def forward(self, tokens):
            return super().forward(tokens, attention_mask=(tokens != 0).long())

    real = torch.arange(32) < torch.tensor(lengths)[:, None]
    real = real.flip(1) if left else real
    batch = torch.randint(3, 50, (4, 32), generator=torch.Generator().manual_seed(0)) * real
    model = seeded(lambda: Own(gpt2(n_positions=32, n_layer=1).config))
    [note] = initialize(model, PreviousToken([1, 2]), batch=batch, seed=0).notes.values()
    assert f"at the end of {longest} tokens, measured: " in note
    maps = capture_attention(model, batch, max_samples=None)["h.0.attn"]
    for head, offset in ((0, 1), (1, 2)):
        looks = [
            maps[sample, head, t, t - offset].item()
            for sample, own in enumerate(real)
            for t in range(32)
            if own[t] and own[: t + 1].sum() > max(longest // 2, offset)
        ]
        assert reported(note)[offset] == pytest.approx(sum(looks) / len(looks), abs=0.006)


@pytest.mark.parametrize("kind", ["GPT2", "Llama", "T5Encoder"])
def test_what_is_predicted_is_so_for_as_many_tokens_as_are_measured(kind):
    base = getattr(transformers, f"{kind}Model")

    class Own(base):
        def forward(self, tokens):
            return super().forward(tokens, attention_mask=(tokens != 0).long())

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    sizes |= {"d_kv": 16, "d_ff": 32} if kind == "T5Encoder" else {"max_position_embeddings": 64}
    made = base.config_class(vocab_size=50, bos_token_id=1, eos_token_id=2, **sizes)
    batch = torch.randint(3, 50, (16, 64), generator=torch.Generator().manual_seed(0)) * (torch.arange(64) < 8)
    [note] = initialize(seeded(lambda: Own(made)), PreviousToken([1], context=64), batch=batch, seed=0).notes.values()
    assert "at the end of 8 tokens, measured: head 0 looks 1 token back: " in note
    assert "on the batch, solved for 64" in note
    assert "predicted" not in note  # which it is where the two differ by more than 0.05


def test_a_head_whose_offset_no_token_of_the_batch_has_is_said_not_to_be_measured():
    class Own(transformers.LlamaModel):
        def forward(self, tokens):
            return super().forward(tokens)

    batch = torch.randint(3, 50, (2, 16), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = Own(transformers.LlamaConfig(**{**WIDTH, **TEXT, **SIZE}))
    [note] = initialize(model, PreviousToken([1, 40]), batch=batch, seed=0).notes.values()
    assert re.search(r"1 token back: 0\.\d+, head 1 .* \(predicted; none of the 16 tokens has one there\)", note)


def test_where_the_hosts_example_does_not_run_heads_are_measured_on_the_batch():
    class Own(transformers.BertModel):
        def forward(self, input_ids, attention_mask=None, **more):
            if attention_mask is None:  # which the host's own example has not
                raise ValueError("it needs a mask")
            return super().forward(input_ids, attention_mask, **more)

    config = transformers.BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    mask = (torch.arange(16) < torch.tensor([9, 7])[:, None]).long()
    batch = {"input_ids": torch.randint(3, 50, (2, 16)) * mask, "attention_mask": mask}
    [note] = initialize(Own(config), PreviousToken(causal=False), batch=batch, seed=0).notes.values()
    assert "at the end of 9 tokens, measured: " in note
    assert "(on the batch, solved for 16; " in note


def test_a_batch_that_is_longer_than_the_context_is_named():
    torch.manual_seed(0)
    batch = torch.randint(3, 60, (2, 64), generator=torch.Generator().manual_seed(0))
    [warning] = initialize(gpt2(), PreviousToken([1], context=4), batch=batch, seed=0).warnings
    assert "they were solved for 4 tokens, and here are 64: set context= to the most" in warning


class Signals(nn.Module):
    """Convolutions and a norm over (batch, 8, 64), then attention over 64 tokens."""

    def __init__(self, norm):
        super().__init__()
        stem = (nn.Conv1d(8, 32, 7, padding=3), norm, nn.GELU(), nn.Conv1d(32, 32, 5, padding=2))
        self.stem = nn.Sequential(*stem)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 64, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.pooled = nn.BatchNorm1d(32)  # one number of each channel, if the batch has one sample

    def forward(self, signals):
        return self.pooled(self.encoder(self.stem(signals).transpose(1, 2) + self.pos).mean(1))


TRACKING = partial(nn.InstanceNorm1d, track_running_stats=True)  # which does not count batches


@pytest.mark.parametrize(
    ("norm", "seen"), [*product([nn.BatchNorm1d, nn.SyncBatchNorm], [0, 1, 12]), (TRACKING, 0), (TRACKING, 12)]
)
def test_norms_that_have_hardly_seen_a_batch_are_measured_as_they_train(norm, seen):
    torch.manual_seed(0)
    model, signals = Signals(norm(32)), 0.1 * torch.randn(16, 8, 64)
    with torch.no_grad():
        for _ in range(seen):
            model.train()(3 * signals + 1)
    before = {name: value.clone() for name, value in model.named_buffers()}
    report = initialize(model.eval(), "previous_token", batch=signals, seed=0)
    said = [float(each) for each in re.findall(r"looks 1 token (?:back|ahead): (\d\.\d+)", str(report.notes))]
    maps = capture_attention(model, signals, max_samples=None)["encoder.layers.0.self_attn"]
    assert len(said) == 2
    assert not any(each.training for each in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    capture_attention(model, signals[:1])  # the last norm has one number of each channel
    with torch.no_grad():
        norm, attention = model.encoder.layers[0].norm1, model.encoder.layers[0].self_attn
        inside = norm(model.train(seen < 12).stem(signals).transpose(1, 2) + model.pos)
        true = attention(inside, inside, inside, average_attn_weights=False)[1]
    torch.testing.assert_close(maps, true, atol=1e-5, rtol=1e-4)
    looks = [
        true[:, head].diagonal(offset, dim1=1, dim2=2)[:, -31:].mean().item() for head, offset in ((0, -1), (1, 1))
    ]
    assert min(looks) > 0.6
    assert said == pytest.approx(looks, abs=0.06)


class Beside(Signals):
    """A norm that its owner keeps in evaluation mode, and one that takes a pair."""

    class Paired(nn.BatchNorm1d):
        def forward(self, pair):
            return super().forward(pair[0])

    def __init__(self):
        super().__init__(nn.BatchNorm1d(32))
        self.pair = self.Paired(8)

    def train(self, mode=True):
        super().train(mode).stem[1].eval()
        return self

    def forward(self, signals):
        return super().forward(self.pair((signals, None)))


def test_a_norm_that_is_kept_in_evaluation_mode_stays_so():
    torch.manual_seed(0)
    model, signals = Beside(), 0.1 * torch.randn(16, 8, 64)
    maps = capture_attention(model.train(), signals, max_samples=None)["encoder.layers.0.self_attn"]
    with torch.no_grad():
        norm, attention = model.encoder.layers[0].norm1, model.encoder.layers[0].self_attn
        inside = norm(model.stem(model.pair((signals, None))).transpose(1, 2) + model.pos)
        torch.testing.assert_close(
            maps, attention(inside, inside, inside, average_attn_weights=False)[1], atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("momentum", [0.0, None, 0.1])
def test_norms_that_have_seen_enough_keep_their_statistics_whatever_the_momentum_of_today(momentum):
    torch.manual_seed(0)
    model, signals = Signals(nn.BatchNorm1d(32)), 0.1 * torch.randn(16, 8, 64)
    with torch.no_grad():
        for _ in range(20):
            model.train()(3 * signals + 1)
    (before,) = capture_attention(model.eval(), signals).values()
    model.stem[1].momentum = model.pooled.momentum = momentum
    (after,) = capture_attention(model, signals[:4]).values()
    torch.testing.assert_close(after, before[:4])


def test_content_that_a_convolution_makes_of_signals_is_said_to_be_of_a_convolution():
    report = initialize(Signals(nn.Identity()), PreviousToken())
    assert "(convolution)" in report.notes["encoder.layers.0.self_attn"]


def test_an_instance_norm_has_its_numbers_in_a_sample():
    model = Signals(TRACKING(32)).eval()
    model.pooled = nn.Identity()
    model.stem.insert(1, nn.AdaptiveAvgPool1d(1))
    assert capture_attention(model, torch.randn(4, 8, 64))
