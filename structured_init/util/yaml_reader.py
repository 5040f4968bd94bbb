"""The one reader of YAML that a user writes: files of ``configs``, arguments in braces, the command line."""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from structured_init.util.errors import StructuredInitError, one_line


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # a few lines of them may hold themselves, or more than fits in memory
            problem = "an alias (*name) is not read: write out what it stands for"
            raise ConstructorError(problem=problem, problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key, _ in node.value:
            if key.value in seen:
                problem = f"'{key.value}' is given twice, and only the last would count"
                raise ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str, what: str) -> Any:
    """Return what a text in YAML or JSON says; 1e-05 is a number, as in YAML 1.2 and on the command line.

    Raises:
        StructuredInitError: it is not YAML, gives a key twice or has an alias; ``what`` begins the message.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise StructuredInitError(f"{what} is not YAML: {one_line(error)}") from error
