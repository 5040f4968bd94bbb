"""Sequences that an algorithm generates: words of balanced brackets, and rows of elementary cellular automata.

Letters: B sequences, N tokens, K kinds of brackets, W cells of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor


def dyck_words(
    count: int, length: int, *, kinds: int, open_probability: float, generator: torch.Generator
) -> Int64[Tensor, "count length"]:
    """Return k-Dyck words: every bracket is closed by one of its kind, in the reverse order of opening.

    Token t < K opens a bracket of kind t, and token K + t closes it. A bracket must be opened where none is open, and
    closed where the rest of the word has room for nothing else; everywhere else one is opened with a probability.

    Args:
        count: B, how many words.
        length: N. A word of odd length is the beginning of one that is longer by a token.
        kinds: K, each as likely as any other.
        open_probability: of opening one where both can be done.
        generator: draws all of it.

    Source: the language of 2511.13945 and 2601.21725; the probability as in zlshinnick/procedural-pretraining,
    ``procedural_data/dyck.py``.
    """
    whole = length + length % 2
    words, stack = torch.empty(count, whole, dtype=torch.long), torch.zeros(count, whole + 1, dtype=torch.long)
    depth, every = torch.zeros(count, dtype=torch.long), torch.arange(count)
    opened = torch.randint(kinds, (count, whole), generator=generator)
    wanted = torch.rand(count, whole, generator=generator) < open_probability
    for place in range(whole):
        opens = (depth == 0) | (wanted[:, place] & (depth < whole - place))
        words[:, place] = torch.where(opens, opened[:, place], kinds + stack[every, depth])
        depth += torch.where(opens, 1, -1)
        stack[every[opens], depth[opens]] = opened[opens, place]
    return words[:, :length]


def automaton_rows(
    count: int, length: int, *, rules: Sequence[int], width: int, generator: torch.Generator
) -> Int64[Tensor, "count length"]:
    """Return the rows of elementary cellular automata, one behind the other, as tokens 0 and 1.

    The first row is drawn evenly. A cell's next state is the bit number 4·left + 2·own + right of the rule, as
    Wolfram numbers them; the last cell is the first one's neighbour.

    Args:
        count: B, how many sequences.
        length: N; the last row is cut off where W does not divide it.
        rules: from 0 to 255; every sequence follows one of them, drawn evenly.
        width: W.
        generator: draws the first rows and which rule.

    Source: 2601.21725 trains on elementary cellular automata; rows as tokens one by one are our reading.
    """
    rule = torch.tensor(list(rules))[torch.randint(len(rules), (count,), generator=generator)][:, None]
    row = torch.randint(2, (count, width), generator=generator)
    rows = [row]
    for _ in range((length - 1) // width):
        row = (rule >> (4 * row.roll(1, 1) + 2 * row + row.roll(-1, 1))) & 1
        rows.append(row)
    return torch.cat(rows, dim=1)[:, :length]
