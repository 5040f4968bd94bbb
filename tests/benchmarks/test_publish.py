"""Publishing a comparison: numbers, few pictures, and a report that shows these and says how the others are made."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from PIL import Image

from benchmarks import publish
from structured_init import StructuredInitError

LOSS = "a,2.3,val/loss,2\na,,val/loss,nan\na,3.0,val/accuracy,0.5\n"
DRAWN = ("curves_val_accuracy_by_samples", "curves_val_accuracy_by_step", "attention")


@pytest.fixture
def finished(tmp_path):
    """The folder of a comparison with three pictures."""
    folder = tmp_path / "finished"
    (folder / "figures").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"metric": "test/accuracy"}))
    for name in ("results.csv", "curves.csv", "report.html"):
        (folder / name).write_text(name)
    (folder / "results.json").write_text('{\n "comparison": {},\n "runs": [\n  0.1,\n  1e-05\n ]\n}')
    shown = "\n\n".join(f"![{name}](figures/{name}.png)" for name in DRAWN)
    (folder / "report.md").write_text(f"# Title\n\n## Figures\n\n{shown}\n\n## Runs\n\nthe command\n")
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    for name in DRAWN:
        Image.fromarray(noise).save(folder / "figures" / f"{name}.png")
        (folder / "figures" / f"{name}.svg").touch()
    return folder


def test_numbers_and_the_chosen_pictures_are_copied_and_nothing_else(finished, tmp_path):
    target = tmp_path / "published"
    (target / "figures").mkdir(parents=True)
    (target / "figures" / "stale.png").touch()
    publish.publish(finished, target, ["att*"])
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    pictures = {"figures/attention.png", "figures/curves_val_accuracy_by_step.png"}
    assert found == {"plan.json", "results.csv", "results.json", "curves.csv", "report.md", *pictures}
    assert (target / "curves.csv").read_text() == "curves.csv\n"
    assert (target / "results.json").read_text() == '{"runs":[0.1,1e-05]}\n'  # no space, and no second plan.json


@pytest.mark.parametrize(("metric", "kept"), [("test/accuracy", "a,3.0,val/accuracy,0.5\n"), ("test/loss", LOSS)])
def test_curves_of_training_and_of_a_loss_that_is_not_compared_stay_behind(finished, tmp_path, metric, kept):
    rows = ["arm,seconds,metric,value", "a,1.25,train/loss,1", "a,2.3125,val/loss,2.00000049", "a,,val/loss,nan"]
    (finished / "curves.csv").write_text("\n".join([*rows, "a,3,val/accuracy,0.5"]))
    (finished / "plan.json").write_text(json.dumps({"metric": metric}))
    publish.publish(finished, tmp_path / "published", ["curves*"])
    assert (tmp_path / "published" / "curves.csv").read_text() == "arm,seconds,metric,value\n" + kept


def test_folders_of_this_machine_stay_behind(finished, tmp_path):
    command = f"structured-init compare --output {tmp_path}/finished"
    (finished / "plan.json").write_text(json.dumps({"metric": "test/accuracy", "command": command}))
    publish.publish(finished, tmp_path / "published")
    known = json.loads((tmp_path / "published" / "plan.json").read_text())
    assert known["command"] == "structured-init compare --output runs/finished"


def test_a_folder_without_a_report_and_one_with_runs_are_refused(finished, tmp_path):
    with pytest.raises(StructuredInitError, match=r"has no report\.md: run `structured-init report"):
        publish.publish(tmp_path, tmp_path / "published")
    (finished / "runs").mkdir()
    with pytest.raises(StructuredInitError, match="holds runs: publish into another folder"):
        publish.publish(finished, finished)
    publish.publish(finished, tmp_path / "published")
    with pytest.raises(StructuredInitError, match="published before: publish from the folder of the comparison"):
        publish.publish(tmp_path / "published", tmp_path / "published")


def test_the_command_says_how_large_it_is(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["publish", str(finished), str(tmp_path / "out"), "--figures", "attention"])
    publish.main()
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: 2 pictures, 0.0")
