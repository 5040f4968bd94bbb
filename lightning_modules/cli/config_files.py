"""A configuration file is read once by itself, so that what is wrong in it is answered with its name and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from structured_init.errors import StructuredInitError, nearest

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_config(path: str) -> str:
    """Return the path of a configuration file that holds keys, each once.

    Args:
        path: of a YAML or JSON file, which YAML includes.

    Raises:
        StructuredInitError: the file cannot be read, is no text, no YAML, no mapping, or gives a key twice, of which
            the parser would silently take the last.
    """
    try:
        root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=Loader)
        yaml.load(Path(path).read_text(encoding="utf-8"), Loader=Loader)
    except OSError as error:
        raise StructuredInitError(f"cannot read '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StructuredInitError(
            f"'{path}' is not a configuration: byte {error.start} is not UTF-8 text; give a checkpoint with --ckpt_path"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise StructuredInitError(f"'{path}'{where}: {_problem(path, error)}") from error
    except yaml.YAMLError as error:
        raise StructuredInitError(f"'{path}' is not YAML: {error}") from error
    if not isinstance(root, yaml.MappingNode):
        found = "is empty" if root is None else "holds no keys"
        raise StructuredInitError(f"'{path}' {found}: a configuration has sections such as 'model:' and 'trainer:'")
    for node, key in _repeated(path, root):
        line = node.start_mark.line + 1
        raise StructuredInitError(f"'{path}', line {line}: '{key}' is given twice, and only the last would count")
    return path


def refuse_folder(path: str) -> None:
    """Refuse a folder in place of a file, naming the files in it.

    Raises:
        StructuredInitError: ``path`` is a folder.
    """
    if path and Path(path).is_dir():
        files = sorted(str(file) for file in Path(path).iterdir() if file.suffix in (".yaml", ".yml", ".json"))
        inside = f"name a file in it, {nearest('', files)}" if files else "it holds no configuration"
        raise StructuredInitError(f"'{path}' is a folder: {inside}")


def _problem(path: str, error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem)
    if Path(path).suffix == ".toml":
        return f"{problem}: a configuration is YAML or JSON, not TOML"
    if "cannot start any token" in problem:
        return f"{problem}: indent with spaces, not tabs"
    return f"{error.context}, {problem}" if error.context else problem


def _repeated(path: str, root: yaml.Node) -> Iterator[tuple[yaml.Node, str]]:
    """Yield the keys that stand twice in one mapping, and the second of their nodes."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                _check_key(path, key)
                if key.value in keys and isinstance(key, yaml.ScalarNode):
                    yield key, key.value
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else None)
                waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)


def _check_key(path: str, key: yaml.Node) -> None:
    """Refuse a key that is a number, a list or nothing: ``{lr: 0,001}`` has the key 001."""
    if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
        raise StructuredInitError(
            f"'{path}', line {key.start_mark.line + 1}: the key {key.value} is not a name; write a decimal as 0.001"
        )
