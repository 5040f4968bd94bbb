"""Which arm is a control of which, and what controls leave of a gain."""

import pytest
from compared import found

from comparison.contrasts.contrasts import IS_CONTROL, due_to_structure, gain_and_structure
from comparison.contrasts.controls import roles_of
from comparison.runs.folder import Manifest, Question
from comparison.say.data import read_report_data
from comparison.say.headline import controls_table, headline_table
from structured_init import StructuredInitError


def test_a_control_that_is_named_stands_beside_those_of_the_plan(comparison, known_effects):
    planned = {"mimetic": {"sincos": "same positions", "mine": "scrambled"}}
    folder = comparison({**known_effects, "mine": known_effects["sincos"]}, pieces=(), controls=planned)
    data = read_report_data(folder, controls={"mimetic": "mine"})
    (judged,) = data.places
    assert data.manifest.controls == {"mimetic": {"sincos": "same positions", "mine": "scrambled"}}
    assert [each.reference for each in judged.to_controls("mimetic")] == ["sincos", "mine"]
    # sincos competes with the baseline too
    assert [each.arm for each in judged.contrasts if each.reason == IS_CONTROL] == ["mine"]
    assert gain_and_structure(judged.contrasts).keys() == {"mimetic"}


def test_one_control_stands_for_all_other_arms():
    manifest = Manifest(arms=dict.fromkeys(["default", "sincos", "mimetic", "impulse"]), baseline="default")
    assert roles_of(manifest, "sincos") == {"mimetic": {"sincos": "named"}, "impulse": {"sincos": "named"}}
    assert roles_of(manifest) == {}


def test_an_unknown_control_is_one_line_with_the_nearest():
    manifest = Manifest(arms={"default": {}, "sincos": {}}, baseline="default")
    with pytest.raises(StructuredInitError, match="did you mean 'sincos'"):
        roles_of(manifest, {"default": "sincs"})
    with pytest.raises(StructuredInitError, match="'sincos' cannot be its own control: name another arm"):
        roles_of(manifest, {"sincos": ["default", "sincos"]})


def test_a_control_that_gains_as_much_refutes_whatever_another_leaves_open():
    beside = {"sincos": "undecided", "itself scrambled": "equivalent"}
    assert due_to_structure(beside) == ("refuted", ["itself scrambled"])


GAINED = [80.1, 81.2, 79.8, 80.6, 80.3]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"_scrambled": 4.0}, ("shown", "shown", ["mine_scrambled"])),
        ({"_scrambled": 4.0, "_sharpened": 0.0}, ("shown", "not shown", ["mine_sharpened"])),
        ({"_scrambled": 4.0, "_sharpened": 4.0, "_positions": -4.0}, ("shown", "refuted", ["mine_positions"])),
    ],
)
def test_the_table_says_of_every_arm_what_its_gain_is_due_to(values, said):
    """The arm is 5 points above the default, and so many above each control, but for noise of a tenth of a point."""
    noise = [[0.09, -0.06, 0.03, -0.09, 0.03], [-0.03, 0.09, -0.09, 0.06, -0.03]]
    base = [value - 5 + off for value, off in zip(GAINED, noise[0], strict=True)]
    arms = {"default": base, "mine": GAINED, "alone": GAINED}
    for number, (ending, gain) in enumerate(values.items()):
        arms["mine" + ending] = [v - gain + off for v, off in zip(GAINED, noise[number % 2], strict=True)]
    of = {"seeds": list(range(5)), "controls": {"mine": {f"mine{ending}": ending[1:] for ending in values}}}
    if said[1] == "not shown":  # within half a point a control gains as much
        (asked,) = found(arms, percent=True, question=Question(margin=0.5), **of)
        assert gain_and_structure(asked.contrasts)["mine"] == ("shown", "refuted", said[2])
    (judged,) = found(arms, percent=True, **of)
    assert gain_and_structure(judged.contrasts) == {"mine": said, "alone": ("shown", "no control", [])}
    table = headline_table(judged)
    place = table.columns.index("gain; beyond its controls")
    cells = {row[0].text: row[place] for row in table.rows}
    assert (cells["mine"].text, cells["mine"].note) == (f"{said[0]}; {said[1]}", ", ".join(said[2]))
    assert cells["default"].text == cells["mine_scrambled"].text == ""
    for row, gain in zip(controls_table(judged).rows, values.values(), strict=True):
        assert float(row[2].text.split(" ")[0].replace("−", "-")) == pytest.approx(gain, abs=0.11)
        assert row[2].kind == {4.0: "gain", 0.0: "open", -4.0: "loss"}[gain]
