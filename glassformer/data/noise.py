"""Damage for a model that learns to mend it: sentences are trimmed, gapped and shuffled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.core.errors import GlassformerError

TRIMMED = 3  # at most one word in so many is trimmed off
GAP_EVERY = 8  # one gap, and one more for so many words
GAP_LONGEST = 3  # words of one gap; two that meet become one


def damage(
    tokens: NDArray[Any],
    rng: np.random.Generator,
    *,
    trim: float,
    gap: float,
    shuffle: float,
    gap_id: int | str,
    reach: int = 3,
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
