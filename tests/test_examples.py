"""The examples that ``help()`` shows are run, and the one that explains how attention is found."""

from __future__ import annotations

import doctest

import pytest
from transformers.utils import logging

import structured_init
from structured_init import analysis, hosts

MOST_USED = (
    *("initialize", "Compose", "Mimetic", "Positions", "Impulse", "PreviousToken", "MimeticStateSpace"),
    *("FilterCovariance", "attention_sites", "capture_attention", "audit", "weight_products", "watching"),
)


@pytest.mark.parametrize("name", MOST_USED)
def test_the_example_of_a_public_name_is_true(name, capsys):
    found = next(getattr(room, name) for room in (structured_init, analysis, hosts) if hasattr(room, name))
    (example,) = doctest.DocTestFinder(recurse=False).find(found, name, module=False, globs={})
    assert len(example.examples) >= 3
    logging.set_verbosity_error()
    failed = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(example).failed
    logging.set_verbosity_warning()
    assert failed == 0, capsys.readouterr().out
