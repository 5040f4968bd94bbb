"""Each rate that a page prints, beside the rate that simulated tables show.

    python -m benchmarks.rates

Tables of known effects go into what ``structured-init report TABLE`` and ``structured-init judge TABLE`` call, and what
the page says is counted in its sentences and tables, without pictures. A grid, and a comparison that was asked to
decide, have no table: their results go in as ``load_results`` gives them. It writes ``rates.json`` and ``rates.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from comparison import judge
from comparison.report.data import read_report_data
from comparison.report.findings import findings
from comparison.results.effects import Effects, effects
from comparison.results.headline import headline_table
from comparison.results.power import power_sentence, smallest_effect
from structured_init.files import write_text

NAMES = ["default", *(f"arm{arm}" for arm in range(1, 13))]
RESULTS = Path(__file__).parent / "results"
VERDICT = re.compile(r"\b([Bb]etter|[Ww]orse) than ")
ENDS = re.compile(r"([+−]?[\d.]+) (?:± ([\d.]+)|\(([+−]?[\d.]+) to ([+−]?[\d.]+)\))")
Say = Callable[[Effects], str]
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class Rate(NamedTuple):
    """A rate that is printed, beside what was seen in each of several tables."""

    about: str  # what is printed
    case: str  # what was simulated
    printed: float
    found: Sequence[bool]
    at_most: bool = False  # whether fewer are as right as many: an error, no coverage

    def plain(self) -> dict[str, Any]:
        """Return both rates, the Monte Carlo error, and whether they agree to a tenth or one is on the safe side."""
        seen, tables = float(np.mean(self.found)), len(self.found)
        error = math.sqrt(max(each * (1 - each) for each in (self.printed, seen)) / tables)
        agrees = abs(seen - self.printed) <= 0.1 * self.printed + 2 * error
        verdict = "agrees" if agrees else "safe" if (seen < self.printed) == self.at_most else "**off**"
        known = {"about": self.about, "case": self.case, "printed": self.printed, "seen": seen, "tables": tables}
        return known | {"error": error, "verdict": verdict}


def tested(spread: float, images: int) -> Draw:
    """Accuracies near 98 % on a test set of so many images, logits normal between seeds."""
    chance = lambda rng, shape: 1 / (1 + np.exp(-4 - spread * rng.standard_normal(shape)))  # noqa: E731
    return lambda rng, shape: rng.binomial(images, chance(rng, shape)) / images


normal: Draw = lambda rng, shape: 0.7 + 0.01 * rng.standard_normal(shape)  # noqa: E731
NEAR: dict[str, Draw] = {
    "normal, 70 ± 1 %": normal,
    "98 % of 359 images": tested(0.3, 359),
    "98 % of 10,000 images": tested(0.3, 10_000),
    "97 % of 359 images, logits ± 1": tested(1.0, 359),
    "beta, mean 98 %, size 50": lambda rng, shape: rng.beta(49, 1, shape),
    "all or nothing, 80 % solve": lambda rng, shape: np.where(
        rng.random(shape) < 0.8, rng.beta(98, 2, shape), rng.beta(5, 95, shape)
    ),
}


def said(found: Effects) -> str:
    """Return what a page says of one place: its sentences and its table."""
    return "\n\n".join([*findings(found), headline_table(found).markdown()]).replace("\N{NO-BREAK SPACE}", " ")


def of_table(arms: Mapping[str, np.ndarray], place: Path, controls: Mapping[str, str] = {}, say: Say = said) -> str:
    """Return what the page of a table says: arm → (seeds,), or (seeds, steps) of a curve."""
    lines = ["arm,seed,step,val/accuracy,test/accuracy"]
    for arm, runs in arms.items():
        for seed, run in enumerate(np.atleast_2d(runs.T).T):
            lines += [f"{arm},{seed},{step + 1},{value:.6f},{value:.6f}" for step, value in enumerate(run)]
    table = place / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    return "\n".join(map(say, read_report_data(table, controls=controls or None).judged))


def of_results(values: np.ndarray, question: Mapping[str, float] | None = None) -> str:
    """Return what the page of a comparison says: (places, arms, seeds), the first arm is the baseline."""
    names = NAMES[: values.shape[1]]
    rows = [(names[arm], seed, str(at), True, math.nan, value) for (at, arm, seed), value in np.ndenumerate(values)]
    results = pd.DataFrame(rows, columns=["arm", "seed", "place", "chosen", "learning_rate", "test/accuracy"])
    grid = {"place": [str(place) for place in range(len(values))]}
    manifest = {"arms": dict.fromkeys(names), "baseline": "default", "metric": "test/accuracy", "mode": "max"}
    manifest |= {"grid": grid, "learning_rates": [], "question": question}
    return "\n".join(map(said, effects(results, manifest)))


def ends(cell: str) -> tuple[float, float] | None:
    """Return both ends of the interval of a cell, as printed; None where it has none."""
    if (found := ENDS.search(cell)) is None:
        return None
    mean, half, low, high = (each and float(each.replace("−", "-")) for each in found.groups())
    return (mean - half, mean + half) if half is not None else (low, high)


def printed(text: str, column: int) -> list[tuple[float, float]]:
    """Return the ends of every interval in a column of the table of a page."""
    rows = [line.split(" | ") for line in text.splitlines()]
    return [known for cells in rows if len(cells) > 3 and (known := ends(cells[column]))]


def verdicts(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Pages on which no arm differs, and any is called better or worse."""

    def rate(case: str, texts: Iterable[str], printed: float = 0.05) -> Rate:
        found = [bool(VERDICT.search(text)) for text in texts]
        return Rate("no arm differs: any is better or worse", case, printed, found, at_most=True)

    def page(draw: Draw, arms: int, seeds: int, baseline: Draw | None = None, controls: bool = False) -> str:
        first, *names = NAMES[:arms]
        values = {first: (baseline or draw)(rng, (seeds,))}
        known = {name: f"{name}_scrambled" for name in names} if controls else {}
        values |= {arm: draw(rng, (seeds,)) for name in names for arm in filter(None, (name, known.get(name)))}
        return of_table(values, place, known)

    for arms, seeds in ((2, 3), (2, 10), (4, 3), (4, 5), (13, 5)):
        yield rate(f"normal, {arms} arms, {seeds} seeds", (page(normal, arms, seeds) for _ in range(tables)))
    yield rate("normal, 4 arms, each scrambled too, 5 seeds", (page(normal, 4, 5, None, True) for _ in range(tables)))
    for places in (2, 9):
        texts = (of_results(normal(rng, (places, 3, 5))) for _ in range(tables))
        yield rate(f"normal, 3 arms at {places} places of a grid, 5 seeds", texts)
    for case in list(NEAR)[1::2]:
        yield rate(f"{case}, 4 arms, 5 seeds", (page(NEAR[case], 4, 5) for _ in range(tables)))
    skewed: Draw = lambda rng, shape: 0.7 + 0.01 * (1 - rng.exponential(size=shape))  # noqa: E731
    steady: Draw = lambda rng, shape: 0.7 + 0.003 * rng.standard_normal(shape)  # noqa: E731
    for arms in (4, 13):
        texts = (page(skewed, arms, 5, steady) for _ in range(tables))
        yield rate(f"skewed arms beside a steady baseline, {arms} arms, 5 seeds", texts, 0.2)  # as the page says


def coverage(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Intervals of means and of differences, as they are printed, that hold the truth."""
    for case, draw in NEAR.items():
        truth = 100 * float(draw(np.random.default_rng(1), (400_000,)).mean())
        for seeds in (3, 5, 10):
            texts = [of_table({arm: draw(rng, (seeds,)) for arm in ("default", "arm1")}, place) for _ in range(tables)]
            means = [low <= truth <= high for text in texts for low, high in printed(text, 2)]
            known = [low <= 0 <= high for text in texts for low, high in printed(text, 3)]
            shown = f"95 % interval of a mean (shown in {len(means) / 2 / tables:.0%})"
            for about, held in ((shown, means), ("95 % interval of a difference", known)):
                if held:
                    yield Rate(about, f"{case}, {seeds} seeds", 0.95, held)


def able(found: Effects) -> str:
    """Return what a page says of one place, and what it could have seen."""
    return f"{said(found)}\n\n{power_sentence(found)}"


def power(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Pages on which one arm has the effect that is said to be seen with a probability of 80 %."""
    for arms, seeds in ((2, 3), (4, 5), (13, 5)):
        effect, seen, held = smallest_effect(0.01 * 2**0.5, seeds, level=1 - 0.05 / (arms - 1)), [], []
        for _ in range(tables):
            values = {name: normal(rng, (seeds,)) for name in NAMES[:arms]}
            text = of_table(values | {"arm1": values["arm1"] + effect}, place, say=able).replace(",", "")
            seen.append(bool(re.search(r"Better than default: [^;\n]*\barm1 ", text)))
            found = re.search(r"have to be ([\d.]+) to ([\d.]+) points", text)
            held.append(bool(found and float(found[1]) <= 100 * effect <= float(found[2])))
        case = f"{arms} arms, {seeds} seeds"
        yield Rate("probability of “better” at the effect named", case, 0.8, seen)
        yield Rate("interval of that effect", case, 0.95, held)


def speed(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Pages of curves of identical arms on which any is called faster or slower."""
    steps = np.linspace(0.1, 1, 10)
    for arms, seeds in ((2, 3), (2, 10), (4, 5)):
        texts = []
        for _ in range(tables):
            paces = np.exp(0.1 * rng.standard_normal((arms, seeds, 1)))
            curves = 0.7 - 0.6 * np.exp(-4 * paces * steps) + 0.01 * rng.standard_normal((arms, seeds, 1))
            curves += 0.004 * rng.standard_normal(curves.shape)
            texts.append(of_table(dict(zip(NAMES[:arms], curves, strict=True)), place))
        found = [bool(re.search(r"× \(.*?, (faster|slower),", text)) for text in texts]
        yield Rate("arms alike: any is faster or slower", f"{arms} arms, {seeds} seeds", 0.05, found, at_most=True)


def decided(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Differences that ``--precision`` decided, and what the referee keeps when it is asked until it has decided."""
    verdict = re.compile(r"(?:[Bb]etter than|[Ww]orse than|[Ee]quivalent to) default: arm1 (.*)")
    for width, printed in ((0.5, 0.95), (0.33, 0.931), (0.28, 0.859)):
        question, known = {"precision": width, "most": 40, "horizon": 40}, []
        for _ in range(tables):
            text = of_results(0.7 + 0.01 / 2**0.5 * rng.standard_normal((1, 2, 40)), question)
            known += [low <= 0 <= high for found in verdict.findall(text) for low, high in filter(None, [ends(found)])]
        if known:
            case = f"± {width} σ, {len(known) / tables:.0%} decided"
            yield Rate("decided by --precision: covers", case, printed, known)
    for effect, proposals in ((0.0, 1), (0.0, 10), (1.0, 1), (2.0, 1)):
        answers = [_asked(rng, effect, proposals) for _ in range(tables)]
        kept, case = [text.startswith("keep") for text in answers], f"effect {effect:g} σ, 1 of {proposals}"
        if not effect:  # no rate is printed of others
            yield Rate("judge keeps", case, 0.05 / proposals, kept, at_most=True)
        found = [re.search(r"\((\S+) to (\S+) at (\S+) %\)", text) for text in answers]
        known = [[float(each.replace("−", "-")) for each in match.groups()] for match in found if match]
        covered = [low <= effect <= high for low, high, _ in known]
        yield Rate(f"interval of judge (keeps {np.mean(kept):.0%})", case, known[0][2] / 100, covered)


def _asked(rng: np.random.Generator, effect: float, proposals: int) -> str:
    """Return the last answer on a proposal, its seeds trained as the referee asks for them."""
    rows, state, seeds = list[tuple[str, int, float]](), None, list(range(5))
    while True:
        for arm, mean in (("main", 0.0), ("new", effect)):
            rows += [(arm, seed, rng.normal(mean, 0.5**0.5)) for seed in seeds]
        frame = pd.DataFrame(rows, columns=["arm", "seed", "reward"])
        found = judge(frame, "main", metric="reward", margin=1.0, proposals=proposals, state=state)
        state, seeds = found.state, found.opinions[0].seeds
        if found.answer != "more":
            return str(found)


PARTS = (verdicts, coverage, power, speed, decided)


def report(rates: Sequence[Mapping[str, Any]], command: str) -> str:
    """Return all rates in Markdown."""
    lines = ["# What the pages print, and what simulated tables show", ""]
    lines += [
        f"`{command}`: so many tables of known effects a row, read by what `report` and `judge` call, and counted"
    ]
    lines += [
        "in what their pages say. ± is one Monte Carlo error. *Agrees*: to a tenth of what is printed, or two Monte"
    ]
    lines += ["Carlo errors more. *Safe*: fewer errors, or more coverage.", ""]
    lines += ["| what | simulated | printed | seen | |", "| --- | --- | --- | --- | --- |"]
    for each in rates:
        printed, seen = f"{100 * each['printed']:.3g} %", f"{100 * each['seen']:.1f} ± {100 * each['error']:.1f} %"
        lines.append(f"| {each['about']} | {each['case']} | {printed} | {seen} | {each['verdict']} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Simulate, and write both files."""
    parser = argparse.ArgumentParser(description="Print each rate of a page beside the one that is seen.")
    parser.add_argument("--tables", type=int, default=100, help="of a row (default: 100)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rng, command = np.random.default_rng(36), f"python -m benchmarks.rates --tables {options.tables}"
    with tempfile.TemporaryDirectory() as place:
        rates = [rate.plain() for part in PARTS for rate in part(rng, options.tables, Path(place))]
    write_text(options.output / "rates.json", json.dumps(rates, indent=1) + "\n")
    write_text(options.output / "rates.md", report(rates, command))


if __name__ == "__main__":
    main()
