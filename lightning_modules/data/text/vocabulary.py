"""Tokenizers made from a text: characters, bytes, and those that the ``tokenizers`` library trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightning_modules.data.text.tokenizer import all_threads
from structured_init.errors import StructuredInitError

if TYPE_CHECKING:
    import tokenizers

PAD, UNKNOWN, BEGIN, END, MASK = "<pad>", "<unk>", "<s>", "</s>", "<mask>"
SPECIAL = (PAD, UNKNOWN, BEGIN, END, MASK)
TRAINED = ("bpe", "wordpiece")
FROM_TEXT = ("characters", *TRAINED)
_ALPHABET = 1000  # characters that a WordPiece vocabulary holds at most; rarer ones are unknown


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer with one token for each of the 256 bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _finished(made)


def character_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer with one token for each character that occurs; others are unknown."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    found = sorted(set().union(*map(set, texts)))
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *found])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return _finished(made)


def train_tokenizer(kind: str, texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Train a tokenizer, the same in every process: byte-level BPE or WordPiece.

    Args:
        kind: one of `TRAINED`.
        texts: to train on; iterated twice.
        vocab_size: of the tokens, the five special ones among them; fewer where the text does not give so many.

    Raises:
        StructuredInitError: the vocabulary is too small for the characters or bytes alone.
    """
    return _finished({"bpe": _bpe, "wordpiece": _wordpiece}[kind](texts, vocab_size))


def _bpe(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _check_size("bpe", vocab_size, len(SPECIAL) + len(alphabet))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    with all_threads():
        made.train_from_iterator(texts, trainer=trainer)
    return made


def _wordpiece(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Train WordPiece by the library's trainer, which breaks ties between merges by the numbers of their parts.

    It numbers the characters inside words in the order of a hash map, another one in each process, so they are given
    to it beforehand.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    alphabet = _alphabet(map(made.normalizer.normalize_str, texts))
    numbered = [*SPECIAL, *alphabet, *(f"##{character}" for character in alphabet)]
    _check_size("wordpiece", vocab_size, len(numbered))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=numbered,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    with all_threads():
        made.train_from_iterator(texts, trainer=trainer)
    found = made.get_vocab()
    plain = Tokenizer(models.WordPiece(found, unk_token=UNKNOWN))  # in which no character is a special token
    plain.normalizer, plain.pre_tokenizer, plain.decoder = made.normalizer, made.pre_tokenizer, made.decoder
    return plain


def _alphabet(texts: Iterable[str]) -> list[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    common = sorted((-count, character) for character, count in counts.items() if not character.isspace())
    return sorted(character for _, character in common[:_ALPHABET])


def _check_size(kind: str, vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise StructuredInitError(
            f"vocab_size={vocab_size} is too small for tokenizer '{kind}': its single characters and the special "
            f"tokens alone are {least}"
        )


def _finished(made: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken

    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.encode_special_tokens = True  # a text that holds "</s>" says so, and ends no document
    return made
