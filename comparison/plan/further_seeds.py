"""Which runs a comparison adds until it is decided: further seeds of what is undecided, beside what it refers to."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from comparison.contrasts.contrasts import LOOKS, Contrast
from comparison.contrasts.place import PlaceResult
from comparison.runs.folder import Choices, Manifest, Point, Question, choice_name
from structured_init.util.errors import StructuredInitError

FIRST_LOOK = [0, 1, 2, 3, 4]

Added = dict[str, Any]  # a run that was added: arm, seed, point, learning_rate


def question_from(options: argparse.Namespace, known: Manifest) -> Question | None:
    """Return what is to be decided: as given, else as the folder has it."""
    question = known.question
    if options.precision is not None or options.margin is not None:
        question = Question(options.precision, options.margin, question.most if question else LOOKS[-1])
    if options.max_seeds is None:
        return question
    if question is None:
        raise StructuredInitError("--max-seeds limits what --precision or --margin asks for: give one of them")
    return replace(question, most=options.max_seeds)


def undecided(found: Sequence[PlaceResult]) -> list[Contrast]:
    """Return every difference that is judged and not decided."""
    return [each for place in found for each in place.competing if each.verdict == "undecided"]


def further_runs(
    manifest: Manifest, found: Sequence[PlaceResult], choices: Choices, left_out: Collection[str] = ()
) -> list[Added]:
    """Return the runs to add before the next look; none where all is decided, or more seeds would not help.

    An arm that is undecided takes the seeds that it lacks for the next look, and so does what it is held against.
    """
    question = manifest.question
    assert question is not None
    asked = {(arm, seed, point) for arm, seed, point, _ in manifest.asked_runs()}
    pool = manifest.asked_seeds()
    pool += range(max(pool) + 1, max(pool) + 1 + question.most)
    new: set[tuple[int, str, Point]] = set()
    for each in undecided(found):
        if not each.next_look or each.arm in left_out or each.reference in left_out:
            continue
        untaken = [seed for seed in pool if (each.arm, seed, each.place) not in asked]
        room = question.most - (len(pool) - len(untaken))
        for seed in untaken[: max(0, min(room, each.next_look - len(each.by_seed)))]:
            new |= {(seed, each.arm, each.place), (seed, each.reference, each.place)}
    added = []
    order = list(manifest.arms)
    for seed, arm, point in sorted(new, key=lambda run: (run[0], run[2], order.index(run[1]))):
        if (arm, seed, point) not in asked:
            rate = choices.get(choice_name(point), {}).get(arm, {}).get("chosen")
            added.append({"arm": arm, "seed": seed, "point": dict(point), "learning_rate": rate})
    return added


def progress_text(found: Sequence[PlaceResult], added: Sequence[Added]) -> str:
    """Return one line: what is undecided, and what comes next."""
    still = undecided(found)
    if not still:
        return "All differences are decided."
    more = f"next runs: {len(added)}" if added else "no further seed would decide them within the limit"
    return f"{len(still)} of {sum(len(place.competing) for place in found)} differences are undecided: {more}."
