"""What :mod:`benchmarks.training_overhead` trains: each task on fixed batches, and its loss as a bare loop has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_modules import CertifiedClassifier, ImageClassifier, LanguageModel, SequenceRecall, TextClassifier
from lightning_modules.tasks.task import Task

Batch = Any
Loss = Callable[[nn.Module, Batch], Tensor]
SPAN = 0.9  # of pixels that a certificate accepts


@dataclass(frozen=True)
class Case:
    """One task at one size.

    Attributes:
        build: makes the task, the same one each time.
        item: makes the example of a number.
        batch_size: examples of a step.
        loss: what a bare loop minimizes.
        clip: the norm that gradients are clipped to.
    """

    build: Callable[[], Task]
    item: Callable[[int], Any]
    batch_size: int
    loss: Loss
    clip: float | None = None


class Examples(Dataset):
    """Examples made once and kept, so that no loop waits for them."""

    def __init__(self, case: Case, count: int) -> None:
        self.items = [case.item(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def language(
    width: int, layers: int, heads: int, block: int, batch: int, vocab: int, clip: float | None = None
) -> Case:
    """GPT-2 on blocks of tokens; the bare loop takes transformers' own loss."""
    fields = {"n_embd": width, "n_layer": layers, "n_head": heads}
    fields |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    text = torch.full((block,), 3, dtype=torch.int32)

    def item(number: int) -> dict[str, Tensor]:
        ids = _integers(number, vocab, block)
        return {"input_ids": ids, "labels": ids, "characters": text, "bytes": text}

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return network(batch["input_ids"], labels=batch["labels"]).loss

    return Case(
        _seeded(lambda: LanguageModel("gpt2", fields, vocab_size=vocab, block_size=block)), item, batch, loss, clip
    )


def text(width: int, layers: int, heads: int, block: int, batch: int, vocab: int = 2048) -> Case:
    """BERT that classifies texts."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    fields = {**sizes, "intermediate_size": 4 * width, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    arguments = {"vocab_size": vocab, "block_size": block, "num_classes": 6, "dropout": 0.0}
    mask = torch.ones(block, dtype=torch.long)

    def item(number: int) -> dict[str, Tensor]:
        labels = torch.tensor(number % 6)
        return {"input_ids": _integers(number, vocab, block), "attention_mask": mask, "labels": labels}

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(network(batch["input_ids"], batch["attention_mask"]), batch["labels"])

    return Case(_seeded(lambda: TextClassifier("bert", fields, **arguments)), item, batch, loss)


def image(network: str, batch: int, **network_args: Any) -> Case:
    """A network that classifies images of 32 pixels."""
    return Case(_seeded(lambda: ImageClassifier(network, network_args)), _image, batch, _image_loss(F.cross_entropy))


def certified(batch: int, **network_args: Any) -> Case:
    """KWLarge, of orthogonal layers, with the multi-margin loss."""

    def margin(logits: Tensor, labels: Tensor) -> Tensor:
        return F.multi_margin_loss(logits, labels, margin=0.5)

    return Case(_seeded(lambda: CertifiedClassifier("kw_large", network_args)), _image, batch, _image_loss(margin))


def recall(network: str, batch: int, length: int, vocab: int = 14, **network_args: Any) -> Case:
    """A state-space model whose answer is the second half of its input."""
    arguments = {"vocab_size": vocab, "block_size": length}

    def item(number: int) -> dict[str, Tensor]:
        ids = _integers(number, vocab, length)
        targets = ids.roll(-1).masked_fill(torch.arange(length) < length // 2, -100)
        return {"input_ids": ids, "targets": targets, "scored": targets >= 0, "lengths": torch.tensor(length // 2)}

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(network(batch["input_ids"]).logits.flatten(0, 1), batch["targets"].flatten())

    return Case(_seeded(lambda: SequenceRecall(network, network_args, **arguments)), item, batch, loss)


def _seeded(build: Callable[[], Task]) -> Callable[[], Task]:
    def built() -> Task:
        torch.manual_seed(0)
        return build()

    return built


def _image_loss(criterion: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    return lambda network, batch: criterion(network(batch[0]), batch[1])


def _image(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.rand(3, 32, 32, generator=generator) * SPAN - SPAN / 2, torch.tensor(number % 10)


def _integers(number: int, end: int, count: int) -> Tensor:
    return torch.randint(end, (count,), generator=torch.Generator().manual_seed(number))


CPU = {
    "LanguageModel, GPT-2 64 wide": language(64, 2, 2, 32, 4, 512),
    "LanguageModel, GPT-2 192 wide": language(192, 4, 4, 128, 8, 4096),
    "LanguageModel, GPT-2 192 wide, clipped": language(192, 4, 4, 128, 8, 4096, clip=1.0),
    "TextClassifier, BERT 64 wide": text(64, 2, 2, 32, 8),
    "TextClassifier, BERT 192 wide": text(192, 4, 4, 64, 24),
    "ImageClassifier, ViT 64 wide": image("vit_tiny_patch2_32", 8, embed_dim=64, depth=2, num_heads=2, patch_size=8),
    "ImageClassifier, ViT 96 wide": image("vit_micro_patch4_32", 48),
    "CertifiedClassifier, KWLarge, width 0.125": certified(4, width=0.125),
    "CertifiedClassifier, KWLarge": certified(32),
    "SequenceRecall, Mamba-2 32 wide": recall("mamba2", 8, 32, hidden_size=32),
    "SequenceRecall, Mamba-2 64 wide": recall("mamba2", 128, 64, hidden_size=64),
}
GPU = {
    "ImageClassifier, ViT-Tiny/2, batch 512": image("vit_tiny_patch2_32", 512),
    "LanguageModel, GPT-2 768 wide, 8 x 1024": language(768, 12, 12, 1024, 8, 50257, clip=1.0),
    "TextClassifier, BERT 768 wide, 64 x 128": text(768, 12, 12, 128, 64),
    "CertifiedClassifier, KWLarge, batch 128": certified(128),
}
