"""How a metric is shown, and which direction of it is better."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from comparison.results.direction import BETTER, direction, words_of
from comparison.results.paired import Interval

NEVER_NEGATIVE = {"loss", "perplexity", "bits", "error"}


@dataclass(frozen=True)
class Metric:
    """How a metric is shown.

    Attributes:
        name: as logged, ``"test/accuracy"``.
        mode: ``"max"`` where more is better, ``"min"`` where less is.
    """

    name: str
    mode: str = "max"

    @property
    def factor(self) -> float:
        """Logged values are multiplied by it: accuracy is logged as a fraction and shown in percent."""
        return 100.0 if "accuracy" in self.name.rpartition("/")[2] else 1.0

    @property
    def label(self) -> str:
        """The metric in words, with its unit."""
        return self.words + (" %" if self.factor == 100 else "")

    @property
    def words(self) -> str:
        """The metric in words."""
        return self.name.replace("/", " ").replace("_", " ")

    @property
    def better(self) -> str:
        """Which direction is better, in words."""
        return BETTER[self.mode]

    @property
    def unit(self) -> str:
        """The unit of a difference."""
        return "points" if self.factor == 100 else ""

    @property
    def on_validation(self) -> str:
        """The same metric on the validation split."""
        return f"val/{self.name.partition('/')[2]}" if self.name.startswith("test/") else self.name

    @property
    def ends(self) -> tuple[float, float]:
        """The range of what is shown: 0 to 100 % of an accuracy, no end above a loss or a perplexity."""
        if self.factor == 100:
            return 0.0, 100.0
        from_zero = direction(self.name) == "min" and NEVER_NEGATIVE & set(words_of(self.name))
        return (0.0 if from_zero else -math.inf), math.inf

    def cut(self, interval: Interval, difference: bool = False) -> Interval:
        """Return the part of an interval that the metric can have: the truth is in its range, so nothing is lost.

        Args:
            interval: of a mean, or of a difference of two.
            difference: of which it is.
        """
        low, high = self.ends
        low, high = (low - high, high - low) if difference else (low, high)
        if not math.isfinite(interval.half_width):
            return interval
        return replace(interval, low=max(interval.low, low), high=min(interval.high, high))

    def is_gain(self, interval: Interval) -> bool | None:
        """Tell whether a difference is for the better or the worse; None where that is open.

        It is open where the interval includes zero, and where it has no width: seeds that agree to the last digit (a
        small test split has few possible values) say nothing about other seeds.
        """
        if not interval.excludes_zero or interval.has_no_width:
            return None
        return (interval.mean > 0) == (self.mode == "max")
