"""What a comparison found, in sentences that say no more than the intervals do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from comparison.report.data import ReportData
from comparison.results.contrasts import BASELINE, DIVERGED, LOOKS, Contrast
from comparison.results.controls import ROLES
from comparison.results.folder import asked_runs, asked_seeds
from comparison.results.headline import decimals, diverged_text, share_text, threshold_text, within
from comparison.results.paired import FEWEST_FOR_INTERVAL
from comparison.results.place import PlaceResult, all_equal, all_or_nothing, fewer_seeds
from comparison.results.tables import count, interval_text, number, p_text
from comparison.results.targets import fewest_seeds

LEVEL = "95 %"
STANDINGS = {  # how an arm may stand to a reference → the word between them
    **{"better": "than", "worse": "than", "equivalent": "to", "more often": "than", "less often": "than"},
    **{"not told apart": "from", "undecided": "against", "not judged": "against", "two pairs are too few": "against"},
}


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


def findings(found: PlaceResult) -> list[str]:
    """Return what was found at one place of the grid: what diverged, and differences to the controls and the baseline.

    A run that diverged is a result, and comes first. Where a threshold was given, they are about runs that succeed.
    """
    if found.threshold is None:
        return [*_diverged(found), *_unequal(found), *_differences(found)]
    if not found.arms:
        return [f"No complete run has {found.metric.words} yet."]
    counts = [unbroken(f"{arm.name} {share_text(arm.share)}") for arm in found.arms]
    diverged = diverged_sentence(found.means) if found.means else ""
    return [f"Runs with {threshold_text(found)}: {listed(counts)}.{diverged}", *_against(found), *_too_few(found)]


def _diverged(found: PlaceResult) -> list[str]:
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


def _unequal(found: PlaceResult) -> list[str]:
    fewer = fewer_seeds(found)
    if not fewer or len(found.arms) < 2:
        return []
    counts = [f"{arm} {seeds}" for arm, seeds in fewer.items()]
    return [
        f"Means are over different seeds ({listed(counts)}), and differences over the seeds that both arms have: do "
        "not compare the means."
    ]


def _differences(found: PlaceResult) -> list[str]:
    if not found.arms:
        return [f"No complete run has {found.metric.words} yet."]
    if len(found.arms) == 1:
        arm = found.arms[0]
        if arm.value is None:
            return ["There is nothing to compare."]
        value = interval_text(arm.value, decimals(found))
        seeds = count(len(arm.by_seed), "seed")
        return [f"{arm.name} reached {value}{found.metric.percent} ({seeds}); nothing to compare."]
    paired = found.competing
    healthy = " that did not diverge" if any(arm.lost for arm in found.arms) else ""
    if not paired:
        return [f"No arm shares a complete seed{healthy} with {found.baseline} yet, so nothing can be paired."]
    if all(each.pairs == 1 for each in paired):
        one = "one seed" if all(arm.seeds == 1 for arm in found.arms) else f"one pair{healthy}"
        return [
            f"There is only {one}, so there is no interval: the table shows values, but no difference is established."
        ]
    if found.question is None and (equal := equal_sentence(found)):
        return [equal]
    few = all(each.pairs < FEWEST_FOR_INTERVAL for each in paired)
    if few and found.question is None and not any(arm.diverged for arm in found.arms):
        return [
            "Two pairs are too few: run at least 5 seeds. The table shows values, but no difference is established."
        ]
    # What a structured initialization is worth stands first: its difference to the controls.
    sentences = _against(found)
    if (question := found.question) is not None:
        if question.precision is not None:
            asked = f"every difference to within {question.precision:g}"
        else:
            asked = f"better, worse, or equivalent within {question.margin:g}"
        asked = f"Asked: {asked}{found.metric.points}, with at most {question.most} seeds."
        sentences = [asked, equal_sentence(found), *sentences]
    intervals = sum(each.pairs >= FEWEST_FOR_INTERVAL and each.reason != DIVERGED for each in paired)
    if intervals > 1 and found.question is None:  # what was asked is decided for all arms together
        sentences.append(
            f"“Better” and “worse” are corrected for all {found.family} differences of this page that are judged "
            f"(Holm’s method, 5 %). The {LEVEL} intervals are not: on average, one in twenty misses the truth."
        )
    return [sentence for sentence in sentences if sentence]


def _against(found: PlaceResult) -> list[str]:
    """Say of each reference which arms are better and worse than it; the worth of structure comes first."""
    words = {**ROLES, BASELINE: found.baseline}
    chosen: dict[str, list[Contrast]] = {}
    for role, reference in words.items():
        chosen.setdefault(reference, []).extend(found.of_role(role))
    return [_sentence(_parts(found, contrasts, reference)) for reference, contrasts in chosen.items() if contrasts]


def _parts(found: PlaceResult, contrasts: Sequence[Contrast], reference: str) -> list[str]:
    """Return the arms by how they stand to a reference, which the first part names."""
    by_standing: dict[str, list[str]] = {standing: [] for standing in STANDINGS}
    for each in best_first(found, contrasts):
        by_standing[_standing(found, each)].append(_named(found, each))
    parts = []
    for standing, names in by_standing.items():
        if names:
            to = "" if parts else f" {STANDINGS[standing]} {reference}"
            parts.append(f"{standing}{to}: {listed(names)}")
    return parts


def _standing(found: PlaceResult, each: Contrast) -> str:
    """Return how an arm stands to a reference: one of :data:`STANDINGS`."""
    if found.threshold is not None:
        return {"better": "more often", "worse": "less often"}.get(each.verdict, "not told apart")
    if each.verdict != "undecided":
        return each.verdict
    if found.question is not None:
        return "undecided"
    if each.reason == DIVERGED:
        return "not judged"
    return "not told apart" if each.pairs >= FEWEST_FOR_INTERVAL else "two pairs are too few"


def _named(found: PlaceResult, each: Contrast) -> str:
    """Return an arm with its difference, and which control that is to where it has several of one kind."""
    several = [other for other in found.to_controls(each.arm) if other.role == each.role]
    name = f"{each.arm} − {each.reference}" if len(several) > 1 else each.arm
    if each.interval is None:
        return unbroken(f"{name} (adjusted {p_text(each.adjusted or 0.0)})")
    digits, notes = decimals(found), [each.reason]
    if each.verdict == "undecided" and each.adjusted is not None and each.interval.excludes_zero:
        notes.append(f"adjusted {p_text(each.adjusted)}")
    if found.question is not None:
        within_it = f"no difference beyond {number(within(each, found), digits)}"
        equal = within_it if each.verdict == "equivalent" else ""
        more = f"about {each.needed} seeds would decide" if each.needed else each.reason
        notes = [equal, count(each.pairs, "seed"), more]
    name = unbroken(f"{name} {interval_text(each.interval, digits, signed=True)}{found.metric.points}")
    said = ", ".join(filter(None, notes))
    return f"{name} ({said})" if said else name


def _too_few(found: PlaceResult) -> list[str]:
    """Say how many seeds it takes where nothing that was counted could be told apart; nothing elsewhere."""
    contrasts = found.competing
    if not contrasts or any(each.verdict != "undecided" for each in contrasts):
        return []
    runs, needed = max(arm.share.runs for arm in found.arms), fewest_seeds(found.family)
    among = f" among {found.family} differences" if found.family > 1 else ""
    few = f"With {count(runs, 'seed')} even “all succeed” cannot be told from “none succeeds”{among}"
    return [f"{few}: run at least {needed}."] if runs < needed else []


def diverged_sentence(found: PlaceResult) -> str:
    """Return which arms diverged, with a space before it; empty where none did."""
    counts = [f"{arm.name} in {len(arm.diverged)} of {count(arm.seeds, 'seed')}" for arm in found.arms if arm.diverged]
    return f" Diverged: {listed(counts)}." if counts else ""


def equal_sentence(found: PlaceResult) -> str:
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


def suggestion(found: PlaceResult) -> list[str]:
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


def best_first(found: PlaceResult, contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return differences by their size, the best for the arm first."""
    size = lambda each: each.interval.mean if each.interval else 0.0  # noqa: E731
    return sorted(contrasts, key=size, reverse=found.metric.mode == "max")
