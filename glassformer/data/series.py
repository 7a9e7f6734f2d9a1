"""Series of numbers over time: read from a table, checked, and held as one array.

Letters: S series, N rows of all series end to end, C channels.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glassformer.data.problems import SHARE, Problems
from glassformer.data.series_files import KEYS, Given, Layout, SeriesFile, open_series_file
from glassformer.data.series_steps import Fill, Table, advice, evened
from glassformer.data.timestamps import BadStampError, Step, read_stamp, written
from glassformer.errors import GlassformerError

Floats = NDArray[np.float64]
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "?"})
_MOST_WORDS = 0.5  # more of a column than this in words, and it is no column of numbers


@dataclass(frozen=True, kw_only=True)
class SeriesSet:
    """One or many series with the same channels and the same step.

    values: (N, C), in double precision, which keeps a swing upon a large offset
    stamps: (N,), as `timestamps` counts them    ends: (S,), where each series ends
    ids: the series' names    names: the channels'    notes: what a person should know of them
    """

    values: Floats
    stamps: NDArray[np.int64]
    ends: NDArray[np.int64]
    ids: tuple[str, ...]
    names: tuple[str, ...]
    step: Step
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """Where each series begins: (S,)."""
        return np.concatenate(([0], self.ends[:-1])).astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many rows each series has: (S,)."""
        return self.ends - self.begins

    def series(self, number: int) -> Floats:
        """The values of one series: (rows, C)."""
        return self.values[int(self.begins[number]) : int(self.ends[number])]

    def when(self, row: int) -> str:
        """The time stamp of a row of all series end to end."""
        return written(int(self.stamps[row]), self.step.kind != "numbers")


def read_series(
    path: str | Path,
    *,
    problems: Problems,
    time: str | None = None,
    target: str | Sequence[str] | None = None,
    fill: Fill = "refuse",
    given: Given = KEYS,
) -> SeriesSet:
    """The series in a CSV or Parquet file, wide (a column a channel) or long (unique_id, ds, y).

    time: the column of time stamps.    target: the column or columns of values; all without it.
    fill: what becomes of missing values and gaps: an error, a straight line across, the last value again,
    or ("ignore", for gaps and repeated stamps alone) the rows as they stand, as if evenly spaced.
    given: by what a person says all this, for the sentences about what is wrong.
    """
    file = open_series_file(path, given)
    layout = file.layout(time, [target] if isinstance(target, str) else target, given)
    rows = _Rows(file, layout)
    rows.read()
    table = rows.table()
    notes = rows.judged(table, fill, given)
    even = evened(table, fill, problems.begin(path, unit=file.unit), given=given)
    names = layout.values
    first = even.values[0]
    still = [name for n, name in enumerate(names) if (even.values[:, n] == first[n]).all()]
    if still:
        notes += (f"column '{still[0]}'{f' (and {len(still) - 1} more)' * (len(still) > 1)} never changes",)
    return SeriesSet(
        values=even.values,
        stamps=even.stamps,
        ends=np.flatnonzero(np.append(np.diff(even.which) != 0, True)).astype(np.int64) + 1,
        ids=tuple(rows.ids),
        names=names,
        step=even.step,
        notes=(*even.notes, *notes),
    )


class _Rows:
    """The rows of a file, read into arrays that grow."""

    def __init__(self, file: SeriesFile, layout: Layout) -> None:
        self.file, self.layout = file, layout
        self.ids: dict[str, int] = {}
        self.dated: bool | None = None
        self._values, self._stamps = array("d"), array("q")
        self._which, self._lines = array("i"), array("i")
        self._words: dict[int, tuple[int, int, str]] = {}  # by column: how many, and the first one's line

    def read(self) -> None:
        long = self.layout.series is not None
        columns = [self.layout.time, *([str(self.layout.series)] if long else []), *self.layout.values]
        name = Path(self.file.path).name.split(".")[0]
        for line, cells in self.file.rows(columns):
            self._stamps.append(self._stamp(line, cells[0]))
            self._lines.append(line)
            self._which.append(self.ids.setdefault(str(cells[1]).strip() if long else name, len(self.ids)))
            numbers = cells[1 + long :]
            try:
                self._values.extend(list(map(float, numbers)))  # type: ignore[arg-type]
            except (ValueError, TypeError):
                self._values.extend([self._number(line, n, cell) for n, cell in enumerate(numbers)])

    def _stamp(self, line: int, cell: object) -> int:
        try:
            stamp = read_stamp(cell)
        except BadStampError as error:
            raise GlassformerError(f"{self.file.path} {self.file.unit} {line:,} {error}") from None
        if self.dated is None:
            self.dated = stamp.dated
        elif self.dated != stamp.dated:
            raise GlassformerError(
                f"{self.file.path} {self.file.unit} {line:,} has the time stamp '{cell!s:.40}', but those "
                f"before are {'dates' if self.dated else 'numbers'}"
            )
        return stamp.at

    def _number(self, line: int, column: int, cell: object) -> float:
        try:
            return float(cell)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            text = str("" if cell is None else cell).strip()
            if text.lower() not in _MISSING:
                count, first, word = self._words.get(column, (0, line, text))
                self._words[column] = (count + 1, first, word)
            return math.nan

    def table(self) -> Table:
        count = len(self._stamps)
        if count < 2:
            raise GlassformerError(f"'{self.file.path}' has {count} row; a series needs at least two")
        return Table(
            file=str(self.file.path),
            unit=self.file.unit,
            dated=bool(self.dated),
            values=np.frombuffer(self._values, np.float64).reshape(count, -1),
            stamps=np.frombuffer(self._stamps, np.int64),
            which=np.frombuffer(self._which, np.int32),
            lines=np.frombuffer(self._lines, np.int32),
        )

    def judged(self, table: Table, fill: Fill, given: Given) -> tuple[str, ...]:
        """Every value a finite number, or what is to be said of those that are not."""
        bad = ~np.isfinite(table.values)  # (N, C)
        if not bad.any():
            return ()
        for column, (count, line, word) in self._words.items():
            if count > _MOST_WORDS * len(bad):
                raise GlassformerError(
                    f"column '{self.layout.values[column]}' of '{table.file}' holds words ('{word[:40]}' in "
                    f"{table.unit} {line:,}); name the columns of numbers with {given.columns}"
                )
        row, column = (int(n) for n in np.argwhere(bad)[0])
        _, line, word = self._words.get(column, (0, 0, ""))
        what = f"has '{word[:40]}'" if line == table.lines[row] else "has no finite value"
        others = int(bad.sum()) - 1
        values = "value is" if others == 1 else "values are"
        told = f"{table.file} {table.at(row)} {what} in column '{self.layout.values[column]}'"
        told += f", and {others:,} more {values} missing or not numbers" if others else ""
        if fill in ("refuse", "ignore"):
            raise GlassformerError(f"{told}; {advice(given)}")
        share = bad.mean(0)
        if share.max() > SHARE:
            raise GlassformerError(
                f"{share.max():.0%} of column '{self.layout.values[int(share.argmax())]}' of '{table.file}' "
                f"is missing, more than {SHARE:.0%}; leave the column out"
            )
        table.values[bad] = np.nan  # the infinite ones too, so that they are filled
        return (f"{told}; filled in",)
