"""Progress: a long initialization says how far it is where somebody looks, and nothing otherwise."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from structured_init import Compose, Initializer, KaimingUniform, initialize
from structured_init import progress as progress_module


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Slow(Initializer):
    """Take a moment to look, and for each layer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def plan(self, weights, *, rng, batch=None):
        time.sleep(self.seconds)
        for _, layer in weights.each(list(weights.model.named_children())):
            time.sleep(self.seconds)
            weights.write(layer.weight, torch.ones(2, 2), "Slow")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that is written to after 50 ms."""
    stream = Terminal()
    monkeypatch.setattr(progress_module, "sys", SimpleNamespace(stderr=stream))  # pytest sets sys.stderr anew
    monkeypatch.setattr(progress_module, "AFTER", 0.05)
    monkeypatch.setattr(progress_module, "EVERY", 0.01)
    return stream


def model():
    return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("first", "second")})


def lines(stream):
    """Return each line once, without its seconds, which depend on how busy the machine is."""
    shown = (line.rpartition(" (")[0] or line for line in stream.getvalue().split(progress_module.CLEAR))
    return [line for line in dict.fromkeys(shown) if line.startswith("Slow")]


def test_the_line_says_what_is_done_and_which_layer_is_reached_and_is_gone_at_the_end(terminal):
    initialize(model(), Compose([KaimingUniform(), Slow(0.2)]))
    assert lines(terminal) == [
        "Slow: looking at the model",
        "Slow: layer 1 of 2, first",
        "Slow: layer 2 of 2, second",
    ]
    assert terminal.getvalue().endswith(progress_module.CLEAR)


def test_a_short_initialization_a_file_and_a_user_who_asks_for_it_see_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress_module, "AFTER", 3.0)
    initialize(model(), KaimingUniform())
    monkeypatch.setattr(progress_module, "AFTER", 0.05)
    initialize(model(), Slow(0.1), progress=False)
    file = io.StringIO()
    monkeypatch.setattr(progress_module, "sys", SimpleNamespace(stderr=file))
    initialize(model(), Slow(0.1))
    assert file.getvalue() == terminal.getvalue() == ""
