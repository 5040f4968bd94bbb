"""What tests train: quiet trainers, and a small classifier of images with every kind of dropout."""

from __future__ import annotations

import hashlib

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, TensorDataset


def quiet_trainer(**options):
    """A trainer of one epoch that shows, logs and saves nothing."""
    quiet = ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")
    usual = {**dict.fromkeys(quiet, False), "accelerator": "cpu", "devices": 1, "max_epochs": 1, "log_every_n_steps": 1}
    return L.Trainer(**{**usual, **options})


def fsdp():
    """Two processes on CPUs that share out each weight, and write a checkpoint as one."""
    of_parts = {"data_parallel_size": 2, "tensor_parallel_size": 1, "save_distributed_checkpoint": False}
    return ModelParallelStrategy(**of_parts, process_group_backend="gloo")


def transformer(embed_dim=12):
    """A vision transformer of two layers and two heads: 8×8 pixels, 4×4 patches and a class token."""
    rates = dict.fromkeys(("drop_rate", "attn_drop_rate", "proj_drop_rate", "drop_path_rate"), 0.2)
    sizes = {"img_size": 8, "patch_size": 2, "embed_dim": embed_dim, "depth": 2, "num_heads": 2, "mlp_ratio": 1}
    return VisionTransformer(**sizes, num_classes=3, **rates)


def hashes(module):
    """A hash of every parameter's full value, of parts of it too that stand on other ranks."""
    full = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in module.named_parameters()}
    return {name: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest()[:16] for name, p in full.items()}


class Classifier(L.LightningModule):
    """Trains a network on images of 8×8, by default the transformer."""

    def __init__(self, network=None, lr=1e-2):
        super().__init__()
        self.network, self.lr = network or transformer(), lr

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val/loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


def images(seed, count=16):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 3, 8, 8, generator=generator), torch.randint(3, (count,), generator=generator)
    )


class Noisy(Dataset):
    """Augments from the global random state, as torchvision does."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        image, label = images(0)[index]
        return image + torch.randn(3, 8, 8), label


def fit(folder, *callbacks, module=None, ckpt_path=None, train=None, val=None, **options):
    """Train, and return trainer and module; the order of the data and the weights come from the global random state."""
    L.seed_everything(0, verbose=False)
    module = module or Classifier()
    module = module if isinstance(module, nn.Module) else Classifier(module())
    places = {"default_root_dir": folder, "logger": CSVLogger(folder), "enable_checkpointing": None}
    trainer = quiet_trainer(callbacks=list(callbacks), **places | options)
    loaders = DataLoader(train or images(0), 8, shuffle=True), DataLoader(images(1), 8) if val is None else val
    trainer.fit(module, *loaders, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
    return trainer, module
