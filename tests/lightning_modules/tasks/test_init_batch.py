"""Real images for a start, from YAML: nothing is to be said but that the solver wants them."""

from __future__ import annotations

import json
from pathlib import Path

from callbacks import InitCallback

START = """
init:
  initializer:
    class_path: Impulse
    init_args: {solver: {class_path: AdamSolver, init_args: {iterations: 2, pseudo_input: batch}}}
"""


def test_a_yaml_that_asks_for_real_images_gets_training_images(cli, folder):
    (folder / "start.yaml").write_text(START + "  samples: 5\n")
    run = cli(
        "fit", "-c", "start.yaml", "--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--attention.enabled=false"
    )
    log = Path(run.trainer.log_dir)
    report = json.loads((log / "init_report.json").read_text())
    assert "pseudo_input='batch'" in report["initializer"]
    assert "samples: 5" in (log / "hparams.yaml").read_text()
    (callback,) = (each for each in run.trainer.callbacks if isinstance(each, InitCallback))
    assert {name for entry in callback.report.changed for name in entry.names} == {
        "network.pos_embed",
        *(f"network.blocks.{layer}.attn.qkv.weight" for layer in range(2)),
    }
