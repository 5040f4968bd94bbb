"""The page of :mod:`benchmarks.sequential_decisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WHAT = {
    "normal": "normal",
    "heavy": "heavy tails: difference of two lognormal outcomes, arms alike",
    "skewed": "skewed differences (lognormal, skewness 1.75)",
    "very_skewed": "very skewed differences (lognormal, skewness 6.2)",
    "bimodal": "all or nothing, solved in half of all seeds",
    "rare": "all or nothing, failing in one of ten seeds",
    "bounded": "accuracies near 1 (logits normal, mean 4)",
}


HEAD = """# How often a comparison that adds seeds is wrong, and what it costs

`python -m benchmarks.sequential_decisions`: {paths:,} simulated comparisons a row, differences in units of their
standard deviation σ, at most {most} seeds, a look after every seed. The rule is that of `compare`; both decided
{compared_with_decide} paths alike. The standard error of a rate near 5 % is {error:.2f} points.

## No difference: how often one is found

Looking after every seed from the 5th to the 40th, and stopping as soon as the interval excludes zero."""

SHAPES = """Two arms alike have symmetric differences, however skewed their outcomes are: all rows but *skewed* and
*very skewed*. There the level holds. It does not where one arm has another shape of the same mean: most samples lack
its rare large gains, and one look at 40 seeds is wrong too often too. The figure of paired differences in a report
shows every seed, and with it such a shape.

## `--margin`: a margin of 1 σ

False sign: better or worse where there is no difference. False equivalence: at a true difference of the margin."""

FAILING = """An arm that fails now and then against one that never does, both with a noise of 2 points, a margin of 5
points: with no failure among the first seeds, nothing tells of the later ones. For tasks of all or nothing, count
successes."""

PRECISION = "## `--precision`: coverage once the interval is narrow"

FEWEST = """The fewest seeds before a narrow interval counts, and what it covers at ± 0.5 σ, the quantile found anew for
each. Eight is taken: skewed differences gain, and normal ones need fewer seeds than from five on."""

COST = """## What it costs beside a fixed number of seeds, normal differences

Better or worse alone. Fixed: the seeds at which one t test sees the effect with 80 % power."""

GUESS = """The price of looking is paid where the effect was guessed well: 12.8 seeds in place of 10 at 1 σ. Who plans
the 34 seeds for 0.5 σ and meets 1 σ has spent 34."""


SEQUENCES = """## Beside confidence sequences

Standard errors to each side, and better or worse alone: how often a difference is found where there is none, and one of
0.5 σ and 1 σ within 40 seeds. A t mixture needs no horizon and holds at any time."""


def page(found: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    names, error = found["by_distribution"], 100 * (0.05 * 0.95 / found["paths"]) ** 0.5
    parts = [HEAD.format(**found, error=error), _nothing(names), SHAPES, _margin(names)]
    parts += [FAILING, _failing(found["one_fails"]), PRECISION, _precision(names)]
    parts += [FEWEST, _fewest(names), COST, _effects(found["power"]), GUESS, _widths(found["precision"])]
    parts += [SEQUENCES, _sequences(found["sequences"])]
    return "\n\n".join(parts) + "\n"


def _nothing(names: Mapping[str, Any]) -> str:
    columns = ["differences", "Student's t, each look", "the interval of `--margin`, each look", "t, one look at 40"]
    return _table(
        columns, [[WHAT[name], *map(_found, (of["peeking"], of["looking"], of["once"]))] for name, of in names.items()]
    )


def _margin(names: Mapping[str, Any]) -> str:
    columns = ["differences", "covers 0", "covers 1 σ", "false sign", "better at −0.3 σ", "false equivalence"]
    columns += ["seeds at 0", "seeds at 0.5 σ", "seeds at 2 σ", "undecided at 0.5 σ"]
    rows = []
    for name, of in names.items():
        shares = [of["null"]["covers"], of["at_margin"]["covers"], of["null"]["better"] + of["null"]["worse"]]
        shares += [of["below_zero"]["better"], of["at_margin"]["equivalent"]]
        seeds = [f"{of[case]['seeds']:.1f}" for case in ("null", "half", "large")]
        rows.append([WHAT[name], *map(_percent, shares), *seeds, _percent(of["half"]["undecided"])])
    return _table(columns, rows)


def _failing(of: Mapping[str, Any]) -> str:
    columns = ["fails in", "true difference", "better", "falsely equivalent", "undecided", "mean seeds"]
    rows = [
        [f"{100 * float(rate):.0f} % of seeds", f"{100 * float(rate):.0f} points"]
        + [_percent(each[kind]) for kind in ("better", "equivalent", "undecided")]
        + [f"{each['seeds']:.1f}"]
        for rate, each in of.items()
    ]
    return _table(columns, rows)


def _precision(names: Mapping[str, Any]) -> str:
    columns = ["differences", "± 0.5 σ covers", "seeds", "undecided", "± 1 σ covers", "seeds"]
    rows = []
    for name, of in names.items():
        narrow, wide = of["precision"], of["wide_precision"]
        row = [_percent(narrow["covers"]), f"{narrow['seeds']:.1f}", _percent(narrow["undecided"])]
        rows.append([WHAT[name], *row, _percent(wide["covers"]), f"{wide['seeds']:.1f}"])
    return _table(columns, rows)


def _fewest(names: Mapping[str, Any]) -> str:
    columns = ["differences", *(f"from {fewest}" for fewest in names["normal"]["fewest"]), "seeds"]
    rows = [
        [
            WHAT[name],
            *(_percent(one["covers"]) for one in of["fewest"].values()),
            " / ".join(f"{one['seeds']:.1f}" for one in of["fewest"].values()),
        ]
        for name, of in names.items()
    ]
    return _table(columns, rows)


def _effects(power: Mapping[str, Any]) -> str:
    columns = ["effect", "fixed n for 80 %", "mean seeds", "decided within 40", "wrong side"]
    rows = [
        [f"{effect} σ", str(of["fixed"]), f"{of['seeds']:.1f}", _percent(of["better"]), _percent(of["worse"])]
        for effect, of in power.items()
    ]
    return _table(columns, rows)


def _sequences(of: Mapping[str, Any]) -> str:
    columns = ["interval", "at 5", "at 10", "at 20", "at 40", "none: found", "0.5 σ: found", "seeds", "1 σ: seeds"]
    rows = []
    for name, each in of.items():
        ends = [each[f"at_{n}"] for n in (5, 10, 20, 40)]
        row = [name, *("none" if end is None else f"{end:.2f}" for end in ends), _found(each["false"])]
        rows.append([*row, _found(each["half"]), f"{each['half']['seeds']:.1f}", f"{each['one']['seeds']:.1f}"])
    return _table(columns, rows)


def _widths(precision: Mapping[str, Any]) -> str:
    columns = ["half width", "n if σ were known", "mean seeds", "covers", "undecided"]
    rows = [
        [f"{width} σ", str(of["fixed"]), f"{of['seeds']:.1f}", _percent(of["covers"]), _percent(of["undecided"])]
        for width, of in precision.items()
    ]
    return _table(columns, rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _found(rates: Mapping[str, float]) -> str:
    return _percent(rates["better"] + rates["worse"])
