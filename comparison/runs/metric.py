"""How a metric is shown, and whether more or less of it is better.

A wrong guess turns every verdict of a report around, so nothing is guessed: a name is known by the words in it, and one
whose words are unknown, or speak for both, is asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from comparison.intervals import Interval, share_interval, t_interval
from structured_init.util.errors import StructuredInitError

Verdict = Literal["better", "worse", "equivalent", "undecided"]

# Words in small letters; two neighbouring ones count as one too: "CrossEntropy" has "crossentropy", "F1" has "f1".
LOSSES = frozenset({"loss", "losses", "error", "errors", "err", "cost", "penalty", "regret", "risk"})
OTHER_LESS = """
perplexity ppl bits bpb bpc bpd bpt nats nll xent crossentropy logloss ce bce kl kld divergence brier deviance
forgetting l1 l2 mse rmse nmse nrmse mae nmae medae mape smape wmape mdape msle rmsle rse huber hinge
wer cer ter mer eer ece mce ace fpr fnr fdr hamming levenshtein distance misclassification misclassified
fid kid fvd fad mmd emd wasserstein hausdorff chamfer lpips niqe brisque latency runtime
"""
OTHER_MORE = """
accuracy accuracies acc precision recall sensitivity specificity tpr tnr ppv npv f1 f2 fbeta fscore
auc auroc auprc aupr rocauc prauc ap map iou miou jaccard dice union panopticquality ndcg dcg mrr hit hits hitrate
r2 rsquared explainedvariance mcc matthews kappa pearson spearman kendall correlation corrcoef
cosinesimilarity structuralsimilarity psnr ssim msssim snr noiseratio sdr sisdr sisnr pesq stoi
bleu sacrebleu rouge rougel meteor chrf cider spice bertscore em exact match matches agreement correct
success solved pass bwt win wins winrate elo reward rewards return returns throughput nmi ari ami silhouette
"""
# With one of these a name says nothing: the drop of an accuracy, the time to a loss, the spread of either.
OPEN_WORDS = """
drop gap decrease increase reduction change delta diff difference std stdev deviation variance inverse entropy
false true time step steps epoch epochs count number num rank ranked threshold
"""
LIKELIHOODS = frozenset({"likelihood", "loglikelihood", "elbo"})
LESS, MORE = LOSSES | set(OTHER_LESS.split()), LIKELIHOODS | set(OTHER_MORE.split())
OPEN = frozenset(OPEN_WORDS.split())
WHOLE = {"crossentropy": "entropy", "explainedvariance": "variance"}  # a known pair, and what would be open alone
BETTER = {"max": "higher is better", "min": "lower is better"}
FLAGS = {"max": "--more-is-better", "min": "--less-is-better"}
OF_A_WHOLE = """
accuracy acc precision recall f1 iou miou dice auc auroc auprc ap map ndcg mrr hit hits hitrate match success solved
"""
SHARES = frozenset(OF_A_WHOLE.split())
ROUNDED_SHARE = 1.01  # what rounding may make of 1; above it, an accuracy is in percent
SOLVED, NEAR_END = frozenset({"match", "success", "solved"}), 0.05  # what a run of a task has all of or nothing


def words_of(metric: str) -> list[str]:
    """Return the words of a metric's name in small letters: ``test/topError`` has ``test``, ``top``, ``error``."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", metric)]


def readings(metric: str) -> set[str]:
    """Return the words of a name, two neighbouring ones as one too, and mIoU, whose capitals do not begin words."""
    pairs = [one + other for one, other in pairwise(words_of(metric))]
    return {*words_of(metric), *pairs, *re.findall(r"[a-z0-9]+", metric.lower())}


def is_loss(metric: str) -> bool:
    """Tell whether a metric is a loss: ``train/loss``, ``Loss``, ``train_loss_epoch``, ``Test NLL``."""
    last = next(iter(words_of(_bare(metric))[-1:]), "")
    return _bare(metric).lower().endswith("loss") or last in ("nll", "xent", "crossentropy")


def _bare(metric: str) -> str:
    return re.sub(r"(_(step|epoch))?(/dataloader_idx_\d+)?$", "", metric)  # which Lightning adds


def direction(metric: str) -> str | None:
    """Return whether more (``"max"``) or less (``"min"``) of a metric is better; None where its name does not tell."""
    metric = re.split(r"(?<=\w)(?:@|_at_)", _bare(metric))[0]  # false positives at 95 % of the true ones
    single, every = words_of(metric), readings(metric)
    if every & OPEN - {WHOLE[pair] for pair in every & WHOLE.keys()} or re.search(r"(^|/)1\s*-", metric):
        return None
    less, more = every & LESS, every & MORE
    if less and more:  # the last word of a compound is what it is: accuracy_loss
        last = next((word for word in reversed(single) if word in LESS | MORE), "")
        return "min" if last in LOSSES else None
    if not less and not more:
        return "max" if any(re.fullmatch(r"top\d+", word) for word in every) else None
    found = "min" if less else "max"
    if "neg" in every or ("negative" in every and every & LIKELIHOODS):
        return "max" if found == "min" else "min"
    return None if "negative" in every else found


def mode_of(metric: str) -> str:
    """Return what :func:`direction` does."""
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
        """The metric in words; a slash that sets off no split and no dataloader is part of it, as in m/s."""
        split = r"^(train|training|val|valid|validation|test|eval|dev)/|/(?=dataloader_idx_\d+$)"
        return re.sub(rf"{split}|_", lambda found: found[0][:-1] + " ", self.name)

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

    @property
    def on_validation(self) -> str:
        """The same metric on the validation split."""
        return f"val/{self.name.partition('/')[2]}" if self.name.startswith("test/") else self.name

    @property
    def ends(self) -> tuple[float, float]:
        """The range of what is shown: 0 to 100 % of an accuracy, without ends elsewhere: losses may be negative."""
        return (0.0, 100.0) if self.factor == 100 else (-math.inf, math.inf)

    def is_share(self, values: Collection[float]) -> bool:
        """Tell whether values, as they are shown, are shares of a whole, which is ``factor``."""
        named = self.factor == 100 or (self.mode == "max" and SHARES & readings(self.name))
        return bool(named) and all(0 <= value <= self.factor for value in values)

    def looks_solved(self, values: Collection[float]) -> bool:
        """Tell whether values, as they are shown, are of runs that solve a task or do not, though none need differ.

        The name says that it may be so, and a value within 5 % of an end that it is.
        """
        ends = (NEAR_END * self.factor, (1 - NEAR_END) * self.factor)
        named = self.is_share(values) and SOLVED & set(words_of(self.name))
        return bool(named) and not all(ends[0] < value < ends[1] for value in values)

    def mean(self, values: Collection[float]) -> Interval:
        """Return the mean of final values with its interval: Student's t, of shares on the scale of logits."""
        if self.is_share(values):
            return share_interval(list(values), self.factor)
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
