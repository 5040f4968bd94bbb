"""SequenceRecall: what it counts, what it learns, and what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training import quiet_trainer

from lightning_modules import SequenceRecall
from lightning_modules.data import RecallData
from lightning_modules.networks.sequence import BACKBONES
from lightning_modules.tasks.optim import parameter_groups
from lightning_modules.tasks.recall import RecallByLength
from structured_init import StructuredInitError, state_space_sites

TINY = {"hidden_size": 16, "num_hidden_layers": 2}
ARGS = {
    "mamba": {**TINY, "state_size": 4},
    "mamba2": {**TINY, "state_size": 4, "head_dim": 8},
    "gpt2": TINY,
    "llama": TINY,
}


def data(**changes):
    sizes = {"min_length": 2, "max_length": 4, "test_lengths": [4, 6], "task_args": {"num_letters": 3}}
    counts = {"train_examples": 32, "val_examples": 8, "test_examples": 6, "batch_size": 8}
    return RecallData("copying", **{**sizes, **counts, "seed": 0, **changes})


def model(network="mamba2", network_args=None, **changes):
    prepared = data()
    sizes = {"vocab_size": prepared.vocab_size, "block_size": prepared.block_size}
    return SequenceRecall(network, ARGS.get(network) if network_args is None else network_args, **{**sizes, **changes})


@pytest.mark.parametrize("network", ["mamba2", "llama"])
def test_a_backbone_trains_and_is_tested_at_each_length(network, tmp_path):
    torch.manual_seed(0)
    task, runner = model(network), quiet_trainer(default_root_dir=tmp_path)
    before = {name: tensor.clone() for name, tensor in task.named_parameters()}
    runner.fit(task, data())
    assert {"train/loss", "val/exact_match", "val/loss", "val/exact_match_4"} <= set(runner.callback_metrics)
    assert all(not torch.equal(tensor, before[name]) for name, tensor in task.named_parameters())
    (found,) = runner.test(task, data(), verbose=False)
    named = {f"test/{name}_{length}" for name in ("exact_match", "token_accuracy") for length in (4, 6)}
    assert set(found) == named | {
        f"test/{name}" for name in ("loss", "exact_match", "token_accuracy", "longest_solved")
    }


@pytest.mark.parametrize("network", BACKBONES)
def test_no_backbone_sees_what_comes_later(network):
    torch.manual_seed(0)
    task = model(network).eval()
    ids = torch.randint(7, (2, 10))
    changed = ids.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % 7
    first, second = task(ids), task(changed)
    assert first.shape == (2, 10, 7)
    torch.testing.assert_close(first[:, :6], second[:, :6])
    assert not torch.allclose(first[:, 6:], second[:, 6:])


class Oracle(nn.Module):
    """Knows the alphabet: copies, but makes a mistake in the last letter of strings longer than 4."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, ids):
        logits = torch.zeros(*ids.shape, 7)
        for row, line in enumerate(ids.tolist()):
            bar = line.index(4)
            letters = line[1:bar]
            answer = [*letters, 5]
            if len(letters) > 4:
                answer[-2] = (answer[-2] + 1) % 3
            for place, token in enumerate(answer):
                logits[row, bar + place, token] = 9.0
        return logits * self.weight


class OwnRecall(SequenceRecall):
    def configure_network(self):
        return Oracle()


def test_a_network_of_one_s_own_is_counted_right(tmp_path):
    task = OwnRecall(vocab_size=7, block_size=14)
    (found,) = quiet_trainer(default_root_dir=tmp_path).test(task, data(), verbose=False)
    assert found["test/exact_match_4"] == found["test/token_accuracy_4"] == 1
    assert found["test/exact_match_6"] == 0
    assert found["test/token_accuracy_6"] == pytest.approx(5 / 6)
    assert found["test/exact_match"] == 0.5
    assert found["test/token_accuracy"] == pytest.approx(9 / 10)
    assert found["test/longest_solved"] == 4


def test_the_loss_is_that_of_the_answers_alone():
    torch.manual_seed(0)
    task, batch = model(), data().train_set.__getitems__([(0, i) for i in range(4)])
    logits = task(batch["input_ids"])
    rows, places = (batch["targets"] != -100).nonzero(as_tuple=True)
    expected = F.cross_entropy(logits[rows, places], batch["targets"][rows, places])
    torch.testing.assert_close(task.training_step(batch, 0), expected)


def test_lengths_are_solved_up_to_the_first_that_is_not():
    metric = RecallByLength([2, 4, 8])
    scored = torch.ones(6, 2, dtype=torch.bool)
    targets = torch.zeros(6, 2, dtype=torch.int64)
    predictions = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 1], [0, 0], [0, 0]])
    metric.update(predictions, targets, scored, torch.tensor([2, 2, 4, 4, 8, 8]))
    found = {name: value.item() for name, value in metric.compute().items()}
    assert found["longest_solved"] == 2
    assert (found["exact_match_8"], found["exact_match_4"], found["token_accuracy_4"]) == (1, 0, 0.5)
    assert found["exact_match"] == pytest.approx(4 / 6)


@pytest.mark.parametrize(("network", "decay_all"), [("mamba", False), ("mamba2", True)])
def test_decays_step_biases_and_skips_never_decay(network, decay_all):
    task = model(network)
    decayed, kept = (
        {id(parameter) for parameter in group["params"]} for group in parameter_groups(task, decay_all=decay_all)
    )
    for site in state_space_sites(task):
        for tensor in (site.layout.A_log, site.layout.dt_bias, site.layout.D):
            assert id(tensor) in kept
            assert id(tensor) not in decayed
        assert id(site.layout.B.weight) in decayed
    norm = task.network.backbone.norm_f.weight
    assert (id(norm) in decayed) is decay_all


def test_a_network_that_recall_is_not_compared_on_is_refused():
    with pytest.raises(StructuredInitError, match="unknown network 'mamba3': did you mean 'mamba"):
        model("mamba3")
