"""The page of claims, and its short form in the README, from committed comparisons.

    python -m benchmarks.claims_page

It writes ``docs/claims.md``, ``docs/contributing/claims_runs.md``, ``configs/gains.yaml`` and what stands between the
two comments of the README.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.claims import CLAIMS, LEVEL, OWN, Contrast, Verdict, among_all, judge
from comparison.contrasts.contrasts import GAINS
from structured_init.util.files import write_text

ROOT = Path(__file__).parents[1]
MARKS = {"shown": "✓", "refuted": "✗", "not shown": "?", "no control": "?"}
# What initializations are called now whose arms in committed comparisons have another name.
NOW = {"mimetic": "mimetic_paper", "mimetic_host": "mimetic"}
TITLES = {
    "replicates": "Claims of papers that are replicated",
    OWN: "Claims of our own that hold",
    "contrary": "Contrary results",
    "equivalent to zero": "No effect",
    "undecided": "Undecided",
}
BEGIN, END = "<!-- claims: python -m benchmarks.claims_page -->", "<!-- end of claims -->"


def page(claims: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """Return the page of verdicts in Markdown: a table for each verdict, whose rows unfold."""
    adjusted = among_all(verdicts)
    shown = [each for each in verdicts if each.gain == "shown"]
    kept = sum(adjusted[each.claim["name"]] < LEVEL for each in shown)
    due = sum(each.structure == "shown" for each in shown)
    lines = [
        "# Claims",
        "",
        f"What papers and we claim about initializations, and what our runs show, in {len(verdicts)} rows. "
        f"{len(shown)} have a gain over their baseline; {kept} of these gains are also shown where all rows are judged "
        f"together. {due} gains go beyond their controls. Networks and data are small and training is short. "
        "[Evidence](evidence.md) is the short form, and [how each was run](contributing/claims_runs.md) has the "
        "commands.",
        "",
        "- *Difference* is the arm minus its baseline: the default, unless another is named.",
        "- *Gain* is its verdict: shown, not shown, or refuted where the arm is worse, or equal within the margin δ. "
        "*By itself* marks a verdict that does not hold where all rows are judged together.",
        "- *Beyond its controls* is shown where the arm is also better than every control, refuted where a control "
        "gains as much or more, and not shown where a difference to a control is undecided.",
        "- *At the default's rate*: all arms have one learning rate, the preset's or the best of the default's sweep. *"
        "Own rates*: each arm has the best of its sweep by validation; *of other seeds* where no seed here chose.",
        "- *More* has the p-value among all rows (Holm 1979), what was published, the controls and the margin. *Rule "
        "before* names the commit in which margin, controls and test were written down before the runs.",
        "- *The same* claim was asked in another setting.",
        "",
        f"**The rule.** {claims['rule']}",
    ]
    for word, title in TITLES.items():
        group = sorted((each for each in verdicts if each.word == word), key=_place)
        if group:
            lines += ["", f"## {title}", "", "| claim | difference | gain | beyond its controls |", "|---|---|---|---|"]
            before = None
            for each in group:
                asked = each.claim["claim"]
                lines.append(_row(each, adjusted, "The same." if asked == before else asked))
                before = asked
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
    """Return the table of the README: a line for each claim that it shows, with marks for both verdicts."""
    adjusted = among_all(verdicts)
    lines = ["| method | network, data, optimizer | gain | better than default | beyond its controls |"]
    lines.append("|---|---|---|---|---|")
    for verdict in verdicts:
        claim = verdict.claim
        if not claim.get("readme"):
            continue
        method = f"`{NOW.get(claim['arm'], claim['arm'])}`"
        structure = MARKS.get(verdict.structure, "–")
        gain = f"{verdict.contrasts[0].text}{_unit(verdict)}"
        mark = f"({MARKS[verdict.gain]})" if _is_alone(verdict, adjusted) else MARKS[verdict.gain]
        lines.append(f"| {method} | {claim['short']} | {gain} | {mark} | {structure} |")
    return "\n".join(lines)


def _halves(verdict: Verdict, *, numbers: bool = False) -> tuple[str, str]:
    """Return both halves; with the difference to every control, or with the names of those that are not exceeded."""
    if verdict.structure not in MARKS:
        return f"**{verdict.gain}**", "–"
    controls = [f"{each.text} (− {each.name})" for each in verdict.contrasts[1:]] if numbers else verdict.missing
    return f"**{verdict.gain}**", f"**{verdict.structure}**{': ' if controls else ''}{', '.join(controls)}"


def _is_alone(verdict: Verdict, adjusted: Mapping[str, float]) -> bool:
    """Return whether a verdict is decided by itself, and not where all claims are judged together."""
    return verdict.gain != GAINS["undecided"] and adjusted[verdict.claim["name"]] >= LEVEL


def _alone(verdict: Verdict, adjusted: Mapping[str, float]) -> str:
    """Return whether a gain is shown, and whether that is so by itself alone."""
    p = adjusted[verdict.claim["name"]]
    return f"{verdict.gain} by itself, p = {_p(p)} among all claims" if _is_alone(verdict, adjusted) else verdict.gain


def gains(verdicts: Sequence[Verdict]) -> str:
    """Return ``configs/gains.yaml``: what the first row about every initialization says, for ``list``."""
    named, rows, adjusted = {verdict.claim["name"]: verdict for verdict in verdicts}, {}, among_all(verdicts)
    over_today: dict[str, list[Verdict]] = {}  # what is said over the baseline of today, by initialization
    for verdict in verdicts:
        first, claim = verdict.contrasts[0], verdict.claim
        arm = NOW.get(claim["arm"], claim["arm"])
        today = _today(verdict, named)
        if (now := named.get(claim.get("today"))) is not None:
            said = f"{_alone(now, adjusted)}: {now.contrasts[0].text}{_unit(now)}"
            today = f"{said}. {now.claim['setting']}".replace("*", "")
        if now is not None and not over_today.get(arm):
            over_today[arm] = [now]
        if arm in rows and rows[arm]["today"] in ("–", "not run"):
            rows[arm]["today"] = today if today != "–" else rows[arm]["today"]
        if arm in rows and "Muon" in claim["setting"] and _alone(verdict, adjusted) == GAINS["better"]:
            before = rows[arm]["today"]
            more = f"shown: {first.text}{_unit(verdict)} (− {first.name}). {claim['setting']}"
            rows[arm]["today"] = more if before == "–" else f"{before}; {more}"
            over_today.setdefault(arm, []).append(verdict)
        if arm not in rows and (ROOT / "configs" / "init" / f"{arm}.yaml").is_file():
            rows[arm] = {
                "gain": f"{first.text}{_unit(verdict)} (− {first.name}): {_alone(verdict, adjusted)}. "
                f"{claim['setting']}",
                "controls": ": ".join(part.replace("*", "") for part in _halves(verdict, numbers=True)[1:]),
                "today": today,
                "best": _best([verdict]),
            }
    for arm in over_today.keys() & rows.keys():
        rows[arm]["best"] = _best(over_today[arm])
    text = yaml.safe_dump(rows, allow_unicode=True, sort_keys=True, width=1000)
    return f"# Written by python -m benchmarks.claims_page, from the claims; structured-init list prints it.\n{text}"


def _best(verdicts: Sequence[Verdict]) -> str:
    """Return the difference of the first verdict that is decided, with its sign and unit; else of the first, and ``?``.

    Of runs that succeed or fail it is how many of them succeed.
    """
    best = min(verdicts, key=lambda each: each.gain == GAINS["undecided"])
    number = re.split(" ± | against ", best.contrasts[0].text)[0]
    return f"{number}{_unit(best)}{'?' if best.gain == GAINS['undecided'] else ''}"


def into(readme: str, table: str) -> str:
    """Return the README with another table between its two comments."""
    head, _, rest = readme.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def _unit(verdict: Verdict) -> str:
    metric = verdict.committed.metric
    return "" if "success" in verdict.claim else f" {metric.unit or metric.words.partition(' ')[2]}"


def _place(verdict: Verdict) -> tuple[bool, str]:
    """Put first what goes beyond its controls, and beside each other the rows of one claim."""
    return verdict.structure != "shown", verdict.claim["claim"]


def _row(verdict: Verdict, adjusted: Mapping[str, float], asked: str) -> str:
    claim, (first, *others) = verdict.claim, verdict.contrasts
    gain, structure = _halves(verdict)
    if _is_alone(verdict, adjusted):
        gain = f"{gain} by itself"
    more = [claim["source"], f"p = {_p(adjusted[claim['name']])}"]
    if claim["published"]:
        more.append(f"published: {claim['published']}")
    if others:
        more.append("controls: " + ", ".join(f"{each.text} (− {each.name})" for each in others))
    if "success" not in claim:
        more.append(_bound(claim))
    if claim["rule_written"] != "after":
        more.append(f"rule {claim['rule_written']}")
    more.append("each arm at its own rate" if claim["rate"] == "own" else f"all arms at the {claim['rate']} rate")
    more_html = f"<details><summary>more</summary>{'; '.join(more)}</details>"
    cells = [
        f"{asked} *{claim['setting']}, {verdict.seeds} seeds.* {more_html}",
        f"{first.text}{_unit(verdict)}" + ("" if first.name == "default" else f" (− {first.name})"),
        gain,
        structure,
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
