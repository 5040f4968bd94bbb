"""Which commands there are, and whether a folder of the user's hides a package of this project.

Standard library alone, so that ``--help`` is quick and nothing else is met before a hidden package is said.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

# A package adds a command by an entry point of this group; its function takes the command line after the command.
GROUP = "structured_init.commands"
LIGHTNING = {
    "fit": "train a network from the initialization of the section init",
    "validate": "evaluate a checkpoint on the validation split",
    "test": "evaluate a checkpoint on the test split",
    "predict": "write the predictions of a checkpoint",
    "show": "apply an initialization and draw what it did, without training",
    "audit": "say what initialization a model really has, and what is suspicious about it",
}
ADDED = {
    "compare": "train an experiment from several initializations with the same seeds, and report the differences",
    "find": "race initializations, and show the best on fresh seeds and the test split",
    "report": "write the report of a comparison again, or of anybody's runs",
    "judge": "say of anybody's runs: keep, discard, or so many more seeds",
}


def added_commands() -> dict[str, EntryPoint]:
    """Return the commands that installed packages add, by name."""
    return {each.name: each for each in entry_points(group=GROUP)}


def overview() -> str:
    """Return what ``structured-init --help`` prints."""
    known = {**LIGHTNING, **{name: ADDED.get(name, each.value) for name, each in added_commands().items()}}
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
    ])  # fmt: skip


PACKAGES = ("structured_init", "callbacks", "lightning_modules", "comparison")


def shadowing(names: Iterable[str] = PACKAGES) -> str | None:
    """Return one line about the first package of this project that another one hides; ``None`` where none is.

    Args:
        names: of the packages.
    """
    ours = Path(__file__).resolve().parents[2]
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module in sys.modules that was not imported in the usual way
            spec = None
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parent != ours / name:
            other = origin or name
            return f"'{other}' hides this project's package '{name}': rename yours, or start from another folder"
    return None
