"""torch's own attention to other tokens, and the encoder and decoder around it; to its own, see ``test_timm``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from structured_init import (
    Mimetic,
    PreviousToken,
    StructuredInitError,
    UniformProjections,
    attention_sites,
    initialize,
)
from structured_init.analysis import capture_attention


class Host(nn.Module):
    """A model of one layer that looks at its own tokens, or at others."""

    def __init__(self, attn, other_width=None):
        super().__init__()
        self.attn, self.other_width = attn, other_width

    def forward(self, x, context=None):
        context = x if context is None else context
        values = context if self.other_width is None else context[..., : self.attn.vdim]
        return self.attn(x, context, values, need_weights=False)[0]


def with_other_widths(key_width=7, value_width=6, heads=2):
    torch.manual_seed(1)
    return Host(nn.MultiheadAttention(8, heads, kdim=key_width, vdim=value_width, batch_first=True), key_width)


def test_keys_and_values_of_their_own_width_are_cross_attention(attend, without_biases):
    model = without_biases(with_other_widths())
    assert attention_sites(model) == []
    (site,) = attention_sites(model, cross=True)
    assert site.cross
    assert [tuple(part.shape) for part in (site.query, site.key, site.value, site.output)] == [
        (2, 8, 4),
        (2, 7, 4),
        (2, 6, 4),
        (2, 4, 8),
    ]
    x, context = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 5, 7, dtype=torch.float64)
    logits = torch.einsum("bnd,hdk,hek,bme->bhnm", x, site.query, site.key, context) / 4**0.5
    values = torch.einsum("bmd,hdk,hke->bhme", context[..., :6], site.value, site.output)
    torch.testing.assert_close((logits.softmax(-1) @ values).sum(1), model(x, context))
    captured = capture_attention(model, x, context)
    torch.testing.assert_close(captured["attn"], logits.softmax(-1).float())


def test_cross_attention_alone_is_refused_with_the_way_out_and_its_products_must_be_square():
    with pytest.raises(StructuredInitError, match=r"nothing but cross-attention \(attn\), .* unless asked for: c"):
        initialize(with_other_widths(), Mimetic())
    for without in (UniformProjections(), PreviousToken()):  # these have no such argument
        with pytest.raises(StructuredInitError, match=r"nothing but cross-attention \(attn\), which is left alone$"):
            initialize(with_other_widths(), without)
    with pytest.raises(StructuredInitError, match=r"query–key product of 'attn' maps width 8 to 7"):
        initialize(with_other_widths(), Mimetic(cross=True))
    with pytest.raises(StructuredInitError, match=r"value–output product of 'attn' maps width 6 to 8"):
        initialize(with_other_widths(), Mimetic(cross=True, query_key=False))


def transformer(**changes):
    torch.manual_seed(2)
    arguments = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 1, "dim_feedforward": 4}
    return nn.Transformer(**{**arguments, "batch_first": True, **changes}).eval()


def test_a_decoders_attention_to_the_encoder_is_left_alone_unless_asked(check_mimetic):
    model = transformer()
    names = [site.name for site in attention_sites(model)]
    assert names == ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn", "decoder.layers.0.self_attn"]
    cross = model.decoder.layers[0].multihead_attn.in_proj_weight
    before = cross.detach().clone()
    report = initialize(model, Mimetic())
    assert torch.equal(cross, before)
    why = report.skipped["decoder.layers.0.multihead_attn"]
    assert why == "cross-attention is left alone unless asked for: cross=True"
    skipped = initialize(transformer(), UniformProjections()).skipped
    assert skipped == {"decoder.layers.0.multihead_attn": "cross-attention is left alone"}
    everything = [site.name for site in attention_sites(model, cross=True)]
    assert everything == [*names, "decoder.layers.0.multihead_attn"]
    assert list(capture_attention(model, torch.randn(2, 5, 8), torch.randn(2, 3, 8))) == everything
    assert "decoder.layers.0.multihead_attn" not in check_mimetic(model, cross=True).skipped
    assert not torch.equal(cross, before)
