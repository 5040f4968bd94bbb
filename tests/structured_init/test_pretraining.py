"""Initializers that train: a copy learns, and of the model only what was asked for changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from structured_init import (
    Compose,
    Mimetic,
    Positions,
    ProceduralWarmup,
    SamePositions,
    Scrambled,
    SelfPretraining,
    StructuredInitError,
    attention_sites,
    initialize,
)
from structured_init.pretraining.procedural_warmup import dyck_words

FEW = {"iterations": 2, "batch_size": 4}


def vit():
    torch.manual_seed(0)
    return VisionTransformer(img_size=8, patch_size=2, embed_dim=16, depth=2, num_heads=2, num_classes=5, init_values=1)


def gpt():
    torch.manual_seed(0)
    config = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 34, "vocab_size": 11}
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, **none))


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=13, max_position_embeddings=10))


def copied(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def changed(before, model):
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def images(count=8):
    """Images whose halves are equal, so that a hidden patch can be told from another one."""
    half = torch.randn(count, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    return torch.cat([half, half], dim=3)


WHERE = {
    "attention": {"attn.qkv.weight", "attn.qkv.bias", "attn.proj.weight", "attn.proj.bias"},
    "mlp": {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
    "norms": {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "ls1.gamma", "ls2.gamma"},
}


@pytest.mark.parametrize("parts", [None, ["attention"], ["mlp", "norms"], ["attention", "positions"]])
def test_only_the_parts_that_are_asked_for_change(parts):
    model = vit()
    before = copied(model)
    initialize(model, ProceduralWarmup(**FEW, parts=parts))
    kinds = parts or ["attention", "mlp"]
    wanted = {f"blocks.{layer}.{name}" for kind in kinds for layer in (0, 1) for name in WHERE.get(kind, ())}
    assert changed(before, model) == wanted | ({"pos_embed"} if "positions" in kinds else set())


def test_self_pretraining_takes_all_but_what_follows_the_layers():
    model, text = vit(), gpt()
    before, words = copied(model), copied(text)
    initialize(model, SelfPretraining(**FEW), batches=[images()])
    assert set(before) - changed(before, model) == {"cls_token", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    initialize(text, SelfPretraining(**FEW), batches=[torch.arange(24).reshape(2, 12) % 11])
    assert set(words) - changed(words, text) == {"transformer.ln_f.weight", "transformer.ln_f.bias"}


def last_loss(report):
    ((name, values),) = report.measures.items()
    assert name in report.initializer
    return values["loss"]


def entropy_at_each_place(words, numbers):
    """Mean entropy, in nats, of the tokens at each place but the first: what frequencies alone tell."""
    counts = np.stack([np.bincount(column, minlength=numbers) for column in words.T[1:]])
    shares = counts / counts.sum(1, keepdims=True)
    return -np.sum(shares * np.log(shares, where=shares > 0, out=np.zeros_like(shares)), axis=1).mean()


DYCK = {"kinds": 8, "length": 16, "batch_size": 16, "learning_rate": 3e-3}


def test_the_loss_on_generated_words_falls_below_that_of_frequencies_alone():
    first, last = last_loss(initialize(gpt(), ProceduralWarmup(**DYCK, iterations=60)))
    words = dyck_words(4000, 16, kinds=8, open_probability=0.49, generator=torch.Generator().manual_seed(7))
    frequencies = entropy_at_each_place(words.numpy(), 16)
    assert first > frequencies
    assert last < frequencies - 0.3  # of the closing brackets the kind is known


def test_the_loss_on_hidden_patches_falls_below_their_variance():
    pretraining = SelfPretraining(iterations=60, learning_rate=1e-2, mask_ratio=0.3)
    _, last = last_loss(initialize(vit(), pretraining, batches=[images(32)]))
    assert last < 0.9  # patches are brought to variance 1


def test_what_it_learned_is_in_the_weights_that_were_written():
    """Of one seed the temporary embedding and head are the same, so what was learned shows in the first loss."""
    model, parts = gpt(), ["attention", "mlp", "norms", "positions"]
    again = ProceduralWarmup(**DYCK, iterations=1, frozen_embedding=True)
    fresh, _ = last_loss(initialize(gpt(), again))
    initialize(model, ProceduralWarmup(**DYCK, iterations=40, frozen_embedding=True, parts=parts))
    assert last_loss(initialize(model, again))[0] < fresh - 0.4


def test_no_step_writes_what_is_there():
    model = vit()
    before = copied(model)
    report = initialize(model, ProceduralWarmup(iterations=0))
    assert not changed(before, model)
    assert len(report.changed) == 16
    assert report.measures == {}


def test_a_shuffling_loader_gives_the_same_weights_and_leaves_the_random_state_alone():
    """The loader draws its order from torch's global random state."""
    loader, results = DataLoader(TensorDataset(images(), torch.arange(8)), batch_size=2, shuffle=True), []
    for seed in (1, 2):
        model = vit()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        initialize(model, SelfPretraining(**FEW), batches=loader)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(copied(model))
    assert not [name for name in results[0] if not torch.equal(results[0][name], results[1][name])]


def test_padding_is_neither_looked_at_nor_hidden():
    ids, mask = torch.arange(20).reshape(2, 10) % 13, torch.ones(2, 10, dtype=torch.long)
    mask[:, 6:] = 0
    results = []
    for filler in (1, 7):
        model = bert()
        padded = ids.masked_fill(mask == 0, filler)
        initialize(
            model, SelfPretraining(**FEW, parts=["attention"]), batches=[{"input_ids": padded, "attention_mask": mask}]
        )
        results.append(attention_sites(model)[0].query)
    torch.testing.assert_close(*results)


def test_a_composition_is_trained_from_what_it_wrote_before():
    alone, composed = vit(), vit()
    initialize(alone, ProceduralWarmup(**FEW))
    initialize(composed, Compose([Mimetic(positions="keep"), ProceduralWarmup(**FEW)]))
    mimetic = vit()
    initialize(mimetic, Mimetic(positions="keep"))
    (left, *_), (right, *_), (begun, *_) = (attention_sites(each) for each in (alone, composed, mimetic))
    assert (right.query - begun.query).norm() < 0.1 * (left.query - begun.query).norm()


def test_scrambled_keeps_the_singular_values_that_training_gave():
    trained, turned = vit(), vit()
    initialize(trained, ProceduralWarmup(**FEW))
    initialize(turned, Scrambled(ProceduralWarmup(**FEW)))
    for left, right in zip(attention_sites(trained), attention_sites(turned), strict=True):
        spectra = [torch.linalg.svdvals(site.query.double()) for site in (left, right)]
        torch.testing.assert_close(*spectra, rtol=1e-5, atol=1e-7)
        assert (left.query - right.query).norm() > 0.5 * left.query.norm()
    assert not torch.equal(trained.blocks[0].mlp.fc1.weight, turned.blocks[0].mlp.fc1.weight)


def test_same_positions_takes_the_trained_positions_alone():
    whole, model = vit(), vit()
    before = copied(model)
    initialize(whole, SelfPretraining(**FEW), batches=[images()])
    initialize(model, SamePositions(SelfPretraining(**FEW)), batches=[images()])
    assert changed(before, model) == {"pos_embed"}
    assert torch.equal(model.pos_embed, whole.pos_embed)
    with pytest.raises(StructuredInitError, match="writes no positions"):
        initialize(vit(), SamePositions(ProceduralWarmup(**FEW)))


@pytest.mark.parametrize("frozen", ["pos_embed", "patch_embed.", "blocks.0."])
def test_what_the_host_does_not_train_is_left(frozen):
    model = vit()
    held = [parameter for name, parameter in model.named_parameters() if name.startswith(frozen)]
    for parameter in held:
        parameter.requires_grad_(False)
    before = copied(model)
    initialize(model, SelfPretraining(**FEW), batches=[images()])
    moved = changed(before, model)
    assert {"blocks.1.attn.qkv.weight", "blocks.1.norm1.weight"} <= moved
    assert not [name for name in moved if name.startswith(frozen)]
    assert not any(parameter.requires_grad for parameter in held)


def test_the_report_says_what_the_training_cost():
    report = initialize(vit(), ProceduralWarmup(iterations=3, batch_size=4, kinds=2))
    assert report.notes["ProceduralWarmup"] == (
        "trained the layers for 3 steps of 4 × 16 tokens (192 tokens), to foretell what was hidden"
    )


class OfTorch(nn.Module):
    """torch's encoder, which says of itself neither that it is causal nor along which axis its tokens lie."""

    def __init__(self, causal=False, batch_first=True, entrance=None, last=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 16) if entrance is None else entrance
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.causal, self.last = causal, last

    def forward(self, inputs):
        tokens = self.embed(inputs)
        if isinstance(self.embed, nn.Conv2d):
            tokens, cls = tokens.flatten(2).mT, self.cls.expand(len(tokens), -1, -1)
            tokens = torch.cat([tokens, cls] if self.last else [cls, tokens], dim=1)
        hides = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return self.encoder(tokens, mask=hides, is_causal=self.causal)


WORDS = torch.arange(72).reshape(6, 12) * 7 % 11


@pytest.mark.parametrize("causal", [True, False])
def test_a_mask_that_only_the_forward_pass_shows_decides_what_is_foretold(causal):
    report = initialize(OfTorch(causal), SelfPretraining(**FEW), batches=[WORDS])
    assert report.notes["SelfPretraining"].endswith("the next token" if causal else "what was hidden")
    asked = SelfPretraining(**FEW, objective="next")
    if causal:
        initialize(OfTorch(causal), asked, batches=[WORDS])
    else:
        with pytest.raises(StructuredInitError, match="attend to later ones"):
            initialize(OfTorch(causal), asked, batches=[WORDS])


@pytest.mark.parametrize("initializer", [SelfPretraining(**FEW), ProceduralWarmup(**FEW)])
def test_tokens_along_the_first_axis_are_refused(initializer):
    with pytest.raises(StructuredInitError, match=r"'encoder\.layers': its samples attend to one another"):
        initialize(OfTorch(batch_first=False), initializer, batch=WORDS, batches=[WORDS])


def test_two_samples_of_a_batch_show_where_tokens_enter():
    model, seen = OfTorch(), []
    model.embed.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    initialize(model, ProceduralWarmup(**FEW), batch=WORDS)
    assert seen[1:3] == [2, 2]  # behind the search for attention, which runs all


def test_a_warm_up_asks_for_inputs_where_the_model_does_not_say_what_it_takes():
    assert initialize(OfTorch(), ProceduralWarmup(**FEW), batch=lambda: WORDS).changed
    with pytest.raises(StructuredInitError, match="it takes 2 inputs: a single embedding"):
        initialize(OfTorch(), ProceduralWarmup(**FEW), batch=lambda: {"num": WORDS, "cat": WORDS})


def test_a_class_token_at_the_end_is_as_one_at_the_beginning():
    """Without positions attention does not know the order of its tokens."""
    losses = []
    for last in (True, False):
        torch.manual_seed(0)
        model = OfTorch(entrance=nn.Conv2d(3, 16, 2, 2), last=last)
        losses.append(last_loss(initialize(model, SelfPretraining(**FEW), batches=[images()])))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def narrow():
    return OfTorch(entrance=nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16)))


def signals():
    return OfTorch(entrance=nn.Conv1d(3, 16, 3))


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = vit(), vit()


@pytest.mark.parametrize(
    ("model", "initializer", "batches", "message"),
    [
        (vit, SelfPretraining(), None, r"needs the task's inputs: initialize\(model, initializer, batches=loader\)"),
        (vit, SelfPretraining(), [], "batches is empty"),
        (vit, SelfPretraining(), iter([images()]), "can be iterated only once"),
        (vit, SelfPretraining(), [{"label": 3, "y": 4}], "or pixel_values, got a mapping with label, y$"),
        (vit, SelfPretraining(), [torch.zeros(2, 1, 3, 3)], "cannot train the layers 'blocks': it does not run on"),
        (
            narrow,
            SelfPretraining(),
            [WORDS],
            "its Embedding makes 12 tokens of width 8, 12 of width 16 enter the layers",
        ),
        (signals, SelfPretraining(), [torch.zeros(2, 3, 18)], "no single nn.Embedding or nn.Conv2d makes its tokens"),
        (vit, ProceduralWarmup(objective="next"), None, "attend to later ones: objective must be masked"),
        (vit, ProceduralWarmup(learning_rate=1e30, iterations=9), None, "the loss is (nan|inf) in step .* of 9"),
        (TwoTowers, ProceduralWarmup(), None, r"the model has 2 \(left.blocks, right.blocks\)"),
    ],
)
def test_what_cannot_be_trained_is_one_line(model, initializer, batches, message):
    with pytest.raises(StructuredInitError, match=message) as caught:
        initialize(model(), initializer, batches=batches)
    assert "\n" not in str(caught.value)


def test_weights_that_are_computed_are_refused():
    model = vit()
    nn.utils.parametrizations.weight_norm(model.blocks[0].mlp.fc1)
    with pytest.raises(StructuredInitError, match=r"'blocks\.0\.mlp\.fc1' are computed by a parametrization"):
        initialize(model, ProceduralWarmup(**FEW))


def test_fixed_positions_before_the_warm_up_stay(as_installed):
    model = vit()
    initialize(model, Compose([Positions(), ProceduralWarmup(**FEW)]))
    alone = vit()
    initialize(alone, Positions())
    assert torch.equal(model.pos_embed, alone.pos_embed)
