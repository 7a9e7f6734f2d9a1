"""Reproducible randomness: permutations computed on demand, and random numbers that depend on the row.

A shuffled list of 10^9 rows takes 8 GB. `Permutation` stores only its keys and computes any slice on demand.
It is a Feistel network, which mixes one half of a number's bits into the other half and is invertible.
Results outside 0..n-1 are permuted again until they are inside (cycle walking).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.data.store import positions_in_rows

_ROUNDS = 6
_MAX_POSITIONS = 1 << 20  # per row


@dataclass(frozen=True)
class Permutation:
    """A permutation of 0..size-1 for a seed and an epoch.

    >>> sorted(Permutation(5, seed=1)[0:5].tolist())
    [0, 1, 2, 3, 4]
    >>> bool((Permutation(10**12, seed=1)[0:3] == Permutation(10**12, seed=1)[0:3]).all())
    True
    """

    size: int
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> NDArray[np.int64]:
        """Return the rows at a slice of positions."""
        start, stop, step = part.indices(self.size)
        return self.at(np.arange(start, stop, step, dtype=np.int64))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at `positions`, each in 0..size-1."""
        half = max(1, ((max(self.size, 2) - 1).bit_length() + 1) // 2)
        seeds = np.random.SeedSequence([self.seed & (2**64 - 1), self.epoch])
        keys = seeds.generate_state(_ROUNDS, np.uint64).astype(np.uint64)
        rows = _feistel(positions.astype(np.uint64), half, keys)
        outside = rows >= self.size
        while outside.any():  # at most 3 in 4 are outside, so a few rounds suffice
            rows[outside] = _feistel(rows[outside], half, keys)
            outside = rows >= self.size
        return rows.astype(np.int64)


def _feistel(numbers: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Permute the numbers 0..4^half - 1; `half` is half their number of bits, `keys` has a key per round."""
    low = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    left, right = numbers >> shift, numbers & low
    for key in keys:
        left, right = right, left ^ (_hash(right ^ key) & low)
    return (left << shift) | right


def _hash(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit integers (multiplications overflow on purpose)."""
    x = (x ^ (x >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


def uniform(seed: int, epoch: int, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return random numbers in [0, 1) that depend only on seed, epoch and row: (rows, count).

    >>> together = uniform(1, 0, np.array([5, 9]), 3)
    >>> bool((uniform(1, 0, np.array([9]), 3) == together[1:]).all())
    True
    """
    keys = np.random.SeedSequence([seed & (2**64 - 1), epoch, 0x1A6E]).generate_state(count, np.uint64)
    x = _mix(rows.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) ^ keys)
    return (_mix(x + keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hash_draws(hashes: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """Return a random number in [0, 1) for each hash, the same for equal hashes."""
    key = seed.to_bytes(16, "little", signed=True)
    distinct, which = np.unique(hashes, return_inverse=True)
    keyed = [hashlib.blake2b(value.tobytes(), digest_size=8, key=key).digest() for value in distinct]
    return np.frombuffer(b"".join(keyed), "<u8")[which] / 2.0**64


def position_keys(rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each position of these rows, unique over all rows: (sum of lengths,)."""
    return np.repeat(rows, lengths) * _MAX_POSITIONS + positions_in_rows(lengths)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64-bit integers with the finalizer of SplitMix64 (multiplications overflow on purpose)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
