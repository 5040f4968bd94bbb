from __future__ import annotations

import pytest
import torch

from lightning_modules.tasks.optim import parameter_groups
from structured_init import StructuredInitError


def trained(model, trainer, text, **arguments):
    """Train for two epochs from a fixed random state."""
    torch.manual_seed(5)
    fitted = trainer(max_epochs=2, num_sanity_val_steps=0, **arguments)
    fitted.fit(model, datamodule=text)
    return fitted


def test_bfloat16_trains_on_the_cpu_and_the_loss_is_counted_in_float32(language_model, trainer, text):
    run = trained(language_model(), trainer, text(), precision="bf16-mixed")
    other = trained(language_model(), trainer, text())
    loss = run.callback_metrics["train/loss"]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(other.callback_metrics["train/loss"].item(), rel=0.02)
    assert run.callback_metrics["train/loss"] != other.callback_metrics["train/loss"]


@pytest.mark.parametrize("network", ["gpt2", "bert"])
def test_matrices_decay_and_biases_norms_and_positions_do_not(network, language_model):
    model = language_model(network)
    decayed, kept = parameter_groups(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, kept = ([names[id(p)] for p in group["params"]] for group in (decayed, kept))
    assert len(decayed) + len(kept) == len(list(model.parameters()))  # a tied head is one with its embedding
    assert all(model.get_parameter(name).ndim == 2 for name in decayed)
    assert any(name.endswith(("wte.weight", "embed_tokens.weight", "word_embeddings.weight")) for name in decayed)
    assert any(name.endswith(("attn.c_attn.weight", "q_proj.weight", "query.weight")) for name in decayed)
    for name in ("wpe.weight", "position_embeddings.weight", "ln_1.weight", "norm.weight", "LayerNorm.weight", "bias"):
        assert not any(each.endswith(name) for each in decayed)


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 30}, "the data has vocab_size 30, more than the model's 23: set vocab_size"),
        ({"objective": "masked"}, "the data has objective masked, the model causal: set objective"),
    ],
)
def test_data_for_another_model_is_refused(change, message, language_model, trainer, text):
    data = text()
    for name, value in change.items():
        setattr(data, name, value)
    with pytest.raises(StructuredInitError, match=message):
        trainer().fit(language_model(), datamodule=data)
