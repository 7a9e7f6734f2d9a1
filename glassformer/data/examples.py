"""Training examples by number, with known lengths, returned as padded arrays.

Letters: N tokens of several rows concatenated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glassformer.data.store import Store
from glassformer.errors import InvalidValueError
from glassformer.schema import setting

if TYPE_CHECKING:
    from glassformer.data.bpe_dropout import BpeDropout

IGNORE_INDEX = -100  # the label of a token without loss
_BLOCK_SALT = 0xB10C
Arrays = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]


def augmentation(description: str, default: float = 0.0, interval: str = "[0, 1]", unit: str = "") -> Any:
    """Declare a setting of a random augmentation."""
    unit = unit or ("probability" if interval == "[0, 1]" else "")
    return setting(default, f"augmentation: {description}", interval=interval, unit=unit)


class Examples(Protocol):
    """Interface of training examples. Any randomness in a batch depends only on seed, epoch and row."""

    def __len__(self) -> int: ...

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length of each field of each row: (rows, fields)."""
        ...

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return padded arrays by name: the arguments of the learner's `forward`."""
        ...


class EqualLengths:
    """Examples of the same cost each, e.g. images of one size."""

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ones (rows, 1)."""
        return np.ones((len(rows), 1), np.int64)


class StoredExamples:
    """Examples in a store of token ids. num_texts: the first fields, whose lengths are the cost."""

    num_texts = 1

    def __init__(self, store: Store, *, pad_id: int) -> None:
        self.store, self.pad_id = store, pad_id

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.store.lengths(rows)[:, : self.num_texts]


def pad(ids: NDArray[np.int64], lengths: NDArray[np.int64], fill: int) -> NDArray[np.int64]:
    """Pad concatenated rows on the right with `fill`, to the longest row.

    >>> pad(np.array([1, 2, 3, 4]), np.array([3, 1]), 0).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    longest = int(lengths.max(initial=0))
    matrix = np.full((len(lengths), longest), fill, np.int64)
    matrix[np.arange(longest) < lengths[:, None]] = ids
    return matrix


class PairExamples(StoredExamples):
    """Sources and targets; the decoder input is the target shifted right by a start token (teacher forcing).

    A target row ends with its end token: start a b end -> input (start a b), labels (a b end).
    """

    num_texts = 2

    def __init__(self, store: Store, *, pad_id: int, start_id: int) -> None:
        super().__init__(store, pad_id=pad_id)
        self.start_id = start_id

    def row(self, number: int, epoch: int) -> tuple[NDArray[np.int64], ...]:
        """Return the source ids and the target ids of one example in an epoch."""
        sides, _ = self.gather(np.array([number]), epoch)
        return tuple(sides)

    def gather(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the concatenated sources, the concatenated targets, and their lengths (rows, 2)."""
        return self.store.gather(rows)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return src (B, S), tgt (B, T) and labels (B, T)."""
        (sources, targets), lengths = self.gather(rows, epoch)
        labels = pad(targets, lengths[:, 1], IGNORE_INDEX)
        tgt = np.full_like(labels, self.pad_id)
        tgt[:, 0] = self.start_id
        tgt[:, 1:] = np.where(labels[:, :-1] == IGNORE_INDEX, self.pad_id, labels[:, :-1])
        src = pad(sources, lengths[:, 0], self.pad_id)
        return {"src": src, "tgt": tgt, "labels": labels}


def float_bits(values: Sequence[float]) -> NDArray[np.int64]:
    """Return the bits of float32 numbers as integers, to save numbers in a store of ids."""
    return np.asarray(values, np.float32).view(np.uint32).astype(np.int64)


class LabeledExamples(StoredExamples):
    """Texts with labels.

    The last field of the store holds the class number, the class numbers of a multi-label example, or the
    bits of a regression target (see `float_bits`). A field between text and label holds token types.

    bpe_dropout: applied to the texts, for training only.
    num_labels: for multi-label examples, the number of classes; 0 otherwise. regression: labels are numbers.
    token_types: return token types.
    """

    def __init__(
        self,
        store: Store,
        *,
        pad_id: int,
        bpe_dropout: BpeDropout | None = None,
        num_labels: int = 0,
        regression: bool = False,
        token_types: bool = False,
    ) -> None:
        super().__init__(store, pad_id=pad_id)
        self.bpe_dropout, self.token_types = bpe_dropout, token_types
        self.num_labels, self.regression = num_labels, regression

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return inputs (B, T), the token ids of the texts, labels (B,) or (B, L), and types (B, T)."""
        (ids, *types, labels), sizes = self.store.gather(rows)
        lengths = sizes[:, 0]
        if self.bpe_dropout is not None:
            ids, lengths = self.bpe_dropout(ids, lengths, rows, epoch=epoch)
        arrays = {"inputs": pad(ids, lengths, self.pad_id), "labels": self._labels(labels, sizes[:, -1])}
        if self.token_types and types:
            arrays["types"] = pad(types[0], lengths, 0)
        return arrays

    def labels(self) -> NDArray[Any]:
        """Return the labels of all rows, as `batch` does."""
        (*_, labels), sizes = self.store.gather(np.arange(len(self)))
        return self._labels(labels, sizes[:, -1])

    def _labels(self, labels: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[Any]:
        if self.regression:
            return labels.astype(np.uint32).view(np.float32)
        if not self.num_labels:
            return labels
        matrix = np.zeros((len(sizes), self.num_labels), np.float32)
        matrix[np.repeat(np.arange(len(sizes)), sizes), labels] = 1
        return matrix


class TaggedExamples(StoredExamples):
    """Token ids and a label per token; the store holds label + 1, and 0 for tokens without a label."""

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return inputs (B, T) and labels (B, T)."""
        (ids, labels), sizes = self.store.gather(rows)
        labels = np.where(labels > 0, labels - 1, IGNORE_INDEX)
        return {
            "inputs": pad(ids, sizes[:, 0], self.pad_id),
            "labels": pad(labels, sizes[:, 1], IGNORE_INDEX),
        }


class SpanExamples(StoredExamples):
    """Token ids, token types, and the first and last token of an answer."""

    def __init__(self, store: Store, *, pad_id: int, token_types: bool) -> None:
        super().__init__(store, pad_id=pad_id)
        self.token_types = token_types

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return inputs (B, T), labels (B, 2) and types (B, T)."""
        (ids, types, spans), sizes = self.store.gather(rows)
        arrays = {"inputs": pad(ids, sizes[:, 0], self.pad_id), "labels": spans.reshape(-1, 2)}
        return arrays | ({"types": pad(types, sizes[:, 0], 0)} if self.token_types else {})


SCORE_STEPS, SCORE_OFFSET = 1000, 1_000_000  # scores are stored as integers, in thousandths


class EmbeddingExamples(StoredExamples):
    """Pairs of texts, with hard negatives or with scores; stored as two or three fields."""

    def __init__(self, store: Store, *, pad_id: int, scored: bool) -> None:
        super().__init__(store, pad_id=pad_id)
        self.scored, self.num_texts = scored, 2 if scored else len(store.fields)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Return anchors (B, S), positives (B, T), and negatives (B, U) or scores (B,), if there are any."""
        fields, lengths = self.store.gather(rows)
        names = ("anchors", "positives", "negatives")[: self.num_texts]
        arrays: Arrays = {name: pad(fields[n], lengths[:, n], self.pad_id) for n, name in enumerate(names)}
        if self.scored:
            arrays["scores"] = ((fields[2] - SCORE_OFFSET) / SCORE_STEPS).astype(np.float32)
        return arrays


class PackedBlocks:
    """Packing: documents concatenated and cut into blocks.

    Every id except the first of a document is a label once per epoch. The documents form a ring. Each epoch
    cuts it at another point within the first `length` ids, so that block boundaries change while the number
    of blocks does not. The label of a block's last position is the first id of the next block. The last
    block is padded.

    seed: seed of the cut points; None always cuts between the last document and the first.
    segments: if False, `batch` returns no segments: attention crosses documents, or there is only one.
    """

    def __init__(
        self,
        store: Store,
        *,
        length: int,
        seed: int | None,
        field: str = "text",
        pad_id: int = 0,
        segments: bool = True,
    ) -> None:
        self._ids, self._ends = store.concatenated(field)
        self._size = len(self._ids)
        self.length, self.seed, self.pad_id, self.segments = length, seed, pad_id, segments

    def __len__(self) -> int:
        return -(-self._size // self.length)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block length for every row: (rows, 1)."""
        return np.full((len(rows), 1), self.length, np.int64)

    def offset(self, epoch: int) -> int:
        """Return the id position at which the ring is cut in this epoch."""
        if self.seed is None or len(self) == 1:
            return 0
        return int(np.random.default_rng([self.seed, epoch, _BLOCK_SALT]).integers(self.length))

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> dict[str, NDArray[np.int64]]:
        """Return the blocks with these numbers, as arrays (B, L):

        ids: padded with `pad_id`.
        labels: the next id of the same document, or IGNORE_INDEX.
        segments: the document's number within the block, from 1; 0 is padding. Left out if every block of the
        batch lies within one document.
        """
        steps = np.asarray(rows, np.int64)[:, None] * self.length + np.arange(self.length)
        real = steps < self._size
        positions = np.where(real, steps + self.offset(epoch), 0)
        wrapped = positions >= self._size  # the ring continues with the first document
        positions -= wrapped * self._size
        documents = np.searchsorted(self._ends, positions, side="right")
        last = positions + 1 == self._ends[documents]
        following = np.where(last, positions, positions + 1)
        ids = np.where(real, self._ids[positions].astype(np.int64), self.pad_id)
        labels = np.where(real & ~last, self._ids[following].astype(np.int64), IGNORE_INDEX)
        batch = {"ids": ids, "labels": labels}
        if self.segments:
            changes = (documents[:, 1:] != documents[:, :-1]) | (wrapped[:, 1:] != wrapped[:, :-1])
            segments = np.ones_like(positions)
            segments[:, 1:] += changes.cumsum(-1)
            segments[~real] = 0
            if (segments != 1).any():
                batch["segments"] = segments
        return batch


def class_names(classes: Sequence[str] | None, config: Mapping[str, Any], count: int = 0) -> list[str] | None:
    """Return the class names of a model by class number, or None if it has none.

    classes: the names in job.json, if any. config: config.json, whose `id2label` is used otherwise.
    count: number of classes, if known. A class without a name is called LABEL_n.

    >>> class_names(None, {"id2label": {"1": "glad", "0": "sad"}}, 3)
    ['sad', 'glad', 'LABEL_2']
    """
    if classes is not None:
        return list(classes)
    try:
        names = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    except (AttributeError, ValueError):
        raise InvalidValueError("id2label", config["id2label"], "a name for each class number") from None
    if not names:
        return None
    return [names.get(n, f"LABEL_{n}") for n in range(max(count, max(names) + 1))]
