"""Where a dataset lies: inside the package, on the disk, or on the hub; ``datasets`` reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structured_init.util.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

FOLDER_VARIABLE = "STRUCTURED_INIT_DATA"
VALIDATION = ("validation", "valid", "val", "dev", "eval")


@dataclass(frozen=True)
class Column:
    """A column of a dataset, whatever it is called there."""

    what: str  # one word; ``{what}_column`` is the argument that names it
    usual: tuple[str, ...]  # names that it has elsewhere
    is_one: Callable[[Any], bool]  # whether a column of this type is one

    def name_in(self, dataset: str, features: Mapping[str, Any], given: str | None) -> str:
        """Return the name that the user gave, else a usual one, else that of the first of the type, or raise."""
        if given is not None:
            if given not in features:
                raise StructuredInitError(f"dataset '{dataset}' has no column '{given}': {nearest(given, features)}")
            return given
        found = [column for column in self.usual if column in features]
        found += [column for column, feature in features.items() if self.is_one(feature)]
        if not found:
            raise StructuredInitError(
                f"dataset '{dataset}' has no column that looks like the {self.what}: name it with {self.what}_column, "
                f"{nearest('', features)}"
            )
        return found[0]


@dataclass(frozen=True)
class Kind:
    """What the samples of a dataset are, and where such a dataset may come from."""

    column: Column
    known: tuple[str, ...]  # hub names to compare a wrong name with
    embedded: Mapping[str, Callable[[], Mapping[str, Dataset]]]  # datasets that need no download, by name
    local: str  # what a user may give that is on the disk, for the error


def open_splits(name: str, config: str | None, kind: Kind, *, plain_text: bool = False) -> dict[str, Dataset]:
    """Return the splits of a dataset by their usual names: an embedded one, a local one, or the hub's.

    With ``plain_text``, files of text on the disk are read as well: a row for each line, with its end.
    """
    if name in kind.embedded:
        return dict(kind.embedded[name]())
    try:
        splits = _load(name, config, plain_text)
    except Exception as error:  # of the hub, of files, of their formats
        names = [*kind.embedded, *kind.known]
        hint = "" if name in names else f"; {nearest(name, names)}"  # a right name that is not at hand needs none
        raise StructuredInitError(
            f"no dataset '{name}' ({_first_line(error)}): give a name of the Hugging Face hub, or {kind.local} "
            f"({FOLDER_VARIABLE} names the folder that holds such folders), or {' or '.join(kind.embedded)}, which "
            f"needs no download{hint}"
        ) from error
    return {usual_name(split): dataset for split, dataset in splits.items()}


def _load(name: str, config: str | None, plain_text: bool) -> Mapping[str, Dataset]:
    from datasets import load_dataset

    for place in local_places(name, config):
        files = parquet_files(place, config)
        if files:
            return load_dataset("parquet", data_files=files)
        if plain_text and place.is_file():
            return load_dataset("text", data_files=str(place), keep_linebreaks=True)
        if plain_text and any(place.rglob("*.txt")):
            return load_dataset("text", data_dir=str(place), keep_linebreaks=True)
    return load_dataset(name, config, data_files=folders_of_splits(Path(name)) or None)


def usual_name(split: str) -> str:
    """Return the name of a split here: ``validation`` for all the names that it has elsewhere."""
    return "validation" if split in VALIDATION else split


def local_places(name: str, config: str | None) -> list[Path]:
    """Return where a dataset is looked for on the disk: the path itself, then the user's folder of datasets.

    In that folder it goes by the last part of the hub's name, or by a configuration that begins with it, with or
    without its version: ``Salesforce/wikitext`` with ``wikitext-2-v1`` is ``wikitext``, ``wikitext-2-v1`` or
    ``wikitext-2``.
    """
    places = [Path(name).expanduser()]
    if FOLDER_VARIABLE in os.environ:
        shelf, last = Path(os.environ[FOLDER_VARIABLE]).expanduser(), Path(name).name
        places.append(shelf / last)
        if config and config.startswith(last):  # else a wrong name would find the right configuration's text
            places += [shelf / config, shelf / re.sub(r"-v\d+$", "", config)]
    return places


def parquet_files(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the files of each split, ``train-00000-of-00001.parquet``, in a folder and those inside of it.

    Of a folder with one for the configuration it is that alone. A single file is the split ``train``. Empty where there
    is none.
    """
    if folder.suffix == ".parquet" and folder.is_file():
        return {"train": [str(folder)]}
    place = folder / config if config and (folder / config).is_dir() else folder
    files: dict[str, list[str]] = {}
    for file in sorted([*place.glob("*.parquet"), *place.glob("*/*.parquet")]):
        files.setdefault(file.stem.split("-")[0], []).append(str(file))
    return files


def folders_of_splits(folder: Path) -> dict[str, str]:
    """Return the files of each split of a folder with ``train``, ``val`` or ``test``, by the outermost folders alone.

    ``datasets`` would read ``train/test/1.png``, of a class called ``test``, as an image of both splits. Empty leaves
    other folders to it, but for one whose folders hold the same classes: they may be splits of other names, and all of
    them would be trained on.
    """
    if (folder / "train").is_dir():
        return {name: f"{name}/**" for name in ("train", "test", *VALIDATION) if (folder / name).is_dir()}
    classes = [each.name for each in folder.glob("*/*") if each.is_dir()]
    for name in classes:
        if classes.count(name) > 1:
            raise StructuredInitError(f"several folders hold a folder '{name}': call splits train, val and test")
    return {}


def _first_line(error: BaseException) -> str:
    """Return the first line of the deepest cause, which says what happened."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
