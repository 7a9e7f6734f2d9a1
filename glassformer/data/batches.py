"""Bucket examples by length into batches with a maximum size, or pack several examples into a row.

The permutation of an epoch is cut into pools. Within a pool, rows are sorted by length and cut into batches,
which are then shuffled. So the lengths in a batch match closely, yet the order stays random. The position in
the data is three numbers: epoch, pool and batch. They determine all later batches exactly.

Packing puts several short examples into one row of fixed width: almost no padding, and every batch has the
same shape, which suits a compiled step on a GPU. `segments` maps each token to its example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import IGNORE_INDEX, Arrays, Examples, PairExamples
from glassformer.data.randomness import Permutation
from glassformer.errors import EmptyInputError, InputTooLongError

LOOKAHEAD = 64  # initial number of rows to try for a batch
PACKING_WINDOW = 96  # examples that a packed row chooses from
ROW_SEPARATOR = -1  # between the examples of one packed row and the next


class DataPosition(NamedTuple):
    """The position of the next batch in the stream of batches."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class Batch(NamedTuple):
    """The row numbers of a batch, its epoch, and the position of the next batch."""

    epoch: int
    rows: NDArray[np.int64]
    after: DataPosition


START = DataPosition()


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Iterate over batches of similar length, from any position.

    tokens: maximum size of a batch, padding included: number of rows times the longest length of each field.
    rows: maximum number of rows of a batch. At least one of the two is set.
    pool: number of rows that are sorted together.
    """

    data: Examples
    tokens: int | None = None
    rows: int | None = None
    seed: int = 0
    pool: int = 20_000

    def __post_init__(self) -> None:
        if not len(self.data):
            raise EmptyInputError("training data")

    def stream(self, start: DataPosition = START) -> Iterator[Batch]:
        """Iterate over the batches of all epochs, without end.

        Each process reads the same stream and takes some of its batches, so that any number of processes
        trains on the same batches in the same order.
        """
        position = start
        while True:
            yield from self.epoch(position)
            position = DataPosition(position.epoch + 1)

    def epoch(self, start: DataPosition = START) -> Iterator[Batch]:
        """Iterate over the batches of one epoch, from `start` on."""
        pools = -(-len(self.data) // self.pool)
        first = start.batch
        for number in range(start.pool, pools):
            plan = self.plan(start.epoch, number)
            for index in range(first, len(plan)):
                last = index + 1 == len(plan)
                pool, batch = (number + 1, 0) if last else (number, index + 1)
                yield Batch(start.epoch, plan[index], DataPosition(start.epoch, pool, batch))
            first = 0

    def plan(self, epoch: int, pool: int) -> list[NDArray[np.int64]]:
        """Return all batches of one pool, in shuffled order."""
        rows = self.pool_rows(epoch, pool)
        lengths = self.data.lengths(rows)
        by_length = np.lexsort(lengths.T) if lengths.size else np.arange(len(rows))
        batches = self._cut(rows[by_length], lengths[by_length])
        shuffled = np.random.default_rng([self.seed, epoch, pool, 1]).permutation(len(batches))
        return [batches[n] for n in shuffled]

    def pool_rows(self, epoch: int, pool: int) -> NDArray[np.int64]:
        """Return the row numbers of one pool, in the order of the epoch's permutation."""
        return Permutation(len(self.data), self.seed, epoch)[pool * self.pool : (pool + 1) * self.pool]

    def _cut(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Cut sorted rows into batches within the limits; a row that alone exceeds the tokens is a batch."""
        batches, start, window = [], 0, LOOKAHEAD
        while start < len(rows):
            ahead = lengths[start : start + window]
            fitting = len(ahead) if self.rows is None else min(len(ahead), self.rows)
            if self.tokens is not None:
                cost = np.maximum.accumulate(ahead).sum(1) * np.arange(1, len(ahead) + 1)
                within = int(np.searchsorted(cost, self.tokens, side="right"))  # the cost never decreases
                fitting = min(fitting, within)
            if fitting == len(ahead) and start + fitting < len(rows):
                window *= 2  # everything fits: look further
                continue
            count = max(1, fitting)
            batches.append(rows[start : start + count])
            start += count
            window = max(LOOKAHEAD, 2 * count)
        return batches


def pack(lengths: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
    """Pack pairs with source and target lengths (n, 2) into rows of `width` tokens for each side.

    A row takes the next examples in order until one does not fit, and then the largest that still fit.

    >>> [row.tolist() for row in pack(np.array([[3, 2], [2, 2], [5, 4], [1, 1]]), 6)]
    [[0, 1, 3], [2]]
    """
    # For so few numbers, Python lists are faster than arrays.
    sources, targets = lengths.T.tolist()
    size = [source + target for source, target in zip(sources, targets, strict=True)]
    rows, end = [], min(PACKING_WINDOW, len(size))
    waiting = list(range(end))
    while waiting:
        source_left = target_left = width
        first = 0
        for n in waiting:
            if sources[n] > source_left or targets[n] > target_left:
                break
            source_left -= sources[n]
            target_left -= targets[n]
            first += 1
        row, waiting = waiting[:first], waiting[first:]
        # Largest first: an example that does not fit now will not fit later. Ties keep their order.
        fits = [n for n in waiting if sources[n] <= source_left and targets[n] <= target_left]
        fits.sort(key=size.__getitem__, reverse=True)
        chosen = set()
        for n in fits:
            if sources[n] <= source_left and targets[n] <= target_left:
                source_left -= sources[n]
                target_left -= targets[n]
                chosen.add(n)
                row.append(n)
        rows.append(np.array(row))
        if chosen:
            waiting = [n for n in waiting if n not in chosen]
        new_end = min(end + len(row), len(size))
        waiting += range(end, new_end)
        end = new_end
    return rows


def split_batch(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split a batch into two halves, between packed rows.

    A half with only empty rows (they fill up the last batch of a pool) is left out.

    >>> [half.tolist() for half in split_batch(np.array([4, 5, ROW_SEPARATOR, 6, ROW_SEPARATOR, 7]))]
    [[4, 5, -1, 6], [7]]
    >>> [half.tolist() for half in split_batch(np.array([4, *[ROW_SEPARATOR] * 3]))]
    [[4, -1]]
    """
    ends = np.flatnonzero(rows == ROW_SEPARATOR)
    cut = int(ends[len(ends) // 2]) if len(ends) else (len(rows) + 1) // 2
    both = rows[:cut], rows[cut + 1 if len(ends) else cut :]
    return [half for half in both if (half != ROW_SEPARATOR).any()]


@dataclass(frozen=True, kw_only=True)
class PackedBatches(Batches):
    """Batches of `tokens // (width x fields)` rows, each row holding as many examples as fit.

    `Batch.rows` holds the example numbers of all rows, with ROW_SEPARATOR between two rows.
    """

    width: int

    def plan(self, epoch: int, pool: int) -> list[NDArray[np.int64]]:
        """Return all batches of one pool; the last is filled up with empty rows."""
        rows = self.pool_rows(epoch, pool)
        lengths = self.data.lengths(rows)
        if len(lengths) and int(lengths.max()) > self.width:
            raise InputTooLongError(int(lengths.max()), self.width)
        assert self.tokens is not None
        rows_per_batch = max(1, self.tokens // (self.width * lengths.shape[1]))
        packed = pack(lengths, self.width)
        order = np.random.default_rng([self.seed, epoch, pool, 2]).permutation(len(packed))
        batches = []
        for start in range(0, len(order), rows_per_batch):
            parts: list[NDArray[np.int64]] = []
            for index in range(start, start + rows_per_batch):
                if index > start:
                    parts.append(np.array([ROW_SEPARATOR]))
                parts.append(rows[packed[order[index]]] if index < len(order) else np.empty(0, np.int64))
            batches.append(np.concatenate(parts))
        return batches


class PackedPairs:
    """Pairs packed several to a row; `segments` numbers the examples of a row from 1, and 0 is padding."""

    def __init__(self, examples: PairExamples, width: int) -> None:
        self.examples, self.width = examples, width

    def __len__(self) -> int:
        return len(self.examples)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.examples.lengths(rows)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return src, tgt, labels, src_segments and tgt_segments, each (rows, width)."""
        separators = rows == ROW_SEPARATOR
        count, line = int(separators.sum()) + 1, separators.cumsum()[~separators]  # the row of each example
        first = np.searchsorted(line, np.arange(count))[line]  # the first example of that row
        segment = np.arange(len(line)) - first + 1
        (source, target), lengths = self.examples.gather(rows[~separators], epoch)
        pad_id, start_id = self.examples.pad_id, self.examples.start_id
        positions, segments, starts = [], [], []
        for size in lengths.T:
            before = size.cumsum() - size  # in all examples concatenated
            start = line * self.width + before - before[first]  # in all rows concatenated
            starts.append(start)
            positions.append(np.arange(int(size.sum())) + np.repeat(start - before, size))
            segments.append(np.repeat(segment, size))

        def scatter(fill: int, where: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
            flat = np.full(count * self.width, fill, np.int64)
            flat[where] = values
            return flat

        tgt = scatter(pad_id, positions[1][1:], target[:-1])  # targets shifted right by one,
        tgt[starts[1]] = start_id  # with the start token where the previous end token would be
        flat = {
            "src": scatter(pad_id, positions[0], source),
            "tgt": tgt,
            "labels": scatter(IGNORE_INDEX, positions[1], target),
            "src_segments": scatter(0, positions[0], segments[0]),
            "tgt_segments": scatter(0, positions[1], segments[1]),
        }
        return {name: array.reshape(count, self.width) for name, array in flat.items()}
