"""``structured-init audit``: what initialization the configured model really has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from structured_init.analysis import Audit
from structured_init.files import replacing, write_text

TABLE, PAGE, PICTURE = "audit.csv", "audit.md", "audit.png"


def write_audit(found: Audit, folder: Path, figures: ModuleType) -> Iterator[Path]:
    """Write the table of parameters, the page and the picture, and yield the files.

    Args:
        found: what was seen.
        folder: where they go; it is created.
        figures: the module that draws.
    """
    with replacing(folder / TABLE) as temporary:
        found.table().to_csv(temporary, index=False)
    yield folder / TABLE
    write_text(folder / PAGE, found.markdown())
    yield folder / PAGE
    figures.save_figure(figures.audit_figure(found), folder / PICTURE)
    yield folder / PICTURE
