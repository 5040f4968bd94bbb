"""What a model that knows only how frequent each token is would score: the floor of a language experiment.

python -m benchmarks.unigram gpt_wikitext_short gpt_shakespeare_short

Frequencies are those of the whole training part, one added to each count; the score is that of the test part as the
experiment reads it.
"""

from __future__ import annotations

import argparse
import itertools
import math

import torch
import yaml

from lightning_modules.config_names import config_path
from lightning_modules.data import TextData
from structured_init.errors import StructuredInitError


def unigram(experiment: str) -> dict[str, float]:
    """Return loss (nats per token), perplexity and bits per character of the test part.

    Args:
        experiment: name or path of a configuration whose data are ``TextData``.
    """
    with open(config_path(experiment)) as file:
        configuration = yaml.safe_load(file)
    data = TextData(**configuration["data"]["init_args"], seed=0)
    data.setup("fit")
    data.setup("test")
    counts = torch.ones(data.vocab_size)
    for index in range(len(data.train_set)):
        item = data.train_set.without_augmentation()[index]
        counts += torch.bincount(item["labels"][item["labels"] >= 0], minlength=data.vocab_size)
    nats_of = -(counts.double() / counts.sum()).log()
    nats, tokens, characters = 0.0, 0, 0
    for batch in itertools.islice(data.test_dataloader(), configuration["trainer"].get("limit_test_batches")):
        predicted = batch["labels"] >= 0
        nats += float(nats_of[batch["labels"][predicted]].sum())
        tokens += int(predicted.sum())
        characters += int(batch["characters"][predicted].sum())
    return {
        "loss": nats / tokens,
        "perplexity": math.exp(nats / tokens),
        "bits per character": nats / math.log(2) / characters,
    }


def main() -> None:
    """Print a row per experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="+")
    print("| unigram model of | loss (nats per token) | perplexity | bits per character |\n|---|---|---|---|")
    for experiment in parser.parse_args().experiments:
        numbers = unigram(experiment)
        print(f"| {experiment} | " + " | ".join(f"{number:.3f}" for number in numbers.values()) + " |")


if __name__ == "__main__":
    try:
        main()
    except StructuredInitError as error:
        raise SystemExit(f"unigram: {error}") from None
