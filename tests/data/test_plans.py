"""Batches are those that a plain loop cuts and packs, row by row; and hardly any of them is padding."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data import Batches, write_store
from glassformer.data.batches import PACKING_WINDOW, pack
from glassformer.data.examples import IGNORE_INDEX, PairExamples
from glassformer.training.data_loader import make_batches

tables = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=260)


class Lengths:
    def __init__(self, table: list[tuple[int, int]]) -> None:
        self.table = np.array(table)

    def __len__(self) -> int:
        return len(self.table)

    def lengths(self, rows: Any) -> Any:
        return self.table[rows]


@given(table=tables, tokens=st.integers(1, 900), most=st.none() | st.integers(1, 90))
def test_a_batch_ends_before_the_row_that_is_too_much(
    table: list[tuple[int, int]], tokens: int, most: int | None
) -> None:
    batches = Batches(data=Lengths(table), tokens=tokens, rows=most)
    expected: list[list[int]] = [[]]
    ordered = sorted(batches.pool_rows(0, 0).tolist(), key=lambda row: table[row][::-1])
    for row in ordered:
        tried = [*expected[-1], row]
        cost = len(tried) * sum(max(table[one][side] for one in tried) for side in (0, 1))
        if expected[-1] and (cost > tokens or (most is not None and len(tried) > most)):
            expected.append([row])
        else:
            expected[-1] = tried
    assert sorted(map(sorted, expected)) == sorted(sorted(one.tolist()) for one in batches.plan(0, 0))


@given(table=tables, width=st.integers(12, 60))
def test_a_row_takes_what_waits_and_then_the_largest_that_fits(
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


def test_large_batches_of_packed_rows_are_hardly_padding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = [[[1] * n for n in rng.integers(3, 25, 2)] for _ in range(20_000)]
    examples = PairExamples(
        write_store(tmp_path / "s", ("source", "target"), pairs, max_id=9), pad_id=0, start_id=3
    )
    task: Any = SimpleNamespace(train=examples, row_width=128)
    batches, rows = make_batches(task, SimpleNamespace(batch=65_536, batching="rows"), 1)  # type: ignore[arg-type]
    labels = np.concatenate([rows.batch(one, epoch=0)["labels"] for one in batches.plan(0, 0)])
    assert (labels != IGNORE_INDEX).mean() > 0.9


def test_pairs_side_by_side_are_filled_up(tmp_path: Path) -> None:
    pairs = [[[5, 6, 3], [7, 3]], [[8, 3], [5, 5, 5, 3]], [[3], [3]]]
    examples = PairExamples(
        write_store(tmp_path / "s", ("source", "target"), pairs, max_id=9), pad_id=0, start_id=2
    )
    found = {name: array.tolist() for name, array in examples.batch(np.array([1, 0, 2]), epoch=0).items()}
    assert found == {
        "src": [[8, 3, 0], [5, 6, 3], [3, 0, 0]],
        "tgt": [[2, 5, 5, 5], [2, 7, 3, 0], [2, 3, 0, 0]],  # what follows an end is not learned
        "labels": [[5, 5, 5, 3], [7, 3, -100, -100], [3, -100, -100, -100]],
    }
