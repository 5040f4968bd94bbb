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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from comparison import judge
from comparison.contrasts.place import PlaceResult, find_places
from comparison.runs.folder import Manifest, Question
from comparison.say.data import read_report_data
from comparison.say.headline import result_tables, speed_table
from structured_init.util.files import write_text

NAMES = ["default", *(f"arm{arm}" for arm in range(1, 13))]
RESULTS = Path(__file__).parent / "results"
VERDICT = re.compile(r"[(, ](better|worse), adjusted ")
ENDS = re.compile(r"([+−]?[\d.]+) (?:± ([\d.]+)|\(([+−]?[\d.]+) to ([+−]?[\d.]+)\))")
COUNT = re.compile(r"\d+ of \d+ \(([\d.]+) to ([\d.]+) %\)")
BATCH = 50  # tables, after which both files are written
MORE = 5  # times as many tables where an error of 5 % is counted
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class Rate(NamedTuple):
    """A rate that is printed, beside what was seen in each of several tables."""

    about: str  # what is printed
    printed: float
    found: Sequence[bool]
    at_most: bool = False  # whether fewer are as right as many: an error, no coverage
    of: int = 0  # how many there would be if every page printed it; 0 where it is said of every table


class Case(NamedTuple):
    """Tables of one kind, and the rates that they show."""

    name: str
    rates: Callable[[np.random.Generator, int, Path], list[Rate]]  # of so many tables
    more: int = 1


def verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was seen, its Monte Carlo error, and whether it agrees to a tenth or is on the safe side."""
    if not row["count"]:
        return {"seen": None, "error": None, "verdict": "agrees"}  # none is printed
    seen = row["hits"] / row["count"]
    error = math.sqrt(max(each * (1 - each) for each in (row["printed"], seen)) / row["count"])
    agrees = abs(seen - row["printed"]) <= 0.1 * row["printed"] + 2 * error
    said = "agrees" if agrees else "safe" if (seen < row["printed"]) == row["at_most"] else "**off**"
    return {"seen": seen, "error": error, "verdict": said}


def tested(spread: float, images: int) -> Draw:
    """Accuracies near 98 % on a test set of so many images, logits normal between seeds."""
    chance = lambda rng, shape: 1 / (1 + np.exp(-4 - spread * rng.standard_normal(shape)))  # noqa: E731
    return lambda rng, shape: rng.binomial(images, chance(rng, shape)) / images


normal: Draw = lambda rng, shape: 0.7 + 0.01 * rng.standard_normal(shape)  # noqa: E731
solved: Draw = lambda rng, shape: np.where(  # noqa: E731
    rng.random(shape) < 0.8, rng.beta(98, 2, shape), rng.beta(5, 95, shape)
)
NEAR: dict[str, Draw] = {
    "normal, 70 ± 1 %": normal,
    "98 % of 359 images": tested(0.3, 359),
    "98 % of 10,000 images": tested(0.3, 10_000),
    "97 % of 359 images, logits ± 1": tested(1.0, 359),
    "beta, mean 98 %, size 50": lambda rng, shape: rng.beta(49, 1, shape),
    "all or nothing, 80 % solve": solved,
}


def said(found: PlaceResult) -> str:
    """Return what a page says of one place: its tables."""
    tables = [*result_tables(found), speed_table(found)]
    return "\n\n".join(table.markdown() for table in tables if table.rows)


def of_table(
    arms: Mapping[str, np.ndarray],
    place: Path,
    controls: Mapping[str, str] = {},
    metric: str = "accuracy",
    success: float | None = None,
) -> str:
    """Return what the page of a table says: arm → (seeds,), or (seeds, steps) of a curve."""
    lines = [f"arm,seed,step,val/{metric},test/{metric}"]
    for arm, runs in arms.items():
        for seed, run in enumerate(np.atleast_2d(runs.T).T):
            lines += [f"{arm},{seed},{step + 1},{value:.6f},{value:.6f}" for step, value in enumerate(run)]
    table = place / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    return "\n".join(map(said, read_report_data(table, controls=controls or None, success=success).judged))


def of_results(values: np.ndarray, question: Mapping[str, float] | None = None) -> str:
    """Return what the page of a comparison says: (places, arms, seeds), the first arm is the baseline."""
    names = NAMES[: values.shape[1]]
    rows = [(names[arm], seed, str(at), True, math.nan, value) for (at, arm, seed), value in np.ndenumerate(values)]
    results = pd.DataFrame(rows, columns=["arm", "seed", "place", "chosen", "learning_rate", "test/accuracy"])
    grid = {"place": [str(place) for place in range(len(values))]}
    asked = Question(**question) if question else None
    manifest = Manifest(
        arms=dict.fromkeys(names), baseline="default", metric="test/accuracy", grid=grid, question=asked
    )
    return "\n".join(map(said, find_places(results, manifest)))


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


def verdicts() -> Iterator[Case]:
    """Pages on which no arm differs, and any is called better or worse."""

    def case(name: str, page: Callable[[np.random.Generator, Path], str], printed: float = 0.05) -> Case:
        def rates(rng: np.random.Generator, tables: int, place: Path) -> list[Rate]:
            found = [bool(VERDICT.search(page(rng, place))) for _ in range(tables)]
            return [Rate("no arm differs: any is better or worse", printed, found, at_most=True)]

        return Case(name, rates, MORE)

    def table(draw: Draw, arms: int, seeds: int, baseline: Draw | None = None, controls: bool = False) -> Any:
        first, *names = NAMES[:arms]
        known = {name: f"{name}_scrambled" for name in names} if controls else {}

        def page(rng: np.random.Generator, place: Path) -> str:
            values = {first: (baseline or draw)(rng, (seeds,))}
            values |= {arm: draw(rng, (seeds,)) for name in names for arm in filter(None, (name, known.get(name)))}
            return of_table(values, place, known)

        return page

    for arms, seeds in ((2, 3), (2, 10), (4, 3), (4, 5), (13, 5)):
        yield case(f"normal, {arms} arms, {seeds} seeds", table(normal, arms, seeds))
    yield case("normal, 4 arms, each scrambled too, 5 seeds", table(normal, 4, 5, None, True))
    for places in (2, 9):
        yield case(
            f"normal, 3 arms at {places} places of a grid, 5 seeds",
            lambda rng, place, places=places: of_results(normal(rng, (places, 3, 5))),
        )
    for name in list(NEAR)[1::2]:
        yield case(f"{name}, 4 arms, 5 seeds", table(NEAR[name], 4, 5))
    skewed: Draw = lambda rng, shape: 0.7 + 0.01 * (1 - rng.exponential(size=shape))  # noqa: E731
    steady: Draw = lambda rng, shape: 0.7 + 0.003 * rng.standard_normal(shape)  # noqa: E731
    for arms in (4, 13):  # 20 % as the page says
        name = f"skewed arms beside a steady baseline, {arms} arms, 5 seeds"
        yield case(name, table(skewed, arms, 5, steady), 0.2)


def coverage() -> Iterator[Case]:
    """Intervals of means and of differences, as they are printed, that hold the truth."""

    def case(name: str, draw: Draw, seeds: int) -> Case:
        truth = 100 * float(draw(np.random.default_rng(1), (400_000,)).mean())

        def rates(rng: np.random.Generator, tables: int, place: Path) -> list[Rate]:
            texts = [of_table({arm: draw(rng, (seeds,)) for arm in ("default", "arm1")}, place) for _ in range(tables)]
            known = [low <= 0 <= high for text in texts for low, high in printed(text, 3)]
            differences = Rate("95 % interval of a difference", 0.95, known)
            if draw is solved:  # the mean of runs that succeed or fail is the value of none: they are counted
                return [differences]
            means = [low <= truth <= high for text in texts for low, high in printed(text, 2)]
            return [Rate("95 % interval of a mean", 0.95, means, of=2 * tables), differences]

        return Case(f"{name}, {seeds} seeds", rates)

    def counted(seeds: int) -> Case:
        def rates(rng: np.random.Generator, tables: int, place: Path) -> list[Rate]:
            shares = list[bool]()
            for _ in range(tables):
                values = {arm: solved(rng, (seeds,)) for arm in ("default", "arm1")}
                text = of_table(values, place, metric="exact_match", success=0.5)
                shares += [float(low) <= 80 <= float(high) for low, high in COUNT.findall(text)]
            return [Rate("95 % interval of a count, --success", 0.95, shares)]

        return Case(f"exact match, all or nothing, 80 % solve, {seeds} seeds", rates)

    for name, draw in NEAR.items():
        for seeds in (3, 5, 10):
            yield case(name, draw, seeds)
    for seeds in (3, 5, 10):
        yield counted(seeds)


def speed() -> Iterator[Case]:
    """Pages of curves of identical arms on which any is called faster or slower."""

    def case(arms: int, seeds: int) -> Case:
        def rates(rng: np.random.Generator, tables: int, place: Path) -> list[Rate]:
            steps, texts = np.linspace(0.1, 1, 10), []
            for _ in range(tables):
                paces = np.exp(0.1 * rng.standard_normal((arms, seeds, 1)))
                curves = 0.7 - 0.6 * np.exp(-4 * paces * steps) + 0.01 * rng.standard_normal((arms, seeds, 1))
                curves += 0.004 * rng.standard_normal(curves.shape)
                texts.append(of_table(dict(zip(NAMES[:arms], curves, strict=True)), place))
            found = [bool(re.search(r"× \(.*?, (faster|slower),", text)) for text in texts]
            return [Rate("arms alike: any is faster or slower", 0.05, found, at_most=True)]

        return Case(f"curves, {arms} arms, {seeds} seeds", rates, MORE)

    yield from (case(*each) for each in ((2, 3), (2, 10), (4, 5)))


def decided() -> Iterator[Case]:
    """Differences that ``--precision`` decided, and what the referee keeps when it is asked until it has decided."""
    verdict = re.compile(r"\| arm1 \|.*\| ([^|]*[( ](?:better|worse|equivalent)[^|]*) \|")

    def precise(width: float) -> Case:
        def rates(rng: np.random.Generator, tables: int, place: Path) -> list[Rate]:
            question, known = {"precision": width}, list[bool]()
            for _ in range(tables):
                text = of_results(0.7 + 0.01 / 2**0.5 * rng.standard_normal((1, 2, 40)), question)
                ours = [ends(found) for found in verdict.findall(text)]
                known += [low <= 0 <= high for low, high in filter(None, ours)]
            return [Rate("decided by --precision: covers", 0.95, known, of=tables)]

        return Case(f"± {width} σ", rates, MORE)

    def asked(effect: float, proposals: int) -> Case:
        def rates(rng: np.random.Generator, tables: int, place: Path) -> list[Rate]:
            answers = [_asked(rng, effect, proposals) for _ in range(tables)]
            kept = [text.startswith("keep") for text in answers]
            found = [re.search(r"\((\S+) to (\S+) at (\S+) %\)", text) for text in answers]
            known = [[float(each.replace("−", "-")) for each in match.groups()] for match in found if match]
            covered = [low <= effect <= high for low, high, _ in known]
            keeps = [] if effect else [Rate("judge keeps", 0.05 / proposals, kept, at_most=True)]
            return [*keeps, Rate("interval of judge", known[0][2] / 100, covered)]  # no rate is printed of effects

        return Case(f"effect {effect:g} σ, 1 of {proposals}", rates, 1 if effect else MORE)

    yield from map(precise, (0.5, 0.33))
    yield from (asked(*each) for each in ((0.0, 1), (0.0, 10), (1.0, 1), (2.0, 1)))


def _asked(rng: np.random.Generator, effect: float, proposals: int) -> str:
    """Return the last answer on a proposal, its seeds trained as the referee asks for them."""
    rows, state, seeds = list[tuple[str, int, float]](), None, list(range(5))
    while True:
        for arm, mean in (("main", 0.0), ("new", effect)):
            rows += [(arm, seed, rng.normal(mean, 0.5**0.5)) for seed in seeds]
        frame = pd.DataFrame(rows, columns=["arm", "seed", "reward"])
        found = judge(frame, "main", metric="reward", mode="max", margin=1.0, proposals=proposals, state=state)
        state, seeds = found.state, found.opinions[0].seeds
        if found.answer != "more":
            return str(found)


PARTS = (verdicts, coverage, speed, decided)


def simulate(tables: int, place: Path, known: Sequence[Mapping[str, Any]] = ()) -> Iterator[list[dict[str, Any]]]:
    """Yield all rows after every batch of tables, until each case has as many as asked for, or more where it counts.

    Every batch has a generator of its own, so that what is known need not be drawn again.
    """
    rows = {(row["case"], row["about"]): dict(row) for row in known}
    cases = [case for part in PARTS for case in part()]
    for case in cases:
        done = next((row["tables"] for key, row in rows.items() if key[0] == case.name), 0)
        while done < tables * case.more:
            size = min(BATCH, tables * case.more - done)
            for rate in case.rates(np.random.default_rng((36, zlib.crc32(case.name.encode()), done)), size, place):
                new = {"about": rate.about, "case": case.name, "printed": rate.printed, "at_most": rate.at_most}
                row = rows.setdefault(
                    (case.name, rate.about), new | dict.fromkeys(("hits", "count", "of", "tables"), 0)
                )
                more = {"hits": int(sum(rate.found)), "count": len(rate.found), "of": rate.of, "tables": size}
                row.update({key: row[key] + value for key, value in more.items()})
            done += size
            yield [row for each in cases for key, row in rows.items() if key[0] == each.name]


def report(rates: Sequence[Mapping[str, Any]]) -> str:
    """Return all rates in Markdown."""
    text = """# What the pages print, and what simulated tables show

`python -m benchmarks.rates`: tables of known effects, read by what `report` and `judge` call, and counted in what their
pages say. ± is one Monte Carlo error. *Agrees*: to a tenth of what is printed, or two Monte Carlo errors more. *Safe*:
fewer errors, or more coverage.

| what | simulated | tables | printed | seen | |
| --- | --- | --- | --- | --- | --- |
"""
    for row in rates:
        told, shown = verdict(row), f" (in {row['count'] / row['of']:.0%} of pages)" if row["of"] else ""
        seen = f"{100 * told['seen']:.1f} ± {100 * told['error']:.1f} %" if row["count"] else "–"
        printed = f"{100 * row['printed']:.3g} %" if row["count"] else "none"
        cells = [row["about"] + shown, row["case"], f"{row['tables']:,}", printed, seen, told["verdict"]]
        text += f"| {' | '.join(cells)} |\n"
    return text


def main(arguments: list[str] | None = None) -> None:
    """Simulate, and write both files."""
    parser = argparse.ArgumentParser(description="Print each rate of a page beside the one that is seen.")
    parser.add_argument("--tables", type=int, default=400, help=f"of a case; {MORE} times as many where errors count")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    kept = options.output / "rates.json"
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else []
    with tempfile.TemporaryDirectory() as place:
        for known in simulate(options.tables, Path(place), known):  # noqa: B020
            write_text(kept, json.dumps(known, indent=1) + "\n")
            write_text(options.output / "rates.md", report(known))


if __name__ == "__main__":
    main()
