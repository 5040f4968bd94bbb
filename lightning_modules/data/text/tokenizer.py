"""Tokenizers: one face for all of them, those made from a text, and where one comes from by its name."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_modules.data.text.corpus import Texts
from structured_init.errors import StructuredInitError, nearest
from structured_init.files import replacing

if TYPE_CHECKING:
    import tokenizers

PARALLEL = "TOKENIZERS_PARALLELISM"


class Pieces(NamedTuple):
    """A text as tokens, (T,) each."""

    ids: NDArray[np.int64]  # of the tokens
    characters: NDArray[np.int64]  # of the text that each stands for; their sum is the length of the text
    bytes: NDArray[np.int64]  # of the text's UTF-8 that each stands for; their sum is its length


class Tokenizer:
    """A fast tokenizer with the special tokens that language models need, under the name that the user wrote.

    Given are the strings of the tokens that begin and end a document, fill a batch and hide a token; None where there
    is none.

    Attributes:
        begin_token_id: None where there is none, as for the next two.
        end_token_id: id of the token that ends a document.
        mask_token_id: id of the token that hides another.
        pad_token_id: the end token's, else 0, where there is none: padding is never predicted and never attended to.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        name: str,
        *,
        begin: str | None = None,
        end: str | None = None,
        pad: str | None = None,
        mask: str | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.name = backend, name
        ids = [backend.token_to_id(token) if token is not None else None for token in (begin, end, mask, pad)]
        self.begin_token_id, self.end_token_id, self.mask_token_id, pad_id = ids
        self.pad_token_id: int = pad_id if pad_id is not None else self.end_token_id or 0

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.backend.decode(list(map(int, ids)), skip_special_tokens=True)

    def token(self, id: int) -> str:
        """Return what a token looks like on an axis: its own text where it is whole, else its name."""
        name = self.backend.id_to_token(int(id))
        text = self.backend.decode([int(id)], skip_special_tokens=False)
        return name if not text or "\N{REPLACEMENT CHARACTER}" in text or int(id) in self.special_ids else text

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id: rows that an embedding needs."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids that no text has."""
        return sorted(id for id, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that it is made of."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Return texts as tokens that account for all characters and bytes.

        A character that several tokens share, as bytes of it, counts for the first of them. What a tokenizer leaves
        out, as spaces between words, counts for the token after it, and at the end of the text for the last one.
        """
        with all_threads():
            encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [
            _account(text, encoding.ids, [end for _, end in encoding.offsets])
            for text, encoding in zip(texts, encodings, strict=True)
        ]


class Tokenized:
    """What data say of the tokenizer that they name: ``tokenizer_name``, and ``_vocab_size`` of one that is trained."""

    tokenizer_name: str
    _vocab_size: int

    def training_text(self) -> Texts:
        """Return what a tokenizer is trained on."""
        raise NotImplementedError

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; trains it where it is to be trained."""
        return find_tokenizer(self.tokenizer_name, self._vocab_size, self.training_text, cache_folder())

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding of the tokens needs."""
        return self.tokenizer.vocab_size

    @property
    def pad_token_id(self) -> int:
        """What blocks and batches are filled up with."""
        return self.tokenizer.pad_token_id


def cache_folder() -> Path:
    """Return where trained tokenizers and tokens are kept, beside what ``datasets`` keeps."""
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "structured_init_text"


@contextmanager
def all_threads() -> Iterator[None]:
    """Let the library use its threads, and afterwards no more unless the user said so: they do not survive a fork."""
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = before or "true"
    try:
        yield
    finally:
        os.environ[PARALLEL] = before or "false"


def _account(text: str, ids: list[int], ends: list[int]) -> Pieces:
    """Divide a text among tokens, given where each ends in it, in characters."""
    stops = np.maximum.accumulate(np.array([0, *ends], dtype=np.int64))
    if ids:
        stops[-1] = len(text)
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)  # in UTF-8
    before = np.concatenate([[0], np.cumsum(widths)])  # bytes before each character and after the last
    return Pieces(np.array(ids, dtype=np.int64), np.diff(stops), np.diff(before[stops]))


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
    """Train byte-level BPE or WordPiece, the same in every process, on texts that can be iterated twice.

    The five special tokens count among ``vocab_size``, which has to hold the characters or bytes too; there are fewer
    where the text does not give so many.
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
    counts: Counter[str] = Counter()
    for text in map(made.normalizer.normalize_str, texts):
        counts.update(text)
    common = sorted((-count, character) for character, count in counts.items() if not character.isspace())
    alphabet = sorted(character for _, character in common[:_ALPHABET])
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


HUB = ("gpt2", "bert-base-uncased", "FacebookAI/roberta-base")  # names to compare a wrong one with
# Names that the common tokenizers give to what they begin and end a document with, pad and mask with.
BEGINS = (BEGIN, "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>")
ENDS = (END, "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>")
PADS = (PAD, "[PAD]", "<|pad|>", "<|padding|>")
MASKS = (MASK, "[MASK]", "<|mask|>")


def find_tokenizer(name: str, vocab_size: int, training_text: Callable[[], Texts], cache: Path) -> Tokenizer:
    """Return a tokenizer by its name, as :class:`TextData` takes it; refuse an unknown name, or a corrupt file.

    The training text is asked for only where one is made from it; the folder ``cache`` keeps what was made.
    """
    own = {"begin": BEGIN, "end": END, "pad": PAD, "mask": MASK}
    if name == "bytes":
        return Tokenizer(byte_tokenizer(), name, **own)
    if name in FROM_TEXT:
        import tokenizers

        texts = training_text()
        asked = f"{name} {vocab_size if name in TRAINED else ''} {texts.digest} {tokenizers.__version__}"
        file = cache / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
        if not file.exists():
            made = train_tokenizer(name, texts, vocab_size) if name in TRAINED else character_tokenizer(texts)
            with replacing(file) as temporary:
                made.save(str(temporary))
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.encode_special_tokens = True  # not in the file
        return Tokenizer(backend, name, **own)
    path = Path(name).expanduser()
    return _from_file(path) if path.is_file() else _from_transformers(name)


def _from_file(path: Path) -> Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise StructuredInitError(f"'{path}' is not a tokenizer.json: {error}") from error
    names = {token.content for token in backend.get_added_tokens_decoder().values()}
    usual = {"begin": BEGINS, "end": ENDS, "pad": PADS, "mask": MASKS}
    found = {what: next((token for token in tokens if token in names), None) for what, tokens in usual.items()}
    return Tokenizer(backend, str(path), **found)


def _from_transformers(name: str) -> Tokenizer:
    from transformers import AutoTokenizer

    own = [*FROM_TEXT, "bytes"]
    try:
        found = AutoTokenizer.from_pretrained(name, use_fast=True)
    except Exception as error:  # of the hub, of files, of JSON
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise StructuredInitError(
            f"no tokenizer '{name}' ({reason}): give a name of the Hugging Face hub, a tokenizer.json, or one of "
            f"{', '.join(own)}; {nearest(name, [*own, *HUB])}"
        ) from error
    if not found.is_fast:
        raise StructuredInitError(f"tokenizer '{name}' is not a fast one: it cannot say where its tokens are in a text")
    begin, end = found.bos_token or found.cls_token, found.eos_token or found.sep_token
    return Tokenizer(found.backend_tokenizer, name, begin=begin, end=end, pad=found.pad_token, mask=found.mask_token)
