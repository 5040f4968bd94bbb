"""The table of the benchmark of certified accuracy."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.certified import CONVOLUTION, table
from structured_init import StructuredInitError


def results(**accuracies):
    rows = [
        {
            CONVOLUTION: conv,
            "seed": seed,
            "test/accuracy": value,
            "test/certified_accuracy_36": value / 2,
            "test/certified_accuracy_108": 0.0,
            "test/pgd_accuracy_36": value,
            "test/lipschitz_upper": 1.0 + seed,
            "seconds": 60.0,
        }
        for conv, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_rows_go_from_clean_over_certified_to_attacked_and_differences_are_within_a_seed():
    lines = table(results(cayley=[0.5, 0.7], plain=[0.4, 0.6]), "plain").splitlines()
    assert lines[0] == "| test | cayley (2 seeds) | plain (2 seeds) |"
    heads = [line.split(" |")[0].removeprefix("| ") for line in lines[2:-2]]
    assert heads[:4] == ["clean %", "certified 36/255 %", "certified 108/255 %", "PGD 36/255 %"]
    assert heads[4:] == ["Lipschitz, bound", "seconds a run"]
    assert lines[2] == "| clean % | 60.0 ± 127.1 (+10.0 ± 0.0) | 50.0 ± 127.1 |"  # t = 12.706, sd = 14.14, n = 2
    assert lines[6] == "| Lipschitz, bound | 1 – 2 | 1 – 2 |"


def test_a_seed_that_one_arm_has_not_finished_is_not_in_its_difference():
    (clean,) = [
        line for line in table(results(cayley=[0.5], plain=[0.4, 0.9]), "plain").splitlines() if "clean" in line
    ]
    assert clean.startswith("| clean % | 50.0 (+10.0) |")


def test_a_baseline_without_runs_is_one_line():
    with pytest.raises(StructuredInitError, match=r"^no run has the convolution 'plain': there are cayley$"):
        table(results(cayley=[0.5]), "plain")
