"""What an extra brings: a name that cannot be imported without it says so in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

# Modules of another name than the distribution that brings them.
BROUGHT_BY = {
    "PIL": "pillow",
    "huggingface_hub": "datasets",
    "markupsafe": "jinja2",
    "pyarrow": "datasets",
    "sklearn": "scikit-learn",
    "tokenizers": "transformers",
}


class MissingExtraError(ModuleNotFoundError):
    """A package is missing that one of our extras brings; the message is one line with the command that installs it."""


def missing_extra(error: ModuleNotFoundError, who: str, extra: str) -> MissingExtraError | None:
    """Return what to install where an extra of ours brings the missing module; None where it does not.

    Args:
        error: of an import; its ``name`` is the module that is missing.
        who: what needs the module.
        extra: that brings all that ``who`` needs.
    """
    module = (error.name or "").partition(".")[0]
    distribution = BROUGHT_BY.get(module, module).replace("_", "-").lower()
    try:
        requirements = metadata.requires("structured-init") or []
    except metadata.PackageNotFoundError:  # a clone that is not installed
        return None
    listed = (re.match(rf"([\w.-]+).*extra == ['\"]{extra}['\"]", each) for each in requirements)
    if distribution not in {each[1].lower() for each in listed if each}:
        return None
    return MissingExtraError(f"{who} needs {distribution}: pip install 'structured-init[{extra}]'", name=error.name)


def with_extra(extra: str, package: str, get: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` that names the extra where a name cannot be imported without it.

    Args:
        extra: that brings all that the package needs.
        package: whose names are asked for.
        get: imports a name.
    """

    def attribute(name: str) -> Any:
        try:
            return get(name)
        except ModuleNotFoundError as error:
            raise (missing_extra(error, f"{package}.{name}", extra) or error) from None

    return attribute
