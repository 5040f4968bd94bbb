"""`RunLog`: the metrics of a run in one file, also of a run that was killed and resumed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.core.saving import save_hparams_to_yaml
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from structured_init.util.files import replacing

Row = dict[str, Any]


class RunLog(Logger):
    """Writes ``metrics.csv`` and ``hparams.yaml`` into a given folder, and goes on there where a run goes on.

    Lightning's ``CSVLogger`` deletes what a killed run has left in its folder. This one adds to it; `ExactResume` keeps
    the number of rows in each checkpoint, and takes back what was logged after it.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._rows: list[Row] | None = None  # of the file, once it has been read
        self._hyperparameters: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        """The folder; Lightning puts checkpoints and the experiment there."""
        return str(self.folder)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add a row; on the disk when this returns."""
        rows = self._known()
        row = {**metrics, "step": len(rows) if step is None else step}
        fields = list(rows[0]) if rows else []
        if row.keys() <= set(fields):
            rows.append(row)
            with self._file.open("a", newline="") as file:
                csv.DictWriter(file, fields).writerow(row)
        else:
            self._replace([*rows, row])

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self._hyperparameters.update(params if isinstance(params, dict) else vars(params))
        self.folder.mkdir(parents=True, exist_ok=True)
        save_hparams_to_yaml(str(self.folder / "hparams.yaml"), self._hyperparameters)

    def state_dict(self) -> dict[str, int]:
        """Return how many rows there are: those of a checkpoint."""
        return {"rows": len(self._known())}

    @rank_zero_only
    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take back the rows that were logged after the checkpoint."""
        if len(self._known()) > state_dict["rows"]:
            self._replace(self._known()[: state_dict["rows"]])

    @property
    def _file(self) -> Path:
        return self.folder / "metrics.csv"

    def _known(self) -> list[Row]:
        if self._rows is None:
            self._rows = read_rows(self._file)
            if self._rows and rank_zero_only.rank == 0:
                self._replace(self._rows)  # without a row that a kill has cut off
        return self._rows

    def _replace(self, rows: Sequence[Row]) -> None:
        """Write the file anew, at once, so that no kill loses what was logged."""
        fields = sorted({name for row in rows for name in row})
        self._rows = [{name: row.get(name, "") for name in fields} for row in rows]
        with replacing(self._file) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(self._rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the complete rows of a metrics file, which need not exist."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    complete = [line for line in lines if line.endswith("\n")]  # the last one may have been cut off by a kill
    return [row for row in csv.DictReader(complete) if (row.get("step") or "").isdecimal() and None not in row]
