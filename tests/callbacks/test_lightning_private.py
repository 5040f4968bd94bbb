"""The private names of Lightning are in one file, and each of them is still there."""

import ast
import inspect
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loops import evaluation_loop, fit_loop
from lightning.pytorch.trainer.connectors.logger_connector import result

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
    ("_has_run", LOOP.epoch_loop.val_loop, "continue_loops: an epoch that has ended trains further batches"),
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


def test_lightning_still_has_every_name():
    for name, owner, use in NAMES:
        where = getattr(owner, "__name__", type(owner).__name__)
        assert hasattr(owner, name), f"this Lightning ({L.__version__}) has no {where}.{name}. {use}"
    assert "self._average_model" in inspect.getsource(WeightAveraging), "averaged_model: averages keep old weights"
    assert hasattr(evaluation_loop.RestartStage, "RESTARTED_MID_EVALUATION"), "a validation that is due is left out"
    assert hasattr(fit_loop._FitLoop, "skip"), "a run that was killed after its last step is not closed"
    assert {"should_update_logs", "metrics"} <= set(dir(type(TRAINER._logger_connector))), "row_to_come"


def test_no_other_file_uses_one_of_them():
    """But for methods of the command line, which our subclass overrides, and names that torchmetrics has too."""
    private = {name for name, owner, _ in NAMES if owner not in (LightningCLI, METRIC)}
    rooms = ("callbacks", "lightning_modules", "comparison")  # structured_init never imports Lightning
    for path in (path for room in rooms for path in sorted((ROOT / room).rglob("*.py")) if path != PLACE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                assert node.attr not in private, f"{path}:{node.lineno}"
