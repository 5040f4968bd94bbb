"""The choice of a learning rate, on made-up validation values."""

import json

import pytest

from comparison.plan.arms import parse_arms
from comparison.plan.comparison import Comparison
from comparison.plan.learning_rates import choose, chosen_runs
from comparison.runs.folder import choice_name, write_choices


@pytest.fixture
def asked(tmp_path):
    """A factory of comparisons; ``values`` is learning rate → final validation value by seed, None for a failed run."""

    def make(values, name="val/accuracy", **changes):
        given = {"metric": "test/accuracy", "mode": "max", "learning_rates": list(values), **changes}
        comparison = Comparison(folder=tmp_path, experiment=["x"], arms=parse_arms("default"), seeds=range(2), **given)
        runs = comparison.runs()
        for run in runs:
            value = values[run.learning_rate][run.seed]
            if value is not None:
                run.folder.mkdir(parents=True)
                run.result_file.write_text(json.dumps({"metrics": {name: value}, "tested": False}))
        return comparison, runs

    return make


def test_the_best_mean_over_seeds_is_chosen_and_the_smaller_of_two_that_share_it(asked):
    comparison, runs = asked({0.3: (0.7, 0.5), 0.1: (0.5, 0.7), 0.2: (0.9, 0.2)})
    choices = choose(comparison, runs)
    assert choices[""]["default"] == {
        "chosen": 0.1,
        "validation": {"0.1": [0.5, 0.7], "0.2": [0.9, 0.2], "0.3": [0.7, 0.5]},
    }
    tested = chosen_runs(choices, runs)
    assert [(run.learning_rate, run.seed) for run in tested] == [(0.1, 0), (0.1, 1)]
    assert all(run.tested and not run.complete for run in tested)


@pytest.mark.parametrize(
    ("values", "changes", "chosen"),
    [
        ({0.1: (0.5, 0.5), 0.2: (0.3, 0.3)}, {"name": "val/loss", "metric": "test/loss", "mode": "min"}, 0.2),
        ({0.1: (0.5, 0.6), 0.2: (0.9, None), 0.3: (0.9, float("nan"))}, {}, 0.1),
        ({0.1: (None, 0.6), 0.2: (0.9, None)}, {}, None),
    ],
    ids=["less is better", "a seed failed or gave no number", "all have failed"],
)
def test_a_learning_rate_is_chosen_where_every_seed_has_a_number(asked, values, changes, chosen):
    comparison, runs = asked(values, **changes)
    choices = choose(comparison, runs)
    assert choices[""]["default"]["chosen"] == chosen
    assert bool(chosen_runs(choices, runs)) == (chosen is not None)


def test_each_point_of_a_grid_has_its_own_choice_and_what_was_chosen_elsewhere_stays(asked):
    comparison, runs = asked({0.1: (0.5, 0.6)}, grid={"data.fraction": ["0.5", "1"]})
    choices = choose(comparison, runs)
    assert list(choices) == ["data.fraction=0.5", "data.fraction=1"]
    assert choice_name(()) == ""
    write_choices(comparison.folder, {"data.fraction=0.1": {"sincos": {"chosen": 1.0, "validation": {}}}})
    write_choices(comparison.folder, choices)
    written = json.loads((comparison.folder / "learning_rates.json").read_text())
    assert written == {"data.fraction=0.1": {"sincos": {"chosen": 1.0, "validation": {}}}, **choices}
