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
# # A report to click through
#
# `structured-init compare` trains an experiment from several initializations and writes one page. Here it compares
# three on 1,797 real 8×8 digits. It takes two seeds and few epochs, so that it is done in about a minute; for a result
# take more of both. No download.

# %%
import html
import os
import subprocess
import sys
from pathlib import Path

from IPython.display import display

from comparison.runs.records import load_results

epochs = os.environ.get("NOTEBOOK_EPOCHS", "6")
folder = Path("runs/report")

# %% [markdown]
# This is the command
# `structured-init compare -c vit_digits --inits default,sincos,mimetic --seeds 0,1 --output runs/report`.

# %%
command = [sys.executable, "-m", "lightning_modules.cli", "compare", "-c", "vit_digits"]
command += ["--inits", "default,sincos,mimetic", "--seeds", "0,1", "--output", str(folder)]
command += ["--trainer.max_epochs", epochs]
done = subprocess.run(command, capture_output=True, text=True, check=True)

# %% [markdown]
# ## The numbers

# %%
load_results(folder)[["arm", "seed", "test/accuracy", "steps"]]

# %% [markdown]
# ## The page
#
# `runs/report/report.html` is one file that needs nothing beside it. Choose a layer and a head in it, or a pair of
# networks.

# %%
page = (folder / "report.html").read_text(encoding="utf-8")
frame = f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: 700px; border: 1px solid #ccc"></iframe>'
display({"text/html": frame}, raw=True)
