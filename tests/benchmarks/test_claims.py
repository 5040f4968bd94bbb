"""Every verdict of the page of claims is computed again from the values per seed, in another way."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from scipy import stats

from benchmarks.claims import CLAIMS, RESULTS, WORDS, Contrast, Verdict, among_all, judge, runs_for
from benchmarks.claims_page import SHORT, gains, into, page, runs_page, short
from comparison.results.controls import SAME_POSITIONS, SCRAMBLED
from comparison.results.targets import share
from comparison.run.arms import parse_arms

ROOT = Path(CLAIMS).parents[1]
KNOWN = json.loads(CLAIMS.read_text(encoding="utf-8"))
VERDICTS = {claim["name"]: verdict for claim in KNOWN["claims"] if (verdict := judge(claim)) is not None}
ALL = {claim["name"]: claim for claim in KNOWN["claims"]}
JUDGED = {name: verdict.claim for name, verdict in VERDICTS.items()}


def at(column, value):
    """Which rows of a table are at a value of the grid, a number or a name."""
    return column.astype(str) == value if column.dtype.kind not in "ifb" else column.astype(float) == float(value)


def values(claim, arm):
    """Final values by seed, from the committed table, or from the file of an experiment that is no comparison."""
    if "group" in claim:
        known = json.loads((RESULTS / f"{claim['results']}.json").read_text())["runs"][claim["group"]]
        own = {run["seed"]: 100 * run["metrics"][claim["metric"]] for run in known if run["conv"] == arm}
        return pd.Series(own)
    table = pd.read_csv(RESULTS / claim["results"] / "results.csv")
    if "chosen" in table:
        table = table[table["chosen"].astype(bool)]
    for key, value in claim.get("point", {}).items():
        table = table[at(table[key], value)]
    manifest = json.loads((RESULTS / claim["results"] / "comparison.json").read_text())
    metric = claim.get("metric", manifest["metric"])
    table = table[table["seed"] >= claim.get("first_seed", 0)]
    found = table[table["arm"] == arm].set_index(["seed", *(manifest.get("grid") or ())])[metric].dropna()
    return found * (100 if "accuracy" in metric else 1)


def words_of(claim):
    """The verdict against every reference, by scipy's own tests."""
    folder = RESULTS / claim["results"] / "comparison.json"
    mode = json.loads(folder.read_text())["mode"] if folder.is_file() else "max"
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
        if claim.get("looks"):  # the boundary is 2.9 · (10 / 40)^−0.1 = 3.3 normal deviations at 10 of 40 pairs
            ends, decided = SimpleNamespace(low=-math.inf, high=math.inf), test.pvalue < 2 * stats.norm.sf(3.3)
        if max(abs(ends.low), abs(ends.high)) < claim["margin"]:
            yield "equivalent"
        elif decided:
            yield "better" if sign * test.statistic > 0 else "worse"
        else:
            yield "undecided"


@pytest.mark.parametrize("name", JUDGED)
def test_a_verdict_is_what_the_values_per_seed_say(name):
    verdict = VERDICTS[name]
    assert [each.kind for each in verdict.contrasts] == list(words_of(JUDGED[name]))
    own = verdict.claim["source"].startswith("ours") and verdict.contrasts[0].kind == "better"
    assert verdict.word == ("holds" if own else WORDS[verdict.contrasts[0].kind])


# Two runs are of one task where these and the steps are the same, whatever the network and the optimizer. To have no
# skip connections, tokens of another size or another state is a question of its own.
DATA = ("name", "config", "tokenizer", "vocab_size", "block_size", "fraction", "batch_size")
DATA += ("task", "task_args", "min_length", "max_length", "context_length")
QUESTIONS = ("attention_skip", "patch_size", "state_size")


def groups(folder):
    """The committed runs of a comparison by task, place of the grid and arm: values by seed, larger is better."""
    manifest = json.loads((folder / "comparison.json").read_text())
    table = pd.read_csv(folder / "results.csv")
    table = table[table["chosen"].astype(bool)] if "chosen" in table else table
    metric, sign = manifest["metric"], 1 if manifest["mode"] == "max" else -1
    for place, rows in table.groupby([*(manifest["grid"] or ()), "steps", "arm"]):
        *point, steps, arm = place
        known = {**manifest["configuration"], **dict(zip(manifest["grid"], point, strict=True))}
        known = {key.replace(".init_args", ""): value for key, value in known.items()}
        network = known["model.network_args"] or {}
        network = json.loads(network) if isinstance(network, str) else network
        network |= {key.rpartition(".")[2]: value for key, value in known.items() if ".network_args." in key}
        task = [metric, steps, *(known.get(f"data.{key}") for key in DATA), *map(network.get, QUESTIONS)]
        at_point = {key: str(value) for key, value in zip(manifest["grid"], point, strict=True)}
        yield "; ".join(map(str, task)), at_point, arm, sign * rows.set_index("seed")[metric].dropna()


COMMITTED = {
    str(file.parent.relative_to(RESULTS)): list(groups(file.parent))
    for file in sorted(RESULTS.rglob("comparison.json"))
    if (file.parent / "results.csv").is_file()
}
DEFAULTS = {}  # task → (comparison, values) of every default
for where, found in COMMITTED.items():
    for task, _, arm, own in found:
        if arm == "default":
            DEFAULTS.setdefault(task, []).append((where, own))


def exceeds(one, other):
    """Welch's test at 95 %, one-sided in what is asked; where nothing varies, the mean alone."""
    if len(one) < 2 or len(other) < 2 or one.mean() <= other.mean():
        return False
    spread = one.var() / len(one) + other.var() / len(other)
    known = [number for each in (one, other) for number in (each.mean(), each.std(), len(each))]
    return spread == 0 or stats.ttest_ind_from_stats(*known, equal_var=False).pvalue < 0.05


def beating(claim):
    """The comparisons whose default is better than what a claim is made against first, on the same task."""
    against = next(iter(claim["references"].values()))
    rows, point = COMMITTED.get(claim["results"], ()), claim.get("point", {})
    own = [(task, values) for task, place, arm, values in rows if arm == against and point.items() <= place.items()]
    return {where for task, values in own for where, other in DEFAULTS.get(task, ()) if exceeds(other, values)}


BEATEN = {name: where for name, claim in JUDGED.items() if (where := beating(claim))}


def test_the_tasks_of_comparisons_are_told_apart_and_found_again():
    tasks = {where: {task for task, *_ in found} for where, found in COMMITTED.items()}
    assert tasks["modern/characters"] == tasks["sequences/characters"] != tasks["sequences/characters_long"]
    assert tasks["modern/digits"] == tasks["compare_digits"] != tasks["pixels_digits"]
    assert tasks["compare_digits"].isdisjoint(tasks["skipless_digits"])
    assert tasks["sequences/bpe_500"].isdisjoint(tasks["sequences/bpe_2000"])


@pytest.mark.parametrize("name", BEATEN)
def test_a_claim_whose_baseline_another_default_beats_says_what_is_left_over_that_one(name):
    """A row that ``today`` names stands on a baseline that nothing beats, or has not been run yet."""
    today = JUDGED[name].get("today")
    assert today is not None, f"the default of {', '.join(BEATEN[name])} is better than the baseline of {name}"
    assert today == "not run" or (today in ALL and today not in BEATEN)


def test_no_row_of_the_readme_stands_on_a_beaten_baseline():
    assert {name: BEATEN[name] for name in SHORT if name in BEATEN} == {}


def git(*arguments):
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return found.stdout if found.returncode == 0 else None


@pytest.mark.parametrize("name", [name for name, claim in ALL.items() if claim["rule_written"].startswith("before, ")])
def test_a_rule_that_is_said_to_be_older_than_its_runs_is_so_in_the_history(name):
    claim = ALL[name]
    commit = claim["rule_written"].removeprefix("before, ")
    if git("cat-file", "-e", f"{commit}^{{commit}}") is None:
        pytest.skip("the history of the repository is not here")
    if "rule" in claim:  # in words, on the page of rules; the results were all made later
        page = (ROOT / "docs" / "baselines_rules.md").read_text(encoding="utf-8")
        written = git("show", f"{commit}:docs/baselines_rules.md")
        then, now = (each.partition(f"### {claim['rule']}\n")[2].split() for each in (written, page))
        assert len(then) > 20
        length = " ".join(then).index(" structured-init compare")  # a result came between the rule and its command
        assert " ".join(now).startswith(" ".join(then)[:length])
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


def test_gains_of_all_rows_are_adjusted_together_by_holms_method():
    adjusted, raw = among_all(list(VERDICTS.values())), {name: each.contrasts[0].p for name, each in VERDICTS.items()}
    largest = 0.0
    for place, name in enumerate(sorted(raw, key=raw.get)):
        largest = max(largest, min(1.0, raw[name] * (len(raw) - place)))
        assert adjusted[name] == pytest.approx(largest)
    arm, other = (values(JUDGED["covariance_convmixer"], each) for each in ("covariance", "default"))
    assert raw["covariance_convmixer"] == pytest.approx(stats.ttest_rel(arm, other).pvalue)


def test_an_undecided_difference_says_how_many_seeds_it_takes():
    for name, claim in JUDGED.items():
        for each in VERDICTS[name].contrasts:
            if each.kind == "undecided" and "success" not in claim:
                assert each.needed > 2


@pytest.mark.parametrize(
    ("ours", "theirs", "runs"), [((3, 5), (0, 5), 8), ((10, 20), (7, 20), 87), ((3, 5), (3, 5), None)]
)
def test_shares_say_how_many_runs_would_tell_them_apart(ours, theirs, runs):
    found = runs_for(share(*ours), share(*theirs), 0.05)
    assert found == runs
    if found:
        table = [[round(a / b * found), found - round(a / b * found)] for a, b in (ours, theirs)]
        assert stats.fisher_exact(table).pvalue < 0.05


def test_the_committed_page_is_the_one_of_the_committed_numbers():
    verdicts = list(VERDICTS.values())
    for name, text in (("claims", page(KNOWN, verdicts)), ("claims_runs", runs_page(KNOWN, verdicts))):
        assert (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") == text
    assert (ROOT / "configs" / "gains.yaml").read_text(encoding="utf-8") == gains(verdicts)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert short(verdicts) in readme
    assert into(readme, short(verdicts)) == readme


def test_what_list_says_of_an_initialization_is_what_the_claims_say():
    shipped = yaml.safe_load((ROOT / "configs" / "gains.yaml").read_text(encoding="utf-8"))
    first = {}
    for claim in JUDGED.values():
        first.setdefault(claim["arm"], claim)
    assert shipped.keys() == {arm for arm in first if (ROOT / "configs" / "init" / f"{arm}.yaml").is_file()}
    for arm, said in shipped.items():
        claim = first[arm]
        kind, *others = words_of(claim)
        gain = {"better": "shown", "worse": "refuted", "equivalent": "none", "undecided": "not shown"}[kind]
        assert re.search(
            rf": {gain}( by itself, p = [^.]*\.\d+ among all claims)?\. {re.escape(claim['setting'])}$", said["gain"]
        )
        due = "shown" if others and set(others) == {"better"} else "no control" if not others else ""
        assert kind != "better" or said["controls"].startswith(due or ("not shown", "refuted"))


def test_a_claim_whose_comparison_is_not_there_has_no_verdict(tmp_path):
    assert judge(KNOWN["claims"][0], tmp_path) is None


def test_a_run_without_a_number_is_no_gain(tmp_path):
    claim = {"name": "a", "results": "x", "arm": "b", "references": {"default": "a"}, "margin": 0.5}
    folder = tmp_path / "x"
    folder.mkdir()
    rows = [("a", seed, 0.5 + 0.01 * seed) for seed in range(3)] + [("b", 0, math.nan), ("b", 1, 0.9), ("b", 2, 0.91)]
    table = pd.DataFrame(rows, columns=["arm", "seed", "test/accuracy"]).assign(seconds=60.0)
    table.to_csv(folder / "results.csv", index=False, na_rep="nan")
    manifest = {"metric": "test/accuracy", "mode": "max", "command": "compare"}
    (folder / "comparison.json").write_text(json.dumps(manifest))
    (folder / "results.json").write_text(json.dumps({"runs": [{}]}))
    (found,) = judge(claim, tmp_path).contrasts
    assert (found.kind, found.text, found.needed) == ("undecided", "diverged in 1 of 3 seeds", None)


def test_a_gain_says_which_controls_it_is_not_shown_to_exceed(tmp_path):
    claim = {"name": "a", "results": "x", "arm": "b", "margin": 0.5, "claim": "B helps.", "source": "ours"}
    claim |= {"references": {"default": "a", "same positions": "p"}, "setting": "s", "published": ""}
    claim["rule_written"] = "before, 0123456"
    (tmp_path / "x").mkdir()
    rows = [(arm, seed, base + 0.001 * seed * seed) for arm, base in (("a", 0.5), ("p", 0.9)) for seed in range(4)]
    rows += [("b", seed, 0.9 + 0.001 * seed) for seed in range(4)]
    pd.DataFrame(rows, columns=["arm", "seed", "test/accuracy"]).assign(seconds=60.0).to_csv(
        tmp_path / "x" / "results.csv", index=False
    )
    manifest = {"metric": "test/accuracy", "mode": "max", "command": "compare"}
    (tmp_path / "x" / "comparison.json").write_text(json.dumps(manifest))
    (tmp_path / "x" / "results.json").write_text(json.dumps({"runs": [{}]}))
    text = page({"rule": ""}, [judge(claim, tmp_path)])
    assert "| **shown** | <0.001 | **not shown**: same positions | −0.2 " in text
    wide = claim | {"margin": 1.0}
    assert "| **shown** | <0.001 | **refuted**: same positions | " in page({"rule": ""}, [judge(wide, tmp_path)])
    alone = claim | {"references": {"default": "a"}}
    verdict = judge(alone, tmp_path)
    assert "| **shown** | <0.001 | **no control** | – | – | holds" in page({"rule": ""}, [verdict])
    weak = Verdict(claim, [Contrast("default", "better", "+1", p=0.02)], 4, 4, 1.0, verdict.committed)
    row = f"| **shown** | not shown, {0.02 * 3:.3f} | **no control** | "  # the smallest of three, by Holm
    assert row in page({"rule": ""}, [replace(weak, claim=claim | {"name": name}) for name in "xyz"])
    reverse = claim | {"references": {"same positions": "p"}}
    assert judge(reverse, tmp_path).structure == "–"


def test_a_claim_without_runs_is_named_with_its_rule_and_its_cost():
    verdicts = list(VERDICTS.values())
    waiting = [claim for claim in KNOWN["claims"] if claim["name"] not in JUDGED]
    text = runs_page(KNOWN, verdicts).partition("## Not run yet")[2].partition("## Run\n")[0]
    assert text.count("\n**") == len(waiting)
    for claim in waiting:
        assert claim["rule_written"].startswith("before, ")
        assert claim["cost"] in text
        assert f"--output runs/{claim['results']}\n" in text
        arms = parse_arms(shlex.split(claim["command"])[shlex.split(claim["command"]).index("--inits") + 1])
        controls = {f"{arm}{ending}" for arm in arms for ending in (SCRAMBLED, SAME_POSITIONS)}
        assert {claim["arm"], *claim["references"].values()} <= {*arms, *controls}


def test_runs_at_several_places_of_the_grid_are_counted_together():
    verdict = VERDICTS["mamba2_recall_states"]
    assert [each.text for each in verdict.contrasts] == ["5 of 9 against 6 of 9", "5 of 9 against 4 of 9"]
