"""The sentences on top of a report: which and by how much, how sure, and what in the network goes with it.

Over a grid they begin with what moves the result more, the initialization or what the grid changes, and whether the two
interact.

What goes with the result over arms and seeds: Spearman's rank correlation of a property with it, both without the mean
of their seed. Runs of an arm resemble each other, so arms are permuted as a whole; and of many properties one goes with
anything, so each is compared with the largest correlation of all of them (Westfall and Young 1993, the largest
statistic). With fewer than five arms no permutation is rare enough to say anything.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from comparison.report.data import MOMENTS, ReportData
from comparison.report.depth import over_heads
from comparison.report.findings import diverged_sentence, equal_sentence, findings, listed, unbroken
from comparison.results.contrasts import BASELINE, DIVERGED, Contrast
from comparison.results.controls import NAMED, PEER, SCRAMBLED
from comparison.results.folder import Run, choice_name, chosen_learning_rates, read_json
from comparison.results.headline import SAME, at_an_end, decimals, kept_text
from comparison.results.paired import FAMILY_LEVEL, FEWEST_FOR_INTERVAL, paired_difference
from comparison.results.place import PlaceResult
from comparison.results.tables import count, interval_text, number, p_text, significant

FEW_NAMES = 4
OVER = {  # what an arm is held against, by the role of its control
    SCRAMBLED: "itself scrambled",
    "sharpened": "itself as sharp",
    "positions": "the same positions",
    PEER: "the same positions",
    NAMED: "its control",
}
FEWEST_ARMS = 5
MOST_PERMUTATIONS = 5000
WORDS = {  # file of a run → quantity → what it is in a sentence
    "attention/statistics.json": {
        "mean_distance": "mean distance of attention",
        "normalised_entropy": "entropy of attention",
        "diagonal_mass": "attention to itself",
        "impulse_mass": "attention on the best offset",
        "effective_rank": "rank of attention",
    },
    "weight_products/summary.json": {
        "query_key_diagonal": "diagonal of the query–key product",
        "value_output_diagonal": "diagonal of the value–output product",
    },
}
Property = tuple[str, str]  # what it is, and when: before or after training
Values = dict[Property, dict[tuple[str, int], float]]  # → (arm, seed) → mean over the layers of a tower, and heads


def summary(data: ReportData) -> list[str]:
    """Return what a reader wants to know first; fewer sentences where less is known."""
    between = [] if data.successes else _between_places(data)  # a report of counts speaks of no means
    first = [*_larger_range(data), *between, *_at_its_place(data)]
    return [*first, *_rates_at_an_end(data), *data.manifest.get("remarks", [])]


def _rates_at_an_end(data: ReportData) -> list[str]:
    """Name the arms whose learning rate may lie beyond those that were tried."""
    found = [
        unbroken(f"{arm}{place and f' at {place}'} ({float(arms[arm]['chosen']):g})")
        for point, arms in chosen_learning_rates(data.folder).items()
        for place in [next((data.place_text(p) for p in data.points if choice_name(p) == point), "")]
        for arm in at_an_end(arms)
    ]
    if not found:
        return []
    more = f" and {len(found) - FEW_NAMES} others" if len(found) > FEW_NAMES else ""
    said = f"The chosen learning rate is at an end of those tried: {listed(found[:FEW_NAMES])}{more}"
    return [f"{said}. A wider range may change the result."]


def _larger_range(data: ReportData) -> list[str]:
    """Say whether the initialization or what the grid changes moves the result more, and whether they interact."""
    whole = data.whole_grid
    if whole is None or whole.fewest < 2:
        return []
    keys = [key.rpartition(".")[2] for key in data.manifest["grid"]]
    grid = listed(["the optimizer" if key == "optim" else key for key in keys])
    digits = max(map(decimals, data.places))
    words, unit = whole.metric.words, whole.metric.points
    sizes = {"the initialization": whole.between_arms, grid: whole.between_places}
    (more, one), (less, other) = sorted(sizes.items(), key=lambda each: -each[1].mean)
    ends = [
        f"{number(each.mean, digits)}{unit} ({number(each.low, digits)} to {number(each.high, digits)})"
        for each in (one, other)
    ]
    apart = f"means of {more} lie {ends[0]} apart, those of {less} {ends[1]}"
    said = f"{more[0].upper()}{more[1:]} moves {words} more than {less}: {apart}."
    if one.low <= other.high:
        said = f"Whether the initialization or {grid} moves {words} more is not known: {apart}."
    enough = whole.fewest >= FEWEST_FOR_INTERVAL  # below, no difference is established either
    shown = {arm: each for arm, each in whole.interacting.items() if each.p < FAMILY_LEVEL and enough}
    if not shown:
        return [f"{said} That they interact is not shown."]
    parts = []
    for arm, each in list(shown.items())[:FEW_NAMES]:
        one, other = (
            f"{number(mean, digits, signed=True)}{unit} at {data.place_text(point)}"
            for mean, point in zip(each.differences, each.points, strict=True)
        )
        change = interval_text(each.change, digits, signed=True)
        parts.append(f"{arm} ({one}, {other}; change {unbroken(f'{change}{unit}, adjusted {p_text(each.p)}')})")
    more_of = f" and of {len(shown) - FEW_NAMES} others" if len(shown) > FEW_NAMES else ""
    said = f"{said} They interact: the difference to {whole.baseline} depends on {grid} for {listed(parts)}{more_of}."
    near = {arm: each.p_of_odds for arm, each in shown.items() if (each.p_of_odds or 0) >= FAMILY_LEVEL}
    if near:
        odds = listed([unbroken(f"{arm} (adjusted {p_text(p)})") for arm, p in list(near.items())[:FEW_NAMES]])
        said += f" In log-odds it is not shown of {odds}: near 0 or 100 % the same change of the odds is fewer points."
    elif unit and all(each.p_of_odds is None for each in shown.values()):
        said += " Log-odds are not compared, since a run ended at 0 or 100 %."
    return [said]


def _between_places(data: ReportData) -> list[str]:
    """Return what each place of the grid is worth to the baseline over the first place, paired by seed."""
    found = [(each, arm) for each in data.places for arm in each.arms if arm.name == each.baseline]
    parts, digits = [], max(map(decimals, data.places), default=0)
    for each, arm in found[1:]:
        shared = len({*arm.by_seed} & {*found[0][1].by_seed})
        if shared >= FEWEST_FOR_INTERVAL and not arm.diverged and not found[0][1].diverged:
            difference = paired_difference(arm.by_seed, found[0][1].by_seed)
            own = 0 if difference.has_no_width else significant(difference.half_width, 1)
            size = interval_text(difference, max(digits, own), signed=True)
            parts.append(unbroken(f"{data.place_text(each.point)} {size}{each.metric.points}"))
    if not parts:
        return []
    more = f" and {len(parts) - FEW_NAMES} others" if len(parts) > FEW_NAMES else ""
    first = found[0][0]
    place, words = data.place_text(first.point), first.metric.words
    return [f"For {first.baseline}, against {place}, paired by seed: {listed(parts[:FEW_NAMES])} of {words}{more}."]


def _at_its_place(data: ReportData) -> list[str]:
    """Return what was found at the place of the grid that is shown."""
    found = next((each for each in data.places if each.point == data.point), None)
    if found is None or not found.arms:
        return []
    if data.successes:
        counts, *against = findings(next(each for each in data.successes if each.point == data.point))
        means = [
            unbroken(f"{arm.name} {interval_text(arm.value, decimals(found))}{(k := kept_text(arm)) and f' ({k})'}")
            for arm in found.arms
            if arm.value
        ]
        mean = [f"Mean {found.metric.words}: {listed(means)}{found.metric.percent}."] if means else []
        return [_at(data, [counts, *against[:1], *mean]), *_elsewhere(data), *explanation(data, found, None)]
    contrasts = _to_baseline(found)
    if not contrasts:
        return [_at(data, findings(found)[-1:]), *_elsewhere(data)]
    if equal := equal_sentence(found):
        return [_at(data, [equal]), *_elsewhere(data)]
    best = _best(found, contrasts)
    ahead = _ahead(found, best)
    over = _over_controls(data, found, best.arm)
    among = f" among {count(found.family, 'difference')}" if found.family > 1 else ""
    test = "its interval holds at every look" if found.question else "no test"
    if best.adjusted is not None:
        test = SAME if best.interval and best.interval.has_no_width else f"adjusted {p_text(best.adjusted)}{among}"
    runs = f"{'That' if best.verdict == 'better' else 'This'} is based on {count(best.pairs, 'pair')} of runs"
    sure = f"{runs} ({test}).{_worse(contrasts)}{diverged_sentence(found)}"
    which = _at(data, [_which(found, contrasts, best)])
    return [which, sure, *_elsewhere(data), *over, *ahead, *explanation(data, found, best.arm)]


def _gain(found: PlaceResult, each: Contrast) -> float:
    """Return how much better an arm is; negative where it is worse."""
    assert each.interval is not None
    return -each.interval.mean if found.metric.mode == "min" else each.interval.mean


def _ahead(found: PlaceResult, best: Contrast) -> list[str]:
    """Name the control that gains most over the baseline, where the best arm gains less or is not shown to gain."""
    known = [each for arm in found.arms if arm.is_control and (each := found.to_baseline(arm.name))]
    if not known:
        return []
    control = max(known, key=lambda each: _gain(found, each))
    gain, least = _gain(found, control), _gain(found, best)
    if gain <= 0 or (best.verdict == "better" and gain <= least):
        return []
    if control.pairs < FEWEST_FOR_INTERVAL or not (control.interval and control.interval.excludes_zero):
        return []
    how = "is ahead" if gain > least else "has an interval that excludes zero"
    gains = f"{_difference(control, found)}{found.metric.points} over {found.baseline}"
    return [f"The control {control.arm} {how}: {gains}, not judged. To judge it, train fresh seeds under another name."]


def _elsewhere(data: ReportData) -> list[str]:
    """Return the best arm, or the counts of all, at each other place of a small grid."""
    others = [each for each in data.judged if each.point != data.point and each.arms]
    said = [findings(each)[0] if data.successes else _best_there(each) for each in others]
    places = [f"At {data.place_text(each.point)}: {text}" for each, text in zip(others, said, strict=True) if text]
    return places if len(places) <= FEW_NAMES else []  # of a larger grid, each place has its section


def _best_there(found: PlaceResult) -> str:
    contrasts, said = _to_baseline(found), ""
    if contrasts:
        said = f"{_which(found, contrasts, _best(found, contrasts))}{_worse(contrasts)}"
    return f"{equal_sentence(found) or said}{diverged_sentence(found)}".lstrip()


def _to_baseline(found: PlaceResult) -> list[Contrast]:
    """Return the differences to the baseline, of two seeds and more, without those of controls."""
    return [each for each in found.of_role(BASELINE) if each.pairs > 1]


def _best(found: PlaceResult, contrasts: Sequence[Contrast]) -> Contrast:
    better = lambda each: (each.verdict == "better", each.reason != DIVERGED, _gain(found, each))  # noqa: E731
    return max(contrasts, key=better)


def explanation(data: ReportData, found: PlaceResult, best: str | None) -> list[str]:
    """Return what differs in attention or weights, and whether it goes with the result."""
    known = properties(data.complete)
    if not known:
        return []
    result = {(arm.name, seed): value for arm in found.arms for seed, value in arm.by_seed.items()}
    strongest = strongest_correlation(known, result)
    differs = largest_difference(known, best, found.baseline) if best else None
    parts = []
    if best and differs:
        (word, moment), one, other = differs
        digits = significant(max(abs(one), abs(other)), 2)
        digits = next((d for d in range(digits, digits + 12) if number(one, d) != number(other, d)), digits)
        parts.append(
            f"{best} differs from {found.baseline} in the {word} {moment} training ({number(one, digits)} against "
            f"{number(other, digits)}), the most of what was measured for its size and its spread over seeds"
        )
    elif best:
        parts.append(f"{best} does not differ from {found.baseline} in any measured property of attention or weights")
    parts.append(_correlated(strongest, found))
    text = "; ".join(parts)
    return [f"{text if best else text[0].upper() + text[1:]}."]


def _correlated(strongest: Correlation | None, found: PlaceResult) -> str:
    if strongest is None:
        arms = count(len(found.arms), "arm")
        return f"with {arms}, no property of attention or weights can be tied to the result; that takes five arms"
    word, moment = strongest.what
    size = f"rank correlation of runs without their seed's mean {number(strongest.correlation, 2, signed=True)}"
    among = (
        f"{p_text(strongest.p_value)} among {count(strongest.tested, 'quantity').replace('quantitys', 'quantities')}"
    )
    if strongest.p_value >= FAMILY_LEVEL:
        return (
            f"over {strongest.arms} arms, no property of attention or weights is significantly correlated with the "
            f"result: the strongest correlation is with the {word} {moment} training ({size}, {among})"
        )
    more = "more" if (strongest.correlation > 0) == (found.metric.mode == "max") else "less"
    return (
        f"over {strongest.arms} arms, better results go with {more} of the {word} {moment} training ({size}, {among}), "
        "which is a correlation and need not be the cause"
    )


def _which(found: PlaceResult, contrasts: Sequence[Contrast], best: Contrast) -> str:
    difference, words = f"{_difference(best, found)}{found.metric.points}", found.metric.words
    others = [each for each in contrasts if each is not best and each.verdict == "better"]
    if best.verdict == "better":
        also = ""
        if len(others) == 1:
            also = f"; {others[0].arm} is also better, {_difference(others[0], found)}"
        elif others:
            also = f"; {len(others)} of the other {len(contrasts) - 1} are also better, by less"
        return f"{best.arm} is better than {found.baseline}: {difference} of {words}{also}."
    why = _why_open(best)
    if len(contrasts) == 1 and best.verdict == "worse":
        return f"{best.arm} is worse than {found.baseline}: {difference} of {words}."
    if len(contrasts) == 1:
        return f"{best.arm} is not shown to improve on {found.baseline} in {words}: {difference}{why}."
    among = " that is no control" if any(arm.is_control for arm in found.arms) else ""
    if best.reason != DIVERGED and any(each.reason == DIVERGED for each in contrasts):
        among = " that is judged"
    worse = ", which is worse" if best.verdict == "worse" else ""
    best_one = f"the best{among} is {best.arm}, {difference}{why}{worse}"
    return f"No arm is shown to improve on {found.baseline} in {words}; {best_one}."


def _worse(contrasts: Sequence[Contrast]) -> str:
    """Name the arms that are worse; nothing where there is one alone, which the first sentence is about."""
    losses = [each.arm for each in contrasts if each.verdict == "worse" and len(contrasts) > 1]
    if len(losses) > FEW_NAMES:
        return f" {len(losses)} arms are worse."
    return f" Worse: {listed(losses)}." if losses else ""


def _over_controls(data: ReportData, found: PlaceResult, best: str) -> list[str]:
    """Return what the best arm is worth over its controls, which is what its structure is worth; nothing without any.

    Of a peer it is the arm that has its positions: what it is worth over another control tells nobody anything.
    """
    arm = next((arm for arm, of in found.roles.items() if best in of), best)
    known = [each for each in found.to_controls(arm) if each.pairs > 1]
    if not known:
        return []
    parts = []
    for each in known:
        verdict = "not told apart" if each.verdict == "undecided" else each.verdict
        verdict = "not judged" if each.reason == DIVERGED else f"{verdict}{_why_open(each)}"
        over = f"{OVER[each.role]} ({each.reference}; {verdict}, {count(each.pairs, 'pair')})"
        parts.append(f"{_difference(each, found)} over {over}")
    place = data.place_text(data.point)
    verb = "adds" if found.metric.mode == "max" else f"changes ({found.metric.better})"
    unit = f"{found.metric.unit} of {found.metric.words}".removeprefix(" of ")
    said = f"What the structure of {arm} {verb}{place and f', at {place}'}, in {unit}: {listed(parts)}."
    if not {SCRAMBLED, NAMED} & {each.role for each in known}:  # what a control of one's own holds equal, nobody knows
        said += f" The size of its weights is not controlled for: {arm}_scrambled would do that."
    return [said]


def _why_open(each: Contrast) -> str:
    """Say why a difference is open: its better side diverged, or it excludes zero alone, not among all; or nothing."""
    if each.reason == DIVERGED:
        return ", not judged because the side that looks better diverged in some seeds"
    if each.verdict != "undecided" or each.p is None or each.p >= FAMILY_LEVEL:
        return ""
    return ", which two seeds cannot show" if each.pairs < 3 else f", adjusted {p_text(each.adjusted or 0.0)}"


def _difference(each: Contrast, found: PlaceResult) -> str:
    assert each.interval is not None
    return unbroken(interval_text(each.interval, decimals(found), signed=True))


def _at(data: ReportData, sentences: list[str]) -> str:
    place = data.place_text(data.point)
    return f"At {place}: {' '.join(sentences)}" if place else " ".join(sentences)


@dataclass(frozen=True)
class Correlation:
    """How a property of attention or weights goes with the result, over arms and seeds."""

    what: Property
    correlation: float  # Spearman's
    p_value: float  # among all properties
    tested: int  # how many there were
    arms: int  # how many there were


def properties(runs: Iterable[Run]) -> Values:
    """Return what runs wrote of their attention and weight products, those quantities that every run has.

    A tower is what stands before the first number in a layer's name; it is named where there are several.
    """
    towers: defaultdict[Property, dict[str, dict[tuple[str, int], list[float]]]] = defaultdict(dict)
    runs = list(runs)
    for run, (name, words) in itertools.product(runs, WORDS.items()):
        path = run.folder / name
        for moment, layers in (read_json(path) if path.is_file() else {}).items():
            for layer, (key, word) in itertools.product(layers, words.items()):
                if moment in MOMENTS and key in layers[layer]:
                    tower = towers[word, moment].setdefault(re.split(r"\d", layer)[0].rstrip("._"), {})
                    tower.setdefault((run.arm, run.seed), []).append(over_heads(layers[layer][key]))
    return {
        (f"{word} in {tower or 'the model'}" if len(of_towers) > 1 else word, moment): {
            of_run: float(np.mean(of_layers)) for of_run, of_layers in values.items()
        }
        for (word, moment), of_towers in towers.items()
        for tower, values in of_towers.items()
        if len(values) == len(runs) and np.isfinite([*itertools.chain(*values.values())]).all()
    }


def strongest_correlation(known: Values, result: Mapping[tuple[str, int], float]) -> Correlation | None:
    """Return the quantity that goes with the result most; None with fewer than five arms, or nothing to correlate."""
    arms = list(dict.fromkeys(arm for arm, _ in result))
    seeds = [s for s in dict.fromkeys(seed for _, seed in result) if all((arm, s) in result for arm in arms)]
    tables = {
        quantity: np.array([[values.get((arm, seed), math.nan) for seed in seeds] for arm in arms])
        for quantity, values in known.items()
    }
    tables = {q: t for q, t in tables.items() if np.isfinite(t).all() and np.ptp(t.mean(1)) > 1e-9 * np.abs(t).max()}
    if len(arms) < FEWEST_ARMS or not seeds or not tables:
        return None
    ranks = np.array([_ranks(table) for table in tables.values()])  # (quantities, runs)
    final = _ranks(np.array([[result[arm, seed] for seed in seeds] for arm in arms]))
    final = final.reshape(len(arms), len(seeds))
    permuted = np.array([final[list(order)].ravel() for order in _orders(len(arms))])  # the first is as observed
    correlations = permuted @ ranks.T
    largest = np.abs(correlations).max(1)
    best = int(np.abs(correlations[0]).argmax())
    p_value = float((largest >= largest[0] - 1e-9).mean())
    return Correlation(list(tables)[best], float(correlations[0, best]), p_value, len(tables), len(arms))


def largest_difference(known: Values, arm: str, baseline: str) -> tuple[Property, float, float] | None:
    """Return the quantity that differs most, with its means of the arm and of the baseline.

    Its difference counts as a share of its size and of three standard deviations over seeds.
    """
    best, share = None, 0.0
    for quantity, values in known.items():
        ours, theirs = ([v for (name, _), v in values.items() if name == which] for which in (arm, baseline))
        if not ours or not theirs:
            continue
        one, other = float(np.mean(ours)), float(np.mean(theirs))
        spread = sum(3 * float(np.std(each, ddof=1)) for each in (ours, theirs) if len(each) > 1)
        relative = abs(one - other) / max(abs(one) + abs(other) + spread, 1e-12)
        apart = min(ours) > max(theirs) or max(ours) < min(theirs)  # in every run, not in the mean alone
        if apart and relative > share:
            best, share = (quantity, one, other), relative
    return best


def _ranks(table: np.ndarray) -> np.ndarray:
    """Return ranks of (arms, seeds) without what a seed's runs share, whose products sum to a correlation."""
    ranks = stats.rankdata(table - table.mean(0))
    centred = ranks - ranks.mean()
    return centred / max(float(np.linalg.norm(centred)), 1e-12)


def _orders(arms: int) -> Iterable[tuple[int, ...]]:
    """Yield orders of the arms, the given one first: all of them, or as many as are drawn."""
    if math.factorial(arms) <= MOST_PERMUTATIONS:
        yield from itertools.permutations(range(arms))
        return
    rng = np.random.default_rng(0)
    yield tuple(range(arms))
    yield from (tuple(rng.permutation(arms)) for _ in range(MOST_PERMUTATIONS))
