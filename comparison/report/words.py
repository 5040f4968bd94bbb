"""What a comparison found, in sentences that say no more than the intervals do."""

from __future__ import annotations

from collections.abc import Sequence

from comparison.report.material import Material
from comparison.results.effects import Arm, Effect, Effects
from comparison.results.records import point_label
from comparison.results.tables import decimals, interval_text

LEVEL = "95 %"


def lead(material: Material) -> str:
    """Return one sentence: what was compared."""
    manifest = material.manifest
    starts, seeds = len(manifest["arms"]), len(manifest["seeds"])
    grid = f" at {len(material.points)} places of a grid" if len(material.points) > 1 else ""
    rates = ", each with the learning rate chosen for it on the validation split" if manifest["learning_rates"] else ""
    return (
        f"{count(starts, 'start')} of {title(material)}{grid}, {count(seeds, 'seed')}{rates}: "
        f"final {material.metric.words}, runs of a seed differing in their start and in nothing else."
    )


def title(material: Material) -> str:
    """Return the experiment's name."""
    names = [str(name).rpartition("/")[2].removesuffix(".yaml") for name in material.manifest["experiment"]]
    return " + ".join(names)


def findings(found: Effects) -> list[str]:
    """Return what the differences to the baseline and to the controls say, at one place of the grid."""
    if not found.arms:
        return [f"No complete run has {found.metric.words} yet."]
    if len(found.arms) == 1:
        arm = found.arms[0]
        value = interval_text(arm.value, decimals(found))
        seeds = count(len(arm.by_seed), "seed")
        return [
            f"{arm.name} reached {value}{' %' if found.metric.factor == 100 else ''} ({seeds}); nothing to compare."
        ]
    paired = [effect for arm in found.arms for effect in (arm.baseline, arm.control) if effect]
    if not paired:
        return [f"No arm shares a complete seed with {found.baseline} yet, so nothing is paired."]
    if all(effect.interval.samples == 1 for effect in paired):
        return ["There is one seed, so there is no interval: the table shows values, and nothing is shown to differ."]
    sentences = [_against(found, "baseline", f"{found.baseline}")]
    if any(arm.control for arm in found.arms):
        sentences.append(_against(found, "control", "its control, which has the same positions and no attention part"))
    intervals = sum(effect.interval.samples > 1 for effect in paired)
    if intervals > 1:
        sentences.append(
            f"These are {intervals} separate {LEVEL} intervals: about one in twenty of them misses the truth."
        )
    return [sentence for sentence in sentences if sentence]


def all_findings(material: Material) -> list[tuple[str, list[str]]]:
    """Return the place of the grid and what was found there, for every place."""
    several = len(material.points) > 1
    return [(point_label(found.point) if several else "", findings(found)) for found in material.effects]


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
    pairs = [(arm, effect) for arm in found.arms if (effect := getattr(arm, to)) and effect.interval.samples > 1]
    if not pairs:
        return ""
    gains = [pair for pair in pairs if found.metric.is_gain(pair[1].interval) is True]
    losses = [pair for pair in pairs if found.metric.is_gain(pair[1].interval) is False]
    equal = [pair for pair in pairs if pair not in gains and pair not in losses]
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
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _by(found: Effects, pairs: Sequence[tuple[Arm, Effect]]) -> str:
    digits = decimals(found)
    best_first = sorted(pairs, key=lambda pair: pair[1].interval.mean, reverse=found.metric.mode == "max")
    texts = [f"{arm.name} {interval_text(effect.interval, digits, signed=True)}" for arm, effect in best_first]
    texts = [text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts]
    unit = f" {found.metric.unit}" if found.metric.unit else ""
    return listed(texts) + unit
