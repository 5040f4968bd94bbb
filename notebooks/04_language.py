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
# # Language: the two signs of a structured initialization
#
# A small GPT on the characters of the reference text inside Python, from three initializations. Everything but the
# initialization is the same: data order and dropout. No download.

# %%
# %matplotlib inline
import os

import torch
from lightning.pytorch import Trainer, seed_everything

from callbacks import InitCallback
from callbacks.figures import product_figure, token_figure
from lightning_modules import LanguageModel
from lightning_modules.data import TextData
from lightning_modules.tasks.language.samples import generate
from structured_init import Default, Mimetic, attention_sites, initialize
from structured_init.analysis import capture_attention, weight_products

steps = int(os.environ.get("NOTEBOOK_STEPS", 200))

# %% [markdown]
# ## The text
#
# A block may hold several documents; `segment_ids` keep them apart. `characters` says how much text each label stands
# for, so bits per character can be compared between tokenizers.


# %%
def text():
    return TextData(name="python-docs", tokenizer="characters", block_size=64, batch_size=8, eval_batch_size=64)


data = text()
data.prepare_data()
data.setup("fit")
batch = next(iter(data.val_dataloader()))
print({name: tuple(values.shape) for name, values in batch.items()})
print(data.tokenizer.decode(batch["input_ids"][1].tolist()))

# %% [markdown]
# ## The initializations
#
# For language, two second-hand accounts give two readings of the query–key sign; neither is confirmed. The model's own
# positions are kept: a sequence has no grid.

# %%
starts = {
    "default": Default(),
    "mimetic +": Mimetic(qk_sign=1, vo_sign=1, positions="keep"),
    "mimetic −": Mimetic(qk_sign=-1, vo_sign=1, positions="keep"),
}


def language_model():
    seed_everything(0, verbose=False)
    return LanguageModel(
        network="gpt2",
        network_args={"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2},
        vocab_size=data.vocab_size,
        block_size=data.block_size,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.1),
        warmup_epochs=0.1,
    )


started = {name: language_model() for name in starts}
reports = {name: initialize(started[name], start, seed=0) for name, start in starts.items()}
print(reports["mimetic +"].summary())

# %% [markdown]
# GPT-2 draws its output projections smaller with depth. `Mimetic` replaces them, and its report says so.

# %%
for site, note in reports["mimetic +"].notes.items():
    print(f"{site}: {note}")

# %% [markdown]
# ## Train


# %%
def train(name):
    module = language_model()
    trainer = Trainer(
        max_epochs=1,
        limit_train_batches=steps,
        limit_val_batches=8,
        gradient_clip_val=1.0,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir="runs/language",
        callbacks=[InitCallback(starts[name])],
    )
    trainer.fit(module, datamodule=text())
    return module, trainer.callback_metrics


trained = {name: train(name) for name in starts}
for name, (_, metrics) in trained.items():
    perplexity, bits = metrics["val/perplexity"], metrics["val/bits_per_character"]
    print(f"{name:<10} perplexity {perplexity:6.2f}   {bits:.3f} bits per character")

# %% [markdown]
# One seed and a few hundred steps say little: `structured-init compare -c gpt_python_docs_short
# --inits "default,mimetic_language,mimetic_language{qk_sign=-1}"` pairs runs over seeds and gives intervals.

# %% [markdown]
# ## The weight products before and after
#
# $W_qW_k^\top$ of the heads and $W_vW_o$ of the layers. Before and after training have scales of their own: compare
# patterns, not sizes.


# %%
def products(model):
    return {site.name: weight_products(site) for site in attention_sites(model)}


moments = {
    name: {"before": products(started[name]), "after": products(module.cpu())} for name, (module, _) in trained.items()
}
product_figure(moments["default"], side=32, same_scale=False)

# %%
product_figure(moments["mimetic +"], side=32, same_scale=False)

# %%
product_figure(moments["mimetic −"], side=32, same_scale=False)

# %% [markdown]
# In numbers, the mean of the diagonals of each layer. The identity times β has a mean of β. A head that is half as wide
# keeps half of the directions, and so less of the 0.7.

# %%
for name, of_start in moments.items():
    for moment, layers in of_start.items():
        means = {
            part: [getattr(layer, part).diagonal(dim1=-2, dim2=-1).mean().item() for layer in layers.values()]
            for part in ("query_key", "value_output")
        }
        print(f"{name:<11}{moment:<8}" + "   ".join(f"{part} {[f'{x:+.3f}' for x in means[part]]}" for part in means))

# %% [markdown]
# ## The attention of one text
#
# A row is the character that looks, a column the one it sees.


# %%
def maps(model):
    inputs = {name: values[1:2] for name, values in model.probe_inputs(batch).items()}
    return {layer: of_samples[0] for layer, of_samples in capture_attention(model, **inputs).items()}


characters = [data.tokenizer.decode(token) for token in batch["input_ids"][1].tolist()]
chosen, _ = trained["mimetic +"]
token_figure({"before": maps(started["mimetic +"]), "after": maps(chosen)}, characters)

# %% [markdown]
# ## A sample
#
# A text that the network from the default initialization writes. `sample_tokens` writes samples during training, from a
# random generator of their own.

# %%
generator = torch.Generator().manual_seed(0)
prompt = data.tokenizer.encode("The class")
writer, _ = trained["default"]
ids = generate(writer.eval(), prompt, 200, block_size=data.block_size, temperature=0.8, generator=generator)
print(data.tokenizer.decode(ids))
