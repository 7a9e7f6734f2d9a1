"""Load training steps from torch datasets: map-style, iterable, or any sequence or iterable of examples.

The random numbers of a dataset (`random`, NumPy's and torch's global generators) are seeded for each batch
from the seed and the position in the data, in worker processes too. So a resumed run sees the same examples.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, default_collate

from glassformer.data import Batch, Batches, DataPosition
from glassformer.data.batches import split_batch
from glassformer.data.examples import EqualLengths
from glassformer.errors import EmptyInputError, InvalidValueError, UnsupportedError
from glassformer.training.data_loader import MicroBatch, StepBatches

POOL_ROWS = 1 << 20  # rows planned at once; the batches of a pool are shuffled
_DATA_SALT = 0xDA7A  # separates the random numbers of the data from those of the model

Collate = Callable[[list[Any]], Any]
Dataset = TorchDataset[Any] | Sequence[Any] | Iterable[Any]


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """A training dataset and how to batch it.

    dataset: map-style (`__getitem__` and `__len__`) or iterable.
    shuffle: shuffle a map-style dataset in each epoch. num_workers: processes that load batches.
    """

    dataset: Any
    collate_fn: Collate
    shuffle: bool = True
    num_workers: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.dataset, TorchDataLoader):
            raise UnsupportedError(
                "the trainer",
                "a DataLoader as dataset, since it could not be resumed",
                "pass its dataset, collate_fn and batch_size",
            )
        if not is_map_style(self.dataset) and not isinstance(self.dataset, Iterable):
            raise InvalidValueError("train_dataset", type(self.dataset).__name__, "a dataset or a sequence")
        if isinstance(self.dataset, Iterator):
            raise InvalidValueError(
                "train_dataset",
                type(self.dataset).__name__,
                "a dataset that can be iterated several times",
                "pass a list, or an IterableDataset whose __iter__ starts from the beginning",
            )
        if self.num_workers and not is_map_style(self.dataset):
            raise InvalidValueError("num_workers", self.num_workers, "0 for an iterable dataset")
        if self.examples == 0:
            raise EmptyInputError("training data")

    @property
    def examples(self) -> int | None:
        """The number of examples; None if unknown."""
        return len(self.dataset) if hasattr(self.dataset, "__len__") else None


def collate_equal(examples: list[Any]) -> Any:
    """Make a batch with torch's `default_collate`, whose examples must have the same structure and shape."""
    try:
        return default_collate(examples)
    except (RuntimeError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedError(
            "the default collate_fn",
            f"a batch of these examples ({reason:.150})",
            "pass collate_fn=, e.g. a function that pads with torch.nn.utils.rnn.pad_sequence",
        ) from error


def is_map_style(dataset: Any) -> bool:
    """Return whether examples are read by number."""
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return indexed and not isinstance(dataset, IterableDataset)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to a device; a batch is any nesting of lists, tuples and dictionaries."""
    if isinstance(batch, dict):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(part, device) for part in batch)
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    return batch.to(device) if callable(getattr(batch, "to", None)) else batch


class EvaluationBatches:
    """Iterate over an evaluation dataset in order, in batches on a device.

    examples: the number of examples of the current batch.
    """

    def __init__(self, dataset: Any, *, batch_size: int, collate_fn: Collate, device: torch.device) -> None:
        self._dataset, self._batch_size, self._collate_fn = dataset, batch_size, collate_fn
        self._device = device
        self.examples = 0

    def __iter__(self) -> Iterator[Any]:
        dataset = self._dataset
        examples = (dataset[n] for n in range(len(dataset))) if is_map_style(dataset) else iter(dataset)
        while batch := list(islice(examples, self._batch_size)):
            self.examples = len(batch)
            yield to_device(self._collate_fn(batch), self._device)


class _Rows(EqualLengths):
    """A map-style dataset as `Batches` needs it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> dict[str, NDArray[Any]]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class _InOrder(Batches):
    """Batches of consecutive rows, for a dataset that is not shuffled."""

    def plan(self, epoch: int, pool: int) -> list[NDArray[np.int64]]:
        end = min((pool + 1) * self.pool, len(self.data))
        assert self.rows is not None
        starts = range(pool * self.pool, end, self.rows)
        return [np.arange(start, min(start + self.rows, end)) for start in starts]


@dataclass(frozen=True, kw_only=True)
class _StepPlan:
    """The batches of this process in one step, with their number in the step, and the position after it."""

    batches: list[tuple[int, Batch]]
    after: DataPosition
    epoch: int


@dataclass(frozen=True, kw_only=True)
class DatasetLoader:
    """Load the steps of one process from a dataset, as `DataLoader` does for the examples of a job.

    A step takes `accumulation_steps` batches of `batch_size` examples; each process takes every `ranks`-th.
    An iterable dataset is read completely by each process, which collates only its own batches.
    """

    data: DatasetOptions
    batch_size: int
    seed: int
    accumulation_steps: int = 1
    rank: int = 0
    ranks: int = 1

    def open(self, start: DataPosition, state: Any = None) -> AbstractContextManager[Iterator[StepBatches]]:
        """Return a context with the steps from a position on. state: of an iterable dataset, or None."""
        return closing(self.steps(start, state))

    def steps(self, start: DataPosition, state: Any = None) -> Generator[StepBatches, None, None]:
        if not is_map_style(self.data.dataset):
            yield from self._iterable_steps(start, state)
        elif not self.data.num_workers:
            yield from map(self.load_step, self._plans(start))
        else:
            yield from TorchDataLoader(
                _Steps(self),
                batch_size=None,
                sampler=_Plans(self, start),
                num_workers=self.data.num_workers,
                collate_fn=_unchanged,
            )

    def halve(self, batch: MicroBatch) -> tuple[MicroBatch, ...]:
        """Split a batch into two with half of its examples each; a single one is not split."""
        if batch.examples is None:
            parts = [Batch(batch.epoch, rows, DataPosition(batch.epoch)) for rows in split_batch(batch.rows)]
            return tuple(self._load(batch.index, part) for part in parts)
        middle = (len(batch.rows) + 1) // 2
        halves = [(batch.rows[part], batch.examples[part]) for part in (slice(middle), slice(middle, None))]
        return tuple(
            self._collate(batch.index, batch.epoch, rows, examples) for rows, examples in halves if examples
        )

    # ---- map-style datasets ------------------------------------------------------------------------------

    def _plans(self, start: DataPosition) -> Iterator[_StepPlan]:
        size = self.batch_size
        kind = Batches if self.data.shuffle else _InOrder
        rows = _Rows(len(self.data.dataset))
        pool = max(1, POOL_ROWS // size) * size
        stream = kind(data=rows, rows=size, seed=self.seed, pool=pool).stream(start)
        while True:
            batches = list(islice(stream, self.accumulation_steps))
            own = [(n, batch) for n, batch in enumerate(batches) if n % self.ranks == self.rank]
            yield _StepPlan(batches=own, after=batches[-1].after, epoch=batches[-1].epoch)

    def load_step(self, plan: _StepPlan) -> StepBatches:
        """Load the batches of a step."""
        loaded = tuple(self._load(n, batch) for n, batch in plan.batches)
        return StepBatches(batches=loaded, after=plan.after, epoch=plan.epoch)

    def _load(self, index: int, batch: Batch) -> MicroBatch:
        self._seed(batch.epoch, int(batch.rows[0]))
        examples = [self.data.dataset[row] for row in batch.rows.tolist()]
        # the examples can be read again, and need not travel from a worker process
        return self._collate(index, batch.epoch, batch.rows, examples, keep=False)

    def _collate(
        self, index: int, epoch: int, rows: NDArray[np.int64], examples: list[Any], *, keep: bool = True
    ) -> MicroBatch:
        inputs = {"batch": self.data.collate_fn(examples), "examples": len(examples)}
        return MicroBatch(
            index=index,
            epoch=epoch,
            rows=rows,
            inputs=inputs,
            units=None,
            examples=examples if keep else None,
        )

    def _seed(self, *position: int) -> None:
        """Seed the global generators that a dataset may use."""
        numbers = np.random.SeedSequence((self.seed, _DATA_SALT, *position)).generate_state(2, np.uint64)
        random.seed(int(numbers[0]))
        np.random.seed(int(numbers[0]) & 0xFFFFFFFF)
        torch.manual_seed(int(numbers[1] >> np.uint64(1)))

    # ---- iterable datasets -------------------------------------------------------------------------------

    def _iterable_steps(self, start: DataPosition, state: Any) -> Iterator[StepBatches]:
        stream = self._examples(start, state)
        while True:
            own = []
            for index in range(self.accumulation_steps):
                after, examples = next(stream)
                if index % self.ranks == self.rank:
                    first = (after.batch - 1) * self.batch_size
                    rows = np.arange(first, first + len(examples))
                    own.append(self._collate(index, after.epoch, rows, examples))
            yield StepBatches(batches=tuple(own), after=after, epoch=after.epoch, data_state=self._state())

    def _examples(self, start: DataPosition, state: Any) -> Iterator[tuple[DataPosition, list[Any]]]:
        """Yield the examples of each batch of all epochs, and the position after it."""
        dataset, epoch, skipped = self.data.dataset, start.epoch, start.batch
        while True:
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            number = 0
            if state is not None:  # continue where the state was saved, instead of skipping
                dataset.load_state_dict(state)
                number, skipped, state = skipped, 0, None
            self._seed(epoch, number)
            iterator, first = iter(dataset), number
            while examples := list(islice(iterator, self.batch_size)):
                number += 1
                if number > skipped:
                    yield DataPosition(epoch, 0, number), examples
                self._seed(epoch, number)
            if number == first == 0:
                raise EmptyInputError("training data")
            epoch, skipped = epoch + 1, 0

    def _state(self) -> Any:
        """Return a copy of the dataset's state; None if it has none, or one that JSON cannot store."""
        dataset = self.data.dataset
        if not (hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")):
            return None
        try:
            return json.loads(json.dumps(dataset.state_dict()))
        except TypeError:
            return None


class _Steps(TorchDataset[Any]):
    """The steps of a loader as a map-style dataset, for worker processes."""

    def __init__(self, loader: DatasetLoader) -> None:
        self.loader = loader

    def __getitem__(self, plan: _StepPlan) -> StepBatches:
        return self.loader.load_step(plan)


class _Plans:
    """The plans of a loader as a sampler."""

    def __init__(self, loader: DatasetLoader, start: DataPosition) -> None:
        self.loader, self.start = loader, start

    def __iter__(self) -> Iterator[_StepPlan]:
        return self.loader._plans(self.start)


def _unchanged(step: Any) -> Any:
    return step
