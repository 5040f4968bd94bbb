"""Configuration files by name: ``-c vit_digits -c init/mimetic`` works in a clone and outside of one."""

from __future__ import annotations

from pathlib import Path

from lightning_modules.cli.config_files import check_config, refuse_folder
from structured_init.errors import StructuredInitError, nearest

PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the folder travels inside the package lightning_modules; in a clone it stands beside it. Found by path, not
# by import, so that a folder ``configs`` of the user's cannot shadow it.
FOLDERS = (PACKAGE / "configs", PACKAGE.parent / "configs")
SHIPPED = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
OPTIONS = ("-c", "--config")
FLAGS = ("--plan",)


def shipped_configs(root: Path = SHIPPED) -> dict[str, Path]:
    """Return the shipped files by their names, such as ``init/mimetic``."""
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.glob("*/*.yaml"))}


def config_path(name: str) -> str:
    """Find a configuration file.

    Args:
        name: a path; or a shipped file, as ``configs/init/mimetic.yaml``, ``init/mimetic``, or ``mimetic`` where only
            one folder has it, or where the folder is ``experiment``.

    Raises:
        StructuredInitError: there is no such file (the nearest is named), or several.
    """
    if Path(name).is_file():
        return name
    known = shipped_configs()
    short = name.removeprefix("configs/").removesuffix(".yaml")
    for key in (short, f"experiment/{short}"):
        if key in known:
            return str(known[key])
    matches = [key for key in known if key.partition("/")[2] == short]
    if len(matches) == 1:
        return str(known[matches[0]])
    if matches:
        raise StructuredInitError(f"several configurations are named '{name}': choose from {', '.join(matches)}")
    refuse_folder(name)
    names = known if "/" in short else {key.partition("/")[2] for key in known}
    raise StructuredInitError(f"there is no file '{name}', nor a shipped configuration: {nearest(short, names)}")


def expand(args: list[str]) -> list[str]:
    """Replace configuration names by paths, and give a lone flag its value.

    Args:
        args: a command line without the program's name.
    """
    expanded: list[str] = []
    for index, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        if index and args[index - 1] in OPTIONS:
            argument = check_config(config_path(argument))
        elif equals and option in OPTIONS:
            argument = f"{option}={check_config(config_path(value))}"
        elif argument in FLAGS and (args[index + 1 : index + 2] or ["-"])[0].startswith("-"):
            argument = f"{argument}=true"
        expanded.append(argument)
    return expanded
