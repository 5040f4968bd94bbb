"""Every verdict of the page of claims is computed again from the values per seed, in another way."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from benchmarks import claims_page
from benchmarks.claims import CLAIMS, RESULTS, WORDS, judge
from benchmarks.claims_page import BEGIN, END

ROOT = Path(CLAIMS).parents[1]
KNOWN = json.loads(CLAIMS.read_text(encoding="utf-8"))
ALL = {claim["name"]: claim for claim in KNOWN["claims"]}


@pytest.fixture(scope="module")
def verdicts():
    """What the committed comparisons say of each claim, by name; nothing of those that were not run."""
    return {claim["name"]: judge(claim) for claim in KNOWN["claims"]}


def at(column, value):
    """Which rows of a table are at a value of the grid, a number or a name."""
    return column.astype(str) == value if column.dtype.kind not in "ifb" else column.astype(float) == float(value)


def values(claim, arm):
    """Final values by seed, from the committed table, or from the file of an experiment that is no comparison."""
    if "group" in claim:
        known = json.loads((RESULTS / f"{claim['results']}.json").read_text())["runs"][claim["group"]]
        factor = 100 if "accuracy" in claim["metric"] else 1
        own = {run["seed"]: factor * run["metrics"][claim["metric"]] for run in known if run["conv"] == arm}
        return pd.Series(own)
    table = pd.read_csv(RESULTS / claim["results"] / "results.csv")
    if "chosen" in table:
        table = table[table["chosen"].astype(bool)]
    for key, value in claim.get("point", {}).items():
        table = table[at(table[key], value)]
    manifest = json.loads((RESULTS / claim["results"] / "plan.json").read_text())
    metric = claim.get("metric", manifest["metric"])
    table = table[table["seed"] >= claim.get("first_seed", 0)]
    found = table[table["arm"] == arm].set_index(["seed", *(manifest.get("grid") or ())])[metric].dropna()
    return found * (100 if "accuracy" in metric else 1)


def words_of(claim):
    """The verdict against every reference, by scipy's own tests."""
    folder = RESULTS / claim["results"] / "plan.json"
    mode = json.loads(folder.read_text())["mode"] if folder.is_file() else claim.get("mode", "max")
    sign, references = (1 if mode == "max" else -1), claim["references"]
    arm, level = values(claim, claim["arm"]), 0.05 / len(references)
    for reference in references.values():
        other = values(claim, reference)
        if "success" in claim:
            won = [int((sign * each >= sign * claim["success"] * 1).sum()) for each in (arm, other)]
            table = [[won[0], len(arm) - won[0]], [won[1], len(other) - won[1]]]
            decided = stats.fisher_exact(table).pvalue < level
            yield ("better" if won[0] / len(arm) > won[1] / len(other) else "worse") if decided else "undecided"
            continue
        both = arm.index.intersection(other.index)
        test = stats.ttest_rel(arm[both], other[both])
        ends, decided = test.confidence_interval(1 - level), test.pvalue < level
        if claim.get("looks"):  # at 10 pairs, where nothing is decided at 5
            assert len(both) == 10
            ends, decided = test.confidence_interval(1 - level / 4), test.pvalue < level / 4
        if max(abs(ends.low), abs(ends.high)) < claim["margin"]:
            yield "equivalent"
        elif decided:
            yield "better" if sign * test.statistic > 0 else "worse"
        else:
            yield "undecided"


def test_a_verdict_is_what_the_values_per_seed_say(verdicts):
    judged = {name: verdict for name, verdict in verdicts.items() if verdict is not None}
    assert len(judged) > 50
    for name, verdict in judged.items():
        assert [each.kind for each in verdict.contrasts] == list(words_of(verdict.claim)), name
        own = verdict.claim["source"].startswith("ours") and verdict.contrasts[0].kind == "better"
        assert verdict.word == ("holds" if own else WORDS[verdict.contrasts[0].kind]), name


def rates(claim):
    """The rates that were tried for each arm of a claim at its place, and those that were chosen."""
    if "sweep" in claim:
        yield from swept_apart(claim)
        return
    table = pd.read_csv(RESULTS / claim["results"] / "results.csv")
    for key, value in claim.get("point", {}).items():
        table = table[at(table[key], value)]
    for arm in (claim["arm"], *claim["references"].values()):
        own = table[table["arm"] == arm]
        yield set(own["learning_rate"].dropna()), set(own["learning_rate"][own["chosen"].astype(bool)])


def swept_apart(claim):
    """The same of arms whose rates were chosen on other seeds; one that is as good at every rate has no best."""
    table = pd.read_csv(RESULTS / claim["sweep"])
    for key, value in claim.get("point", {}).items():
        table = table[at(table[key], value)]
    chosen_by = "exact_match" if "exact_match" in table else claim["metric"].replace("test/", "val/")
    means = table.groupby(["arm", "learning_rate"])[chosen_by].mean() * (1 if claim.get("mode", "max") == "max" else -1)
    runs = json.loads((RESULTS / f"{claim['results']}.json").read_text())["runs"][claim["group"]]
    for arm in (claim["arm"], *claim["references"].values()):
        used = {run["learning_rate"] for run in runs if run["conv"] == arm}
        assert used == {means[arm].idxmax()}, arm
        if means[arm].nunique() > 1:
            yield set(means[arm].index), used


def test_a_row_says_whether_each_of_its_arms_was_swept(verdicts):
    for name, claim in ALL.items():
        table = RESULTS / claim["results"] / "results.csv"
        assert claim["rate"] in ("own", "default's")
        if verdicts[name] is not None and table.is_file() and "learning_rate" in pd.read_csv(table, nrows=0):
            swept = all(len(tried) > 1 for tried, _ in rates(claim))
            assert claim["rate"] == ("own" if swept else "default's"), name


def test_the_readme_shows_arms_whose_best_rate_lies_inside_of_what_was_tried():
    shown = [claim for claim in ALL.values() if claim.get("readme")]
    assert shown
    for claim in shown:
        for tried, (best,) in rates(claim):
            assert min(tried) < best < max(tried), claim["name"]


def git(*arguments):
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return found.stdout if found.returncode == 0 else None


def section(page, title):
    """The words of a section, without the places that its links lead to."""
    words = re.split("\n##", page.partition(f"### {title}\n")[2])[0]
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words).split())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, claim in ALL.items() if claim["rule_written"].startswith("before, ")])
def test_a_rule_that_is_said_to_be_older_than_its_runs_is_so_in_the_history(name):
    claim = ALL[name]
    commit = claim["rule_written"].removeprefix("before, ")
    if git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        pytest.skip("the history of the repository is not here")
    if "rule" in claim:  # in words, on the page of rules; the results were all made later
        place = "docs/contributing/baselines_rules.md"
        page = (ROOT / place).read_text(encoding="utf-8")
        written = git("show", f"{commit}:{place}") or git("show", f"{commit}:docs/baselines_rules.md")
        then, now = (section(each, claim["rule"]) for each in (written, page))
        then = then.partition(" structured-init compare")[0]  # a result came between the rule and its command
        assert len(then.split()) > 20
        assert now.startswith(then)
    else:
        rules = json.loads(git("show", f"{commit}:benchmarks/claims.json"))["claims"]
        rule = next(each for each in rules if each["name"] == name)
        same = ("arm", "references", "margin", "success", "point", "metric")
        assert [rule.get(key) for key in same] == [claim.get(key) for key in same]
        # Runs of another processor do not pair with those that are there, and lie beside them.
        assert claim["results"] in (rule["results"], f"{rule['results']}_codes")
    then = git("show", f"{commit}:benchmarks/results/{claim['results']}/results.csv")
    rows = pd.read_csv(io.StringIO(then)) if then else pd.DataFrame({"arm": []})
    for key, value in claim.get("point", {}).items() if then else ():
        rows = rows[at(rows[key], value)]
    assert claim["arm"] not in set(rows["arm"])


def test_the_committed_pages_are_those_that_the_command_writes(verdicts, tmp_path, monkeypatch):
    """And of the README it writes the table, and nothing else."""
    for folder in ("docs/contributing", "configs"):
        (tmp_path / folder).mkdir(parents=True)
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    (tmp_path / "README.md").write_text(f"before\n\n{BEGIN}\n\nan old table\n\n{END}\n\nafter\n", encoding="utf-8")
    monkeypatch.setattr(claims_page, "judge", lambda claim: verdicts[claim["name"]])
    claims_page.main(["--root", str(tmp_path)])
    for name in ("docs/claims.md", "docs/contributing/claims_runs.md", "configs/gains.yaml"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8"), name
    written = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert written == f"before\n\n{BEGIN}{table}{END}\n\nafter\n"


def test_a_run_without_a_number_is_no_gain(tmp_path):
    claim = {"name": "a", "results": "x", "arm": "b", "references": {"default": "a"}, "margin": 0.5}
    folder = tmp_path / "x"
    folder.mkdir()
    rows = [("a", seed, 0.5 + 0.01 * seed) for seed in range(3)] + [("b", 0, math.nan), ("b", 1, 0.9), ("b", 2, 0.91)]
    table = pd.DataFrame(rows, columns=["arm", "seed", "test/accuracy"]).assign(seconds=60.0)
    table.to_csv(folder / "results.csv", index=False, na_rep="nan")
    manifest = {"metric": "test/accuracy", "mode": "max", "command": "compare"}
    (folder / "plan.json").write_text(json.dumps(manifest))
    (folder / "results.json").write_text(json.dumps({"runs": [{}]}))
    (found,) = judge(claim, tmp_path).contrasts
    assert (found.kind, found.text, found.needed) == ("undecided", "diverged in 1 of 3 seeds", None)
