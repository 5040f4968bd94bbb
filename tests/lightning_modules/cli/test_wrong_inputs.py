"""Wrong inputs, one of each kind, with what answers it; and commands that are stopped or begin anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import lightning_modules
from lightning_modules.cli import main

ROOT = Path(lightning_modules.__file__).parents[1]

QUICK = ("--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--attention.enabled=false")

# Arguments of ``fit`` and a part of the one line that answers them; the folder holds what ``place`` makes.
COMMAND_LINE = [
    ("--max_epochs=1", "unknown key 'max_epochs': did you mean 'trainer.max_epochs'?"),
    ("--model.labl_smoothing=2", "ImageClassifier takes no argument 'labl_smoothing': did you mean 'label_smoothing'?"),
    ("-c init/mimetik", "there is no file 'init/mimetik', nor a shipped configuration: did you mean 'init/mimetic'?"),
    ("--init.initializer=Mimetc", "unknown class 'Mimetc': did you mean 'Mimetic'?"),
    ("--init.initializer={bad", "--init.initializer is not YAML: while parsing a flow mapping"),
    ("--init.initializer=mimetic_language", "write -c init/mimetic_language, or layers: [init/mimetic_language]"),
    ("vit_digits", "unrecognized arguments: vit_digits"),  # in jsonargparse's words, as the next
    ("--trainer.max_epochs=few", "trainer.max_epochs"),
    ("--trainer.devices=0", "devices"),  # in Lightning's words
    ("--model.label_smoothing=2", "ImageClassifier: label_smoothing must be a number from 0 and below 1, got 2.0"),
    ("--model.optimizer=torch.optim.Muon", "-c optim/muon"),
    ("--init.initializer=Mimetic --init.initializer.where=blocks.99.*", "selects none of the 2 attention layers"),
    ("--ckpt_path=lost.ckpt", "there is no checkpoint 'lost.ckpt'"),
    ("--trainer.default_root_dir=tiny.yaml/runs", "cannot write to 'tiny.yaml/runs'"),
    # the class's default, where somebody gives it: the data would silently replace it
    ("--model.in_channels=3", "model.init_args.in_channels is 3, but the data has 1: leave it to the data"),
]
# A file's text, and a part of the answer.
FILES = [
    ("", "'wrong.yaml' holds no keys: a configuration has sections such as 'model:' and 'init:'"),
    (b"\x80\x81", "cannot read 'wrong.yaml': 'utf-8' codec can't decode"),
    ("model:\n\tclass_path: A\n", "line 2, column 1"),
    ("init: {seed: 1}\ninit: {seed: 2}\n", "'wrong.yaml' is not YAML: 'init' is given twice, and only the last"),
    ("init:\n- initializer: Mimetic\n", "'wrong.yaml': init is a section with keys such as initializer and seed"),
    ("dta: {init_args: {fraction: 0.1}}", "unknown key 'dta.init_args.fraction': did you mean 'data'?"),
    (
        "init: {initializer: {class_path: Compose, init_args: {initializers: "
        "[{class_path: Mimetic, init_args: {qk_bta: 1}}]}}}",
        "Mimetic takes no argument 'qk_bta': did you mean 'qk_beta'?",
    ),
]
# Of the other commands.
COMMANDS = [
    ("tests -c tiny.yaml", "unknown command 'tests': did you mean 'test'?"),
    ("fit", "the following arguments are required: fit.model"),  # in jsonargparse's words
    ("list mimetik", "there is no initialization 'mimetik': did you mean 'mimetic'?"),
    ("test -c tiny.yaml --ckpt_path last", "ckpt_path 'last' names no file, and only the process that trained"),
    ("test -c tiny.yaml --ckpt_path bset", "there is no checkpoint 'bset'"),
    ("show -c tiny.yaml --export own.bin", "--export writes a file NAME.safetensors, which 'own.bin' is not"),
    ("audit w.ckpt", "'w.ckpt' is no configuration of transformers"),
    ("audit test_vti", "there is no file, configuration or model 'test_vti': did you mean 'test_vit'?"),
    ("audit llama", "'llama' has 6,738,415,616 parameters: give a config.json with fewer layers"),
]


@pytest.mark.parametrize(("arguments", "answer"), COMMAND_LINE, ids=[each.split()[-1][:50] for each, _ in COMMAND_LINE])
def test_a_wrong_command_line_is_answered_in_one_line(cli, complaint, arguments, answer):
    assert answer in complaint(cli, "fit", *arguments.split(" "))


@pytest.mark.parametrize(("text", "answer"), FILES, ids=range(len(FILES)))
def test_a_wrong_file_is_answered_in_one_line(cli, complaint, folder, text, answer):
    (folder / "wrong.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert answer in complaint(cli, "fit", "-c", "wrong.yaml")


@pytest.mark.parametrize(("arguments", "answer"), COMMANDS, ids=[each[:50] for each, _ in COMMANDS])
def test_a_wrong_use_of_another_command_is_answered_in_one_line(complaint, folder, arguments, answer):
    (folder / "w.ckpt").touch()
    before = sorted(folder.iterdir())
    assert answer in complaint(main, arguments.split(" "))
    assert sorted(folder.iterdir()) == before


def test_a_class_that_replaces_another_says_what_it_does_not_take_and_an_initializer_is_replaced_whole(cli, capsys):
    Path("first.yaml").write_text(
        "model: {init_args: {optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.25, betas: [0.8, 0.9]}}}}\n"
        "init: {initializer: {class_path: Mimetic, init_args: {where: '*.0.attn'}}}\n"
    )
    Path("later.yaml").write_text(
        "model: {init_args: {optimizer: {class_path: torch.optim.SGD, init_args: {momentum: 0.5}}}}\n"
        "init: {initializer: Impulse}\n"
        "data: {fraction: 0.5}\n"  # short for data.init_args.fraction, which is taken
    )
    run = cli("fit", "-c", "first.yaml", "-c", "later.yaml", "--trainer.fast_dev_run=1", "--init.initializer=Positions")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("structured-init")]
    assert said == [
        "structured-init: model.init_args.optimizer.init_args.betas is left out: a later class does not take it"
    ]
    section = run.config.fit
    assert section.model.init_args.optimizer.init_args.lr == 0.25
    assert section.init.initializer.init_args.where is None


def test_a_run_without_a_logger_leaves_the_files_of_the_present_folder_alone(cli, folder):
    (folder / "experiment.yaml").write_text("mine: true")
    (folder / "init_report.json").write_text("[]")
    cli("fit", "--trainer.logger=false", *QUICK)
    assert (folder / "experiment.yaml").read_text() == "mine: true"
    assert json.loads((folder / "init_report.json").read_text()) == []
    assert (folder / "lightning_logs" / "version_0" / "init_report.json").is_file()


INTERRUPTING = """
import os, signal
from lightning.pytorch import Callback
class CtrlC(Callback):
    def __init__(self, epoch: int = 1):
        self.epoch = epoch
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the resumed run has a folder of its own
def test_ctrl_c_says_how_to_go_on(cli, folder, capsys, monkeypatch):
    (folder / "interrupting_here.py").write_text(INTERRUPTING)
    monkeypatch.syspath_prepend(folder)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
    with pytest.raises(SystemExit) as stop:
        cli("fit", "--trainer.max_epochs=2", "--trainer.callbacks=interrupting_here.CtrlC", "--attention.enabled=false")
    signal.signal(signal.SIGINT, handler)  # Lightning leaves Ctrl-C switched off
    assert stop.value.code == 130
    command = capsys.readouterr().err.splitlines()[-1].rpartition("from the last checkpoint: ")[2].split()
    assert command[-2:] == ["--ckpt_path", "lightning_logs/version_0/checkpoints/last.ckpt"]
    resumed = main([*command[1:], "--trainer.callbacks.epoch=9"])
    assert resumed.trainer.current_epoch == 2


PRESSED = """
import os, signal
from lightning_modules.cli import entry
def main():
    {before}
    try:
        os.kill(os.getpid(), signal.{pressed})
        print("it goes on")
    except BaseException:
        {swallow}
        raise
entry.main = main
entry.command()
"""
WRITING = "from structured_init.util.errors import begin_writing; begin_writing(signal.SIGTERM)"


@pytest.mark.parametrize(
    ("pressed", "before", "swallow", "said"),
    [
        ("SIGINT", "", "return print('a library has caught it')", "stopped before anything was written"),
        ("SIGTERM", WRITING, "print('put in order')", "stopped"),
    ],
)
def test_ctrl_c_ends_a_command_that_checks_whatever_a_library_catches_and_one_that_writes_in_order(
    pressed, before, swallow, said
):
    program = PRESSED.format(pressed=pressed, before=before, swallow=swallow)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    default = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # as a terminal starts a command
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=default,
    )
    assert (ended.returncode, ended.stderr) == (130, f"structured-init: {said}\n")
    assert ended.stdout == ("put in order\n" if before else "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["structured_init", "callbacks", "comparison"])
def test_a_folder_of_the_users_that_hides_ours_is_one_line(folder, name):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    program = f"import sys\nsys.path.insert(1, {str(ROOT)!r})\nfrom lightning_modules.cli import main\nmain(['fit'])\n"
    (folder / "train.py").write_text(program)
    surroundings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, cwd=folder, check=False, env=surroundings
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert f"hides this project's package '{name}': rename yours" in line


@pytest.mark.slow
def test_an_ordinary_run_shows_no_warning_of_a_library(folder):
    command = [sys.executable, "-m", "lightning_modules.cli", "fit", "-c", "tiny.yaml", "-c", "init/mimetic"]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=surroundings)
    lines = result.stderr.splitlines()
    assert not [line for line in lines if "site-packages" in line or "Warning" in line or "Tip" in line]
