"""Initializers that train: a copy learns, and of the model only what was asked for changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from timm.models.vision_transformer import VisionTransformer

from structured_init import ProceduralWarmup, SelfPretraining, StructuredInitError, initialize
from structured_init.pretraining.procedural_warmup import dyck_words

DYCK = {"kinds": 8, "length": 16, "batch_size": 16, "learning_rate": 3e-3}


def vit():
    torch.manual_seed(0)
    return VisionTransformer(img_size=8, patch_size=2, embed_dim=16, depth=2, num_heads=2, num_classes=5, init_values=1)


def gpt():
    torch.manual_seed(0)
    config = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 34, "vocab_size": 11}
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, **none))


def images(count=8):
    """Images whose halves are equal, so that a hidden patch can be told from another one."""
    half = torch.randn(count, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    return torch.cat([half, half], dim=3)


def last_loss(report):
    ((name, values),) = report.measures.items()
    assert name in report.initializer
    return values["loss"]


def test_a_warm_up_learns_brackets_and_writes_only_what_is_asked_for():
    """The kind of a closing bracket is known, so the loss falls below what frequencies at each place tell."""
    model = gpt()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, last = last_loss(initialize(model, ProceduralWarmup(**DYCK, iterations=60, parts=["attention"])))
    words = dyck_words(4000, 16, kinds=8, open_probability=0.49, generator=torch.Generator().manual_seed(7)).numpy()
    shares = np.stack([np.bincount(column, minlength=16) for column in words.T[1:]]) / 4000
    frequencies = -np.sum(shares * np.log(shares, where=shares > 0, out=np.zeros_like(shares)), axis=1).mean()
    assert first > frequencies
    assert last < frequencies - 0.3
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {
        f"transformer.h.{layer}.attn.{name}.{kind}"
        for layer in (0, 1)
        for name in ("c_attn", "c_proj")
        for kind in ("weight", "bias")
    }


def test_self_pretraining_foretells_hidden_patches_and_leaves_what_follows_the_layers():
    model = vit()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pretraining = SelfPretraining(iterations=60, learning_rate=1e-2, mask_ratio=0.3)
    _, last = last_loss(initialize(model, pretraining, batches=[images(32)]))
    assert last < 0.9  # patches are brought to variance 1
    left = {name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])}
    assert left == {"cls_token", "norm.weight", "norm.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("initializer", "batches", "message"),
    [
        (SelfPretraining(), None, r"needs the task's inputs: initialize\(model, initializer, batches=loader\)"),
        (ProceduralWarmup(objective="next"), None, "attend to later ones: objective must be masked"),
    ],
)
def test_what_cannot_be_trained_is_one_line(initializer, batches, message):
    with pytest.raises(StructuredInitError, match=message) as caught:
        initialize(vit(), initializer, batches=batches)
    assert "\n" not in str(caught.value)
