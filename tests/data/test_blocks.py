"""Packed blocks hold every token once per epoch, never cross documents, and depend only on seed and epoch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data import Batches, DataPosition, Store, write_store
from glassformer.data.batches import Batch
from glassformer.data.examples import IGNORE_INDEX, PackedBlocks
from glassformer.data.store import Chunk, write_chunks
from tests.data.files import rows_of

PAD = 7  # an id like any other, so that padding must be told by more than its id
documents = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)


def store_of(lengths: list[int], folder: Path) -> Store:
    """Documents of these lengths; every id is its own, so that it tells where it stood."""
    ends = np.cumsum([0, *lengths])
    rows = [(range(a, b),) for a, b in pairwise(ends)]
    return write_store(folder / "store", ("text",), rows, max_id=70_000)


@settings(max_examples=80)
@given(lengths=documents, length=st.integers(1, 12), seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_every_id_is_an_input_once_and_a_label_once_unless_it_is_the_first(
    lengths: list[int], length: int, seed: int, epoch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = store_of(lengths, tmp_path_factory.mktemp("blocks"))
    blocks = PackedBlocks(store, length=length, seed=seed, pad_id=PAD)
    batch = blocks.batch(np.arange(len(blocks)), epoch=epoch)
    ids, labels = batch["ids"], batch["labels"]
    segments = batch.get("segments", np.ones_like(ids))
    assert ids.shape == labels.shape == segments.shape == (len(blocks), length)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}

    total = sum(lengths)
    home = np.repeat(np.arange(len(lengths)), lengths)  # the document of each id
    firsts = {int(n) for n in np.cumsum([0, *lengths[:-1]])}
    real = segments > 0
    assert sorted(ids[real].tolist()) == list(range(total)) and (ids[~real] == PAD).all()
    learned = labels != IGNORE_INDEX
    assert not (learned & ~real).any()
    assert sorted(labels[learned].tolist()) == sorted(set(range(total)) - firsts)
    assert (labels[learned] == ids[learned] + 1).all()
    assert (home[labels[learned]] == home[ids[learned]]).all()
    assert ("segments" in batch) == bool((segments != 1).any())
    for row in range(len(blocks)):  # counted from 1; a new one exactly where the stream does not go on
        real_ids = ids[row][real[row]]
        goes_on = (np.diff(real_ids) == 1) & (home[real_ids][1:] == home[real_ids][:-1])
        assert segments[row][real[row]].tolist() == (1 + np.cumsum([0, *~goes_on])).tolist()
        assert not real[row].all() or row == len(blocks) - 1 or len(real_ids) == length
    assert (~real).sum() == len(blocks) * length - total and real[:-1].all()


def test_blocks_depend_only_on_seed_epoch_and_row(tmp_path: Path) -> None:
    store = store_of([40, 1, 0, 300, 59], tmp_path)
    blocks = PackedBlocks(store, length=16, seed=3)
    rows = np.array([5, 0, 24, 5])
    together = blocks.batch(rows, epoch=2)
    reopened = PackedBlocks(Store(store.folder), length=16, seed=3)
    for n, row in enumerate(rows):
        alone = reopened.batch(np.array([row]), epoch=2)
        for name, array in alone.items():
            assert (array[0] == together[name][n]).all()
    offsets = {blocks.offset(epoch) for epoch in range(200)}
    assert offsets == set(range(16)) == {PackedBlocks(store, length=16, seed=4).offset(e) for e in range(200)}
    firsts = {int(blocks.batch(np.array([0]), epoch=epoch)["ids"][0, 0]) for epoch in range(200)}
    assert firsts == offsets
    fixed = PackedBlocks(store, length=16, seed=None)
    assert all(
        fixed.batch(np.array([1]), epoch=e)["ids"][0].tolist() == list(range(16, 32)) for e in range(5)
    )


def test_blocks_can_be_batched_and_resumed(tmp_path: Path) -> None:
    blocks = PackedBlocks(store_of([1000, 500], tmp_path), length=10, seed=0)
    batches = Batches(data=blocks, tokens=45, pool=40)
    full = list(batches.epoch(DataPosition(1)))
    assert {len(batch.rows) for batch in full} == {4, 2}  # pools of 40, 40, 40 and 30 rows

    def ids(chunks: list[Batch]) -> list[list[list[int]]]:
        return [blocks.batch(batch.rows, epoch=batch.epoch)["ids"].tolist() for batch in chunks]

    assert ids(list(batches.epoch(full[9].after))) == ids(full[10:])


def test_a_batch_within_one_document_has_no_segments(tmp_path: Path) -> None:
    blocks = PackedBlocks(store_of([100, 3], tmp_path), length=10, seed=None)
    assert "segments" not in blocks.batch(np.arange(10), epoch=0)
    assert blocks.batch(np.array([9, 10]), epoch=0)["segments"].tolist() == [[1] * 10, [1] * 3 + [0] * 7]


def test_documents_written_in_chunks_are_stored_completely(tmp_path: Path) -> None:
    chunks = [([1, 2], []), ([3], [1]), ([4, 5], [0, 1]), ([], []), ([6], [1])]  # ids, and where rows end
    parts = ((Chunk(ids=np.array(ids, int), ends=np.array(ends, int)),) for ids, ends in chunks)
    store = write_chunks(tmp_path / "s", ("text",), parts, max_id=9)
    assert rows_of(store) == [[[1, 2, 3]], [[]], [[4]], [[5, 6]]]
    ids, ends = store.concatenated("text")
    assert ids.tolist() == [1, 2, 3, 4, 5, 6] and ends.tolist() == [3, 3, 4, 6]
    later = write_store(tmp_path / "later", ("text",), ([[1] * n] for n in (1, 2, 5, 3)), max_id=9)
    assert [part.max_length("text", rows_per_read=2) for part in (store, later)] == [3, 5]
