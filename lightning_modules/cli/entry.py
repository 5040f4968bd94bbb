"""From the shell to a command; what a command needs is imported when it runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lightning_modules.cli.commands import added_commands, overview
from structured_init.errors import StructuredInitError, one_line

if TYPE_CHECKING:
    from lightning_modules.cli.lightning_cli import CLI


def main(args: list[str] | None = None) -> CLI | None:
    """Run the command ``structured-init``.

    Args:
        args: the command line without the program's name; ``None`` takes the shell's.

    Returns:
        The finished command line object, with its ``trainer``, ``model`` and ``datamodule``; ``None`` after a command
        that trains nothing by itself.

    Raises:
        SystemExit: with code 2 after an expected mistake, which gets one line on stderr. A bug keeps its traceback.
    """
    args = sys.argv[1:] if args is None else list(args)
    if args[:1] in (["--help"], ["-h"]):
        print(overview())
        return None
    try:
        added = added_commands().get(args[0]) if args else None
        return added.load()(args[1:]) if added else _lightning(args)
    except StructuredInitError as error:
        print(f"structured-init: error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _lightning(args: list[str]) -> CLI:
    """Run a command of Lightning's, or ``show``."""
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    from lightning_modules.cli.config_names import expand
    from lightning_modules.cli.lightning_cli import CLI

    try:
        return CLI(expand(args))
    except MisconfigurationException as error:
        raise StructuredInitError(one_line(error)) from error


def command() -> None:
    """Run :func:`main` for the shell, which would print what it returns, with the present folder's modules in reach."""
    sys.path.append(os.getcwd())  # last: nothing there can hide a package
    main()
