"""Which commands there are, and whether a folder of the user's hides a package of this project.

Standard library alone, so that ``--help`` is quick and nothing else is met before a hidden package is said.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # that the packages are imported from: a clone, or where they are installed
PACKAGES = ("structured_init", "callbacks", "lightning_modules", "comparison")
# A package adds a command by an entry point of this group; its function takes the command line after the command.
GROUP = "structured_init.commands"
BUILT_IN = {
    "fit": "train a network from an initialization",
    "validate": "evaluate a checkpoint on the validation split",
    "test": "evaluate a checkpoint on the test split",
    "predict": "write the classes that a checkpoint predicts to a table (CSV)",
    "show": "apply an initialization and draw what it did, without training",
    "audit": "say what initialization a model really has, and what is suspicious about it",
    "list": "list the initializations, and those that fit a network",
}
ADDED = {
    "compare": "train an experiment from several initializations with the same seeds, and report the differences",
    "find": "race initializations, and show the best on fresh seeds and the test split",
    "report": "write the report of a comparison, or of runs made elsewhere",
    "judge": "judge any runs: keep, discard, or train more seeds",
}
# The options that users ask for, before all those of Lightning.
EVERYWHERE = {
    "-c, --config FILE": "a configuration, shipped or yours; later ones are layered over earlier ones",
    "--init.initializer CLASS": "the initialization, in place of -c init/NAME",
    "--model.network NAME": "a network of this project or of timm, or the path of your class",
    "--data.name NAME": "a dataset of the hub, a folder, or digits",
    "--seed_everything N": "seed of all draws (default: 0)",
}
_NAMED = {
    "MODEL": "a configuration (vit_digits), a model of timm or transformers (gpt2), or a config.json; fresh weights",
    "INIT": "an initialization (mimetic); structured-init list names them",
}
_CHECKPOINT = {"--ckpt_path FILE": "the checkpoint's file, RUN/checkpoints/NAME.ckpt; best and last name none here"}
OWN = {
    "fit": {
        "--init.strict true": "refuse a network if any of its attention would be left alone",
        "--trainer.max_epochs N": "how long to train",
        "--trainer.max_time T": "stop after this time, DD:HH:MM:SS",
        "--ckpt_path FILE": "go on from a checkpoint; last takes the newest of this run",
    },
    "validate": _CHECKPOINT,
    "test": _CHECKPOINT,
    "predict": {**_CHECKPOINT, "--data.predict_folder DIR": "new images, without classes, in place of the test split"},
    "show": {
        **_NAMED,
        "--plan": "only print what would be done, and touch nothing",
        "--export FILE": "write the initialized network's weights to this file (.safetensors)",
        "--checkpoint FILE": "a checkpoint of the same network, or exported weights, to draw beside it",
        "--output DIR": "folder for the report and the figures (default: show)",
    },
    "audit": {
        **_NAMED,
        "--classes N": "number of classes or words, for the first loss, where the model does not say it",
        "--checkpoint FILE": "a checkpoint of the same network, or exported weights, to look at instead",
        "--output DIR": "folder for the table of parameters (CSV), the page (Markdown) and the picture (PNG)",
    },
}
OVERVIEW = """usage: structured-init COMMAND …

Choose how a network is initialized, in one line, and see what it did to weights and attention.

{table}

structured-init COMMAND --help lists the options of a command. Configurations are layered with -c, a shipped
one by its name: structured-init fit -c vit_digits -c init/mimetic

{documentation}"""
HELP = """usage: structured-init {command}{names} [-c FILE]… [--option value]…

{about}

{table}

Every key of a configuration is an option as well, in the sections trainer, model, data, init, attention and filters:
structured-init {command} --help-all lists them, --data.help ImageData and --model.help ImageClassifier those of a
class.

{documentation}"""


def added_commands() -> dict[str, EntryPoint]:
    """Return the commands that installed packages add, by name."""
    return {each.name: each for each in entry_points(group=GROUP)}


def overview() -> str:
    """Return what ``structured-init --help`` prints."""
    added = {name: ADDED.get(name, each.value) for name, each in added_commands().items()}
    return OVERVIEW.format(table=_table(BUILT_IN | added, 10), documentation=documentation())


def own_help(command: str) -> str:
    """Return the help of a command that Lightning runs: what users ask for; ``--help-all`` has every option."""
    return HELP.format(
        command=command,
        names=" [MODEL [INIT]]" if "MODEL" in OWN[command] else "",
        about=BUILT_IN[command],
        table=_table(OWN[command] | EVERYWHERE, 27),
        documentation=documentation(),
    )


def _table(rows: dict[str, str], width: int) -> str:
    return "\n".join(f"  {name:{width}} {what}" for name, what in rows.items())


def documentation() -> str:
    """Return the line that says where the documentation is: in this clone, or in the repository."""
    page = ROOT / "docs" / "index.md"
    return f"documentation: {page if page.is_file() else 'the folder docs of the repository of structured-init'}"


def shadowing() -> str | None:
    """Return one line about the first package of this project that another one hides; ``None`` where none is."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parent != ROOT / name:
            other = spec.origin if spec and spec.origin else name
            return f"'{other}' hides this project's package '{name}': rename yours, or start from another folder"
    return None
