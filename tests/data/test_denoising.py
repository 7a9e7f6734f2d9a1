"""Damage invents nothing, keeps to its bounds, and is the same for the same random numbers."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.denoising import (
    DRAWS_PER_SEQUENCE,
    DRAWS_PER_WORD,
    GAP_EVERY,
    MAX_TRIM,
    corrupt,
    corrupt_batch,
)
from glassformer.data.denoising import GAP as GAP_NUMBER
from glassformer.errors import InvalidValueError

GAP = 999
chances = st.sampled_from([0.0, 0.5, 1.0])


@given(size=st.integers(0, 60), seed=st.integers(0, 2**32), trim=chances, gap=chances, shuffle=chances)
def test_corruption_adds_nothing_and_keeps_something(
    size: int, seed: int, trim: float, gap: float, shuffle: float
) -> None:
    tokens = np.random.default_rng(size).integers(0, 9, size).astype(np.uint16)
    before = tokens.copy()

    def damaged() -> np.ndarray:
        return corrupt(tokens, np.random.default_rng(seed), trim=trim, gap=gap, shuffle=shuffle, gap_id=GAP)

    result = damaged()
    assert (tokens == before).all() and result.dtype == tokens.dtype
    assert (damaged() == result).all()
    kept = result[result != GAP]
    assert Counter(kept.tolist()) <= Counter(tokens.tolist())
    assert len(result) <= size and bool(len(kept)) == bool(size)
    assert all(len(list(run)) == 1 for is_gap, run in groupby(result == GAP) if is_gap)  # marks do not touch
    assert (result == GAP).sum() <= (1 + size // GAP_EVERY) * (gap > 0)
    if not gap:
        assert len(result) >= size - size // MAX_TRIM
    if not gap and not trim:
        assert sorted(result.tolist()) == sorted(tokens.tolist())
    if not gap and not trim and not shuffle:
        assert (result == tokens).all()


def test_every_gap_leaves_a_mark_and_short_sentences_keep_a_word() -> None:
    for size in (2, 3, 4, 30):
        for seed in range(40):
            rng = np.random.default_rng(seed)
            result = corrupt(np.arange(size), rng, trim=0, gap=1, shuffle=0, gap_id=GAP)
            kept = result[result != GAP]
            missing = np.setdiff1d(np.arange(size), kept)
            runs = 1 + int((np.diff(missing) > 1).sum())
            assert len(kept) and (result == GAP).sum() == runs


@given(size=st.integers(0, 80), seed=st.integers(0, 2**32), reach=st.integers(0, 6))
def test_a_shuffled_word_does_not_move_beyond_its_reach(size: int, seed: int, reach: int) -> None:
    rng = np.random.default_rng(seed)
    result = corrupt(np.arange(size), rng, trim=0, gap=0, shuffle=1, gap_id=GAP, max_move=reach)
    assert (np.abs(result - np.arange(size)) <= reach).all()


def test_corruptions_have_the_given_probability() -> None:
    words = np.arange(30)
    counts = {"trim": 0, "gap": 0, "shuffle": 0}
    for seed in range(2000):
        chances = {"trim": 0.0, "gap": 0.0, "shuffle": 0.0}
        kind = list(counts)[seed % 3]
        chances[kind] = 0.3
        result = corrupt(words, np.random.default_rng(seed), gap_id=GAP, **chances)
        kept = result[result != GAP]
        if kind != "shuffle":
            assert (np.diff(kept) > 0).all()
        if kind == "trim":  # off one end only, without a hole
            assert (np.diff(kept) == 1).all() and (kept[0] == 0 or kept[-1] == 29)
        counts[kind] += len(result) != len(words) or (result != words).any()
    for kind, times in counts.items():
        assert abs(times / 667 - 0.3) < 0.09, kind  # five standard deviations


@pytest.mark.parametrize("dtype", ["U", object])
def test_words_are_corrupted_like_ids(dtype: object) -> None:
    """By the same random numbers; the mark is longer than any word."""
    ids = np.arange(26)
    words = np.array([chr(97 + n) for n in ids], dtype=dtype)
    for seed in range(20):
        both = [
            corrupt(tokens, np.random.default_rng(seed), trim=0.5, gap=0.5, shuffle=0.5, gap_id=mark).tolist()
            for tokens, mark in ((ids, GAP), (words, "<a gap>"))
        ]
        assert both[1] == ["<a gap>" if n == GAP else chr(97 + n) for n in both[0]]


class FixedDraws:
    """A generator that returns given numbers for the corruption of one sequence."""

    def __init__(self, each: np.ndarray, word: np.ndarray) -> None:
        self.chances, (self.off, self.side, self.spared) = each[:3], each[3:]
        self.moves, self.begins, self.sizes = word.T
        self.asked = False

    def random(self, size: int | None = None) -> Any:
        if size is None:
            return self.side
        first, self.asked = not self.asked, True
        return self.chances if first else self.moves[:size]

    def integers(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        if high is None:
            return np.int64(self.spared * low)
        drawn = self.off if size is None else (self.begins if low == 0 else self.sizes)[:size]
        return low + np.int64(drawn * (high - low))


@given(
    many=st.lists(st.integers(0, 40), max_size=12),
    seed=st.integers(0, 2**32),
    trim=chances,
    gap=chances,
    shuffle=chances,
)
def test_corrupt_batch_matches_corrupt(
    many: list[int], seed: int, trim: float, gap: float, shuffle: float
) -> None:
    """By the same random numbers."""
    rng, words = np.random.default_rng(seed), np.array(many, np.int64)
    each, word = rng.random((len(many), DRAWS_PER_SEQUENCE)), rng.random((sum(many), DRAWS_PER_WORD))
    ends = words.cumsum()[:-1]
    how: Any = {"trim": trim, "gap": gap, "shuffle": shuffle}
    left, lengths = corrupt_batch(words, sequence_draws=each, word_draws=word, **how)
    together = np.split(left, lengths.cumsum()[:-1]) if many else []
    drawn = np.split(word, ends) if many else []
    numbers = np.split(np.arange(sum(many)), ends) if many else []
    for n, found in enumerate(together):
        told: Any = FixedDraws(each[n], drawn[n])
        alone = corrupt(numbers[n], told, gap_id=GAP_NUMBER, **how)
        assert found.tolist() == alone.tolist()


def test_probability_above_one_is_refused() -> None:
    with pytest.raises(InvalidValueError):
        corrupt(np.arange(3), np.random.default_rng(0), trim=0, gap=1.5, shuffle=0, gap_id=GAP)
