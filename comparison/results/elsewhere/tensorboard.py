"""TensorBoard's event files, read by TensorBoard: a folder per run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from comparison.results.elsewhere.runs import Key, Logged, Runs, add, in_order, named
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

EVENTS = "*tfevents*"


def read_tensorboard(path: Path, pattern: str | None = None) -> Runs:
    """Return the runs of a folder: every folder in it that holds event files is one.

    ``SummaryWriter.add_hparams`` writes into a folder of its own inside that of the run, to which it is added.

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
    found: dict[Path, tuple[Logged, dict[str, str]]] = {}
    for folder in sorted({file.parent for file in path.rglob(EVENTS) if file.is_file()}):
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
        settings = _settings(events)
        if settings and folder.parent in found:  # the curves of the run count before what was added at its end
            before, known = found[folder.parent]
            found[folder.parent] = {**logged, **before}, {**settings, **known}
        else:
            found[folder] = logged, settings
    runs: Runs = {}
    names: dict[Key, str] = {}
    for folder, (logged, settings) in found.items():
        name = folder.relative_to(path).as_posix()
        if logged:
            add(runs, named(path.resolve().name if name == "." else name, pattern, settings), logged, name, names)
    if not runs:
        raise StructuredInitError(f"the event files of '{path}' hold no scalars")
    return runs


def _settings(events: EventAccumulator) -> dict[str, str]:
    """Return the hyperparameters that were logged with a run; empty where none were."""
    from tensorboard.plugins.hparams import metadata

    try:
        content = events.PluginTagToContent(metadata.PLUGIN_NAME).get(metadata.SESSION_START_INFO_TAG)
    except KeyError:  # no such plugin
        return {}
    if content is None:
        return {}
    values = metadata.parse_session_start_info_plugin_data(content).hparams.items()
    return {name: str(getattr(value, value.WhichOneof("kind") or "string_value")) for name, value in values}
