"""Progress: a long initialization says how far it is where somebody looks, and nothing otherwise."""

from __future__ import annotations

import io
import sys
import time

import pytest
import torch
from torch import nn

from structured_init import Compose, Initializer, KaimingUniform, initialize
from structured_init.util import progress as progress_module


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Slow(Initializer):
    """Take a moment for each layer."""

    def plan(self, weights, *, rng, batch=None):
        for _, layer in weights.each(list(weights.model.named_children())):
            time.sleep(0.2)
            weights.write(layer.weight, torch.ones(2, 2), "Slow")


@pytest.fixture
def shown(monkeypatch):
    """What a stream has been written to while an initialization of two layers took longer than is waited."""

    def run(stream, **options):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress_module, "AFTER", 0.05)
        model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("first", "second")})
        initialize(model, Compose([KaimingUniform(), Slow()]), **options)
        return stream.getvalue()

    return run


def test_a_terminal_shows_what_is_done_and_how_many_layers_are_and_nothing_at_the_end(shown):
    written = shown(Terminal())
    assert "Slow:" in written
    assert "1/2" in written
    assert "KaimingUniform" not in written  # it took no time
    assert written.rpartition("\r")[0].rpartition("\r")[2].strip() == ""


def test_nothing_is_written_into_a_file_or_where_it_is_not_wanted(shown):
    assert shown(io.StringIO()) == ""
    assert shown(Terminal(), progress=False) == ""
