"""What counting would score: unigram and bigram models of the training part, the floors of a language experiment.

python -m benchmarks.ngrams gpt_wikitext_short gpt_shakespeare_short

The unigram model adds one to each count. The bigram model is a Dirichlet average of a pair's frequency and the
unigram's: p(b | a) = (n(a, b) + μ p(b)) / (n(a) + μ), μ chosen on the validation part. Both are scored on the test part
as the experiment reads it; a network that beats the second looks further back than one token.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np

from lightning_modules.cli.config_names import read_config
from lightning_modules.data import TextData
from structured_init.errors import StructuredInitError

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # of μ
Pairs = tuple[np.ndarray, np.ndarray, int]  # tokens before, tokens to predict, characters of the latter


def floors(experiment: str) -> dict[str, tuple[float, float]]:
    """Return the loss in nats per token, and the characters per token, of each model.

    Args:
        experiment: name or path of a configuration whose data are causal ``TextData``.
    """
    configuration = read_config(experiment)
    limits = configuration["trainer"]
    data = TextData(**configuration["data"]["init_args"], seed=0)
    data.setup("fit")
    data.setup("test")
    size = data.vocab_size
    before, tokens, _ = pairs(data.train_set[index] for index in range(len(data.train_set)))
    unigram = np.bincount(tokens, minlength=size) + 1.0
    unigram /= unigram.sum()
    counts = np.zeros((size, size), dtype=np.float32)
    np.add.at(counts, (before, tokens), 1)

    def bigram(known: Pairs, strength: float) -> float:
        first, second, _ = known
        seen = counts[first, second] + strength * unigram[second]
        return float(-np.log(seen / (counts.sum(axis=1)[first] + strength)).mean())

    val = pairs(itertools.islice(data.val_dataloader(), limits.get("limit_val_batches")))
    test = pairs(itertools.islice(data.test_dataloader(), limits.get("limit_test_batches")))
    strength = min(STRENGTHS, key=lambda each: bigram(val, each))
    per_token = test[2] / len(test[1])
    return {
        "unigram": (float(-np.log(unigram[test[1]]).mean()), per_token),
        "bigram": (bigram(test, strength), per_token),
    }


def pairs(batches) -> Pairs:
    """Return every predicted token with the one before it, from batches of (T,) or (B, T)."""
    before, tokens, characters = [], [], 0
    for batch in batches:
        inputs, labels = np.atleast_2d(batch["input_ids"].numpy()), np.atleast_2d(batch["labels"].numpy())
        predicted = labels[:, 1:] >= 0
        before.append(inputs[:, :-1][predicted])
        tokens.append(labels[:, 1:][predicted])
        characters += int(np.atleast_2d(batch["characters"].numpy())[:, 1:][predicted].sum())
    return np.concatenate(before), np.concatenate(tokens), characters


def main() -> None:
    """Print a row per experiment and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+")
    print("| experiment | model | loss (nats per token) | perplexity | bits per character |\n|---|---|---|---|---|")
    for experiment in parser.parse_args().experiments:
        for model, (loss, characters) in floors(experiment).items():
            numbers = f"{loss:.3f} | {math.exp(loss):.2f} | {loss / math.log(2) / characters:.3f}"
            print(f"| {experiment} | {model} | {numbers} |")


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"ngrams: {error}") from None
