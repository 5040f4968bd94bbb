"""The page of results of previous-token and induction heads: one section for each question that has runs.

python -m benchmarks.experiments sequences --output runs/sequences        # all of it: days of two cores
python -m benchmarks.experiments sequences --only characters recall_8_pairs --output runs/sequences
python -m benchmarks.sequences runs/sequences --output runs               # the page, from what there is
python -m benchmarks.sequences benchmarks/results/sequences --output benchmarks/results  # the one that is committed
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from benchmarks.sequence_questions import QUESTIONS
from comparison.results.controls import SAME_POSITIONS, SCRAMBLED
from comparison.results.effects import ArmResult, Effect, Effects, curves_by_seed, effects
from comparison.results.folder import Manifest, point_label, points, read_manifest
from comparison.results.headline import decimals, headline
from comparison.results.metric import Metric
from comparison.results.records import at_point, load_curves, load_results
from comparison.results.tables import interval_text, number
from comparison.results.targets import Curve, final_mean, steps_to
from structured_init.errors import StructuredInitError
from structured_init.files import write_text

WAY = (0.25, 0.5, 0.75, 1.0)  # of the baseline, from its first evaluation to its last
TITLE = "# Sequences: previous-token and induction heads"
CARD = Path(__file__).parents[1] / "docs" / "previous_token.md"
HOW = """Means over seeds ± half of the 95 % t interval. Differences are paired within a seed. **Bold** is a gain,
*italic* a loss, among all arms of its comparison (Holm's method); the others are open. Less is better in perplexity,
more in exact match. An initialization costs nothing per step, so steps stand for time wherever arms have the same
network."""


def page(folder: Path, output: Path | None = None) -> str:
    """Return the page of all comparisons that have any complete run: a summary, then question by question.

    Args:
        folder: with one comparison each, under its name.
        output: the folder that the page is written to, to which links are relative; that above ``folder`` where None.

    Raises:
        StructuredInitError: there is none.
    """
    names = [name for name in QUESTIONS if (folder / name / "comparison.json").is_file()]
    known = {name: folder / name for name in names if len(load_results(folder / name))}
    if not known:
        raise StructuredInitError(f"'{folder}' has no complete run of a comparison such as '{next(iter(QUESTIONS))}'")
    here = output or folder.parent
    card = f"What each initialization is, and when not to use it: [previous token]({os.path.relpath(CARD, here)})."
    lines = [TITLE, "", HOW, "", card, "", *summary(known), ""]
    for name, place in known.items():
        lines += section(name, place, os.path.relpath(place, here))
    return "\n".join(lines).rstrip()


def summary(known: Mapping[str, Path]) -> list[str]:
    """Return the first table: a row for each arm that is neither baseline nor control, with all its differences.

    Args:
        known: name of the question → folder of its comparison.
    """
    columns = ("question", "arm", "seeds", "baseline", "arm's", "− baseline", "− same positions", "− scrambled")
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, place in known.items():
        manifest = read_manifest(place)
        positions, scrambled = (_ending(manifest, end) for end in (SAME_POSITIONS, SCRAMBLED))
        for found in effects(load_results(place), manifest, positions, scrambled=scrambled):
            where = f"[{name}](#{name})" + (f", {point_label(found.point)}" if found.point else "")
            skipped = {found.baseline, *positions.values(), *scrambled.values()}
            lines += [_summarized(where, arm, found) for arm in found.arms if arm.name not in skipped]
    return lines


def _ending(manifest: Manifest, end: str) -> dict[str, str]:
    """Arm → its control that ends so: a committed comparison has no init reports that would tell."""
    arms = manifest["arms"]
    return {arm: f"{arm}{end}" for arm in arms if f"{arm}{end}" in arms}


def _summarized(where: str, arm: ArmResult, found: Effects) -> str:
    digits = decimals(found)
    values = {each.name: each.value for each in found.arms}
    cells = [where, f"`{arm.name}`", str(arm.seeds)]
    for name in (found.baseline, arm.name):
        value = values.get(name)
        cells.append("" if value is None else interval_text(value, digits))
    cells += [_difference(effect, digits) for effect in (arm.baseline, arm.control, arm.scrambled)]
    return "| " + " | ".join(cells) + " |"


def _difference(effect: Effect | None, digits: int) -> str:
    if effect is None:
        return ""
    mark = {True: "**", False: "*", None: ""}[effect.is_gain]
    return f"{mark}{interval_text(effect.interval, digits, signed=True)}{mark}"


def section(name: str, folder: Path, link: str) -> list[str]:
    """Return the lines of one comparison: what is asked, command, differences, targets, learning curve.

    Args:
        name: of the question.
        folder: of its comparison.
        link: to that folder, from the page.
    """
    manifest, question = read_manifest(folder), QUESTIONS[name]
    positions, scrambled = (_ending(manifest, end) for end in (SAME_POSITIONS, SCRAMBLED))
    lines = [f"## {name}", "", question.asks, ""]
    lines += ["```", manifest["command"], "```", ""] if manifest.get("command") else []
    lines += [headline(folder, manifest, positions, scrambled=scrambled), "", *targets(manifest, load_curves(folder))]
    for picture in sorted(folder.glob("figures/curves_val_*_by_step.png")):
        lines += [
            f"![Validation over optimizer steps: {', '.join(manifest['arms'])}]({link}/figures/{picture.name})",
            "",
        ]
    return lines


def targets(manifest: Manifest, curves: pd.DataFrame) -> list[str]:
    """Return a table of the steps that each arm takes to what the baseline has along its own way.

    The targets lie at a quarter, half, three quarters and all of the way from the baseline's first evaluation to its
    last, in the metric of the comparison on the validation split.

    Args:
        manifest: of the comparison.
        curves: of ``load_curves``.
    """
    lines: list[str] = []
    metric = Metric(Metric(manifest["metric"], manifest["mode"]).on_validation, manifest["mode"])
    for point in points(manifest["grid"]):
        known = at_point(curves[curves["chosen"].astype(bool)], point)
        by_step = curves_by_seed(known, metric.name)
        values = _values(by_step.get(manifest["baseline"], {}))
        if values is None:
            continue
        label = f"**{point_label(point)}**: s" if point else "S"
        wanted = [number(metric.factor * value, 2) for value in values]
        lines += [f"{label}teps to the {metric.label} that the baseline has on its way:", ""]
        lines += ["| arm | " + " | ".join(wanted) + " |", "|---" * (1 + len(wanted)) + "|"]
        for arm, of_seeds in by_step.items():
            cells = [_cell(of_seeds, value, manifest["mode"]) for value in values]
            lines.append(f"| {arm} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def _values(of_seeds: Mapping[int, Curve]) -> list[float] | None:
    """The targets: parts of the baseline's way from first to last evaluation; None without one that goes anywhere."""
    last = final_mean(of_seeds)
    starts = [curve[0][1] for curve in of_seeds.values() if curve and math.isfinite(curve[0][1])]
    if last is None or not starts or any(len(curve) < 2 for curve in of_seeds.values()):
        return None
    first = math.fsum(starts) / len(starts)
    return [first + share * (last - first) for share in WAY] if last != first else None


def _cell(of_seeds: Mapping[int, Curve], target: float, mode: str) -> str:
    """The mean over the seeds that get there, and how many do not."""
    places = [steps_to(curve, target, mode) for curve in of_seeds.values()]
    found = [place for place in places if place is not None]
    if not found:
        return "not reached"
    missing = len(places) - len(found)
    return f"{math.fsum(found) / len(found):,.0f}" + (f", not by {missing} of {len(places)}" if missing else "")


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the comparisons, as benchmarks.experiments has written them")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    write_text(options.output / "sequences.md", page(options.folder, options.output) + "\n")


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"sequences: {error}") from None
