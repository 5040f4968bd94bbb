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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from comparison import judge
from comparison.report.data import read_report_data
from comparison.report.findings import findings
from comparison.results.effects import Effects, effects
from comparison.results.headline import headline_table
from comparison.results.power import power_sentence, smallest_effect
from structured_init.files import write_text

RESULTS = Path(__file__).parent / "results"
VERDICT = re.compile(r"\b([Bb]etter|[Ww]orse) than ")
ENDS = re.compile(r"([+−]?[\d.]+) (?:± ([\d.]+)|\(([+−]?[\d.]+) to ([+−]?[\d.]+)\))")
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Rate:
    """A rate that is printed, beside the one that was seen."""

    about: str  # what is printed
    case: str  # what was simulated
    printed: float
    seen: float
    tables: int  # of which it is the share
    at_most: bool = False  # whether fewer are as right as many: an error, no coverage

    @property
    def error(self) -> float:
        """The Monte Carlo error of what was seen, one standard deviation; that of the printed rate if larger."""
        return math.sqrt(max(each * (1 - each) for each in (self.printed, self.seen)) / max(self.tables, 1))

    @property
    def verdict(self) -> str:
        """Whether the two agree to a tenth of what is printed, or what was seen is on the safe side."""
        if abs(self.seen - self.printed) <= 0.1 * self.printed + 2 * self.error:
            return "agrees"
        return "safe" if (self.seen < self.printed) == self.at_most else "**off**"


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Accuracies far from any end: 70 % with 1 point between seeds."""
    return 0.7 + 0.01 * rng.standard_normal(shape)


def tested(logit: float, spread: float, images: int) -> Draw:
    """Accuracies on a test set of so many images, logits normal between seeds."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.binomial(images, 1 / (1 + np.exp(-logit - spread * rng.standard_normal(shape)))) / images

    return draw


def beta(mean: float, size: float) -> Draw:
    """Shares that have a beta distribution."""
    return lambda rng, shape: rng.beta(mean * size, (1 - mean) * size, shape)


def split(share: float) -> Draw:
    """All or nothing with some noise: near 98 %, or near 5 %."""
    high, low = beta(0.98, 100), beta(0.05, 100)
    return lambda rng, shape: np.where(rng.random(shape) < share, high(rng, shape), low(rng, shape))


def steady(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Those of :func:`normal`, a third as far apart."""
    return 0.7 + 0.003 * rng.standard_normal(shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The mean and deviation of :func:`normal`, exponential towards the bad side."""
    return 0.7 + 0.01 * (1 - rng.exponential(size=shape))


NEAR = {
    "normal, 70 ± 1 %": normal,
    "98 % of 359 images": tested(4.0, 0.3, 359),
    "98 % of 10,000 images": tested(4.0, 0.3, 10_000),
    "97 % of 359 images, logits ± 1": tested(4.0, 1.0, 359),
    "beta, mean 98 %, size 50": beta(0.98, 50),
    "all or nothing, 80 % solve": split(0.8),
}


def said(found: Effects) -> str:
    """Return what a page says of one place: its sentences and its table."""
    return "\n\n".join([*findings(found), headline_table(found).markdown()]).replace("\N{NO-BREAK SPACE}", " ")


def of_table(
    arms: Mapping[str, np.ndarray],
    place: Path,
    controls: Mapping[str, str] | None = None,
    say: Callable[[Effects], str] = said,
) -> str:
    """Return what the page of a table says: arm → (seeds,), or (seeds, steps) of a curve."""
    lines = ["arm,seed,step,val/accuracy,test/accuracy"]
    for arm, runs in arms.items():
        for seed, run in enumerate(np.atleast_2d(runs.T).T):
            lines += [f"{arm},{seed},{step + 1},{value:.6f},{value:.6f}" for step, value in enumerate(run)]
    table = place / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    return "\n".join(map(say, read_report_data(table, controls=controls).judged))


def of_results(values: np.ndarray, question: Mapping[str, float] | None = None) -> str:
    """Return what the page of a comparison says: (places, arms, seeds), the first arm is the baseline."""
    names = ["default", *(f"arm{arm}" for arm in range(1, values.shape[1]))]
    rows = [
        (names[arm], seed, str(place), True, math.nan, value) for (place, arm, seed), value in np.ndenumerate(values)
    ]
    results = pd.DataFrame(rows, columns=["arm", "seed", "place", "chosen", "learning_rate", "test/accuracy"])
    grid = {"place": [str(place) for place in range(len(values))]}
    manifest = {"arms": dict.fromkeys(names), "baseline": "default", "metric": "test/accuracy", "mode": "max"}
    manifest |= {"grid": grid, "learning_rates": [], "question": question}
    return "\n".join(map(said, effects(results, manifest)))


def printed_means(text: str) -> Iterator[tuple[float, float]]:
    """Yield the ends of every interval of an arm's mean in the first table of a page."""
    for line in text.splitlines():
        cells = line.split(" | ")
        if len(cells) > 3 and (found := ENDS.match(cells[2])):
            yield _ends(found)


def _ends(found: re.Match[str]) -> tuple[float, float]:
    mean, half, low, high = (each and float(each.replace("−", "-")) for each in found.groups())
    return (mean - half, mean + half) if half is not None else (low, high)


def verdicts(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Pages on which no arm differs, and any is called better or worse."""

    def rate(case: str, texts: Iterator[str], printed: float = 0.05) -> Rate:
        return Rate("no arm differs: any is better or worse", case, printed, _share(texts, VERDICT), tables, True)

    def page(draw: Draw, arms: int, seeds: int, other: Draw | None = None, controls: bool = False) -> str:
        values = {"default": (other or draw)(rng, (seeds,))}
        values |= {f"arm{arm}{end}": draw(rng, (seeds,)) for arm in range(1, arms) for end in ENDINGS[: 1 + controls]}
        known = {f"arm{arm}": f"arm{arm}_scrambled" for arm in range(1, arms)} if controls else None
        return of_table(values, place, known)

    for arms, seeds in ((2, 3), (2, 10), (4, 3), (4, 5), (13, 5)):
        yield rate(f"normal, {arms} arms, {seeds} seeds", (page(normal, arms, seeds) for _ in range(tables)))
    pages = (page(normal, 4, 5, controls=True) for _ in range(tables))
    yield rate("normal, 4 arms, each scrambled too, 5 seeds", pages)
    for places in (2, 9):
        texts = (of_results(normal(rng, (places, 3, 5))) for _ in range(tables))
        yield rate(f"normal, 3 arms at {places} places of a grid, 5 seeds", texts)
    for case in list(NEAR)[1::2]:
        yield rate(f"{case}, 4 arms, 5 seeds", (page(NEAR[case], 4, 5) for _ in range(tables)))
    for arms in (4, 13):
        texts = (page(skewed, arms, 5, steady) for _ in range(tables))
        yield rate(f"skewed arms beside a steady baseline, {arms} arms, 5 seeds", texts, SKEWED)


ENDINGS = ("", "_scrambled")
SKEWED = 0.2  # “up to one in five”, the page says of this case


def _share(texts: Iterator[str], pattern: re.Pattern[str]) -> float:
    return float(np.mean([bool(pattern.search(text)) for text in texts]))


def coverage(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Intervals of means and of differences, as they are printed, that hold the truth."""
    for case, draw in NEAR.items():
        truth = 100 * float(draw(np.random.default_rng(1), (400_000,)).mean())
        for seeds in (3, 5, 10):
            texts = [of_table({arm: draw(rng, (seeds,)) for arm in ("default", "arm1")}, place) for _ in range(tables)]
            means = [low <= truth <= high for text in texts for low, high in printed_means(text)]
            cells = [ENDS.search(text.split("\n| arm1 | ")[1].split(" | ")[2]) for text in texts]
            known = [low <= 0 <= high for low, high in (_ends(each) for each in cells if each)]
            shown = len(means) / 2 / tables
            yield Rate(f"95 % interval of a mean (shown in {shown:.0%})", f"{case}, {seeds} seeds", 0.95,
                       float(np.mean(means or [1])), len(means))  # fmt: skip
            yield Rate(
                "95 % interval of a difference", f"{case}, {seeds} seeds", 0.95, float(np.mean(known)), len(known)
            )


def able(found: Effects) -> str:
    """Return what a page says of one place, and what it could have seen."""
    return f"{said(found)}\n\n{power_sentence(found)}"


def power(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Pages on which one arm has the effect that is said to be seen with a probability of 80 %."""
    for arms, seeds in ((2, 3), (4, 5), (13, 5)):
        effect = smallest_effect(0.01 * math.sqrt(2), seeds, level=1 - 0.05 / (arms - 1))
        seen, held = [], []
        for _ in range(tables):
            values = {"default": normal(rng, (seeds,)), "arm1": normal(rng, (seeds,)) + effect}
            text = of_table(values | {f"arm{arm}": normal(rng, (seeds,)) for arm in range(2, arms)}, place, None, able)
            seen.append(bool(re.search(r"Better than default: [^;.]*arm1 ", text)))
            ends = re.search(r"have to be ([\d.,]+) to ([\d.,]+) points", text)
            held.append(
                bool(ends and float(ends[1].replace(",", "")) <= 100 * effect <= float(ends[2].replace(",", "")))
            )
        yield Rate(
            "probability of “better” at the effect named", f"{arms} arms, {seeds} seeds", 0.8, np.mean(seen), tables
        )
        yield Rate("interval of that effect", f"{arms} arms, {seeds} seeds", 0.95, float(np.mean(held)), tables)


def speed(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Pages of curves of identical arms on which any is called faster or slower."""
    steps = np.linspace(0.1, 1, 10)
    for arms, seeds in ((2, 3), (2, 10), (4, 5)):
        texts = []
        for _ in range(tables):
            rates = np.exp(0.1 * rng.standard_normal((arms, seeds, 1)))
            curves = 0.7 - 0.6 * np.exp(-4 * rates * steps) + 0.01 * rng.standard_normal((arms, seeds, 1))
            curves += 0.004 * rng.standard_normal(curves.shape)
            texts.append(of_table(dict(zip(("default", "a", "b", "c"), curves, strict=False)), place))
        found = _share(iter(texts), re.compile(r"× \(.*?, (faster|slower),"))
        yield Rate("arms alike: any is faster or slower", f"{arms} arms, {seeds} seeds", 0.05, found, tables, True)


def decided(rng: np.random.Generator, tables: int, place: Path) -> Iterator[Rate]:
    """Differences that ``--precision`` decided, and what the referee keeps when it is asked until it has decided."""
    for width, printed in ((0.5, 0.95), (0.33, 0.931), (0.28, 0.859)):
        question, known = {"precision": width, "most": 40, "horizon": 40}, []
        for _ in range(tables):
            values = 0.7 + 0.01 / math.sqrt(2) * rng.standard_normal((1, 2, 40))
            if found := re.search(
                r"(?:[Bb]etter than|[Ww]orse than|[Ee]quivalent to) default: arm1 (.*)", of_results(values, question)
            ):
                low, high = _ends(ENDS.match(found[1]))
                known.append(low <= 0 <= high)
        yield Rate("decided by --precision: covers", f"± {width} σ, {len(known) / tables:.0%} decided", printed,
                   float(np.mean(known)), len(known))  # fmt: skip
    for effect, proposals in ((0.0, 1), (0.0, 10), (1.0, 1), (2.0, 1)):
        kept, covered, levels = [], [], []
        for _ in range(tables):
            answer, why = _asked(rng, effect, proposals)
            kept.append(answer == "keep")
            if found := re.search(r"\(([+−][\d.e−]+) to ([+−][\d.e−]+) at ([\d.]+) %\)", why):
                low, high, level = (float(each.replace("−", "-")) for each in found.groups())
                covered.append(low <= effect <= high)
                levels.append(level / 100)
        case = f"effect {effect:g} σ, one of {proposals}"
        if not effect:
            yield Rate("judge keeps", case, 0.05 / proposals, float(np.mean(kept)), tables, True)
        else:
            yield Rate("judge keeps (no rate is printed)", case, float(np.mean(kept)), float(np.mean(kept)), tables)
        yield Rate("interval of judge", case, float(np.mean(levels)), float(np.mean(covered)), len(covered))


def _asked(rng: np.random.Generator, effect: float, proposals: int) -> tuple[str, str]:
    """Return the answer on a proposal and why, its seeds trained as the referee asks for them."""
    rows, state, seeds = list[tuple[str, int, float]](), None, list(range(5))
    while True:
        rows += [
            (arm, seed, rng.normal(0, math.sqrt(0.5)) + effect * (arm == "new"))
            for seed in seeds
            for arm in ("main", "new")
        ]
        frame = pd.DataFrame(rows, columns=["arm", "seed", "reward"])
        found = judge(frame, "main", metric="reward", margin=1.0, proposals=proposals, state=state)
        state, seeds = found.state, found.opinions[0].seeds
        if found.answer != "more":
            return found.answer, found.opinions[0].why


PARTS = (verdicts, coverage, power, speed, decided)


def page(rates: list[Rate], tables: int) -> str:
    """Return all rates in Markdown."""
    lines = ["# What the pages print, and what simulated tables show", ""]
    lines += [
        f"`python -m benchmarks.rates --tables {tables}`: so many tables of known effects a row, read by what `report` "
        "and `judge` call, and counted in what their pages say. ± is one Monte Carlo error. *Agrees*: to a tenth of "
        "what is printed, or two Monte Carlo errors more. *Safe*: fewer errors, or more coverage.",
        "",
    ]
    lines += ["| what | simulated | printed | seen | |", "| --- | --- | --- | --- | --- |"]
    for rate in rates:
        seen = f"{100 * rate.seen:.1f} ± {100 * rate.error:.1f} %"
        lines.append(f"| {rate.about} | {rate.case} | {100 * rate.printed:.3g} % | {seen} | {rate.verdict} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Simulate, and write both files."""
    parser = argparse.ArgumentParser(description="Print each rate of a page beside the one that is seen.")
    parser.add_argument("--tables", type=int, default=1000, help="of a row (default: 1000)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rng, rates = np.random.default_rng(36), list[Rate]()
    with tempfile.TemporaryDirectory() as place:
        for part in PARTS:
            for rate in part(rng, options.tables, Path(place)):
                print(f"{rate.about}; {rate.case}: {rate.printed:.3f} {rate.seen:.3f} {rate.verdict}", flush=True)
                rates.append(rate)
    rows = [asdict(rate) | {"verdict": rate.verdict} for rate in rates]
    write_text(options.output / "rates.json", json.dumps(rows, indent=1) + "\n")
    write_text(options.output / "rates.md", page(rates, options.tables))


if __name__ == "__main__":
    main()
