"""PreviousToken: in the whole network, on real text, heads put their attention on their offset."""

from __future__ import annotations

import pydoc_data.topics
import re
from functools import partial

import peft
import pytest
import timm
import torch
import transformers
from hosts import of_transformers, seeded
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

LENGTH, DIM, HEADS = 96, 64, 2
WIDTH = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 32}
TEXT = {"vocab_size": 140, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
SIZE = {"max_position_embeddings": LENGTH}
BEIT = {"img_size": 24, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 4, "use_abs_pos_emb": False}
SWIN = {"img_size": 16, "patch_size": 4, "window_size": (2, 4), "embed_dim": 32, "depths": (1,), "num_heads": (4,)}


def gpt2(**options):
    settings = {"n_embd": DIM, "n_layer": 2, "n_head": HEADS, "n_positions": LENGTH, **TEXT, **options}
    return of_transformers("GPT2Model", **settings)


def llama(**options):
    return of_transformers("LlamaForCausalLM", **{**WIDTH, **TEXT, **SIZE, **options})


def bert():
    return of_transformers("BertModel", **WIDTH, **SIZE, **TEXT)


def small(kind, **options):
    """A host of transformers of one layer, its width under whichever name it has."""
    settings = {**WIDTH, **TEXT, **SIZE, "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 32, **options}
    return of_transformers(f"{kind}Model", **settings)


def seq2seq(kind, **options):
    widths = {f"{tower}_{what}": 2 for tower in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    widths |= {"d_model": DIM, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    return of_transformers(f"{kind}Model", **widths, **TEXT, **SIZE, **options)


T5 = {"d_model": DIM, "d_kv": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 140}
GPT_J = {"n_embd": DIM, "n_layer": 1, "n_head": 2, "rotary_dim": 16, "n_positions": LENGTH, **TEXT}
DIVIDED = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}
# Host, offsets of its heads by default, least share: below, hosts that are not what their modules suggest
HOSTS = {
    "GPT-2": (gpt2, [1, 2], 0.8),
    "BERT": (bert, [1, -1], 0.8),
    "T5's encoder": (lambda: of_transformers("T5EncoderModel", **T5), [1, -1], 0.8),
    "Qwen2, with shared keys": (lambda: small("Qwen2", num_attention_heads=4, head_dim=16), [1, 2, 3, 4], 0.6),
    "Llama, tied, with shared keys": (lambda: llama(num_key_value_heads=1, tie_word_embeddings=True), [1, 2], 0.6),
    "Qwen3, a norm with an epsilon": (lambda: small("Qwen3"), [1, 2], 0.3),
    "Gemma 3, its logits scaled otherwise": (lambda: small("Gemma3Text", query_pre_attn_scalar=8), [1, 2], 0.75),
    "Llama, positions divided by 4": (lambda: small("Llama", **DIVIDED), [1, 2], 0.75),
    "GPT-J, neighbouring coordinates": (lambda: of_transformers("GPTJModel", **GPT_J), [1, 2], 0.6),
    "Pegasus, embeddings times √d": (lambda: seq2seq("Pegasus", scale_embedding=True).decoder, [1, 2], 0.75),
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
    assert ("embed_tokens.weight, which were changed" in told) == ("Llama" in name or "3" in name)
    bounded = "Qwen3" in name
    assert len(report.warnings) == bounded
    assert not bounded or "norms of queries and keys bound its logits" in report.warnings[0]


@pytest.mark.parametrize(
    ("build", "side"),
    [
        (lambda: timm.models.beit.Beit(**BEIT, use_rel_pos_bias=True), 24),
        (lambda: timm.models.swin_transformer.SwinTransformer(**SWIN), 16),
    ],
    ids=["BEiT", "Swin, wide windows"],
)
def test_heads_of_a_grid_look_left_right_up_and_down(build, side):
    model, images = seeded(build), torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    initialize(model, PreviousToken(), batch=images)
    site = attention_sites(model)[0]
    rows, columns = site.grid
    maps = capture_attention(model, images, layers=[0])[site.name][:, :, site.prefix_tokens :, site.prefix_tokens :]
    for head, (up, left) in enumerate([(0, 1), (0, -1), (1, 0), (-1, 0)]):
        seen = [
            maps[:, head, y * columns + x, (y - up) * columns + x - left].mean()
            for y in range(rows)
            for x in range(columns)
            if 0 <= y - up < rows and 0 <= x - left < columns
        ]
        assert sum(seen) / len(seen) >= 0.8


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # of peft's
def test_heads_below_an_adapter_are_measured_where_it_adds_nothing(text):
    def adapted(option):
        options = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": option}
        return peft.get_peft_model(seeded(llama), peft.LoraConfig(r=2, **options))

    with pytest.raises(StructuredInitError, match="a forward pass does not show how"):
        initialize(adapted("pissa"), PreviousToken(), batch={"input_ids": text})
    model = adapted(True)
    note = initialize(model, PreviousToken(), batch={"input_ids": text}).notes["model.layers.0.self_attn"]
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
    assert "head 0 looks 1 token back: 0.00 (on random tokens;" in report.notes["h.0.attn"]
    assert "head 0 of 'h.0.attn' has 0.00" in report.warnings[0]
    assert "a mask hides these tokens" in report.warnings[0]
    with pytest.raises(StructuredInitError, match=r"PreviousToken, strict: head 0 of 'h.0.attn' has 0\.00"):
        initialize(same, PreviousToken(offsets=[1, None]), strict=True)
    assert all(map(torch.equal, same.state_dict().values(), blind().state_dict().values()))


def _without_the_token_before(forward, hidden_states, *args, attention_mask=None, **kwargs):
    length = hidden_states.shape[1]
    hidden = torch.full((length, length), -torch.inf).triu(1)
    hidden[range(1, length), range(length - 1)] = -torch.inf
    return forward(hidden_states, *args, attention_mask=hidden[None, None], **kwargs)


class TokensFirst(nn.Module):
    """The model of torch's tutorial: tokens on axis 0, or samples first and transposed inside."""

    def __init__(self, transposes):
        super().__init__()
        self.transposes, self.words = transposes, nn.Embedding(50, DIM)
        self.pe = nn.Parameter(torch.zeros(LENGTH, 1, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        ids = ids.T if self.transposes else ids
        mask = nn.Transformer.generate_square_subsequent_mask(len(ids))
        return self.encoder(self.words(ids) + self.pe[: len(ids)], mask)


@pytest.mark.parametrize("method", [PreviousToken, Induction])
def test_tokens_on_axis_0_are_refused_and_a_model_that_transposes_inside_is_written_as_it_is(method):
    ids = torch.randint(0, 50, (4, 32), generator=torch.Generator().manual_seed(0))
    said = "'encoder.layers.0.self_attn' attends along axis 0 of the batch"
    report = initialize(TokensFirst(True), method(context=32), batch=ids)
    assert report.changed
    assert said not in " ".join(report.warnings)
    with pytest.raises(StructuredInitError, match=said):
        initialize(TokensFirst(False), method(context=32), batch=ids.T)


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


class Steps(nn.Module):
    """Steps of two words, an action and a reward, from a table each, under rotary positions.

    ``types`` are added to the words. ``slot`` is added to all and repeats from step to step.
    """

    def __init__(self):
        super().__init__()
        self.words, self.acts, self.rewards = nn.Embedding(50, DIM), nn.Embedding(5, DIM), nn.Embedding(3, DIM)
        self.types, self.slot = nn.Embedding(20, DIM), nn.Parameter(torch.randn(4, DIM))
        self.layers = nn.ModuleList([nn.Module()])
        self.layers[0].norm1, self.layers[0].attn = nn.RMSNorm(DIM), nn.Module()
        self.layers[0].attn.qkv, self.layers[0].attn.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)

    def embed(self, words, acts, rewards):
        x = self.words(words) + 0.1 * self.types(words % 20)
        x = torch.cat([x, self.acts(acts)[:, :, None], self.rewards(rewards)[:, :, None]], 2) + self.slot
        return x.flatten(1, 2)

    def forward(self, *tokens):
        x, block = self.embed(*tokens), self.layers[0]
        q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        angle = torch.arange(x.shape[1])[:, None] * 1000.0 ** -torch.linspace(0, 1, q.shape[-1] // 2)
        turn = lambda a, b: torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)  # noqa: E731
        q, k = turn(*q.chunk(2, -1)), turn(*k.chunk(2, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + block.attn.proj(y.transpose(1, 2).flatten(2))


def steps():
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(0))
    return draw(50, (8, 8, 2)), draw(5, (8, 8)), draw(3, (8, 8))


def test_tokens_of_several_tables_all_get_the_direction_beside_what_is_added_to_them():
    """A table that repeats from step to step is no table of positions, so heads look through rotary ones."""
    model = seeded(Steps)
    report = initialize(model, PreviousToken(offsets=[1, 4], context=32), batch=steps())
    tables = [each.names[0] for each in report.changed if "norm" not in each.names[0]]
    assert tables == [*(f"{name}.weight" for name in ("words", "acts", "rewards", "types", "layers.0.attn.qkv"))]
    named = "all rows but zeros of words.weight, types.weight, acts.weight, rewards.weight, which"
    assert named in report.notes["layers.0.attn"]
    assert not report.warnings
    (maps,) = capture_attention(model, steps(), max_samples=None).values()
    for head, offset in enumerate([1, 4]):
        shares = maps[:, head].diagonal(-offset, 1, 2).mean(0)[16 - offset :]
        assert all(shares[kind::4].mean() > 0.45 for kind in range(4))


def test_steps_of_several_tokens_are_no_positions_of_these():
    """Return, state and action of a step share its row, however long the table is."""
    sizes = {"state_dim": 7, "act_dim": 2, "hidden_size": DIM, "max_ep_len": 60, "n_layer": 1, "n_head": HEADS}
    model = of_transformers("DecisionTransformerModel", **sizes, bos_token_id=0, eos_token_id=0)
    batch = {"states": 7, "actions": 2, "rewards": 1, "returns_to_go": 1}
    batch = {name: torch.rand(2, 20, width) for name, width in batch.items()}
    batch |= {"timesteps": torch.arange(20).repeat(2, 1), "attention_mask": torch.ones(2, 20)}
    said = "'embed_timestep.weight' gives 20 rows to the 60 tokens that 'encoder.h.0.attn' sees"
    with pytest.raises(StructuredInitError, match=said):
        initialize(model, PreviousToken(offsets=[1]), batch=batch)


# What cannot be


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), 2, enable_nested_tensor=False)


REFUSED = [
    (gpt2, PreviousToken([1, 2, 3]), r"3 offsets for the 2 heads of 'h.0.attn'"),
    (gpt2, PreviousToken([96]), r"offset 96 lies outside of the 96 tokens that 'h.0.attn' sees"),
    (gpt2, PreviousToken([-1]), r"offset -1 looks ahead, but 'h.0.attn' is causal"),
    (lambda: of_transformers("BloomModel", hidden_size=DIM, n_layer=1, n_head=4, **TEXT), PreviousToken(),
     r"'h.0.self_attention' has no positions that are known: .*, and ALiBi is none of these"),
    (encoder, PreviousToken(), r"'layers.0.self_attn' has no positions .* neither absolute, relative nor rotary ones"),
    (lambda: timm.models.VisionTransformer(16, 4, embed_dim=16, depth=1, num_heads=2), PreviousToken(),
     r"sees a grid of 4 rows through absolute positions: use Impulse"),
    (lambda: of_transformers("ElectraModel", **WIDTH, **TEXT, embedding_size=16), PreviousToken(),
     "'embeddings.position_embeddings.weight' of width 16 reaches its tokens of width 64 through another layer, and"),
    (lambda: gpt2(n_layer=1), Induction(),
     "'h.0.attn' is the only attention layer of its stack: an induction circuit takes two"),
    (bert, Induction(), "is not causal, so it predicts no next token: use PreviousToken"),
    (encoder, Induction(), "^Induction: 'layers.0.self_attn' has no positions that are known"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "initializer", "message"), REFUSED)
def test_what_a_host_cannot_hold_is_one_line(build, initializer, message):
    with pytest.raises(StructuredInitError, match=message) as refusal:
        initialize(seeded(build), initializer)
    assert "\n" not in str(refusal.value)


def test_one_row_of_patches_is_a_sequence():
    vit = timm.models.vision_transformer.VisionTransformer
    model = seeded(lambda: vit(img_size=(8, 256), patch_size=8, embed_dim=64, depth=1, num_heads=2, num_classes=3))
    images = torch.randn(8, 3, 8, 256, generator=torch.Generator().manual_seed(0))
    report = initialize(model, PreviousToken(), batch=images)
    assert position_sites(model)[0].grid == (1, 32)
    assert "looks 1 token back: 0.9" in report.notes["blocks.0.attn"]
    maps = capture_attention(model, images, layers=[0])["blocks.0.attn"][:, :, 1:, 1:]
    assert min(share_on(maps[:, 0], 1, 16), share_on(maps[:, 1], -1, 16)) >= 0.8


def test_of_two_towers_that_which_cannot_is_skipped_with_the_reason():
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text, images = {**vision, **TEXT, "max_position_embeddings": 16}, {**vision, "image_size": 16, "patch_size": 4}
    model = of_transformers("CLIPModel", text_config=text, vision_config=images, projection_dim=8)
    report = initialize(model, PreviousToken())
    assert "use Impulse" in report.skipped["vision_model.encoder.layers.0.self_attn"]
    assert any("text_model" in name for entry in report.changed for name in entry.names)


class Sensors(nn.Module):
    """Channels over time, a table of positions of one's own, and torch's encoder."""

    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Linear(3, 32), nn.Parameter(0.02 * torch.randn(1, 16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, values):
        return self.encoder(self.embed(values) + self.pos)


@pytest.mark.parametrize("mean", [0, 10])  # as sounds, whose spectra have a mean of their own
def test_positions_of_torchs_attention_stand_out_from_content_and_from_what_is_common_to_all_samples(mean):
    torch.manual_seed(0)
    model, values = Sensors(), torch.randn(8, 16, 3) + mean
    content = model.embed(values).square().mean().sqrt().item()
    report = initialize(model, PreviousToken(), batch=values, seed=0)
    assert model.pos.detach().square().mean().sqrt() == pytest.approx(2.5 * content, rel=0.6)
    assert min(map(float, re.findall(r"back: (0\.\d+)", str(report.notes)))) > 0.7
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


@pytest.mark.parametrize("method", [PreviousToken, Induction])
def test_one_text_is_enough_to_tell_positions_from_content(method):
    ids = torch.randint(0, 50, (1, 32), generator=torch.Generator().manual_seed(0))
    report = initialize(seeded(ScaledEmbeddings), method(), batch={"ids": ids, "labels": torch.ones(1)})
    first, second = (report.notes.get(f"encoder.layers.{number}.self_attn", "") for number in (0, 1))
    shares = [float(share) for share in re.findall(r"back: (0\.\d+)", first)]
    assert min(shares) > 0.7
    assert "not measured" not in first + second
    assert ("measured on random tokens of the batch that come twice" in second) == (method is Induction)


def test_positions_that_checkpoints_leave_out_are_a_warning():
    model, ids = seeded(ScaledEmbeddings), torch.randint(0, 50, (4, 32), generator=torch.Generator().manual_seed(0))
    model.register_buffer("pos_embed", model.pos_embed, persistent=False)
    report = initialize(model, PreviousToken(), batch=ids)
    assert report.warnings == ["'pos_embed' is not saved in checkpoints: a reloaded model has its original positions"]
    # It is causal, as the batch shows.
    assert reported(report.notes["encoder.layers.0.self_attn"]).keys() == {1, 2}


def test_a_batch_that_is_only_offered_tells_content_and_causality_as_one_that_is_given():
    ids = torch.randint(0, 50, (2, 32), generator=torch.Generator().manual_seed(0))
    given, offered = (seeded(ScaledEmbeddings) for _ in range(2))
    notes = [initialize(model, PreviousToken(), batch=x).notes for model, x in ((given, ids), (offered, lambda: ids))]
    assert notes[0] == notes[1]
    assert all(map(torch.equal, given.state_dict().values(), offered.state_dict().values()))


def test_a_batch_that_is_too_short_is_not_used_and_the_report_says_so():
    batch = {"input_features": torch.randn(2, 8, 50), "decoder_input_ids": torch.randint(2, 64, (2, 12))}
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=25,
        max_target_positions=24, pad_token_id=0, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    notes = initialize(model, PreviousToken(), batch=batch).notes
    assert "at the end of 25 tokens" in notes["model.encoder.layers.0.self_attn"]
    assert "(on the batch; " in notes["model.encoder.layers.0.self_attn"]  # whose sounds are as long as asked
    assert "(on random tokens, as the batch has 12 of 24; " in notes["model.decoder.layers.0.self_attn"]


class PaddedEncoder(nn.Module):
    """Token 0 is padding; embeddings are so large that a softmax of them is sharp."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(40, 32)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)

    def forward(self, tokens):
        added = self.tokens(tokens) * 32**0.5 + self.places(torch.arange(tokens.shape[1]))
        return self.layers(added, src_key_padding_mask=tokens == 0)


PADDED = torch.randint(1, 50, (4, 18), generator=torch.Generator().manual_seed(0))
PADDED[0, 11:] = 0


@pytest.mark.filterwarnings("ignore:.*nested tensor")
def test_padding_is_told_from_what_a_sharp_softmax_leaves_out():
    torch.manual_seed(0)
    model = PaddedEncoder()
    note = initialize(model, PreviousToken(), batch=PADDED, seed=0).notes["layers.layers.0.self_attn"]
    maps = capture_attention(model, PADDED)["layers.layers.0.self_attn"]
    true = torch.cat([maps[i, 0, range(9, end), range(8, end - 1)] for i, end in enumerate([11, 18, 18, 18])]).mean()
    assert reported(note)[1] == pytest.approx(true.item(), abs=0.006)


@pytest.mark.parametrize("left", [False, True])
def test_the_share_at_the_end_is_that_of_tokens_with_as_many_before_them_however_texts_are_padded(left):
    class Own(transformers.GPT2Model):
        def forward(self, tokens):
            return super().forward(tokens, attention_mask=(tokens != 0).long())

    real = torch.arange(32) < torch.tensor([32, 20, 18, 5])[:, None]
    real = real.flip(1) if left else real
    batch = torch.randint(3, 50, (4, 32), generator=torch.Generator().manual_seed(0)) * real
    model = seeded(lambda: Own(gpt2(n_positions=32, n_layer=1).config))
    [note] = initialize(model, PreviousToken([1, 2]), batch=batch, seed=0).notes.values()
    assert "at the end of 32 tokens, measured: " in note
    maps = capture_attention(model, batch, max_samples=None)["h.0.attn"]
    for head, offset in ((0, 1), (1, 2)):
        looks = [
            maps[sample, head, t, t - offset].item()
            for sample, own in enumerate(real)
            for t in range(32)
            if own[t] and own[: t + 1].sum() > 16
        ]
        assert reported(note)[offset] == pytest.approx(sum(looks) / len(looks), abs=0.006)


def test_padding_that_no_mask_hides_is_told_by_the_row_that_its_table_has_for_it():
    """A Llama that is given no mask: rows of padding are zero, so as queries they look at all tokens alike."""
    batch = torch.randint(3, 50, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    batch[:, LENGTH * 2 // 3 :] = TEXT["pad_token_id"]
    report = initialize(seeded(llama), PreviousToken(), batch={"input_ids": batch}, seed=0)
    assert f"at the end of {LENGTH * 2 // 3} tokens" in report.notes["model.layers.0.self_attn"]
    assert min(reported(report.notes["model.layers.0.self_attn"]).values()) > 0.8


def test_a_batch_that_is_longer_than_the_context_is_taken_as_it_is():
    batch = torch.randint(3, 60, (2, 64), generator=torch.Generator().manual_seed(0))
    report = initialize(seeded(gpt2), PreviousToken([1], context=4), batch=batch, seed=0)
    assert "at the end of 64 tokens, measured: head 0 looks 1 token back: 0.9" in report.notes["h.0.attn"]


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


@pytest.mark.parametrize("seen", [0, 12])
def test_norms_that_have_hardly_seen_a_batch_are_measured_as_they_train(seen):
    torch.manual_seed(0)
    model, signals = Signals(nn.BatchNorm1d(32)), 0.1 * torch.randn(16, 8, 64)
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


def test_a_model_whose_attention_is_no_number_is_refused():
    model = seeded(gpt2)
    model.wte.weight.data.fill_(torch.nan)
    with pytest.raises(StructuredInitError, match="attends with no numbers"):
        initialize(model, PreviousToken())
