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
# # From a comparison to a figure for a paper
#
# `structured-init compare` trains an experiment from several initializations and writes a report. What it found
# is two tidy tables: one row per run, one row per logged value.

# %%
# %matplotlib inline
from pathlib import Path

from matplotlib.figure import Figure

from comparison.intervals import paired_difference, t_interval
from comparison.runs.records import load_curves, load_results

# %% [markdown]
# ## A finished comparison
#
# Five initializations of a small ViT on real 8×8 digits, five seeds. Give the `--output` of your own comparison
# instead.

# %%
folder = Path("../benchmarks/results/compare_digits")

# %% [markdown]
# ## One row per run

# %%
results = load_results(folder)
results[["arm", "seed", "test/accuracy", "steps", "seconds"]]

# %% [markdown]
# Runs of a seed differ in their initialization and in nothing else, so differences are taken within a seed.

# %%
accuracy = {
    arm: dict(zip(rows["seed"], 100 * rows["test/accuracy"], strict=True))
    for arm, rows in results.groupby("arm", sort=False)
}
baseline = next(iter(accuracy))
for arm, values in accuracy.items():
    if arm != baseline:
        print(f"{arm} − {baseline}: {paired_difference(values, accuracy[baseline])} points, {len(values)} seeds")

# %% [markdown]
# ## One row per logged value
#
# The columns are those of the experiment: arm, seed, the grid's keys, epoch, step, samples, seconds, metric, value.

# %%
curves = load_curves(folder)
curves.head()

# %% [markdown]
# ## The figure
#
# A line is the mean over seeds, and the band its 95 % t interval, which is of use from three seeds on.

# %%
figure = Figure(figsize=(5.5, 2.8), layout="constrained")
axis = figure.subplots()
for arm, rows in curves[curves["metric"] == "val/accuracy"].groupby("arm", sort=False):
    means = [t_interval(list(100 * values)) for _, values in rows.groupby("step")["value"]]
    steps = sorted(rows["step"].unique())
    (line,) = axis.plot(steps, [interval.mean for interval in means], label=arm)
    if means[0].samples > 2:
        ends = [(interval.low, interval.high) for interval in means]
        axis.fill_between(steps, *zip(*ends, strict=True), color=line.get_color(), alpha=0.15, linewidth=0)
axis.set(xlabel="optimizer steps", ylabel="validation accuracy %")
figure.legend(frameon=False, loc="outside right center")
# figure.savefig("paper.svg")
figure
