"""Which commands there are: Lightning's, ``show``, ``audit``, and those that installed packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

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
    "report": "write the report of a comparison again",
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
