"""Training examples by number, with known lengths, returned as padded arrays.

BPE dropout: each time a text is read, some tokens are split into the two shorter ones that spell them, so a
model sees a word in many segmentations. The splits depend only on seed, epoch and row.
Letters: N tokens of some rows concatenated, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glassformer.data.randomness import position_keys, uniform
from glassformer.data.store import Ragged, Store
from glassformer.errors import EmptyInputError, InvalidValueError

IGNORE_INDEX = -100  # the label of a token without loss
_BLOCK_SALT = 0xB10C
Arrays = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]
ROUNDS = 3  # how often a token, and then its halves, may be split
# The growth that a row may have, as a multiple of the probability. Texts of common words grow by 2.6 times
# the probability on average: a larger bound pads most rows, a smaller one keeps many from the last round.
MAX_GROWTH = 3
NO_SPLIT = -1


class Examples(Protocol):
    """Anything that can be trained on. Randomness in a batch depends only on seed, epoch and row."""

    def __len__(self) -> int: ...

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The length of each row, by field: (rows, fields)."""
        ...

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """Padded arrays by name, as the learner takes them."""
        ...


def pad(
    ids: NDArray[np.int64], lengths: NDArray[np.int64], fill: int, multiple: int = 1
) -> NDArray[np.int64]:
    """Concatenated rows as a matrix, padded on the right to the longest (or the next multiple).

    >>> pad(np.array([1, 2, 3, 4]), np.array([3, 1]), 0).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
    matrix = np.full((len(lengths), longest), fill, np.int64)
    matrix[np.arange(longest) < lengths[:, None]] = ids
    return matrix


class PairExamples:
    """Sources and targets: the decoder reads the target after a start token (teacher forcing).

    A target row ends with its end token: start a b end -> input (start a b), labels (a b end).
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
        sides, _ = self.gather(np.array([number]), epoch)
        return tuple(sides)

    def gather(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """The sources and the targets of some examples, each concatenated, and their lengths (rows, 2)."""
        return self.store.gather(rows)

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """src (B, S), tgt (B, T), labels (B, T)."""
        (sources, targets), lengths = self.gather(rows, epoch)
        labels = pad(targets, lengths[:, 1], IGNORE_INDEX, self.multiple)
        tgt = np.full_like(labels, self.pad_id)
        tgt[:, 0] = self.start_id
        tgt[:, 1:] = np.where(labels[:, :-1] == IGNORE_INDEX, self.pad_id, labels[:, :-1])
        src = pad(sources, lengths[:, 0], self.pad_id, self.multiple)
        return {"src": src, "tgt": tgt, "labels": labels}


class LabeledExamples:
    """Texts and the number of their label, stored as a field of one id.

    bpe_dropout: for training.
    """

    def __init__(
        self, store: Store, *, pad_id: int, multiple: int = 1, bpe_dropout: BpeDropout | None = None
    ) -> None:
        self.store, self.pad_id, self.multiple, self.bpe_dropout = store, pad_id, multiple, bpe_dropout

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.store.lengths(rows)[:, :1]

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> Arrays:
        """inputs (B, T): the texts' ids; labels (B,)."""
        (ids, labels), sizes = self.store.gather(rows)
        lengths = sizes[:, 0]
        if self.bpe_dropout is not None:
            ids, lengths = self.bpe_dropout(ids, lengths, rows, epoch=epoch)
        return {"inputs": pad(ids, lengths, self.pad_id, self.multiple), "labels": labels}


class Blocks:
    """Packing: documents concatenated and cut into blocks; every id but a document's first is a label once
    per epoch.

    The documents form a ring that each epoch is cut open somewhere else within the first `length` ids, so
    that blocks start elsewhere every time and their number stays the same. The label of a block's last
    position is the first id of the next block. The last block is padded.

    seed: decides where the ring is cut; None always cuts between the last document and the first.
    segments: if False, `batch` has none: the model reads across documents, or there is one document.
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
        if length < 1:
            raise InvalidValueError("length", length, "at least 1")
        self._ids, self._ends = store.concatenated(field)
        self._size = len(self._ids)
        if not self._size:
            raise EmptyInputError(f"text in {store.folder}")
        self.length, self.seed, self.pad_id, self.segments = length, seed, pad_id, segments

    def __len__(self) -> int:
        return -(-self._size // self.length)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows, 1): all the same."""
        return np.full((len(rows), 1), self.length, np.int64)

    def offset(self, epoch: int) -> int:
        """Where the ring is cut in this epoch."""
        if self.seed is None or len(self) == 1:
            return 0
        return int(np.random.default_rng([self.seed, epoch, _BLOCK_SALT]).integers(self.length))

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> dict[str, NDArray[np.int64]]:
        """Blocks by number, each array (B, L):

        ids: padded with `pad_id`.
        labels: the next id of the same document, or IGNORE_INDEX.
        segments: the documents of a block, counted from 1; 0 is padding. Left out if every block of the
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


def split_table(spellings: Sequence[str], special: Collection[int] = ()) -> Ids:
    """For each token the two tokens that spell it together, (V, 2), or NO_SPLIT twice.

    Of several splits it is the one whose rarer half has the lower id, i.e. is more frequent.

    >>> split_table(["a", "b", "c", "ab", "abc"]).tolist()
    [[-1, -1], [-1, -1], [-1, -1], [0, 1], [3, 2]]
    """
    ids = {spelling: n for n, spelling in enumerate(spellings) if n not in special}
    table = np.full((len(spellings), 2), NO_SPLIT, np.int64)
    for spelling, number in ids.items():
        cuts = [(spelling[:n], spelling[n:]) for n in range(1, len(spelling))]
        splits = [(ids[left], ids[right]) for left, right in cuts if left in ids and right in ids]
        if splits:
            table[number] = min(splits, key=max)
    return table


class BpeDropout:
    """BPE dropout: split each token with a probability, in each of three rounds.

    table: from `split_table`.    max_length: the most tokens of a row.
    """

    def __init__(self, table: Ids, prob: float, *, max_length: int, seed: int) -> None:
        self.table, self.prob, self.max_length, self.seed = table, prob, max_length, seed

    def __call__(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """The ids (N,) of some rows concatenated and their lengths, split; longer rows are truncated."""
        split = self._split(ids, lengths, rows, epoch, bound=None).truncate(self.max_length)
        return split.ids, split.lengths

    def without_truncation(self, ids: Ids, lengths: Ids, rows: Ids, *, epoch: int) -> tuple[Ids, Ids]:
        """The same, but a row skips a round in which it would outgrow its bound."""
        split = self._split(ids, lengths, rows, epoch, bound=self.bound(lengths))
        return split.ids, split.lengths

    def bound(self, lengths: Ids) -> Ids:
        """The maximum number of tokens that rows of these lengths have after splitting."""
        longest = np.ceil(lengths * (1 + MAX_GROWTH * self.prob)).astype(np.int64) + 1
        return np.minimum(longest, self.max_length)

    def _split(self, ids: Ids, lengths: Ids, rows: Ids, epoch: int, *, bound: Ids | None) -> Ragged:
        for round_number in range(ROUNDS):
            draws = uniform(self.seed + round_number, epoch, position_keys(rows, lengths), 1)[:, 0]
            chosen = (self.table[ids, 0] != NO_SPLIT) & (draws < self.prob)
            row = np.repeat(np.arange(len(rows)), lengths)
            added = np.bincount(row[chosen], minlength=len(rows))
            if bound is not None:
                fits = lengths + added <= bound
                chosen, added = chosen & fits[row], np.where(fits, added, 0)
            repeats = 1 + chosen
            first = (repeats.cumsum() - repeats)[chosen]
            halves, ids, lengths = self.table[ids[chosen]], np.repeat(ids, repeats), lengths + added
            ids[first], ids[first + 1] = halves[:, 0], halves[:, 1]
        return Ragged(ids=ids, lengths=lengths)


class BpeDropoutPairs(PairExamples):
    """Pairs with BPE dropout on both sides, without truncation.

    The length of a row is known only when it is read, so `lengths` are bounds that it stays within.
    """

    def __init__(
        self,
        store: Store,
        *,
        source: BpeDropout,
        target: BpeDropout,
        pad_id: int,
        start_id: int,
        multiple: int = 1,
    ) -> None:
        super().__init__(store, pad_id=pad_id, start_id=start_id, multiple=multiple)
        self.sides = source, target

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most tokens of each side in any epoch."""
        stored = self.store.lengths(rows)
        return np.stack([dropout.bound(stored[:, n]) for n, dropout in enumerate(self.sides)], 1)

    def gather(
        self, rows: NDArray[np.int64], epoch: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        fields, stored = self.store.gather(rows)
        split = [
            dropout.without_truncation(ids, stored[:, n], rows, epoch=epoch)
            for n, (ids, dropout) in enumerate(zip(fields, self.sides, strict=True))
        ]
        return [ids for ids, _ in split], np.stack([lengths for _, lengths in split], 1)


def class_names(classes: Sequence[str] | None, config: Mapping[str, Any], count: int = 0) -> list[str] | None:
    """By class number: those of job.json, else of config.json; None if neither has any.

    count: how many classes there are, if known. A class without a name gets one from its number.

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
