import copy
import json

import pytest

from comparison.results.controls import check_controls, find_controls, find_scrambled, is_control
from comparison.results.folder import find_runs, read_manifest
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
        (CODES, Impulse(solver="separable"), True),
        (Positions("gaussian", gain=18.0), Impulse(solver="svd"), True),
        (CODES, Compose([Impulse(solver="separable"), Mimetic(query_key=False, positions="keep")]), True),
        (Compose([KaimingUniform(), Positions("sincos")]), Compose([KaimingUniform(), Mimetic()]), True),
        (SamePositions(Impulse()), Impulse(), True),
        (SamePositions(Compose([KaimingUniform(), Mimetic()])), Compose([KaimingUniform(), Mimetic()]), True),
        (SamePositions(Impulse()), Scrambled(Impulse()), True),
        (SamePositions(Impulse()), Mimetic(), False),
        (Positions("sincos"), Impulse(), False),  # other positions
        (Positions("sincos"), Compose([KaimingUniform(), Mimetic()]), False),  # other surroundings
        (KaimingUniform(), Compose([KaimingUniform(), Mimetic()]), False),  # no positions
        (Positions("sincos", gain=0.5), Mimetic(), False),
        (Positions("sincos", trainable=False), Mimetic(), False),
        (Positions("sincos"), Positions("sincos"), False),  # nothing that a control would be for
        (Mimetic(value_output=False), Mimetic(), False),  # attention itself
    ],
)
def test_a_control_shares_all_but_attention(tiny_vit, control, arm, expected):
    build = lambda: tiny_vit(embed_dim=32, num_heads=2)  # noqa: E731
    assert is_control(report(build(), control), report(build(), arm)) is expected


def test_reports_of_before_writers_were_data_say_the_same(tiny_vit):
    given = [report(tiny_vit(), each) for each in (Positions("sincos"), Mimetic(), Impulse())]
    writers = {tuple(writer.values()) for entry in given[1]["entries"] for writer in entry["writers"]}
    assert writers == {("Mimetic", part) for part in ("query_key", "value_output", "positions")}
    older = copy.deepcopy(given)
    for entry in (entry for each in older for entry in each["entries"]):
        del entry["writers"]
    assert is_control(older[0], older[1])
    assert not is_control(older[0], older[2])


def test_a_parameter_that_differs_elsewhere_spoils_a_control(tiny_vit):
    control, arm = report(tiny_vit(), Positions("sincos")), report(tiny_vit(), Mimetic())
    changed = copy.deepcopy(arm)
    entry = next(entry for entry in changed["entries"] if entry["set_by"] == ["Mimetic: positions"])
    entry["after"]["std"] *= 1.001
    assert is_control(control, arm)
    assert not is_control(control, changed)


def test_controls_are_found_in_a_folder_and_the_users_win(comparison, known_effects):
    folder = comparison(known_effects, pieces=())
    manifest = read_manifest(folder)
    assert find_controls(manifest, find_runs(folder)) == {"mimetic": "sincos"}
    manifest = {**manifest, "controls": {"mimetic": "default"}}
    assert find_controls(manifest, find_runs(folder)) == {"mimetic": "default"}


def test_the_scrambled_arm_is_found_by_what_it_scrambles(comparison, known_effects):
    folder = comparison({**known_effects, "turned": known_effects["mimetic"]}, pieces=())
    manifest = read_manifest(folder)
    for arm, initializer in [("mimetic", Mimetic()), ("turned", Scrambled(Mimetic())), ("sincos", Positions())]:
        for path in folder.glob(f"runs/{arm}/*/init_report.json"):
            path.write_text(json.dumps({"initializer": repr(initializer), "entries": []}))
    assert find_scrambled(manifest, find_runs(folder)) == {"mimetic": "turned"}


def test_one_control_stands_for_all_other_arms():
    manifest = {"arms": dict.fromkeys(["default", "sincos", "mimetic", "impulse"]), "baseline": "default"}
    assert check_controls("sincos", manifest) == {"mimetic": "sincos", "impulse": "sincos"}
    assert check_controls(None, manifest) == {}


def test_an_unknown_control_is_one_line_with_the_nearest():
    manifest = {"arms": {"default": {}, "sincos": {}}, "baseline": "default"}
    with pytest.raises(StructuredInitError, match="did you mean 'sincos'"):
        check_controls({"default": "sincs"}, manifest)


def test_an_unknown_control_of_all_is_refused_where_there_is_only_the_baseline():
    with pytest.raises(StructuredInitError, match="did you mean 'default'"):
        check_controls("defualt", {"arms": {"default": {}}, "baseline": "default"})
