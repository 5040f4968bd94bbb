"""One line for each mistake, with what would be right."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lightning_modules.data import ImageData, image_data
from structured_init.util.errors import StructuredInitError


def message(action) -> str:
    with pytest.raises(StructuredInitError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def noise(count: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8), dtype=np.uint8)


def test_unknown_dataset_is_told_the_three_ways_and_the_nearest_name():
    said = message(lambda: ImageData("uoft-cs/cifar1O").num_classes)
    assert "no dataset 'uoft-cs/cifar1O'" in said
    assert "digits, which needs no download" in said
    assert "did you mean 'uoft-cs/cifar10" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"label_column": "lable"}, "has no column 'lable': did you mean 'label'?"),
        ({"num_classes": 10}, "num_classes=10 does not match dataset '{}', which has 4 classes"),
        (
            {"mean": [0.5] * 3, "std": [0.5] * 3},
            "data.mean and data.std have 3 and 3 values, but the images of '{}' have 1 channels: set both, or",
        ),
    ],
)
def test_what_does_not_fit_a_folder_is_said(pictures, arguments, said):
    def run():
        data = ImageData(str(pictures), **arguments)
        data.setup("fit")
        data.train_dataloader()

    assert said.format(pictures) in message(run)


def test_splits_of_other_names_are_not_all_trained_on(tmp_path):
    for place in ("trainset/cat", "trainset/dog", "testset/cat"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / place / "0.png")
    said = message(lambda: ImageData(str(tmp_path)).num_classes)
    assert "several folders hold a folder 'cat': call splits train, val and test" in said


@pytest.mark.parametrize(("in_memory", "in_files"), [(True, True), (False, False)])
def test_corrupt_image_is_named_by_its_file_or_row(tmp_path, write_parquet, monkeypatch, in_memory, in_files):
    monkeypatch.setattr(image_data, "IN_MEMORY_BYTES", 2**30 if in_memory else 0)
    folder = write_parquet([*noise(5), {"bytes": b"no image", "path": None}], [0, 1] * 3)
    which = "in row 5 of 'train'"
    if in_files:
        folder, which = tmp_path / "photos", f"'{tmp_path}/photos/train/1/2.png'"
        for row, pixels in enumerate(noise(6)):
            (place := folder / f"train/{row // 3}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{row % 3}.png")
        (place / "2.png").write_bytes(b"no image")
    data = ImageData(str(folder), val_fraction=0, batch_size=6, mean=[0.5], std=[0.5])

    def read():
        data.setup("fit")
        list(data.train_dataloader())

    assert f"the image {which} cannot be read: not an image" in message(read)


def test_an_image_of_more_than_8_bits_is_refused(tmp_path):
    mode = "I;16"
    for row, label in enumerate("abab"):
        (tmp_path / "train" / label).mkdir(parents=True, exist_ok=True)
        Image.new(mode, (8, 8), 500).save(tmp_path / "train" / label / f"{row}.tif")
    said = message(lambda: ImageData(str(tmp_path)).in_channels)
    which = f"the image '{tmp_path}/train/a/0.tif' cannot be read"
    assert said == f"{which}: its pixels (mode {mode}) have more than 8 bits: convert it to 8 bits"
    given = ImageData(str(tmp_path), image_size=8, in_channels=3, val_fraction=0, batch_size=2)
    assert said == message(lambda: given.setup("fit"))


@pytest.mark.parametrize("labels", [["a", "b", "a", None], [0, None, 1, 0], [0.5, 1.0, 0.5, 1.0], [[0], [1], [1], [0]]])
def test_a_label_that_is_missing_or_no_class_is_refused(write_parquet, labels):
    folder = write_parquet(noise(4), labels)
    said = f"column 'label' of 'train' in '{folder}' is no class in every row: a whole number or a text"
    assert message(lambda: ImageData(str(folder)).num_classes) == said


def test_a_folder_of_the_name_of_a_dataset_of_ours_is_given_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for each in ("cat", "dog"):
        (place := tmp_path / "digits" / each).mkdir(parents=True)
        Image.new("L", (8, 8)).save(place / "1.png")
    assert ImageData("digits").num_classes == 10
    assert ImageData("./digits").num_classes == 2


def test_a_class_may_be_called_like_a_split(tmp_path):
    for row, each in enumerate(("train/test", "train/dog", "val/test", "val/dog", "notes/dog")):
        (tmp_path / each).mkdir(parents=True)
        Image.new("L", (8, 8), row).save(tmp_path / each / "1.png")
    data = ImageData(str(tmp_path))
    assert {name: len(split) for name, split in data.source.splits.items()} == {"train": 2, "validation": 2}
    assert data.class_names == ["dog", "test"]


def test_corrupt_parquet_is_named(pictures):
    file = pictures / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    said = message(lambda: ImageData(str(pictures)).num_classes)
    assert said.startswith(f"no dataset '{pictures}' (")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"fraction": 1.5}, "fraction=1.5 is not in (0, 1]"),
        ({"val_fraction": 1.0}, "ImageData: val_fraction must be a number from 0 and below 1, got 1.0"),
        ({"batch_size": 0}, "ImageData: batch_size must be a whole number from 1, got 0"),
    ],
)
def test_argument_out_of_its_range(as_installed, arguments, said):
    assert said in message(lambda: ImageData(**arguments))


def test_class_with_too_few_samples_for_a_part_is_named_with_the_option(write_parquet):
    folder = write_parquet(noise(), [0] * 7 + [1])
    said = message(lambda: ImageData(str(folder), val_fraction=0.25, batch_size=2).setup("fit"))
    assert said.startswith("class '1' has too few samples in 'train' (1) for --data.val_fraction 0.25, which")


def test_hidden_labels_are_said(write_parquet):
    folder = write_parquet(noise(), [0, 1] * 4)
    write_parquet(noise(), [-1] * 8, split="test")
    data = ImageData(str(folder), val_fraction=0, batch_size=4)
    assert "row 0 of 'test'" in message(lambda: data.setup("test"))
