"""The recall tasks by name."""

from __future__ import annotations

import inspect
from typing import Any

from lightning_modules.data.recall.associative import MultiQueryRecall
from lightning_modules.data.recall.copying import Copying, Sorting, StackCopying
from lightning_modules.data.recall.needle import NeedleRetrieval
from lightning_modules.data.recall.selective import SelectiveCopying
from lightning_modules.data.recall.task import RecallTask
from structured_init.errors import StructuredInitError, nearest

TASKS: dict[str, type[RecallTask]] = {
    "copying": Copying,
    "stack_copying": StackCopying,
    "sorting": Sorting,
    "selective_copying": SelectiveCopying,
    "mqar": MultiQueryRecall,
    "needle": NeedleRetrieval,
}


def create_task(name: str, **task_args: Any) -> RecallTask:
    """Build a task by its name.

    Raises:
        StructuredInitError: unknown name or argument, or a number out of range; the nearest name is given.
    """
    if name not in TASKS:
        raise StructuredInitError(f"unknown task '{name}': {nearest(name, TASKS)}")
    known = list(inspect.signature(TASKS[name]).parameters)
    for argument in task_args:
        if argument not in known:
            raise StructuredInitError(f"task '{name}' takes no argument '{argument}': {nearest(argument, known)}")
    return TASKS[name](**task_args)
