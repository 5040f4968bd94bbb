"""Several documents in a block cost what they cost alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_modules import LanguageModel
from structured_init import StructuredInitError


def documents(objective, lengths=(5, 4, 3)):
    """Documents of several lengths as one packed block of twelve, and each alone."""
    torch.manual_seed(1)
    alone = []
    for length in lengths:
        ids = torch.randint(2, 23, (1, length))
        labels = ids.clone()
        if objective == "causal":
            labels[:, 0] = -100
        alone.append({"input_ids": ids, "labels": labels})
    packed = {name: torch.cat([each[name] for each in alone], 1) for name in ("input_ids", "labels")}
    numbers = [torch.full((1, length), number) for number, length in enumerate(lengths, 1)]
    return {**packed, "segment_ids": torch.cat(numbers, 1)}, alone


def costs(model, batch):
    """−log p of each predicted token."""
    with torch.no_grad():
        nats = model.predict_step(batch, 0)
    return nats[nats != 0]


@pytest.mark.parametrize(
    ("network", "implementation"), [("gpt2", "sdpa"), ("llama", "eager"), ("bert", "sdpa"), ("roberta", "eager")]
)
def test_each_token_costs_the_same_packed_and_alone(network, implementation, language_model):
    model = language_model(network, network_args={"attn_implementation": implementation}).eval()
    packed, alone = documents(model.objective)
    separate = torch.cat([costs(model, each) for each in alone])
    assert len(separate) == (9 if model.objective == "causal" else 12)
    torch.testing.assert_close(costs(model, packed), separate)
    crossing = {name: packed[name] for name in ("input_ids", "labels")}
    assert (costs(model, crossing) - separate).abs().max() > 1e-3  # the test can tell


@pytest.mark.parametrize("network", ["gpt2", "bert"])
def test_padding_changes_nothing_and_gives_finite_gradients(network, language_model):
    model = language_model(network).eval()
    _, (alone, *_) = documents(model.objective)
    filled = {
        "input_ids": torch.cat([alone["input_ids"], torch.zeros(1, 7, dtype=torch.long)], 1),
        "labels": torch.cat([alone["labels"], torch.full((1, 7), -100)], 1),
        "segment_ids": torch.tensor([[1] * 5 + [0] * 7]),
    }
    torch.testing.assert_close(costs(model, filled), costs(model, alone))
    model.training_step(filled, 0).backward()
    assert all(p.grad.isfinite().all() for p in model.network.parameters())


def test_a_network_that_cannot_keep_documents_apart_is_refused():
    model = LanguageModel(nn.Sequential(nn.Embedding(23, 8), nn.Linear(8, 23)), vocab_size=23, block_size=12)
    packed, (alone, *_) = documents("causal")
    assert model.training_step(alone, 0).isfinite()
    fill = {"input_ids": torch.zeros(1, 3, dtype=torch.long), "labels": torch.full((1, 3), -100)}
    padded = {name: torch.cat([alone[name], fill[name]], 1) for name in fill}
    padded["segment_ids"] = torch.tensor([[1] * 5 + [0] * 3])  # a split's last block, which padding ends
    torch.testing.assert_close(model.training_step(padded, 0), model.training_step(alone, 0))
    with pytest.raises(StructuredInitError, match=r"Sequential\.forward takes no attention_mask and position_ids"):
        model.training_step(packed, 0)
