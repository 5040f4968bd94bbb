"""The three sentences on top of a report: which and by how much, how sure, and what goes with it."""

from __future__ import annotations

from comparison.report.data import ReportData
from comparison.report.sentences import all_findings, count, diverged_sentence, equal_sentence, listed
from comparison.report.success_sentences import success_findings
from comparison.report.ties import Tie, largest_difference, quantities, strongest_tie
from comparison.results.effects import ArmResult, Effect, Effects
from comparison.results.multiple import LEVEL
from comparison.results.tables import decimals, interval_text, number, p_text, significant

FEW_NAMES = 4
Pair = tuple[ArmResult, Effect]


def answers(data: ReportData) -> list[str]:
    """Return what a reader wants to know first; fewer sentences where less is known."""
    found = next((each for each in data.effects if each.point == data.point), None)
    if found is None or not found.arms:
        return []
    if data.successes:
        counted = next(each for each in data.successes if each.point == data.point)
        return [_at(data, success_findings(counted)[1:2] or success_findings(counted)[:1]), *why(data, found, None)]
    pairs = [(arm, arm.baseline) for arm in found.arms if arm.baseline and arm.baseline.interval.samples > 1]
    if not pairs:
        (_, sentences), *_ = all_findings(data)
        return [sentences[-1]]
    if equal := equal_sentence(found):
        return [_at(data, [equal])]
    best = _best(found, pairs)
    over, which, sure = (
        _over_controls(found, _controlled(found, best[0])),
        _which(found, pairs, best),
        _sure(found, pairs, best),
    )
    first = [over, f"{which} {sure}"] if over else [which, sure]
    return [_at(data, first[:1]), *first[1:], *why(data, found, best[0])]


def why(data: ReportData, found: Effects, best: ArmResult | None) -> list[str]:
    """Return what differs in attention or weights, and whether it goes with the result."""
    known = quantities(data.complete)
    if not known:
        return []
    result = {(arm.name, seed): value for arm in found.arms for seed, value in arm.by_seed.items()}
    tie = strongest_tie(known, result)
    differs = largest_difference(known, best.name, found.baseline) if best else None
    parts = []
    if best and differs:
        (word, moment), one, other = differs
        digits = significant(max(abs(one), abs(other)), 2)
        parts.append(
            f"{best.name} differs most from {found.baseline} in the {word} {moment} training "
            f"({number(one, digits)} against {number(other, digits)})"
        )
    elif best:
        parts.append(
            f"{best.name} does not differ from {found.baseline} in any measured property of attention or weights"
        )
    parts.append(_tied(tie, found, len(known)))
    text = "; ".join(parts)
    return [f"{text if best else text[0].upper() + text[1:]}."]


def _tied(tie: Tie | None, found: Effects, tested: int) -> str:
    if tie is None:
        arms = count(len(found.arms), "arm")
        return f"with {arms}, no property of attention or weights can be tied to the result; that takes five arms"
    quantity, moment = tie.quantity
    size = f"rank correlation {number(tie.correlation, 2, signed=True)}"
    among = f"{p_text(tie.p_value)} among {count(tie.tested, 'quantity').replace('quantitys', 'quantities')}"
    if tie.p_value >= LEVEL:
        return (
            f"over {tie.arms} arms, no property of attention or weights is significantly correlated with the result: "
            f"the strongest correlation is with the {quantity} {moment} training ({size}, {among})"
        )
    more = "more" if (tie.correlation > 0) == (found.metric.mode == "max") else "less"
    return (
        f"over {tie.arms} arms, better results go with {more} of the {quantity} {moment} training ({size}, {among}), "
        "which is a correlation and need not be the cause"
    )


def _which(found: Effects, pairs: list[Pair], best: Pair) -> str:
    arm, effect = best
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    difference, words = f"{_unbroken(effect, found)}{unit}", found.metric.words
    gains = sum(each.is_gain is True for _, each in pairs)
    losses = [name.name for name, each in pairs if each.is_gain is False]
    few = 0 < len(losses) <= FEW_NAMES
    worse = f" Worse: {listed(losses)}." if few else f" {len(losses)} arms are worse." if losses else ""
    if effect.is_gain:
        which = "the other is" if len(pairs) == 2 else f"{gains - 1} of the other {len(pairs) - 1} are"
        others = f"; {which} also better, by less" if gains > 1 else ""
        return f"{arm.name} is better than {found.baseline}: {difference} of {words}{others}.{worse}"
    why = ", not judged because it diverged in some seeds" if effect.unjudged else ""
    if len(pairs) == 1:
        return f"{arm.name} is not shown to improve on {found.baseline} in {words}: {difference}{why}.{worse}"
    best = f"the largest difference is {arm.name}’s, {difference}{why}"
    return f"No arm is shown to improve on {found.baseline} in {words}; {best}.{worse}"


def _sure(found: Effects, pairs: list[Pair], best: Pair) -> str:
    _, effect = best
    seeds = count(effect.interval.samples, "pair")
    among = f" among {len(pairs)} arms" if len(pairs) > 1 else ""
    sure = f"adjusted {p_text(effect.adjusted)}{among}" if effect.adjusted is not None else "no test"
    stands = f"{'That' if effect.is_gain else 'This'} is based on {seeds} of runs ({sure})"
    return f"{stands}.{diverged_sentence(found)}"


def _controlled(found: Effects, arm: ArmResult) -> ArmResult:
    """Return the arm whose control an arm is: what a control is worth over another control tells nobody anything."""
    controls = {effect.reference for each in found.arms if (effect := each.scrambled) is not None}
    return next((each for each in found.arms if each.name not in controls and _is_control_of(arm, each)), arm)


def _is_control_of(arm: ArmResult, other: ArmResult) -> bool:
    return any(effect is not None and effect.reference == arm.name for effect in (other.scrambled, other.control))


def _over_controls(found: Effects, arm: ArmResult) -> str:
    """Return what an arm is worth over its controls, which is what its structure is worth; empty without any."""
    pairs = [("itself scrambled", arm.scrambled), ("the same positions", arm.control)]
    known = [(name, each) for name, each in pairs if each and each.interval.samples > 1]
    if not known:
        return ""
    words = {True: "better", False: "worse", None: "not told apart"}
    parts = [
        f"{_unbroken(each, found)} against {name} ({each.reference}; {words[each.is_gain]})" for name, each in known
    ]
    unit = f", in {found.metric.unit}" if found.metric.unit else ""
    return f"What the structure of {arm.name} is worth in {found.metric.words}{unit}: {listed(parts)}."


def _unbroken(effect: Effect, found: Effects) -> str:
    """Return a difference that no line breaks."""
    return interval_text(effect.interval, decimals(found), signed=True).replace(" ", "\N{NO-BREAK SPACE}")


def _best(found: Effects, pairs: list[Pair]) -> Pair:
    """Return the arm with the largest gain; where none is shown, the one with the largest difference for the better."""
    sign = -1.0 if found.metric.mode == "min" else 1.0
    return max(pairs, key=lambda pair: (pair[1].is_gain is True, not pair[1].unjudged, sign * pair[1].interval.mean))


def _at(data: ReportData, sentences: list[str]) -> str:
    place = data.place_text(data.point)
    return f"At {place}: {' '.join(sentences)}" if place else " ".join(sentences)
