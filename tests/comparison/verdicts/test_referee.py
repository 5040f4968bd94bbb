"""The referee: what it answers, what it remembers, and that a loop without effects keeps nothing."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import comparison
from comparison.runs.folder import Manifest, write_manifest
from comparison.verdicts.referee import judge, level_of
from lightning_modules.cli import main
from lightning_modules.cli.commands import ROOT
from structured_init.util.errors import StructuredInitError

NOISE = np.random.default_rng(0).standard_normal((2, 60))


def table(seeds=10, gain=0.0, noise=1.0, **arms):
    """Losses of a baseline near 10, and of arms that have so much less."""
    rows = [("default", seed, 10 + noise * NOISE[0, seed]) for seed in range(seeds)]
    for name, value in (arms or {"new": gain}).items():
        rows += [(name, seed, 10 - value + noise * NOISE[1, seed]) for seed in range(seeds)]
    return pd.DataFrame(rows, columns=["arm", "seed", "loss"])


def test_a_clear_gain_is_kept_a_loss_and_no_difference_are_not_and_what_is_open_names_seeds():
    assert comparison.judge is judge
    for gain, answer, status in ((5, "keep", 0), (-5, "discard", 1)):
        said = judge(table(gain=gain))
        assert (said.answer, said.status, said.opinions[0].arm) == (answer, status, "new")
    equal = judge(table(noise=0.01), margin=0.5)
    assert equal.answer == "discard"
    assert "no more than 0.5 apart" in str(equal)
    few = judge(table(3, gain=5))
    assert (few.status, few.opinions[0].seeds) == (75, [3, 4])
    open_ = judge(table(6, gain=0.9), margin=0.5)
    assert open_.answer == "more"
    assert open_.opinions[0].seeds[0] == 6
    assert str(open_).startswith("4 more seeds: new lacks 6, 7, 8, 9; default lacks 6, 7, 8, 9 (")
    uneven = judge(table(3).query("arm != 'default' or seed != 1"))
    assert uneven.plain()["arms"][0]["missing"] == {"new": [3, 4], "default": [1, 3, 4]}
    assert str(uneven).startswith("3 more seeds: new lacks 3, 4; default lacks 1, 3, 4 (")
    assert str(judge(pd.concat([table(3), table(6).query("arm == 'default'")]).drop_duplicates())).startswith(
        "2 more seeds: new lacks 3, 4 ("
    )


def test_the_status_asks_for_more_seeds_while_any_arm_is_undecided():
    arms = pd.concat([table(6, good=5), table(6, open=0.9).query("arm == 'open'")])
    said = judge(arms, margin=0.5)
    assert [opinion.answer for opinion in said.opinions] == ["keep", "more"]
    assert (said.answer, said.status) == ("more", 75)
    kept = judge(arms[arms["arm"] != "open"], margin=0.5)
    assert (kept.answer, kept.status) == ("keep", 0)


def test_equal_differences_decide_nothing_and_ten_of_them_are_enough():
    """Whatever their size, and though rounding sets the differences of unequal values apart."""

    def said(seeds, gain, spread):
        rows = [(arm, s, 0.7 + spread * s + more) for arm, more in (("main", 0), ("new", gain)) for s in range(seeds)]
        return str(judge(pd.DataFrame(rows, columns=["arm", "seed", "acc"]), "main"))

    for gain, spread in ((0.002, 0), (0.02, 0), (0, 0.01), (1e-5, 0.01), (0.02, 0.01)):
        assert said(5, gain, spread).startswith("5 more seeds: new lacks 5, 6, 7, 8, 9; main lacks 5, 6, 7, 8, 9 (")
        assert said(5, gain, spread).endswith("; the next look is at 10)")
        assert said(10, gain, spread).startswith("discard new: not shown to be better, as all seeds agree to the last")


def test_the_usual_margin_is_of_the_size_of_the_values_also_where_their_mean_is_chance():
    """A quarter of the deviation of 0.05, 1 % of a mean of 10; of fewer than five runs no deviation is known."""
    near_zero = table(10, noise=0.05).assign(loss=lambda rows: rows["loss"] - 10)
    first = judge(near_zero[near_zero["seed"] < 2]).state
    assert first["margin"] is None
    assert judge(near_zero, state=first).state["margin"] == judge(near_zero).state["margin"] == 0.01
    assert judge(table(10, noise=0.1)).state["margin"] == 0.1
    with pytest.raises(StructuredInitError, match=r"^'loss' is 0 in all runs of 'default': give a margin$"):
        judge(near_zero.assign(loss=0.0))


def test_the_interval_is_that_of_a_look_at_twice_the_share_of_one_proposal():
    said = judge(table(8, gain=3), margin=0.5, max_seeds=20).opinions[0].interval
    difference = (NOISE[1, :8] - NOISE[0, :8] - 3)[:5]
    wide = stats.t.isf(0.9 * 0.05 / 4, 4) * difference.std(ddof=1) / math.sqrt(5)
    assert (said.low, said.high) == pytest.approx((difference.mean() - wide, difference.mean() + wide))


@pytest.mark.parametrize("proposals", [1, 3, 50])
def test_all_proposals_together_have_five_percent(proposals):
    shares = [level_of(place, proposals) for place in range(50_000)]
    assert 0.0495 < sum(shares) < 0.05
    assert shares == sorted(shares, reverse=True)
    assert sum(shares[:proposals]) == pytest.approx(0.045)


def test_what_was_seen_is_remembered_and_what_has_changed_is_refused(tmp_path):
    memory = tmp_path / "runs.judged.json"
    judge(table(5, gain=0.9), margin=0.5, state=memory)
    again = judge(table(7, gain=0.9), state=memory, max_seeds=20)
    assert again.opinions[0].pairs == 7
    assert json.loads(memory.read_text())["margin"] == 0.5
    lucky = table(7, gain=0.9)
    lucky.loc[(lucky["arm"] == "new") & (lucky["seed"] == 3), "loss"] = 5.0
    gone = table(7, gain=0.9).query("seed != 2")
    wrong = [
        (lucky, {}, "seed 3 of 'new' was .* a run counts once"),
        (gone, {}, "seed 2 of 'new' was judged before and"),
    ]
    wrong += [(table(7), {"proposals": 3}, "proposals was 1 at the first look and is 3 now")]
    wrong += [(table(7), {"margin": 0.1}, "margin was 0.5 at the first look and is 0.1 now")]
    before = memory.read_bytes()
    for results, options, message in wrong:
        with pytest.raises(StructuredInitError, match=message):
            judge(results, state=memory, **options)
    assert memory.read_bytes() == before
    with pytest.raises(StructuredInitError, match="there is no run of the baseline 'default'"):
        judge(table(7).replace({"new": "c", "default": "d"}), state=memory)
    for name, value in json.loads(before).items():
        for damaged in ({name: {}}, {f"{name}s": value}, *([{name: [[]]}] if name == "controls" else [])):
            known = {other: each for other, each in json.loads(before).items() if other != name}
            with pytest.raises(StructuredInitError, match=f"is damaged, in its '{name}': bring back a copy$"):
                judge(table(7, gain=0.9), state=known | damaged)


PAIR = {"arm": "new", "baseline": "default"}


@pytest.mark.parametrize("pair", [3, {}, PAIR, {**PAIR, "seen": [7]}, {**PAIR, "seen": [[0, None]]}])
def test_a_memory_with_a_damaged_pair_is_refused(pair):
    with pytest.raises(StructuredInitError, match=r"is damaged, in its '(arm|seen|0|1)': bring back a copy$"):
        judge(table(5), state={**judge(table(5), margin=0.5).state, "pairs": [pair]})


def test_a_value_that_changes_in_its_last_digit_is_shown_with_all_digits():
    first = table(5, gain=0.9).assign(loss=3.04669)
    again = first.assign(loss=3.0466900000000003)
    with pytest.raises(StructuredInitError, match=r"was 3\.04669 when it was judged and is 3\.0466900000000003 now"):
        judge(again, state=judge(first, margin=0.5).state)


def test_a_copy_of_an_arm_under_another_name_is_refused_also_where_the_arm_itself_has_left():
    runs = table(10, gain=0.9)
    copy = runs[(runs["arm"] == "new") & ~runs["seed"].isin([1, 4])].assign(arm="newer")
    seen = judge(runs, margin=0.5).state
    message = "'newer' has the values of 'new' in all 8 seeds that both have: a run counts once"
    for given, state in ((pd.concat([runs, copy]), None), (pd.concat([runs[runs["arm"] != "new"], copy]), seen)):
        with pytest.raises(StructuredInitError, match=message):
            judge(given, margin=0.5, state=state)
    meeting = copy.assign(loss=copy["loss"] + (copy["seed"] > 3))  # some values of a rounded metric meet by chance
    assert len(judge(pd.concat([runs, meeting]), margin=0.5).opinions) == 2


def test_looks_at_the_same_time_remember_every_arm(tmp_path):
    """Each thread reads the table of one arm, and all share one memory."""
    memory = tmp_path / "runs.judged.json"
    arms = [f"arm{n}" for n in range(8)]
    with ThreadPoolExecutor(len(arms)) as pool:
        list(pool.map(lambda n: judge(table(5, **{arms[n]: 0.9 + n / 100}), margin=0.5, state=memory), range(8)))
    assert sorted(pair["arm"] for pair in json.loads(memory.read_text())["pairs"]) == arms


def test_a_later_proposal_finds_it_harder_than_the_one_before():
    one = judge(table(10, first=1.6), margin=0.5)
    two = judge(table(10, first=1.6, second=1.6001), margin=0.5, state=one.state)
    early, late = (opinion.interval for opinion in two.opinions)
    at = [stats.t.isf(level / 4, each.samples - 1) for each, level in ((early, 0.045), (late, 0.0025))]
    spread = [stats.sem((NOISE[1] - NOISE[0])[: each.samples]) for each in (early, late)]
    assert [each.half_width for each in (early, late)] == pytest.approx(
        [a * b for a, b in zip(at, spread, strict=True)], rel=1e-3
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.assign(arm="default"), "seed 0 of 'default' is there twice"),
        (lambda t: t[t["arm"] == "default"], "all runs are of 'default'"),
        (lambda t: t.drop(columns="seed"), "there is no column 'seed'"),
        (lambda t: t.assign(seed=t["seed"] + 0.5), "is not a whole number"),
        (
            lambda t: t.assign(loss=t["loss"].where(t["arm"] != "default")),
            "the baseline 'default' has no number in 10 of 10 seeds: leave out the row of a run that",
        ),
        (
            lambda t: t.pivot(index="seed", columns="arm", values="loss").reset_index(),
            "there is no column 'arm' among seed, default, new: a table has the columns arm, seed and a metric",
        ),
        (lambda t: t.assign(other=1.0), "name the metric: the table has loss, other"),
    ],
)
def test_what_cannot_be_judged_says_why(change, message):
    with pytest.raises(StructuredInitError, match=message):
        judge(change(table()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "up"}, "mode must be 'max' or 'min', got 'up'"),
        ({"margin": -1}, "judge: margin must be a finite number above 0 or null, got -1"),
        ({"proposals": 0}, "judge: proposals must be a whole number from 1 or null, got 0"),
        ({"proposals": 10**400}, "0 proposals are too many to show any: at most 10,000"),
        ({"max_seeds": 3}, "max_seeds 3: differences are decided at 5, 10, 20 and 40 seeds"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(options, message):
    with pytest.raises(StructuredInitError, match=message):
        judge(table(5), **options)


def test_a_comparison_is_judged_by_its_own_metric_direction_baseline_and_controls(tmp_path, capsys):
    runs = table(10, new=5, scrambled=4).rename(columns={"loss": "test/score"}).assign(chosen=True)
    (tmp_path / "runs").mkdir()
    runs.to_csv(tmp_path / "runs" / "results.csv", index=False)
    known = {"metric": "test/score", "mode": "min", "baseline": "default", "controls": {"new": {"scrambled": "named"}}}
    write_manifest(tmp_path / "runs", Manifest(arms=dict.fromkeys(runs["arm"]), **known))
    main(["judge", str(tmp_path / "runs")])
    first, rest = capsys.readouterr().out.splitlines()
    assert first.startswith("keep new: −")
    assert rest == "taken as controls, not judged: scrambled"
    (tmp_path / "runs.judged.json").unlink()
    for words in (["--baseline", "new"], []):  # a later look without a baseline has that of the first one
        with pytest.raises(SystemExit) as stop:
            main(["judge", str(tmp_path / "runs"), *words])
        assert stop.value.code == 1
        assert capsys.readouterr().out.startswith("discard default: +")


def test_controls_are_no_proposals(tmp_path, capsys):
    """The share of the 5 % is that of one proposal, and a control that gains more does not make the answer."""
    arms = {"new": -5, "new_scrambled": 5, "other": 5}
    file = tmp_path / "runs.csv"
    table(10, **arms).to_csv(file, index=False)
    with pytest.raises(SystemExit) as stop:
        main(["judge", str(file), "--control", "new=other,new=new_scrambled"])
    assert stop.value.code == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("discard new: ")
    assert rest == ["taken as controls, not judged: new_scrambled, other"]
    table(11, **arms).to_csv(file, index=False)
    with pytest.raises(SystemExit):  # a control that was named stays one
        main(["judge", str(file), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [each["arm"] for each in said["arms"]] == ["new"]
    assert said["controls"] == ["new_scrambled", "other"]
    named = {"controls": ["new_scrambled"]}
    judged = judge(table(10, new=3, new_scrambled=5), margin=0.5, **named)
    assert str(judged).endswith("\ntaken as controls, not judged: new_scrambled")
    assert judged.opinions[0].interval == judge(table(10, new=3), margin=0.5).opinions[0].interval
    with pytest.raises(StructuredInitError, match="all runs are of 'new' or of controls: nothing"):
        judge(table(10, new=3, new_scrambled=5).query("arm != 'default'"), "new", **named)
    with pytest.raises(SystemExit):
        main(["judge", str(file), "--control", "othr"])
    assert "'othr' is not an arm of this comparison: did you mean 'other'" in capsys.readouterr().err


def test_an_arm_that_diverges_is_discarded_and_percent_are_percent():
    lost = table()
    lost.loc[15, "loss"] = math.nan
    assert str(judge(lost)) == "discard new: it has no number in 1 of 10 seeds"
    share = pd.DataFrame(
        [(arm, s, v + 0.001 * NOISE[0, s]) for arm, v in (("default", 0.5), ("b", 0.6)) for s in range(6)]
    )
    share.columns = ["arm", "seed", "accuracy"]
    texts = [str(judge(share.assign(accuracy=factor * share["accuracy"] + NOISE[1, :12] / 1e6))) for factor in (1, 100)]
    assert all(re.match(r"keep b: \+(10|9)\.\d+ points", text) for text in texts)


def test_the_command_answers_by_its_exit_status_and_reads_columns_by_name(tmp_path, capsys):
    file = tmp_path / "runs.csv"
    table(10, gain=5).rename(columns={"arm": "init", "seed": "run"}).to_csv(file, index=False)
    columns = ["--arm", "init", "--seed", "run"]
    main(["judge", str(file), *columns])
    said = capsys.readouterr()
    assert said.out.startswith("keep new: −")
    assert "runs.csv.judged.json" in said.err
    main(["judge", str(file), *columns, "--json"])
    again = capsys.readouterr()
    assert json.loads(again.out)["arms"][0]["pairs"] == 10
    table(3).to_csv(tmp_path / "few.csv", index=False)
    (tmp_path / "one.csv").write_text("arm,seed,loss\ndefault,0,1\nnew,1,2\n")
    lacking = "5 more seeds: new lacks 0, 2, 3, 4; default lacks 1, 2, 3, 4 ("
    for name, status, answer in (("few", 75, "2 more"), ("one", 75, lacking), ("runs", 2, ""), ("none", 2, "")):
        with pytest.raises(SystemExit) as stop:
            main(["judge", str(tmp_path / f"{name}.csv")])
        said = capsys.readouterr()
        assert (stop.value.code, said.out[: len(answer)]) == (status, answer)
    assert "this cannot be judged: " in said.err


def test_a_margin_that_is_meant_in_points_is_refused_for_fractions_that_are_no_accuracy():
    arms = ("base", "new")
    rows = [(arm, seed, 0.8 + 0.01 * n + NOISE[n, seed] / 1e4) for n, arm in enumerate(arms) for seed in range(6)]
    table = pd.DataFrame(rows, columns=["arm", "seed", "quality"])
    with pytest.raises(
        StructuredInitError, match=r"a margin of 0.5 is in the unit of 'quality', .*half a point is 0.005"
    ):
        judge(table, "base", margin=0.5, mode="max")
    for name in ("val_acc", "val/Accuracy", "MulticlassAccuracy"):  # an accuracy: in points
        said = judge(table.rename(columns={"quality": name}), "base", margin=0.5)
        assert said.answer == "keep"
        assert str(said).endswith("over base, 5 of 6 seeds, margin 0.5 points")


def test_a_dry_run_answers_and_remembers_nothing(tmp_path, capsys):
    table(10, gain=5).to_csv(tmp_path / "runs.csv", index=False)
    main(["judge", str(tmp_path / "runs.csv"), "--dry-run"])
    said = capsys.readouterr()
    assert said.out.startswith("keep new: ")
    assert "nothing is remembered" in said.err
    assert [each.name for each in tmp_path.iterdir()] == ["runs.csv"]


def test_a_table_has_one_memory_by_whatever_name_it_is_asked(tmp_path, capsys, monkeypatch):
    folder, link = tmp_path / "runs", tmp_path / "elsewhere" / "link"
    for arm, seed, loss in table(5, gain=5).itertuples(index=False):
        run = folder / arm / f"seed_{seed}"
        run.mkdir(parents=True)
        (run / "metrics.csv").write_text(f"step,val/loss\n1,{loss}\n")
    link.parent.mkdir()
    link.symlink_to(folder)
    for here, name in ((folder / "new", ".."), (folder, "."), (folder, str(link)), (folder, str(folder))):
        monkeypatch.chdir(here)
        main(["judge", name])
        assert capsys.readouterr().err.endswith(f"what was seen is kept in {tmp_path / 'runs.judged.json'}\n")
    table(5, gain=5).to_csv(tmp_path / "runs.csv", index=False)
    (tmp_path / "hard.csv").hardlink_to(tmp_path / "runs.csv")
    with pytest.raises(SystemExit):
        main(["judge", str(tmp_path / "hard.csv")])
    assert "hard.csv' has several names (hard links)" in capsys.readouterr().err


@pytest.mark.parametrize(("output", "status"), [("shown.txt", 0), ("/dev/full", 2)])
def test_a_poor_terminal_ends_no_judgement_and_a_full_device_is_no_answer(tmp_path, output, status):
    table(5, gain=5).to_csv(tmp_path / "runs.csv", index=False)
    program = (
        "import sys; from lightning_modules.cli.entry import command; sys.argv[1:] = ['judge', 'runs.csv']; command()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"}
    given = {"cwd": tmp_path, "env": environment, "stderr": subprocess.PIPE}
    with (tmp_path / output).open("wb") as shown:  # an absolute path stays what it is
        ended = subprocess.run([sys.executable, "-c", program], stdout=shown, check=False, **given)
    assert ended.returncode == status
    if status:
        assert b"No space left on device" in ended.stderr
    else:
        assert (tmp_path / output).read_bytes().startswith(b"keep new: ?")  # latin-1 has no real minus sign
