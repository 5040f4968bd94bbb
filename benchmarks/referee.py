"""What a referee is worth in a loop of proposals: greedy search beside ``judge``, on runs that were published.

    python -m benchmarks.referee --output benchmarks/results

A loop makes 50 proposals. Each run is drawn from published runs of one arm, moved by the effect of its arm.
*Greedy* trains each proposal once and keeps what looks better than the best so far. *Greedy, three seeds* compares
means of three. The *referee* is asked after every batch of seeds that it names, through the public function, with its
state; what it keeps is the next baseline. Written: false keeps where no proposal has an effect, true keeps where one
in five has one of a standard deviation, and runs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from comparison.results.referee import judge
from structured_init.files import replacing, write_text

RESULTS = Path(__file__).parent / "results"
PROPOSALS, SHARE = 50, 0.2
MORE = 10  # times as many loops where the referee should keep nothing, which it rarely does


@dataclass(frozen=True)
class Log:
    """Runs of one arm of a public or committed task, less is better, and where they were read."""

    metric: str
    values: tuple[float, ...]
    source: str

    @cached_property
    def deviation(self) -> float:
        """The standard deviation between runs: of the values, from which runs are drawn again."""
        return float(np.std(self.values))


def _committed(name: str, arm: str, metric: str) -> Log:
    table = pd.read_csv(RESULTS / name / "results.csv")
    values = 1 - table[table["arm"] == arm][metric]
    return Log("test/error", tuple(values), f"{len(values)} seeds of {arm} in `benchmarks/results/{name}`")


SPEEDRUN = (3.27891, 3.27961, 3.27934, 3.27866, 3.27952, 3.27679, 3.27971, 3.27867, 3.27842, 3.28014)
SPEEDRUN += (3.27892, 3.27891, 3.27988, 3.27946, 3.27783, 3.28001, 3.27760, 3.27848, 3.27839, 3.27788)
SENPAI = (2.1997, 2.2065, 2.2532, 2.2566, 2.2650, 2.2667, 2.2155, 2.2590, 2.2760)
LOGS = {
    "modded-nanogpt": Log("val/loss", SPEEDRUN, "20 seeds at step 2,750, KellerJordan/modded-nanogpt #321"),
    "senpai": Log("val/loss", SENPAI, "9 seeds of one baseline, wandb/senpai #1007 and #1009"),
    "convmixer": _committed("convmixer_covariance", "default", "test/accuracy"),
    "digits": _committed("followers_digits", "default", "test/accuracy"),
}


class Kept(NamedTuple):
    """What a loop kept and spent."""

    false: int
    true: int
    effects: int
    runs: int


class Runs:
    """Runs of arms, drawn when they are trained, and counted."""

    def __init__(self, log: Log, rng: np.random.Generator) -> None:
        self.log, self.rng, self.trained = log, rng, dict[tuple[str, int], float]()
        self.effects = {"default": 0.0}

    def train(self, arm: str, seed: int) -> float:
        """Return the value of a run; a seed is trained once."""
        if (arm, seed) not in self.trained:
            value = self.rng.choice(self.log.values) - self.log.deviation * self.effects[arm]
            self.trained[arm, seed] = float(value)
        return self.trained[arm, seed]

    def better(self, arm: Sequence[float], other: Sequence[float]) -> bool:
        """Tell whether one mean looks better than another."""
        return bool(np.mean(arm) < np.mean(other))

    def table(self, *arms: str) -> pd.DataFrame:
        """Return the runs of arms as ``judge`` reads them."""
        rows = [(arm, seed, value) for (arm, seed), value in self.trained.items() if arm in arms]
        return pd.DataFrame(rows, columns=["arm", "seed", self.log.metric])


def greedy(runs: Runs, changes: Mapping[str, float], seeds: int) -> list[str]:
    """Return what is kept by who compares means of so many runs with the best so far."""
    baseline, best, kept = "default", [runs.train("default", seed) for seed in range(seeds)], list[str]()
    for arm, effect in changes.items():
        runs.effects[arm] = runs.effects[baseline] + effect
        values = [runs.train(arm, seed) for seed in range(seeds)]
        if runs.better(values, best):
            baseline, best, kept = arm, values, [*kept, arm]
    return kept


def referee(runs: Runs, changes: Mapping[str, float], margin: float) -> list[str]:
    """Return what is kept by who asks the referee, and trains what it names."""
    baseline, kept, state = "default", list[str](), None
    margin *= runs.log.deviation
    for arm, effect in changes.items():
        runs.effects[arm] = runs.effects[baseline] + effect
        seeds = range(5)
        while True:
            for seed in seeds:
                runs.train(arm, seed), runs.train(baseline, seed)
            table = runs.table(baseline, arm)
            rule = {"metric": runs.log.metric, "mode": "min", "margin": margin, "proposals": PROPOSALS}
            said = judge(table, baseline, **rule, state=state)
            state, seeds = said.state, said.opinions[0].seeds
            if said.answer != "more":
                break
        if said.answer == "keep":
            baseline, kept = arm, [*kept, arm]
    return kept


WAYS: dict[str, Callable[[Runs, Mapping[str, float]], list[str]]] = {
    "greedy": lambda runs, changes: greedy(runs, changes, 1),
    "greedy, three seeds": lambda runs, changes: greedy(runs, changes, 3),
    "referee, margin ½ σ": lambda runs, changes: referee(runs, changes, 0.5),
    "referee, margin 1 σ": lambda runs, changes: referee(runs, changes, 1.0),
}


def loop(log: Log, way: str, seed: int, share: float) -> Kept:
    """Return what one loop keeps; of its proposals a share is a standard deviation better than what it changes."""
    rng = np.random.default_rng((round(1e6 * log.values[0]), seed, round(100 * share)))
    changes = {f"proposal-{number}": float(rng.random() < share) for number in range(PROPOSALS)}
    runs = Runs(log, rng)
    kept = WAYS[way](runs, changes)
    true = sum(changes[name] > 0 for name in kept)
    return Kept(len(kept) - true, true, int(sum(changes.values())), len(runs.trained))


def measure(loops: int, known: Sequence[dict[str, Any]] = ()) -> Iterator[list[dict[str, Any]]]:
    """Yield all rows, one for each log, way and share of real proposals, whenever ten loops more are done.

    Args:
        loops: of a row; of the referee's where no proposal has an effect, ten times as many.
        known: rows of earlier loops, which are not repeated.
    """
    rows = {(row["log"], row["share"], row["way"]): dict(row) for row in known}
    every = [(name, share, way) for name in LOGS for share in (0.0, SHARE) for way in WAYS]
    none = {"loops": 0, **dict.fromkeys(Kept._fields, 0), "loops_with_false": 0}
    for key in every:
        rows.setdefault(key, dict(zip(("log", "share", "way"), key, strict=True)) | none)
    for name, share, way in sorted(every, key=lambda key: ("referee" not in key[2], key[2])):
        row, wanted = rows[name, share, way], loops * (MORE if not share and way.startswith("referee") else 1)
        while row["loops"] < wanted:
            found = [loop(LOGS[name], way, seed, share) for seed in range(row["loops"], min(row["loops"] + 10, wanted))]
            for field in Kept._fields:
                row[field] += sum(getattr(each, field) for each in found)
            row["loops"] += len(found)
            row["loops_with_false"] += sum(each.false > 0 for each in found)
            yield [rows[key] for key in every]


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the result in Markdown."""
    logs = "\n".join(f"- **{name}**: {log.metric}, σ {log.deviation:.3g}; {log.source}" for name, log in LOGS.items())
    table = ["| log | proposals with an effect | way | loops that keep one without | false keeps per 100 proposals | "]
    table[0] += "effects kept | runs per loop |"
    table.append("|---|---|---|---|---|---|---|")
    for row in rows:
        none, effects = row["loops"] * PROPOSALS - row["effects"], row["effects"]
        kept = f"{100 * row['true'] / effects:.0f} %" if effects else ""
        wrong = row["loops_with_false"] / row["loops"]
        error = math.sqrt(max(wrong * (1 - wrong), 1 / row["loops"]) / row["loops"])
        looped = f"{row['loops_with_false']} of {row['loops']:,} ({100 * wrong:.1f} ± {100 * error:.1f} %)"
        cells = [row["log"], f"{row['share']:.0%}", row["way"], looped]
        cells += [f"{100 * row['false'] / none:.2g}", kept, f"{row['runs'] / row['loops']:,.0f}"]
        table.append("| " + " | ".join(cells) + " |")
    return f"""# A referee beside greedy search

    python -m benchmarks.referee --output benchmarks/results

A loop makes {PROPOSALS} proposals; each changes what was kept last. A run is one of the published runs, drawn again
and moved by the effect of its arm. *Greedy* trains each proposal once, or three times, and keeps what looks better
than the best so far. The *referee* is [`judge`](../../comparison/results/referee.py), asked after every batch of seeds
that it names, with the smallest gain worth keeping as margin. An effect is one σ, the standard deviation between runs.
± is one Monte Carlo error. Of loops without an effect the referee may spoil 5 %.

![False keeps and effects kept](referee.png)

{chr(10).join(table)}

Where the runs are from:

{logs}
"""


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what each way keeps of loops in which one proposal in five has an effect, all logs together."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, title in zip(axes, ("false keeps in 50 proposals", "effects kept, %", "runs"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    for place, way in enumerate(reversed(WAYS)):
        own = [row for row in rows if row["way"] == way and row["share"]]
        loops = sum(row["loops"] for row in own)
        total = {key: sum(row[key] for row in own) for key in Kept._fields}
        numbers = (total["false"] / loops, 100 * total["true"] / total["effects"], total["runs"] / loops)
        for axis, number in zip(axes, numbers, strict=True):
            axis.barh(place, number, color="#0072b2" if way.startswith("referee") else "#bbbbbb")
            axis.text(number, place, f" {number:.2g}" if number < 100 else f" {number:,.0f}", va="center", fontsize=9)
            axis.set_yticks(range(len(WAYS)), list(reversed(WAYS)) if axis is axes[0] else [""] * len(WAYS))
            axis.margins(x=0.2)
    with replacing(path) as file:
        figure.savefig(file, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay, and write the page."""
    parser = argparse.ArgumentParser(description="Replay loops of proposals with and without a referee.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--loops", type=int, default=100, help="of a row; those that are there are not repeated")
    parser.add_argument("--anew", action="store_true", help="repeat them")
    options = parser.parse_args(arguments)
    kept = options.output / "referee.json"
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() and not options.anew else []
    rows = known
    for rows in measure(options.loops, known):
        write_text(kept, json.dumps(rows, indent=1) + "\n")
    draw(rows, options.output / "referee.png")
    write_text(options.output / "referee.md", page(rows))


if __name__ == "__main__":
    main()
