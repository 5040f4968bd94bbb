"""Write the tables of presets of ``docs/methods.md`` from the comments at the top of their files.

    python docs/catalogue.py

What a preset does is the first sentence of the comment; the lines ``# For:`` and ``# Card:`` that follow say the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "methods.md"
BEGIN, END = "<!-- presets: python docs/catalogue.py -->", "<!-- end of presets -->"
FOLDERS = {"init": "Initializations", "token_mixing": "Token mixing", "optim": "Optimizers"}


def read_comment(file: Path) -> tuple[str, dict[str, str]]:
    """Return the first sentence of the comment at the top of a preset, and its keys by name."""
    keys, prose = {}, []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        key, colon, value = line.removeprefix("# ").partition(": ")
        if colon and key in ("For", "Card", "Control of"):
            keys[key] = value
        else:
            prose.append(line.removeprefix("# "))
    sentence = re.split(r"(?<=\.) (?=[A-Z])", " ".join(prose))[0]
    return sentence.removesuffix("."), keys


def write_table(folder: str) -> str:
    """Return the table of ``configs/<folder>`` in Markdown."""
    lines = ["| name | does | for |", "|---|---|---|"]
    for file in sorted((ROOT / "configs" / folder).glob("*.yaml")):
        does, keys = read_comment(file)
        does = re.sub(r"\b\d{4}\.\d{5}\b", r"[\g<0>](https://arxiv.org/abs/\g<0>)", does)
        card = keys.get("Card", "methods")
        networks = keys.get("For", "")
        if card != "methods":
            networks = f"{networks} ([page]({card}.md))"
        lines.append(f"| [`{file.stem}`](../configs/{folder}/{file.name}) | {does} | {networks} |")
    return "\n".join(lines)


def write_page(text: str) -> str:
    """Return the page with the tables between its two comments."""
    head, _, rest = text.partition(BEGIN)
    tables = "\n\n".join(f"**{title}**\n\n{write_table(folder)}" for folder, title in FOLDERS.items())
    return f"{head}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
