"""`Images`: a data set on a device, changed there at random: padded crop, flip, and timm's RandAugment.

What happens to an image is a function of (seed, epoch, index), as in ``fit``. The draws are others than there, from the
same distributions. Two things differ: images are moved by bilinear interpolation alone, where timm draws bilinear or
bicubic, and the edge of a moved image blends into the mean colour around it.

Letters: B images, C channels, H height, W width. Images are float32 from 0 to 255, amounts (B, 1, 1, 1).

Source: timm 1.0, ``timm/data/auto_augment.py``, the policy ``rand-m9-mstd0.5-inc1``.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as torchvision

from lightning_modules.cli.lightning_cli import BuildOnly
from lightning_modules.data.seeded import derive_seeds
from structured_init.util.errors import StructuredInitError

Floats = NDArray[np.float64]
Seeds = NDArray[np.uint64]

POLICY = "rand-m9-mstd0.5-inc1"
LAYERS, PROBABILITY = 2, 0.5  # operations of an image, and how often each is done
LEVEL, DEVIATION, HIGHEST = 9.0, 0.5, 10.0


def uniform(seeds: Seeds, *draw: int) -> Floats:
    """Return a number in (0, 1) for each image's seed, (B,): the draw of this name."""
    whole = derive_seeds(seeds.view(np.int64), *draw) >> np.uint64(11)  # the 53 bits that a float64 holds
    return (whole.astype(np.float64) + 0.5) / 2**53


def cropped(images: Tensor, top: Tensor, left: Tensor, padding: int) -> Tensor:
    """Return images (B, C, H, W), padded with black, from the row and the column (B,) of the padded ones."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (padding,) * 4).movedim(1, -1)
    rows = top[:, None, None] + torch.arange(height, device=top.device)[:, None]
    columns = left[:, None, None] + torch.arange(width, device=top.device)
    which = torch.arange(len(images), device=top.device)[:, None, None]
    return padded[which, rows, columns].movedim(-1, 1)


def gray(images: Tensor) -> Tensor:
    """Return luminance (B, 1, H, W) in whole numbers."""
    return torchvision.rgb_to_grayscale(images).round() if images.shape[1] == 3 else images


def smooth(images: Tensor) -> Tensor:
    """Return images under PIL's filter SMOOTH; the border stays as it is."""
    kernel = images.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    channels = images.shape[1]
    result = images.clone()
    result[..., 1:-1, 1:-1] = F.conv2d(images, kernel.expand(channels, 1, 3, 3), groups=channels).round()
    return result


def affine(images: Tensor, *entries: Tensor | float) -> Tensor:
    """Return images whose places (x, y), from -1 to 1, are read at (a x + b y + c, d x + e y + f)."""
    rows = [torch.as_tensor(each, device=images.device).expand(len(images), 1, 1, 1) for each in entries]
    grid = F.affine_grid(torch.cat(rows, 1).view(-1, 2, 3).float(), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn images around their centre, against the clock."""
    angle = torch.deg2rad(-degrees)
    return affine(images, angle.cos(), angle.sin(), 0.0, -angle.sin(), angle.cos(), 0.0)


def factor(level: Floats, sign: Floats) -> Floats:
    """Return how much of an image is kept of a blend with what lacks something; more than 1 exaggerates it."""
    return np.maximum(0.1, 1 + 0.09 * level * sign)


# Name of timm's → what is done by an amount, and the amount by level and sign.
CHANGES = {
    "AutoContrast": (lambda x, _: torchvision.autocontrast(x.byte()).float(), factor),
    "Equalize": (lambda x, _: torchvision.equalize(x.byte()).float(), factor),
    "Invert": (lambda x, _: 255 - x, factor),
    "PosterizeIncreasing": (
        lambda x, bits: x - x.remainder(2 ** (8 - bits)),
        lambda level, sign: 4 - np.floor(0.4 * level),
    ),
    "SolarizeIncreasing": (
        lambda x, a: torch.where(x < a, x, 255 - x),
        lambda level, sign: 256 - np.floor(25.6 * level),
    ),
    "SolarizeAdd": (lambda x, a: torch.where(x < 128, x + a, x), lambda level, sign: np.floor(11 * level)),
    "ColorIncreasing": (lambda x, a: gray(x).lerp(x, a), factor),
    "ContrastIncreasing": (lambda x, a: gray(x).mean((1, 2, 3), keepdim=True).round().lerp(x, a), factor),
    "BrightnessIncreasing": (torch.mul, factor),
    "SharpnessIncreasing": (lambda x, a: smooth(x).lerp(x, a), factor),
    "Rotate": (rotate, lambda level, sign: 3 * level * sign),
    "ShearX": (lambda x, a: affine(x, 1.0, a, a, 0.0, 1.0, 0.0), lambda level, sign: 0.03 * level * sign),
    "ShearY": (lambda x, a: affine(x, 1.0, 0.0, 0.0, a, 1.0, a), lambda level, sign: 0.03 * level * sign),
    "TranslateXRel": (lambda x, a: affine(x, 1.0, 0.0, 2 * a, 0.0, 1.0, 0.0), lambda level, sign: 0.045 * level * sign),
    "TranslateYRel": (lambda x, a: affine(x, 1.0, 0.0, 0.0, 0.0, 1.0, 2 * a), lambda level, sign: 0.045 * level * sign),
}
MOVES = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"}


def change(images: Tensor, name: str, amount: Tensor, fill: Tensor) -> Tensor:
    """Do one operation, by timm's name of it, on images of whole numbers; ``fill`` (C, 1, 1) is what moves uncover."""
    do, _ = CHANGES[name]
    changed = do(images - fill, amount) + fill if name in MOVES else do(images, amount)
    return changed.clamp(0, 255).round()


def rand_augment(images: Tensor, seeds: Seeds, fill: Tensor) -> Tensor:
    """Return images after two random operations each, of which every one is done with probability 1/2."""
    for layer in range(LAYERS):
        chosen = np.floor(len(CHANGES) * uniform(seeds, layer, 0)).astype(int)
        done = uniform(seeds, layer, 1) < PROBABILITY
        levels = np.clip(LEVEL + DEVIATION * ndtri(uniform(seeds, layer, 2)), 0, HIGHEST)
        signs = np.where(uniform(seeds, layer, 3) < 0.5, -1.0, 1.0)
        for number, (name, (_, amount)) in enumerate(CHANGES.items()):
            rows = np.flatnonzero(done & (chosen == number))
            if len(rows) == 0:
                continue
            where = torch.from_numpy(rows).to(images.device, non_blocking=True)
            amounts = torch.from_numpy(amount(levels[rows], signs[rows])).to(images, non_blocking=True)
            images[where] = change(images[where], name, amounts.view(-1, 1, 1, 1), fill)
    return images


def augment(
    images: Tensor, seeds: Seeds, *, crop_padding: int = 0, flip: bool = False, fill: Tensor | None = None
) -> Tensor:
    """Return changed images (B, C, H, W), float32 from 0 to 255, of uint8 ones.

    Args:
        images: (B, C, H, W) uint8.
        seeds: one per image, (B,): of (seed, epoch, index).
        crop_padding: pad with black by so many pixels and crop back at a random place; 0 for none.
        flip: mirror left and right with probability 1/2.
        fill: mean of each channel (C, 1, 1) from 0 to 255; where given, RandAugment is done.
    """
    images = images.float()
    if crop_padding:
        places = [np.floor((2 * crop_padding + 1) * uniform(seeds, 9, axis)).astype(np.int64) for axis in (0, 1)]
        top, left = (torch.from_numpy(place).to(images.device, non_blocking=True) for place in places)
        images = cropped(images, top, left, crop_padding)
    if flip:
        mirrored = torch.from_numpy(uniform(seeds, 8) < 0.5).to(images.device, non_blocking=True)
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
    return images if fill is None else rand_augment(images, seeds, fill)


class Images:
    """The images of one place of a comparison, on the device: (N, C, H, W) uint8 and classes (N,), by part."""

    def __init__(self, cli: BuildOnly, device: torch.device) -> None:
        data = cli.datamodule
        sets = {"train": data.train_set, "val": data.val_set, "test": data.test_set}
        self.parts = {}
        for name, part in sets.items():
            pixels = torch.from_numpy(part.images).permute(0, 3, 1, 2).contiguous()
            self.parts[name] = pixels.to(device), part.labels.to(device)
        self.mean, self.std = data.train_set.mean.to(device), data.train_set.std.to(device)
        self.batch_size, self.eval_batch_size = data.batch_size, data.eval_batch_size
        given = cli.config["fit"].data.init_args
        if given.crop_scale or given.random_erasing or given.rand_augment not in (None, POLICY):
            raise StructuredInitError(
                f"on a device images are flipped, cropped and changed by '{POLICY}', no other way"
            )
        self.fill = 255 * self.mean if given.rand_augment else None
        self.changes = {"crop_padding": given.crop_padding, "flip": given.flip}

    def normalized(self, images: Tensor) -> Tensor:
        return images.float().div(255).sub(self.mean).div(self.std)

    def training_batch(self, seed: int, epoch: int, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return normalized images (B, C, H, W), changed at random, and their classes (B,)."""
        images, labels = self.parts["train"]
        where = torch.from_numpy(indices).to(images.device, non_blocking=True)
        changed = augment(images[where], derive_seeds(seed, epoch, indices), fill=self.fill, **self.changes)
        return self.normalized(changed), labels[where]

    @torch.no_grad()
    def evaluate(self, network: nn.Module, part: str) -> dict[str, float]:
        """Return accuracy and cross-entropy of a network on a part, under their logged names."""
        images, labels = self.parts[part]
        right = torch.zeros((), device=images.device)
        loss = torch.zeros((), device=images.device)
        network.eval()
        for some, classes in zip(images.split(self.eval_batch_size), labels.split(self.eval_batch_size), strict=True):
            logits = network(self.normalized(some)).float()
            right += (logits.argmax(1) == classes).sum()
            loss += F.cross_entropy(logits, classes, reduction="sum")
        network.train()
        return {f"{part}/accuracy": right.item() / len(labels), f"{part}/loss": loss.item() / len(labels)}
