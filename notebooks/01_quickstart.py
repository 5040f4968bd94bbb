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
# # Quickstart: choose how a network is initialized
#
# A small vision transformer on 1,797 real 8×8 digits, from three initializations. Everything but the initialization is
# the same: data order, augmentation, dropout. No download.

# %%
# %matplotlib inline
import os

from lightning.pytorch import Trainer, seed_everything

from callbacks import AttentionMapCallback, InitCallback
from callbacks.figures import map_figure, product_figure
from lightning_modules import ImageClassifier
from lightning_modules.data import ImageData
from structured_init import Default, Mimetic, Positions, attention_sites, initialize
from structured_init.analysis import capture_attention, weight_products

epochs = int(os.environ.get("NOTEBOOK_EPOCHS", 8))

# %% [markdown]
# ## One line
#
# `initialize` changes the model in place and says what it did to every parameter.


# %%
def classifier():
    return ImageClassifier(network="vit_nano_patch2_8", num_classes=10, image_size=8, in_channels=1, warmup_epochs=1)


model = classifier()
report = initialize(model, Mimetic(), seed=0)
print(report.summary())
for entry in report.changed[:4]:
    print(entry.names[0], "|", "; ".join(entry.set_by), f"| std {entry.before.std:.3f} → {entry.after.std:.3f}")

# %% [markdown]
# ## What it did to the weights
#
# Whatever the host library fuses or transposes, a site shows $W_q, W_k, W_v, W_o$ in the convention $q = xW_q$. The
# left columns are $W_qW_k^\top$ of the heads, the last is $W_vW_o$ of the layer.

# %%
products = {
    "as the library builds it": {site.name: weight_products(site) for site in attention_sites(classifier())},
    "mimetic": {site.name: weight_products(site) for site in attention_sites(model)},
}
product_figure(products)

# %% [markdown]
# ## What it did to the attention


# %%
def maps(module):
    return {layer: of_samples.mean(0) for layer, of_samples in capture_attention(module, images).items()}


data = ImageData(name="digits", batch_size=64)
data.prepare_data()
data.setup("fit")
images, labels = next(iter(data.val_dataloader()))
map_figure({"mimetic, untrained": maps(model)})

# %% [markdown]
# ## Train from three initializations
#
# `InitCallback` applies the initialization when training begins; one callback object may serve any number of models.
# `AttentionMapCallback` captures the maps before and after.


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
        callbacks=[InitCallback(initializer), AttentionMapCallback(figures=False)],
    )
    module = classifier()
    trainer.fit(module, datamodule=ImageData(name="digits", batch_size=64))
    return module, trainer.test(module, datamodule=data, verbose=False)[0]["test/accuracy"]


results = {type(start).__name__: train(start) for start in (Default(), Positions("sincos"), Mimetic())}
for name, (_, accuracy) in results.items():
    print(f"{name:<10} {100 * accuracy:.1f} %")

# %% [markdown]
# One seed says little: `structured-init compare` pairs runs over seeds and gives intervals.

# %%
trained, _ = results["Mimetic"]
map_figure({"before": maps(model), "after": maps(trained.cpu())})
