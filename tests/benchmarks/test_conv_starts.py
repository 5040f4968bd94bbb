"""The tables of the benchmark of convolutional starts."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.conv_starts import KERNEL, tables
from structured_init import StructuredInitError


def results(accuracies):
    return pd.DataFrame(
        [
            {"arm": arm, KERNEL: kernel, "seed": seed, "test/accuracy": value}
            for (arm, kernel), values in accuracies.items()
            for seed, value in enumerate(values)
        ]
    )


def test_differences_are_to_the_default_and_gaps_to_the_start_that_is_trained_on():
    text = tables(
        results(
            {
                ("default", 3): [0.50, 0.52],
                ("default", 9): [0.54, 0.56],
                ("default_frozen", 3): [0.49, 0.51],
                ("default_frozen", 9): [0.50, 0.52],
            }
        )
    ).splitlines()
    assert text[0] == "| start | kernel 9 | − default | kernel 3 | − default |"
    assert (
        text[3] == "| default_frozen | 51.0 ± 12.7 | −4.0 ± 0.0 | 50.0 ± 12.7 | −1.0 ± 0.0 |"
    )  # t = 12.706, sd = 1.414
    assert text[5] == "| start | gap at kernel 9 | gap at kernel 3 | growth, 3 to 9 |"
    assert text[7] == "| default | −4.0 ± 0.0 | −1.0 ± 0.0 | −3.0 ± 0.0 |"


def test_one_kernel_has_no_growth():
    text = tables(results({("default", 9): [0.5, 0.6], ("default_frozen", 9): [0.4, 0.6]}))
    assert "growth" not in text.split("\n\n")[1]


def test_without_the_default_start_there_is_nothing_to_compare_with():
    with pytest.raises(StructuredInitError, match=r"^no run has the default start: there are covariance$"):
        tables(results({("covariance", 9): [0.5]}))
