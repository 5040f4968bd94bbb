"""How the results of :mod:`benchmarks.experiments` are shown: means over seeds, differences within a seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from comparison.results.paired import paired_difference, paired_values, t_interval
from comparison.results.tables import interval_text
from structured_init.errors import StructuredInitError

DEFAULT, FROZEN = "default", "_frozen"
ACCURACY = "test/accuracy"
PLAIN = "plain"  # the convolution that others are compared with
BOUNDS = {"test/lipschitz_lower": "Lipschitz, found", "test/lipschitz_upper": "Lipschitz, bound"}
Values = dict[int, float]  # seed → percent
TITLES = {
    "mqar_learning_rates": "Associative recall, 4 pairs in 32 tokens, state 16: which learning rates succeed",
    "mqar_components": "The same: each component removed",
    "mqar_reference": "The same: mamba-ssm's own initialization, and the mimetic one over it",
    "mqar_20_seeds": "The same at one learning rate, with 20 seeds, and the slow decay alone",
    "mqar_states": "The same: other states",
    "mqar_reference_states": "The same: other states, with mamba-ssm's own initialization",
    "copying_learning_rates": "Copying up to 12 of 26 letters, state 16, 1,000 steps: which learning rates succeed",
    "copying": "The same in 1,600 steps, at the rate that was best for both",
    "copying_reference": "The same, with mamba-ssm's own initialization",
    "copying_components": "The same in 2,400 steps: each component removed",
}
SPREAD = "mean ± half of the 95 % t interval over"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    first, *others = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return [first, "|---" * len(head) + "|", *others]


def percent(rows: pd.DataFrame, metric: str) -> Values:
    """Return what each seed has of a share, without those that have nothing."""
    return (100 * rows.set_index("seed")[metric]).dropna().to_dict()


def average(values: Values) -> str:
    """Return a mean with its interval."""
    return str(t_interval(list(values.values())))


def apart(values: Values, reference: Values) -> str:
    """Return the mean of the differences within a seed, with its interval; nothing beside itself."""
    return "" if values is reference else interval_text(paired_difference(values, reference), 1, signed=True)


def groups(results: pd.DataFrame, keys: Sequence[str]) -> dict[tuple, pd.DataFrame]:
    """Return the runs that differ in nothing but the seed, in the order in which they were asked for."""
    return dict(list(results.groupby(list(keys), sort=False)))


def baseline(arms: Mapping[str, object], name: str, what: str) -> None:
    """Raise a one-line error where nothing can be compared."""
    if name not in arms:
        raise StructuredInitError(f"no run has the {what} '{name}': there are {', '.join(arms)}")


def certified(results: pd.DataFrame, convolution: str) -> str:
    """Return a column per convolution, and in brackets the differences to the plain one.

    Args:
        results: of ``load_results``.
        convolution: the key of the grid.

    Raises:
        StructuredInitError: there is no run of the plain convolution.
    """
    arms = {str(arm): rows for (arm,), rows in groups(results, [convolution]).items()}
    baseline(arms, PLAIN, "convolution")
    metrics = [name for name in results if name == ACCURACY or _radius(name) is not None]
    metrics.sort(key=lambda name: (name != ACCURACY, "pgd" in name, _radius(name) or 0))
    lines = []
    for metric in metrics:
        values = {arm: percent(rows, metric) for arm, rows in arms.items()}
        differences = {arm: apart(each, values[PLAIN]) for arm, each in values.items()}
        cells = [average(values[arm]) + (f" ({differences[arm]})" if differences[arm] else "") for arm in arms]
        lines.append([f"{_words(metric)} %", *cells])
    for metric, words in BOUNDS.items():
        if metric in results:
            lines.append([words, *(f"{rows[metric].min():.3g} – {rows[metric].max():.3g}" for rows in arms.values())])
    lines.append(["seconds a run", *(f"{rows['seconds'].mean():.0f}" for rows in arms.values())])
    head = ["test", *(f"{arm} ({len(rows)} seeds)" for arm, rows in arms.items())]
    return "\n".join(
        [*markdown(head, lines), "", f"In each cell: {SPREAD} seeds; in brackets the paired difference to {PLAIN}."]
    )


def _radius(metric: str) -> float | None:
    """Return the radius in a metric's name, in 1/255."""
    found = re.fullmatch(r"test/(?:certified|pgd)_accuracy_(\d+(?:_\d+)?)", metric)
    return float(found[1].replace("_", ".")) if found else None


def _words(metric: str) -> str:
    radius = _radius(metric)
    return "clean" if radius is None else f"{'certified' if 'certified' in metric else 'PGD'} {radius:g}/255"


def filters(results: pd.DataFrame, kernel: str) -> str:
    """Return accuracies and differences to the default, and what freezing costs, at every kernel size.

    Args:
        results: of ``load_results``.
        kernel: the key of the grid.

    Raises:
        StructuredInitError: there is no run of the default.
    """
    values = {
        (arm, int(size)): percent(rows, ACCURACY) for (arm, size), rows in groups(results, ["arm", kernel]).items()
    }
    sizes, arms = sorted({size for _, size in values}, reverse=True), dict.fromkeys(arm for arm, _ in values)
    baseline(arms, DEFAULT, "initialization")
    head = ["initialization", *(word for size in sizes for word in (f"kernel {size}", "− default"))]
    lines = [
        [
            arm,
            *(cell for at in sizes for cell in (average(values[arm, at]), apart(values[arm, at], values[DEFAULT, at]))),
        ]
        for arm in arms
    ]
    gaps = {
        arm: [paired_values(values[arm + FROZEN, size], values[arm, size]) for size in sizes]
        for arm in arms
        if arm + FROZEN in arms
    }
    growth = [f"growth, {sizes[-1]} to {sizes[0]}"] if len(sizes) > 1 else []
    cost = [
        [
            arm,
            *(interval_text(t_interval(list(gap.values())), 1, signed=True) for gap in each),
            *(apart(each[0], each[-1]) for _ in growth),
        ]
        for arm, each in gaps.items()
    ]
    note = (
        f"Points of test accuracy; {SPREAD} seeds, differences within a seed. A gap is frozen − trained of the same "
        "initialization; its growth is the gap at the larger kernel minus the gap at the smaller."
    )
    frozen = markdown(["initialization", *(f"gap at kernel {size}" for size in sizes), *growth], cost)
    return "\n".join([*markdown(head, lines), "", *frozen, "", note])


def recall(found: Mapping[str, pd.DataFrame], state: str) -> str:
    """Return the tables of every comparison under its title.

    Args:
        found: comparison → runs, as ``load_results`` gives them.
        state: the key of the grid, where a comparison has one.
    """
    parts = [line for name, results in found.items() for line in (f"## {TITLES[name]}", "", *exact(results, state), "")]
    note = (
        "Percent of test answers that are right in every token, at one, two and four times the length of training; "
        "mean, and how many have 95 % or more, over seeds; differences within a seed at one length, ± half of their "
        "95 % t interval. The learning rate of each initialization is the one with the best validation."
    )
    return "\n".join([*parts, note])


def solved(values: Values) -> str:
    """Return the mean of percentages, and how many of them are 95 or more."""
    return f"{sum(values.values()) / len(values):.1f} ({sum(v >= 95 for v in values.values())} of {len(values)})"


def exact(results: pd.DataFrame, state: str) -> list[str]:
    """Return exact matches by learning rate on validation where there are several, and at the chosen rate on test.

    Runs solve the task or do not: a mean stands beside how many recall 95 % or more, without an interval.
    """
    keys = ["arm", *([state] if state in results else [])]
    if state in results:
        results = results.assign(**{state: results[state].astype(int)}).sort_values(state, kind="stable")
    head = ["initialization", *("state" for _ in keys[1:])]
    parts = []
    rates = sorted(results["learning_rate"].unique())
    if len(rates) > 1:
        lines = [
            [
                *map(str, key),
                *(solved(percent(rows[rows["learning_rate"] == rate], "val/exact_match")) for rate in rates),
            ]
            for key, rows in groups(results, keys).items()
        ]
        parts = [
            "Validation, by learning rate:",
            "",
            *markdown([*head, *(f"lr {rate:g}" for rate in rates)], lines),
            "",
        ]
    results = results[results["chosen"]]
    lengths = sorted((int(name.rpartition("_")[2]), name) for name in results if "test/exact_match_" in name)
    test = {key: {name: percent(rows, name) for _, name in lengths} for key, rows in groups(results, keys).items()}
    lines = []
    for key, rows in groups(results, keys).items():
        shortest = lengths[0][1]
        difference = apart(test[key][shortest], test[(DEFAULT, *key[1:])][shortest])
        cells = [f"{rows['learning_rate'].iloc[0]:g}", str(len(rows)), *map(solved, test[key].values()), difference]
        lines.append([*map(str, key), *cells])
    columns = [*head, "rate", "seeds", *(f"{factor}×" for factor in (1, 2, 4)), "1×, − default"]
    return [*parts, "Test, at the rate that was chosen:", "", *markdown(columns, lines)]


def deformation(results: pd.DataFrame) -> str:
    """Return test accuracies, and differences to the control.

    Args:
        results: of ``load_results``, of all networks.
    """
    values = {arm: percent(rows, ACCURACY) for (arm,), rows in groups(results, ["arm"]).items()}
    lines = [[f"`{arm}`", str(len(each)), average(each), apart(each, values[DEFAULT])] for arm, each in values.items()]
    note = f"In each cell: {SPREAD} trained networks; differences are of the same network."
    return "\n".join([*markdown(["", "seeds", "test accuracy %", f"− {DEFAULT}"], lines), "", note])


def draw(curves: pd.DataFrame, folder: Path) -> None:
    """Write the validation accuracy over the steps as ``deformation.svg`` and ``.png``."""
    from comparison.report.panels.curves import curve_figure
    from comparison.report.theme import Drawing, styles
    from comparison.results.effects import curves_by_seed
    from comparison.results.metric import Metric

    by_arm = curves_by_seed(curves, "val/accuracy", "step")
    figure = curve_figure(by_arm, styles(list(by_arm), DEFAULT), Metric("val/accuracy", "max"), "step", DEFAULT)
    Drawing(figure, "deformation", "Validation accuracy over the steps").write(folder)
