"""What the README shows is run."""

import re
from pathlib import Path

import pytest
import yaml

from lightning_modules.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_example_says_what_it_did_and_attention_has_a_positive_diagonal(capsys):
    from structured_init import attention_sites

    names: dict = {}
    exec(blocks("python")[0], names)
    printed = capsys.readouterr().out
    assert re.search(r"^blocks\.0–11 +attn\.qkv \[Mimetic: query_key, value_output\]", printed, re.MULTILINE)
    assert "left as they were: cls_token, patch_embed.proj, norm, head" in printed
    sites = attention_sites(names["model"])
    assert len(sites) == 12
    assert all((site.query @ site.key.mT).diagonal(dim1=-2, dim2=-1).mean() > 0.3 for site in sites)


def test_the_yaml_of_an_initialization_of_ones_own_is_taken_by_the_command(tmp_path, capsys):
    page = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8")
    path = tmp_path / "my_start.yaml"
    path.write_text(re.search(r"```yaml\n(# my_start.yaml.*?)```", page, re.DOTALL)[1])
    with pytest.raises(SystemExit) as done:
        main(["fit", "-c", "vit_digits", "-c", str(path), "--print_config"])
    assert done.value.code in (0, None)
    initializers = yaml.safe_load(capsys.readouterr().out)["init"]["initializer"]["init_args"]["initializers"]
    assert [each["class_path"].rpartition(".")[2] for each in initializers] == [
        "KaimingUniform",
        "Mimetic",
        "Positions",
    ]
    assert initializers[1]["init_args"]["vo_beta"] == 0.2
