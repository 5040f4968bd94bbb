"""The key ``layers`` of a configuration file: the files that it is layered over, as if each were given by ``-c``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

KEY = "layers"


def layers_in(text: str) -> list[str]:
    """Return the names under ``layers``; none where the text is no YAML, which the parser of the options reports."""
    if not _has_layers(text):
        return []
    try:
        given = yaml.safe_load(text)[KEY]
    except (yaml.YAMLError, TypeError, KeyError):
        return []
    return [given] if isinstance(given, str) else [str(each) for each in given or []]


def without_layers(text: str) -> str:
    """Return a configuration without the key ``layers``; every other line keeps its number."""
    if not _has_layers(text):
        return text
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text
    lines, keys = text.splitlines(), node.value if isinstance(node, yaml.MappingNode) else []
    for key, value in keys:
        if key.value == KEY:
            begin, end = key.start_mark.line, value.end_mark.line + (value.end_mark.column > 0)
            lines[begin:end] = [""] * (end - begin)
            lines[begin] = "" if len(keys) > 1 else "{}"  # jsonargparse refuses a text that says nothing
    return "\n".join(lines) + "\n"


def merged(below: Mapping[str, Any], above: Mapping[str, Any], *, section: bool = True) -> dict[str, Any]:
    """Return one configuration layered over another, by the rule of the command line.

    Sections, classes and their ``init_args`` are merged. A dictionary that is the value of one argument, such as
    ``network_args``, is replaced as a whole; so are the arguments of a class by those of another class.

    Args:
        below: the content of a file.
        above: the content of the file that comes later.
        section: whether the keys are sections.
    """
    whole = dict(below)
    if "class_path" in above and above["class_path"] != below.get("class_path"):
        whole.pop("init_args", None)
    for key, value in above.items():
        known = whole.get(key)
        mappings = isinstance(value, Mapping) and isinstance(known, Mapping)
        if mappings and (section or key == "init_args" or {"class_path", "init_args"} & {*value, *known}):
            whole[key] = merged(known, value, section=False)
        else:
            whole[key] = value
    return whole


def _has_layers(text: str) -> bool:
    return re.search(rf"^{KEY}\s*:", text, re.MULTILINE) is not None
