"""``python -m lightning_modules.cli``: the command ``structured-init`` of a clone that is not installed."""

from lightning_modules.cli.entry import command

if __name__ == "__main__":
    command()
