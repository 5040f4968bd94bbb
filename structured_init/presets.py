"""Presets by name: what the files of ``configs/init`` say of an initializer.

A name may have arguments in braces behind it, ``impulse{kernel_size=5}``, as on the command line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from structured_init.util.errors import StructuredInitError, nearest

PACKAGE = Path(__file__).resolve().parent
# In a wheel the folder travels inside of this package; in a clone it stands beside it. Found by path, not by import, so
# that a folder ``configs`` of the user's cannot shadow it.
FOLDERS = (PACKAGE / "configs", PACKAGE.parent / "configs")
SHIPPED = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
# What stands behind the name of any initialization to mean a control of it: mimetic_scrambled.
CONTROLS = {
    "_scrambled": "Scrambled",
    "_sharpened": "Sharpened",
    "_positions": "SamePositions",
}


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in (SHIPPED / "init").glob("*.yaml"))


def preset_node(name: str) -> dict[str, Any]:
    """Return the class and the arguments that a preset stands for, as YAML has them; see ``preset``."""
    from structured_init.util.yaml_reader import read_yaml  # when a preset is asked for: most never do

    stem, overrides = split_overrides(name)
    given = {key: value and read_yaml(value, f"{key}={value}") for key, value in overrides.items()}
    places = (SHIPPED / "init" / f"{stem}.yaml", Path(stem))
    file = next((place for place in places if place.is_file()), None)
    control = next((ending for ending in CONTROLS if stem.endswith(ending)), None)
    if file is None and control is not None:
        inner = preset_node(stem.removesuffix(control) + name[len(stem) :])
        return {"class_path": CONTROLS[control], "init_args": {"initializer": inner}}
    if file is None:
        is_path = len(places[1].parts) > 1 or places[1].suffix in (".yaml", ".yml")
        near = "there is no such file" if is_path else nearest(stem, preset_names())
        raise StructuredInitError(f"there is no initialization '{stem}': {near}")
    content = read_yaml(file.read_text(encoding="utf-8"), f"'{file}'")
    node = content.get("init", {}).get("initializer") if isinstance(content, dict) else None
    if node is None:
        raise StructuredInitError(f"'{name}' sets no initializer: it is init: {{initializer: {{class_path: …}}}}")
    node = {"class_path": node} if isinstance(node, str) else node
    if given and node["class_path"] == "Compose":
        parts = " and ".join(each["class_path"] for each in node["init_args"]["initializers"])
        raise StructuredInitError(f"'{stem}' takes no '{min(given)}': it is composed of {parts}, give Compose([…])")
    return {**node, "init_args": {**node.get("init_args", {}), **given}}


def split_overrides(text: str) -> tuple[str, dict[str, str]]:
    """Return the name before the braces of ``impulse{kernel_size=5,offsets=[[0, 1]]}``, and the arguments as text.

    Raises:
        StructuredInitError: the braces hold something else than ``argument=value``, or are not closed.
    """
    found = re.fullmatch(r"([^{]*)(?:\{(.*)\})?", text)
    if not found:
        raise StructuredInitError(f"cannot read '{text}': write name or name{{argument=value}}")
    overrides = {}
    for part in split_outside_brackets(found[2] or ""):
        argument = re.fullmatch(r"([\w.]+)\s*=\s*(.*)", part, re.DOTALL)
        if not argument:
            raise StructuredInitError(f"cannot read '{part}' in '{text}': write argument=value")
        overrides[argument[1]] = argument[2]
    return found[1].strip(), overrides


def split_outside_brackets(text: str) -> list[str]:
    """Split at the commas that stand in no bracket; leave out what is empty; refuse brackets that do not match."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[(") - (letter in "}])")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise StructuredInitError(f"the brackets in '{text}' do not match")
    return [part.strip() for part in parts if part.strip()]
