"""Mimetic values as large as a share of the stream, measured in a real forward pass: what a block adds to its input."""

from functools import partial

import pytest
import timm
import torch
from hosts import of_transformers, seeded

from structured_init import Compose, Mimetic, PreviousToken, StructuredInitError, initialize
from structured_init.hosts import watched

TEXT = {"vocab_size": 80, "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def gpt2():
    return of_transformers("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, **TEXT)


def llama(**options):
    return of_transformers("LlamaForCausalLM", **SIZE, **TEXT, num_key_value_heads=2, **options)


def vit(**options):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 3}
    return timm.create_model("vit_tiny_patch16_224", **sizes, **options)


def tokens(samples=6, length=38):
    return torch.randint(3, 80, (samples, length), generator=torch.Generator().manual_seed(1))


def pixels(samples=6):
    return torch.randn(samples, 3, 16, 16, generator=torch.Generator().manual_seed(1))


# Host → inputs, its blocks, and the norm that follows attention's branch: what it reads is the stream and the branch.
HOSTS = {
    "GPT-2": (gpt2, tokens, lambda model: model.transformer.h, "ln_2"),
    "Llama": (llama, tokens, lambda model: model.model.layers, "post_attention_layernorm"),
    "ViT": (vit, pixels, lambda model: model.blocks, "norm2"),
}


def rms(tensor):
    return tensor.double().square().mean().sqrt().item()


def first(given):
    args, kwargs = given
    return (*args, *kwargs.values())[0]


def shares(model, inputs, blocks, norm):
    """rms(branch) / rms(stream) of every layer."""
    entered, left = [], []
    for block in blocks(model):
        block.register_forward_pre_hook(lambda _, *given: entered.append(first(given)), with_kwargs=True)
        getattr(block, norm).register_forward_pre_hook(lambda _, args: left.append(args[0]))
    with torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return [rms(after - stream) / rms(stream) for stream, after in zip(entered, left, strict=True)]


@pytest.mark.parametrize("name", HOSTS)
def test_on_the_batch_that_is_given_every_layer_adds_its_share_of_the_stream(name):
    build, inputs, blocks, norm = HOSTS[name]
    model = seeded(build)
    report = initialize(model, Mimetic(value_scale="stream", stream_share=0.5, vo_sign=1), batch=inputs())
    assert shares(model, inputs(), blocks, norm) == pytest.approx([0.5, 0.5], rel=1e-3)
    said = "puts out 0.5 times the stream, before any norm, gate or LayerScale behind it"
    assert all(said in note for note in report.notes.values())
    assert all("measured on the batch" in note for note in report.notes.values())


@pytest.mark.parametrize("name", ["Llama", "ViT"])
def test_without_a_batch_it_is_measured_on_what_the_host_library_offers(name):
    build, inputs, blocks, norm = HOSTS[name]
    model = seeded(build)
    report = initialize(model, Mimetic(value_scale="stream"))
    assert shares(model, inputs(), blocks, norm) == pytest.approx([0.3, 0.3], rel=0.15)
    assert all("measured on random tokens or pixels" in note for note in report.notes.values())


def test_the_target_as_it_is_drowns_gpt2():
    assert shares(seeded(gpt2), tokens(), *HOSTS["GPT-2"][2:])[0] < 0.2
    model = seeded(gpt2)
    initialize(model, Mimetic(vo_sign=1))
    assert shares(model, tokens(), *HOSTS["GPT-2"][2:])[0] > 4


def test_where_nothing_can_be_run_one_line_asks_for_a_batch(monkeypatch):
    monkeypatch.setattr(watched, "UNASKED", 0)
    with pytest.raises(StructuredInitError, match="measured in a forward pass: give a batch"):
        initialize(seeded(gpt2), Mimetic(value_scale="stream"))


def test_only_the_scale_of_values_and_outputs_is_another():
    plain, scaled = seeded(gpt2), seeded(gpt2)
    initialize(plain, Mimetic(vo_sign=1), seed=3)
    initialize(scaled, Mimetic(vo_sign=1, value_scale="stream"), seed=3)
    for name, value in plain.state_dict().items():
        other = scaled.state_dict()[name]
        if name.endswith(("attn.c_attn.weight", "attn.c_proj.weight")):
            value, other = (each[:, 64:] if "c_attn" in name else each for each in (value, other))
            factor = (other.norm() / value.norm()).item()
            assert 0 < factor < 0.5
            torch.testing.assert_close(other, factor * value)
            value, other = plain.state_dict()[name][:, :64], scaled.state_dict()[name][:, :64]
        if "c_proj" not in name or "mlp" in name:
            assert torch.equal(value, other), name


def test_what_was_planned_before_is_in_effect_when_it_is_measured():
    """Positions that PreviousToken writes make the stream larger."""
    model = seeded(gpt2)
    stream = Mimetic(query_key=False, positions="keep", value_scale="stream", vo_sign=1)
    dry = initialize(model, Compose([PreviousToken(), stream]), batch=tokens(), dry_run=True)
    wet = initialize(model, Compose([PreviousToken(), stream]), batch=tokens())
    assert shares(model, tokens(), *HOSTS["GPT-2"][2:]) == pytest.approx([0.3, 0.3], rel=1e-3)
    assert dry.notes == wet.notes


def test_an_attention_that_adds_nothing_to_the_stream_is_one_line():
    with pytest.raises(StructuredInitError, match=r"^'transformer\.h\.0\.attn' adds nothing to the residual stream"):
        initialize(seeded(gpt2), Mimetic(value_scale="stream", vo_alpha=0.0, vo_beta=0.0))


class Numbered(torch.nn.Module):
    """Blocks of a vision transformer that lie in no list, the first of which runs three times."""

    def __init__(self):
        super().__init__()
        host = vit()
        self.patch_embed, (self.block1, self.block2) = host.patch_embed, host.blocks

    def forward(self, x):
        x = 0.1 * self.patch_embed(x)
        for _ in range(3):
            x = self.block1(x)
        return self.block2(x)


def test_blocks_in_no_list_are_measured_from_the_stream_and_a_looped_one_in_its_first_run():
    model = seeded(Numbered)
    initialize(model, Mimetic(value_scale="stream", positions="keep"), batch=pixels())
    found = shares(model, pixels(), lambda model: [model.block1, model.block2], "norm2")
    assert [found[0], found[-1]] == pytest.approx([0.3, 0.3], rel=1e-3)


class Called(torch.nn.Module):
    """Attention and norms in lists beside each other; the second layer's output may be added to nothing."""

    def __init__(self, skip=True):
        super().__init__()
        blocks, self.skip = vit().blocks, skip
        self.attn, self.norm = (torch.nn.ModuleList(getattr(e, n) for e in blocks) for n in ("attn", "norm1"))

    def forward(self, x):
        x = x.clone()
        x += self.attn[0](self.norm[0](x))
        return self.attn[1](self.norm[1](x)) + (x if self.skip else 0)


def test_what_attention_is_added_to_is_the_stream_whatever_module_it_is_in():
    batch = 0.02 * torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    model, start = seeded(Called), Mimetic(positions="keep", value_scale="stream")
    report = initialize(model, start, batch=batch)
    assert f"root mean square is {rms(batch):.2g} (" in report.notes["attn.0"]
    with torch.no_grad():
        added = model.attn[0](model.norm[0](batch))
        after = batch + added
        assert rms(added) == pytest.approx(0.3 * rms(batch), rel=1e-3)
        assert rms(model.attn[1](model.norm[1](after))) == pytest.approx(0.3 * rms(after), rel=1e-3)
    with pytest.raises(StructuredInitError, match=r"^what 'attn\.1' puts out .* is added to nothing that it was made"):
        initialize(seeded(lambda: Called(skip=False)), start, batch=batch)


class Routed(torch.nn.Module):
    """Six layers, between which more or fewer operations run, as in a loop over the experts that tokens chose."""

    def __init__(self):
        super().__init__()
        blocks = [block for _ in range(3) for block in vit().blocks]
        self.attn, self.norm = (torch.nn.ModuleList(getattr(e, n) for e in blocks) for n in ("attn", "norm1"))
        self.shares = []

    def forward(self, x):
        for attn, norm in zip(self.attn, self.norm, strict=True):
            added = attn(norm(x))
            self.shares.append(rms(added) / rms(x))
            x = x + added
            for _ in range(int(1e4 * rms(x)) % 7):
                x = x * 1
        return x


def test_operations_that_depend_on_what_is_computed_do_not_hide_the_stream():
    batch = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    model = seeded(Routed)
    initialize(model, Mimetic(positions="keep", value_scale="stream"), batch=batch)
    with torch.no_grad():
        model(batch)
    assert model.shares[-6:] == pytest.approx([0.3] * 6, rel=1e-3)


class Restless(Called):
    """Takes one operation less in every pass, until it takes none more."""

    def __init__(self, operations):
        super().__init__()
        self.operations = operations

    def forward(self, x):
        x = x.clone()
        normed = self.norm[0](x)
        for _ in range(self.operations):
            normed = normed * 1
        self.operations = max(0, self.operations - 1)
        x += self.attn[0](normed)
        return x + self.attn[1](self.norm[1](x))


def test_a_pass_that_differs_from_the_one_before_is_made_again_and_one_that_always_does_is_refused():
    batch = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    start = Mimetic(positions="keep", value_scale="stream")
    model = seeded(lambda: Restless(2))
    initialize(model, start, batch=batch)
    with torch.no_grad():
        assert rms(model.attn[0](model.norm[0](batch))) == pytest.approx(0.3 * rms(batch), rel=1e-3)
    with pytest.raises(StructuredInitError, match=r"^no two of 4 forward passes do the same"):
        initialize(seeded(lambda: Restless(99)), start, batch=batch)


def test_cross_attention_adds_its_share_of_what_stands_behind_self_attention():
    model = torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    batch = tuple(torch.randn(2, 2, 6, 16, generator=torch.Generator().manual_seed(0)))
    report = initialize(model, Mimetic(positions="keep", value_scale="stream", cross=True), batch=batch)
    seen, layer = {}, model.decoder.layers[0]
    layer.norm1.register_forward_hook(lambda *given: seen.update(stream=given[2]))
    layer.norm2.register_forward_hook(lambda *given: seen.update(after=given[1][0]))
    with torch.no_grad():
        model(*batch)
    assert rms(seen["after"] - seen["stream"]) == pytest.approx(0.3 * rms(seen["stream"]), rel=1e-3)
    assert not report.warnings


def biased(build):
    def built():
        model = build()
        for name, each in model.named_parameters():
            if "attn" in name and name.endswith("bias"):
                torch.nn.init.normal_(each)
        return model

    return seeded(built)


@pytest.mark.parametrize("name", HOSTS)
def test_biases_that_do_not_begin_at_zero_are_scaled_with_the_branch(name):
    build, inputs, blocks, norm = HOSTS[name]
    model = biased(partial(llama, attention_bias=True) if name == "Llama" else build)
    before = {key: each.clone() for key, each in model.named_parameters()}
    report = initialize(model, Mimetic(value_scale="stream", positions="keep"), batch=inputs())
    assert shares(model, inputs(), blocks, norm) == pytest.approx([0.3, 0.3], rel=1e-3)
    set_ = {each.names[0] for each in report.changed}
    written = {key for key, each in model.named_parameters() if not torch.equal(each, before[key])}
    assert written == set_
    assert any(key.endswith("bias") for key in written)
    for key in written:
        if key.endswith(("c_attn.bias", "qkv.bias")):  # those of queries and keys stay
            assert torch.equal(model.get_parameter(key)[:64], before[key][:64])


def test_the_preset_leaves_the_queries_and_keys_of_the_first_layer():
    model = seeded(gpt2)
    set_by = [each.set_by for each in initialize(model, "mimetic_stream").entries if "c_attn.weight" in each.names[0]]
    assert set_by == [("Mimetic: value_output",), ("Mimetic: query_key", "Mimetic: value_output")]
