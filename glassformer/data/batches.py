"""Batches of about the same cost: rows of like length together, as many as a budget of tokens holds.

An epoch's order is cut into pools. Within a pool rows are sorted by length and cut into batches; the batches
are then shuffled. So lengths match closely, yet the order stays random, and where a run stands is three
numbers: epoch, pool, batch. From those the rest of the epoch is worked out again, the same to the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from glassformer.data.order import Order
from glassformer.errors import GlassformerError


class Measured(Protocol):
    """Rows whose lengths are known without reading them."""

    def __len__(self) -> int: ...

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]: ...


class Place(NamedTuple):
    """Where a run stands: the next batch to be given."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class Batch(NamedTuple):
    """The rows of a batch, the epoch they are read in, and the place that follows."""

    epoch: int
    rows: NDArray[np.int64]
    after: Place


START = Place()
LOOKED_AT = 64  # rows that are tried for a batch at first


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of every epoch, from any place on.

    tokens: the most a batch may cost: its rows times the longest of each field, padding counted.
    rows: the most rows of a batch, if that is to be bounded too.
    pool: how many rows are sorted together.
    """

    data: Measured
    tokens: int
    rows: int | None = None
    seed: int = 0
    pool: int = 20_000

    def __post_init__(self) -> None:
        for name in ("tokens", "pool"):
            if getattr(self, name) < 1:
                raise GlassformerError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not len(self.data):
            raise GlassformerError("there is nothing to learn from; give data with at least one example")

    def stream(self, start: Place = START) -> Iterator[Batch]:
        """Batch after batch, epoch after epoch, without end.

        Several processes read the same stream and each takes its share of it, so that however many there
        are, together they learn from the same batches in the same order.
        """
        place = start
        while True:
            yield from self.epoch(place)
            place = Place(place.epoch + 1)

    def epoch(self, start: Place = START) -> Iterator[Batch]:
        """The rest of an epoch."""
        pools = -(-len(self.data) // self.pool)
        first = start.batch
        for number in range(start.pool, pools):
            plan = self.plan(start.epoch, number)
            for index in range(first, len(plan)):
                last = index + 1 == len(plan)
                after = Place(start.epoch, number + 1) if last else Place(start.epoch, number, index + 1)
                yield Batch(start.epoch, plan[index], after)
            first = 0

    def plan(self, epoch: int, pool: int) -> list[NDArray[np.int64]]:
        """All batches of one pool, in the order they are given."""
        rows = self.rows_of(epoch, pool)
        lengths = self.data.lengths(rows)
        by_length = np.lexsort(lengths.T) if lengths.size else np.arange(len(rows))
        batches = self._cut(rows[by_length], lengths[by_length])
        shuffled = np.random.default_rng([self.seed, epoch, pool, 1]).permutation(len(batches))
        return [batches[n] for n in shuffled]

    def rows_of(self, epoch: int, pool: int) -> NDArray[np.int64]:
        """The rows of one pool, in the epoch's order."""
        return Order(len(self.data), self.seed, epoch)[pool * self.pool : (pool + 1) * self.pool]

    def _cut(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Consecutive rows while they fit the budget; a row over it alone is a batch of its own."""
        batches, begin, most = [], 0, LOOKED_AT
        while begin < len(rows):
            ahead = lengths[begin : begin + most]
            cost = np.maximum.accumulate(ahead).sum(1) * np.arange(1, len(ahead) + 1)
            fitting = int(np.searchsorted(cost, self.tokens, side="right"))  # no batch grows cheaper
            if self.rows is not None:
                fitting = min(fitting, self.rows)
            if fitting == len(ahead) and begin + fitting < len(rows):
                most *= 2  # all that was looked at fits: look further
                continue
            many = max(1, fitting)
            batches.append(rows[begin : begin + many])
            begin += many
            most = max(LOOKED_AT, 2 * many)
        return batches
