"""Copy what is committed of a finished comparison: its numbers, its report in Markdown, and few of its pictures.

    python -m benchmarks.publish runs/digits benchmarks/results/compare_digits --figures attention

Learning curves of the compared metric over steps are always among the pictures. The report says how all others are
made again. Curves of training, of a loss that is not compared, of what is beside an exact match and of learning rates
that were not chosen stay behind, and a folder outside of the repository is named ``runs``.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from PIL import Image

from structured_init.util.errors import StructuredInitError
from structured_init.util.files import replacing, write_text

NUMBERS = ("plan.json", "results.csv", "results.json", "curves.csv")
REPORT = "report.md"
PICTURE = "!["  # how a line of Markdown begins that shows one
COLORS = 256
BESIDE = ("val/token_accuracy", "val/longest_solved")  # an exact match, and results.csv has their last values
REST = (
    "Of {drawn} figures {shown} are kept here. The command under *Runs* makes all of them again, also as SVG, and a "
    "page that needs nothing else, `report.html`."
)


def publish(source: Path, target: Path, figures: Sequence[str] = ()) -> list[Path]:
    """Copy numbers, report and the pictures that were chosen; pictures of an earlier copy go.

    Args:
        source: folder of a comparison whose report is written.
        target: where it is published; the source itself to thin out what is published already.
        figures: names of pictures to show, without their ending, or patterns such as ``covariances_*``.

    Returns:
        The pictures that are shown.

    Raises:
        StructuredInitError: there is no report, no picture has one of the names, or the target holds runs.
    """
    if not (source / REPORT).is_file():
        raise StructuredInitError(f"'{source}' has no {REPORT}: run `structured-init report {source}` first")
    if (target / "runs").exists():
        raise StructuredInitError(f"'{target}' holds runs: publish into another folder")
    drawn = {path.stem: path for path in sorted((source / "figures").glob("*.png"))}
    numbers = {name: (source / name).read_text(encoding="utf-8") for name in NUMBERS if (source / name).is_file()}
    shown = chosen(list(drawn), [_curves(json.loads(numbers["plan.json"])["metric"])], figures)
    if "curves.csv" in numbers:
        numbers["curves.csv"] = shortened(numbers["curves.csv"], json.loads(numbers["plan.json"])["metric"])
    report = thinned((source / REPORT).read_text(encoding="utf-8"), shown)
    for name in {"plan.json", "results.json"} & {*numbers}:
        numbers[name] = compact(numbers[name])
    for name, text in {**numbers, REPORT: report}.items():
        write_text(target / name, text.replace(f"{source.resolve().parent}/", "runs/"))
    pictures = [target / "figures" / f"{name}.png" for name in shown]
    for picture in pictures:
        compress(drawn[picture.stem], picture)
    for stale in set((target / "figures").glob("*.png")) - set(pictures):
        stale.unlink()
    return pictures


def chosen(drawn: Sequence[str], always: Sequence[str], figures: Sequence[str]) -> list[str]:
    """Return the names that match a pattern, in the order in which they were drawn.

    Raises:
        StructuredInitError: one of ``figures`` matches nothing.
    """
    for pattern in figures:
        if not any(fnmatch(name, pattern) for name in drawn):
            raise StructuredInitError(f"no picture is called '{pattern}': there are {', '.join(drawn)}")
    return [name for name in drawn if any(fnmatch(name, pattern) for pattern in (*always, *figures))]


def shortened(curves: str, metric: str) -> str:
    """Return the learning curves that are kept: values to six digits and seconds to a tenth.

    Rows of training and of ``BESIDE`` go, those of the validation loss where another metric is compared, and those of
    learning rates that were not chosen, whose last validation values ``results.csv`` has.

    Args:
        curves: table in CSV, a row for each value.
        metric: that is compared, ``"test/accuracy"``.
    """
    head, *rows = csv.reader(curves.splitlines())
    digits = {head.index(name): form for name, form in (("value", ".6g"), ("seconds", ".1f")) if name in head}
    compared = metric.rpartition("/")[2] == "loss"
    chosen = head.index("chosen") if "chosen" in head else None
    kept = [row for row in rows if not any(_goes(cell, compared) for cell in row)]
    kept = [row for row in kept if chosen is None or row[chosen] == "True"]
    short = [[format(float(x), digits[n]) if n in digits and x else x for n, x in enumerate(row)] for row in kept]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *short])
    return file.getvalue()


def compact(text: str) -> str:
    """Return JSON in one line without spaces, and without what ``plan.json`` beside it says."""
    known = {key: value for key, value in json.loads(text).items() if key != "comparison"}
    return json.dumps(known, ensure_ascii=False, separators=(",", ":")) + "\n"


def _goes(cell: str, loss_is_compared: bool) -> bool:
    return cell.startswith(("train/", *BESIDE)) or (cell == "val/loss" and not loss_is_compared)


def _curves(metric: str) -> str:
    return f"curves_val_{metric.rpartition('/')[2]}_by_step*"


def thinned(report: str, shown: Sequence[str]) -> str:
    """Return a report that shows some of its pictures and says how the others are made."""
    if REST.rpartition("}")[2] in report:  # it was thinned out before
        raise StructuredInitError("this report was published before: publish from the folder of the comparison")
    lines = report.splitlines()
    pictures = [number for number, line in enumerate(lines) if line.startswith(PICTURE)]
    kept = [number for number in pictures if Path(lines[number].rpartition("(")[2].rstrip(")")).stem in shown]
    if not pictures:
        return report
    rest = REST.format(drawn=len(pictures), shown=len(kept))
    block = [line for number in kept for line in (lines[number], "")]
    return "\n".join([*lines[: pictures[0]], *block, rest, *lines[pictures[-1] + 1 :]]) + "\n"


def compress(source: Path, target: Path) -> None:
    """Store a picture with a palette of its own where that makes it smaller; it must have no transparency."""
    with Image.open(source) as picture:
        flat = picture.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE)
    with replacing(target) as temporary:
        flat.save(temporary, optimize=True)
        if temporary.stat().st_size >= source.stat().st_size:
            temporary.write_bytes(source.read_bytes())


def main() -> None:
    """Publish one comparison and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--figures", nargs="+", default=[], help="names or patterns of pictures to keep as well")
    arguments = parser.parse_args()
    pictures = publish(arguments.source, arguments.target, arguments.figures)
    size = sum(path.stat().st_size for path in arguments.target.rglob("*") if path.is_file())
    print(f"{arguments.target}: {len(pictures)} pictures, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"publish: {error}") from None
