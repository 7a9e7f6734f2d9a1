"""Series with even steps: rows in order, none twice, none missing, or a sentence about where it is not so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.data.problems import SHARE, Tally
from glassformer.data.series_files import Given
from glassformer.data.timestamps import Step, even_step, later, written
from glassformer.errors import GlassformerError

Fill = Literal["refuse", "linear", "last", "ignore"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of all series end to end, once they are in order: N rows, C channels.

    values (N, C), stamps (N,), which (N,) the series each row is of, lines (N,) where it stood in the file.
    """

    file: str
    unit: str
    dated: bool
    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    which: NDArray[np.int32]
    lines: NDArray[np.int32]

    def taken(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Table:
        return replace(
            self,
            values=self.values[rows],
            stamps=self.stamps[rows],
            which=self.which[rows],
            lines=self.lines[rows],
        )

    def within(self) -> NDArray[np.bool_]:
        """(N - 1,), False where one series ends and the next begins."""
        return np.diff(self.which) == 0

    def at(self, row: int) -> str:
        """A row's place in the file."""
        return f"{self.unit} {self.lines[row]:,}"

    def stamp(self, row: int) -> str:
        return written(int(self.stamps[row]), self.dated)


@dataclass(frozen=True, kw_only=True)
class Evened:
    """Series whose every step is the same, or taken to be."""

    values: NDArray[np.float64]
    stamps: NDArray[np.int64]
    which: NDArray[np.int32]
    step: Step
    notes: tuple[str, ...]


def advice(given: Given) -> str:
    """What can be done about gaps."""
    return f"mend the {given.source}, or fill what is missing with {given.fill} linear or last"


def evened(table: Table, fill: Fill, tally: Tally, *, given: Given) -> Evened:
    """Check the steps of a table; mend them where `fill` asks for it. Rows left out go into the tally.

    given: by what a person asks for the filling.
    """
    notes: list[str] = []
    table = _in_order(table, notes)
    step, counted = even_step(table.stamps, table.dated, table.within())
    table, counted = _once(table, counted, fill, tally, notes, given)
    tally.good += len(counted)
    gone = np.where(table.within(), np.diff(counted), step.size)
    missing = np.maximum(gone // step.size - 1, 0)
    odd = np.flatnonzero(gone % step.size)
    if odd.size:
        told = (
            f"{table.at(odd[0] + 1)} ({table.stamp(odd[0] + 1)}) is not a whole number of steps ({step}) "
            f"after {table.at(odd[0])} ({table.stamp(odd[0])}), nor are {odd.size - 1:,} more"
        )
        if fill != "ignore":
            raise GlassformerError(f"{table.file} {told}; bring the rows to even steps")
        notes.append(f"{told}; taken as even")
    gaps, lost = np.flatnonzero(missing), int(missing.sum())
    if lost:
        told = (
            f"{lost:,} row{' is' if lost == 1 else 's are'} missing in {gaps.size:,} "
            f"gap{'s' * (gaps.size > 1)}, the first between {table.at(gaps[0])} ({table.stamp(gaps[0])}) and "
            f"{table.at(gaps[0] + 1)} ({table.stamp(gaps[0] + 1)}), where the step is {step}"
        )
        if fill == "refuse":
            raise GlassformerError(f"{table.file}: {told}; {advice(given)}")
        if fill != "ignore" and lost > SHARE * (lost + len(counted)):
            raise GlassformerError(f"{table.file}: {told}; that is more than {SHARE:.0%}, too many to fill")
        notes.append(f"{told}; {'taken as if there were none' if fill == 'ignore' else 'filled in'}")
    values, stamps, which = table.values, table.stamps, table.which
    if fill in ("linear", "last"):
        if lost:
            values, stamps, which = _widened(table, step, missing)
        values = _filled(values, which, fill, table.file)
    return Evened(values=values, stamps=stamps, which=which, step=step, notes=tuple(notes))


def _in_order(table: Table, notes: list[str]) -> Table:
    """Each series' rows together and forward in time."""
    if (np.diff(table.which) < 0).any():
        table = table.taken(np.argsort(table.which, kind="stable"))
    within, apart = table.within(), np.diff(table.stamps)
    if not within.any():
        raise GlassformerError(f"'{table.file}' has no series of two rows or more")
    back = np.flatnonzero(within & (apart < 0))
    if back.size == within.sum():
        notes.append("the newest rows stood first; they were turned round")
        return table.taken(np.lexsort((table.stamps, table.which)))
    if back.size:
        row = int(back[0])
        raise GlassformerError(
            f"{table.file} {table.at(row + 1)} ({table.stamp(row + 1)}) goes back in time after "
            f"{table.at(row)} ({table.stamp(row)}), and {back.size - 1:,} more do; sort the rows by time"
        )
    return table


def _once(
    table: Table, counted: NDArray[np.int64], fill: Fill, tally: Tally, notes: list[str], given: Given
) -> tuple[Table, NDArray[np.int64]]:
    """Every time stamp once: of rows with the same one, the first."""
    again = np.flatnonzero(table.within() & (np.diff(counted) == 0)) + 1
    if not again.size:
        return table, counted
    row = int(again[0])
    told = f"repeats the time stamp {table.stamp(row)} of {table.at(row - 1)}"
    if fill == "refuse":
        more = f", and {again.size - 1:,} more do the like" if again.size > 1 else ""
        raise GlassformerError(f"{table.file} {table.at(row)} {told}{more}; {advice(given)}")
    if fill == "ignore":
        notes.append(f"{table.at(row)} {told} ({again.size:,} such rows); taken as a step of its own")
        return table, counted
    for row in again.tolist():
        tally.add(int(table.lines[row]), f"repeats the time stamp {table.stamp(row)}")
    kept = np.ones(len(counted), bool)
    kept[again] = False
    return table.taken(kept), counted[kept]


def _widened(
    table: Table, step: Step, missing: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int32]]:
    """Room for the missing rows: values NaN, stamps as they would be."""
    places = np.concatenate(([0], np.cumsum(missing + 1)))
    rows = int(places[-1]) + 1
    values = np.full((rows, table.values.shape[1]), np.nan, np.float64)
    values[places] = table.values
    before = np.searchsorted(places, np.arange(rows), side="right") - 1  # the known row at or before each
    stamps = table.stamps[before]
    for row in np.setdiff1d(np.arange(rows), places):
        stamps[row] = later(int(stamps[row]), step, int(row - places[before[row]]))
    return values, stamps, table.which[before]


def _filled(
    values: NDArray[np.float64], which: NDArray[np.int32], fill: Fill, file: str
) -> NDArray[np.float64]:
    """No NaN left: on a straight line between the known values around, or the last known one again."""
    ends = np.flatnonzero(np.append(np.diff(which) != 0, True)) + 1
    for begin, end in zip(np.concatenate(([0], ends[:-1])), ends, strict=True):
        part = values[begin:end]
        for channel in np.flatnonzero(np.isnan(part).any(0)):
            column = part[:, channel]
            known = np.flatnonzero(~np.isnan(column))
            if not known.size:
                raise GlassformerError(f"'{file}' has a series without one value; leave it out")
            at = np.arange(len(column))
            if fill == "linear":
                part[:, channel] = np.interp(at, known, column[known])
            else:  # before the first known value there is no last one, so that one is taken
                part[:, channel] = column[known[np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]]
    return values
