"""Attention, weight products and statistics of layers, as the runs wrote them."""

import json
import shutil
from types import SimpleNamespace

import compared
import pytest
import torch
from safetensors.torch import load_file, save_file

from comparison.report.data import read_report_data
from comparison.report.depth import attention_statistics
from comparison.report.panels.attention import attention, read_products, weight_products
from structured_init import StructuredInitError

LAYER = "network.blocks.1.attn"
TRAIN = [
    *("--init.initializer=Mimetic", "--seed_everything=3", "--trainer.limit_train_batches=4"),
    "--trainer.callbacks+=WeightProductsCallback",
]


def run(folder, arm, scores):
    """A run whose layers have the scores of two heads, and their entropies."""
    (folder / "attention").mkdir(parents=True)
    layers = {name: {"normalised_entropy": [0.0, 0.5], "induction_score": of} for name, of in scores.items()}
    (folder / "attention" / "statistics.json").write_text(json.dumps({"before": layers}))
    return SimpleNamespace(seed=0, folder=folder, arm=arm)


def test_scores_are_those_of_the_best_head_and_means_over_seeds(tmp_path):
    runs = [
        run(tmp_path / "0", "induction", {"h.0.attn": [0.1, 0.2], "h.1.attn": [0.9, None]}),
        run(tmp_path / "1", "induction", {"h.0.attn": [0.4, 0.3], "h.1.attn": [0.1, 0.7]}),
    ]
    layers, depth = attention_statistics(runs)
    assert layers == ["h.0.attn", "h.1.attn"]
    assert depth["induction_score"]["induction", "before"].tolist() == pytest.approx([0.3, 0.8])
    assert depth["normalised_entropy"]["induction", "before"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("short", ["default", "mimetic"])
def test_an_arm_with_fewer_layers_leaves_empty_cells(comparison, short):
    """Of another depth, or grown in training; the first arm, or another."""
    folder_of = comparison({"default": {0: 0.8}, "mimetic": {0: 0.7}})
    folder = folder_of / "runs" / short / "seed_0" / "attention"
    maps = load_file(folder / "before.safetensors")
    save_file({name: of for name, of in maps.items() if "blocks.1" in name}, folder / "before.safetensors")
    statistics = json.loads((folder / "statistics.json").read_text())
    del statistics["before"]["network.blocks.0.attn"]
    (folder / "statistics.json").write_text(json.dumps(statistics))
    views = views_of(attention(read_report_data(folder_of)), "attention")
    assert views["layers"] in (["0", "1"], ["1", "0"])
    layers = dict(zip(views["layers"], views["views"]["map"][short]["before"], strict=True))
    assert (len(layers["0"]), len(layers["1"])) == (0, 3)  # the heads' mean and two heads


def products_of(state):
    """Written out: W_q W_kᵀ of each of two heads, and Σ_h W_v W_o, of timm's fused layer (x Wᵀ)."""
    query, key, value = (part.T.double() for part in state[f"{LAYER}.qkv.weight"].chunk(3))
    heads = [slice(0, 8), slice(8, 16)]
    products = torch.stack([query[:, head] @ key[:, head].T for head in heads])
    return products.float(), (value @ state[f"{LAYER}.proj.weight"].T.double()).float()


def views_of(pieces, name):
    """What the pickers of a panel show."""
    page = "".join(str(getattr(piece, "markup", "")) for piece in pieces)
    return json.loads(page.split(f'id="data-{name}">')[1].split("</script>")[0])


def test_a_report_shows_the_products_that_the_run_wrote(cli, folder, comparison):
    cli("fit", *TRAIN)
    (experiment,) = folder.rglob("experiment.yaml")
    run = experiment.parent
    kept = read_products(run / "weight_products")
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for product, expected in zip(kept["after"][0][LAYER], products_of(state), strict=True):
        torch.testing.assert_close(product, expected)
    # The method's definition: the diagonal of W_q W_kᵀ is β = 0.7 up to noise, of the host's weights it would be 0.
    assert min(kept["before"][1][LAYER]["query_key_diagonal"]) > 0.2

    together = comparison({"mimetic": {0: 0.8}, "older": {0: 0.7}}, pieces=())
    shutil.copytree(run / "weight_products", together / "runs" / "mimetic" / "seed_0" / "weight_products")
    text = compared.report_text(together, "weight_products")
    assert "W_q W_kᵀ of the first head in each of 2 layers, before and after training" in text
    assert "figures/weights_query_key_diagonal.png" in text
    views = views_of(weight_products(read_report_data(together)), "products")
    assert list(views["views"]["products"]) == ["mimetic"]
    pictures = views["views"]["products"]["mimetic"]
    assert [len(pictures[moment]) for moment in ("before", "after")] == [2, 2]  # layers
    assert pictures["before"] != pictures["after"]


def test_runs_without_products_have_no_such_section_and_a_damaged_file_is_a_line(comparison):
    together = comparison({"default": {0: 0.8}, "older": {0: 0.7}}, pieces=())
    assert "## Weight products" not in compared.report_text(together, "weight_products")
    folder = together / "runs" / "default" / "seed_0" / "weight_products"
    folder.mkdir()
    (folder / "summary.json").write_text("{")
    with pytest.raises(StructuredInitError, match="cannot read"):
        read_products(folder)
    assert "Not shown: cannot read" in compared.report_text(together, "weight_products")
