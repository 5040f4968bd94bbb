"""``structured-init audit``: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import pandas as pd

from lightning_modules.cli import main


def test_the_command_prints_a_line_per_block_and_writes_table_page_and_picture(cli, folder, capsys):
    run = cli("audit", "--output", "seen")
    said = capsys.readouterr().out
    assert "network.blocks.0–1 " in said
    assert "activations " in said
    assert "nothing suspicious was found" in said
    assert {path.name for path in (folder / "seen").iterdir()} == {"audit.csv", "audit.md", "audit.png"}
    table = pd.read_csv(folder / "seen" / "audit.csv")
    assert table["parameter"].tolist() == [name for name, _ in run.model.named_parameters()]
    assert (folder / "seen" / "audit.md").read_text(encoding="utf-8").startswith("# Audit of ImageClassifier\n")
    assert (folder / "seen" / "audit.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_audited_is_what_the_section_init_gives_and_nothing_is_written_unasked(cli, folder, capsys):
    cli("audit", "-c", "init/sincos")
    assert "pos_embed: sinusoidal" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"tiny.yaml"}


def test_a_shipped_configuration_is_audited_without_data(folder, monkeypatch, capsys):
    monkeypatch.setenv("STRUCTURED_INIT_DATA", str(folder))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    main(["audit", "-c", "vit_cifar10", "--model.network=vit_nano_patch2_8", "--data.name=not/here"])
    said = capsys.readouterr().out
    assert "activations and gradients are left out: " in said
    assert "normal σ 0.02 (timm, transformers)" in said
