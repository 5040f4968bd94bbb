"""What a comparison decided that was asked to, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from comparison.results.decisions import Question
from comparison.results.effects import ArmResult, Effect, Effects
from comparison.results.tables import decimals, interval_text, number

LEVEL = "95 %"
SPACE = "\N{NO-BREAK SPACE}"


def question_text(found: Effects) -> str:
    """Return what was asked, in a sentence."""
    question = found.question
    assert question is not None
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    if question.precision is not None:
        return f"Asked: every difference to within {question.precision:g}{unit}, with at most {question.most} seeds."
    return f"Asked: better, worse, or equivalent within {question.margin:g}{unit}, with at most {question.most} seeds."


def decided(found: Effects, to: str, reference: str) -> str:
    """Say which arms are better, worse and equivalent, and what the others would take.

    Args:
        found: the effects at one place of the grid.
        to: ``"baseline"`` or ``"control"``.
        reference: what that is, in words.
    """
    pairs = [(arm, effect) for arm in found.arms if (effect := getattr(arm, to)) and effect.decision]
    by_kind = {
        kind: [pair for pair in pairs if pair[1].decision and pair[1].decision.kind == kind]
        for kind in ("better", "worse", "equivalent", "undecided")
    }
    words = {"better": f"better than {reference}", "worse": f"worse than {reference}"}
    words |= {"equivalent": f"equivalent to {reference}", "undecided": f"undecided against {reference}"}
    parts = [f"{words[kind]}: {_by(found, chosen)}" for kind, chosen in by_kind.items() if chosen]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def level_text(question: Question) -> str:
    """Return how the intervals of decisions are made, in a sentence."""
    rule = (
        "Student's t at a higher level, for stopping once the interval is narrow"
        if question.precision is not None
        else f"group-sequential: valid after every seed, narrowest at {question.horizon}"
    )
    return (
        f"± of a difference is the half width of an interval that allows for adding seeds ({rule}). All intervals to "
        f"the same reference hold jointly at {LEVEL}."
    )


def _by(found: Effects, pairs: Sequence[tuple[ArmResult, Effect]]) -> str:
    best_first = sorted(pairs, key=lambda pair: pair[1].interval.mean, reverse=found.metric.mode == "max")
    return ", ".join(_one(found, arm, effect) for arm, effect in best_first)


def _one(found: Effects, arm: ArmResult, effect: Effect) -> str:
    decision, digits = effect.decision, decimals(found)
    assert decision is not None
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    seeds = f"{decision.interval.samples} seed{'' if decision.interval.samples == 1 else 's'}"
    if decision.kind == "equivalent":
        notes = [f"no difference beyond {number(decision.within or 0.0, digits)}", seeds]
    elif decision.needed:
        notes = [seeds, f"about {decision.needed:,} would decide"]
    elif decision.kind == "undecided":
        notes = [seeds, decision.reason]
    else:
        notes = [seeds]
    text = f"{arm.name} {interval_text(decision.interval, digits, signed=True)}{unit}".replace(" ", SPACE)
    return f"{text} ({', '.join(filter(None, notes))})"
