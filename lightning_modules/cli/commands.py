"""Which commands there are, and whether a folder of the user's hides a package of this project.

Standard library alone, so that ``--help`` is quick and nothing else is met before a hidden package is said.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

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


def added_commands() -> dict[str, EntryPoint]:
    """Return the commands that installed packages add, by name."""
    return {each.name: each for each in entry_points(group=GROUP)}


def overview() -> str:
    """Return what ``structured-init --help`` prints."""
    known = {**BUILT_IN, **{name: ADDED.get(name, each.value) for name, each in added_commands().items()}}
    width = max(map(len, known))
    return "\n".join([
        "usage: structured-init COMMAND …",
        "",
        "Choose how a network is initialized, in one line, and see what it did to weights and attention.",
        "",
        *(f"  {name:{width}}  {what}" for name, what in known.items()),
        "",
        "structured-init COMMAND --help lists the options of a command. Configurations are layered with -c, a shipped",
        "one by its name: structured-init fit -c vit_digits -c init/mimetic",
        "",
        documentation(),
    ])  # fmt: skip


_NAMED = {
    "MODEL": "a configuration (vit_digits), a model of timm (vit_tiny_patch16_224) or transformers (gpt2), or a\n"
    "config.json of transformers; no pretrained weights are fetched",
    "INIT": "an initialization (mimetic); structured-init list names them",
    "-c, --config FILE": "a configuration, shipped or yours; later ones are layered over earlier ones",
}
_EVALUATED = {
    "-c, --config FILE": "a configuration, as for fit",
    "--ckpt_path FILE": "the checkpoint's file, RUN/checkpoints/NAME.ckpt; best and last name none here",
}
# The options of each command that are its own, before all those of Lightning.
OWN = {
    "fit": {
        "-c, --config FILE": _NAMED["-c, --config FILE"],
        "--init.initializer CLASS": "the initialization, in place of -c init/NAME",
        "--init.strict true": "refuse a network if any of its attention would be left alone",
        "--model.network NAME": "a network of this project or of timm, or the path of your class",
        "--data.name NAME": "a dataset of the hub, a folder, or digits",
        "--seed_everything N": "seed of all draws (default: 0)",
        "--trainer.max_epochs N": "how long to train",
        "--trainer.max_time T": "stop after this time, DD:HH:MM:SS",
        "--ckpt_path FILE": "go on from a checkpoint; last takes the newest of this run",
    },
    "validate": _EVALUATED,
    "test": _EVALUATED,
    "predict": {**_EVALUATED, "--data.predict_folder DIR": "new images, without classes, in place of the test split"},
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


def own_help(command: str) -> str:
    """Return the help of a command that Lightning runs: its own options; ``--help-all`` has every one."""
    by_name = " [MODEL [INIT]]" if "MODEL" in OWN[command] else ""
    lines = [f"usage: structured-init {command}{by_name} [-c FILE]… [--option value]…", "", BUILT_IN[command], ""]
    for option, what in OWN[command].items():
        first, *others = what.split("\n")
        lines += [f"  {option:26} {first}", *(f"  {'':26} {other}" for other in others)]
    sections = "trainer, model, data, init, attention and filters"
    return "\n".join([
        *lines,
        "",
        f"Every key of a configuration is an option as well, in the sections {sections}:",
        f"structured-init {command} --help-all lists them, --data.help ImageData and --model.help ImageClassifier",
        "those of a class.",
        "",
        documentation(),
    ])  # fmt: skip


def documentation() -> str:
    """Return the line that says where the documentation is: in this clone, or in the repository."""
    page = Path(__file__).resolve().parents[2] / "docs" / "index.md"
    return f"documentation: {page if page.is_file() else 'the folder docs of the repository of structured-init'}"


PACKAGES = ("structured_init", "callbacks", "lightning_modules", "comparison")


def shadowing() -> str | None:
    """Return one line about the first package of this project that another one hides; ``None`` where none is."""
    ours = Path(__file__).resolve().parents[2]
    for name in PACKAGES:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module in sys.modules that was not imported in the usual way
            spec = None
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent != ours / name:
            other = origin or name
            return f"'{other}' hides this project's package '{name}': rename yours, or start from another folder"
    return None
