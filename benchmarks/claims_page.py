"""The page of claims, and its short form in the README, from committed comparisons.

    python -m benchmarks.claims_page

It writes ``docs/claims.md``, ``docs/contributing/claims_runs.md``, ``configs/gains.yaml`` and what stands between the
two comments of the README.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.claims import CLAIMS, LEVEL, OWN, WORDS, Contrast, Verdict, among_all, judge
from comparison.results.contrasts import GAINS
from structured_init.util.files import write_text

ROOT = Path(__file__).parents[1]
ORDER = ("replicates", OWN, *tuple(WORDS.values())[1:])
STRUCTURE = ("shown", "not shown", "refuted", "no control")
# The claims of the README, in its order, and what it says of their runs.
SHORT = {
    "induction_modern_recall_16_convolution": "Llama 2×64, 16 pairs in 128 tokens, 800 steps; tests to 512 tokens",
    "induction_modern_recall": "Llama 2×64, 8 pairs in 64 tokens, 600 steps",
    "uniform_projections_modern_characters": "Llama 4×128, characters of Shakespeare, 600 steps",
    "previous_token_modern_characters": "Llama 4×128, characters of Shakespeare, 600 steps",
    "codes_size_modern_cifar10": "ViT 96/6, 10 % of CIFAR-10, 15 epochs",
    "mimetic_modern_cifar10": "ViT 96/6, 10 % of CIFAR-10, 15 epochs",
}
# What initializations are called now whose arms in committed comparisons have another name.
NOW = {"mimetic": "mimetic_paper", "mimetic_host": "mimetic"}
COUNTED = {
    "replicates": "made by others are replicated",
    OWN: "of our own hold",
    "contrary": "have a contrary result",
    "equivalent to zero": "have no effect beyond δ",
    "undecided": "are undecided",
}
BEGIN, END = "<!-- claims: python -m benchmarks.claims_page -->", "<!-- end of claims -->"


def page(claims: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """Return the page of verdicts in Markdown."""
    adjusted = among_all(verdicts)
    kept = sum(each.gain == "shown" and adjusted[each.claim["name"]] < LEVEL for each in verdicts)
    named = {verdict.claim["name"]: verdict for verdict in verdicts}
    counts = {word: sum(verdict.word == word for verdict in verdicts) for word in ORDER}
    *most, last = [f"{count} {COUNTED[word]}" for word, count in counts.items() if count]
    said = f"{', '.join(most)} and {last}" if most else last
    halves = Counter(verdict.structure for verdict in verdicts if verdict.gain == "shown")
    due = ", ".join(f"{word} for {halves[word]}" for word in STRUCTURE[:-1] if halves[word])
    lines = [
        "# Claims",
        "",
        f"What papers and we claim about initializations, and what our runs show. Of {len(verdicts)} claims, {said}. "
        f"{halves.total()} have a gain over their first reference. {kept} of these gains are also shown where all rows "
        f"are judged together. That the gain is due to the structure is {due}; "
        f"for {halves[STRUCTURE[-1]]} no control was run. "
        "[How each was run](contributing/claims_runs.md) has the commands.",
        "",
        f"**The rule.** {claims['rule']}",
        "",
        "A gain over the usual initialization may come from the positions that are written, from the size of the "
        "weights or from their alignment. Controls tell these apart: arms with the same positions, and arms with the "
        "same weights scrambled. Networks and data are small and training is short, so a verdict holds at this scale.",
        "",
        "- *Published* is what the paper reports, *our runs* the setting in which we tested it.",
        "- *Difference* is the arm minus its first reference: the host's default, unless another is named. *Gain* is "
        "its verdict. Single intervals, as in [methods](methods.md) and the pages of methods, are narrower.",
        "- *p, all rows together* belongs to the same difference, corrected for all rows of this page (Holm 1979). "
        "A verdict with p above 0.05 is marked *not shown*.",
        "- *Due to structure* is shown where every control is exceeded as well. It is refuted where a control gains "
        "as much, within δ, or more. It is not shown where a difference to a control is undecided. *Controls* has the "
        "difference to each control that we ran.",
        "- *Baseline of today* has the result of the same question with Muon, rotary positions or normalized queries "
        "([what these are worth](evidence.md)); – where none was asked.",
        "- *Rule before*: margin, references and test were committed before the runs, in the commit that is named. "
        "Where nothing is said, the runs are older than this page.",
        "",
        "| claim | published | our runs | difference | gain | p, all rows together | due to structure | "
        "controls | baseline of today | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_row(each, adjusted[each.claim["name"]], _today(each, named)) for each in _ordered(verdicts)),
    ]
    return "\n".join(lines) + "\n"


def runs_page(claims: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """Return the page of what has not run yet, and of how the rest was run, in Markdown."""
    said = (
        "This page lists the runs that decide each row of [the claims](../claims.md), and for an undecided difference "
        "the number of seeds at which its interval would be ± δ. `--controls auto` may add controls that a recorded "
        "comparison did not have; `--controls none` with the recorded arms leaves them out. Commands of what was run "
        "name it as it was called then: [what it is called today](benchmarks.md#names-in-older-results). This page and "
        "the claims are written by"
    )
    head = ["# How each claim was run", "", said, "", "    python -m benchmarks.claims_page", ""]
    head += [*_waiting(claims, verdicts), "## Run", ""]
    return "\n".join(head + [line for verdict in verdicts for line in _details(verdict)]) + "\n"


def _today(verdict: Verdict, named: Mapping[str, Verdict]) -> str:
    """Say what the same question gives over the baseline of today."""
    if "today" not in verdict.claim:
        return "–"
    now = named.get(verdict.claim["today"])
    if now is None:
        return "not run"
    network = now.claim["setting"].partition(",")[0]
    return f"**{now.gain}**: {now.contrasts[0].text} ({network})"


def _waiting(claims: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[str]:
    """List the claims that have no runs yet, whose rule is written down already."""
    judged = [verdict.claim["name"] for verdict in verdicts]
    missing = [claim for claim in claims.get("claims", ()) if claim["name"] not in judged]
    rows = []
    for claim in missing:
        against = f"against {', '.join(claim['references'])}; {_bound(claim)}"
        rows += [f"**{claim['name']}**: {claim['claim']} {claim['setting']}; {against}. {claim['cost']}", ""]
        rows += [f"    {claim['command']}", ""]
    head = "Written down before any run: each claim, its references, its margin δ, its cost and its command."
    return ["## Not run yet", "", head, "", *rows] if rows else []


def _bound(claim: Mapping[str, Any]) -> str:
    return f"success {claim['success']:g}" if "success" in claim else f"δ {claim['margin']:g}"


def short(verdicts: Sequence[Verdict]) -> str:
    """Return the table of the README: a line for each claim of :data:`SHORT`, without settings of runs."""
    lines = ["| claim | setting | difference | gain | due to structure |", "|---|---|---|---|---|"]
    adjusted = among_all(verdicts)
    for verdict in sorted((each for each in verdicts if each.claim["name"] in SHORT), key=_place):
        first, name, arm = verdict.contrasts[0], verdict.claim["name"], verdict.claim["arm"]
        difference = f"{first.text}{_unit(verdict)} (− {first.name})"
        gain = _alone(verdict, adjusted).replace(verdict.gain, f"**{verdict.gain}**", 1)
        structure = _halves(verdict, numbers=True)[1]
        cells = [
            f"`{NOW.get(arm, arm)}`: {verdict.claim['claim'].removesuffix(', under Muon.')}",
            SHORT[name],
            difference,
            gain,
            structure,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _place(verdict: Verdict) -> int:
    return list(SHORT).index(verdict.claim["name"])


def _halves(verdict: Verdict, *, numbers: bool = False) -> tuple[str, str]:
    """Return both halves; with the difference to every control, or with the names of those that are not exceeded."""
    if verdict.structure not in STRUCTURE:
        return f"**{verdict.gain}**", "–"
    controls = [f"{each.text} (− {each.name})" for each in verdict.contrasts[1:]] if numbers else verdict.missing
    return f"**{verdict.gain}**", f"**{verdict.structure}**{': ' if controls else ''}{', '.join(controls)}"


def _alone(verdict: Verdict, adjusted: Mapping[str, float]) -> str:
    """Return whether a gain is shown, and whether that is so by itself alone."""
    p = adjusted[verdict.claim["name"]]
    alone = verdict.gain != GAINS["undecided"] and p >= LEVEL
    return f"{verdict.gain} by itself, p = {_p(p)} among all claims" if alone else verdict.gain


def gains(verdicts: Sequence[Verdict]) -> str:
    """Return ``configs/gains.yaml``: what the first row about every initialization says, for ``list``."""
    named, rows, adjusted = {verdict.claim["name"]: verdict for verdict in verdicts}, {}, among_all(verdicts)
    for verdict in verdicts:
        first, claim = verdict.contrasts[0], verdict.claim
        arm = NOW.get(claim["arm"], claim["arm"])
        today = _today(verdict, named)
        if (now := named.get(claim.get("today"))) is not None:
            said = f"{_alone(now, adjusted)}: {now.contrasts[0].text}{_unit(now)}"
            today = f"{said}. {now.claim['setting']}".replace("*", "")
        if arm in rows and rows[arm]["today"] in ("–", "not run"):
            rows[arm]["today"] = today if today != "–" else rows[arm]["today"]
        if arm in rows and "Muon" in claim["setting"] and _alone(verdict, adjusted) == GAINS["better"]:
            before = rows[arm]["today"]
            more = f"shown: {first.text}{_unit(verdict)} (− {first.name}). {claim['setting']}"
            rows[arm]["today"] = more if before == "–" else f"{before}; {more}"
        if arm not in rows and (ROOT / "configs" / "init" / f"{arm}.yaml").is_file():
            rows[arm] = {
                "gain": f"{first.text}{_unit(verdict)} (− {first.name}): {_alone(verdict, adjusted)}. "
                f"{claim['setting']}",
                "controls": ": ".join(part.replace("*", "") for part in _halves(verdict, numbers=True)[1:]),
                "today": today,
            }
    text = yaml.safe_dump(rows, allow_unicode=True, sort_keys=True, width=1000)
    return f"# Written by python -m benchmarks.claims_page, from the claims; structured-init list prints it.\n{text}"


def into(readme: str, table: str) -> str:
    """Return the README with another table between its two comments."""
    head, _, rest = readme.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def _ordered(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(verdicts, key=lambda verdict: (ORDER.index(verdict.word), verdict.structure != "shown"))


def _unit(verdict: Verdict) -> str:
    metric = verdict.committed.metric
    return "" if "success" in verdict.claim else f" {metric.unit or metric.words.partition(' ')[2]}"


def _row(verdict: Verdict, adjusted: float, today: str) -> str:
    claim, (first, *others) = verdict.claim, verdict.contrasts
    rule = [] if "success" in claim else [_bound(claim)]
    rule += [] if claim["rule_written"] == "after" else [f"rule {claim['rule_written']}"]
    gain, structure = _halves(verdict)
    lost = GAINS["undecided"]
    cells = [
        f"{claim['claim']} ({claim['source']})",
        claim["published"] or "–",
        f"{claim['setting']}, {verdict.seeds} seeds",
        f"{first.text}{_unit(verdict)}" + ("" if first.name == "default" else f" (− {first.name})"),
        gain,
        _p(adjusted) if adjusted < LEVEL or verdict.gain == lost else f"{lost}, {_p(adjusted)}",
        structure,
        "; ".join(f"{each.text} (− {each.name}, {each.kind})" for each in others) or "–",
        today,
        ", ".join([verdict.word, *rule]),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _details(verdict: Verdict) -> list[str]:
    claim, runs, known = verdict.claim, verdict.committed, verdict.committed.environment
    named = ("python", "torch", "timm", "transformers", "lightning")
    versions = ", ".join(f"{key} {known[key]}" for key in named if key in known)
    prices = [f"{_price(verdict, each)}" for each in verdict.contrasts if each.kind == "undecided"]
    return [
        f"**{claim['name']}**: [{claim['results']}](../../benchmarks/results/{runs.page}), "
        f"{runs.metric.name}, {verdict.minutes:.0f} minutes of one thread for these arms on "
        f"{known.get('processor', 'an unnamed processor')}; {versions}. {' '.join(prices)}".rstrip(),
        "",
        *(f"    {line}" for line in runs.command.splitlines()),
        "",
    ]


def _price(verdict: Verdict, contrast: Contrast) -> str:
    """Say what it would cost to decide a difference."""
    if contrast.needed is None:
        return f"Against {contrast.name}: {contrast.text}; equal shares are decided by no number of runs."
    price = f"{_hours(verdict.minutes / verdict.runs * contrast.needed)} on one thread"
    if "success" in verdict.claim:
        return f"Against {contrast.name}, such shares are decided by about {contrast.needed} runs of each: {price}."
    margin = f"± {verdict.claim['margin']:g}"
    return f"Against {contrast.name}, an interval of {margin} needs about {contrast.needed} seeds: {price}."


def _hours(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write all four."""
    parser = argparse.ArgumentParser(description="Write the page of claims from committed comparisons.")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository; else where this file is")
    options = parser.parse_args(arguments)
    claims = json.loads(CLAIMS.read_text(encoding="utf-8"))
    verdicts = [verdict for claim in claims["claims"] if (verdict := judge(claim)) is not None]
    write_text(options.root / "docs" / "claims.md", page(claims, verdicts))
    write_text(options.root / "docs" / "contributing" / "claims_runs.md", runs_page(claims, verdicts))
    write_text(options.root / "configs" / "gains.yaml", gains(verdicts))
    readme = options.root / "README.md"
    write_text(readme, into(readme.read_text(encoding="utf-8"), short(verdicts)))


if __name__ == "__main__":
    main()
