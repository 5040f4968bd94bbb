"""Models of timm and transformers by their names, initializations by theirs; the list of what fits; short help."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
import timm
import torch
from safetensors.torch import load_file

import structured_init
from lightning_modules.cli import main
from lightning_modules.cli.commands import EVERYWHERE, OWN
from lightning_modules.cli.configurations import config_names
from lightning_modules.cli.lightning_cli import CLI
from lightning_modules.cli.listing import configurations

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


def test_every_experiment_is_listed_with_the_first_sentence_of_its_comment(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    main(["list", "--experiments"])
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(said) == {name.partition("/")[2] for name in config_names() if name.startswith("experiment/")}
    assert said["vit_digits"].startswith("A small ViT on 1,797 real 8 x 8 digits that need no download")


def test_a_config_of_transformers_is_audited_as_the_class_that_it_names(config, capsys):
    main(["audit", config])
    said = capsys.readouterr().out
    assert "GPT2LMHeadModel" in said
    assert "GPT-2 depth scale" in said


def test_show_by_name_gives_the_weights_of_the_one_line_of_python(folder, capsys):
    main(["show", "test_vit", "mimetic", "--model.args.num_classes=7", "--export", "mine.safetensors"])
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=7)
    structured_init.initialize(model, "mimetic", seed=0)
    shown = load_file("mine.safetensors")
    assert torch.equal(shown["head.weight"], model.head.weight)
    assert timm.create_model("test_vit", num_classes=7, checkpoint_path="mine.safetensors").pos_embed.std() > 0.1
    assert torch.equal(shown["pos_embed"], model.pos_embed)
    assert torch.equal(shown["blocks.1.attn.qkv.weight"], model.blocks[1].attn.qkv.weight)


def test_weights_of_a_module_around_a_network_or_of_a_plain_loop_are_read(folder, capsys):
    model = timm.create_model("test_vit")
    torch.nn.init.constant_(model.head.weight, 0.25)
    torch.save(model.state_dict(), "plain.pth")
    run = {f"network.{name}": each for name, each in model.state_dict().items()}
    version = {"pytorch-lightning_version": "2.6.0"}
    torch.save({"state_dict": run, **version}, "last.ckpt")
    for file in ("plain.pth", "last.ckpt"):
        main(["audit", "test_vit", "--checkpoint", file])
        assert "constant 0.25" in capsys.readouterr().out


def test_every_initialization_has_one_line_of_the_terminal_and_a_paragraph(capsys, monkeypatch):
    rows = {row["name"]: row for row in configurations("init")}
    assert rows.keys() == {name.partition("/")[2] for name in config_names() if name.startswith("init/")}
    assert all(row["what"].endswith(".") and row["networks"] for row in rows.values())
    monkeypatch.setenv("COLUMNS", "100")
    main(["list"])
    groups = [group.splitlines() for group in capsys.readouterr().out.split("\n\n")]
    assert max(len(line) for group in groups for line in group) <= 100
    listed = {line.split()[0]: heading for heading, *lines in groups[:-1] for line in lines}
    assert not any(line.endswith("…") for _, *lines in groups[:-1] for line in lines)  # nothing is cut off
    assert listed == {name: f"for {row['networks']}:" for name, row in rows.items()}
    main(["list", "covariance"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("The closed-form covariance of depthwise filters")
    assert rows["covariance"]["controls"] in said


def test_the_number_of_a_line_is_one_of_what_is_known_and_has_a_mark_where_nothing_is_shown():
    rows = {row["name"]: row for row in configurations("init") if "gain" in row}
    assert rows["induction"]["best"].startswith("+1.00 exact match")  # that over the baseline of today, not 5 of 5
    for row in rows.values():
        number = row["best"].rstrip("?").split()[0]
        assert number in row["today"] + row["gain"]
        decided = re.search(r"(?<!not )shown|refuted", row["today"] if number in row["today"] else row["gain"])
        assert row["best"].endswith("?") == (decided is None)


def test_what_fits_a_network_is_said_by_the_layers_that_it_has(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    main(["list", "--for", "test_vit"])
    said = capsys.readouterr()
    assert said.err.startswith("building test_vit and looking at one pass through it")
    fitting, *others = said.out.split("\n\nthese do not fit, ")
    listed = {line.split()[0] for line in fitting.splitlines() if line}
    assert {"default", "mimetic", "patch_whitening"} <= listed
    assert not listed & {"previous_token", "mimetic_state_space", "delta_orthogonal"}
    why = {note.partition(":")[0].replace("\n ", ""): note.partition(":")[2] for note in others}
    assert "previous_token" in why["it is made for causal and masked language models"]
    assert "mimetic_state_space" in why["found no state-space layer"]
    main(["list", "--for", "tiny.yaml"])
    assert "\nthese do not fit, found no depthwise convolution: covariance, filters_random\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "show", "audit"])
def test_a_commands_own_options_come_first_and_the_parser_knows_them(command, capsys):
    assert main([command, "--help"]) is None
    said = capsys.readouterr().out
    assert said.startswith(f"usage: structured-init {command}")
    assert len(said.splitlines()) < 30
    assert said.splitlines()[-1].startswith("documentation: ")
    own = [option.split()[0].strip(",") for option in OWN[command] | EVERYWHERE if option.startswith("-")]
    with pytest.raises(SystemExit):
        CLI([command, "--help"])
    everything = capsys.readouterr().out
    dependent = ("--model.", "--data.")  # of a class
    assert [option for option in own if not option.startswith(dependent) and option not in everything] == []


def test_every_command_has_help_that_names_the_documentation(capsys):
    for command in (["--help"], ["list", "--help"], ["compare", "--help"], ["judge", "--help"]):
        with contextlib.suppress(SystemExit):
            main(command)
        assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("documentation: "), command
