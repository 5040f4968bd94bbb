"""``structured_init`` in a plain loop, under the Hugging Face Trainer, and in timm's training code."""

from __future__ import annotations

import torch
from torch import nn

from structured_init import KaimingUniform, Mimetic, attention_sites, initialize


def separable_images(count=32, size=8):
    """Images whose class is in their mean: easy enough to be learned in a few steps."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    images = 0.5 * torch.randn(count, 3, size, size, generator=generator) + (2.0 * labels - 1)[:, None, None, None]
    return images, labels


def test_a_plain_loop_learns_from_the_initialized_weights(tiny_vit):
    model = tiny_vit(num_classes=2)
    initialize(model, Mimetic(), seed=0)
    images, labels = separable_images()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


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


def test_timms_training_code_starts_from_the_initialized_weights():
    """The lines of timm's ``train.py``: model, optimizer, averaged copy, schedule, loss, loop."""
    import timm
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=2, embed_dim=16, depth=2, num_heads=2, num_classes=2
    )
    initialize(model, Mimetic(), seed=0)
    planned = attention_sites(model)[0].query
    average = ModelEmaV3(model, decay=0.5)
    assert torch.equal(attention_sites(average)[0].query, planned)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05)
    schedule, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=6, warmup_epochs=1)
    criterion = LabelSmoothingCrossEntropy(0.1)
    images, labels = separable_images()
    losses = []
    for epoch in range(6):
        schedule.step(epoch)
        for batch in torch.arange(32).split(16):
            loss = criterion(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    undecayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    assert id(model.pos_embed) in undecayed
    assert id(model.blocks[0].attn.qkv.weight) not in undecayed


def test_a_hugging_face_model_takes_a_baseline():
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes))
    report = initialize(model, KaimingUniform())
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    assert {entry.names[0].rpartition(".")[0] for entry in report.changed} == layers
    assert {"classifier", "vit.embeddings.patch_embeddings.projection"} <= layers
    assert model(pixel_values=torch.zeros(1, 3, 8, 8)).logits.shape == (1, 2)
