"""From the shell to a command; what a command needs is imported when it runs."""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from typing import TYPE_CHECKING

from lightning_modules.cli.commands import ADDED, BUILT_IN, ROOT, added_commands, overview, own_help, shadowing

if TYPE_CHECKING:
    from lightning_modules.cli.lightning_cli import CLI

# Said in every ordinary run, about libraries themselves. Each with its reason. A warning that a user can act on stays.
WARNINGS = (
    (r".*isinstance\(treespec, LeafSpec\)", FutureWarning),  # lightning 2.6 uses a name that torch has renamed
    (r"The '.*_dataloader' does not have many workers", UserWarning),  # ours decode ahead, in memory
)
ADVERTISEMENT = "💡 Tip"  # of Lightning
UNTRAINED = ("GPU available", "TPU available", "Seed set to")  # of commands that train nothing
TRAINS_NOTHING = ("show", "audit", "list")
FROM_ANYWHERE = ("report", "judge")  # commands that may be run in a folder from a stranger
LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed")


def main(args: list[str] | None = None) -> CLI | None:
    """Run the command ``structured-init`` with a command line, without the program's name; ``None`` takes the shell's.

    Returns:
        The finished command line object, with its ``trainer``, ``model`` and ``datamodule``; ``None`` after a command
        that trains nothing by itself.

    Raises:
        SystemExit: with code 2 after an expected mistake, which gets one line on stderr. A bug keeps its traceback.
    """
    command, *words = (sys.argv[1:] if args is None else args) or ["--help"]
    if hidden := shadowing():
        print(f"structured-init: error: {hidden}", file=sys.stderr)
        raise SystemExit(2)
    from structured_init.util.errors import StructuredInitError, missing_extra, one_line

    try:
        return _run(command, words)
    except StructuredInitError as error:
        said: Exception = error
    except ModuleNotFoundError as error:
        extra = "compare" if command in ADDED else "lightning"
        missing = missing_extra(error, shlex.join(["structured-init", command]), extra)
        if missing is None:
            raise
        said = missing
    print(f"structured-init: error: {one_line(said)}", file=sys.stderr)
    raise SystemExit(2)


def _run(command: str, words: list[str]) -> CLI | None:
    from structured_init import __version__
    from structured_init.util.errors import StructuredInitError, nearest, one_line

    if command in ("--help", "-h"):
        return print(overview())
    if command == "--version":
        return print(f"structured-init {__version__}")
    added = added_commands()
    if command in added:
        return added[command].load()(words)
    if command not in BUILT_IN:
        commands = [*BUILT_IN, *added]
        raise StructuredInitError(f"unknown command '{command}': {nearest(command, commands, limit=len(commands))}")
    if command == "list":
        from lightning_modules.cli.listing import list_command

        return list_command(words)
    if {"--help", "-h"} & set(words):
        return print(own_help(command))
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    from lightning_modules.cli.configurations import expand
    from lightning_modules.cli.lightning_cli import CLI
    from lightning_modules.cli.named_model import by_position

    typed = [command, *words]
    words = by_position(typed) if command in ("show", "audit") else typed
    words = ["--help" if word == "--help-all" else word for word in words]
    try:
        return CLI(expand(words), typed)
    except MisconfigurationException as error:  # what Lightning says of its arguments
        raise StructuredInitError(one_line(error)) from error


def command() -> None:
    """Run :func:`main` for the shell, which would print what it returns, with the present folder's modules in reach.

    Not so for ``report`` and ``judge``: whatever a library looks for while it is imported, it is not found there.

    Raises:
        SystemExit: with code 130 after Ctrl-C, which gets one line on stderr; with code 2 after a bug in ``judge``.
    """
    name = "".join(sys.argv[1:2])
    # Not where a shell lets its job ignore it, nor before it is known that nothing hides our packages.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and shadowing() is None:
        from structured_init.util.errors import stop_at_once

        signal.signal(signal.SIGINT, stop_at_once)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another alphabet shows "?"
    _leave_out((ADVERTISEMENT, *UNTRAINED) if name in TRAINS_NOTHING else (ADVERTISEMENT,))
    try:
        here = os.path.realpath(os.getcwd())
        if name not in FROM_ANYWHERE:
            sys.path.append(here)  # last: nothing there can hide a package
        elif here != str(ROOT):
            sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]  # python -m puts it first
        main()
    except KeyboardInterrupt:
        print("structured-init: stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # what reads our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except Exception:
        if name != "judge":
            raise
        traceback.print_exc()  # Python would end with 1, which is the answer "discard"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a full device refused is not tried again
        raise SystemExit(2) from None


def _leave_out(starts: tuple[str, ...]) -> None:
    """Leave out, for the rest of this process, log lines with these beginnings and the warnings above."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda record: not record.getMessage().startswith(starts))
    for message, category in WARNINGS:
        warnings.filterwarnings("ignore", message, category)
