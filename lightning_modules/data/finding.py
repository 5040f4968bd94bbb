"""Where a dataset lies: inside the package, on the disk, or on the hub.

``datasets`` reads the files. They are listed here, in place of ``load_dataset(folder)``, for errors that name the file.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from structured_init.util.errors import StructuredInitError, nearest

if TYPE_CHECKING:
    from datasets import Dataset

FOLDER_VARIABLE = "STRUCTURED_INIT_DATA"
VALIDATION = ("validation", "valid", "val", "dev")
FOLDERS = {  # the split in a folder that is called so, around class folders
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys((*VALIDATION, "eval", "evaluation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class Kind:
    """What the samples of a dataset are, and where such a dataset may come from."""

    what: str  # one word; ``{what}_column`` is the argument that names their column
    columns: tuple[str, ...]  # usual names of their column
    is_one: Callable[[Any], bool]  # whether a column of this type holds them
    known: tuple[str, ...]  # hub names to compare a wrong name with
    embedded: Mapping[str, Callable[[], Mapping[str, Dataset]]]  # datasets that need no download, by name
    # what a user may give that is on the disk, for the error
    local: str = "a folder of Parquet files (train-*.parquet, test-*.parquet) or of images (train/CLASS/NAME.png;"


def open_splits(name: str, config: str | None, kind: Kind) -> Mapping[str, Dataset]:
    """Return the splits of a dataset by name, an embedded one, a local one, or the hub's; refuse a corrupt file."""
    if not name.strip():
        raise StructuredInitError(f"the name of the dataset is empty: {nearest('', [*kind.embedded, *kind.known])}")
    if name in kind.embedded and config is not None:
        raise StructuredInitError(f"'{name}' has no configurations, got config='{config}': leave it out")
    if name in kind.embedded:
        flat, deep = _class_folders(Path(name))
        texts = kind.what == "text" and any(Path(name).glob("*.txt"))
        if parquet_files(Path(name), None) or len(flat) > 1 or any(each.lower() in FOLDERS for each in deep) or texts:
            which = f"write ./{name} for the folder"
            raise StructuredInitError(f"'{name}' is a dataset of this package and a folder: {which}")
        return kind.embedded[name]()
    for place in local_places(name, config):
        if files := parquet_files(place, config):
            return _from_parquet(files)
    if (file := Path(name).expanduser()).is_file():
        raise StructuredInitError(f"'{name}' is a file: give the folder '{file.parent}'")
    return _from_hub(name, config, kind)


def local_places(name: str, config: str | None) -> list[Path]:
    """Return where a dataset is looked for on the disk: the path itself, then the user's folder of datasets.

    In that folder it goes by the last part of the hub's name, or by a configuration that begins with it, with or
    without its version: ``Salesforce/wikitext`` with ``wikitext-2-v1`` is ``wikitext``, ``wikitext-2-v1`` or
    ``wikitext-2``.
    """
    shelf = os.environ.get(FOLDER_VARIABLE)
    names = [Path(name).name]
    if config and config.startswith(names[0]):  # else a wrong name would find the right configuration's text
        names += [config, re.sub(r"-v\d+$", "", config)]
    return [Path(name).expanduser(), *(Path(shelf).expanduser() / each for each in names if shelf)]


def parquet_files(folder: Path, config: str | None) -> dict[str, list[str]]:
    """Return the files of each split, ``train-00000-of-00001.parquet``, in the folder or in one as the hub lays it.

    A single file is the split ``train``. Empty where there is none.
    """
    if folder.is_file() and folder.suffix == ".parquet":
        return {"train": [str(folder)]}
    if not folder.is_dir():
        return {}
    places = [folder / config] if config and (folder / config).is_dir() else [folder, folder / "data"]
    for place in [*places, *sorted(path for path in folder.iterdir() if path.is_dir())]:
        files: dict[str, list[str]] = {}
        for file in sorted(place.glob("*.parquet")):
            files.setdefault(file.stem.split("-")[0], []).append(str(file))
        if files:
            return files
    return {}


def _from_parquet(files: dict[str, list[str]]) -> Mapping[str, Dataset]:
    import pyarrow.parquet
    from datasets import load_dataset

    everything = [file for group in files.values() for file in group]
    _check_each(everything, pyarrow.parquet.ParquetFile)  # the footers: cheap
    try:
        return load_dataset("parquet", data_files=files)
    except Exception as error:
        _check_each(everything, pyarrow.parquet.read_table)  # the pages: only now, to say which
        raise StructuredInitError(
            f"the Parquet files of '{Path(everything[0]).parent}' do not fit together: {_line(error)}"
        ) from error


def _split_in(name: str) -> str | None:
    """Return the split that a word of a name says: ``train`` of ``train_images``."""
    return next((FOLDERS[each] for each in re.split(r"[-_. \d]", name.lower()) if each in FOLDERS), None)


def _within(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the folders in a folder, and of the images."""
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

    _, folders, files = next(os.walk(folder), ("", [], []))
    images = [each for each in files if os.path.splitext(each)[1].lower() in ImageFolder.EXTENSIONS]
    return sorted(each for each in folders if not each.startswith((".", "__"))), images


def _class_folders(folder: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the folders that hold images, with these, and those that hold such folders, with these."""
    inside = {name: _within(folder / name) for name in _within(folder)[0]}
    deep = {name: [each for each in names if _within(folder / name / each)[1]] for name, (names, _) in inside.items()}
    flat = {name: images for name, (_, images) in inside.items() if images}
    return flat, {name: names for name, names in deep.items() if names}


def class_folder_splits(folder: Path) -> dict[str, list[str]]:
    """Return the patterns of each split of ``train/CLASS/NAME.png`` or ``CLASS/NAME.png``, by the outermost folders.

    Empty leaves it to ``datasets``: images elsewhere, all named after splits, or beside a file that describes them.
    """
    flat, deep = _class_folders(folder)
    readme = folder / "README.md"
    described = any(each for place in ("", *flat, *deep) for each in (folder / place).glob("metadata.*"))
    if described or (readme.is_file() and "configs:" in readme.read_text(encoding="utf-8", errors="replace")):
        return {}
    said = {name: _split_in(name) for name in (*deep, *flat)}
    splits = {split: [f"{name}/**" for name in deep if said[name] == split] for split in map(said.get, deep) if split}
    rule = "a split is called train, val or test, and holds a folder for each class"
    others = [name for name, split in said.items() if (name in deep) == (split is None)]
    if splits and others:
        raise StructuredInitError(f"'{folder / others[0]}' is no split, as others beside it are: {rule}")
    for one, two in combinations(() if splits else deep, 2):
        if both := [each for each in deep[one] if each in deep[two]]:
            raise StructuredInitError(f"'{folder / one}' and '{two}' both hold a folder '{both[0]}': {rule}")
    return splits or ({} if all(_split_in(each) for images in flat.values() for each in images) else {"train": ["**"]})


def _check_each(files: Sequence[str], read) -> None:  # noqa: ANN001  a reader of pyarrow
    for file in files:
        try:
            read(file)
        except Exception as error:
            raise StructuredInitError(f"'{file}' is not a readable Parquet file: {_line(error)}") from error


def _from_hub(name: str, config: str | None, kind: Kind) -> Mapping[str, Any]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    splits = class_folder_splits(Path(name)) if kind.what == "image" else {}
    try:
        with _offline_if_unreachable():
            return load_dataset(name, config, **({"data_files": splits} if splits else {}))
    except (DatasetsError, OSError, ValueError) as error:
        shelf = os.environ.get(FOLDER_VARIABLE)
        local = [path.name for path in Path(shelf).iterdir() if path.is_dir()] if shelf and Path(shelf).is_dir() else []
        embedded = " or ".join(f"'{each}'" for each in kind.embedded)
        names = [*kind.embedded, *kind.known, *local]
        hint = "" if name in names else f"; {nearest(name, names)}"  # a right name that is not at hand needs none
        if Path(name).is_dir():
            raise StructuredInitError(
                f"the folder '{name}' holds no dataset ({_line(error)}): it is {kind.local[:-1]})"
            ) from error
        wanted = f"'{name}' with config '{config}'" if config else f"'{name}'"
        raise StructuredInitError(
            f"no dataset {wanted} ({_line(error)}): give a name of the Hugging Face hub, or {kind.local} "
            f"{FOLDER_VARIABLE} names the folder that holds such folders), or {embedded}, which needs no download{hint}"
        ) from error


@contextmanager
def _offline_if_unreachable() -> Iterator[None]:
    """Where the hub's name cannot be resolved, let its libraries look into their cache at once.

    They would try again for half a minute before they do.
    """
    import datasets.config
    import huggingface_hub.constants

    host = urlsplit(huggingface_hub.constants.ENDPOINT).hostname
    proxied = any(os.environ.get(each) for each in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    try:
        reachable = proxied or bool(socket.getaddrinfo(host, 443))
    except OSError:
        reachable = False
    before = huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = before[0] or not reachable
    datasets.config.HF_HUB_OFFLINE = before[1] or not reachable
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _line(error: BaseException) -> str:
    """Return the first line of the deepest cause, which says what happened."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def find_column(
    name: str,
    what: str,
    given: str | None,
    usual: Sequence[str],
    features: Mapping[str, Any],
    is_one: Callable[[Any], bool],
) -> str:
    """Return the column that the user named, else one with a usual name, else the first of the type, or raise."""
    if given is not None:
        if given not in features:
            raise StructuredInitError(f"dataset '{name}' has no column '{given}': {nearest(given, features)}")
        return given
    typed = [column for column, feature in features.items() if is_one(feature)]
    candidates = [column for column in usual if column in features] + typed
    if not candidates:
        images = what == "image" or any(type(each).__name__ == "Image" for each in features.values())
        folders = "; images lie in a folder for each class, train/CLASS/NAME.png"
        raise StructuredInitError(
            f"dataset '{name}' has no column that looks like the {what}: name it with {what}_column, "
            f"{nearest('', features)}{folders if images and Path(name).is_dir() else ''}"
        )
    return candidates[0]
