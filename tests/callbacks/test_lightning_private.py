"""The private names of Lightning are in one file, and each of them is still there."""

import ast
import importlib
import inspect
from pathlib import Path

import lightning as L
import pytest
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loops import evaluation_loop, fit_loop
from lightning.pytorch.trainer.connectors.logger_connector import result
from torchmetrics import MeanMetric, Metric

from callbacks import lightning_private

ROOT = Path(__file__).parents[2]
PLACE = Path(lightning_private.__file__)
TRAINER = L.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False)
LOOP = TRAINER.fit_loop
METRIC = result._ResultMetric(result._Metadata("training_step", "loss"), is_tensor=True)

# What needs a name, the object that has it, and what does not work without it.
NAMES = [
    ("_FitLoop", fit_loop, "finish_when_done: a run that was killed after its last step is not closed"),
    ("_Metadata", result, "restore_logged: values logged before a kill are lost"),
    ("_ResultMetric", result, "restore_logged: values logged before a kill are lost"),
    ("_Sync", result, "restore_logged: values logged before a kill are lost"),
    ("_update_count", METRIC, "logged_state: means over a resumed epoch are wrong"),
    ("_forward_cache", METRIC, "logged_state: the last value of a step is lost"),
    ("_num_ready_batches_reached", LOOP.epoch_loop, "moment_of: the end of an epoch is not seen"),
    ("_should_check_val_fx", LOOP.epoch_loop, "moment_of: a validation that is due is left out"),
    ("_batches_that_stepped", LOOP.epoch_loop, "row_to_come: rows get another step"),
    ("_results", LOOP.epoch_loop, "logged_state: values logged before a kill are lost"),
    ("_results", LOOP.epoch_loop.val_loop, "reset_next: metrics of a validation are counted twice"),
    ("_restart_stage", LOOP.epoch_loop.val_loop, "continue_loops: a validation that is due is left out"),
    ("_data_fetcher", LOOP, "moment_of: a validation that is due is left out"),
    ("_should_accumulate", LOOP, "moment_of: gradients of an accumulation are lost"),
    ("_restarting", LOOP, "end_restart: schedulers that watch a metric miss a step"),
    ("_resuming_from_checkpoint", LOOP, "continue_loops: a loader without a state gives a resumed epoch other batches"),
    ("_load_combined_loader_states", LOOP, "load_positions: a resumed epoch begins again"),
    ("_combined_loader", LOOP, "load_positions: a resumed epoch begins again"),
    ("_data_source", LOOP, "training_source: an initializer gets no real samples"),
    ("_logger_connector", TRAINER, "show_metrics: monitors do not see what was logged before"),
    ("_callback_metrics", TRAINER._logger_connector, "show_metrics: monitors do not see what was logged before"),
    ("_logged_metrics", TRAINER._logger_connector, "show_metrics: what was logged before is lost"),
    ("_progress_bar_metrics", TRAINER._logger_connector, "show_metrics: what was shown before is lost"),
    ("_first_loop_iter", TRAINER._logger_connector, "continue_loops: means over a resumed epoch are wrong"),
    ("_parse_ckpt_path", LightningCLI, "CommandLine: a checkpoint's arguments replace the user's"),
    ("_run_subcommand", LightningCLI, "CommandLine: preflight trains"),
]


@pytest.mark.parametrize(("name", "owner", "use"), NAMES, ids=[f"{i}{name}" for i, (name, *_) in enumerate(NAMES)])
def test_lightning_still_has_the_name(name, owner, use):
    where = getattr(owner, "__name__", type(owner).__name__)
    assert hasattr(owner, name), f"this Lightning ({L.__version__}) has no {where}.{name}. {use}"


def test_lightning_still_keeps_the_average_where_it_is_looked_for():
    assert "self._average_model" in inspect.getsource(WeightAveraging), "averaged_model: averages keep old weights"


def test_the_public_names_of_private_classes_are_there():
    assert hasattr(evaluation_loop.RestartStage, "RESTARTED_MID_EVALUATION"), "a validation that is due is left out"
    assert hasattr(fit_loop._FitLoop, "skip"), "a run that was killed after its last step is not closed"
    assert {"should_update_logs", "metrics"} <= set(dir(type(TRAINER._logger_connector))), "row_to_come"


def test_the_table_names_everything_that_the_file_uses():
    used = _private(ast.parse(PLACE.read_text())) - {"_FinishingLoop"}
    assert used == {name for name, *_ in NAMES} - {"_callback_metrics", "_logged_metrics", "_progress_bar_metrics"} | {
        "_average_model",
        "_should",
    }


def _files():
    rooms = ("callbacks", "lightning_modules", "comparison")  # structured_init never imports Lightning
    return [path for room in rooms for path in sorted((ROOT / room).rglob("*.py")) if path != PLACE]


@pytest.fixture(scope="module")
def of_lightning():
    """Every private name that Lightning defines, but for those that torch's modules and torchmetrics have too."""
    names = set()
    for path in (Path(L.__file__).parent / "pytorch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return {each for each in names if each[0] == "_" and each[1:2] != "_"} - set(dir(Metric)) - set(dir(MeanMetric()))


def test_no_other_file_asks_an_object_for_a_private_name_of_lightning(of_lightning):
    found = set()
    for path in _files():
        nodes = list(ast.walk(ast.parse(path.read_text())))
        own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
        asked = {(node.lineno, name) for node in nodes for name in _asked(node)}
        # What an object asks itself for and does not define is inherited, such as a module's trainer.
        asked |= {
            (node.lineno, node.attr) for node in nodes if isinstance(node, ast.Attribute) and node.attr not in own
        }
        found |= {f"{path.relative_to(ROOT)}:{line} {name}" for line, name in asked if name in of_lightning}
    assert not found, f"a private name of Lightning belongs into {PLACE.relative_to(ROOT)}"


def test_no_other_file_replaces_a_private_method_of_a_class_of_lightning():
    found = set()
    for path in _files():
        text = path.read_text()
        if "lightning" not in text or path.name == "__main__.py":
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("lightning.")]
                known = {name for base in bases for name in vars(base)}
                found |= {f"{cls.__qualname__}.{n}" for n in vars(cls) if n in known and n[0] == "_" and n[1] != "_"}
    assert not {name for name in found if not name.endswith("._abc_impl")}


def _asked(node):
    """The private names that an expression asks another object than self for, or imports from Lightning."""
    if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
        yield node.attr
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning."):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
        yield from (each.value for each in node.args[1:2] if isinstance(each, ast.Constant))


def _private(tree):
    names = {name for node in ast.walk(tree) for name in _asked(node)}
    names |= {word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords if word.arg}
    names |= {
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        for key in [node.slice]
        if isinstance(key, ast.Constant)
    }
    return {name for name in names if isinstance(name, str) and name.startswith("_") and not name.startswith("__")}
