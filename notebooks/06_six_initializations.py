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
# # Six initializations, before and after training
#
# The same vision transformer on 1,797 real 8×8 digits, from six initializations. The pictures show its attention before
# and after training, and the curves how fast it learns. No download.

# %%
# %matplotlib inline
import os

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from callbacks import InitCallback
from callbacks.figures import map_figure
from lightning_modules import ImageClassifier
from lightning_modules.data import ImageData
from structured_init import Default, Impulse, KaimingUniform, Mimetic, Positions, initialize
from structured_init.analysis import capture_attention, summarize

epochs = int(os.environ.get("NOTEBOOK_EPOCHS", 8))

# %% [markdown]
# ## The initializations
#
# - `default`: what timm draws.
# - `kaiming uniform`: what PyTorch draws.
# - `sincos` and `codes`: positions with structure, nothing else.
# - `mimetic`: positions, and weights of attention like those of a trained network.
# - `impulse`: positions, and heads that each look at one neighbour.

# %%
initializers = {
    "default": Default(),
    "kaiming uniform": KaimingUniform(),
    "sincos": Positions("sincos"),
    "codes": Positions("codes"),
    "mimetic": Mimetic(),
    "impulse": Impulse(kernel_size=3, solver="separable"),
}


def classifier():
    seed_everything(0, verbose=False)
    return ImageClassifier(network="vit_nano_patch2_8", num_classes=10, image_size=8, in_channels=1, warmup_epochs=1)


data = ImageData(name="digits", batch_size=64)
data.prepare_data()
data.setup("fit")
images, _ = next(iter(data.val_dataloader()))


def attention(model):
    return {layer: of_samples.mean(0) for layer, of_samples in capture_attention(model, images).items()}


before = {}
for name, initializer in initializers.items():
    model = classifier()
    initialize(model, initializer, seed=0)
    before[name] = attention(model)

# %% [markdown]
# ## Before training
#
# A square is one head of one layer. A row is a patch that looks, a column the patch that it looks at. The mean over 64
# images.

# %%
map_figure(before, max_heads=2)

# %% [markdown]
# The first four begin with uniform attention: every patch looks at all patches alike. `mimetic` begins with a diagonal,
# so that each patch looks at itself. `impulse` has a diagonal that is shifted, by another offset in each head.

# %% [markdown]
# ## Train


# %%
class Curve(Callback):
    """Keeps the validation accuracy of every epoch."""

    def __init__(self):
        self.values = []

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.values.append(100 * trainer.callback_metrics["val/accuracy"].item())


def train(initializer):
    model, curve = classifier(), Curve()
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="runs/six",
        callbacks=[InitCallback(initializer), curve],
    )
    trainer.fit(model, datamodule=ImageData(name="digits", batch_size=64))
    return model.cpu(), curve.values


trained = {name: train(initializer) for name, initializer in initializers.items()}

# %%
figure = Figure(figsize=(6, 3), layout="constrained")
axis = figure.subplots()
for name, (_, values) in trained.items():
    axis.plot(range(1, len(values) + 1), values, marker=".", label=name)
axis.set(xlabel="epochs", ylabel="validation accuracy %")
figure.legend(frameon=False, loc="outside right center")
figure

# %% [markdown]
# This is one seed. `structured-init compare` trains several seeds and gives intervals: see the next notebook.

# %% [markdown]
# ## After training

# %%
after = {name: attention(model) for name, (model, _) in trained.items()}
map_figure(after, max_heads=2)

# %% [markdown]
# The structure that an initialization begins with is still there at the end. The networks that began without it have
# not found it.
#
# In numbers: how far a patch looks on average, in patches, and how much of its attention it pays to itself.

# %%
for name in initializers:
    for moment, maps in (("before", before[name]), ("after", after[name])):
        layers = [summarize(layer[None], grid=(4, 4)) for layer in maps.values()]
        distance, own = (
            [sum(layer[statistic]) / len(layer[statistic]) for layer in layers]
            for statistic in ("mean_distance", "diagonal_mass")
        )
        shown = "  ".join(f"{d:.2f} {m:.2f}" for d, m in zip(distance, own, strict=True))
        print(f"{name:<16}{moment:<8} distance, own patch in each layer: {shown}")
