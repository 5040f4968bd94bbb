"""`TextData`: parts, order and corruption."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
import torch

from lightning_modules.data import TextData
from structured_init.util.errors import StructuredInitError

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [f"{i}: " + " ".join(rng.choices(WORDS, k=rng.randint(5, 30))) for i in range(count)]


@pytest.fixture
def folder(tmp_path):
    """Sixty documents, a line each."""
    place = tmp_path / "corpus"
    place.mkdir()
    (place / "text.txt").write_text("\n".join(sentences(60)), encoding="utf-8")
    return place


def data(folder, **arguments) -> TextData:
    defaults = {"documents": "row", "tokenizer": "characters", "block_size": 16, "batch_size": 4, "seed": 0}
    return TextData(str(folder), **{**defaults, **arguments})


def texts(rows) -> list[str]:
    return [text.strip() for text in rows["text"]]


def epochs(loader, count: int = 2) -> list[dict]:
    batches = []
    for epoch in range(count):
        loader.sampler.set_epoch(epoch)
        batches += list(loader)
    return batches


def equal(ours, theirs) -> bool:
    return len(ours) == len(theirs) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


def test_batches_are_a_function_of_the_seed_and_leave_the_global_states_alone(folder):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    epochs(data(folder, objective="masked").train_dataloader())  # libraries that it imports may draw
    before = states()
    first = epochs(data(folder, objective="masked").train_dataloader())
    assert states() == before
    torch.manual_seed(1)
    assert equal(first, epochs(data(folder, objective="masked").train_dataloader()))
    assert not equal(first, epochs(data(folder, objective="masked", seed=1).train_dataloader()))


def test_corruption_changes_with_the_epoch_in_training_and_is_fixed_in_validation(folder):
    of = data(folder, objective="masked", seed=0)
    clean = of.train_set.without_augmentation()[3]["labels"]
    first, again, second = of.train_set[(0, 3)], of.train_set[(0, 3)], of.train_set[(1, 3)]
    assert equal([first], [again])
    assert not torch.equal(first["labels"], second["labels"])
    chosen = first["labels"] != -100
    assert torch.equal(first["labels"][chosen][1:], clean[chosen][1:])

    mixed = of.train_set.__getitems__([(1, 7), (0, 3), (1, 3)])  # a block is the same whatever stands beside it
    assert all(torch.equal(mixed[name][1:], torch.stack([first[name], second[name]])) for name in first)

    other = data(folder, objective="masked", seed=5)
    assert equal([of.val_set[(0, 1)]], [of.val_set[(7, 1)]])
    assert equal(list(of.val_dataloader()), list(other.val_dataloader()))  # paired runs see one validation


def test_shares_of_the_corruption():
    of = TextData(tokenizer="bpe", vocab_size=300, objective="masked", block_size=512, batch_size=8)
    every_other = list(range(0, len(of.train_set), 2))
    batch = of.train_set.__getitems__(every_other)
    special = torch.tensor(of.tokenizer.all_special_ids)
    clean = of.train_set.without_augmentation().__getitems__(every_other)["input_ids"]
    text = ~torch.isin(clean, special)
    chosen = batch["labels"] != -100
    assert not (chosen & ~text).any()  # special tokens are never predicted
    assert torch.equal(batch["labels"][chosen], clean[chosen])
    assert torch.equal(batch["input_ids"][~chosen], clean[~chosen])
    count = int(chosen.sum())
    assert count > 15_000
    masked = batch["input_ids"][chosen] == of.tokenizer.mask_token_id
    kept = batch["input_ids"][chosen] == clean[chosen]
    # five standard deviations; another token is by chance the same, or the mask, in 1 of 300
    for share, expected, of_all in (
        (count / int(text.sum()), 0.15, int(text.sum())),
        (masked.double().mean().item(), 0.8 + 0.1 / 300, count),
        (kept.double().mean().item(), 0.1 + 0.1 / 300, count),
    ):
        assert abs(share - expected) < 5 * (expected * (1 - expected) / of_all) ** 0.5
    assert len(batch["input_ids"][chosen][~masked & ~kept].unique()) > 200


def test_parts_are_disjoint_whole_documents_and_the_same_for_every_seed(folder):
    of = data(folder, val_fraction=0.2, test_fraction=0.1)
    parts = {part: texts(of.corpus.parts[part]) for part in ("train", "val", "test")}
    assert sorted(chain(*parts.values())) == sorted(sentences(60))
    size = {part: sum(map(len, found)) for part, found in parts.items()}
    longest = max(map(len, sentences(60)))
    for part, share in (("val", 0.2), ("test", 0.1)):
        assert abs(size[part] - share * sum(size.values())) <= longest
    assert parts == {
        part: texts(data(folder, val_fraction=0.2, test_fraction=0.1, seed=9).corpus.parts[part]) for part in parts
    }
    assert texts(data(folder, val_fraction=0.2, test_fraction=0.1, split_seed=1).corpus.parts["val"]) != parts["val"]


def test_a_single_document_is_cut_into_contiguous_spans_at_line_ends(folder):
    of = data(folder, documents=None, val_fraction=0.1, test_fraction=0.2)
    whole = (folder / "text.txt").read_text()
    train, val, test = ("".join(of.corpus.parts[part]["text"]) for part in ("train", "val", "test"))
    assert train + val + test == whole + "\n"
    assert train.endswith("\n")
    assert val.endswith("\n")
    assert abs(len(test) - 0.2 * len(whole)) < 300
    assert abs(len(val) - 0.1 * len(whole)) < 300
    assert "segment_ids" not in next(iter(of.train_dataloader()))


@pytest.mark.parametrize("place", ["{}.txt", "wiki.{}-0.txt", "{}/a.txt"])
def test_splits_of_the_corpus_are_taken_as_they_are(tmp_path, place):
    (tmp_path / "README.md").write_text("about it")
    for i, split in enumerate(("train", "valid", "test")):
        (tmp_path / split).mkdir()
        (tmp_path / place.format(split)).write_text("\n".join(sentences(20, seed=i)))
    of = data(tmp_path)
    assert [texts(of.corpus.parts[part]) for part in ("train", "val", "test")] == [
        sentences(20, seed=i) for i in range(3)
    ]


def test_rows_of_parquet_are_documents_or_lines(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [" = A = \n", "", "one\n", "two", None]
    pq.write_table(pa.table({"id": range(5), "body": rows}), tmp_path / "train-00000-of-00001.parquet")
    arguments = {"documents": None, "text_column": "body", "val_fraction": 0, "test_fraction": 0}
    assert data(tmp_path, **arguments).corpus.parts["train"]["text"][:] == [" = A = \n", "one\n", "two"]
    assert data(tmp_path / "train-00000-of-00001.parquet", **arguments).corpus.parts["train"]["text"][1] == "one\n"
    joined = data(tmp_path, **{**arguments, "documents": "file"})
    assert "".join(joined.corpus.parts["train"]["text"]) == " = A = \n\none\ntwo\n\n"


def test_a_text_of_one_line_has_parts_too(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be " * 10_000)
    of = data(tmp_path / "text.txt", documents=None, val_fraction=0.1, test_fraction=0.2)
    parts = ["".join(of.corpus.parts[part]["text"]) for part in ("train", "val", "test")]
    assert "".join(parts) == "to be or not to be " * 10_000 + "\n"
    assert [round(len(part) / 190_001, 1) for part in parts] == [0.7, 0.1, 0.2]


@pytest.mark.parametrize("documents", ["row", "file"])
@pytest.mark.parametrize("tokenizer", ["characters", "bpe"])
def test_characters_of_a_part_sum_to_its_text(folder, documents, tokenizer):
    of = data(folder, documents=documents, tokenizer=tokenizer, vocab_size=300, val_fraction=0.2)
    begin, end = of.tokenizer.bos_token_id, of.tokenizer.eos_token_id
    for part, blocks in (("train", of.train_set), ("val", of.val_set), ("test", of.test_set)):
        assert blocks.tokens["characters"].sum() == sum(map(len, of.corpus.parts[part]["text"]))
        of_ends = np.isin(blocks.tokens["id"], [begin, end])
        assert (blocks.tokens["id"] == begin).sum() == (len(of.corpus.parts[part]) if documents == "row" else 1)
        assert not blocks.tokens["characters"][of_ends].any()  # they stand for no text


def test_a_fraction_of_the_training_part_has_its_tokenizer_and_its_validation(folder):
    whole, half, tenth = (data(folder, tokenizer="bpe", vocab_size=300, fraction=share) for share in (1.0, 0.5, 0.1))
    blocks = [{tuple(row) for row in of.train_set.tokens["id"].tolist()} for of in (whole, half, tenth)]
    assert blocks[2] < blocks[1] < blocks[0]
    assert [len(of.train_set) for of in (half, tenth)] == [round(len(whole.train_set) * share) for share in (0.5, 0.1)]
    assert half.state_dict() == whole.state_dict()
    assert equal(list(whole.val_dataloader()), list(half.val_dataloader()))


def test_python_docs_need_nothing_and_their_tokenizer_is_on_record():
    from pydoc_data.topics import topics

    of = TextData(tokenizer="characters", val_fraction=0, test_fraction=0)
    assert sorted(of.corpus.parts["train"]["text"]) == sorted(topics.values())
    assert of.val_dataloader() == []
    of.load_state_dict(state := of.state_dict())
    with pytest.raises(StructuredInitError, match="the checkpoint was made with another tokenizer"):
        TextData(tokenizer="bpe", vocab_size=300, val_fraction=0, test_fraction=0).load_state_dict(state)
