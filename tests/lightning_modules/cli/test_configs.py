from __future__ import annotations

import inspect
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml
from jsonargparse import ActionConfigFile

import structured_init
from callbacks import InitCallback
from comparison.run.resolve import ParseOnly
from lightning_modules.cli import main
from lightning_modules.cli.configurations import (
    SHIPPED,
    aliases,
    config_names,
    expand,
    find_config,
    layers_in,
    merged,
    shipped_configs,
    without,
)
from lightning_modules.cli.lightning_cli import Parser
from structured_init import StructuredInitError

CONFIGS = shipped_configs()
VARIANTS = [name for name, meaning in aliases().items() if not isinstance(meaning, str)]  # which hold what a file would
EXPERIMENTS = [name for name in (*CONFIGS, *VARIANTS) if name.startswith("experiment/")]
INITS = [name for name in CONFIGS if name.startswith("init/")]
# What every shipped name resolved to when published numbers were measured with it, or when it was a file of its own: a
# file that is layered over another, a preset that leaves an argument to its class, and a variant that is a line of
# aliases.yaml resolve to the same values, also after a default of a class has changed.
MEASURED = json.loads(Path(__file__).with_name("measured_configs.json").read_text(encoding="utf-8"))
ONE_OF_EACH = list({name.partition("/")[0]: name for name in (*CONFIGS, *VARIANTS)}.values())


def parsed(*names):
    """The configuration that the command line makes of the files, without building anything."""
    out = io.StringIO()
    layers = [argument for name in names for argument in ("-c", name)]
    with redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main(["fit", *layers, "--print_config"])
    assert stop.value.code in (0, None)
    return yaml.safe_load(out.getvalue())


def given(name):
    return find_config(name).content()


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


@pytest.mark.parametrize("name", sorted({*CONFIGS} - MEASURED.keys() | {*ONE_OF_EACH}))
def test_every_value_in_a_file_counts_beside_those_of_an_experiment(name):
    """Of the files that were there when numbers were measured one of each folder: below, their values are resolved."""
    below = {"experiment": [], "init": ["vit_cifar10"], "token_mixing": ["gpt_shakespeare_short"]}
    below = below.get(name.partition("/")[0], ["vit_digits"])
    both = parsed(*below, name)
    assert_within(given(name), both)
    if name in INITS:  # which sets nothing that an experiment does
        assert_within(given(*below), both)
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
    assert find_config(name).files[-1] == SHIPPED / "experiment" / "vit_digits.yaml"


def test_a_file_of_the_users_comes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vit_digits").write_text("{}")
    assert expand(["-c", "vit_digits"]) == ["-c", "vit_digits"]


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
        find_config(name)


def test_the_command_line_is_expanded_and_nothing_else_touched():
    path = str(CONFIGS["init/mimetic"])
    assert expand(["fit", "-c", "mimetic", f"--config={path}", "--plan", "--x", "init/mimetic"]) == [
        "fit", "-c", path, "--config", path, "--plan=true", "--x", "init/mimetic"
    ]  # fmt: skip
    assert expand(["show", "--plan", "false"]) == ["show", "--plan", "false"]


def test_a_file_comes_after_those_it_is_layered_over():
    files = [path.relative_to(SHIPPED).as_posix() for path in find_config("vit_cifar100").files]
    assert files == [
        *("data/cifar10.yaml", "experiment/vit_cifar10.yaml", "data/cifar100.yaml", "experiment/vit_cifar100.yaml")
    ]
    assert expand(["fit", "-c", "vit_cifar10"]) == [
        "fit", "-c", str(CONFIGS["data/cifar10"]), "-c", str(CONFIGS["experiment/vit_cifar10"])
    ]  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_repeats_nothing_that_it_is_layered_over(name):
    """Its data are those of a file of ``data``, and each value that it gives is another one than below it."""
    texts = [layer if isinstance(layer, str) else layer.read_text() for layer in find_config(name).layers]
    *below, alone = [yaml.safe_load(text) for text in texts]
    assert any("model" not in each and "data" in each for each in below)
    whole = {}
    for each in below:
        whole = merged(whole, each)
    assert not set(leaves(alone)) & set(leaves({key: whole[key] for key in alone if key in whole and key != "layers"}))


def leaves(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict) and key != "network_args":  # which is replaced as a whole
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", repr(value)


def test_the_users_files_are_layered_too_by_path_or_by_name(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("layers: data/digits\nmodel: {init_args: {warmup_epochs: 3}}\n")
    (tmp_path / "mine.yaml").write_text(
        "trainer: {max_epochs: 2}\nlayers:\n  - vit_cifar10\n  - base.yaml\nseed_everything: 5\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    both = parsed(str(tmp_path / "mine.yaml"))
    assert both["data"]["init_args"]["name"] == "digits"
    assert both["data"]["init_args"]["rand_augment"]
    assert both["model"]["init_args"]["warmup_epochs"] == 3
    assert (both["trainer"]["max_epochs"], both["trainer"]["gradient_clip_val"], both["seed_everything"]) == (2, 3.0, 5)


def test_a_file_that_is_layered_over_itself_or_over_nothing_known_is_one_line(tmp_path):
    (tmp_path / "a.yaml").write_text("layers: [b.yaml]")
    (tmp_path / "b.yaml").write_text("layers: [a.yaml]")
    with pytest.raises(StructuredInitError, match=r"a.yaml' includes itself: remove it from 'layers'$"):
        expand(["fit", "-c", str(tmp_path / "a.yaml")])
    (tmp_path / "b.yaml").write_text("layers: [data/cifr10]")
    with pytest.raises(StructuredInitError, match="did you mean 'data/cifar10'"):
        expand(["fit", "-c", str(tmp_path / "a.yaml")])


def test_the_lines_of_a_file_keep_their_numbers_without_its_layers():
    text = "# one\nlayers:\n  - a\n  - b\nmodel:\n  layers: 3\n"
    assert without(text, "layers") == "# one\n\n\n\nmodel:\n  layers: 3\n"
    assert layers_in(text) == ["a", "b"]
    assert without("layers: [a]\n", "layers") == without("layers: a\n", "verbose", "layers") == "{}\n"
    assert without("ckpt_path: null\nmodel: A\nverbose: true\n", "verbose", "ckpt_path") == "\nmodel: A\n\n"
    assert layers_in("model: {layers: [a]}\n") == layers_in("layers: [a\n") == []


def test_a_dictionary_that_is_one_argument_is_replaced_and_a_class_merged_with_itself_alone():
    below = {"model": {"class_path": "A", "init_args": {"network_args": {"x": 1}, "lr": 1}}, "trainer": {"devices": 1}}
    above = {"model": {"init_args": {"network_args": {"y": 2}}}, "trainer": {"max_epochs": 3}}
    assert merged(below, above) == {
        "model": {"class_path": "A", "init_args": {"network_args": {"y": 2}, "lr": 1}},
        "trainer": {"devices": 1, "max_epochs": 3},
    }
    assert merged(below, {"model": {"class_path": "B"}})["model"] == {"class_path": "B"}


def test_a_variant_is_a_file_with_other_arguments_and_braces_add_to_it():
    path = str(CONFIGS["init/covariance"])
    frozen, trace = (f"--init.initializer.init_args.{word}" for word in ("frozen=true", "normalize=trace"))
    names = ("covariance_trace_frozen", "init/covariance_trace_frozen", "configs/init/covariance_trace_frozen.yaml")
    for name in names:
        assert expand(["fit", "-c", name, "--x"]) == ["fit", "-c", path, trace, frozen, "--x"]
    assert expand(["--config=covariance_trace{frozen=true}"]) == ["--config", path, trace, frozen]
    assert str(find_config("covariance_trace").files[-1]) == path


def test_a_variant_may_hold_what_a_file_would_and_be_a_layer_of_a_file(tmp_path):
    """``vit_svhn`` is two names, and ``cct_7_3x1_cifar10_5000`` one change over a variant."""
    assert expand(["-c", "vit_svhn"]) == expand(["-c", "vit_cifar10", "-c", "data/svhn"])
    *below, option, text = expand(["--config=cct_7_3x1_cifar10_5000"])
    assert (below, option) == (expand(["--config=cct_7_3x1_cifar10_1500"]), "--config")
    assert yaml.safe_load(text) == {"trainer": {"max_epochs": 5000}}
    (tmp_path / "mine.yaml").write_text("layers: [data/mnist]\n")
    mine = str(tmp_path / "mine.yaml")
    assert expand(["-c", mine]) == [*expand(["-c", "data/mnist"]), "-c", mine]
    (tmp_path / "mine.yaml").write_text("layers: [init/filters_box]\n")
    with pytest.raises(StructuredInitError, match=r"name it with -c, not in 'layers'$"):
        expand(["-c", mine])


def test_a_variant_that_sets_no_initializer_has_no_control():
    with pytest.raises(StructuredInitError, match=r"replace}+' sets no initializer, so no control of it can be made"):
        expand(["-c", "token_softmax/replace_scrambled"])


def test_an_optimizer_for_language_has_the_learning_rates_of_the_modern_experiment():
    own, again, adamw = (
        parsed(*names)["model"]["init_args"]["optimizer"]
        for names in (
            ["llama_modern_short"],
            ["llama_modern_short", "optim/adamw_language", "optim/muon_language"],
            ["llama_modern_short", "optim/adamw_language"],
        )
    )
    assert again == own
    assert (adamw["init_args"]["lr"], adamw["init_args"]["betas"]) == (0.003, [0.9, 0.95])


def test_a_variant_hides_no_file_and_stands_for_one():
    assert not aliases().keys() & shipped_configs().keys()
    for name in aliases():
        assert name in config_names()
        assert set(find_config(name).files) <= set(shipped_configs().values())
    with pytest.raises(StructuredInitError, match="did you mean 'init/skipless_dino'"):
        find_config("init/skipless_dno")


@pytest.mark.parametrize("name", INITS)
def test_a_preset_leaves_to_a_class_what_are_its_defaults(name):
    assert not [argument for node in objects(given(name)["init"]["initializer"]) for argument in repeated(node)]


def objects(node):
    """Every class that a part of a file builds."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from objects(value)
    if isinstance(node, dict) and "class_path" in node:
        yield node


def repeated(node):
    found = inspect.signature(getattr(structured_init, node["class_path"])).parameters
    return [key for key, value in node.get("init_args", {}).items() if found[key].default == value]


@pytest.fixture(scope="module")
def resolve():
    """Return every value that a command line gives: of ``fit``, and of the section ``init`` alone, which is faster."""
    whole, init = ParseOnly(expand(["fit", "-c", "vit_digits"])).parser, Parser()
    init.add_argument("-c", action=ActionConfigFile)
    init.add_lightning_class_args(InitCallback, "init")

    def values(name, *words):
        parser = init if name.startswith("init/") else whole
        below = "gpt_python_docs_short" if name.startswith("token_mixing/") else "cct_2_3x2_cifar10_short"
        words = words if parser is init else ("fit", "-c", below, *words)
        words = ("fit", *words[-2:]) if name.startswith("experiment/") else words
        parsed = parser.parse_args(expand(list(words)))
        return yaml.safe_load(parser.dump(parsed, skip_none=False, skip_validation=True))

    return values


@pytest.mark.parametrize("name", MEASURED)
def test_a_name_resolves_to_the_values_that_were_measured(name, resolve, tmp_path):
    content, resolved = find_config(name).content(), resolve(name, "-c", name)
    assert_within(content, resolved.get("fit", resolved))
    for number, layered in enumerate([content] if content == MEASURED[name] else [content, MEASURED[name]]):
        (tmp_path / f"{number}.yaml").write_text(
            json.dumps(layered)
        )  # as one file: layered as the command line does it
        assert resolved == resolve(name, "-c", str(tmp_path / f"{number}.yaml"))


def test_no_name_was_lost():
    assert len(MEASURED) >= 165
    assert MEASURED.keys() <= set(config_names())
