"""``structured_init`` in a plain loop, under the Hugging Face Trainer, and in timm's training code."""

from __future__ import annotations

import torch
from torch import nn

from structured_init import Mimetic, attention_sites, initialize


def separable_images(count=32, size=8):
    """Images whose class is in their mean: easy enough to be learned in a few steps."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    images = 0.5 * torch.randn(count, 3, size, size, generator=generator) + (2.0 * labels - 1)[:, None, None, None]
    return images, labels


class WithLoss(nn.Module):
    """What the Hugging Face Trainer takes: a module that returns its loss."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, pixel_values, labels):
        logits = self.vit(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_the_hugging_face_trainer_starts_from_the_initialized_weights(tiny_vit, tmp_path):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **_):
            if state.global_step == 0:
                self.start = {site.name: (site.query @ site.key.mT).clone() for site in attention_sites(model)}

    model = WithLoss(tiny_vit(num_classes=2))
    initialize(model, Mimetic(), seed=0)
    planned = {site.name: site.query @ site.key.mT for site in attention_sites(model)}
    images, labels = separable_images()
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    dataset = [{"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)]
    look = Look()
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[look])
    trainer.train()
    assert look.start.keys() == {"vit.blocks.0.attn", "vit.blocks.1.attn"}
    assert all(torch.equal(look.start[name], planned[name]) for name in planned)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert not torch.equal(
        attention_sites(model)[0].query @ attention_sites(model)[0].key.mT, planned["vit.blocks.0.attn"]
    )
