"""What docs/extending.md shows is run."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path

import pytest
import torch
import yaml
from hosts import of_transformers

from lightning_modules.cli import main
from structured_init import (
    MambaReference,
    MimeticStateSpace,
    StructuredInitError,
    attention_sites,
    initialize,
    state_space_sites,
)
from structured_init.analysis import audit, capture_attention

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")


def example(section: str, language: str = "python") -> str:
    """The block of a section."""
    text = PAGE[PAGE.index(f"\n## {section}\n") + 1 :].partition("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


def test_gates_that_belong_to_no_site_begin_with_the_half_lives_of_the_example():
    names: dict = {}
    exec(example("Other parameters"), names)
    model = torch.nn.ModuleDict({"gate": torch.nn.Linear(8, 4)})
    initialize(model, names["SlowGates"]())
    after = math.log(0.5) / model["gate"](torch.randn(3, 8)).sigmoid().log()
    torch.testing.assert_close(after, torch.logspace(1, 8, 4, base=2).expand(3, 4), rtol=1e-3, atol=0)
    with pytest.raises(StructuredInitError, match="found no layer called 'gate'"):
        initialize(torch.nn.Linear(2, 2), names["SlowGates"]())


def test_an_initializer_of_ones_own_works_on_a_vit_and_on_grouped_queries(tiny_vit):
    names: dict = {}
    exec(example("An initializer"), names)
    grouped = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    llama = of_transformers("LlamaModel", hidden_size=32, intermediate_size=8, vocab_size=16, **grouped)
    for model in (tiny_vit(), llama):
        report = initialize(model, names["SymmetricHeads"](gain=2.0), seed=0)
        assert "SymmetricHeads(gain=2.0" in str(report.initializer)
        for site in attention_sites(model):
            group = site.num_heads // site.num_key_value_heads
            logits = site.query @ site.key.repeat_interleave(group, 0).mT
            torch.testing.assert_close(logits, logits.mT)
            largest = torch.linalg.matrix_norm(site.query, ord=2)
            torch.testing.assert_close(largest, torch.full_like(largest, 2.0))
    with pytest.raises(StructuredInitError, match="gain must be positive"):
        names["SymmetricHeads"](gain=0)


def test_a_state_space_layer_of_ones_own_is_set_audited_and_drawn_whatever_its_parameters_are_called():
    names: dict = {}
    exec(example("A state-space layer"), names)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 32), names["Selective"](), names["Selective"]())
    tokens = torch.randn(2, 9, 5)
    half_life = state_space_sites(model)[0].half_life
    torch.testing.assert_close(half_life, torch.ones_like(half_life))  # Δ = ln 2 and A = −1
    with torch.no_grad():
        model[1].log_decay.copy_(torch.arange(1, 5).log())
    assert "log(1 … N)" in next(line for line in audit(model).table().to_csv().splitlines() if "1.log_decay" in line)
    before = state_space_sites(model)[0].C
    report = initialize(model, MimeticStateSpace(decay_c=4.0, scan_scale="paper"), seed=0)
    assert set(report.measures) == {"1", "2"}
    assert not any("convolution" in name for name in report.measures["1"])
    site = state_space_sites(model)[0]
    assert site.half_life == pytest.approx(math.log(2) / model[1].log_decay.exp()[:, None].double().detach())
    torch.testing.assert_close(site.C, (before + site.B) / 2)
    initialize(model, MambaReference())  # which finds no skip to write
    seen = capture_attention(model, tokens)
    assert {name: tuple(maps.shape) for name, maps in seen.items()} == {name: (2, 4, 9, 9) for name in "12"}
    with torch.no_grad():  # causal: a token changes nothing before it
        torch.testing.assert_close(site.step, model[1].select(torch.zeros(1, 1, 32)).step[0, 0].double())
        changed = model(tokens.index_fill(1, torch.tensor(8), 3.0)) - model(tokens)
    assert changed[:, :8].abs().max() == 0 < changed[:, 8].abs().max()


def test_a_task_of_ones_own_trains_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_file.py").write_text(example("A task"))
    settings = yaml.safe_load(example("A task", "yaml"))
    settings["data"]["init_args"]["fraction"] = 0.2
    settings["trainer"] |= {"enable_progress_bar": False, "enable_model_summary": False}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    cli = main(["fit", "-c", "mine.yaml"])
    metrics = cli.trainer.callback_metrics
    assert cli.model.pixels == 64
    assert 0 < metrics["val/loss"] < 2


def test_a_figure_of_ones_own_shows_the_attention_before_and_after_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "received.py").write_text(example("A figure of the attention"))
    (tmp_path / "mine.yaml").write_text(example("A figure of the attention", "yaml"))
    drawn = []
    monkeypatch.setattr(importlib.import_module("received"), "save_figure", lambda *figure: drawn.append(figure))
    quick = ("max_epochs=1", "limit_train_batches=1", "limit_val_batches=1", "log_every_n_steps=1")
    quick = [*(f"--trainer.{option}" for option in quick), "--attention.figures=false"]
    cli = main(["fit", "-c", "vit_digits", "-c", "mine.yaml", *quick])
    ((figure, path),) = drawn
    assert path == Path(cli.trainer.log_dir).absolute() / "attention" / "received.png"
    before, after = figure.axes[0].lines
    assert [before.get_label(), after.get_label()] == ["before", "after"]
    for line in (before, after):  # what all tokens receive is what one gives, as every token gives one in all
        assert sum(line.get_ydata()) == pytest.approx(1, abs=1e-5)
    assert list(before.get_ydata()) != list(after.get_ydata())
