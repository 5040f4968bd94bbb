"""`RunLog`: the metrics of a run in one file, also of a run that was killed and resumed."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from structured_init.files import replacing


class RunLog(CSVLogger):
    """Lightning's ``CSVLogger`` in a given folder, which a resumed run goes on with: ``CSVLogger`` would start anew.

    Args:
        folder: of the run.
        resumed_at: number of steps at which the run goes on: what was logged from there on is logged again. ``None``
            keeps everything.
    """

    def __init__(self, folder: str, resumed_at: int | None = 0) -> None:
        super().__init__(os.path.dirname(folder), name="", version=os.path.basename(folder))
        self.resumed_at = resumed_at

    @property
    def experiment(self) -> ExperimentWriter:
        """The writer, which has first put the file in order."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir, self.resumed_at)
        return self._experiment


class _Writer(ExperimentWriter):
    def __init__(self, log_dir: str, resumed_at: int | None) -> None:
        super().__init__(log_dir)
        path = Path(self.metrics_file_path)
        rows = read_rows(path, resumed_at)
        if rows:
            self.metrics_keys = list(rows[0])
            self._write(rows)
        else:
            path.unlink(missing_ok=True)

    def _check_log_dir_exists(self) -> None:
        """Leave what is there, where Lightning would delete it with a warning."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self._write(read_rows(Path(self.metrics_file_path)), fieldnames)

    def _write(self, rows: list[dict[str, str]], fieldnames: list[str] | None = None) -> None:
        """Replace the file at once, so that no kill loses what was logged."""
        with replacing(self.metrics_file_path) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames or self.metrics_keys)
            writer.writeheader()
            writer.writerows(rows)


def read_rows(path: Path, before_step: int | None = None) -> list[dict[str, str]]:
    """Return the complete rows of a metrics file, those of earlier steps alone where a step is given.

    Args:
        path: of the file, which need not exist.
        before_step: number of a step.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    complete = [line for line in lines if line.endswith("\n")]  # the last one may have been cut off by a kill
    rows = [row for row in csv.DictReader(complete) if (row.get("step") or "").isdecimal() and None not in row]
    return [row for row in rows if before_step is None or int(row["step"]) < before_step]
