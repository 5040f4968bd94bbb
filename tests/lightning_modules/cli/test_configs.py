from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from lightning_modules.cli import main
from lightning_modules.cli.config_names import SHIPPED, config_path, expand, shipped_configs
from structured_init import StructuredInitError

CONFIGS = shipped_configs()
EXPERIMENTS = [name for name in CONFIGS if name.startswith("experiment/")]
INITS = [name for name in CONFIGS if name.startswith("init/")]


def parsed(*names):
    """The configuration that the command line makes of the files, without building anything."""
    out = io.StringIO()
    layers = [argument for name in names for argument in ("-c", name)]
    with redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main(["fit", *layers, "--print_config"])
    assert stop.value.code in (0, None)
    return yaml.safe_load(out.getvalue())


def given(name):
    return yaml.safe_load(CONFIGS[name].read_text())


def assert_within(part, whole):
    """Every value written in a file is in the result, class names by their last part."""
    for key, value in part.items():
        if isinstance(value, dict):
            assert_within(value, whole[key])
        elif key == "class_path":
            assert whole[key].rpartition(".")[2] == value.rpartition(".")[2]
        elif not isinstance(value, list):
            assert whole[key] == value, key


def test_there_are_configurations_of_every_kind():
    assert {name.partition("/")[0] for name in CONFIGS} >= {"experiment", "init", "trainer", "data"}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_file_parses_and_every_value_in_it_counts(name):
    layers = [name] if name.startswith("experiment/") else ["experiment/vit_digits", name]
    assert_within(given(name), parsed(*layers))


@pytest.mark.parametrize("init", INITS)
def test_an_experiment_and_a_start_keep_both_sections(init):
    both = parsed("experiment/vit_cifar10", init)
    assert_within(given("experiment/vit_cifar10"), both)
    assert_within(given(init), both)
    assert both["attention"]["enabled"]


def test_the_published_recipe_is_what_the_experiment_says():
    recipe = parsed("vit_cifar10")
    optimizer = recipe["model"]["init_args"]["optimizer"]
    assert optimizer["class_path"] == "torch.optim.AdamW"
    assert [optimizer["init_args"][key] for key in ("lr", "eps", "weight_decay")] == [1e-3, 1e-3, 1e-2]
    schedule = recipe["model"]["init_args"]
    assert [schedule[key] for key in ("warmup_epochs", "warmup_lr", "min_lr")] == [10, 1e-5, 1e-6]
    assert schedule["label_smoothing"] == 0.1
    assert recipe["data"]["init_args"]["batch_size"] == 512
    assert recipe["data"]["init_args"]["rand_augment"] == "rand-m9-mstd0.5-inc1"
    assert recipe["data"]["init_args"]["crop_scale"] is None
    assert [recipe["trainer"][key] for key in ("max_epochs", "gradient_clip_val")] == [200, 3.0]


@pytest.mark.parametrize(
    ("name", "epochs", "changed"), [("convmixer_cifar10", 25, 0.0), ("convmixer_cifar10_100", 100, 0.2)]
)
def test_the_recipe_of_the_convmixers_is_the_one_of_their_authors(name, epochs, changed):
    """locuslab/convmixer-cifar10, README: the lines of 92.5 % and of over 94 %."""
    recipe = parsed(name)
    model, data = recipe["model"]["init_args"], recipe["data"]["init_args"]
    optimizer = model["optimizer"]
    assert optimizer["class_path"] == "torch.optim.AdamW"
    assert [optimizer["init_args"][key] for key in ("lr", "weight_decay")] == [0.05, 0.005]
    assert model["lr_schedule"] == [[0, 0], [0.4, 1], [0.8, 0.05], [1, 0]]
    assert model["decay_all"]
    assert (model["label_smoothing"], model["mixup"], model["cutmix"]) == (0, 0, 0)
    assert data["batch_size"] == 512
    assert data["augmentation"]["class_path"].endswith("TorchvisionAugmentation")
    assert data["augmentation"]["init_args"] == {
        "crop_scale": 1.0,
        "rand_augment_ops": 2,
        "rand_augment_magnitude": 12,
        "color_jitter": changed,
        "random_erasing": changed,
    }
    assert (data["mean"], data["std"]) == ([0.4914, 0.4822, 0.4465], [0.2471, 0.2435, 0.2616])
    assert (recipe["trainer"]["max_epochs"], recipe["trainer"]["gradient_clip_val"]) == (epochs, None)


def test_the_kernel_of_the_short_convmixer_is_one_argument():
    out = io.StringIO()
    override = ["--model.init_args.network_args.kernel_size", "3"]
    with redirect_stdout(out), pytest.raises(SystemExit):
        main(["fit", "-c", "convmixer_cifar10_short", *override, "--print_config"])
    assert yaml.safe_load(out.getvalue())["model"]["init_args"]["network_args"] == {"kernel_size": 3}


def test_a_later_file_wins_and_leaves_its_neighbours(tmp_path):
    (tmp_path / "more.yaml").write_text("model: {init_args: {optimizer: {init_args: {lr: 0.5}}}}")
    optimizer = parsed("vit_cifar10", str(tmp_path / "more.yaml"))["model"]["init_args"]["optimizer"]["init_args"]
    assert (optimizer["lr"], optimizer["eps"]) == (0.5, 1e-3)


@pytest.mark.parametrize(
    "name", ["vit_digits", "experiment/vit_digits", "configs/experiment/vit_digits.yaml", "vit_digits.yaml"]
)
def test_a_shipped_file_is_found_by_any_of_its_names_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Path(config_path(name)) == SHIPPED / "experiment" / "vit_digits.yaml"


def test_a_file_of_the_users_comes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vit_digits").write_text("{}")
    assert config_path("vit_digits") == "vit_digits"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_digit", "did you mean 'vit_digits'"),
        ("init/mimetc", "did you mean 'init/mimetic'"),
        ("zzzzzz", "choose from"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, message):
    with pytest.raises(StructuredInitError, match=message):
        config_path(name)


def test_the_command_line_is_expanded_and_nothing_else_touched():
    path = str(CONFIGS["init/mimetic"])
    assert expand(["fit", "-c", "mimetic", f"--config={path}", "--plan", "--x", "init/mimetic"]) == [
        "fit", "-c", path, f"--config={path}", "--plan=true", "--x", "init/mimetic"
    ]  # fmt: skip
    assert expand(["show", "--plan", "false"]) == ["show", "--plan", "false"]
