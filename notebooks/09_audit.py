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
# # Where the default goes wrong
#
# What a model was initialized from can be read from its numbers. `audit` names the distribution of every parameter, the
# library that draws it so by default, and what will hurt training. No training, no download.

# %%
# %matplotlib inline
import timm
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from callbacks.figures import audit_figure
from structured_init.analysis import audit

# %% [markdown]
# ## A model that is as it should be

# %%
torch.manual_seed(0)
print(audit(timm.create_model("vit_tiny_patch16_224", num_classes=10)))

# %% [markdown]
# ## Layers that are copies of one another
#
# `nn.TransformerEncoder` copies the layer that it is given. All layers begin with equal weights.

# %%
torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), num_layers=4)
for finding in audit(encoder, torch.randn(2, 16, 64)).findings:
    print(finding)

# %% [markdown]
# ## Gradients that stay zero
#
# Two factors of a product that are both zero never move.


# %%
class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.zeros(width))
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        return x + self.scale * self.out(self.body(x))


torch.manual_seed(0)
gated = nn.Sequential(*(Gate(32) for _ in range(3)), nn.Linear(32, 10))
for finding in audit(gated, torch.randn(4, 32)).findings:
    print(finding)

# %% [markdown]
# ## A GPT whose depth was forgotten
#
# GPT-2 draws the projections into the residual stream smaller by √(2 · layers). This is easily forgotten in an
# initialization of one's own.

# %%
torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=64, n_layer=4, n_head=4, bos_token_id=None, eos_token_id=None
)
gpt = GPT2LMHeadModel(config)
for block in gpt.transformer.h:
    nn.init.normal_(block.attn.c_proj.weight, std=0.02)
    nn.init.normal_(block.mlp.c_proj.weight, std=0.02)
found = audit(gpt)
print(found)

# %%
audit_figure(found)

# %% [markdown]
# ## Positions that are uninitialized memory
#
# timm's `weight_init="skip"` leaves the positions and the class token as memory that nobody has written. What is in it
# differs from run to run: zeros, or anything at all.

# %%
skipped = timm.create_model("vit_tiny_patch16_224", weight_init="skip", num_classes=10)
for finding in audit(skipped).findings or ["nothing suspicious: this time the memory was fresh"]:
    print(finding)
