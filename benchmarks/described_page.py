"""The tables and the picture of ``benchmarks.described``, from its runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from structured_init.files import replacing, write_text

RESULTS = Path(__file__).parent / "results"
KEY = ["setting", "shape", "steps"]
SWEEP, NAN = 100, float("nan")  # seed of the sweep; no interval
PUBLISHED = ("sincos", "uniform_projections", "previous_token")
CONTROLS = ("position_size", "untrained", "one_scale", "scale_exchanged", *PUBLISHED)
INTRODUCTION = """\
# What a network was told: every arm

`python -m benchmarks.described page`. Test cross-entropy in nats, accuracy beside it; means and 95 % intervals over
seeds, differences paired by seed with Bonferroni over the default and the controls, bold where zero is excluded.
*Share*: of what all of the teacher's weights gain. *Best control*: the one of the lowest loss. The rule stands in
[docs/described.md](../../docs/described.md).
"""
NAMES = {"digits": "digits, ViT", "characters": "characters, Llama"}


def interval(values: Iterable[float], references: int = 1) -> tuple[float, float]:
    """Return the mean and the half width of its 95 % interval by Student's t, Bonferroni over references."""
    known = pd.Series(list(values))
    if len(known) < 2:
        return known.mean(), NAN
    return known.mean(), stats.t.ppf(1 - 0.025 / references, len(known) - 1) * known.sem()


def table(runs: pd.DataFrame, numbers: dict[str, int]) -> list[dict[str, Any]]:
    """Return a row for each arm of a setting, a shape and a budget, the lowest loss last."""
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    controls = [arm for arm in CONTROLS if arm in losses]
    head_start = losses["default"].mean() - losses["full"].mean() if "full" in losses else NAN
    rows = []
    for arm in losses.mean().sort_values(ascending=False).index:
        own = runs[runs["arm"] == arm]
        paired = (losses[arm] - losses["default"]).dropna()
        tried = [control for control in controls if control != arm]
        beyond = {control: interval((losses[arm] - losses[control]).dropna(), 1 + len(tried)) for control in tried}
        worst = max(beyond, key=lambda control: beyond[control][0], default=None)
        rows.append({
            "arm": arm, "numbers": numbers.get(arm), "rate": own["rate"].iloc[0], "seeds": len(own),
            "loss": interval(own["loss"]), "accuracy": interval(100 * own["accuracy"]),
            "less": interval(paired, 1 + len(tried)) if arm != "default" else None,
            "share": -paired.mean() / head_start, "control": worst, "beyond": beyond.get(worst),
        })  # fmt: skip
    return rows


def text(value: tuple[float, float] | None, digits: int = 3, *, sign: bool = True) -> str:
    """Return a mean and its half width; in bold where the interval excludes zero."""
    if value is None:
        return ""
    mean, half = value
    said = f"{mean:{'+' if sign else ''}.{digits}f}".replace("-", "−")
    said += "" if half != half else f" ± {half:.{digits}f}"
    return f"**{said}**" if sign and abs(mean) > half else said


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table."""
    lines = ["| arm | numbers | rate | seeds | loss | accuracy % | − default | share | − its best control |"]
    lines += ["| --- " * 9 + "|"]
    for row in rows:
        cells = [f"`{row['arm']}`", row["numbers"] or "", f"{row['rate']:g}", row["seeds"]]
        cells += [text(row["loss"], sign=False), text(row["accuracy"], 1, sign=False), text(row["less"])]
        share = (
            "" if row["arm"] == "default" or row["share"] != row["share"] else text((row["share"], NAN), 2, sign=False)
        )
        cells += [share, f"{text(row['beyond'])} ({row['control']})" if row["beyond"] else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def write_page(file: Path, numbers: dict[str, dict[str, int]]) -> None:
    """Write ``described.json``, ``described.md`` and ``described.png`` from the lines of all runs."""
    runs = [json.loads(line) for line in file.read_text().splitlines()]
    every = ",\n".join(json.dumps(run) for run in runs)
    write_text(RESULTS / "described.json", f'{{"numbers": {json.dumps(numbers)}, "runs": [\n{every}\n]}}\n')
    write_text(RESULTS / "described.md", page(runs, numbers))
    with replacing(RESULTS / "described.png") as temporary:
        figure(runs).savefig(temporary, dpi=110)


def page(runs: list[dict[str, Any]], numbers: dict[str, dict[str, int]]) -> str:
    """Return all tables in Markdown."""
    lines = INTRODUCTION.splitlines()
    frame = pd.DataFrame(runs)
    for (setting, shape, steps), group in frame[frame["seed"] != SWEEP].groupby(KEY, sort=False):
        lines += ["", f"## {NAMES[setting]}: {shape}, {steps} steps", ""]
        lines += markdown(table(group, numbers.get(setting, {})))
    lines += ["", "## Learning rates: validation loss at seed 100", ""]
    swept = frame[(frame["seed"] == SWEEP)].groupby(["setting", "arm"], sort=False)
    lines += ["| | arm | loss at each rate |", "| --- | --- | --- |"]
    for (setting, arm), group in swept:
        each = ", ".join(f"{row.rate:g}: {row.val:.3f}" for row in group.sort_values("rate").itertuples())
        lines.append(f"| {setting} | `{arm}` | {each} |")
    seconds = frame["seconds"].sum() / 60
    return "\n".join([*lines, "", f"{len(frame)} runs, {seconds:.0f} minutes of processor time.", ""])


def figure(runs: list[dict[str, Any]]) -> Any:
    """Draw the loss of every arm in the trained shape at the short budget, a dot a seed."""
    from matplotlib.figure import Figure

    frame = pd.DataFrame(runs)
    frame = frame[(frame["seed"] != SWEEP) & (frame["shape"] == "same")]
    frame = frame[frame["steps"] == frame.groupby("setting")["steps"].transform("min")]
    settings = list(frame["setting"].unique())
    most = max(group["arm"].nunique() for _, group in frame.groupby("setting"))
    drawn = Figure(figsize=(5 * len(settings) + 1, 1 + 0.27 * most), layout="constrained", facecolor="white")
    for axes, setting in zip(drawn.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        losses = frame[frame["setting"] == setting].groupby("arm")["loss"]
        for place, arm in enumerate(losses.mean().sort_values(ascending=False).index):
            colour = "#d55e00" if arm in ("default", *CONTROLS) else "#0072b2"
            axes.barh(place, losses.get_group(arm).mean(), color=colour, alpha=0.45)
            axes.plot(losses.get_group(arm), [place] * len(losses.get_group(arm)), "o", color=colour, markersize=3)
        axes.set_yticks(range(len(losses)), losses.mean().sort_values(ascending=False).index)
        axes.invert_yaxis()
        steps = frame[frame["setting"] == setting]["steps"].iloc[0]
        axes.set(title=f"{NAMES[setting]}, {steps} steps", xlabel="test cross-entropy, nats")
        axes.spines[["top", "right"]].set_visible(False)
    return drawn
