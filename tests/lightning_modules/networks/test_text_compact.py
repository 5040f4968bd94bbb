"""Compact transformers for text: sizes, masks and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lightning_modules.networks import text_compact_transformer
from lightning_modules.networks.compact_transformer import TextCompactTransformer
from lightning_modules.tasks.language import TextClassifier

# Millions of parameters without the embedding table and the fixed positions, for AG News' 4 classes (nlp/README).
PUBLISHED = {"text_cct_2_1x1": 0.238, "text_cct_4_2x1": 0.475, "text_cct_6_4x1": 3.467}
SMALL = {"seq_len": 12, "word_embed_dim": 8, "depth": 2, "num_heads": 2, "mlp_ratio": 1}
KINDS = {
    "cct": {"tokenizer": "conv", "kernel_size": 2, "embed_dim": 16},
    "cct_wide": {"tokenizer": "conv", "kernel_size": 4, "embed_dim": 16},
    "cvt": {"tokenizer": "patch", "kernel_size": 4, "embed_dim": 16},
    "vit_lite": {"tokenizer": "patch", "kernel_size": 4, "embed_dim": 16, "class_token": True},
    "transformer": {"tokenizer": None, "class_token": True},
}


def small(kind, **changes):
    torch.manual_seed(0)
    network = TextCompactTransformer(30, 3, **{**SMALL, **KINDS[kind], **changes}).eval()
    with torch.no_grad():
        for parameter in network.encoder.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    network = text_compact_transformer(name, vocab_size=10, num_classes=4)
    counted = sum(p.numel() for p in network.parameters() if p.requires_grad) - network.embedding.weight.numel()
    assert round(counted / 1e6, 3) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("kind", "positions", "softmax"),
    [
        ("cct", "learnable", {"mode": "remix", "alpha": 0.5}),
        ("cct_wide", "sine", None),
        ("cvt", "sine", None),
        ("vit_lite", "learnable", None),
        ("transformer", "learnable", {"mode": "remix", "alpha": 0.5}),
    ],
)
def test_a_text_does_not_depend_on_the_padding_or_the_texts_beside_it(kind, positions, softmax):
    pool = {"pool_softmax": softmax} if kind.startswith(("cct", "cvt")) else {}
    network = small(kind, positions=positions, token_softmax=softmax, **pool)
    short, long = torch.randint(1, 30, (1, 5)), torch.randint(1, 30, (1, 11))
    alone = network(short)
    ids = torch.cat([F.pad(short, (0, 6), value=7), long])  # what stands under the mask is of no account
    mask = torch.tensor([[1] * 5 + [0] * 6, [1] * 11])
    torch.testing.assert_close(network(ids, mask)[:1], alone)
    assert not torch.allclose(network(ids)[:1], alone, atol=1e-3)


def test_the_classifier_of_texts_builds_one_by_name_for_its_longest_text():
    classifier = TextClassifier("text_cvt_2_4", {"word_embed_dim": 8}, num_classes=3, vocab_size=20, block_size=16)
    assert classifier.network.seq_len == 16
    assert classifier(torch.randint(1, 20, (2, 9)), torch.ones(2, 9, dtype=torch.int64)).shape == (2, 3)
