"""Initializers work on attention that was watched, and layouts that a model contradicts are refused."""

from __future__ import annotations

import pytest
import strangers
import timm
import torch
import transformers
from hosts import Does, of_transformers
from torch import nn

from structured_init import (
    AttentionLayout,
    Compose,
    Mimetic,
    Projection,
    StructuredInitError,
    attention_sites,
    check_attention,
    initialize,
    register_attention,
    required_attention_sites,
)
from structured_init.hosts import watched

TINY = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


class Reader(nn.Module):
    """A model whose attention is called so, of a class that nobody described."""

    def __init__(self, kind=strangers.Apart, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": kind()}) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block["attn"](x)
        return x


@pytest.mark.parametrize(
    "model",
    [
        lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=56, embed_dim=12, depths=(1, 1, 1, 1)),
        lambda: of_transformers("LlamaModel", **TINY, num_key_value_heads=2),
    ],
)
def test_layouts_written_by_hand_are_what_the_model_computes(model):
    torch.manual_seed(0)
    network = model()
    errors = check_attention(network)
    assert errors.keys() == {site.name for site in attention_sites(network)}
    assert max(max(pair) for pair in errors.values()) < 1e-5


class SquareApart(nn.Module):
    """Plain square parameters, of which no shape tells a wrong axis."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.randn(12, 12) / 12**0.5) for _ in range(4))

    def forward(self, x):
        q, k, v = ((x @ w.T).unflatten(-1, (3, 4)).transpose(1, 2) for w in (self.q, self.k, self.v))
        return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.o.T


def test_a_forgotten_axis_is_one_line_with_both_diagonals():
    @register_attention(SquareApart)
    def wrong(module):
        return AttentionLayout(*(Projection(weight, 3, 4) for weight in (module.q, module.k, module.v, module.o)))

    torch.manual_seed(0)
    model, tokens = Reader(SquareApart), torch.randn(2, 5, 12)
    with pytest.raises(StructuredInitError) as caught:
        initialize(model, Mimetic(positions="keep"), batch=tokens)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("the layout of SquareApart ('blocks.0.attn') disagrees with what the model computes")
    first = model.blocks[0]["attn"]
    wrong_diagonal, right = (first.v.T @ first.o).trace() / 12, (first.v.T @ first.o.T).trace() / 12
    assert f"is {wrong_diagonal:.3g} by the layout and {right:.3g} in the model" in message


def test_a_right_layout_of_ones_own_is_checked_and_used(monkeypatch):
    compared, compare = [], watched.compare_layout
    monkeypatch.setattr(
        watched, "compare_layout", lambda site, *more: compared.append(site.name) or compare(site, *more)
    )

    @register_attention(SquareApart)
    def right(module):
        output = Projection(module.o, 3, 4, axis=1)
        return AttentionLayout(*(Projection(w, 3, 4) for w in (module.q, module.k, module.v)), output)

    torch.manual_seed(0)
    model, tokens, seen = Reader(SquareApart), torch.randn(2, 5, 12), []

    look = Does(lambda weights: seen.extend(required_attention_sites(weights, None, "Look")))
    report = initialize(model, look, batch=tokens)
    assert not any("was not compared" in note for note in report.notes.values())
    assert compared == [site.name for site in seen]
    assert [site.how for site in seen] == ["written"] * 2


def test_one_forward_pass_serves_every_initializer():
    calls = []
    model = Reader()
    model.register_forward_hook(lambda *_: calls.append(1))
    initialize(model, Compose([Mimetic(positions="keep"), Mimetic(positions="keep")]), batch=torch.randn(1, 5, 12))
    assert len(calls) == 1


class WithoutForward(nn.Module):
    """As a LightningModule that has a ``training_step`` alone."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)


def test_of_a_module_without_forward_its_only_part_is_run():
    tokens = torch.randn(2, 5, strangers.WIDTH)
    report = initialize(WithoutForward(strangers.Apart(), nn.Dropout()), Mimetic(positions="keep"), batch=tokens)
    assert report.attention == {"parts.0": True}
    with pytest.raises(StructuredInitError, match='missing the required "forward"'):
        initialize(WithoutForward(strangers.Apart(), strangers.Apart()), Mimetic(), batch=tokens)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = {"vocab_size": 40, "max_position_embeddings": 40, "pad_token_id": 1}
FRAMES = {"image_size": 8, "patch_size": 4, "num_frames": 2}
LATENTS = {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 1}
LATENTS |= {"num_self_attention_heads": 2, "num_cross_attention_heads": 2}
NESTED = {  # queries, keys and values in one module, the output projection in one around it
    "VideoMAE": (SMALL | FRAMES, {"pixel_values": (1, 2, 3, 8, 8)}),
    "DebertaV2": (SMALL | WORDS, {"input_ids": (1, 6)}),
    "Perceiver": (LATENTS, {"inputs": (1, 6, 16)}),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by transformers 5.17
@pytest.mark.parametrize("host", NESTED)
def test_no_layer_that_was_written_is_said_to_be_left_alone_where_classes_are_nested(host):
    settings, shapes = NESTED[host]
    torch.manual_seed(0)
    model = getattr(transformers, f"{host}Model")(getattr(transformers, f"{host}Config")(**settings))
    batch = {
        name: torch.randint(3, 40, shape) if name == "input_ids" else torch.randn(shape)
        for name, shape in shapes.items()
    }
    report = initialize(model, Mimetic(positions="keep", cross=True), batch=batch, strict=True)
    assert (report.left, report.skipped) == ([], {})
    written = {entry.names[0] for entry in report.changed}
    layers = [name for name, module in model.named_modules() if is_asked(module)]
    assert layers
    for name in layers:  # what transformers calls queries was set, in every layer that was said to be left alone
        assert any(each.startswith(f"{name}.") for each in written), name


def is_asked(module):
    return any(hasattr(module, name) for name in ("query", "query_proj", "q_proj", "qkv"))


def test_attention_that_a_pass_refuses_is_left_alone_by_name_whatever_its_module_is_called():
    model, tokens = nn.ModuleDict({"far": strangers.RolesReversed(), "near": strangers.Apart()}), torch.randn(2, 5, 12)
    model.forward = lambda x: model["near"](model["far"](x))
    report = initialize(model, Mimetic(positions="keep"), batch=tokens)
    assert report.left == ["far"]
    why = "left alone: far (RolesReversed has no layout: its queries and keys change places between"
    assert why in report.summary()
    with pytest.raises(StructuredInitError, match="strict: 1 of 2 attention layers left alone: far"):
        initialize(model, Mimetic(positions="keep"), batch=tokens, strict=True)


def test_a_product_without_a_softmax_is_no_attention_that_was_left_alone():
    model = nn.Sequential(strangers.NoSoftmax(), strangers.Apart())
    assert initialize(model, Mimetic(positions="keep"), batch=torch.randn(2, 5, 12), strict=True).left == []
