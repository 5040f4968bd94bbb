"""TensorBoard's event files, read by TensorBoard: a folder per run."""

from __future__ import annotations

from pathlib import Path

from comparison.results.elsewhere.runs import Key, Logged, Runs, add, in_order, named
from structured_init.errors import StructuredInitError

EVENTS = "*tfevents*"


def read_tensorboard(path: Path, pattern: str | None = None) -> Runs:
    """Return the runs of a folder: every folder in it that holds event files is one.

    Args:
        path: of the folder.
        pattern: how runs are named.

    Raises:
        StructuredInitError: TensorBoard is not installed, or no run has scalars.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise StructuredInitError(
            "TensorBoard's event files need the package tensorboard: pip install 'structured-init[tensorboard]'"
        ) from None
    runs: Runs = {}
    names: dict[Key, str] = {}
    for folder in sorted({file.parent for file in path.rglob(EVENTS)}):
        events = EventAccumulator(str(folder), size_guidance={SCALARS: 0, TENSORS: 0})
        events.Reload()
        tags = events.Tags()
        logged: Logged = {
            tag: in_order([(float(each.step), float(each.value)) for each in events.Scalars(tag)])
            for tag in tags[SCALARS]
        }
        for tag in tags[TENSORS]:  # where TensorFlow 2 has written scalars
            values = [(float(each.step), make_ndarray(each.tensor_proto)) for each in events.Tensors(tag)]
            if all(value.shape == () and value.dtype.kind in "fiu" for _, value in values):
                logged[tag] = in_order([(step, float(value)) for step, value in values])
        name = folder.relative_to(path).as_posix()
        if logged:
            add(runs, named(path.resolve().name if name == "." else name, pattern), logged, name, names)
    if not runs:
        raise StructuredInitError(f"the event files of '{path}' hold no scalars")
    return runs
