"""What a comparison found, in sentences that say no more than the intervals do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from comparison.report.data import ReportData
from comparison.results.decisions import LOOKS
from comparison.results.effects import ArmResult, Effect, Effects, all_equal, all_or_nothing, fewer_seeds, judged_of
from comparison.results.folder import asked_runs, asked_seeds
from comparison.results.headline import decimals, diverged_text, share_text, threshold_text
from comparison.results.paired import FAMILY_LEVEL, FEWEST_FOR_INTERVAL
from comparison.results.tables import count, interval_text, number, p_text
from comparison.results.targets import fewest_seeds

LEVEL = "95 %"
REFERENCES = {  # what arms are compared with beside the baseline; the worth of their structure comes first
    "scrambled": "its scrambled control, which keeps the size of all weights and destroys their alignment",
    "control": "its control, which has the same positions without the arm's other structure",
}

Pairs = Sequence[tuple[ArmResult, Effect]]


def title(data: ReportData) -> str:
    """Return the experiment's name."""
    names = [str(name).rpartition("/")[2].removesuffix(".yaml") for name in data.manifest["experiment"]]
    return " + ".join(names)


def lead(data: ReportData) -> str:
    """Return one sentence: what was compared."""
    manifest = data.manifest
    if data.source:
        when = " at the last step that a run logged" if len(data.curves) else ""
        own = Counter(run.arm for run in data.runs).values()
        seeds = f"{min(own)} to " * (min(own) < max(own)) + count(max(own), "seed")
        return (
            f"{count(len(manifest['arms']), 'arm')} of {data.source}, {seeds}: "
            f"{data.metric.words}{when}, {data.metric.better}."
        )
    initializations, seeds = len(manifest["arms"]), len(asked_seeds(manifest))
    upto = "up to " if manifest.get("added") else ""
    grid = f" at {len(data.points)} places of a grid" if len(data.points) > 1 else ""
    rates = ", each with the learning rate chosen for it on the validation split" if manifest["learning_rates"] else ""
    sizes = sorted({size for run in data.runs if (size := (run.result or {}).get("training_samples"))})
    ends = " to ".join(f"{size:,}" for size in sizes[:: len(sizes) - 1 or 1])
    trained = f", trained on {ends} samples" if sizes else ""
    what = f"{count(initializations, 'initialization')} of {title(data)}{grid}, {upto}{count(seeds, 'seed')}"
    return (
        f"{what}{trained}{rates}: final {data.metric.words}, {data.metric.better}; "
        "runs with the same seed differ only in their initialization."
    )


def state(data: ReportData) -> str:
    """Return one sentence on what is missing; empty when all is there."""
    asked = len(asked_runs(data.manifest))
    complete = sum(run.result is not None for run in data.runs)
    failed = sum(run.failure is not None for run in data.runs)
    running = sum(run.result is None and run.failure is None for run in data.runs)
    parts = [
        f"{complete} of {asked} runs are complete",
        f"{failed} failed" if failed else "",
        f"{running} started and not complete" if running else "",
        f"{len(data.missing)} not started" if data.missing else "",
    ]
    unfinished = failed or running or data.missing
    return ", ".join(part for part in parts if part) + "." if unfinished else ""


def findings(found: Effects) -> list[str]:
    """Return what was found at one place of the grid: what diverged, and differences to the controls and the baseline.

    A run that diverged is a result, and comes first. Where a threshold was given, they are about runs that succeed.
    """
    if found.threshold is None:
        return [*_diverged(found), *_unequal(found), *_differences(found)]
    if not found.arms:
        return [f"No complete run has {found.metric.words} yet."]
    counts = [unbroken(f"{arm.name} {share_text(arm.share)}") for arm in found.arms]
    diverged = diverged_sentence(found.means) if found.means else ""
    sentences = [f"Runs with {threshold_text(found)}: {listed(counts)}.{diverged}"]
    for family, reference in {"baseline": found.baseline, **_references(found)}.items():
        sentences += _counted_against(found, family, reference)
    return sentences


def _diverged(found: Effects) -> list[str]:
    without_rate = [f"{arm.name} ({diverged_text(arm)})" for arm in found.arms if arm.no_rate]
    sentences = [f"No learning rate gave a number in every seed: {listed(without_rate)}."] if without_rate else []
    diverged = [arm for arm in found.arms if arm.diverged]
    if not diverged:
        return sentences
    sentences.append(diverged_sentence(found).strip())
    if lost := [arm.name for arm in diverged if arm.lost]:
        sentences.append(
            f"Means and differences of {listed(lost)} use only the seeds that did not diverge, and an arm that "
            "diverged is never called better."
        )
    return sentences


def _unequal(found: Effects) -> list[str]:
    fewer = fewer_seeds(found)
    if not fewer or len(found.arms) < 2:
        return []
    counts = [f"{arm} {seeds}" for arm, seeds in fewer.items()]
    return [
        f"Means are over different seeds ({listed(counts)}), and differences over the seeds that both arms have: do "
        "not compare the means."
    ]


def _differences(found: Effects) -> list[str]:
    if not found.arms:
        return [f"No complete run has {found.metric.words} yet."]
    if len(found.arms) == 1:
        arm = found.arms[0]
        if arm.value is None:
            return ["There is nothing to compare."]
        value = interval_text(arm.value, decimals(found))
        seeds = count(len(arm.by_seed), "seed")
        return [f"{arm.name} reached {value}{found.metric.percent} ({seeds}); nothing to compare."]
    paired = [effect for arm in found.arms for effect in arm.differences]
    healthy = " that did not diverge" if any(arm.lost for arm in found.arms) else ""
    if not paired:
        return [f"No arm shares a complete seed{healthy} with {found.baseline} yet, so nothing can be paired."]
    if all(effect.interval.samples == 1 for effect in paired):
        one = "one seed" if all(arm.seeds == 1 for arm in found.arms) else f"one pair{healthy}"
        return [
            f"There is only {one}, so there is no interval: the table shows values, but no difference is established."
        ]
    if found.question is None and (equal := equal_sentence(found)):
        return [equal]
    few = all(effect.interval.samples < FEWEST_FOR_INTERVAL for effect in paired)
    if few and found.question is None and not any(arm.diverged for arm in found.arms):
        return [
            "Two pairs are too few: run at least 5 seeds. The table shows values, but no difference is established."
        ]
    # What a structured initialization is worth stands first: its difference to the controls.
    sentences = [
        (_against if found.question is None else _decided_against)(found, family, reference)
        for family, reference in {**_references(found), "baseline": found.baseline}.items()
    ]
    if (question := found.question) is not None:
        if question.precision is not None:
            asked = f"every difference to within {question.precision:g}"
        else:
            asked = f"better, worse, or equivalent within {question.margin:g}"
        asked = f"Asked: {asked}{found.metric.points}, with at most {question.most} seeds."
        sentences = [asked, equal_sentence(found), *sentences]
    intervals = sum(effect.interval.samples >= FEWEST_FOR_INTERVAL and not effect.unjudged for effect in paired)
    if intervals > 1 and found.question is None:  # what was asked is decided for all arms together
        sentences.append(
            f"“Better” and “worse” are corrected for all {found.family} differences of this page that are judged "
            f"(Holm’s method, 5 %). The {LEVEL} intervals are not: on average, one in twenty misses the truth."
        )
    return [sentence for sentence in sentences if sentence]


def _references(found: Effects) -> dict[str, str]:
    return REFERENCES if found.same_positions else {**REFERENCES, "control": "its control"}


def _judged(found: Effects, family: str) -> list[tuple[Any, Any]]:
    """Return each arm with its difference to one kind of reference, where that is judged."""
    return [(arm, effect) for arm in found.arms for kind, effect in judged_of(arm) if kind == family]


def _against(found: Effects, family: str, reference: str) -> str:
    """Say which arms are better, which worse and which not told apart."""
    pairs = [pair for pair in _judged(found, family) if pair[1].interval.samples > 1]
    few = [pair for pair in pairs if pair[1].interval.samples < FEWEST_FOR_INTERVAL and not pair[0].diverged]
    pairs = [pair for pair in pairs if pair not in few]
    gains = [pair for pair in pairs if pair[1].is_gain is True]
    losses = [pair for pair in pairs if pair[1].is_gain is False]
    unjudged = [pair for pair in pairs if pair[1].unjudged]
    # What would be called better or worse if there were no other arm.
    alone = [
        (arm, effect)
        for arm, effect in pairs
        if effect.is_gain is None and not effect.unjudged and (effect.p_value or 1.0) < FAMILY_LEVEL
    ]
    equal = [pair for pair in pairs if not any(pair in known for known in (gains, losses, unjudged, alone))]
    known = (("better", gains), ("worse", losses))
    parts = [f"{word} than {reference}: {_by(found, chosen)}" for word, chosen in known if chosen]

    def add(word: str, to: str, chosen: Pairs, why: str, among: str = "") -> None:
        """Add a part, which names the reference if it is the first."""
        if chosen:
            parts.append(f"{word}{'' if parts else f' {to} {reference}'}{among}: {_by(found, chosen)} ({why})")

    why = "the intervals include zero" if len(equal) > 1 else "the interval includes zero"
    if any(effect.interval.excludes_zero for _, effect in equal):
        why += f" or {'have' if len(equal) > 1 else 'has'} no width, since all seeds agree"
    add("not told apart", "from", equal, why)
    least = p_text(min((effect.adjusted or 0.0 for _, effect in alone), default=1.0))
    among = f", among {found.family} differences, though the interval alone excludes zero"
    add("not told apart", "from", alone, f"adjusted {least}{' and above' if len(alone) > 1 else ''}", among)
    add("not judged", "against", unjudged, "the side that looks better diverged in some seeds")
    add("two pairs are too few", "against", few, "run at least 5 seeds of both")
    return _sentence(parts)


def _decided_against(found: Effects, family: str, reference: str) -> str:
    """Say which arms are better, worse and equivalent, and what the others would take."""
    pairs = [pair for pair in _judged(found, family) if pair[1].decision]
    words = {"better": "better than", "worse": "worse than", "equivalent": "equivalent to"}
    parts = []
    for kind, word in {**words, "undecided": "undecided against"}.items():
        chosen = _best_first(found, [pair for pair in pairs if pair[1].decision.kind == kind])
        if chosen:
            parts.append(f"{word} {reference}: {', '.join(_decided(found, *pair) for pair in chosen)}")
    return _sentence(parts)


def _decided(found: Effects, arm: ArmResult, effect: Effect) -> str:
    decision, digits = effect.decision, decimals(found)
    assert decision is not None
    equal = "" if decision.within is None else f"no difference beyond {number(decision.within, digits)}"
    more = f"about {decision.needed:,} seeds would decide" if decision.needed else decision.reason
    notes = [equal, count(decision.interval.samples, "seed"), more]
    text = unbroken(f"{arm.name} {interval_text(decision.interval, digits, signed=True)}{found.metric.points}")
    return f"{text} ({', '.join(filter(None, notes))})"


def _counted_against(found: Effects, family: str, reference: str) -> list[str]:
    """Say which arms succeed more and less often, and how many seeds it takes where nothing could be told apart."""
    pairs = _judged(found, family)
    if not pairs:
        return []
    parts = []
    for word, wanted in ((f"more often than {reference}", True), (f"less often than {reference}", False)):
        chosen = [f"{arm.name} (adjusted {p_text(each.adjusted)})" for arm, each in pairs if each.is_gain is wanted]
        parts += [f"{word}: {listed(list(map(unbroken, chosen)))}"] if chosen else []
    same = [arm.name for arm, each in pairs if each.is_gain is None]
    parts += [f"not told apart{'' if parts else f' from {reference}'}: {listed(same)}"] if same else []
    shares = {arm.name: arm.share for arm in found.arms}
    runs = max(min(shares[arm.name].runs, shares[each.reference].runs) for arm, each in pairs)
    needed = fewest_seeds(found.family)
    decided = any(each.is_gain is not None for _, each in pairs)
    if runs >= needed or decided:
        return [_sentence(parts)]
    among = f" among {found.family} differences" if found.family > 1 else ""
    few = f"With {count(runs, 'seed')} even “all succeed” cannot be told from “none succeeds”{among}"
    return [_sentence(parts), f"{few}: run at least {needed}."]


def diverged_sentence(found: Effects) -> str:
    """Return which arms diverged, with a space before it; empty where none did."""
    counts = [f"{arm.name} in {len(arm.diverged)} of {count(arm.seeds, 'seed')}" for arm in found.arms if arm.diverged]
    return f" Diverged: {listed(counts)}." if counts else ""


def equal_sentence(found: Effects) -> str:
    """Say that all results are equal and what follows; empty where they are not."""
    value = all_equal(found)
    if value is None:
        return ""
    results = count(sum(len(arm.by_seed) for arm in found.arms), "final result")
    return (
        f"All {results} are equal, {number(value, decimals(found))}{found.metric.percent}: no arm differs from "
        "another, and as no two results differ, neither power nor a number of seeds can be computed."
    )


def level_text() -> str:
    """Return how the intervals of decisions are made, in two sentences."""
    return (
        "± of a difference is the half width of an interval that allows for adding seeds: Student's t with an equal "
        f"part of the error at each look, at {listed([str(look) for look in LOOKS])} pairs. All intervals of this page "
        f"that are decided hold jointly at {LEVEL}."
    )


def suggestion(found: Effects) -> list[str]:
    """Return a sentence where results look all or nothing and nothing counts them; none elsewhere."""
    threshold = None if found.threshold is not None else all_or_nothing(found)
    if threshold is None:
        return []
    return [
        f"Results look all or nothing: runs of one arm end far apart with none in between, so a mean describes "
        f"no run; --success {threshold:g} counts the runs that succeed."
    ]


def listed(names: Sequence[str]) -> str:
    """Return names as one reads them aloud."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def unbroken(text: str) -> str:
    """Return a text that no line breaks."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def without_formulas(title: str) -> str:
    """Return a figure's title without the markup of its formulas."""
    return title.replace("^\\top", "ᵀ").replace("$", "")


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _best_first(found: Effects, pairs: Pairs) -> Pairs:
    return sorted(pairs, key=lambda pair: pair[1].interval.mean, reverse=found.metric.mode == "max")


def _by(found: Effects, pairs: Pairs) -> str:
    digits, best_first = decimals(found), _best_first(found, pairs)
    texts = [f"{arm.name} {interval_text(each.interval, digits, signed=True)}" for arm, each in best_first]
    return listed(list(map(unbroken, texts))) + found.metric.points
