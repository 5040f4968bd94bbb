"""Weight products in the report, of a run that really was trained."""

import json

import numpy as np
import pytest
import torch

from comparison.report.start import refuse_another_start, run_products
from structured_init import StructuredInitError

START = ["--init.initializer=Mimetic", "--seed_everything=3", "--trainer.limit_train_batches=4"]


@pytest.fixture
def run(cli, folder):
    """A trained run: its folder holds what it wrote."""
    cli("fit", *START)
    (experiment,) = folder.rglob("experiment.yaml")
    return experiment.parent


def products_of(state):
    """Written out: W_q W_kᵀ of each of two heads, and Σ_h W_v W_o, of timm's fused layer (x Wᵀ)."""
    prefix = "network.blocks.1.attn"
    query, key, value = (part.T.double() for part in state[f"{prefix}.qkv.weight"].chunk(3))
    heads = [slice(0, 8), slice(8, 16)]
    products = torch.stack([query[:, head] @ key[:, head].T for head in heads])
    return products.float(), (value @ state[f"{prefix}.proj.weight"].T.double()).float()


def test_products_after_training_are_those_of_the_checkpoint_and_before_those_of_the_start(run):
    found = run_products(run)
    assert found.problem == ""
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    after = found.corners["after"]["network.blocks.1.attn"]
    for product, expected in zip(after, products_of(state), strict=True):
        torch.testing.assert_close(product, expected)
    # The method's definition: the diagonal of W_q W_kᵀ is β = 0.7 up to noise, of the host's start it would be 0.
    before = found.summaries["before"]["network.blocks.1.attn"]
    assert np.mean(before["query_key_diagonal"]) > 0.2
    assert before["value_output_diagonal"] < -0.1
    assert not torch.equal(after.query_key, found.corners["before"]["network.blocks.1.attn"].query_key)


def test_building_a_start_again_leaves_the_random_states_alone(run):
    torch.manual_seed(0)
    states = (torch.get_rng_state(), np.random.get_state()[1].copy())
    run_products(run)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()


def test_a_start_that_cannot_be_had_again_is_left_out_and_said(run):
    report = json.loads((run / "init_report.json").read_text())
    entry = next(entry for entry in report["entries"] if entry["set_by"])
    entry["after"]["std"] *= 1.1
    (run / "init_report.json").write_text(json.dumps(report))
    found = run_products(run)
    assert list(found.corners) == ["after"]
    assert f"this version builds another '{entry['names'][0]}'" in found.problem
    (run / "checkpoints" / "last.ckpt").unlink()
    assert "there is no last checkpoint" in run_products(run).problem


def test_a_start_that_comes_out_different_is_not_passed_off_as_the_runs():
    entry = {"names": ["w"], "after": {"mean": 0.0, "std": 0.5, "rms": 0.5}}
    refuse_another_start({"entries": [entry]}, {"entries": [entry]})
    other = {"names": ["w"], "after": {"mean": 0.0, "std": 0.6, "rms": 0.6}}
    with pytest.raises(StructuredInitError, match="another 'w'"):
        refuse_another_start({"entries": [other]}, {"entries": [entry]})
