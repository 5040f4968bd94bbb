"""What `ImageData` gives: parts, statistics, sizes, and the same batches whoever loads them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from lightning_modules.data import ImageData, image_data
from lightning_modules.data.labelled import stratified_counts
from structured_init import StructuredInitError


def batches(data: ImageData, epoch: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    data.setup("fit")
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return list(loader)


def row_set(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_digits_are_the_real_ones():
    data = ImageData(mean=[0.0], std=[1.0], val_fraction=0)
    data.setup("fit")
    data.setup("test")
    ours = torch.cat([part.__getitems__(range(len(part)))[0] for part in (data.train_set, data.test_set)])
    theirs, labels = load_digits(return_X_y=True)
    assert len(ours) == 1797
    pixels = np.sort((ours.numpy().reshape(-1, 64) * 16).round(0), axis=0)
    np.testing.assert_array_equal(pixels, np.sort(theirs, axis=0))
    test_labels = np.bincount(data.test_set.labels)
    np.testing.assert_allclose(test_labels, 0.2 * np.bincount(labels), atol=1)


@pytest.mark.parametrize(
    ("splits", "options", "validated", "tested", "remark"),
    [
        ("train val test", {}, 12, 16, ""),
        ("train val test", {"val_split": "train", "val_fraction": 0.25}, 10, 16, ""),
        ("train val", {"val_fraction": 0.25}, 10, 12, "has no test split: its split 'validation' is tested on"),
        ("train valid", {"val_split": "val"}, 12, 12, "has no test split: its split 'validation' is tested on"),
    ],
)
def test_a_folder_is_validated_and_tested_on_the_splits_that_it_has(
    tmp_path, splits, options, validated, tested, remark
):
    for split in splits.split():
        for label in range(4):
            place = tmp_path / "photos" / split / f"class_{label}"
            place.mkdir(parents=True)
            for number in range({"train": 10, "test": 4}.get(split, 3)):
                Image.new("RGB", (8, 8), (label, number, 9)).save(place / f"{number}.png")
    data = ImageData(str(tmp_path / "photos"), **options)
    assert (len(data.val_set), len(data.test_set)) == (validated, tested)
    assert bool(data.remark) == bool(remark)
    assert data.remark.endswith(remark)
    trained = row_set(data.train_set.__getitems__(range(len(data.train_set)))[0])
    kept = data.val_set.__getitems__(range(validated))[0]
    assert len(trained) == (40 if data.val_split != "train" else 30)
    assert data.val_split != "train" or not trained & row_set(kept)


def test_a_split_that_is_not_there_is_named(pictures):
    with pytest.raises(StructuredInitError, match="has no split 'tset': did you mean 'test'"):
        _ = ImageData(str(pictures), test_split="tset").test_rows


def test_sizes_that_were_given_do_not_open_the_data():
    data = ImageData("nobody/has-this", num_classes=3, in_channels=3, image_size=16)
    assert (data.num_classes, data.in_channels, data.image_size) == (3, 3, 16)


def test_parts_are_stratified_and_disjoint(pictures):
    data = ImageData(str(pictures), val_fraction=0.25, fraction=0.5, batch_size=4)
    data.setup("fit")
    assert np.bincount(data.val_set.labels).tolist() == [4, 3, 2, 1]
    assert np.bincount(data.train_set.labels).tolist() == [8, 6, 4, 2]
    assert not set(data.val_set.rows) & set(data.train_set.rows)


def test_what_is_left_over_goes_to_the_class_with_the_largest_remainder():
    assert stratified_counts(np.array([7, 4, 1]), 0.25).tolist() == [2, 1, 0]  # of 1.75, 1 and 0.25


def test_a_smaller_fraction_is_part_of_a_larger_one_and_validation_stays(pictures):
    small, large = (ImageData(str(pictures), val_fraction=0.25, fraction=share, batch_size=4) for share in (0.25, 0.5))
    small.setup("fit")
    large.setup("fit")
    assert set(small.train_set.rows) < set(large.train_set.rows)
    assert set(small.val_set.rows) == set(large.val_set.rows)


def test_training_never_decodes_the_test_split(write_parquet):
    rng = np.random.default_rng(0)
    folder = write_parquet(rng.integers(0, 256, (20, 8, 8), dtype=np.uint8), np.arange(20) % 2)
    write_parquet([{"bytes": b"broken", "path": None}] * 4, [0, 1, 0, 1], split="test")
    data = ImageData(str(folder), val_fraction=0.2, batch_size=4)
    data.setup("fit")
    assert len(list(data.train_dataloader())) == 4
    with pytest.raises(ValueError, match="row 0 of 'test'"):
        data.setup("test")


def test_statistics_are_those_of_the_training_part():
    data = ImageData(fraction=0.5, val_fraction=0.1, batch_size=16)
    data.setup("fit")
    stored = np.stack([np.asarray(data.source.split("train")[int(row)]["image"]) for row in data.train_set.rows])
    assert data.mean == pytest.approx([stored.mean(dtype=np.float64) / 255], rel=1e-12)
    assert data.std == pytest.approx([stored.std(dtype=np.float64) / 255], rel=1e-12)
    images = data.train_set.__getitems__(range(len(data.train_set)))[0]
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_each_channel_has_statistics_of_its_own(write_parquet):
    pixels = np.random.default_rng(0).integers(0, [64, 128, 256], (12, 8, 8, 3), dtype=np.uint8)
    data = ImageData(str(write_parquet(pixels, [0, 1] * 6)), val_fraction=0, batch_size=4)
    data.setup("fit")
    assert data.mean == pytest.approx(pixels.reshape(-1, 3).mean(0) / 255, rel=1e-12)
    assert data.std == pytest.approx(pixels.reshape(-1, 3).std(0) / 255, rel=1e-12)


def test_images_get_the_size_and_the_channels_asked_for(write_parquet):
    wide = np.zeros((6, 10, 20), dtype=np.uint8)
    wide[:, :, 1:19] = 255  # the borders, of which nothing is left, are black
    folder = write_parquet(wide, [0, 1] * 3)
    statistics = {"mean": [0, 0, 0], "std": [1, 1, 1]}
    data = ImageData(str(folder), image_size=5, in_channels=3, val_fraction=0, batch_size=2, **statistics)
    images, labels = batches(data)[0]
    assert images.shape == (2, 3, 5, 5)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.shape == (2,)
    assert labels.dtype == torch.int64
    assert (images == 1).all()


def test_training_batches_are_full_and_test_batches_complete(pictures):
    data = ImageData(str(pictures), val_fraction=0, batch_size=16, eval_batch_size=7)
    assert [len(labels) for _, labels in batches(data)] == [16, 16]
    assert data.val_dataloader() == []
    data.setup("test")
    assert sum(len(labels) for _, labels in data.test_dataloader()) == 40


def test_images_read_one_by_one_equal_those_in_memory(pictures, monkeypatch):
    arguments = {"val_fraction": 0, "batch_size": 8, "mean": [0.5], "std": [0.5], "image_size": 9, "flip": True}
    in_memory = batches(ImageData(str(pictures), **arguments))
    monkeypatch.setattr(image_data, "IN_MEMORY_BYTES", 0)
    one_by_one = batches(ImageData(str(pictures), **arguments))
    torch.testing.assert_close(one_by_one, in_memory, rtol=0, atol=0)


def test_columns_are_found_by_usual_name_or_type(write_parquet):
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    folder = write_parquet(images, ["cat", "dog"] * 4, image="img", label="fine_label")
    data = ImageData(str(folder), val_fraction=0, batch_size=4)
    assert data.class_names == ["cat", "dog"]
    assert sorted(torch.cat([labels for _, labels in batches(data)]).tolist()) == [0] * 4 + [1] * 4


def test_the_variable_names_a_folder_that_is_searched_before_the_hub(pictures, monkeypatch):
    monkeypatch.setenv("STRUCTURED_INIT_DATA", str(pictures.parent))
    assert ImageData("somebody/pictures").num_classes == 4


def test_number_of_workers_changes_no_batch(pictures):
    arguments = {"val_fraction": 0, "batch_size": 8, "in_channels": 3, "flip": True, "crop_padding": 2,
                 "rand_augment": "rand-m9-mstd0.5-inc1", "random_erasing": 0.5}  # fmt: skip
    alone = batches(ImageData(str(pictures), **arguments), epoch=3)
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    torch.testing.assert_close(
        batches(ImageData(str(pictures), num_workers=2, **arguments), epoch=3), alone, rtol=0, atol=0
    )


def test_epochs_and_seeds_differ_in_order_and_augmentation(pictures):
    arguments = {"val_fraction": 0, "batch_size": 40, "flip": True, "crop_padding": 2}
    first = batches(ImageData(str(pictures), seed=0, **arguments), epoch=0)[0]
    for data, epoch in ((ImageData(str(pictures), seed=0, **arguments), 1),
                        (ImageData(str(pictures), seed=1, **arguments), 0)):  # fmt: skip
        images, labels = batches(data, epoch)[0]
        assert labels.tolist() != first[1].tolist()
        assert len(row_set(images) & row_set(first[0])) < 20  # 1 of 50 augmentations is the same by chance
    again = batches(ImageData(str(pictures), seed=0, **arguments), epoch=0)[0]
    torch.testing.assert_close(again, first, rtol=0, atol=0)


def test_ranks_with_seeds_of_their_own_share_one_order(pictures, monkeypatch):
    parts = []
    for rank in (0, 1):
        monkeypatch.setenv("PL_GLOBAL_SEED", str(100 + rank))
        data = ImageData(str(pictures), val_fraction=0, batch_size=4)
        strategy = SimpleNamespace(broadcast=lambda value: 100)  # what rank 0 says
        data.trainer = SimpleNamespace(world_size=2, global_rank=rank, strategy=strategy)
        data.setup("fit")
        parts.append([index for _, index in data.train_dataloader().sampler])
    assert sorted(parts[0] + parts[1]) == list(range(40))


@pytest.mark.slow
def test_cifar10_is_read_from_the_folder_with_its_known_counts():
    if not Path(os.environ.get("STRUCTURED_INIT_DATA", "none"), "cifar10").is_dir():
        pytest.skip("STRUCTURED_INIT_DATA does not name a folder that holds cifar10")
    data = ImageData("uoft-cs/cifar10", fraction=0.1, val_fraction=0.02, test_fraction=0.2)
    data.setup("fit")
    data.setup("test")
    assert np.bincount(data.train_set.labels).tolist() == [500] * 10
    assert np.bincount(data.val_set.labels).tolist() == [100] * 10
    assert np.bincount(data.test_set.labels).tolist() == [200] * 10
    assert data.class_names[3] == "cat"
    assert (data.in_channels, data.image_size) == (3, 32)
    assert data.mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.01)  # as published for all 50,000
    assert data.std == pytest.approx([0.245, 0.243, 0.261], abs=0.01)
