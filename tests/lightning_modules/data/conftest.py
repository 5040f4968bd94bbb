"""Small datasets as Parquet files, and a cache of their own."""

from __future__ import annotations

import io

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """What `datasets` prepares from the tests' files goes away with them, and the hub is never asked."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def png(pixels: np.ndarray) -> dict:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture
def write_parquet(tmp_path):
    """Return a function that writes images (N, H, W) or (N, H, W, 3) with labels as one split of a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(images, labels, split="train", folder="pictures", image="image", label="label"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        records = [png(pixels) if isinstance(pixels, np.ndarray) else pixels for pixels in images]
        table = pa.table({image: records, label: pa.array(labels)})
        pq.write_table(table, place / f"{split}-00000-of-00001.parquet")
        return place

    return write


@pytest.fixture
def pictures(write_parquet):
    """Forty gray and forty more to test on, 12×12, of four classes: 16, 12, 8 and 4."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), [16, 12, 8, 4])
    for split in ("train", "test"):
        folder = write_parquet(rng.integers(0, 256, (40, 12, 12), dtype=np.uint8), rng.permutation(labels), split)
    return folder
