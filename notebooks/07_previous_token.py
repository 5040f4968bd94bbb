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
# # What a previous-token head does to a small GPT
#
# Trained language models have heads that look at the token before. Here a small GPT begins with such heads, and is
# compared with one that has to find them. It reads the reference text that comes with Python, character by character.
# No download.

# %%
# %matplotlib inline
import os

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from callbacks import InitCallback
from callbacks.figures import map_figure, token_figure
from lightning_modules import LanguageModel
from lightning_modules.data import TextData
from structured_init import Default, PreviousToken, initialize
from structured_init.analysis import capture_attention

steps = int(os.environ.get("NOTEBOOK_STEPS", 150))

# %%
data = TextData(name="python-docs", tokenizer="characters", block_size=64, batch_size=8, eval_batch_size=16)
data.prepare_data()
data.setup("fit")
batch = next(iter(data.val_dataloader()))


def language_model():
    seed_everything(0, verbose=False)
    return LanguageModel(
        network="gpt2",
        network_args={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        vocab_size=data.vocab_size,
        block_size=data.block_size,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.1),
        warmup_epochs=0.1,
    )


# %% [markdown]
# ## The initialization
#
# The four heads of the first layer look at the token 1, 2, 3 and 4 places back. It is written into positions, queries
# and keys; all else is what transformers draws.

# %%
initializers = {"default": Default(), "previous token": PreviousToken()}
initialized = {name: language_model() for name in initializers}
reports = {name: initialize(initialized[name], initializer, seed=0) for name, initializer in initializers.items()}
print(reports["previous token"])


# %%
def attention(model, samples=slice(None)):
    inputs = {name: values[samples] for name, values in model.probe_inputs(batch).items()}
    return {layer: maps.mean(0) for layer, maps in capture_attention(model, **inputs).items()}


map_figure({name: attention(model) for name, model in initialized.items()})

# %% [markdown]
# Each of the four heads has a diagonal of its own, below the main one. The default begins with attention that is spread
# over all that came before.

# %% [markdown]
# ## Train both


# %%
class Curve(Callback):
    """Keeps the training loss of every step, in bits per character."""

    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.values.append(outputs["loss"].item() / torch.log(torch.tensor(2.0)).item())


def train(initializer):
    model, curve = language_model(), Curve()
    trainer = Trainer(
        max_epochs=1,
        limit_train_batches=steps,
        limit_val_batches=4,
        gradient_clip_val=1.0,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="runs/previous_token",
        callbacks=[InitCallback(initializer), curve],
    )
    trainer.fit(model, datamodule=data)
    return model.cpu(), curve.values, trainer.callback_metrics["val/perplexity"].item()


trained = {name: train(initializer) for name, initializer in initializers.items()}
for name, (_, _, perplexity) in trained.items():
    print(f"{name:<16} validation perplexity {perplexity:.2f}")

# %%
figure = Figure(figsize=(6, 3), layout="constrained")
axis = figure.subplots()
for name, (_, values, _) in trained.items():
    axis.plot(values, label=name)
axis.set(xlabel="optimizer steps", ylabel="training loss, bits per character")
axis.legend(frameon=False)
figure

# %% [markdown]
# The default first learns how often each character occurs, then which pairs occur, and only then to look back. The
# other model looks back from the first step. This is one seed and a short training; [the
# card](../docs/previous_token.md) has what was measured, and where the gain shrinks to a head start.

# %% [markdown]
# ## Where the heads look after training
#
# One text of 64 characters. A row is the character that looks.

# %%
characters = [data.tokenizer.decode(token) for token in batch["input_ids"][1].tolist()]
token_figure({name: attention(model, slice(1, 2)) for name, (model, _, _) in trained.items()}, characters)
