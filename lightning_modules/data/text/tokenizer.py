"""Tokenizers: made of the characters of a text, trained on it, or saved ones, all of them as transformers has them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from structured_init.util.errors import StructuredInitError, nearest, one_line

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

SPECIAL = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
}
MADE = ("characters", "bpe")


def character_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer with one token for each character that occurs; others are unknown."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters: set[str] = set()
    for text in texts:  # one at a time: they may be more than memory holds
        characters.update(text)
    tokens = [*SPECIAL.values(), *sorted(characters)]
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


def train_byte_pairs(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Train byte-level BPE, the same in every process.

    The five special tokens and the 256 bytes count among ``vocab_size``, and are there in any case; there are fewer
    tokens where the text does not give so many.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL.values()), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer=trainer)
    return made


class Tokenized:
    """What data say of the tokenizer that they name: ``tokenizer_name``, and ``_vocab_size`` of one that is trained."""

    tokenizer_name: str
    _vocab_size: int

    def training_texts(self) -> list[str]:
        """Return what a tokenizer is trained on."""
        raise NotImplementedError

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer; makes it where it is to be made."""
        from transformers import PreTrainedTokenizerFast

        if self.tokenizer_name == "characters":
            made = character_tokenizer(self.training_texts())
        elif self.tokenizer_name == "bpe":
            made = train_byte_pairs(self.training_texts(), self._vocab_size)
        else:
            return _saved_tokenizer(self.tokenizer_name)
        # A text that holds "</s>" says so, and ends no document: special tokens are split like other words.
        return PreTrainedTokenizerFast(tokenizer_object=made, split_special_tokens=True, **SPECIAL)

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding of the tokens needs."""
        return len(self.tokenizer)

    def ends(self) -> tuple[list[int], list[int]]:
        """Return the tokens before and after a text; one before it where both are the same, as in GPT-2."""
        begin = self.tokenizer.bos_token or self.tokenizer.cls_token
        end = self.tokenizer.eos_token or self.tokenizer.sep_token
        before = [] if begin is None else self.tokenizer.convert_tokens_to_ids([begin])
        after = [] if end in (None, begin) else self.tokenizer.convert_tokens_to_ids([end])
        return before, after


def _saved_tokenizer(name: str) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of the hub, of files, of JSON
        raise StructuredInitError(
            f"no tokenizer '{name}' ({one_line(error)}): give a name of the Hugging Face hub, the folder of a saved "
            f"one, or one of {', '.join(MADE)}; {nearest(name, MADE)}"
        ) from error
    if found.pad_token is None:
        found.pad_token = found.eos_token  # padding is never predicted and never attended to
    return found
