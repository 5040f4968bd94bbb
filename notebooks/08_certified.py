# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A certified radius
#
# A network of orthogonal layers changes its output by no more than its input changes. So the lead of the right class
# certifies a radius: no perturbation that is smaller changes the prediction. Here a small network learns 8×8 digits. No
# download.

# %%
# %matplotlib inline
import os

import torch
from lightning.pytorch import Trainer, seed_everything
from matplotlib.figure import Figure

from lightning_modules import CertifiedClassifier
from lightning_modules.data import ImageData
from structured_init.analysis import lipschitz_bound

epochs = int(os.environ.get("NOTEBOOK_EPOCHS", 10))

# %% [markdown]
# ## Train
#
# Pixels are between 0 and 1, and only shifted, so that radii are in units of pixels.

# %%
seed_everything(0, verbose=False)
data = ImageData(name="digits", batch_size=64, mean=[0.3], std=[1.0])
model = CertifiedClassifier(
    network="kw_large",
    network_args={"width": 0.25},
    num_classes=10,
    image_size=8,
    in_channels=1,
    pgd_epsilons=[],
    lipschitz_steps=0,
)
trainer = Trainer(
    max_epochs=epochs,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir="runs/certified",
)
trainer.fit(model, datamodule=data)

# %% [markdown]
# ## The bound
#
# The bound is the product of the bounds of the layers. Each layer is orthogonal, or an activation that keeps distances,
# so the product is 1.

# %%
model = model.cpu().eval()
data.setup("test")
images, labels = next(iter(data.test_dataloader()))
bound = lipschitz_bound(model.network, images[:2])

# %% [markdown]
# ## The radius of each image
#
# The right class leads by a margin m. The difference of two outputs changes at most √2 times as much as the input, so
# no perturbation of norm below m / (√2 · bound) changes the prediction.

# %%
with torch.no_grad():
    logits = model(images)
right = logits.gather(1, labels[:, None])[:, 0]
others = logits.scatter(1, labels[:, None], float("-inf")).amax(1)
radius = (right - others) / (2**0.5 * bound)
print(
    f"{100 * (radius > 0).float().mean():.1f} % of {len(images)} images are right; median radius {radius.median():.2f}"
)

# %%
figure = Figure(figsize=(6, 3), layout="constrained")
axis = figure.subplots()
levels = torch.linspace(0, 1, 101)
axis.plot(levels, [100 * (radius > level).float().mean().item() for level in levels])
axis.axvline(36 / 255, color="gray", linewidth=0.8, linestyle=":")
axis.set(xlabel="radius (L2 norm, pixels between 0 and 1)", ylabel="certified accuracy %")
axis.set_title("no perturbation of that size changes the prediction", loc="left", fontsize=9)
figure

# %% [markdown]
# ## The safest and the most uncertain digits

# %%
order = radius.argsort()
figure = Figure(figsize=(7, 2.6), layout="constrained")
for axis, place in zip(figure.subplots(2, 8).flat, [*order[-8:].flip(0), *order[:8]], strict=True):
    axis.imshow(images[place, 0], cmap="gray_r")
    axis.set_title(f"{labels[place]}: {radius[place]:.2f}", fontsize=8)
    axis.axis("off")
figure

# %% [markdown]
# Top: the largest radii. Bottom: the smallest; a negative one is a wrong prediction.
