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
# # Depthwise filters: drawn, frozen, trained
#
# A small ConvMixer on 1,797 real 8×8 digits. Its depthwise filters are drawn from a structured covariance, chosen as
# impulses, or left as the library builds them; and they are trained or frozen. No download.

# %%
# %matplotlib inline
import os

import torch
from lightning.pytorch import Trainer, seed_everything

from callbacks import InitCallback
from callbacks.figures import covariance_figure, filter_figure, variance_figure
from lightning_modules import ImageClassifier
from lightning_modules.data import ImageData
from structured_init import Default, FilterCovariance, SpatialFilters, initialize
from structured_init.analysis.filters import depthwise_filters, filter_statistics

epochs = int(os.environ.get("NOTEBOOK_EPOCHS", 8))

# %% [markdown]
# ## What the initialization looks like
#
# The closed form's covariance depends on the depth of the layer: nearly impulses first, wide blobs last. A panel is a
# grid of blocks, one per weight of the filter; the block shows that weight's covariance with all weights.


# %%
def classifier():
    return ImageClassifier(
        network="convmixer_32_4_k5_p1",
        image_size=8,
        in_channels=1,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.005),
        lr_schedule=[[0, 0], [0.4, 1], [0.8, 0.05], [1, 0]],
    )


built, structured = classifier(), classifier()
report = initialize(structured, FilterCovariance(), seed=0)
print(report.summary())
moments = {"as built": depthwise_filters(built), "covariance": depthwise_filters(structured)}
covariance_figure(moments)

# %%
filter_figure(moments)

# %% [markdown]
# In numbers, for the first and the last layer. Independent weights have a neighbour correlation of 0. PyTorch's default
# has an energy of 1/3 at any size of the filter.

# %%
for label, layers in moments.items():
    for name in [*layers][:: len(layers) - 1]:
        numbers = filter_statistics(layers[name])
        print(f"{label:<12}{name:<26}" + "  ".join(f"{key} {value:.2f}" for key, value in numbers.items()))

# %% [markdown]
# ## Frozen or trained
#
# A frozen initialization trains no filter, in this run or in one resumed from it. Training can only mix channels.


# %%
def train(initializer):
    seed_everything(0, verbose=False)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=f"runs/{type(initializer).__name__.lower()}",
        callbacks=[InitCallback(initializer)],
    )
    module, data = classifier(), ImageData(name="digits", batch_size=64)
    trainer.fit(module, datamodule=data)
    return module.cpu(), trainer.test(module, datamodule=data, verbose=False)[0]["test/accuracy"]


starts = {
    "default, trained": Default(),
    "default, frozen": SpatialFilters("host", frozen=True),
    "covariance, trained": FilterCovariance(),
    "covariance, frozen": FilterCovariance(frozen=True),
    "impulses, frozen": SpatialFilters("impulse", frozen=True),
    "boxes, frozen": SpatialFilters("box", frozen=True),
}
results = {name: train(start) for name, start in starts.items()}
for name, (module, accuracy) in results.items():
    trainable = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    print(f"{name:<20} {100 * accuracy:.1f} %   {trainable:,} trainable parameters")

# %% [markdown]
# One seed says little: `structured-init compare -c convmixer_cifar10_short --inits default,covariance,filters_random`
# pairs runs over seeds and gives intervals.

# %% [markdown]
# ## Before and after training

# %%
trained, _ = results["default, trained"]
variance_figure({"before": depthwise_filters(built), "after": depthwise_filters(trained)})
