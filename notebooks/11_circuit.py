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
# # The circuit and the phase change
#
# Trained language models have two kinds of heads in common: previous-token heads, and induction heads, which look at
# what followed an earlier occurrence of the present token. Until they are there, the loss stands on a plateau; when
# they appear, it falls (Olsson et al., 2022). `Induction` writes them before training. No download; about a minute on
# two cores.

# %%
# %matplotlib inline
import os
import string
from pathlib import Path

import pandas as pd
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset

from callbacks import AttentionMapCallback, InitCallback
from callbacks.figures import token_figure
from lightning_modules import SequenceRecall
from structured_init import Default, Induction, Scrambled, attention_sites, initialize
from structured_init.analysis import capture_attention, induction_score, previous_token_score

steps = int(os.environ.get("NOTEBOOK_STEPS", 300))
words, length, batch_size = 32, 48, 32
per_epoch = min(10, steps)

# %% [markdown]
# ## The text
#
# Every text repeats a random sequence of 6 to 20 tokens, each text with a length of its own. From the second time on,
# the next token is known to a network that finds the first time. Positions alone do not tell how far back that is.


# %%
class Repeats(Dataset):
    def __init__(self, texts, first):
        self.texts, self.first = texts, first

    def __len__(self):
        return self.texts

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        period = int(torch.randint(6, 21, (), generator=generator))
        text = torch.randint(words, (period,), generator=generator).repeat(length)[: length + 1]
        known = torch.arange(length) >= period
        targets = torch.where(known, text[1:], -100)
        return {"input_ids": text[:-1], "targets": targets, "scored": known, "lengths": torch.tensor(length)}


letters = string.ascii_letters[:words]
print("".join(letters[word] for word in Repeats(1, 0)[0]["input_ids"].tolist()))

# %% [markdown]
# ## Three initializations of one small GPT
#
# `Scrambled(Induction())` turns the matrices of the circuit at random: their singular values are the same, and so are
# the positions. What `Induction` gains over it is what the alignment of its matrices is worth.

# %%
starts = {"default": Default(), "induction": Induction(), "induction, scrambled": Scrambled(Induction())}


def recall():
    seed_everything(0, verbose=False)
    return SequenceRecall(
        network="gpt2",
        network_args={
            **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        },
        vocab_size=words,
        block_size=length,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1),
        warmup_epochs=5,
    )


started = {name: recall() for name in starts}
reports = {name: initialize(started[name], start, seed=0) for name, start in starts.items()}
for site, note in reports["induction"].notes.items():
    print(f"{site}: {note}\n")

# %% [markdown]
# ## Train
#
# `AttentionMapCallback` measures both scores of every head before training and after each epoch of ten steps. It logs
# those of the best head beside the loss.


# %%
def train(name):
    module = recall()
    trainer = Trainer(
        max_epochs=max(steps // per_epoch, 1),
        gradient_clip_val=1.0,
        accelerator="cpu",
        devices=1,
        logger=CSVLogger("runs/circuit"),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=per_epoch,
        num_sanity_val_steps=0,
        limit_train_batches=per_epoch,
        callbacks=[
            InitCallback(starts[name], seed=0),
            AttentionMapCallback(samples=16, every_n_epochs=1, figures=False),
        ],
    )
    texts, others = Repeats(steps * batch_size, 0), Repeats(128, 10**6)
    trainer.fit(module, DataLoader(texts, batch_size, shuffle=True), DataLoader(others, 64))
    return module.cpu(), pd.read_csv(Path(trainer.log_dir) / "metrics.csv")


trained = {name: train(name) for name in starts}

# %% [markdown]
# ## The two heads
#
# For every network, the head of layer 1 that looks most at the token before, and the head of layer 2 that looks most at
# what followed an equal token. Both are chosen after training. The text repeats every 8 tokens, which are shown as
# letters.

# %%
unit = torch.randperm(26, generator=torch.Generator().manual_seed(1))[:8]
text = unit.repeat(length)[:length][None]
looks_at = ("1, at the token before", "2, at what followed")


def chosen_heads(module):
    first, second = (site.name for site in attention_sites(module))
    maps = capture_attention(module, text)
    return {
        first: int(previous_token_score(maps[first]).argmax()),
        second: int(induction_score(maps[second], text).argmax()),
    }


def shown_maps(name):
    module, _ = trained[name]
    moments = {"before": started[name], f"after {steps} steps": module}
    heads = chosen_heads(module)
    return {
        f"{name}, {moment}": {
            title: capture_attention(model, text)[site][0, [head]]
            for title, (site, head) in zip(looks_at, heads.items(), strict=True)
        }
        for moment, model in moments.items()
    }


# %% [markdown]
# ## The picture
#
# The default initialization stands on the plateau until an induction head appears, and its loss falls with it: the
# phase change. With the circuit there is neither: the head is there before the first step. Scrambled, the same matrices
# are no circuit.


# %%
token_figure(
    {**shown_maps("default"), **shown_maps("induction")},
    tokens=[letters[word] for word in text[0].tolist()],
)

# %%
quantities = {
    "loss (nats per token)": "val/loss",
    "tokens that are right": "val/token_accuracy",
    "previous-token score": "val/previous_token_score",
    "induction score": "val/induction_score",
}
figure = Figure(figsize=(13, 2.8), layout="constrained")
axes = figure.subplots(1, len(quantities))
for axis, (title, quantity) in zip(axes, quantities.items(), strict=True):
    for name in starts:
        logged = trained[name][1][["step", quantity]].dropna()
        axis.plot(logged["step"], logged[quantity], label=name)
    axis.set(title=title, xlabel="steps", ylim=(0, None))
axes[0].legend()
figure

# %%
for name in starts:
    logged = trained[name][1][["step", "val/token_accuracy"]].dropna()
    late = logged[logged["val/token_accuracy"] > 0.5]
    half = "not in this time" if late.empty else f"{late['step'].iloc[0] + 1} steps"
    print(f"{name:<22} half of the tokens right: {half}; in the end {logged['val/token_accuracy'].iloc[-1]:.1%}")

# %% [markdown]
# One seed, and a task that asks for the circuit alone. On text it is a head start:
# `structured-init compare -c gpt_python_docs_short --inits default,previous_token --controls auto` says how large.
