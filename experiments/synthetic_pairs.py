"""Two synthetic tasks for attention: copying a string, and recalling the value of a key.

copy:    bo da fu bo          ->  bo da fu bo
recall:  su ? bi ? da ? bi K da R su K  ->  su K bi K da R
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from glassformer.weights.atomic_write import atomic_write

SYLLABLES = np.array([first + second for first in "bcdfghjklmnpqrstvwxz" for second in "aeiou"])  # 100
SYMBOLS = SYLLABLES[:32]  # of the strings to copy
KEYS, VALUES = (
    SYLLABLES,
    np.array(list(ascii_uppercase)),
)  # of the pairs to recall: a key comes once, a value as it may
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Copying:
    """Strings of `shortest` to `longest` random symbols, which are the answer."""

    shortest: int = 5
    longest: int = 60

    def pair(self, size: int, rng: np.random.Generator) -> Pair:
        """A string of `size` symbols and itself."""
        string = " ".join(rng.choice(SYMBOLS, size))
        return string, string


@dataclass(frozen=True, kw_only=True)
class Recalling:
    """A form of `shortest` to `longest` keys to be filled in from the keys and values that follow it."""

    shortest: int = 1
    longest: int = 32

    def pair(self, size: int, rng: np.random.Generator) -> Pair:
        """A form of `size` keys with their values behind it in another order, and the form filled in."""
        keys, values = rng.permutation(KEYS)[:size], rng.choice(VALUES, size)
        query_order = rng.permutation(size)
        context = " ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
        form = " ".join(f"{key} ?" for key in keys[query_order])
        return f"{form} {context}", " ".join(f"{keys[n]} {values[n]}" for n in query_order)


Task = Copying | Recalling


def generate_pairs(task: Task, count: int, *, seed: int) -> Iterator[Pair]:
    """`count` pairs of all sizes; twice the size is half as likely, so that short ones are learned first."""
    rng = np.random.default_rng(seed)
    least, most = np.log(task.shortest), np.log(task.longest + 1)
    for _ in range(count):
        yield task.pair(int(np.exp(rng.uniform(least, most))), rng)


def pairs_of_sizes(task: Task, sizes: Iterable[int], count: int, *, seed: int) -> Iterator[Pair]:
    """`count` pairs of each size, one size after another."""
    rng = np.random.default_rng(seed)
    for size in sizes:
        for _ in range(count):
            yield task.pair(size, rng)


def written(folder: Path, files: Mapping[str, Iterable[Pair]]) -> dict[str, Path]:
    """Write the pairs as name.tsv; concurrent runs may all write them."""
    paths = {name: folder / f"{name}.tsv" for name in files}
    for name, pairs in files.items():
        if not paths[name].exists():
            with atomic_write(paths[name]) as file:
                file.writelines(f"{read}\t{answer}\n".encode() for read, answer in pairs)
    return paths
