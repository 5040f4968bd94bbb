"""The page of sequences: from the folders of comparisons, the tables of differences and of steps and seconds."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import sequence_questions, sequences
from comparison.command import compare_parser
from comparison.run.arms import parse_arms

BASE = {"default": [8.0, 6.0, 4.0], "previous_token": [6.0, 4.0, 2.0], "previous_token_scrambled": [8.0, 7.0, 5.0]}


@pytest.fixture
def folder(tmp_path):
    """A comparison of two seeds, as the command writes it: perplexities after 10, 20 and 30 steps of 2 seconds."""
    place = tmp_path / "characters"
    for arm, values in BASE.items():
        for seed in (0, 1):
            run = place / "runs" / arm / f"seed_{seed}"
            run.mkdir(parents=True)
            settings = {"arm": arm, "seed": seed, "point": {}, "learning_rate": None}
            run.with_name(f"seed_{seed}.settings.json").write_text(json.dumps(settings))
            rows = ["epoch,step,seconds,val/perplexity"]
            rows += [f"{n},{10 * n + 9},{20 * (n + 1)},{value + 0.1 * seed}" for n, value in enumerate(values)]
            (run / "metrics.csv").write_text("\n".join(rows) + "\n")
            metrics = {"test/perplexity": values[-1] + 0.1 * seed}
            result = {"metrics": metrics, "epochs": 3, "steps": 30, "seconds": 60.0}
            (run / "result.json").write_text(json.dumps(result))
            initializer = {
                "previous_token": "PreviousToken()",
                "previous_token_scrambled": "Scrambled(initializer=PreviousToken(), part='all')",
            }.get(arm, "Default()")
            report = {
                "initializer": initializer,
                "seed": seed,
                "entries": [],
                "skipped": {},
                "notes": {},
                "warnings": [],
            }
            (run / "init_report.json").write_text(json.dumps(report))
    manifest = {"arms": list(BASE), "seeds": [0, 1], "baseline": "default", "metric": "test/perplexity", "mode": "min"}
    (place / "comparison.json").write_text(json.dumps(manifest))
    return tmp_path


def cells(text, arm):
    return [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith(f"| {arm} |")]


def test_the_summary_has_a_row_for_each_arm_that_is_no_control(folder):
    """Paired differences are exact in each seed: 2 − 4 to the default, 2 − 5 to itself scrambled."""
    text = sequences.page(folder)
    (row, *_) = [line for line in text.splitlines() if line.startswith("| [characters](#characters)")]
    assert "| `previous_token` | 2 | 4.05" in row
    assert "| −2.0" in row
    assert "−3.0" in row.rsplit("|", 2)[1]
    assert "`previous_token_scrambled`" not in text.partition("## characters")[0]


def test_a_question_has_its_differences_to_the_default_and_to_itself_scrambled(folder):
    text = sequences.page(folder)
    assert "## characters\n\nCharacters of Shakespeare, 600 steps" in text
    assert "python_docs" not in text  # not trained yet
    row, _ = cells(text, "previous_token")
    assert row[1].startswith("2")
    assert row[2].startswith("2.05")
    assert "−2.0" in row[3]
    assert "−3.0" in row[4]
    assert "previous_token_scrambled" in row[4]


def test_targets_lie_on_the_baselines_way(folder):
    """From 8.05 to 4.05: 7.05, 6.05, 5.05 and 4.05, which a curve of −2 in 10 steps has at 15, 20, 25 and 30."""
    text = sequences.page(folder)
    assert "| arm | 7.05 | 6.05 | 5.05 | 4.05 |" in text
    assert cells(text, "default")[1][1:] == ["15", "20", "25", "30, not by 1 of 2"]
    assert cells(text, "previous_token")[1][1:] == ["10", "10", "15", "20"]
    assert cells(text, "previous_token_scrambled")[1][-1] == "not reached"


def test_the_committed_page_is_that_of_the_committed_results():
    results = Path(sequences.__file__).with_name("results")
    committed = (results / "sequences.md").read_text(encoding="utf-8")
    assert committed == sequences.page(results / "sequences", results) + "\n"


def test_every_structured_comparison_brings_its_controls_and_seeds():
    for name, words in sequence_questions.commands(None).items():
        options, _ = compare_parser().parse_known_args([*words, "--output", "out"])
        structured = set(parse_arms(options.inits)) - {"default", "mimetic_state_space"}
        assert options.controls == "auto" or not structured, name
        assert options.seeds.startswith("0-")
    recalled = {name: words for name, words in sequence_questions.commands(None).items() if "pairs" in name}
    pairs = {name: words[words.index(f"--{sequence_questions.PAIRS}") + 1] for name, words in recalled.items()}
    assert pairs == {f"recall_{each}_pairs": each for each in ("4", "8", "16", "32")}
