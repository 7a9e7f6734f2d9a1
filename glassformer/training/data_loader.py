"""From the stream of batches to steps: each with its arrays ready before it is needed.

A step takes the next `accumulate` batches of the stream. Of several processes each takes every `ranks`-th of
them, so together they learn from the same batches whatever their number. A thread reads ahead: the device
waits for data only where reading is slower than learning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from queue import Empty, Full, Queue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.data import Batch, Batches, Place
from glassformer.data.examples import Arrays, Examples, PairExamples
from glassformer.data.packing import PackedBatches, PackedPairs, halves
from glassformer.errors import GlassformerError
from glassformer.training.recipe import Training
from glassformer.training.task import Task

AHEAD = 4  # steps read in advance
# Packed batches that are planned together: so many that the last of them, which is filled up with empty rows,
# matters little, and so few that planning is done within the steps read ahead.
POOLED = 16
LOOKED_AT = 10_000  # pairs that tell how long one is


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One batch of a step: its number within the step, its rows, and its arrays as tensors."""

    number: int
    epoch: int
    rows: NDArray[np.int64]
    tensors: dict[str, Tensor]
    units: int


@dataclass(frozen=True, kw_only=True)
class Portion:
    """What one process learns from in one step, the place where the next begins, and its epoch."""

    pieces: tuple[Piece, ...]
    after: Place
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The portions of one process, from any place on."""

    batches: Batches
    examples: Examples
    units: Callable[[Arrays], int]
    accumulate: int = 1
    rank: int = 0
    ranks: int = 1
    pinned: bool = False

    def portions(self, start: Place) -> Iterator[Portion]:
        """Portion after portion, read where they are asked for."""
        stream = self.batches.stream(start)
        while True:
            batches = list(islice(stream, self.accumulate))
            mine = [(n, batch) for n, batch in enumerate(batches) if n % self.ranks == self.rank]
            pieces = tuple(self.piece(n, batch) for n, batch in mine)
            yield Portion(pieces=pieces, after=batches[-1].after, epoch=batches[-1].epoch)

    def piece(self, number: int, batch: Batch) -> Piece:
        arrays = self.examples.batch(batch.rows, epoch=batch.epoch)
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        if self.pinned:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return Piece(
            number=number,
            epoch=batch.epoch,
            rows=batch.rows,
            tensors=tensors,
            units=self.units(arrays),
        )

    def halved(self, piece: Piece) -> tuple[Piece, ...]:
        """The same rows as two smaller batches; one row cannot be divided."""
        return tuple(
            self.piece(piece.number, Batch(piece.epoch, rows, Place(piece.epoch)))
            for rows in halves(piece.rows)
        )


def batches_of(task: Task, words: Training, seed: int) -> tuple[Batches, Examples]:
    """How the examples are cut into batches, and the examples as such a batch takes them."""
    assert words.batch is not None
    if words.batching == "rows":
        if task.row_width is None or not isinstance(task.train, PairExamples):
            raise GlassformerError(
                "training.batching is rows, which only pairs can be packed into; use lengths"
            )
        packed = PackedPairs(task.train, task.row_width)
        some = np.linspace(0, len(packed) - 1, min(len(packed), LOOKED_AT)).astype(np.int64)
        pair = max(1.0, packed.lengths(some).sum(1).mean())
        pools = {"pool": max(8192, round(POOLED * words.batch / pair)), "width": task.row_width}
        return PackedBatches(data=packed, tokens=words.batch, seed=seed, **pools), packed
    return Batches(data=task.train, tokens=words.batch, seed=seed), task.train


class ReadAhead:
    """A feed read by a thread of its own; an error there is raised where the portion is asked for."""

    def __init__(self, feed: Feed, start: Place) -> None:
        self._queue: Queue[Portion | BaseException] = Queue(AHEAD)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(feed, start), daemon=True)
        self._thread.start()

    def _read(self, feed: Feed, start: Place) -> None:
        try:
            for portion in feed.portions(start):
                if not self._put(portion):
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: Portion | BaseException) -> bool:
        while not self._ended.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except Full:
                continue
        return False

    def next(self) -> Portion:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop reading; what was read ahead is forgotten, since it can be read again."""
        self._ended.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except Empty:
                continue

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
