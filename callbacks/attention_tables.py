"""The tables of a training's attention captures, and how a checkpoint holds them: each capture is encoded once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from structured_init.analysis import to_csv
from structured_init.files import write_text

Record = Mapping[str, Any]  # what is known of a capture; see ``AttentionMapCallback.records``


class _Encoded(NamedTuple):
    """A capture as text.

    Attributes:
        record: that was encoded.
        statistics: its entry in ``statistics.json``.
        described: its entry in ``meta.json``.
        rows: its table in CSV, with the header.
        state: all of it, for a checkpoint.
    """

    record: Record
    statistics: str
    described: str
    rows: str
    state: str


class AttentionTables:
    """``statistics.json``, ``statistics.csv`` and ``meta.json`` of a training, which hold all its captures.

    They are written anew after each capture, so that they are whole under their names at any time. A training may have
    hundreds of captures, and to encode them costs fifty times what it costs to write them: so none is encoded twice.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Encoded] = {}

    def write(self, folder: Path, model: str, records: Mapping[str, Record]) -> None:
        """Write the three files.

        Args:
            folder: of the attention of a run.
            model: the name of its class.
            records: name of a capture → what is known of it.
        """
        encoded = self._encode(records)
        captures = _object(each.described for each in encoded)
        write_text(folder / "statistics.json", _object(each.statistics for each in encoded) + "\n")
        write_text(folder / "meta.json", _object([_entry("model", model), _inside("captures", captures)]) + "\n")
        tables = [each.rows.partition("\n") for each in encoded]
        if len({header for header, *_ in tables}) == 1:
            text = f"{tables[0][0]}\n" + "".join(rows for *_, rows in tables)
        else:  # a column came with a later capture
            text = to_csv({name: record["statistics"] for name, record in records.items()})
        write_text(folder / "statistics.csv", text)

    def state(self, records: Mapping[str, Record]) -> dict[str, str]:
        """Return captures as a checkpoint holds them: a text each, since it would ask about every number of a list."""
        return {name: each.state for name, each in zip(records, self._encode(records), strict=True)}

    def _encode(self, records: Mapping[str, Record]) -> list[_Encoded]:
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name].record is record else _encode(name, record)
            for name, record in records.items()
        }
        return list(self._known.values())


def records_of(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the captures of a checkpoint; one of an earlier version holds them as they are."""
    return {name: json.loads(known) if isinstance(known, str) else known for name, known in state.items()}


def _encode(name: str, record: Record) -> _Encoded:
    statistics = record["statistics"]
    described = {key: value for key, value in record.items() if key != "statistics"}
    return _Encoded(
        record, _entry(name, statistics), _entry(name, described), to_csv({name: statistics}), json.dumps(record)
    )


# What follows is what `write_json` writes, from parts.


def _entry(name: str, content: Any) -> str:
    return _inside(name, json.dumps(content, indent=1, ensure_ascii=False))


def _inside(name: str, text: str) -> str:
    indented = text.replace("\n", "\n ")  # no text of JSON has a line break of its own
    return f"\n {json.dumps(name, ensure_ascii=False)}: {indented}"


def _object(entries: Iterable[str]) -> str:
    return "{" + ",".join(entries) + "\n}"
