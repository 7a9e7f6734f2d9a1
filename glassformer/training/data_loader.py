"""Group the stream of batches into training steps, and prefetch them in a thread.

With gradient accumulation, a step takes the next `accumulation_steps` batches of the stream. Each process
takes every `ranks`-th of them, so the batches of a step do not depend on the number of processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.data import Batch, Batches, DataPosition
from glassformer.data.batches import PackedBatches, PackedPairs, split_batch
from glassformer.data.examples import Arrays, Examples, PairExamples
from glassformer.errors import InvalidValueError
from glassformer.training.recipe import TrainingOptions

PREFETCHED_STEPS = 4
# Number of packed batches planned together: large enough that the last batch, filled up with empty rows,
# barely matters, and small enough that planning takes no longer than the prefetched steps.
POOLED_BATCHES = 16
SAMPLED_PAIRS = 10_000  # to estimate the mean length of a pair


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One batch of a step.

    index: within the step. rows: example numbers. inputs: the arguments of the learner's `forward`.
    units: e.g. number of labels; None if the learner returns it with the loss.
    examples: of an iterable dataset, which cannot be read again to split the batch.
    """

    index: int
    epoch: int
    rows: NDArray[np.int64]
    inputs: dict[str, Any]
    units: int | None
    examples: list[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class StepBatches:
    """The micro-batches of one process in one step, and the position in the data after the step.

    data_state: the state of an iterable dataset after the step, if it has one.
    """

    batches: tuple[MicroBatch, ...]
    after: DataPosition
    epoch: int
    data_state: Any = None


@dataclass(frozen=True, kw_only=True)
class DataLoader:
    """Load the steps of one process, from any position in the data. count: returns the units of a batch."""

    batches: Batches
    examples: Examples
    count: Callable[[Arrays], int]
    accumulation_steps: int = 1
    rank: int = 0
    ranks: int = 1
    pin_memory: bool = False

    def open(self, start: DataPosition, state: Any = None) -> Prefetcher:
        """Return a context with the steps from a position on. state: unused, since files have no state."""
        return Prefetcher(self, start)

    def steps(self, start: DataPosition) -> Iterator[StepBatches]:
        stream = self.batches.stream(start)
        while True:
            batches = list(islice(stream, self.accumulation_steps))
            own = [(n, batch) for n, batch in enumerate(batches) if n % self.ranks == self.rank]
            yield StepBatches(
                batches=tuple(self.load(n, batch) for n, batch in own),
                after=batches[-1].after,
                epoch=batches[-1].epoch,
            )

    def load(self, index: int, batch: Batch) -> MicroBatch:
        arrays = self.examples.batch(batch.rows, epoch=batch.epoch)
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        if self.pin_memory:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        units = self.count(arrays)
        return MicroBatch(index=index, epoch=batch.epoch, rows=batch.rows, inputs={**tensors}, units=units)

    def halve(self, batch: MicroBatch) -> tuple[MicroBatch, ...]:
        """Split a batch into two with half of its rows each; a single row is not split."""
        return tuple(
            self.load(batch.index, Batch(batch.epoch, rows, DataPosition(batch.epoch)))
            for rows in split_batch(batch.rows)
        )


def make_batches(
    examples: Examples, options: TrainingOptions, *, seed: int, row_width: int | None
) -> tuple[Batches, Examples]:
    """Return the batches of examples, bucketed by length or packed, and the examples they index.

    row_width: width of a packed row, if the examples can be packed.
    """
    rows, tokens = options.batch_limits()
    if not options.packing:
        return Batches(data=examples, rows=rows, tokens=tokens, seed=seed), examples
    if row_width is None or not isinstance(examples, PairExamples):
        raise InvalidValueError("training.packing", True, "false, since only sentence pairs can be packed")
    packed = PackedPairs(examples, row_width)
    sample = np.linspace(0, len(packed) - 1, min(len(packed), SAMPLED_PAIRS)).astype(np.int64)
    pair_length = max(1.0, packed.lengths(sample).sum(1).mean())
    assert tokens is not None
    pool = max(8192, round(POOLED_BATCHES * tokens / pair_length))
    return PackedBatches(data=packed, tokens=tokens, seed=seed, pool=pool, width=row_width), packed


class Prefetcher:
    """Load steps in a thread; an error in the thread is raised by `next()`."""

    def __init__(self, loader: DataLoader, start: DataPosition) -> None:
        self._steps = loader.steps(start)
        self._pool = ThreadPoolExecutor(1, "prefetch")
        self._ahead = deque(self._pool.submit(next, self._steps) for _ in range(PREFETCHED_STEPS))

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> StepBatches:
        self._ahead.append(self._pool.submit(next, self._steps))
        return self._ahead.popleft().result()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
