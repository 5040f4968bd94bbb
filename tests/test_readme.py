"""What the README shows is run."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from lightning_modules.cli import main
from lightning_modules.cli.config_names import find_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


class MyAttention(nn.Module):
    """Unfused attention as a user might have it."""

    def __init__(self, dim: int = 16, num_heads: int = 2) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))


class MyTransformer(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.attention = MyAttention()
        self.head = nn.Linear(16, num_classes)


def test_python_example_says_what_it_did_and_attention_has_a_positive_diagonal(capsys):
    from structured_init import attention_sites

    names: dict = {}
    exec(blocks("python")[0], names)
    printed = capsys.readouterr().out
    assert re.search(r"^blocks\.0–11 +attn\.qkv \[Mimetic: query_key, value_output\]", printed, re.MULTILINE)
    assert "as the host built them: cls_token, patch_embed.proj, norm, head" in printed
    sites = attention_sites(names["model"])
    assert len(sites) == 12
    assert all((site.query @ site.key.mT).diagonal(dim1=-2, dim2=-1).mean() > 0.3 for site in sites)


def test_example_of_watching_finds_a_users_attention_and_initializes_it(capsys):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    tokens = torch.randn(1, 5, 16)
    exec(blocks("python")[1], {"model": model, "batch": (tokens, tokens, tokens)})
    assert "AttentionLayout(" in capsys.readouterr().out
    values, outputs = model.in_proj_weight.detach()[32:].T, model.out_proj.weight.detach().T
    assert (values @ outputs).diagonal().mean() == pytest.approx(-0.4, abs=0.15)


def test_architecture_example_makes_a_start_work_on_a_users_class():
    from structured_init import Mimetic, attention_sites, initialize

    names = {"MyAttention": MyAttention, "MyTransformer": MyTransformer}
    exec(blocks("python")[2], names)
    model = names["MyClassifier"](num_classes=3)
    initialize(model, Mimetic(positions="keep"), seed=0)
    (site,) = attention_sites(model)
    product = (site.value @ site.output).sum(0)
    assert product.diagonal().mean() == pytest.approx(-0.4, abs=0.15)
    assert torch.equal(model.network.attention.q.weight, site.query.movedim(0, 1).reshape(16, 16).T)


def test_yaml_example_is_a_start_that_the_command_line_takes(tmp_path, capsys):
    path = tmp_path / "my_start.yaml"
    path.write_text(blocks("yaml")[0])
    with pytest.raises(SystemExit) as done:
        main(["fit", "-c", "vit_digits", "-c", str(path), "--print_config"])
    assert done.value.code in (0, None)
    printed = yaml.safe_load(capsys.readouterr().out)
    starts = printed["init"]["initializer"]["init_args"]["initializers"]
    assert [start["class_path"].rpartition(".")[2] for start in starts] == ["KaimingUniform", "Mimetic", "Positions"]
    assert starts[1]["init_args"]["vo_beta"] == 0.2


def test_every_configuration_that_the_readme_names_exists():
    lines = README.replace("\\\n", " ").splitlines()
    commands = [line for line in lines if line.startswith("structured-init ")]
    assert commands
    for command in commands:
        words = shlex.split(command, comments=True)
        for option, name in pairwise(words):
            if option == "-c":
                assert find_config(name).files[-1].is_file()


def test_every_file_that_the_readme_links_exists():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_every_make_target_that_the_readme_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^ +make ([a-z-]+)", README, re.MULTILINE)) <= targets
