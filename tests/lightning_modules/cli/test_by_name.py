"""Models of timm and transformers by their names, initializations by theirs; the list of what fits; short help."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from transformers import Mamba2Config, TrOCRConfig, VisionEncoderDecoderConfig, ViTConfig

import structured_init
from lightning_modules.cli import main, show
from lightning_modules.cli.commands import BUILT_IN, OWN
from lightning_modules.cli.configurations import config_names
from lightning_modules.cli.lightning_cli import CLI
from lightning_modules.cli.listing import fitting, initializations
from lightning_modules.cli.show import NamedModel, by_position, planned
from structured_init.presets import preset_names

GPT = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 16}


@pytest.fixture
def config(folder):
    (folder / "gpt.json").write_text(json.dumps({**GPT, "architectures": ["GPT2LMHeadModel"]}))
    return "gpt.json"


def test_a_model_of_timm_is_audited_with_the_size_that_it_has(capsys):
    main(["audit", "test_vit"])
    said = capsys.readouterr().out
    numbers = sum(parameter.numel() for parameter in timm.create_model("test_vit").parameters())
    assert f"VisionTransformer: {numbers:,} numbers" in said
    assert "activations" in said  # it was run on images of its own size


def test_every_experiment_is_listed_with_the_first_sentence_of_its_comment(capsys):
    main(["list", "--experiments", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {name.partition("/")[2] for name in config_names() if name.startswith("experiment/")}
    assert said["vit_digits"].startswith("A small ViT on 1,797 real 8 x 8 digits that need no download")
    assert said["vit_modern_cifar10_short"].startswith("vit_cifar10_short under Muon: the strongest baseline")


def test_a_config_with_infinities_is_read_as_transformers_writes_it(folder, capsys):
    settings = {"num_hidden_layers": 2, "hidden_size": 32, "num_heads": 4, "head_dim": 16, "vocab_size": 50}
    config = Mamba2Config(**settings, state_size=8, n_groups=1)  # whose time_step_limit is (0, inf)
    config.save_pretrained("m2")
    assert "Infinity" in (folder / "m2" / "config.json").read_text()
    main(["audit", "m2", "--model.args.num_hidden_layers=1"])
    assert "Mamba2" in capsys.readouterr().out


def test_a_config_that_names_no_class_is_built_as_the_one_of_its_kind(capsys, folder):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = ViTConfig(**sizes, image_size=16, patch_size=8)
    decoder = TrOCRConfig(d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64, vocab_size=50)
    VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder).save_pretrained("ocr")
    main(["audit", "ocr"])
    assert "VisionEncoderDecoderModel: " in capsys.readouterr().out


def test_a_config_of_transformers_is_audited_as_the_class_that_it_names(config, capsys):
    main(["audit", config])
    said = capsys.readouterr().out
    assert "GPT2LMHeadModel" in said
    assert "GPT-2 depth scale" in said


def test_an_encoder_by_name_has_the_head_for_masked_tokens(folder, capsys):
    main(["audit", "bert", "--model.layers=1"])
    said = capsys.readouterr().out
    assert "BertForMaskedLM" in said
    assert "standalone" not in said


@pytest.mark.parametrize(
    ("kind", "stacks"),
    [
        ("bart", {"model.encoder.layers", "model.decoder.layers"}),
        ("whisper", {"model.encoder.layers", "model.decoder.layers"}),
        ("t5", {"encoder.block", "decoder.block"}),
        ("clip", {"text_model.encoder.layers", "vision_model.encoder.layers"}),
        ("swin", {"encoder.layers.2.blocks"}),
    ],
)
def test_every_stack_of_a_model_of_transformers_is_built_with_the_layers_that_are_asked(kind, stacks):
    with torch.device("meta"):
        names = "\n".join(name for name, _ in NamedModel(kind, layers=2).network.named_parameters())
    for stack in stacks:
        assert set(re.findall(rf"^{stack}\.(\d+)\.", names, re.MULTILINE)) == {"0", "1"}, stack


def test_a_model_of_ones_own_is_named_by_module_and_function(folder, capsys, monkeypatch):
    (folder / "own_net.py").write_text("from torch import nn\n\ndef build(width=8):\n    return nn.Linear(width, 3)\n")
    main(["audit", "own_net:build", "--model.args.width=5"])
    assert "Linear: 18 numbers" in capsys.readouterr().out
    (folder / "own_net.py").write_text("def bug(width=8):\n    return width + 'a'\n")
    monkeypatch.delitem(sys.modules, "own_net")
    importlib.invalidate_caches()
    with pytest.raises(TypeError, match="unsupported operand"):  # an error of one's own keeps its traceback
        main(["audit", "own_net:bug"])
    with pytest.raises(SystemExit):
        main(["audit", "own_net:bug", "--model.args.depth=5"])
    assert "cannot build 'own_net:bug': got an unexpected keyword argument 'depth'" in capsys.readouterr().err


def test_show_by_name_gives_the_weights_of_the_one_line_of_python(folder, capsys):
    main(
        ["show", "test_vit", "mimetic_host", "--model.args.num_classes=7", "--export", "mine.safetensors", "--no-open"]
    )
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=7)
    structured_init.initialize(model, "mimetic_host", seed=0)
    shown = load_file("mine.safetensors")
    assert torch.equal(shown["head.weight"], model.head.weight)
    assert timm.create_model("test_vit", num_classes=7, checkpoint_path="mine.safetensors").pos_embed.std() > 0.1
    assert torch.equal(shown["pos_embed"], model.pos_embed)
    assert torch.equal(shown["blocks.1.attn.qkv.weight"], model.blocks[1].attn.qkv.weight)


def test_exported_weights_that_are_tied_are_read_again(config, capsys):
    main(["show", config, "mimetic_language", "--export", "gpt.safetensors", "--output", "seen", "--no-open"])
    assert "transformer.wte.weight" not in load_file("gpt.safetensors")  # it is lm_head.weight
    main(["audit", config, "--checkpoint", "gpt.safetensors"])
    assert "GPT2LMHeadModel" in capsys.readouterr().out


def test_weights_of_a_module_around_a_network_or_of_a_plain_loop_are_read(folder, capsys):
    model = timm.create_model("test_vit")
    torch.nn.init.constant_(model.head.weight, 0.25)
    torch.save(model.state_dict(), "plain.pth")
    run = {f"network.{name}": each for name, each in model.state_dict().items()}
    version = {"pytorch-lightning_version": "2.6.0"}
    torch.save({"state_dict": run, **version}, "last.ckpt")
    torch.save({f"module._orig_mod.{name}": each for name, each in model.state_dict().items()}, "parallel.pth")
    torch.save({"state_dict": {**run, "class_weights": torch.ones(3), "more": {}}, **version}, "own.ckpt")
    for file in ("plain.pth", "parallel.pth", "own.ckpt", "last.ckpt"):
        main(["audit", "test_vit", "--checkpoint", file, "--output", file.partition(".")[0]])
        assert "constant 0.25" in capsys.readouterr().out
    assert Path("plain/audit.csv").read_text() == Path("last/audit.csv").read_text()
    with pytest.raises(SystemExit):
        main(["audit", "test_vit", "--model.args.num_classes=7", "--checkpoint", "last.ckpt"])
    assert "the checkpoint belongs to another network: 'head.weight' has shape" in capsys.readouterr().err


def test_a_model_that_is_more_than_its_network_is_looked_at_whole(folder, capsys):
    lines = "import timm\nfrom torch import nn\n\nclass Model(nn.Module):\n    def __init__(self):"
    parts = "self.network, self.head = timm.create_model('test_vit', num_classes=0), nn.Linear(64, 3)"
    Path("whole_net.py").write_text(f"{lines}\n        super().__init__()\n        {parts}\n")
    main(["show", "whole_net:Model", "default", "--export", "whole.safetensors", "--output", "seen", "--no-open"])
    assert "head.weight" in load_file("whole.safetensors")
    main(["audit", "whole_net:Model", "--checkpoint", "whole.safetensors"])
    assert "\nModel: " in f"\n{capsys.readouterr().out}"


def test_half_lives_of_states_are_shown_whatever_the_initialization(folder):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 50}
    Path("mamba.json").write_text(json.dumps({"model_type": "mamba", **sizes}))
    main(["show", "mamba.json", "mimetic_state_space{decay=false}", "--output", "seen", "--no-open"])
    assert Path("seen/half_lives.png").read_bytes()[:4] == b"\x89PNG"


def test_names_become_options_and_everything_else_stays():
    assert by_position(["show", "vit_digits", "mimetic{qk_alpha=0.1}", "--plan"]) == [
        *("show", "-c", "vit_digits", "-c", "init/mimetic{qk_alpha=0.1}", "--plan")
    ]
    assert by_position(["audit", "mine.yaml"]) == ["audit", "-c", "mine.yaml"]
    assert by_position(["fit", "vit_digits"]) == ["fit", "vit_digits"]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("audit test_vti", "there is no file, configuration or model 'test_vti': did you mean 'test_vit'?"),
        ("audit gpt3000.json", "there is no file, configuration or model 'gpt3000.json'"),
        ("audit bad.json", "'bad.json' is no configuration of transformers: it has no key 'model_type'"),
        ("show vit_digits mimtic", "there is no file 'mimtic', nor a shipped configuration: did you mean 'mimetic'?"),
        ("show test_vit induction", "Induction: 'blocks.0.attn'"),
        (
            "show resnet10t mimetic_host",
            "; these fit: delta_orthogonal, kaiming_uniform, truncated_normal",
        ),
        ("audit llama", "'llama' has 6,738,415,616 parameters: give fewer layers, --model.layers=2"),
        ("audit mobilenet_v1 --model.layers=2", "the configuration of 'mobilenet_v1' has no known number of layers: "),
        ("audit prophetnet --model.layers=2", "transformers cannot build 'prophetnet': This model does not support"),
        ("audit net.py", "'net.py' is a Python file: name what builds the model in it, as net:build"),
        ("audit json:bild", "cannot build 'json:bild': the module has no 'bild': choose from"),
        ("audit no_net:build", "cannot build 'no_net:build': there is no module 'no_net' in the present folder"),
        ("audit builtins:dict", "'builtins:dict' builds no torch.nn.Module, but dict"),
        ("show typo.json", "unknown model_type 'llamma': did you mean 'llama'?"),
        ("show negative.json", "transformers cannot build 'negative.json': Trying to create tensor with negative"),
        ("list --mdoel x", "'--mdoel' is no option of list: did you mean '--model'? (--for gives a network)"),
        ("list --fro x", "'--fro' is no option of list: did you mean '--for'?"),
        ("list vit_digits", "'vit_digits' is no option of list: "),
        ("list --for nosuch_vit", "there is no file, configuration or model 'nosuch_vit'"),
        ("list -c nosuch_vit", "there is no file, configuration or model 'nosuch_vit'"),
    ],
)
def test_a_wrong_name_is_answered_in_one_line(complaint, folder, arguments, answer):
    (folder / "bad.json").write_text("{}")
    (folder / "typo.json").write_text('{"model_type": "llamma"}')
    (folder / "negative.json").write_text('{"model_type": "gpt2", "n_embd": -3}')
    before = sorted(folder.iterdir())
    assert answer in complaint(main, arguments.split(" "))
    assert sorted(folder.iterdir()) == before


def test_every_initialization_is_listed_with_what_it_is_and_for_whom(capsys, monkeypatch):
    main(["list", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() <= set(preset_names())
    assert "mimetic_host" in rows
    assert all(row["what"].endswith(".") and row["networks"] for row in rows.values())
    assert rows["covariance"]["controls"].startswith("shown")
    monkeypatch.setenv("COLUMNS", "100")
    main(["list"])
    lines = (said := capsys.readouterr().out).splitlines()
    assert [line.split()[0] for line in lines if line and not line.startswith(" ") and line[-1] != ":"] == list(rows)
    groups = {group.partition(":\n")[0]: group for group in said.split("\n\n")}
    assert list(groups) == ["attention", "state space", "convolution", "any", "controls", "variants"]
    assert " covariance_frozen," in groups["variants"]
    assert "\nmamba_reference " in groups["state space"]
    assert "\nsincos " in groups["controls"]
    assert "\nstructured_2404 " in groups["attention"]  # a control of impulse_batch, and a paper's own
    assert max(map(len, lines)) <= 100


def test_what_fits_a_network_is_what_can_be_planned_on_it(config):
    names = ["default", "mimetic_host", "impulse", "previous_token", "mimetic_state_space", "patch_whitening",
             "delta_orthogonal", "covariance"]  # fmt: skip
    vision, language = fitting("test_vit", names), fitting(config, names)
    assert [name for name in names if not vision[name]] == ["default", "mimetic_host", "impulse", "patch_whitening"]
    assert vision["previous_token"].endswith("use Impulse")
    assert not language["previous_token"]
    assert "no state-space layer" in language["mimetic_state_space"]
    assert vision["delta_orthogonal"] == "it is made for convolutional networks"
    assert language["delta_orthogonal"] == "it is made for convolutional networks"
    Path("mamba.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1}))
    scan = fitting("mamba.json", names)
    assert [name for name in names if not scan[name]] == ["default", "mimetic_state_space"]
    assert scan["covariance"] == "it is made for depthwise convolutions"  # its convolutions are of one channel's past
    assert not fitting("convnext_atto", ["covariance"])["covariance"]


NARROWED = {  # with as many heads that a narrowed one has half of them
    "gpt2": GPT | {"n_embd": 128, "n_head": 8, "vocab_size": 2000, "bos_token_id": 1, "eos_token_id": 1},
    "qwen2": {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 256},
    "mamba2": {"hidden_size": 128, "num_heads": 8, "head_dim": 32, "n_groups": 1, "state_size": 16},
    "vit": {"hidden_size": 128, "num_attention_heads": 8, "intermediate_size": 256, "image_size": 32, "patch_size": 4},
}


@pytest.mark.parametrize("kind", NARROWED)
def test_what_fits_a_narrowed_model_is_what_fits_the_whole_one(folder, monkeypatch, kind):
    settings = {"model_type": kind, "num_hidden_layers": 3, "vocab_size": 2000, **NARROWED[kind]}
    Path("config.json").write_text(json.dumps(settings))
    chosen = ("mimetic_host", "sincos", "mimetic_state_space", "kaiming_uniform")
    names = [*chosen, *[row["name"] for row in initializations()][list(NARROWED).index(kind) :: len(NARROWED)]]
    whole, size = fitting("config.json", names), sum(each.numel() for each in NamedModel("config.json").parameters())
    monkeypatch.setattr(show, "NARROW", 1)
    narrow = fitting("config.json", names)
    assert {name: not why for name, why in narrow.items()} == {name: not why for name, why in whole.items()}
    assert sum(each.numel() for each in NamedModel("config.json", 3, narrow=True).parameters()) < size / 2
    for name in chosen:
        refused = narrow[name] and "can be written" not in narrow[name]
        with pytest.raises(structured_init.StructuredInitError) if refused else contextlib.nullcontext():
            assert structured_init.initialize(NamedModel("config.json").network, name).changed


@pytest.mark.parametrize("name", ["pit_ti_224", "nextvit_small", "csatv2_21m"])
def test_a_family_that_takes_no_other_number_of_stages_is_built_whole(name):
    with torch.device("meta"):
        assert str(NamedModel(name, 2, narrow=True).network) == str(timm.create_model(name))


def test_a_table_for_a_network_says_first_what_fits(folder, capsys):
    main(["list", "--model", "tiny.yaml"])
    fit, others = capsys.readouterr().out.split("\n\n")
    assert fit.startswith("these fit:\n")
    assert "\nmimetic_host " in fit
    assert "\ncovariance, filters_random: found no depthwise convolution\n" in others
    said = "\nmimetic_language, mimetic_stream: it is made for language models, though it can be written here\n"
    assert said in re.sub("\n +", " ", others)
    names = [line.split()[0] for line in fit.splitlines() if not line.startswith((" ", "these"))]
    for reason in re.sub(r"\n +", " ", others).splitlines()[1:]:
        names += reason.partition(": ")[0].split(", ")
    assert sorted(names) == sorted(row["name"] for row in initializations())


def test_filters_of_series_are_filters():
    model = torch.nn.Sequential(torch.nn.Conv1d(4, 8, 1), torch.nn.Conv1d(8, 8, 15, padding=7, groups=8))
    why = planned(model, samples=torch.randn(2, 4, 32))
    assert why["covariance"] == why["filters_random"] == why["delta_orthogonal"] == ""


@pytest.mark.parametrize("command", OWN)
def test_a_commands_own_options_come_first_and_the_parser_knows_them(command, capsys):
    assert main([command, "--help"]) is None
    said = capsys.readouterr().out
    assert said.startswith(f"usage: structured-init {command}")
    assert len(said.splitlines()) < 30
    assert said.splitlines()[-1].startswith("documentation: ")
    own = [option.split()[0].strip(",") for option in OWN[command] if option.startswith("-")]
    with pytest.raises(SystemExit):
        CLI([command, "--help"])
    everything = capsys.readouterr().out
    dependent = ("--model.", "--data.", "--no-open")  # of a class, and what has nothing to do
    assert [option for option in own if not option.startswith(dependent) and option not in everything] == []


def test_every_command_has_help_that_names_the_documentation(capsys):
    for command in (["--help"], ["list", "--help"], ["compare", "--help"], ["judge", "--help"]):
        with contextlib.suppress(SystemExit):
            main(command)
        assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("documentation: "), command
    assert "list" in BUILT_IN
