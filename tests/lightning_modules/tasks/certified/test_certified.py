from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training import quiet_trainer as trainer

from lightning_modules import CertifiedClassifier
from lightning_modules.cli import main
from lightning_modules.tasks.certified import classifier as classifier_file
from structured_init import StructuredInitError

SMALL = {"network_args": {"width": 0.125}, "image_size": 8, "in_channels": 1}
CONFIG = """
model:
  class_path: CertifiedClassifier
  init_args: {network: kw_large, network_args: {width: 0.125}, pgd_epsilons: [36]}
data:
  class_path: ImageData
  init_args: {name: digits, batch_size: 64, fraction: 0.2, test_fraction: 0.2, mean: [0.3], std: [1.0]}
trainer: {accelerator: cpu, max_epochs: 2, enable_progress_bar: false, enable_model_summary: false,
  log_every_n_steps: 1}
"""


def classifier(*network, **arguments):
    made = {"network_args": None} if network and not isinstance(network[0], str) else {}
    return CertifiedClassifier(*(network or ("kw_large",)), **{**SMALL, **made, **arguments})


def loader(count=24, batch_size=10, classes=10):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 8, 8, generator=generator) - 0.5
    return DataLoader(TensorDataset(images, torch.arange(count) % classes), batch_size)


def results(model, batches=None, **arguments):
    return trainer(**arguments).test(model, batches or loader(), verbose=False)[0]


def linear(scale=1.0, classes=10):
    """W x with orthogonal rows of norm ``scale``: all is known of it."""
    layer = nn.Linear(64, classes, bias=False)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.eye(classes, 64))
    return nn.Sequential(nn.Flatten(), layer)


def test_the_logged_values_are_those_of_all_images_whatever_the_batches():
    model = classifier(linear(3.0), epsilons=[36, 12.5], pgd_epsilons=[])
    data = loader(200, 64)
    images, labels = data.dataset.tensors
    logits = 3 * images.flatten(1)[:, :10]
    logged = results(model, data)
    assert logged["test/accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert logged["test/loss"] == pytest.approx(F.multi_margin_loss(logits, labels, margin=0.5).item())
    assert logged["test/lipschitz_upper"] == pytest.approx(3.0, rel=1e-4)
    own = logits[torch.arange(200), labels]
    lead = own - logits.scatter(1, labels[:, None], -math.inf).amax(1)
    for name, radius in (("36", 36 / 255), ("12_5", 12.5 / 255)):
        expected = (lead > math.sqrt(2) * radius * 3.0).float().mean().item()
        assert logged[f"test/certified_accuracy_{name}"] == pytest.approx(expected)
    assert 0 < logged["test/certified_accuracy_12_5"] < logged["test/accuracy"]


def test_on_a_linear_network_attack_and_certificate_meet():
    """Two rows √2 apart: what is not certified can be changed."""
    model = classifier(linear(2.0, 2), num_classes=2, epsilons=[60], pgd_steps=100)
    logged = results(model, loader(200, 64, classes=2))
    assert logged["test/pgd_accuracy_60"] == pytest.approx(logged["test/certified_accuracy_60"])
    assert 0 < logged["test/pgd_accuracy_60"] < logged["test/accuracy"]


@pytest.mark.parametrize("inference_mode", [True, False])
def test_attacks_need_no_setting_of_the_trainers_and_leave_the_weights_alone(inference_mode):
    model = classifier(epsilons=[36])
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    once, again = (results(model, inference_mode=inference_mode) for _ in range(2))
    assert once == again
    assert all(torch.equal(before[name], value) for name, value in model.network.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.network.parameters())


def test_a_training_needs_no_bound_where_no_certificate_is_asked_for():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10), Odd())
    fitted = trainer()
    fitted.fit(classifier(network, epsilons=[]), loader(), loader())
    assert not [name for name in fitted.callback_metrics if "certified" in name or "lipschitz" in name]


class Odd(nn.Module):
    def forward(self, x):
        return x**3


# From the command line ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_from_the_command_line_certifies_and_learns(folder):
    (folder / "certified.yaml").write_text(CONFIG)
    run = main(["fit", "-c", "certified.yaml", "--trainer.max_epochs=8", "--data.fraction=0.8"])
    logged = run.trainer.test(run.model, datamodule=run.datamodule, verbose=False)[0]
    assert logged["test/accuracy"] > 0.5
    ends = [logged[f"test/certified_accuracy_{level}"] for level in (255, 108, 72, 36)]
    assert ends == sorted(ends)
    assert 0.1 < ends[-1] <= logged["test/pgd_accuracy_36"] <= logged["test/accuracy"]
    assert logged["test/lipschitz_upper"] == pytest.approx(1.0, abs=1e-3)


# Mistakes -------------------------------------------------------------------------------------------------------------


def test_scaled_data_are_refused_before_anything_runs(folder, complaint):
    (folder / "certified.yaml").write_text(CONFIG)
    message = complaint(main, ["fit", "-c", "certified.yaml", "--data.std=[0.25]"])
    assert message == (
        "the data divide pixels by std [0.25], so that radii would not be in pixels: "
        "give the data its mean, and std: [1.0]"
    )


@pytest.mark.parametrize("run", ["fit", "test"])
def test_no_certificate_of_a_network_whose_bound_is_unknown(run):
    model = classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Odd()))
    with pytest.raises(StructuredInitError, match="Odd") as mistake:
        getattr(trainer(), run)(model, *[loader()] * (1 + (run == "fit")))
    assert "\n" not in str(mistake.value)


def test_no_certificate_in_half_precision():
    with pytest.raises(StructuredInitError, match=r"needs float32 weights: set trainer\.precision to 32-true"):
        results(classifier(linear()), precision="bf16-true")


def test_a_certificate_that_an_attack_breaks_ends_the_test(monkeypatch):
    monkeypatch.setattr(classifier_file, "lipschitz_bound", lambda network, inputs: 0.01)
    with pytest.raises(StructuredInitError, match=r"^PGD changed \d+ certified predictions of a batch, "):
        results(classifier(linear(), epsilons=[255], pgd_steps=20))


def test_radii_in_other_units_are_refused():
    with pytest.raises(StructuredInitError, match=r"^epsilons are in 1/255 .* and at least 1, not 0\.14$"):
        classifier(epsilons=[0.14])
