"""A user brings a language model of their own, in one file beside their experiment, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightning_modules.cli import main
from structured_init import attention_sites

USER_FILE = """
import torch
from torch import nn
from torch.nn import functional as F

from lightning_modules import LanguageModel
from structured_init import AttentionLayout, Projection, register_attention


class MyAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(x.transpose(1, 2).flatten(2))


@register_attention(MyAttention)
def my_attention(module):
    dim = module.q.in_features // module.heads
    query, key, value = (Projection(p.weight, module.heads, dim) for p in (module.q, module.k, module.v))
    return AttentionLayout(query, key, value, Projection(module.out.weight, module.heads, dim, axis=1))


class MyNetwork(nn.Module):
    def __init__(self, tokens, length, dim=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, dim), nn.Embedding(length, dim)
        self.attention, self.head = MyAttention(dim, 2), nn.Linear(dim, tokens)

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.tokens(input_ids) + self.places(position_ids)
        return self.head(x + self.attention(x, attention_mask))


class MyLanguageModel(LanguageModel):
    def __init__(self, width: int = 16, **kwargs):
        self.width = width
        super().__init__(**kwargs)

    def configure_network(self):
        return MyNetwork(self.vocab_size, self.block_size, self.width)
"""

EXPERIMENT = """
model: {class_path: my_language.MyLanguageModel, init_args: {width: 16, sample_tokens: 8}}
data:
  class_path: TextData
  init_args: {name: text.txt, documents: row, tokenizer: characters, block_size: 16, batch_size: 4}
trainer:
  {accelerator: cpu, max_epochs: 1, enable_progress_bar: false, enable_model_summary: false, log_every_n_steps: 1}
attention: {samples: 2, figures: false}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines = [f"line {number} of a text that has {number * 7} words or so\n" for number in range(60)]
    (tmp_path / "text.txt").write_text("".join(lines))
    (tmp_path / "my_language.py").write_text(USER_FILE)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_own_architecture_gets_everything_that_a_language_model_has(folder):
    run = main(["fit", "-c", "mine.yaml", "-c", "init/mimetic_language"])
    log = Path(run.trainer.log_dir)
    assert (run.model.vocab_size, run.model.block_size) == (run.datamodule.vocab_size, 16)
    assert [site.name for site in attention_sites(run.model)] == ["network.attention"]
    report = json.loads((log / "init_report.json").read_text())
    written = {name for entry in report["entries"] if entry["set_by"] for name in entry["names"]}
    assert written == {f"network.attention.{part}.weight" for part in ("q", "k", "v", "out")}
    (maps,) = load_file(log / "attention" / "after.safetensors").values()
    assert (maps.triu(1) == 0).all()
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))
    assert len(list((log / "samples").iterdir())) == 1
    logged = (log / "metrics.csv").read_text()
    assert all(f"val/{name}" in logged for name in ("loss", "perplexity", "bits_per_character", "bits_per_byte"))


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the test has folders of its own
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.streaming=true"], "TextData takes no argument 'streaming'"),
        (["--model.block_size=8"], "model.init_args.block_size is 8, but the data has 16: leave it to the data"),
        (["--model=LanguageModel", "--model.network=gtp2"], "unknown network 'gtp2': did you mean 'gpt2'?"),
        (
            ["--model=LanguageModel", "--model.network_args={n_positions: 8}"],
            "a block of 16 tokens is longer than the 8 positions of 'gpt2': shorten the data's block_size, or give "
            "network_args.max_position_embeddings",
        ),
        (
            ["--model=LanguageModel", "--model.network_args={vocab_size: 8}"],
            "embedding of 'gpt2' 8 rows: leave network_args.vocab_size to the data",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_answered_in_one_line(folder, capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(["fit", "-c", "mine.yaml", *arguments])
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("structured-init: error: ")]
    assert len(said) == 1
    assert message in said[0]
