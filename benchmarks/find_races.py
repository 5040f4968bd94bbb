"""How often ``find`` is wrong, and how much less it trains than everything: simulated races, and replays of real ones.

    python -m benchmarks.find_races

A simulated race has a default and candidates whose true final gains are known, in units of σ, the standard deviation of
paired differences between seeds. What is seen early is correlated with what is true in the end, between arms, by ρ. A
replay answers a race with the validation curves that a committed comparison has, and trains nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from comparison.results.decisions import Question, decide
from comparison.results.effects import curves_by_seed
from comparison.results.metric import Metric
from comparison.results.paired import t_interval
from comparison.results.race import RUNGS, Outcome, Race, Request, race
from comparison.results.records import at_point, load_curves, points, read_manifest
from structured_init.files import write_json, write_text

RESULTS = Path(__file__).parent / "results"
SEEDS = range(8)
EVERYTHING = 5  # whole seeds of each arm, where nothing is raced
QUESTION = Question(margin=0.5, most=20, horizon=20)
REAL = ("compare_digits", "language/gpt_shakespeare", "recall/copying_components", "conv_cifar10")
REAL += ("compact/cifar10_bfloat16", "compact/fashion_mnist")


def drive(asking: Any, answer: Callable[[Request], Outcome]) -> Race:
    """Run a race to its end with what ``answer`` gives for each request."""
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send({request: answer(request) for request in wanted})
    except StopIteration as ended:
        return ended.value


# Simulated ------------------------------------------------------------------------------------------------------------


def simulated(
    rng: np.random.Generator, gains: np.ndarray, early: Mapping[float, float]
) -> Callable[[Request], Outcome]:
    """Return what a run gives: what its seed shares, the arm's gain as far as it shows by then, and noise of its own.

    Args:
        rng: a generator of its own.
        gains: the true final gain of each arm; the first is the reference's.
        early: share of the training → correlation ρ of the gains seen there with the final ones.
    """
    arms = len(gains)
    spread = float(np.std(gains[1:])) if arms > 2 else 0.0
    other = rng.standard_normal(arms) * spread + float(np.mean(gains[1:]))
    other[0] = 0.0
    shared = rng.standard_normal(len(SEEDS)) * 3
    noise = {share: rng.standard_normal((arms, len(SEEDS))) / math.sqrt(2) for share in early}

    def answer(request: Request) -> Outcome:
        arm, rho = int(request.arm), early[request.share]
        gain = rho * gains[arm] + math.sqrt(1 - rho**2) * other[arm]
        value = gain + shared[request.seed] + noise[request.share][arm, request.seed]
        return Outcome(float(value), request.share)

    return answer


def one(rng: np.random.Generator, gains: np.ndarray, early: Mapping[float, float]) -> dict[str, float]:
    """Return what one race found, and what training everything would have."""
    answer, names = simulated(rng, gains, early), [str(arm) for arm in range(len(gains))]
    found = drive(race(names[1:], "0", list(SEEDS)), answer)
    all_of = np.array([[answer(Request(arm, seed, 1.0)).value for seed in range(EVERYTHING)] for arm in names])
    picked = int(np.argmax(all_of.mean(axis=1)))
    winner = int(found.winner or 0)
    fresh = rng.standard_normal(QUESTION.most) + gains[winner]
    decision = decide(list(fresh), QUESTION, Metric("score")) if winner else None
    return {
        "best": float(winner == int(np.argmax(gains))),
        "regret": float(gains.max() - gains[winner]),
        "everything_best": float(picked == int(np.argmax(gains))),
        "everything_regret": float(gains.max() - gains[picked]),
        "cost": found.spent / (EVERYTHING * len(gains)),
        "said_better": float(decision is not None and decision.kind == "better"),
        "wrongly": float(decision is not None and decision.kind == "better" and gains[winner] <= 0),
        "evidence_seeds": float(decision.interval.samples if decision else 0),
    }


SCENES: Mapping[str, Callable[[np.random.Generator], np.ndarray]] = {
    "none is better or worse": lambda rng: np.zeros(21),
    "none is better, most are worse": lambda rng: np.array([0.0, *-np.abs(rng.normal(0, 1, 20))]),
    "gains of ± 0.5 σ": lambda rng: np.array([0.0, *rng.normal(0, 0.5, 20)]),
    "gains of ± 1 σ": lambda rng: np.array([0.0, *rng.normal(0, 1, 20)]),
    "gains of ± 2 σ": lambda rng: np.array([0.0, *rng.normal(0, 2, 20)]),
    "one of + 2 σ, the others − 0.5 ± 0.5": lambda rng: np.array([0.0, 2.0, *rng.normal(-0.5, 0.5, 19)]),
}
CURVES = {
    "early values tell (ρ = 0.9, 0.97)": {0.2: 0.9, 0.5: 0.97, 1.0: 1.0},
    "they hint (ρ = 0.6, 0.85)": {0.2: 0.6, 0.5: 0.85, 1.0: 1.0},
    "curves cross (ρ = 0.2, 0.5)": {0.2: 0.2, 0.5: 0.5, 1.0: 1.0},
}


def simulate(races: int) -> list[dict[str, Any]]:
    """Return a row per scene and kind of curves: means over races."""
    rows = []
    for scene, draw in SCENES.items():
        for curves, early in CURVES.items():
            rng = np.random.default_rng(7)
            found = [one(rng, draw(rng), early) for _ in range(races)]
            means = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
            rows.append({"scene": scene, "curves": curves, **means})
    return rows


# Replayed -------------------------------------------------------------------------------------------------------------


def replay(name: str) -> list[dict[str, Any]]:
    """Return what a race would have found in a committed comparison, at every place of its grid."""
    folder = RESULTS / name
    manifest, table = read_manifest(folder), load_curves(folder)
    metric = Metric(manifest["metric"], manifest["mode"])
    rows = []
    for point in points(manifest):
        shown = at_point(table[table["chosen"].astype(bool)], point)
        curves = {arm: of for arm, of in curves_by_seed(shown, metric.on_validation).items() if len(of) > 1}
        if len(curves) > 3 and manifest["baseline"] in curves:
            rows.append({"comparison": name, "point": dict(point), **_replayed(curves, manifest["baseline"], metric)})
    return rows


def _replayed(curves: Mapping[str, Any], reference: str, metric: Metric) -> dict[str, Any]:
    seeds = sorted(set.intersection(*(set(of) for of in curves.values())))
    last = max(curve[-1][0] for of in curves.values() for curve in of.values())
    rungs = [replace(rung, seeds=min(rung.seeds, len(seeds))) for rung in RUNGS]

    def answer(request: Request) -> Outcome:
        curve = curves[request.arm][request.seed]
        steps, value = next(each for each in curve if each[0] >= request.share * last or each is curve[-1])
        return Outcome(metric.factor * value, steps / last)

    found = drive(race(list(curves), reference, seeds, mode=metric.mode, rungs=rungs, most=len(seeds)), answer)
    sign = 1 if metric.mode == "max" else -1
    finals = {arm: metric.factor * sum(of[seed][-1][1] for seed in seeds) / len(seeds) for arm, of in curves.items()}
    best = max(finals, key=lambda arm: sign * finals[arm])
    winner = found.winner or reference
    between = [metric.factor * (curves[best][seed][-1][1] - curves[winner][seed][-1][1]) for seed in seeds]
    return {
        "arms": len(curves),
        "seeds": len(seeds),
        "everything": best,
        "race": winner,
        "behind": abs(finals[best] - finals[winner]),
        "near": None if best == winner else t_interval(between).half_width,
        "cost": found.spent / (len(curves) * len(seeds)),
    }


# The page -------------------------------------------------------------------------------------------------------------

HEAD = """# How often `find` is wrong, and what it saves

`python -m benchmarks.find_races`: {races:,} simulated races a row, 20 candidates and the default. σ is the standard
deviation of paired differences between seeds. *Everything* trains all 21 to the end with {everything} seeds and takes
the best mean; *training* is the part of that which the race took. The evidence is the winner against the default on
fresh seeds, a margin of 0.5 σ, at most 20 seeds: *said better* is how often `find` ends with a YAML, *wrongly* how
often with one that is not better than the default at all."""

REGRET = """*Regret*: by how much the winner is worse than the best there is, in σ. Where curves cross, the race finds
less than everything does. It says no more than is true even then, since the evidence is taken anew. `--shares 1` trains
every candidate to the end."""

REPLAYED = """## Replayed: committed comparisons

A race answered by the validation curves of comparisons that were trained whole, their three to five seeds alone.
*Everything* is the best mean of all runs, *behind* how far the race's winner is behind it, in the metric's units, and
*± of a mean difference* the half width that these seeds leave to the difference of the two. Where the race finds
another arm than everything does, the two are not told apart by all of their seeds."""


def page(found: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    head = HEAD.format(races=found["races"], everything=EVERYTHING)
    return "\n\n".join([head, _scenes(found["simulated"]), REGRET, REPLAYED, _real(found["replayed"])]) + "\n"


def _scenes(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = ["gains", "curves", "training", "best found", "regret", "everything: best found", "its regret"]
    columns += ["said better", "wrongly", "seeds of the evidence"]
    lines = []
    for each in rows:
        line = [each["scene"], each["curves"], f"{each['cost']:.2f}", _percent(each["best"]), f"{each['regret']:.2f}"]
        line += [_percent(each["everything_best"]), f"{each['everything_regret']:.2f}"]
        lines.append([*line, _percent(each["said_better"]), _percent(each["wrongly"]), f"{each['evidence_seeds']:.1f}"])
    return _table(columns, lines)


def _real(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = ["comparison", "arms", "seeds", "everything finds", "the race finds", "behind", "± of a mean difference"]
    lines = []
    for each in rows:
        at = "".join(f", {key.rpartition('.')[2]} {value}" for key, value in each["point"].items())
        line = [f"[{each['comparison']}]({each['comparison']}/report.md){at}", str(each["arms"]), str(each["seeds"])]
        line += [each["everything"], each["race"], f"{each['behind']:.2f}"]
        near = "" if each["near"] is None else f"{each['near']:.2f}"
        lines.append([*line, near, f"{each['cost']:.2f}"])
    return _table([*columns, "training"], lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Measure, and write the record and its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--races", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    begin = time.process_time()
    found = {"races": options.races, "replayed": [row for name in REAL for row in replay(name)]}
    found["simulated"] = simulate(options.races)
    found["cpu_seconds"] = round(time.process_time() - begin, 1)
    write_json(options.output / "find_races.json", found)
    write_text(options.output / "find_races.md", page(found))
    print(page(found))


if __name__ == "__main__":
    main()
