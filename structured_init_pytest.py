"""A pytest plugin: ``pytest --initialized my_package.models:build`` checks how the models begin that functions build.

It is no part of the package ``structured_init``, so that pytest imports neither that nor torch where nobody asks.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command."""
    group = parser.getgroup("structured-init")
    group.addoption(
        "--initialized",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="check how the model begins that a function without arguments builds; may be given repeatedly",
    )
    group.addoption("--initialized-skip", default="", metavar="CHECKS", help="checks to leave out, such as loss,meta")
    group.addoption(
        "--initialized-batch", metavar="MODULE:FUNCTION", help="the batch to call the models with, or what returns it"
    )
    group.addoption(
        "--initialized-where", metavar="PATTERNS", help="what is drawn, if the rest is loaded, such as head"
    )
    group.addoption("--initialized-snapshot", metavar="FILE", help="compare one model with this JSON file, or write it")
    group.addoption("--update-snapshot", action="store_true", help="write the snapshot anew")
    group.addoption("--initialized-classes", type=int, metavar="N", help="classes or words of the output, for its loss")


LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which checks could not be made."""
    for line in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add one test per function."""
    items += [BeginsAsItShould.from_parent(session, name=name) for name in config.getoption("initialized")]


class BeginsAsItShould(pytest.Item):
    """One model."""

    def runtest(self) -> None:
        from structured_init.testing import assert_initialized
        from structured_init.util.errors import imported

        if str(self.config.rootpath) not in sys.path:
            sys.path.append(str(self.config.rootpath))
        given = self.config.getoption("initialized_batch")
        batch = None if given is None else imported("--initialized-batch", given)
        where = self.config.getoption("initialized_where")
        checked = assert_initialized(
            imported("--initialized", self.name),
            batch() if callable(batch) else batch,
            classes=self.config.getoption("initialized_classes"),
            skip=self.config.getoption("initialized_skip"),
            where=where and [each.strip() for each in where.split(",") if each.strip()],
            snapshot=self.config.getoption("initialized_snapshot"),
            update_snapshot=self.config.getoption("update_snapshot"),
        )
        said = self.config.stash.setdefault(LEFT_OUT, [])
        said += [f"{self.name}: {line}" for line in checked.left_out]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        from structured_init.util.errors import StructuredInitError

        if excinfo.errisinstance((AssertionError, StructuredInitError)):
            return str(excinfo.value)
        own = [entry for entry in excinfo.traceback if self.config.rootpath in entry.path.parents]
        where = [f"{entry.path}:{entry.lineno + 1}: in {entry.name}" for entry in own]
        return "\n".join([*where, f"{excinfo.typename}: {excinfo.value}"])

    def reportinfo(self) -> tuple[Any, None, str]:
        return self.config.rootpath, None, f"{self.name} begins as it should"
