from __future__ import annotations

import math

import pytest
import torch

from lightning_modules.tasks.language.metrics import token_loss


@pytest.mark.parametrize("network", ["gpt2", "bert"])
def test_the_loss_of_a_batch_is_that_of_transformers(network, language_model, tokens):
    model, batch = language_model(network).eval(), tokens()
    expected = model.network(batch["input_ids"], labels=batch["labels"]).loss
    torch.testing.assert_close(model.training_step(batch, 0), expected)


def test_a_batch_in_which_nothing_is_predicted_costs_nothing():
    logits = torch.randn(1, 4, 5, requires_grad=True)
    loss = token_loss(logits, torch.full((1, 4), -100))
    loss.objective.backward()
    assert loss.objective == 0
    assert logits.grad.abs().max() == 0


def test_half_precision_logits_are_counted_in_single_precision():
    logits = torch.zeros(1, 2, 1000, dtype=torch.bfloat16)
    loss = token_loss(logits, torch.zeros(1, 2, dtype=torch.long))
    assert loss.objective.item() == pytest.approx(math.log(1000), rel=1e-6)
