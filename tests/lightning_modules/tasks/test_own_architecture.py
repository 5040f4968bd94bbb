"""A user brings an architecture and an attention of their own, in one file beside their experiment."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from structured_init import attention_sites

USER_FILE = """
from strangers import DIM, HEADS, WIDTH, Apart
from torch import nn
from torch.nn import functional as F

from lightning_modules import ImageClassifier
from structured_init import AttentionLayout, Projection, register_attention


class MyAttention(Apart):
    pass


@register_attention(MyAttention, grid=(4, 4))
def my_attention(module):
    return AttentionLayout(
        query=Projection(module.ask.weight, HEADS, DIM),
        key=Projection(module.meet.weight, HEADS, DIM),
        value=Projection(module.carry.weight, HEADS, DIM),
        output=Projection(module.write.weight, HEADS, DIM, axis=1),
    )


class MyNetwork(nn.Module):
    def __init__(self, channels, classes, layers):
        super().__init__()
        self.patches = nn.Conv2d(channels, WIDTH, 2, stride=2)
        self.layers = nn.ModuleList(MyAttention() for _ in range(layers))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).mT
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, x.shape[-1:]))
        return self.head(x.mean(1))


class MyClassifier(ImageClassifier):
    def __init__(self, layers: int = 2, **kwargs):
        self.layers = layers
        super().__init__(**kwargs)

    def configure_network(self):
        return MyNetwork(self.in_channels, self.num_classes, self.layers)
"""


def test_one_overridden_method_brings_an_architecture_with_its_own_attention(cli, folder, monkeypatch):
    (folder / "my_model.py").write_text(USER_FILE)
    (folder / "mine.yaml").write_text(
        "model: {class_path: my_model.MyClassifier, init_args: {layers: 3, label_smoothing: 0.1}}\n"
        "init: {initializer: {class_path: Mimetic, init_args: {positions: keep, qk_alpha: 0.0, qk_beta: 0.7}}}\n"
    )
    monkeypatch.syspath_prepend(folder)
    still = [f"--model.{rate}=0.0" for rate in ("optimizer.lr", "warmup_lr", "min_lr")]
    run = cli("fit", "-c", "mine.yaml", *still, "--trainer.max_steps=1", "--trainer.limit_val_batches=1")
    sites = attention_sites(run.model)
    assert [site.name for site in sites] == [f"network.layers.{layer}" for layer in range(3)]
    for site in sites:  # without noise each head's product is 0.7 times a projection of rank head_dim
        spectrum = torch.linalg.svdvals(site.query @ site.key.mT)
        torch.testing.assert_close(spectrum, torch.tensor([0.7] * 4 + [0.0] * 8).expand(3, 12), atol=1e-5, rtol=0)
    assert run.model.hparams["layers"] == 3
    attention = load_file(f"{run.trainer.log_dir}/attention/before.safetensors")
    assert [maps.shape[1:] for maps in attention.values()] == [(3, 16, 16)] * 3
    report = json.loads(Path(run.trainer.log_dir, "init_report.json").read_text())
    assert {name for entry in report["entries"] if entry["set_by"] for name in entry["names"]} == {
        f"network.layers.{layer}.{part}.weight" for layer in range(3) for part in ("ask", "meet", "carry", "write")
    }
