"""Several short examples in one row of a fixed width: hardly any padding, and every batch of one shape.

A device that is fastest with one shape (a compiled step on a GPU) is fed like this; which token belongs to
which example is told by segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassformer.data.batches import Batches
from glassformer.data.examples import IGNORED, Arrays, PairExamples
from glassformer.errors import GlassformerError

WAITING = 96  # examples a row may choose its last ones from
NEXT = -1  # stands between the examples of one row and of the next


def packed(lengths: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
    """Pairs (n, 2) put into rows of `width` on either side.

    A row takes those that wait as they come, as far as they fit, and then the largest that still fit.

    >>> [row.tolist() for row in packed(np.array([[3, 2], [2, 2], [5, 4], [1, 1]]), 6)]
    [[0, 1, 3], [2]]
    """
    # Lists: of so few numbers at a time Python is quicker than arrays.
    sources, targets = lengths.T.tolist()
    size = [source + target for source, target in zip(sources, targets, strict=True)]
    rows, taken = [], min(WAITING, len(size))
    waiting = list(range(taken))
    while waiting:
        source_room = target_room = width
        first = 0
        for n in waiting:
            if sources[n] > source_room or targets[n] > target_room:
                break
            source_room -= sources[n]
            target_room -= targets[n]
            first += 1
        row, waiting = waiting[:first], waiting[first:]
        # One pass from the largest on: what does not fit now fits no more later. Equals stay as they came.
        fits = [n for n in waiting if sources[n] <= source_room and targets[n] <= target_room]
        fits.sort(key=size.__getitem__, reverse=True)
        chosen = set()
        for n in fits:
            if sources[n] <= source_room and targets[n] <= target_room:
                source_room -= sources[n]
                target_room -= targets[n]
                chosen.add(n)
                row.append(n)
        rows.append(np.array(row))
        if chosen:
            waiting = [n for n in waiting if n not in chosen]
        more = min(taken + len(row), len(size))
        waiting += range(taken, more)
        taken = more
    return rows


def halves(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """A batch's examples in two; packed rows stay whole. One row cannot be divided.

    The empty rows that fill up a pool's last batch may be all there is in the second half: it is left out.

    >>> [half.tolist() for half in halves(np.array([4, 5, NEXT, 6, NEXT, 7]))]
    [[4, 5, -1, 6], [7]]
    >>> [half.tolist() for half in halves(np.array([4, NEXT, NEXT, NEXT]))]
    [[4, -1]]
    """
    ends = np.flatnonzero(rows == NEXT)
    cut = int(ends[len(ends) // 2]) if len(ends) else (len(rows) + 1) // 2
    both = rows[:cut], rows[cut + 1 if len(ends) else cut :]
    return [half for half in both if (half != NEXT).any()]


@dataclass(frozen=True, kw_only=True)
class PackedBatches(Batches):
    """Batches of `tokens // (width x fields)` rows, each row holding as many examples as fit.

    A batch's rows come as one array of example numbers with NEXT between two rows.
    """

    width: int

    def plan(self, epoch: int, pool: int) -> list[NDArray[np.int64]]:
        """All batches of one pool; the last is filled up with empty rows."""
        rows = self.rows_of(epoch, pool)
        lengths = self.data.lengths(rows)
        if len(lengths) and int(lengths.max()) > self.width:
            raise GlassformerError(
                f"an example of {int(lengths.max())} tokens does not fit into rows of {self.width}"
            )
        many = max(1, self.tokens // (self.width * lengths.shape[1]))
        filled = packed(lengths, self.width)
        order = np.random.default_rng([self.seed, epoch, pool, 2]).permutation(len(filled))
        batches = []
        for begin in range(0, len(order), many):
            parts: list[NDArray[np.int64]] = []
            for place in range(begin, begin + many):
                if place > begin:
                    parts.append(np.array([NEXT]))
                parts.append(rows[filled[order[place]]] if place < len(order) else np.empty(0, np.int64))
            batches.append(np.concatenate(parts))
        return batches


class PackedPairs:
    """Pairs, several in a row: what each token belongs to is counted from 1 in `segments`, 0 is padding."""

    def __init__(self, examples: PairExamples, width: int) -> None:
        self.examples, self.width = examples, width

    def __len__(self) -> int:
        return len(self.examples)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.examples.lengths(rows)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """src, tgt, labels and the segments of both sides, each (rows, width)."""
        gaps = rows == NEXT
        many, line = int(gaps.sum()) + 1, gaps.cumsum()[~gaps]  # the line of each example
        first = np.searchsorted(line, np.arange(many))[line]  # the first example of that line
        segment = np.arange(len(line)) - first + 1
        (source, target), lengths = self.examples.together(rows[~gaps], epoch)
        pad_id, start_id = self.examples.pad_id, self.examples.start_id
        places, segments, begins = [], [], []
        for size in lengths.T:
            before = size.cumsum() - size  # in all examples end to end
            begin = line * self.width + before - before[first]  # in all lines end to end
            begins.append(begin)
            places.append(np.arange(int(size.sum())) + np.repeat(begin - before, size))
            segments.append(np.repeat(segment, size))

        def spread(fill: int, where: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
            made = np.full(many * self.width, fill, np.int64)
            made[where] = values
            return made

        tgt = spread(pad_id, places[1][1:], target[:-1])  # each target one place on,
        tgt[begins[1]] = start_id  # and a start token where the end of the one before has come to stand
        flat = {
            "src": spread(pad_id, places[0], source),
            "tgt": tgt,
            "labels": spread(IGNORED, places[1], target),
            "src_segments": spread(0, places[0], segments[0]),
            "tgt_segments": spread(0, places[1], segments[1]),
        }
        return {name: array.reshape(many, self.width) for name, array in flat.items()}
