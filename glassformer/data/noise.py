"""Damage for a model that learns to mend it: sentences are trimmed, gapped and shuffled.

`damage` says what happens to one; `damage_all` does the same to a batch of them at once.
Letters: R sequences, W words of all of them end to end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.data.ragged import within
from glassformer.errors import GlassformerError

TRIMMED = 3  # at most one word in so many is trimmed off
GAP_EVERY = 8  # one gap, and one more for so many words
GAP_LONGEST = 3  # words of one gap; two that meet become one
REACH = 3  # how far a shuffled word may move
GONE = -1  # stands for one gap among the numbers of words
FOR_EACH = 6  # random numbers that the damage of a sequence takes
FOR_WORD = 3  # further ones for each of its words


def damage(
    tokens: NDArray[Any],
    rng: np.random.Generator,
    *,
    trim: float,
    gap: float,
    shuffle: float,
    gap_id: int | str,
    reach: int = REACH,
) -> NDArray[Any]:
    """Damaged words or ids, (T,) -> (T' <= T,); nothing is invented but the gap marks.

    trim, gap, shuffle: how likely each is, from 0 to 1; they are drawn one by one, so several may come
    together.
    gap_id: the mark that stands for one gap, whatever its length.
    reach: how far a shuffled word may move.
    At least one word stays.

    >>> words = np.array("a b c d e f".split())
    >>> damage(words, np.random.default_rng(5), trim=0, gap=1, shuffle=0, gap_id="...").tolist()
    ['a', 'b', '...', 'f']
    """
    for name, chance in (("trim", trim), ("gap", gap), ("shuffle", shuffle)):
        if not 0 <= chance <= 1:
            raise GlassformerError(f"{name} is {chance}; a probability is from 0 to 1")
    does_trim, does_gap, does_shuffle = rng.random(3) < (trim, gap, shuffle)
    if does_shuffle:
        tokens = _shuffled(tokens, rng, reach)
    if does_trim:
        tokens = _trimmed(tokens, rng)
    if does_gap:
        tokens = _gapped(tokens, rng, gap_id)
    return tokens


def _shuffled(tokens: NDArray[Any], rng: np.random.Generator, reach: int) -> NDArray[Any]:
    """Words in the order of their places plus up to reach + 1: none can pass another further off."""
    places = np.arange(len(tokens)) + rng.random(len(tokens)) * (reach + 1)
    return tokens[np.argsort(places, kind="stable")]


def _trimmed(tokens: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Without one word or more at the beginning or the end."""
    most = len(tokens) // TRIMMED
    if not most:
        return tokens
    off = int(rng.integers(1, most + 1))
    return tokens[off:] if rng.random() < 0.5 else tokens[:-off]


def _gapped(tokens: NDArray[Any], rng: np.random.Generator, gap_id: int | str) -> NDArray[Any]:
    """With a mark in the place of every gap."""
    many = len(tokens)
    if many < 2:
        return tokens
    gone = np.zeros(many, bool)
    gaps = 1 + many // GAP_EVERY
    begins, sizes = rng.integers(0, many, gaps), rng.integers(1, GAP_LONGEST + 1, gaps)
    for begin, size in zip(begins, sizes, strict=True):
        gone[begin : begin + size] = True
    if gone.all():
        gone[-int(rng.integers(2))] = False  # the first or the last: in the middle it would make two gaps
    opens = gone & ~np.concatenate(([False], gone[:-1]))
    mark = np.array([gap_id], dtype=tokens.dtype if tokens.dtype.kind in "iuO" else None)
    wide = tokens.astype(np.promote_types(tokens.dtype, mark.dtype))  # a mark longer than any word
    return np.where(opens, mark.astype(wide.dtype), wide)[~gone | opens]


def damage_all(
    many: NDArray[np.int64],
    *,
    each: NDArray[np.float64],
    word: NDArray[np.float64],
    trim: float,
    gap: float,
    shuffle: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What `damage` leaves of many sequences, by the numbers of their words counted through all of them.

    many: how many words each has, (R,). each, word: random numbers from 0 up to 1 for every sequence,
    (R, FOR_EACH), and for every word, (W, FOR_WORD).
    The numbers, with GONE for a gap, (W' <= W,); and how many of them each sequence has, (R,).
    """
    first = many.cumsum() - many
    place, of = within(many), np.repeat(np.arange(len(many)), many)  # of each word: (W,)
    trims, gaps, shuffles = (each[:, :3] < (trim, gap, shuffle)).T

    order = np.arange(len(word))
    moves = np.flatnonzero(shuffles[of])
    moved = place[moves] + word[moves, 0] * (REACH + 1)
    order[moves] = moves[np.lexsort((moved, of[moves]))]

    off = np.where(trims & (many >= TRIMMED), 1 + _below(each[:, 3], many // TRIMMED), 0)
    begin = np.where(each[:, 4] < 0.5, off, 0)
    many = many - off
    order = order[(place >= begin[of]) & (place < (begin + many)[of])]
    place, of = within(many), np.repeat(np.arange(len(many)), many)

    gone = _gone(many, np.where(gaps & (many > 1), 1 + many // GAP_EVERY, 0), first, word)
    nothing = (many > 0) & (np.bincount(of[gone], minlength=len(many)) == many)
    spared = many.cumsum() - np.where(each[:, 5] < 0.5, many, 1)  # the first word or the last, as above
    gone[spared[nothing]] = False
    opens = gone & ~(np.concatenate(([False], gone))[:-1] & (place > 0))
    order[opens] = GONE
    stays = opens | ~gone
    return order[stays], np.bincount(of[stays], minlength=len(many))


def _gone(
    many: NDArray[np.int64], gaps: NDArray[np.int64], first: NDArray[np.int64], word: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Which words of sequences lie in a gap; gap n of a sequence takes the numbers drawn for its word n."""
    drawn, most = word[np.repeat(first, gaps) + within(gaps)], np.repeat(many, gaps)
    begin = _below(drawn[:, 1], most)
    end = np.minimum(begin + 1 + _below(drawn[:, 2], GAP_LONGEST), most)
    before = np.repeat(many.cumsum() - many, gaps)
    words = int(many.sum())
    opened = np.bincount(before + begin, minlength=words + 1)
    closed = np.bincount(before + end, minlength=words + 1)
    return (opened - closed).cumsum()[:-1] > 0


def _below(drawn: NDArray[np.float64], most: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Whole numbers from 0 up to most."""
    return (drawn * most).astype(np.int64)
