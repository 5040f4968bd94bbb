"""The command ``structured-init``."""

from __future__ import annotations

from lightning_modules.cli.entry import command, main

__all__ = ["command", "main"]
