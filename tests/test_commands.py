"""Every command in a block of the README or a page is parsed here; what it trains does two steps in the slow tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from comparison.command.options import compare_parser, find_parser, judge_parser, report_parser
from comparison.plan.arms import parse_arms
from lightning_modules.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_TABLES = {"judge": judge_parser, "report": report_parser}
OF_ARMS = {"compare": compare_parser, "find": find_parser}
HISTORY = {"claims_runs.md": "the commands of measured runs, each as it was at the commit beside it"}
NOT_PARSED = {
    "options in command/options.py": "a line of a listing",
    "$(echo": "the shell fills it in; tests/benchmarks/test_sweep.py does",
    "my.yaml": "the reader's network",
    "RUN/": "a run of the reader's",
}
NOT_TRAINED = {
    "--ckpt_path": "it goes on from a run of the reader's",
    "--checkpoint": "a checkpoint of the reader's",
}
TWO_STEPS = [
    *("--trainer.fast_dev_run=2", "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.num_nodes=1"),
    *("--trainer.strategy=auto", "--trainer.precision=32", "--data.init_args.batch_size=4"),
]


def commands(page: Path) -> dict[str, list[str]]:
    """Every command that stands in a block of a page, fenced or indented, and its words."""
    text = re.sub(r"(,?) *\\\n *", lambda found: found[1] or " ", page.read_text(encoding="utf-8"))
    fenced = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join([*fenced, *re.findall(r"^    .*$", text, re.MULTILINE)]).splitlines()
    found = {}
    for line in lines:
        if command := re.match(r" *(?:srun )?structured-init (\w.*)", line):
            found[command[1].strip()] = shlex.split(command[1], comments=True)
    return found


def trainings(words: list[str]) -> list[list[str]]:
    """What of a command Lightning runs: of a comparison the training of each arm, of what reads a table nothing."""
    command, *rest = words
    if command in OF_TABLES:
        OF_TABLES[command]().parse_args(rest)
        return []
    if command not in OF_ARMS:
        return [words]
    options, further = OF_ARMS[command]().parse_known_args(rest)
    layers = [word for name in options.config for word in ("-c", name)]
    arms = options.inits if command == "compare" else options.among.replace("auto", "default")
    return [["fit", *layers, "-c", arm.configuration, *further] for arm in parse_arms(arms).values()]


COMMANDS: dict[str, list[str]] = {}
for page in PAGES:
    if page.name not in HISTORY:
        COMMANDS |= commands(page)
PARSED = [text for text in COMMANDS if not any(part in text for part in NOT_PARSED)]
TRAINED = [text for text in PARSED if not any(part in text for part in NOT_TRAINED) and trainings(COMMANDS[text])]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the YAML files that the pages show, and the folder of benchmarks."""
    for page in PAGES:
        for name, text in re.findall(r"^```yaml\n# (\w+\.yaml)(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M):
            (tmp_path / name).write_text(f"#{text}", encoding="utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", PARSED)
def test_a_command_of_a_page_is_parsed(text, place, capsys):
    for words in trainings(COMMANDS[text])[-1:]:
        if words[0] != "list":  # which trains and parses nothing else
            with pytest.raises(SystemExit) as stop:
                main([*words, "--print_config"])
            assert not stop.value.code, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", TRAINED)
def test_a_command_of_a_page_trains_two_steps(text, place, capsys):
    words = trainings(COMMANDS[text])[-1]
    code = None
    try:
        main([*words, *TWO_STEPS] if words[0] == "fit" else words)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err
    if "STRUCTURED_INIT_DATA" in said:
        pytest.skip(said)
    assert not code, said


def test_no_reason_is_left_of_a_command_that_has_gone():
    for part in [*NOT_PARSED, *NOT_TRAINED]:
        assert any(part in text for text in COMMANDS), part
