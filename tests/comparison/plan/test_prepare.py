"""From the command line to a checked comparison."""

import argparse
import os

import lightning.pytorch as pl
import pytest
import strangers
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from comparison.command.options import compare_parser, parse_rates, parse_seeds
from comparison.plan.arms import Arm, parse_arms
from comparison.plan.experiment import _quiet
from comparison.plan.prepare import parse_grid, prepare
from lightning_modules.cli.configurations import find_config
from structured_init import StructuredInitError
from structured_init.presets import split_outside_brackets


def test_names_paths_labels_and_overrides_become_arms_in_their_order(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("init: {initializer: Default}\n")
    arms = parse_arms(f"sincos, other=mimetic ,wide=impulse{{kernel_size=5,offsets=random}},{file}")
    assert list(arms) == ["sincos", "other", "wide", "mine"]
    assert arms["other"].init == "mimetic"
    assert arms["wide"].overrides == {"kernel_size": "5", "offsets": "random"}
    assert arms["wide"].configuration == "init/impulse{kernel_size=5,offsets=random}"
    assert arms["mine"].configuration == str(file)


def test_a_variant_of_the_network_is_an_arm_by_the_name_of_its_folder():
    arms = parse_arms("default,token_mixing/canon,other=token_mixing/canon,configs/token_mixing/short_convolution.yaml")
    assert list(arms) == ["default", "canon", "other", "short_convolution"]
    assert arms["canon"].configuration == arms["other"].configuration == "token_mixing/canon"


def test_a_control_is_an_arm_by_the_ending_of_its_name(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("init: {initializer: Mimetic}\n")
    arms = parse_arms(f"mimetic_scrambled,impulse_positions{{kernel_size=5}},{tmp_path}/mine_scrambled.yaml")
    assert list(arms) == ["mimetic_scrambled", "impulse_positions_kernel_size_5", "mine_scrambled"]
    made = [find_config(arm.configuration).content()["init"]["initializer"] for arm in arms.values()]
    assert [each["class_path"] for each in made] == ["Scrambled", "SamePositions", "Scrambled"]
    inner = [each["init_args"]["initializer"] for each in made]
    assert inner[0] == find_config("init/mimetic").content()["init"]["initializer"]
    assert inner[1]["init_args"]["kernel_size"] == 5
    assert inner[2] == {"class_path": "Mimetic"}


def test_the_control_of_an_arm_has_its_arguments_and_is_named_by_its_label():
    arms = parse_arms("wide=impulse{kernel_size=5},wide_scrambled")
    control = Arm("wide_scrambled", "impulse_scrambled", {"kernel_size": "5"})
    assert arms["wide_scrambled"] == arms["wide"].control("_scrambled") == control


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


def test_yaml_that_holds_itself_is_refused_in_one_line(tmp_path):
    """No alias is read, so that none can stand for more than fits into memory."""
    (tmp_path / "mine.yaml").write_text("init: &own {initializer: *own}\n")
    (arm,) = parse_arms(str(tmp_path / "mine.yaml")).values()
    with pytest.raises(StructuredInitError, match=r"mine\.yaml' is not YAML: an alias \(\*name\) is not read"):
        find_config(arm.configuration)


def test_seeds_are_listed_or_a_range():
    assert parse_seeds("0,1,2") == [0, 1, 2]
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("7,0-2") == [7, 0, 1, 2]
    for wrong in ("", "a", "1,1", "3-1", "0-2,2", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="seeds"):
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
    for wrong in ("", "fast", "0", "-1", "nan", "inf", "1e-3,0.001"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected a number|name one twice"):
            parse_rates(wrong)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(strangers.Einsum())  # 12 numbers in 3 heads; found on samples of the data alone

    def forward(self, x):
        return self.network(x)

    def validation_step(self, batch):
        """Log nothing."""

    test_step = validation_step


class Data(pl.LightningDataModule):
    def setup(self, stage):
        self.numbers = TensorDataset(torch.randn(6, 5, 12), torch.zeros(6))

    def train_dataloader(self):
        return DataLoader(self.numbers, batch_size=3)

    test_dataloader = train_dataloader


class Rated(Module):
    def __init__(self, lr: float = 0.1):
        super().__init__()


class TrainingAlone(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(6, 5, 12)))


def prepared(folder, data, *words, model="Module", race=False):
    (folder / "own.yaml").write_text(f"model: {__name__}.{model}\ndata: {__name__}.{data}\n")
    words = ["-c", str(folder / "own.yaml"), "--inits", "default,mimetic", "--seeds", "0-4", *words]
    options = compare_parser().parse_args([*words, "--output", str(folder / "out")])
    return prepare(options, ["--trainer.max_epochs=1", "--trainer.accelerator=cpu"], "", race=race)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("test/loss", "has no test_dataloader, and the metric is 'test/loss': give --metric val/loss, or write one"),
        ("val/loss", "has no val_dataloader, and the metric is 'val/loss': write one"),
    ],
)
def test_a_metric_of_a_split_without_data_is_refused_before_anything_is_trained(tmp_path, metric, message):
    with pytest.raises(StructuredInitError, match=f"^TrainingAlone {message}$"):
        prepared(tmp_path, "TrainingAlone", "--metric", metric)


@pytest.mark.parametrize(
    ("rates", "race", "what"),
    [(["--learning-rates", "1e-3,1e-2"], False, "learning rates are chosen"), ([], True, "initializations are raced")],
)
def test_what_is_chosen_on_validation_data_is_refused_without(tmp_path, rates, race, what):
    with pytest.raises(StructuredInitError, match=f"^Data has no val_dataloader, and {what} on 'val/loss': write one$"):
        prepared(tmp_path, "Data", "--metric", "test/loss", *rates, model="Rated", race=race)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["metric: test/loss, lower is better, as the module has no headline; --metric NAME chooses another that "
              "it logs"]),
        (["--metric", "test/accuracy"], []),
    ],
)  # fmt: skip
def test_a_module_that_names_no_metric_is_said_to_be_judged_by_its_loss(tmp_path, words, said):
    """Not where one is chosen."""
    assert prepared(tmp_path, "Data", *words).notices == said


def test_a_control_that_is_named_keeps_the_role_of_its_name(tmp_path):
    words = ["--inits", "default,mimetic,mimetic_scrambled", "--control", "mimetic=mimetic_scrambled"]
    assert prepared(tmp_path, "Data", *words).controls == {"mimetic": {"mimetic_scrambled": "scrambled"}}


@pytest.mark.parametrize("before", [None, "7"])
def test_reading_an_experiment_leaves_the_seed_alone_and_what_its_module_sets_set(monkeypatch, before):
    monkeypatch.setenv("SET_BY_A_MODULE", "no")
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    if before:
        monkeypatch.setenv("PL_GLOBAL_SEED", before)
    with _quiet():
        os.environ.update(PL_GLOBAL_SEED="1", SET_BY_A_MODULE="yes")
    assert (os.environ.get("PL_GLOBAL_SEED"), os.environ["SET_BY_A_MODULE"]) == (before, "yes")
