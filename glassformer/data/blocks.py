"""Documents end to end, cut into blocks of one length: what a language model reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import IGNORED
from glassformer.data.store import Store
from glassformer.errors import GlassformerError

_SALT = 0xB10C


class Blocks:
    """The ids of a store in blocks; every id but a document's first is a label exactly once an epoch.

    The documents are taken as a ring, which each epoch is cut open somewhere else within the first `length`
    ids, so that blocks begin elsewhere every time and their number stays the same. The label of a block's
    last place is the first id of the next block. What is left at the end is filled up.

    seed: decides where the ring is cut; None cuts it between the last document and the first, always.
    """

    def __init__(
        self, store: Store, *, length: int, seed: int | None, field: str = "text", pad_id: int = 0
    ) -> None:
        if length < 1:
            raise GlassformerError(f"blocks of {length} ids cannot be cut; give at least 1")
        self._ids, self._ends = store.end_to_end(field)
        self._size = len(self._ids)
        if not self._size:
            raise GlassformerError(f"'{store.folder}' holds no text to learn from")
        self.length, self.seed, self.pad_id = length, seed, pad_id

    def __len__(self) -> int:
        return -(-self._size // self.length)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows, 1): all alike."""
        return np.full((len(rows), 1), self.length, np.int64)

    def offset(self, epoch: int) -> int:
        """Where the ring is cut in this epoch."""
        if self.seed is None or len(self) == 1:
            return 0
        return int(np.random.default_rng([self.seed, epoch, _SALT]).integers(self.length))

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> dict[str, NDArray[np.int64]]:
        """Blocks by number, each array (B, L):

        ids: the padding is `pad_id`.
        labels: the next id of the same document; -100 where there is none.
        segments: the documents of a block, counted from 1; 0 is padding. Left out where every block of the
        batch lies within one document.
        """
        steps = np.asarray(rows, np.int64)[:, None] * self.length + np.arange(self.length)
        real = steps < self._size
        places = np.where(real, steps + self.offset(epoch), 0)
        again = places >= self._size  # beyond the end the ring goes on with the first document
        places -= again * self._size
        documents = np.searchsorted(self._ends, places, side="right")
        last = places + 1 == self._ends[documents]
        following = np.where(last, places, places + 1)
        ids = np.where(real, self._ids[places].astype(np.int64), self.pad_id)
        labels = np.where(real & ~last, self._ids[following].astype(np.int64), IGNORED)
        changes = (documents[:, 1:] != documents[:, :-1]) | (again[:, 1:] != again[:, :-1])
        segments = np.ones_like(places)
        segments[:, 1:] += changes.cumsum(-1)
        segments[~real] = 0
        batch = {"ids": ids, "labels": labels}
        if (segments != 1).any():
            batch["segments"] = segments
        return batch


class RunningBlocks(Blocks):
    """The same blocks for a model that reads on where a document ends, or for a text that is one document."""

    def batch(self, rows: NDArray[np.int64], *, epoch: int) -> dict[str, NDArray[np.int64]]:
        """ids and labels, each (B, L); padding stands behind all that is learned, so it needs no mark."""
        batch = super().batch(rows, epoch=epoch)
        batch.pop("segments", None)
        return batch
