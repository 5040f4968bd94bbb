"""How a metric is shown, and whether more or less of it is better.

A wrong guess turns every verdict of a report around, so nothing is guessed: few names are known, and any other is
asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from comparison.intervals import Interval, t_interval
from structured_init.util.errors import StructuredInitError

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["better", "worse", "equivalent", "undecided"]

# The last words of a name, in small letters.
MORE = (
    *("accuracy", "acc", "top 1", "top 5", "precision", "recall", "f 1", "f 1 score", "auc", "auroc", "exact match"),
    *("iou", "dice", "r 2", "psnr", "ssim", "bleu", "reward", "success"),
)
LESS = (
    *("loss", "error", "err", "perplexity", "ppl", "cross entropy", "nll", "mse", "rmse", "mae", "wer", "fid"),
    *("bits per character", "bits per dim", "bpc", "bpb", "bpd"),
)
TURNED = {"neg", "negative", "inverse", "to"}  # with one of these words a name says nothing: steps_to_accuracy
BETTER = {"max": "higher is better", "min": "lower is better"}
FLAGS = {"max": "--more-is-better", "min": "--less-is-better"}
ROUNDED_SHARE = 1.01  # what rounding may make of 1, in half precision 1.008; above it, an accuracy is in percent


def words_of(metric: str) -> list[str]:
    """Return the words of a metric's name in small letters: ``test/topError`` has ``test``, ``top``, ``error``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", metric)]


def is_loss(metric: str) -> bool:
    """Tell whether a metric is a loss: ``train/loss``, ``Loss``, ``train_loss_epoch``, ``Test NLL``."""
    return _bare(metric).lower().endswith(("loss", "nll", "xent", "cross_entropy"))


def _bare(metric: str) -> str:
    return re.sub(r"(_(step|epoch))?(/dataloader_idx_\d+)?$", "", metric)  # which Lightning adds


def direction(metric: str) -> str | None:
    """Return whether more (``"max"``) or less (``"min"``) of a metric is better; None where its name does not tell.

    ``recall@10`` is a recall, and ``1 - accuracy`` is no accuracy.
    """
    name = re.sub(r"@\d+$", "", _bare(metric))
    words = words_of(name)
    if TURNED & set(words) or re.search(r"(^|/)1\s*-", name):
        return None
    for mode, known in (("max", MORE), ("min", LESS)):
        if f" {' '.join(words)}".endswith(tuple(f" {each}" for each in known)):
            return mode
    return None


def mode_of(metric: str) -> str:
    """Return what :func:`direction` does; refuse a name that does not tell."""
    found = direction(metric)
    if found is None:
        raise StructuredInitError(
            f"the name '{metric}' does not say whether more or less of it is better: add "
            f"{' or '.join(FLAGS.values())}, in Python mode='max' or mode='min'"
        )
    return found


@dataclass(frozen=True)
class Metric:
    """How a metric is shown."""

    name: str  # as logged, ``"test/accuracy"``
    mode: str = "max"  # ``"max"`` where more is better, ``"min"`` where less is

    @property
    def factor(self) -> float:
        """Logged values are multiplied by it: accuracy is logged as a fraction and shown in percent."""
        last = _bare(self.name).rpartition("/")[2]
        return 100.0 if "accuracy" in last.lower() or "acc" in words_of(last) else 1.0

    @property
    def label(self) -> str:
        """The metric in words, with its unit."""
        return self.words + self.percent * (re.search(r"%|percent\b", self.words.lower()) is None)

    @property
    def words(self) -> str:
        """The metric in words; a slash that sets off no split is part of it, as in m/s."""
        return re.sub(r"^(train|val|test|eval)/", r"\1 ", self.name).replace("_", " ")

    @property
    def better(self) -> str:
        """Which direction is better, in words."""
        return BETTER[self.mode]

    @property
    def unit(self) -> str:
        """The unit of a difference, ``"points"``; empty without one."""
        return "points" if self.factor == 100 else ""

    @property
    def points(self) -> str:
        """The same with a space before it."""
        return f" {self.unit}" if self.unit else ""

    @property
    def percent(self) -> str:
        """The unit of a value, with a space before it; empty without one."""
        return " %" if self.factor == 100 else ""

    @property
    def in_percent(self) -> bool:
        """Whether its name says that an accuracy is logged in percent."""
        return self.factor == 100 and re.search(r"(%|percent)\W*$", self.name.lower()) is not None

    def fractions(self, numbers: pd.Series) -> pd.Series:
        """Return values as they are logged here, an accuracy as a fraction; refuse percent beside fractions.

        The index says where each number stands.
        """
        percent = numbers[(numbers > ROUNDED_SHARE) & (numbers < math.inf)]
        if self.factor != 100 or percent.empty:
            return numbers
        shares = numbers[(numbers > 0) & (numbers <= ROUNDED_SHARE)]
        if len(shares) and not self.in_percent:
            raise StructuredInitError(
                f"{shares.index[0]}: {shares.iloc[0]:g} in the column '{self.name}' stands beside {percent.iloc[0]:g} "
                f"({percent.index[0]}): write all as fractions, or all in percent in a column '{self.name} (%)'"
            )
        return numbers / 100

    @property
    def on_validation(self) -> str:
        """The same metric on the validation split."""
        return f"val/{self.name.partition('/')[2]}" if self.name.startswith("test/") else self.name

    @property
    def ends(self) -> tuple[float, float]:
        """The range of what is shown: 0 to 100 % of an accuracy, without ends elsewhere: losses may be negative."""
        return (0.0, 100.0) if self.factor == 100 else (-math.inf, math.inf)

    def mean(self, values: Collection[float]) -> Interval:
        """Return the mean of final values with its interval, Student's t."""
        return self.cut(t_interval(list(values)))

    def cut(self, interval: Interval, difference: bool = False) -> Interval:
        """Return the part of an interval that the metric can have: the truth is in its range, so nothing is lost."""
        low, high = self.ends
        low, high = (low - high, high - low) if difference else (low, high)
        if not math.isfinite(interval.half_width):
            return interval
        return replace(interval, low=max(interval.low, low), high=min(interval.high, high))

    def verdict(self, interval: Interval, margin: float | None = None) -> Verdict:
        """Return what the interval of a difference says: better or worse than zero, or equivalent inside of ± margin.

        It is undecided where the interval includes zero, and where it has no width: seeds that agree to the last digit
        (a small test split has few possible values) say nothing about other seeds.
        """
        if margin is not None and max(-interval.low, interval.high) < margin:
            return "equivalent"
        if not interval.excludes_zero or interval.has_no_width:
            return "undecided"
        return "better" if (interval.mean > 0) == (self.mode == "max") else "worse"
