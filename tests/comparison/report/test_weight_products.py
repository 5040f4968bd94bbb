"""Weight products in the report, of a run that really was trained: what it wrote itself, and no network is built."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from comparison.report import write_report
from comparison.report.panels.weight_products import read_products
from structured_init import StructuredInitError

LAYER = "network.blocks.1.attn"
TRAIN = [
    *("--init.initializer=Mimetic", "--seed_everything=3", "--trainer.limit_train_batches=4"),
    "--trainer.callbacks+=WeightProductsCallback",
]


def products_of(state):
    """Written out: W_q W_kᵀ of each of two heads, and Σ_h W_v W_o, of timm's fused layer (x Wᵀ)."""
    query, key, value = (part.T.double() for part in state[f"{LAYER}.qkv.weight"].chunk(3))
    heads = [slice(0, 8), slice(8, 16)]
    products = torch.stack([query[:, head] @ key[:, head].T for head in heads])
    return products.float(), (value @ state[f"{LAYER}.proj.weight"].T.double()).float()


def section(page, name):
    return page.read_text().split(f'<section id="{name}">')[1].split("</section>")[0]


def test_a_report_shows_the_products_that_the_run_wrote(cli, folder, comparison):
    cli("fit", *TRAIN)
    (experiment,) = folder.rglob("experiment.yaml")
    run = experiment.parent
    corners, summaries = read_products(run / "weight_products")
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for product, expected in zip(corners["after"][LAYER], products_of(state), strict=True):
        torch.testing.assert_close(product, expected)
    # The method's definition: the diagonal of W_q W_kᵀ is β = 0.7 up to noise, of the host's weights it would be 0.
    assert min(summaries["before"][LAYER]["query_key_diagonal"]) > 0.2

    compared = comparison({"mimetic": {0: 0.8}, "older": {0: 0.7}}, pieces=())
    shutil.copytree(run / "weight_products", compared / "runs" / "mimetic" / "seed_0" / "weight_products")
    page, *_ = write_report(compared)
    shown = section(page, "weight_products")
    assert "older is not shown: its run kept no weight products." in shown
    views = json.loads(shown.split('id="data-products">')[1].split("</script>")[0])
    assert list(views["views"]["products"]) == ["mimetic"]
    pictures = views["views"]["products"]["mimetic"]
    assert [len(pictures[moment]) for moment in ("before", "after")] == [2, 2]  # layers
    assert pictures["before"] != pictures["after"]
    assert (compared / "figures" / "weights_query_key_diagonal.png").is_file()


def test_runs_without_products_have_no_such_section_and_a_damaged_file_is_a_line(comparison):
    compared = comparison({"default": {0: 0.8}, "older": {0: 0.7}}, pieces=())
    assert 'id="weight_products"' not in write_report(compared)[0].read_text()
    folder = compared / "runs" / "default" / "seed_0" / "weight_products"
    folder.mkdir()
    (folder / "summary.json").write_text("{")
    with pytest.raises(StructuredInitError, match="cannot read"):
        read_products(folder)
    assert "Not shown: cannot read" in section(write_report(compared)[0], "weight_products")
