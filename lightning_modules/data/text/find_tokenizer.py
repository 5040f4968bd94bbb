"""Where a tokenizer comes from: its name, a file, the hub, or the training text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from lightning_modules.data.text.documents import Texts
from lightning_modules.data.text.tokenizer import Tokenizer
from lightning_modules.data.text.vocabulary import (
    BEGIN,
    END,
    FROM_TEXT,
    MASK,
    PAD,
    TRAINED,
    byte_tokenizer,
    character_tokenizer,
    train_tokenizer,
)
from structured_init.errors import StructuredInitError, nearest
from structured_init.files import replacing

HUB = (
    "gpt2",
    "openai-community/gpt2",
    "bert-base-uncased",
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "FacebookAI/roberta-base",
    "EleutherAI/gpt-neox-20b",
)
# Names that the common tokenizers give to what they begin and end a document with, pad and mask with.
BEGINS = (BEGIN, "[CLS]", "<bos>", "<|begin_of_text|>", "<|endoftext|>")
ENDS = (END, "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>")
PADS = (PAD, "[PAD]", "<|pad|>", "<|padding|>")
MASKS = (MASK, "[MASK]", "<|mask|>")


def find_tokenizer(name: str, vocab_size: int, training_text: Callable[[], Texts], cache: Path) -> Tokenizer:
    """Return a tokenizer by its name.

    Args:
        name: ``characters``, ``bytes``; ``bpe`` or ``wordpiece`` to train one; a ``tokenizer.json`` or the
            folder of a saved tokenizer; or a hub name.
        vocab_size: of one that is trained.
        training_text: what to make it from, asked for only then.
        cache: folder that keeps what was trained.

    Raises:
        StructuredInitError: no such tokenizer, a corrupt file, a vocabulary too small.
    """
    if name == "bytes":
        return _own(byte_tokenizer(), name)
    if name in FROM_TEXT:
        return _cached(name, vocab_size, training_text(), cache)
    if name == "unigram":
        raise StructuredInitError(
            "tokenizer 'unigram' cannot be trained here, because the tokenizers library finds different "
            "pieces each time: give the tokenizer.json of a trained one, or use bpe or wordpiece"
        )
    path = Path(name).expanduser()
    if path.is_file():
        return _from_file(path)
    return _from_transformers(name)


def _own(backend, name: str) -> Tokenizer:  # noqa: ANN001  a tokenizer of the library
    return Tokenizer(backend, name, begin=BEGIN, end=END, pad=PAD, mask=MASK)


def _cached(kind: str, vocab_size: int, texts: Texts, cache: Path) -> Tokenizer:
    import tokenizers

    asked = f"{kind} {vocab_size if kind in TRAINED else ''} {texts.digest} {tokenizers.__version__}"
    file = cache / f"{kind}-{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
    if not file.exists():
        made = train_tokenizer(kind, texts, vocab_size) if kind in TRAINED else character_tokenizer(texts)
        with replacing(file) as temporary:
            made.save(str(temporary))
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.encode_special_tokens = True  # not in the file
    return _own(backend, kind)


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
    return Tokenizer(
        found.backend_tokenizer,
        name,
        begin=found.bos_token or found.cls_token,
        end=found.eos_token or found.sep_token,
        pad=found.pad_token,
        mask=found.mask_token,
    )
