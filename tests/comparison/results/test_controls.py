import json
from dataclasses import asdict

import pytest
from compared import found

from comparison.report.data import read_report_data
from comparison.report.summary import summary
from comparison.results.controls import (
    beside_further,
    check_controls,
    due_to_structure,
    find_controls,
    find_scrambled,
    is_control,
    parse_controls,
    verdicts,
)
from comparison.results.decisions import Question
from comparison.results.folder import find_runs, read_manifest
from comparison.results.headline import further_table, headline_table, look
from structured_init import (
    Compose,
    Impulse,
    KaimingUniform,
    Mimetic,
    Positions,
    SamePositions,
    Scrambled,
    StructuredInitError,
    initialize,
)

CODES = Positions("codes", kappa=2.0, gain=0.7)


def report(model, initializer):
    return initialize(model, initializer, seed=0).to_dict()


@pytest.mark.parametrize(
    ("control", "arm", "expected"),
    [
        (Positions("sincos"), Mimetic(), True),
        (Positions("gaussian", gain=18.0), Impulse(solver="svd"), True),
        (CODES, Compose([Impulse(solver="separable"), Mimetic(query_key=False, positions="keep")]), True),
        (SamePositions(Impulse()), Impulse(), True),
        (SamePositions(Impulse()), Scrambled(Impulse()), True),
        (Positions("sincos"), Impulse(), False),  # other positions
        (Positions("sincos"), Compose([KaimingUniform(), Mimetic()]), False),  # other surroundings
        (KaimingUniform(), Compose([KaimingUniform(), Mimetic()]), False),  # no positions
        (Positions("sincos", trainable=False), Mimetic(), False),
        (Positions("sincos"), Positions("sincos"), False),  # nothing that a control would be for
        (Mimetic(value_output=False), Mimetic(), False),  # attention itself
    ],
)
def test_a_control_shares_all_but_attention(tiny_vit, control, arm, expected):
    build = lambda: tiny_vit(embed_dim=32, num_heads=2)  # noqa: E731
    assert is_control(report(build(), control), report(build(), arm)) is expected


def test_a_report_names_who_wrote_each_tensor(tiny_vit):
    entries = report(tiny_vit(), Mimetic())["entries"]
    writers = {tuple(writer.values()) for entry in entries for writer in entry["writers"]}
    assert writers == {("Mimetic", part) for part in ("query_key", "value_output", "positions")}


def test_controls_are_found_in_a_folder_and_those_of_the_user_stand_beside_them(comparison, known_effects):
    folder = comparison(known_effects, pieces=())
    manifest = read_manifest(folder)
    assert find_controls(manifest, find_runs(folder)) == {"mimetic": "sincos"}
    manifest = {**manifest, "controls": {"mimetic": "default"}}
    assert find_controls(manifest, find_runs(folder)) == {"mimetic": "sincos"}
    for path in folder.glob("runs/sincos/*/init_report.json"):
        path.unlink()
    assert find_controls(manifest, find_runs(folder)) == {"mimetic": "default"}


def test_a_control_that_is_named_takes_nothing_from_one_that_is_found(comparison, known_effects):
    folder = comparison({**known_effects, "mine": known_effects["sincos"]}, pieces=(), controls={"mimetic": ["mine"]})
    (judged,) = read_report_data(folder).effects
    arms = {arm.name: arm for arm in judged.arms}
    assert arms["mimetic"].control.reference == "sincos"
    assert [(each.arm, each.control) for each in beside_further(judged)] == [("mimetic", "mine")]
    assert verdicts(judged).keys() == {"mimetic"}
    arms = {arm: {} for arm in ("default", "mine", "mine_positions", "random")}
    table = {"arms": arms, "baseline": "default", "source": "runs.csv", "controls": {"mine": ["random"]}}
    assert find_controls(table, []) == {"mine": "mine_positions"}  # by its name, where there are no reports


def test_the_scrambled_arm_is_found_by_what_it_scrambles(comparison, known_effects):
    folder = comparison({**known_effects, "turned": known_effects["mimetic"]}, pieces=())
    manifest = read_manifest(folder)
    for arm, initializer in [("mimetic", Mimetic()), ("turned", Scrambled(Mimetic())), ("sincos", Positions())]:
        for path in folder.glob(f"runs/{arm}/*/init_report.json"):
            path.write_text(json.dumps({"initializer": repr(initializer), "entries": []}))
    assert find_scrambled(manifest, find_runs(folder)) == {"mimetic": "turned"}


def test_one_control_stands_for_all_other_arms():
    manifest = {"arms": dict.fromkeys(["default", "sincos", "mimetic", "impulse"]), "baseline": "default"}
    assert check_controls("sincos", manifest) == {"mimetic": ["sincos"], "impulse": ["sincos"]}
    assert check_controls(None, manifest) == {}


def test_an_arm_may_have_several_controls_of_which_each_has_a_say(comparison, known_effects):
    controls = parse_controls("mine=plain,mine=mine_scrambled,mine=other")
    assert controls == {"mine": ["plain", "mine_scrambled", "other"]}
    base = known_effects["default"]
    above = lambda gain: {seed: value + gain * (1 + 0.01 * seed) for seed, value in base.items()}  # noqa: E731
    arms = {"default": base, "mine": above(0.1), "plain": above(0.02), "mine_scrambled": above(0.03)}
    folder = comparison({**arms, "other": above(0.12)}, pieces=(), controls=controls)
    data = read_report_data(folder)
    assert (data.controls, data.scrambled) == ({"mine": "plain"}, {"mine": "mine_scrambled"})
    (judged,) = data.effects
    assert [arm.name for arm in judged.arms if arm.is_control] == ["plain", "mine_scrambled", "other"]
    assert verdicts(judged)["mine"] == ("shown", "refuted", ["other"])
    assert "That it adds anything over other is refuted." in " ".join(summary(data))


def test_an_unknown_control_is_one_line_with_the_nearest():
    manifest = {"arms": {"default": {}, "sincos": {}}, "baseline": "default"}
    with pytest.raises(StructuredInitError, match="did you mean 'sincos'"):
        check_controls({"default": "sincs"}, manifest)
    with pytest.raises(StructuredInitError, match="'sincos' cannot be its own control: name another arm"):
        check_controls({"sincos": ["default", "sincos"]}, manifest)


@pytest.mark.parametrize(
    ("beside", "verdict"),
    [
        ({}, ("no control", [])),
        ({"sincos": "better", "itself scrambled": "better"}, ("shown", ["sincos", "itself scrambled"])),
        ({"sincos": "better", "itself scrambled": "undecided"}, ("not shown", ["itself scrambled"])),
        ({"sincos": "undecided", "itself scrambled": "equivalent"}, ("refuted", ["itself scrambled"])),
        ({"sincos": "worse", "itself scrambled": "better"}, ("refuted", ["sincos"])),
    ],
)
def test_a_gain_is_due_to_structure_where_every_control_is_exceeded(beside, verdict):
    assert due_to_structure(beside) == verdict


GAINED = [80.1, 81.2, 79.8, 80.6, 80.3]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"_scrambled": 4.0}, ("shown", "shown", ["mine_scrambled"])),
        ({"_scrambled": 4.0, "_sharpened": 0.0}, ("shown", "not shown", ["mine_sharpened"])),
        ({"_scrambled": 4.0, "_sharpened": 4.0, "_offset": -4.0}, ("shown", "refuted", ["mine_offset"])),
    ],
)
def test_the_table_says_of_every_arm_what_its_gain_is_due_to(values, said):
    """The arm is 5 points above the default, and so many above each control, but for noise of a tenth of a point."""
    noise = [[0.09, -0.06, 0.03, -0.09, 0.03], [-0.03, 0.09, -0.09, 0.06, -0.03]]
    base = [value - 5 + off for value, off in zip(GAINED, noise[0], strict=True)]
    arms = {"default": base, "mine": GAINED, "alone": GAINED}
    for number, (ending, gain) in enumerate(values.items()):
        arms["mine" + ending] = [v - gain + off for v, off in zip(GAINED, noise[number % 2], strict=True)]
    of = {"scrambled": {"mine": "mine_scrambled"}, "seeds": list(range(5))}
    if said[1] == "not shown":  # within half a point a control gains as much
        (asked,) = found(arms, percent=True, question=asdict(Question(margin=0.5)), **of)
        assert verdicts(asked)["mine"] == ("shown", "refuted", said[2])
    (judged,) = found(arms, percent=True, **of)
    assert verdicts(judged) == {"mine": said, "alone": ("shown", "no control", [])}
    table = headline_table(judged)
    place = table.columns.index("gain; due to structure")
    cells = {row[0].text: row[place] for row in table.rows}
    assert (cells["mine"].text, cells["mine"].note) == (f"{said[0]}; {said[1]}", ", ".join(said[2]))
    assert cells["default"].text == cells["mine_scrambled"].text == ""
    beyond = [f"mine{ending}" for ending in ("_sharpened", "_offset") if ending in values]
    further = further_table(judged)
    assert [row[1].text for row in further.rows] == beyond if beyond else further is None
    for row in further.rows if beyond else ():
        gain = values[row[1].text.removeprefix("mine")]
        assert float(row[2].text.split(" ")[0].replace("−", "-")) == pytest.approx(gain, abs=0.11)
        assert row[2].kind == {4.0: "gain", 0.0: "open", -4.0: "loss"}[gain]


def test_where_nothing_is_gained_nothing_is_due_to_structure(comparison, known_effects):
    base = known_effects["default"]
    folder = comparison({"default": base, "mimetic": dict(base), "mimetic_sharpened": dict(base)}, pieces=())
    (judged,) = look(folder, read_manifest(folder))
    assert verdicts(judged) == {"mimetic": ("not shown", "–", [])}
