"""Orders are permutations, stores give back what was written, batches resume to the row."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from glassformer.data import Batches, DataPosition, Permutation, Store, write_store
from glassformer.data.batches import PACKING_WINDOW, ROW_SEPARATOR, PackedBatches, pack
from glassformer.data.examples import IGNORE_INDEX, PairExamples
from glassformer.errors import FileExistsAlreadyError, FileProblemError, InvalidValueError
from glassformer.training.data_loader import make_batches
from glassformer.training.recipe import TrainingOptions
from tests.data.files import rows_of


class Lengths:
    """Rows of given lengths."""

    def __init__(self, table: list[list[int]]) -> None:
        self.table = np.array(table, np.int64).reshape(len(table), -1)

    def __len__(self) -> int:
        return len(self.table)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        return self.table[rows]


@given(size=st.integers(0, 700), seed=st.integers(0, 2**40), epoch=st.integers(0, 50))
def test_permutation_is_complete_and_slices_are_consistent(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed, epoch)
    full = order[0:size]
    assert sorted(full.tolist()) == list(range(size))
    assert (order[size // 3 : size] == full[size // 3 :]).all()


def test_permutations_differ_by_seed_and_epoch_and_are_uniform() -> None:
    """Where row 0 comes to stand over many seeds is spread evenly (chi-square, 15 degrees of freedom)."""
    assert (Permutation(1000, 1)[0:1000] != Permutation(1000, 2)[0:1000]).mean() > 0.9
    assert (Permutation(1000, 1, 0)[0:1000] != Permutation(1000, 1, 1)[0:1000]).mean() > 0.9
    places = [int(np.flatnonzero(Permutation(16, seed)[0:16] == 0)[0]) for seed in range(3200)]
    counts = np.bincount(places, minlength=16)
    assert ((counts - 200) ** 2 / 200).sum() < 45  # p below 1e-4 beyond
    follows = np.diff(Permutation(10_000, 5)[0:10_000])
    assert abs(np.corrcoef(follows[:-1], follows[1:])[0, 1] + 0.5) < 0.05  # -1/2 for unrelated neighbours


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 70_000), max_size=9), st.lists(st.integers(0, 70_000), max_size=9)),
        max_size=20,
    )
)
def test_store_round_trip(rows: list, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("store") / "pairs"
    store = write_store(folder, ("source", "target"), rows, max_id=70_000)
    assert len(store) == len(rows) and store.fields == ("source", "target")
    assert rows_of(store) == [list(map(list, row)) for row in rows]
    numbers = np.arange(len(rows))[::-1].copy()
    assert store.lengths(numbers).tolist() == [[len(a), len(b)] for a, b in reversed(rows)]


def test_damaged_store_is_an_error_and_an_interrupted_one_does_not_exist(tmp_path: Path) -> None:
    def interrupted() -> object:
        yield ([1, 2],)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "a", ("text",), interrupted(), max_id=9)
    assert not (tmp_path / "a").exists()
    write_store(tmp_path / "a", ("text",), [([1, 2],), ([3],)], max_id=9)  # what was left behind is cleared
    with pytest.raises(FileExistsAlreadyError):
        write_store(tmp_path / "a", ("text",), [], max_id=9)
    with pytest.raises(InvalidValueError):
        write_store(tmp_path / "b", ("text",), [([10],)], max_id=9)
    ids = tmp_path / "a" / "text.ids"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(FileProblemError):
        Store(tmp_path / "a")
    (tmp_path / "a" / "store.json").write_text("{")
    with pytest.raises(FileProblemError):
        Store(tmp_path / "a")


tables = st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=2), min_size=1, max_size=120)


@given(table=tables, tokens=st.integers(1, 200), pool=st.integers(1, 50), seed=st.integers(0, 9))
def test_epoch_has_every_row_once_within_the_token_budget(
    table: list[list[int]], tokens: int, pool: int, seed: int
) -> None:
    data = Lengths(table)
    batches = [batch.rows for batch in Batches(data=data, tokens=tokens, pool=pool, seed=seed).epoch()]
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(table)))
    for rows in batches:
        cost = len(rows) * int(data.lengths(rows).max(0).sum())
        assert len(rows) == 1 or cost <= tokens


@given(table=tables, pool=st.integers(1, 50), stop=st.integers(0, 40), epoch=st.integers(0, 3))
def test_stream_resumes_identically_from_any_position(
    table: list[list[int]], pool: int, stop: int, epoch: int
) -> None:
    batches = Batches(data=Lengths(table), tokens=60, pool=pool, seed=7)
    full = list(islice(batches.stream(DataPosition(epoch)), 60))
    stop = min(stop, len(full) - 1)
    rest = list(islice(batches.stream(full[stop].after), 60 - stop - 1))
    assert [(b.epoch, b.rows.tolist(), b.after) for b in rest] == [
        (b.epoch, b.rows.tolist(), b.after) for b in full[stop + 1 :]
    ]
    assert {b.epoch for b in full[: len(list(batches.epoch(DataPosition(epoch))))]} == {epoch}


def test_bucketing_by_length_has_little_padding_and_epochs_differ() -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(3, 60, 5000)
    data = Lengths(np.stack([source, np.maximum(1, source + rng.integers(-5, 6, 5000))], -1).tolist())
    batches = Batches(data=data, tokens=4096, pool=5000)
    spent = used = 0
    for batch in batches.epoch():
        lengths = data.lengths(batch.rows)
        spent += len(batch.rows) * int(lengths.max(0).sum())
        used += int(lengths.sum())
    assert used / spent > 0.9  # at random it is near a half
    first, second = (next(iter(batches.epoch(DataPosition(epoch)))).rows for epoch in (0, 1))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("packed", [False, True])
def test_every_epoch_and_seed_groups_the_rows_anew(packed: bool) -> None:
    data = Lengths([[4, 4]] * 400)  # of equal length, so that sorting by length groups nothing

    def groups(seed: int, epoch: int) -> set[frozenset[int]]:
        options: dict[str, Any] = {"data": data, "tokens": 160, "seed": seed}
        batches = PackedBatches(width=20, **options) if packed else Batches(**options)
        rows = [batch.rows for batch in batches.epoch(DataPosition(epoch)) if batch.epoch == epoch]
        return {frozenset(batch[batch != ROW_SEPARATOR].tolist()) for batch in rows}

    first, *others = groups(1, 0), groups(1, 1), groups(1, 2), groups(2, 0)
    assert len(first) == 20 and all(first.isdisjoint(other) for other in others)
    assert groups(1, 0) == first


pair_lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=260)


@given(table=pair_lengths, tokens=st.none() | st.integers(1, 900), most=st.none() | st.integers(1, 90))
def test_batch_ends_before_the_row_that_exceeds_a_limit(
    table: list[tuple[int, int]], tokens: int | None, most: int | None
) -> None:
    assume(tokens is not None or most is not None)
    batches = Batches(data=Lengths([list(row) for row in table]), tokens=tokens, rows=most)
    expected: list[list[int]] = [[]]
    ordered = sorted(batches.pool_rows(0, 0).tolist(), key=lambda row: table[row][::-1])
    for row in ordered:
        tried = [*expected[-1], row]
        cost = len(tried) * sum(max(table[one][side] for one in tried) for side in (0, 1))
        if expected[-1] and (
            (tokens is not None and cost > tokens) or (most is not None and len(tried) > most)
        ):
            expected.append([row])
        else:
            expected[-1] = tried
    assert sorted(map(sorted, expected)) == sorted(sorted(one.tolist()) for one in batches.plan(0, 0))


@given(table=pair_lengths, width=st.integers(12, 60))
def test_packing_takes_rows_in_order_then_the_largest_that_fits(
    table: list[tuple[int, int]], width: int
) -> None:
    expected, coming = [], list(range(len(table)))
    while coming:
        waiting, row = coming[:PACKING_WINDOW], list[int]()

        def fits(one: int, row: list[int] = row) -> bool:
            return all(sum(table[n][side] for n in [*row, one]) <= width for side in (0, 1))

        while waiting and fits(waiting[0]):
            row.append(waiting.pop(0))
        while left := [one for one in waiting if fits(one)]:
            row.append(max(left, key=lambda one: sum(table[one])))  # of equals the first
            waiting.remove(row[-1])
        expected.append(row)
        coming = [one for one in coming if one not in row]
    assert [row.tolist() for row in pack(np.array(table), width)] == expected


def test_large_packed_batches_have_little_padding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = [[[1] * n for n in rng.integers(3, 25, 2)] for _ in range(20_000)]
    examples = PairExamples(
        write_store(tmp_path / "s", ("source", "target"), pairs, max_id=9), pad_id=0, start_id=3
    )
    options = TrainingOptions(batch_tokens=65_536, packing=True)
    batches, rows = make_batches(examples, options, seed=1, row_width=128)
    labels = np.concatenate([rows.batch(one, epoch=0)["labels"] for one in batches.plan(0, 0)])
    assert (labels != IGNORE_INDEX).mean() > 0.9


def test_pair_batches_are_padded_and_shifted(tmp_path: Path) -> None:
    pairs = [[[5, 6, 3], [7, 3]], [[8, 3], [5, 5, 5, 3]], [[3], [3]]]
    examples = PairExamples(
        write_store(tmp_path / "s", ("source", "target"), pairs, max_id=9), pad_id=0, start_id=2
    )
    batch = {name: array.tolist() for name, array in examples.batch(np.array([1, 0, 2]), epoch=0).items()}
    assert batch == {
        "src": [[8, 3, 0], [5, 6, 3], [3, 0, 0]],
        "tgt": [[2, 5, 5, 5], [2, 7, 3, 0], [2, 3, 0, 0]],  # what follows an end is not learned
        "labels": [[5, 5, 5, 3], [7, 3, -100, -100], [3, -100, -100, -100]],
    }
