"""Attention to other tokens is told apart without running the model, and what is left alone does not go unnoticed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init import (
    AttentionLayout,
    Compose,
    KaimingUniform,
    Mimetic,
    Projection,
    StructuredInitError,
    attention_sites,
    initialize,
    register_attention,
)


def attention(width=8, **options):
    return nn.MultiheadAttention(width, 2, batch_first=True, **options)


class Block(nn.Module):
    """A user's decoder block: both kinds of attention are of one class."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class PoolingHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.probe = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = attention()


CROSS = {
    "cross_attn": lambda: Block(self_attn=attention(), cross_attn=attention()),
    "multihead_attn": lambda: Block(self_attn=attention(), multihead_attn=attention()),
    "encoder_attn": lambda: Block(self_attn=attention(), encoder_attn=attention()),
    "EncDecAttention": lambda: Block(SelfAttention=attention(), EncDecAttention=attention()),
    "attn": lambda: Block(self_attn=attention(), attn=attention(kdim=6, vdim=6)),
    "pool.attention": lambda: Block(self_attn=attention(), pool=PoolingHead()),
    "transformer_cross_attention_layers.0.multihead_attn": lambda: Block(
        self_attn=attention(), transformer_cross_attention_layers=nn.ModuleList([Block(multihead_attn=attention())])
    ),
}


@pytest.mark.parametrize("name", CROSS)
def test_cross_attention_in_a_users_block_is_left_alone_and_named(name):
    model = nn.ModuleDict({"block": CROSS[name]()})
    found = {site.name: site.cross for site in attention_sites(model, cross=True)}
    assert len(found) == 2
    assert found[f"block.{name}"]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    report = initialize(model, Mimetic(positions="keep"))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed
    assert not any(key.startswith(f"block.{name}.") for key in changed)
    assert report.left == [f"block.{name}"]
    assert f"1 of 2 attention layers left alone: block.{name} (cross-attention is left alone" in report.summary()
    assert report.warnings == []  # as many were written


def test_cross_attention_that_no_name_tells_is_seen_on_a_batch():
    class Perceiver(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents, self.read, self.think = nn.Parameter(torch.randn(1, 4, 8)), attention(), attention()

        def forward(self, tokens):
            seen = self.read(self.latents.expand(len(tokens), -1, -1), tokens, tokens)[0]
            return self.think(seen, seen, seen)[0]

    model, batch = Perceiver(), torch.randn(2, 5, 8)
    found = {site.name: site.cross for site in attention_sites(model, cross=True, batch=batch)}
    assert found == {"read": True, "think": False}
    for given in (batch, lambda: batch):
        assert initialize(Perceiver(), Mimetic(positions="keep"), batch=given).left == ["read"]

    class Foreign(nn.MultiheadAttention):
        """A class with a layout from outside of this library, which is checked on what is only offered too."""

    @register_attention(Foreign)
    def foreign(module):
        blocks = (Projection(module.in_proj_weight, 2, 4, start=start) for start in (0, 8, 16))
        return AttentionLayout(*blocks, Projection(module.out_proj.weight, 2, 4, axis=1))

    for given in (batch, lambda: batch):
        model = Perceiver()
        model.read, model.think = (Foreign(8, 2, batch_first=True) for _ in range(2))
        assert initialize(model, Mimetic(positions="keep"), batch=given).left == ["read"]


@pytest.mark.parametrize("layer", [lambda: attention(), lambda: torch.nn.MultiheadAttention(8, 2)])
@pytest.mark.parametrize("how", ["positions for queries", "another norm for queries", "every other key"])
def test_self_attention_of_other_queries_or_fewer_keys_is_seen_as_such(layer, how):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.places = layer(), nn.Parameter(torch.randn(6, 6, 8))
            self.norm_q, self.norm = nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False)
            nn.init.normal_(self.norm_q.bias)

        def forward(self, x):
            query = key = self.norm(x)
            if how == "positions for queries":
                query = key + self.places
            elif how == "another norm for queries":
                query = self.norm_q(x)
            else:
                key = key[:, ::2] if self.attn.batch_first else key[::2]
            return x + self.attn(query, key, key)[0]

    assert initialize(Own(), Mimetic(positions="keep"), batch=torch.randn(6, 6, 8)).left == []


class Unheard(nn.Module):
    """Attention that nobody described."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)


def mostly_unknown():
    model = nn.ModuleDict({f"layer{i}": nn.ModuleDict({"self_attn": Unheard()}) for i in range(4)})
    model["known"] = attention()
    return model


def test_attention_that_is_left_alone_is_warned_of_where_it_outnumbers_what_is_written():
    model = mostly_unknown()
    report = initialize(model, Mimetic(positions="keep"))
    assert report.attention == {"known": True, **{f"layer{i}.self_attn": False for i in range(4)}}
    (warning,) = report.warnings
    assert warning.startswith("4 of 5 attention layers left alone: layer0.self_attn (Unheard is not known: give `batch")
    assert warning.endswith(", … 1 more")
    assert warning in report.summary()
    assert report.to_dict()["attention"] == report.attention


def test_strict_refuses_what_would_be_left_alone_and_undoes_what_was_written():
    model = mostly_unknown()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    said = r"^Mimetic, strict: 4 of 5 attention layers left alone: layer0.self_attn \(Unheard is not known: [^\n]*$"
    for dry_run in (False, True):
        with pytest.raises(StructuredInitError, match=said):
            initialize(model, Mimetic(positions="keep"), strict=True, dry_run=dry_run)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert initialize(model, Mimetic(positions="keep", where="known"), strict=True).left == []
    assert initialize(model, KaimingUniform(), strict=True).left == []  # which looks for no attention


def test_what_a_later_initializer_takes_is_not_left_alone():
    model = nn.ModuleDict({"block": CROSS["cross_attn"]()})
    start = Compose([Mimetic(positions="keep"), Mimetic(positions="keep", where="*.cross_attn", cross=True)])
    assert initialize(model, start, strict=True).left == []


def test_a_layout_whose_keys_have_another_width_is_cross_attention():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = nn.Linear(8, 8), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 8)

    @register_attention(Reader)
    def reader(module):
        parts = (Projection(layer.weight, 2, 4) for layer in (module.q, module.k, module.v))
        return AttentionLayout(*parts, Projection(module.o.weight, 2, 4, axis=1))

    (site,) = attention_sites(nn.Sequential(Reader()), cross=True)
    assert site.cross
