"""WeightSelection: the published selection, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hosts import of_transformers
from safetensors.torch import save_file
from torch import nn

from structured_init import StructuredInitError, WeightSelection, attention_sites, initialize
from structured_init.transfer.weight_selection import uniform_indices


def published(tensor, shape):
    """OscarXZQ/weight-selection, written differently: numpy, all dimensions at once."""
    places = []
    for ours, theirs in zip(shape, tensor.shape, strict=True):
        if theirs % ours == 0:
            places.append(np.arange(0, theirs, theirs // ours))
        else:
            places.append(np.round(np.linspace(0, theirs - 1, ours, dtype=np.float32)).astype(int))
    return torch.from_numpy(tensor.detach().numpy()[np.ix_(*places)])


@pytest.fixture
def teacher(tiny_vit):
    """Twice as wide, with two heads for each of the student's, and deeper."""
    return trained(tiny_vit(seed=9, embed_dim=32, num_heads=4, depth=3, num_classes=7))


def trained(model):
    """Every tensor random, so that biases and norms can be told apart."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.mark.parametrize("width", [16, 12, 24])
def test_every_tensor_but_the_head_is_the_published_selection(tiny_vit, teacher, width):
    model = tiny_vit(embed_dim=width)
    head = model.head.weight.detach().clone()
    report = initialize(model, WeightSelection(teacher))
    source = teacher.state_dict()
    for name, tensor in model.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(tensor, published(source[name], tensor.shape)), name
    assert torch.equal(model.head.weight, head)
    assert set(report.skipped) == {"head.weight", "head.bias"}
    assert report.warnings == []


def test_leave_names_other_tensors(tiny_vit, teacher):
    model = tiny_vit()
    before = model.pos_embed.detach().clone()
    report = initialize(model, WeightSelection(teacher, leave=["pos_embed", "head.*"]))
    assert torch.equal(model.pos_embed, before)
    assert "pos_embed" in report.skipped


def test_a_pattern_that_leaves_nothing_is_refused(tiny_vit, teacher):
    with pytest.raises(StructuredInitError, match=r"leave: 'pos_embd' names no tensor: did you mean 'pos_embed'"):
        initialize(tiny_vit(), WeightSelection(teacher, leave=["head.*", "pos_embd"]))


@pytest.mark.parametrize("theirs", [7, 48, 64, 384])
def test_a_fused_selection_never_takes_queries_for_keys(theirs):
    """3·S of 3·T at even distances: each third of the student lies in its third of the teacher, divisible or not."""
    for ours in range(1, theirs + 1):
        thirds = uniform_indices(3 * ours, 3 * theirs).reshape(3, ours) // theirs
        assert torch.equal(thirds, torch.arange(3)[:, None].expand(3, ours))


def test_the_published_selection_mixes_two_heads_of_the_teacher_into_one(tiny_vit, teacher):
    """Stride 2 over 4 heads of 8: the student's head 0 is the even coordinates of heads 0 and 1."""
    model = tiny_vit()
    initialize(model, WeightSelection(teacher))
    ours, theirs = attention_sites(model)[0], attention_sites(teacher)[0]
    mixed = torch.cat([theirs.query[0], theirs.query[1]], dim=1)[::2, ::2]
    assert torch.equal(ours.query[0], mixed)


def test_weights_that_are_tied_are_taken_once():
    larger, model = llama(48, 3, 0), llama(16, 2, 1)
    initialize(model, WeightSelection(larger))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, larger.lm_head.weight[:, ::3])


def llama(width, layers, seed):
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 3 * width, "vocab_size": 11, "tie_word_embeddings": True, "pad_token_id": 0}
    return of_transformers("LlamaForCausalLM", seed, **sizes)


class Wrapped(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network


@pytest.mark.parametrize("side", ["student", "teacher", "both"])
def test_a_module_around_either_network_is_seen_through(tiny_vit, teacher, side):
    expected, model = tiny_vit(), tiny_vit()
    initialize(expected, WeightSelection(teacher))
    given = Wrapped(teacher) if side in ("teacher", "both") else teacher
    initialize(Wrapped(model) if side in ("student", "both") else model, WeightSelection(given))
    assert same(model, expected)


def test_a_block_that_the_teacher_lacks_is_one_line(tiny_vit, teacher):
    with pytest.raises(
        StructuredInitError, match=r"cannot take 'blocks.3.norm1.weight' .*: there is no .*missing: keep"
    ):
        initialize(tiny_vit(depth=5), WeightSelection(teacher))


def test_a_smaller_teacher_and_another_shape_name_the_tensor(tiny_vit, teacher):
    with pytest.raises(StructuredInitError, match=r"'cls_token' \(1, 1, 40\) .* there it is smaller, \(1, 1, 32\)"):
        initialize(tiny_vit(embed_dim=40), WeightSelection(teacher))
    tensors = dict(teacher.state_dict()) | {"cls_token": torch.zeros(32)}
    message = r"'cls_token' \(1, 1, 16\) from a dictionary of \d+ tensors: there it has shape \(32,\)"
    with pytest.raises(StructuredInitError, match=message):
        initialize(tiny_vit(), WeightSelection(tensors))


def test_what_is_missing_can_be_kept_and_is_listed(tiny_vit, teacher):
    model = tiny_vit(depth=4, reg_tokens=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = initialize(model, WeightSelection(teacher, missing="keep"))
    kept = {name for name in before if name.startswith("blocks.3.")} | {"reg_token"}
    assert {name for name, why in report.skipped.items() if why.startswith("kept: there is no")} == kept
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in kept)
    assert torch.equal(model.blocks[2].norm1.weight, teacher.blocks[2].norm1.weight[::2])
    assert "skipped reg_token: kept: there is no 'reg_token'" in str(report)


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["safetensors", "ckpt", "pth", "dictionary"])
def test_a_teacher_may_be_a_file_of_any_usual_kind(tiny_vit, teacher, tmp_path, kind):
    expected, model = tiny_vit(), tiny_vit()
    initialize(expected, WeightSelection(teacher))
    path = tmp_path / f"teacher.{kind}"
    if kind == "safetensors":
        save_file(teacher.state_dict(), path)
    elif kind == "ckpt":
        inside = {f"network.{name}": tensor for name, tensor in teacher.state_dict().items()}
        torch.save({"state_dict": inside, "pytorch-lightning_version": "2.6", "epoch": 3}, path)
    elif kind == "pth":
        torch.save(teacher.state_dict(), path)
    given = teacher.state_dict() if kind == "dictionary" else str(path)
    report = initialize(model, WeightSelection(given))
    assert same(model, expected)
    assert ("a dictionary of" if kind == "dictionary" else str(path)) in report.initializer


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ("missing.safetensors", "there is no file 'missing.safetensors'"),
        ("vit_smal_patch16_224", "neither a file nor a model of timm: did you mean 'vit_small_patch16_224'"),
    ],
)
def test_a_teacher_that_is_not_there_is_one_line(tiny_vit, teacher, message):
    with pytest.raises(StructuredInitError, match=message):
        initialize(tiny_vit(), WeightSelection(teacher))


def test_files_without_tensors_are_one_line(tiny_vit, tmp_path):
    for name, write, message in (
        ("a.safetensors", lambda p: p.write_bytes(b"no"), "cannot read .*a.safetensors"),
        ("b.ckpt", lambda p: p.write_bytes(b"PK\x03\x04 cut off"), "cannot read .*b.ckpt.*: it is damaged"),
        ("c.pth", lambda p: torch.save({"epoch": 3}, p), "is no dictionary of tensors, and has none as 'state_dict'"),
        ("d.pth", lambda p: torch.save(nn.Linear(2, 2), p), "it holds Python objects, which are never run"),
    ):
        write(tmp_path / name)
        with pytest.raises(StructuredInitError, match=message):
            initialize(tiny_vit(), WeightSelection(str(tmp_path / name)))


def test_weights_that_cannot_be_fetched_are_one_line(tiny_vit):
    message = r"^WeightSelection: cannot fetch the weights of 'vit_small_patch16_224': "
    with pytest.raises(StructuredInitError, match=message):
        initialize(tiny_vit(), WeightSelection("vit_small_patch16_224"))


def test_buffers_of_a_checkpoint_are_taken_and_whole_numbers_are_not():
    larger, model = (nn.Sequential(nn.Conv2d(1, w, 3), nn.BatchNorm2d(w)) for w in (8, 4))
    with torch.no_grad():
        larger[1].running_mean.normal_()
        larger[1].num_batches_tracked.fill_(7)
    initialize(model, WeightSelection(larger))
    assert torch.equal(model[1].running_mean, larger[1].running_mean[::2])
    assert model[1].num_batches_tracked == 0


class Karpathys(nn.Module):
    """Heads of attention that are modules of their own, a vocabulary, sinusoids, and an output of some name."""

    def __init__(self, width=8, words=6, places=4, output="fc"):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.register_buffer("pe", torch.linspace(0, 1, places * width).sin().view(1, places, width))
        heads = [nn.ModuleList([nn.Linear(width, width // 2) for _ in range(2)]) for _ in range(3)]
        self.blocks = nn.ModuleList([nn.ModuleDict({"heads": each, "fc": nn.Linear(width, width)}) for each in heads])
        self.add_module(output, nn.Linear(width, words))


@pytest.mark.parametrize("output", ["fc", "output"])
def test_of_heads_those_of_classes_alone_are_left(output):
    larger, model = Wrapped(trained(Karpathys(16, output=output))), Wrapped(Karpathys(output=output))
    source, before = larger.state_dict(), {name: each.clone() for name, each in model.state_dict().items()}
    report = initialize(model, WeightSelection(larger))
    assert {name.removeprefix("network.") for name in report.skipped} == {f"{output}.weight", f"{output}.bias", "pe"}
    for name, tensor in model.state_dict().items():
        kept = name in report.skipped
        assert torch.equal(tensor, before[name] if kept else published(source[name], tensor.shape)), name
    assert report.warnings == []


def test_rows_of_words_and_places_that_are_thinned_out_are_warned_of(tiny_vit):
    larger = Karpathys(16, words=12, places=8)
    assert [warning.split("'")[1] for warning in initialize(Karpathys(), WeightSelection(larger)).warnings] == [
        "words.weight"
    ]
    larger = tiny_vit(img_size=16, embed_dim=32)
    (warning,) = initialize(tiny_vit(), WeightSelection(larger)).warnings
    assert "'pos_embed' (1, 17, 16) takes rows at even distances of (1, 65, 32)" in warning
