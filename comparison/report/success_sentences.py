"""What a comparison that counts successes found, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from comparison.report.sentences import REFERENCES, count, listed
from comparison.results.effects import Effects
from comparison.results.success import ArmSuccess, Contrast, Successes, all_or_nothing, fewest_seeds
from comparison.results.success_table import share_text, threshold_text
from comparison.results.tables import p_text


def success_findings(found: Successes) -> list[str]:
    """Return which arms succeed more often than the baseline and than their controls, at one place of the grid."""
    if not found.arms:
        return [f"No complete run has {found.metric.words} yet."]
    counts = [f"{arm.name} {share_text(arm.share)}" for arm in found.arms]
    sentences = [f"Runs with {threshold_text(found)}: {listed(_unbroken(counts))}."]
    sentences += _against(found, "baseline", found.baseline)
    for to, reference in REFERENCES.items():
        sentences += _against(found, to, reference)
    return sentences


def suggestion(found: Effects) -> list[str]:
    """Return a sentence where results look all or nothing and nothing counts them; none elsewhere."""
    threshold = all_or_nothing(found)
    if threshold is None:
        return []
    return [
        f"Results look all or nothing: runs of one arm end far apart with none in between, so a mean describes "
        f"no run; --success {threshold:g} counts the runs that succeed."
    ]


def _against(found: Successes, to: str, reference: str) -> list[str]:
    pairs: list[tuple[ArmSuccess, Contrast]] = [(arm, each) for arm in found.arms if (each := getattr(arm, to))]
    if not pairs:
        return []
    parts = []
    for word, wanted in ((f"more often than {reference}", True), (f"less often than {reference}", False)):
        chosen = [f"{arm.name} (adjusted {p_text(each.adjusted)})" for arm, each in pairs if each.is_gain is wanted]
        parts += [f"{word}: {listed(_unbroken(chosen))}"] if chosen else []
    same = [arm.name for arm, each in pairs if each.is_gain is None]
    parts += [f"not told apart{'' if parts else f' from {reference}'}: {listed(same)}"] if same else []
    text = "; ".join(parts)
    return [text[0].upper() + text[1:] + ".", *_too_few(found, pairs)]


def _too_few(found: Successes, pairs: Sequence[tuple[ArmSuccess, Contrast]]) -> list[str]:
    """Say how many seeds it takes, where not even all against none would be told apart."""
    shares = {arm.name: arm.share for arm in found.arms}
    runs = max(min(shares[arm.name].runs, shares[each.reference].runs) for arm, each in pairs)
    needed = fewest_seeds(len(pairs))
    if runs >= needed:
        return []
    return [
        f"With {count(runs, 'seed')} even “all succeed” cannot be told from “none succeeds”"
        f"{f' among {len(pairs)} arms' if len(pairs) > 1 else ''}: run at least {needed}."
    ]


def _unbroken(texts: Sequence[str]) -> list[str]:
    return [text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts]
