"""Corruption adds nothing, stays within its bounds, and depends only on the random numbers."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.denoising import (
    DRAWS_PER_SEQUENCE,
    DRAWS_PER_WORD,
    GAP,
    GAP_EVERY,
    MAX_MOVE,
    MAX_TRIM,
    corrupt_batch,
)

chances = st.sampled_from([0.0, 0.5, 1.0])


def corrupted(counts: list[int], seed: int, **probabilities: float) -> list[np.ndarray]:
    """What is left of each sequence, as word numbers counted from its own start."""
    rng = np.random.default_rng(seed)
    left, lengths = corrupt_batch(
        np.array(counts, np.int64),
        sequence_draws=rng.random((len(counts), DRAWS_PER_SEQUENCE)),
        word_draws=rng.random((sum(counts), DRAWS_PER_WORD)),
        **({"trim": 0.0, "gap": 0.0, "shuffle": 0.0} | probabilities),
    )
    first = np.repeat(np.cumsum([0, *counts])[:-1], lengths)
    return np.split(np.where(left == GAP, GAP, left - first), lengths.cumsum())[:-1]


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 2**32), chances, chances, chances)
def test_corruption_adds_nothing_and_keeps_something(
    counts: list[int], seed: int, trim: float, gap: float, shuffle: float
) -> None:
    for count, left in zip(counts, corrupted(counts, seed, trim=trim, gap=gap, shuffle=shuffle), strict=True):
        remaining = left[left != GAP].tolist()
        assert len(set(remaining)) == len(remaining) and set(remaining) <= set(range(count))
        assert len(left) <= count and bool(remaining) == bool(count)
        assert all(len(list(run)) == 1 for is_gap, run in groupby(left == GAP) if is_gap)
        assert (left == GAP).sum() <= (1 + count // GAP_EVERY) * (gap > 0)
        if not gap:
            assert len(left) >= count - count // MAX_TRIM
        if not shuffle:
            assert remaining == sorted(remaining)
        if not (gap or trim):
            assert sorted(remaining) == list(range(count))
            assert (np.abs(left - np.arange(count)) <= MAX_MOVE * (shuffle > 0)).all()


def test_every_gap_leaves_one_mark() -> None:
    for size in (2, 3, 4, 30):
        for left in corrupted([size] * 40, size, gap=1.0):
            missing = np.setdiff1d(np.arange(size), left)
            assert (left == GAP).sum() == 1 + int((np.diff(missing) > 1).sum())


@pytest.mark.parametrize("kind", ["trim", "gap", "shuffle"])
def test_corruptions_have_their_probability(kind: str) -> None:
    results = corrupted([30] * 2000, 1, **{kind: 0.3})
    if kind == "trim":  # at one end only
        assert all((np.diff(left) == 1).all() and (left[0] == 0 or left[-1] == 29) for left in results)
    changed = sum(left.tolist() != list(range(30)) for left in results)
    assert abs(changed / 2000 - 0.3) < 0.052  # five standard deviations
