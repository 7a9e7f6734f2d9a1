"""What the loop learns from: examples by number, measured without reading, handed out as padded arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glassformer.data.recut import Recut
from glassformer.data.store import Store

IGNORED = -100  # the label of a token that is not to be learned
Arrays = dict[str, NDArray[Any]]


class Examples(Protocol):
    """Anything that can be trained on. What is random in a batch follows from seed, epoch and row alone."""

    def __len__(self) -> int: ...

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each row costs, by field: (rows, fields)."""
        ...

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Padded arrays by name, as the learner takes them."""
        ...


def padded(
    ids: NDArray[np.int64], lengths: NDArray[np.int64], fill: int, multiple: int = 1
) -> NDArray[np.int64]:
    """Rows that lie end to end side by side, filled up on the right to the longest (or a multiple above).

    >>> padded(np.array([1, 2, 3, 4]), np.array([3, 1]), 0).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
    made = np.full((len(lengths), longest), fill, np.int64)
    made[np.arange(longest) < lengths[:, None]] = ids  # row by row, as they lie
    return made


class PairExamples:
    """Sources and targets: the decoder reads the target behind a start token, and learns it.

    A target row ends with its end token: start a b end -> reads (start a b), learns (a b end).
    """

    def __init__(self, store: Store, *, pad_id: int, start_id: int, multiple: int = 1) -> None:
        self.store = store
        self.pad_id, self.start_id, self.multiple = pad_id, start_id, multiple

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.store.lengths(rows)

    def row(self, number: int, epoch: int) -> tuple[NDArray[np.int64], ...]:
        """The source and the target of one example in an epoch."""
        sides, _ = self.together(np.array([number]), epoch)
        return tuple(sides)

    def together(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """All sources and all targets of some examples, each end to end; and their lengths (rows, 2)."""
        return self.store.together(rows)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """src (B, S), tgt (B, T), labels (B, T)."""
        (sources, targets), lengths = self.together(rows, epoch)
        labels = padded(targets, lengths[:, 1], IGNORED, self.multiple)
        tgt = np.full_like(labels, self.pad_id)
        tgt[:, 0] = self.start_id
        tgt[:, 1:] = np.where(labels[:, :-1] == IGNORED, self.pad_id, labels[:, :-1])
        src = padded(sources, lengths[:, 0], self.pad_id, self.multiple)
        return {"src": src, "tgt": tgt, "labels": labels}


class LabelledExamples:
    """Texts and the number of their label, kept in the store as a field of one id.

    recut: how tokens are cut anew each time, for training.
    """

    def __init__(self, store: Store, *, pad_id: int, multiple: int = 1, recut: Recut | None = None) -> None:
        self.store, self.pad_id, self.multiple, self.recut = store, pad_id, multiple, recut

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.store.lengths(rows)[:, :1]

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """inputs (B, T): the texts' ids; labels (B,)."""
        (ids, labels), sizes = self.store.together(rows)
        lengths = sizes[:, 0]
        if self.recut is not None:
            ids, lengths = self.recut(ids, lengths, rows, epoch=epoch)
        return {"inputs": padded(ids, lengths, self.pad_id, self.multiple), "labels": labels}
