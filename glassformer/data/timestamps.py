"""Time stamps as whole numbers, and the step from one to the next.

A stamp is a date, counted in microseconds, or a plain number (a year, a counter). The steps of a series are
even in one of three ways: so much time, so many months, or so many working days.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
_CLOCK = r"(?:[T ]+(\d{1,2})(?::(\d{2})(?::(\d{2})(?:[.,](\d{1,6})\d*)?)?)?)?\s*(Z|[+-]\d{2}:?\d{2})?"
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})(?:[-/.](\d{1,2}))?" + _CLOCK)
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})" + _CLOCK)  # with dots the day always comes first
_COMPACT = re.compile(r"(19|20)\d{6}")
_UNCLEAR = re.compile(r"\d{1,2}[-/]\d{1,2}[-/]\d{2,4}.*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = 86_400_000_000
_UNITS = (("week", 7 * _DAY), ("day", _DAY), ("hour", _DAY // 24), ("minute", 60_000_000))


class BadStampError(Exception):
    """Why a time stamp cannot be read: the end of a sentence that begins with its place."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """One time stamp: microseconds since 1970 if a date, else the number itself."""

    at: int
    dated: bool


def read_stamp(given: object) -> Stamp:
    """The stamp in a cell of a table.

    >>> read_stamp("1970/1/1 0:01").at, read_stamp("01.01.1970 00:01:00").at, read_stamp("1999").dated
    (60000000, 60000000, False)
    """
    if isinstance(given, datetime):
        return Stamp(_microseconds(given), True)
    if isinstance(given, date):
        return Stamp(_microseconds(datetime(given.year, given.month, given.day)), True)
    if isinstance(given, int) and not isinstance(given, bool):
        return Stamp(given, False)
    text = str("" if given is None else given).strip()
    try:
        if found := _YEAR_FIRST.fullmatch(text):
            year, month, day, *clock = found.groups()
            return Stamp(_microseconds(_joined(year, month, day or "1", *clock)), True)
        if found := _DAY_FIRST.fullmatch(text):
            day, month, year, *clock = found.groups()
            return Stamp(_microseconds(_joined(year, month, day, *clock)), True)
        if _COMPACT.fullmatch(text):
            return Stamp(_microseconds(datetime.strptime(text, "%Y%m%d")), True)
    except (ValueError, OverflowError) as error:
        raise BadStampError(f"has the time stamp '{text[:40]}', which is no date ({error})") from None
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return Stamp(int(text), False)
    if _UNCLEAR.fullmatch(text):
        raise BadStampError(
            f"has the time stamp '{text[:40]}', where day and month cannot be told apart; write 2024-12-31"
        )
    raise BadStampError(
        f"has the time stamp '{text[:40]}', which is no date" if text else "has no time stamp"
    )


def _joined(year: str, month: str, day: str, *clock: str | None) -> datetime:
    hour, minute, second, part, zone = clock
    offset = UTC
    if zone and zone != "Z":
        away = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        offset = timezone(-away if zone[0] == "-" else away)
    return datetime(
        *(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0)),
        microsecond=int((part or "0").ljust(6, "0")),
        tzinfo=offset,
    )


def _microseconds(when: datetime) -> int:
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def written(at: int, dated: bool, step: Step | None = None) -> str:
    """A stamp for people; the time of day where there is one, or where others of its series may have one.

    step: that of the series.

    >>> hour = Step(kind="time", size=3_600_000_000)
    >>> written(0, True), written(0, True, hour), written(3_600_000_000, True, hour)
    ('1970-01-01', '1970-01-01 00:00:00', '1970-01-01 01:00:00')
    """
    if not dated:
        return str(at)
    told = str(np.datetime64(at, "us").astype("M8[s]")).replace("T", " ")
    days = step is None or step.kind != "time" or step.size % _DAY == 0
    return told.removesuffix(" 00:00:00") if days else told


@dataclass(frozen=True, kw_only=True)
class Step:
    """How far apart the stamps of a series are.

    >>> str(Step(kind="time", size=900_000_000)), str(Step(kind="months", size=3))
    ('15 minutes', '3 months')
    """

    kind: Literal["time", "months", "working days", "numbers"]
    size: int

    def __str__(self) -> str:
        return self.times(1)

    def times(self, count: int) -> str:
        """So many steps, in words."""
        size = self.size * count
        if self.kind == "numbers":
            return str(size)
        if self.kind != "time":
            return f"{size} {self.kind if size != 1 else self.kind.removesuffix('s')}"
        for name, long in _UNITS:
            if size % long == 0:
                return f"{size // long:,} {name}{'s' * (size != long)}"
        return f"{size / 1e6:g} seconds"


def later(at: int, step: Step, count: int) -> int:
    """The stamp so many steps after another; of months, the last day stays the last.

    >>> written(later(read_stamp("2024-01-31").at, Step(kind="months", size=1), 1), True)
    '2024-02-29'
    """
    size = step.size * count
    if step.kind in ("time", "numbers"):
        return at + size
    day = np.datetime64(at // _DAY, "D")
    if step.kind == "working days":
        return int(np.busday_offset(day, size).astype(np.int64)) * _DAY + at % _DAY
    month = day.astype("M8[M]")
    gone = int((day - month.astype("M8[D]")).astype(np.int64))
    last = (day + 1).astype("M8[M]") != month
    ends = ((month + size + 1).astype("M8[D]") - 1).astype(np.int64)
    there = (month + size).astype("M8[D]").astype(np.int64) + gone
    return int(ends if last else min(there, ends)) * _DAY + at % _DAY


def even_step(stamps: Whole, dated: bool, within: NDArray[np.bool_]) -> tuple[Step, Whole]:
    """The step of most stamps, and the stamps counted so that it is the same everywhere: (rows,).

    `within` (rows - 1) is False where one series ends and the next begins.
    """
    apart = np.diff(stamps)[within]
    step = _commonest(apart[apart > 0])
    if not dated:
        return Step(kind="numbers", size=step), stamps
    if not (apart == step).all():
        for kind, count in _CALENDARS:
            counted = count(stamps, step)
            if counted is not None:
                apart = np.diff(counted)[within]
                return Step(kind=kind, size=_commonest(apart[apart > 0])), counted
    return Step(kind="time", size=step), stamps


def _commonest(apart: Whole) -> int:
    if not apart.size:
        return 1
    values, counts = np.unique(apart, return_counts=True)
    return int(values[counts.argmax()])


def _months(stamps: Whole, step: int) -> Whole | None:
    """Months since 1970, where all stamps are on one day of the month, or all on its last."""
    days = stamps // _DAY
    if step < 27 * _DAY or (stamps % _DAY != stamps[0] % _DAY).any():
        return None
    dates = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    day = (dates - months.astype("M8[D]")).astype(np.int64)
    last = (dates + 1).astype("M8[M]") != months
    return months.astype(np.int64) if (day == day[0]).all() or last.all() else None


def _working_days(stamps: Whole, step: int) -> Whole | None:
    """Working days since 1970, where there is one stamp a day and never one on a Saturday or Sunday."""
    days = stamps // _DAY
    if step != _DAY or (stamps % _DAY != stamps[0] % _DAY).any() or ((days + 3) % 7 >= 5).any():
        return None
    return np.asarray(np.busday_count(np.datetime64(0, "D"), days.astype("M8[D]")), np.int64)


_Calendar = tuple[Literal["months", "working days"], Callable[[Whole, int], Whole | None]]
_CALENDARS: tuple[_Calendar, ...] = (("months", _months), ("working days", _working_days))
