"""What a comparison found, in sentences that say no more than the intervals do."""

from __future__ import annotations

from collections.abc import Sequence

from comparison.report.data import ReportData
from comparison.report.decided import decided, question_text
from comparison.results.comparable import all_equal, fewer_seeds
from comparison.results.effects import ArmResult, Effect, Effects
from comparison.results.multiple import LEVEL as FAMILY_LEVEL
from comparison.results.paired import FEWEST_FOR_INTERVAL
from comparison.results.records import asked_runs, asked_seeds, point_label
from comparison.results.tables import decimals, diverged_text, interval_text, number, p_text

LEVEL = "95 %"
REFERENCES = {
    "scrambled": "its scrambled control, which keeps the size of all weights and destroys their alignment",
    "control": "its control, which has the same positions but no initialization of attention",
}


def lead(data: ReportData) -> str:
    """Return one sentence: what was compared."""
    manifest = data.manifest
    if data.source:
        return (
            f"{count(len(manifest['arms']), 'arm')} of {data.source}, {count(len(manifest['seeds']), 'seed')}: "
            f"{data.metric.words} at the last step that a run logged, {data.metric.better}."
        )
    initializations, seeds = len(manifest["arms"]), len(asked_seeds(manifest))
    upto = "up to " if manifest.get("added") else ""
    grid = f" at {len(data.points)} places of a grid" if len(data.points) > 1 else ""
    rates = ", each with the learning rate chosen for it on the validation split" if manifest["learning_rates"] else ""
    return (
        f"{count(initializations, 'initialization')} of {title(data)}{grid}, {upto}{count(seeds, 'seed')}{rates}: "
        f"final {data.metric.words}, {data.metric.better}; runs with the same seed differ only in their initialization."
    )


def title(data: ReportData) -> str:
    """Return the experiment's name."""
    names = [str(name).rpartition("/")[2].removesuffix(".yaml") for name in data.manifest["experiment"]]
    return " + ".join(names)


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
    return ", ".join(part for part in parts if part) + "." + _asked_last(data) if unfinished else ""


def _asked_last(data: ReportData) -> str:
    """Say how far the last command is, where it asked for less than all that its folder was ever asked for."""
    last = data.manifest.get("asked_last")
    if not last:
        return ""
    asked, complete = asked_runs({**data.manifest, **last, "added": []}), {run.key for run in data.complete}
    seeds = listed([str(seed) for seed in last["seeds"]])
    return (
        f" The last command asked for {'seed' if len(last['seeds']) == 1 else 'seeds'} {seeds} of "
        f"{count(len(last['arms']), 'initialization')}: {len(complete & set(asked))} of its {len(asked)} "
        "runs are complete."
    )


def findings(found: Effects) -> list[str]:
    """Return what the differences to the baseline and to the controls say, and what diverged, at one place of the grid.

    A run that diverged is a result, and comes first.
    """
    return [*_diverged(found), *_unequal(found), *_differences(found)]


def diverged_sentence(found: Effects) -> str:
    """Return which arms diverged, with a space before it; empty where none did."""
    counts = [f"{arm.name} in {len(arm.diverged)} of {count(arm.seeds, 'seed')}" for arm in found.arms if arm.diverged]
    return f" Diverged: {listed(counts)}." if counts else ""


def _diverged(found: Effects) -> list[str]:
    without_rate = [f"{arm.name} ({diverged_text(arm)})" for arm in found.arms if arm.no_rate]
    sentences = [f"No learning rate gave a number in every seed: {listed(without_rate)}."] if without_rate else []
    diverged = [arm for arm in found.arms if arm.diverged]
    if not diverged:
        return sentences
    sentences.append(diverged_sentence(found).strip())
    lost = [arm for arm in diverged if arm.lost]
    if lost:
        sentences.append(
            f"Means and differences of {listed([arm.name for arm in lost])} use only the seeds that did not "
            "diverge, and an arm that diverged is never called better."
        )
    return sentences


def equal_sentence(found: Effects) -> str:
    """Say that all results are equal and what follows; empty where they are not."""
    value = all_equal(found)
    if value is None:
        return ""
    unit = " %" if found.metric.factor == 100 else ""
    results = count(sum(len(arm.by_seed) for arm in found.arms), "final result")
    return (
        f"All {results} are equal, {number(value, decimals(found))}{unit}: no arm differs from another, and as no two "
        "results differ, neither power nor a number of seeds can be computed."
    )


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
        return [
            f"{arm.name} reached {value}{' %' if found.metric.factor == 100 else ''} ({seeds}); nothing to compare."
        ]
    paired = [effect for arm in found.arms for effect in arm.differences]
    if not paired:
        number = " that did not diverge" if any(arm.lost for arm in found.arms) else ""
        return [f"No arm shares a complete seed{number} with {found.baseline} yet, so nothing can be paired."]
    if all(effect.interval.samples == 1 for effect in paired):
        one = "one pair that did not diverge" if any(arm.lost for arm in found.arms) else "one seed"
        return [
            f"There is only {one}, so there is no interval: the table shows values, but no difference is established."
        ]
    if found.question is None and (equal := equal_sentence(found)):
        return [equal]
    few = all(effect.interval.samples < FEWEST_FOR_INTERVAL for effect in paired)
    if few and found.question is None and not any(arm.diverged for arm in found.arms):
        return ["Two seeds are too few: run at least 5. The table shows values, but no difference is established."]
    # What a structured initialization is worth stands first: its difference to the controls.
    sentences = [
        *(_against(found, to, reference) for to, reference in REFERENCES.items()),
        _against(found, "baseline", f"{found.baseline}"),
    ]
    if found.question is not None:
        sentences = [question_text(found), equal_sentence(found), *sentences]
    intervals = sum(effect.interval.samples >= FEWEST_FOR_INTERVAL for effect in paired)
    if intervals > 1 and found.question is None:  # what was asked is decided for all arms together
        families = " and of those to the controls" if any(arm.control or arm.scrambled for arm in found.arms) else ""
        sentences.append(
            f"“Better” and “worse” are corrected for testing all differences to {found.baseline}{families} "
            "(Holm’s method, 5 %). "
            f"The {LEVEL} intervals are not: on average, one in twenty misses the truth."
        )
    return [sentence for sentence in sentences if sentence]


def all_findings(data: ReportData) -> list[tuple[str, list[str]]]:
    """Return the place of the grid and what was found there, for every place."""
    several = len(data.points) > 1
    return [(point_label(found.point) if several else "", findings(found)) for found in data.effects]


def count(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def plain(title: str) -> str:
    """Return a figure's title without the markup of its formulas."""
    return title.replace("^\\top", "ᵀ").replace("$", "")


def listed(names: Sequence[str]) -> str:
    """Return names as one reads them aloud."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _against(found: Effects, to: str, reference: str) -> str:
    """Say which arms are better, which worse and which not told apart."""
    if found.question is not None:
        return decided(found, to, reference)
    pairs = [(arm, effect) for arm in found.arms if (effect := getattr(arm, to)) and effect.interval.samples > 1]
    few = [pair for pair in pairs if pair[1].interval.samples < FEWEST_FOR_INTERVAL and not pair[0].diverged]
    pairs = [pair for pair in pairs if pair not in few]
    if not pairs and not few:
        return ""
    gains = [pair for pair in pairs if pair[1].is_gain is True]
    losses = [pair for pair in pairs if pair[1].is_gain is False]
    unjudged = [pair for pair in pairs if pair[1].unjudged]
    alone = [pair for pair in pairs if _alone(pair[1])]
    equal = [pair for pair in pairs if not any(pair in known for known in (gains, losses, unjudged, alone))]
    parts = []
    for word, chosen in (("better", gains), ("worse", losses)):
        if chosen:
            parts.append(f"{word} than {reference}: {_by(found, chosen)}")
    if equal:
        than, many = "" if parts else f" from {reference}", len(equal) > 1
        why = "the intervals include zero" if many else "the interval includes zero"
        if any(effect.interval.excludes_zero for _, effect in equal):
            why += " or has no width, since all seeds agree"
        parts.append(f"not told apart{than}: {_by(found, equal)} ({why})")
    if alone:
        than = "" if parts else f" from {reference}"
        least = min(effect.adjusted or 0.0 for _, effect in alone)
        parts.append(
            f"not told apart{than} among {len(pairs)} arms, though the interval alone excludes zero: "
            f"{_by(found, alone)} (adjusted {p_text(least)}{' and above' if len(alone) > 1 else ''})"
        )
    if unjudged:
        than = "" if parts else f" against {reference}"
        parts.append(f"not judged{than}: {_by(found, unjudged)} (the side that looks better diverged in some seeds)")
    if few:
        than = "" if parts else f" against {reference}"
        parts.append(f"two seeds are too few{than}: {_by(found, few)} (run at least 5)")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _alone(effect: Effect) -> bool:
    """Tell whether a difference would be called better or worse if there were no other arm."""
    return effect.is_gain is None and not effect.unjudged and (effect.p_value or 1.0) < FAMILY_LEVEL


def _by(found: Effects, pairs: Sequence[tuple[ArmResult, Effect]]) -> str:
    digits = decimals(found)
    best_first = sorted(pairs, key=lambda pair: pair[1].interval.mean, reverse=found.metric.mode == "max")
    texts = [f"{arm.name} {interval_text(effect.interval, digits, signed=True)}" for arm, effect in best_first]
    texts = [text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts]
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    return listed(texts) + unit
