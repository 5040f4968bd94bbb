import pytest

from comparison.run.arms import Arm, parse_arms
from comparison.run.prepare import parse_grid, parse_rates, parse_seeds
from lightning_modules.cli.config_names import find_config, read_config
from structured_init import StructuredInitError
from structured_init.presets import split_outside_brackets


def test_names_paths_labels_and_overrides_become_arms_in_their_order(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("init: {initializer: Default}\n")
    arms = parse_arms(f"sincos, other=mimetic ,wide=impulse{{kernel_size=5,offsets=covering}},{file}")
    assert list(arms) == ["sincos", "other", "wide", "mine"]
    assert arms["other"].init == "mimetic"
    assert arms["wide"].overrides == {"kernel_size": "5", "offsets": "covering"}
    assert arms["wide"].arguments() == [
        *("-c", "init/impulse", "--init.initializer.init_args.kernel_size=5"),
        "--init.initializer.init_args.offsets=covering",
    ]
    assert arms["mine"].arguments() == ["-c", str(file)]


def test_a_variant_of_the_network_is_an_arm_by_the_name_of_its_folder():
    arms = parse_arms("default,token_softmax/replace,other=token_softmax/replace,configs/token_softmax/add.yaml")
    assert list(arms) == ["default", "replace", "other", "add"]
    assert arms["replace"].arguments() == arms["other"].arguments() == ["-c", "token_softmax/replace"]


def test_a_relative_path_is_good_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert parse_arms("mine.yaml")["mine"].arguments() == ["-c", str(tmp_path / "mine.yaml")]


def test_a_control_is_an_arm_by_the_ending_of_its_name(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("init: {initializer: Mimetic}\n")
    arms = parse_arms(f"mimetic_scrambled,impulse_positions{{kernel_size=5}},{tmp_path}/mine_scrambled.yaml")
    assert list(arms) == ["mimetic_scrambled", "impulse_positions_kernel_size_5", "mine_scrambled"]
    made = [find_config(arm.arguments()[1]).content()["init"]["initializer"] for arm in arms.values()]
    assert [each["class_path"] for each in made] == ["Scrambled", "SamePositions", "Scrambled"]
    inner = [each["init_args"]["initializer"] for each in made]
    assert inner[0] == read_config("init/mimetic")["init"]["initializer"]
    assert inner[1]["init_args"]["kernel_size"] == 5
    assert inner[2] == {"class_path": "Mimetic"}


def test_the_control_of_an_arm_has_its_arguments():
    (arm,) = parse_arms("wide=impulse{kernel_size=5}").values()
    assert arm.control("_scrambled") == Arm("wide_scrambled", "impulse_scrambled", {"kernel_size": "5"})


def test_a_control_of_what_is_not_there_is_answered_with_the_nearest_name():
    with pytest.raises(StructuredInitError, match=r"no initialization 'mimetc_scrambled'.* did you mean 'mimetic'"):
        parse_arms("mimetc_scrambled")


def test_an_arm_without_a_label_is_named_by_what_it_changes():
    assert list(parse_arms("impulse,impulse{kernel_size=5},impulse{a.b=[1,2]}")) == [
        *("impulse", "impulse_kernel_size_5", "impulse_b_1_2"),
    ]


def test_a_value_may_hold_commas_in_brackets_and_equals_signs():
    (arm,) = parse_arms("x=sincos{where={a: 1, b: [2,3]},form=k=v}").values()
    assert arm.overrides == {"where": "{a: 1, b: [2,3]}", "form": "k=v"}
    assert split_outside_brackets("a,(b,c),,d") == ["a", "(b,c)", "d"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defalt", "there is no initialization 'defalt', neither shipped nor a file: did you mean 'default'?"),
        ("default,default", "two initializations are labelled 'default': name one, as in other=default"),
        ("", "--inits names no initialization"),
        ("impulse{kernel_size=5", "the brackets in 'impulse{kernel_size=5' do not match"),
        ("impulse{kernel_size}", "cannot read 'kernel_size' in 'impulse{kernel_size}': write argument=value"),
        ("a/b=default", "'a/b' cannot be a label"),
        ("=default", "'' cannot be a label"),
        (
            "a" * 300 + "=default",
            "'aaaaaaaaaaaaaaaaaaaa…' cannot be a label: it has 300 characters and names folders: give",
        ),
    ],
)
def test_a_mistake_in_the_starts_is_answered_in_one_line(text, message):
    with pytest.raises(StructuredInitError) as error:
        parse_arms(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_seeds_are_listed_or_a_range():
    assert parse_seeds("0,1,2") == [0, 1, 2]
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("7,0-2") == [7, 0, 1, 2]
    for wrong in ("", "a", "1,1", "3-1", "0-2,2", "-1"):
        with pytest.raises(StructuredInitError, match="seeds"):
            parse_seeds(wrong)


def test_a_grid_has_values_by_key():
    assert parse_grid(["data.fraction=0.1,0.5", "--model.x=[1,2],null"]) == {
        "data.fraction": ["0.1", "0.5"],
        "model.x": ["[1,2]", "null"],
    }
    for wrong in ("data.fraction", "data.fraction=", "=1", "a=1,1", "init.seed=1,2", "seed_everything=1"):
        with pytest.raises(StructuredInitError):
            parse_grid([wrong])


def test_learning_rates_are_positive_numbers():
    assert parse_rates("5e-4,0.001") == [0.0005, 0.001]
    assert parse_rates("") == []
    for wrong in ("fast", "0", "-1", "nan", "inf", "1e-3,0.001"):
        with pytest.raises(StructuredInitError, match="learning rates"):
            parse_rates(wrong)
