"""Parse and format timestamps, stored as integers, and find the step between them.

A timestamp is a date, in microseconds since 1970, or a plain number (a year, a counter). The step of a
series is constant in one of three units: time, months or working days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.messages import plural

Integers = NDArray[np.int64]
_CLOCK = r"(?:[T ]+(?P<hour>\d{1,2})(?P<rest>\D.*)?)?"
_YEAR_FIRST = re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})(?:[-/.](?P<day>\d{1,2}))?" + _CLOCK)
_DAY_FIRST = re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})" + _CLOCK)
_COMPACT = re.compile(r"(?P<year>(?:19|20)\d{2})(?P<month>\d{2})(?P<day>\d{2})" + _CLOCK)
_AMBIGUOUS = re.compile(r"\d{1,2}[-/]\d{1,2}[-/]\d{2,4}.*")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000
_UNITS = (("week", 7 * _DAY), ("day", _DAY), ("hour", _DAY // 24), ("minute", 60_000_000))


class InvalidTimestampError(Exception):
    """A timestamp cannot be parsed; the message says why."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A timestamp: `at` is in microseconds since 1970 if `dated`, else a plain number."""

    at: int
    dated: bool


def parse_timestamp(cell: object) -> Timestamp:
    """Parse the timestamp in a cell of a table. A date with dots may start with the day: 31.12.2024.

    >>> parse_timestamp("1970/1/1 0:01").at, parse_timestamp("01.01.1970 00:01:00").at
    (60000000, 60000000)
    >>> parse_timestamp("1999").dated
    False
    """
    if isinstance(cell, datetime):
        return Timestamp(_microseconds(cell), True)
    if isinstance(cell, date):
        return Timestamp(_microseconds(datetime(cell.year, cell.month, cell.day)), True)
    if isinstance(cell, int) and not isinstance(cell, bool):
        return Timestamp(cell, False)
    text = str("" if cell is None else cell).strip()
    match = _YEAR_FIRST.fullmatch(text) or _DAY_FIRST.fullmatch(text) or _COMPACT.fullmatch(text)
    if match:
        date_part = f"{match['year']}-{match['month']:0>2}-{match['day'] or 1:0>2}"
        clock = f"{match['hour'] or 0:0>2}{(match['rest'] or '').replace(' ', '')}"
        try:
            return Timestamp(_microseconds(datetime.fromisoformat(f"{date_part}T{clock}")), True)
        except ValueError as error:
            raise InvalidTimestampError(f"{text!r:.40} is not a date ({error})") from None
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return Timestamp(int(text), False)
    if _AMBIGUOUS.fullmatch(text):
        raise InvalidTimestampError(f"{text!r:.40} has an ambiguous day and month; write 2024-12-31")
    raise InvalidTimestampError(f"{text!r:.40} is not a timestamp")


def _microseconds(when: datetime) -> int:
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class TimeStep:
    """The time between the rows of a series.

    >>> str(TimeStep(kind="time", size=900_000_000)), str(TimeStep(kind="months", size=3))
    ('15 minutes', '3 months')
    """

    kind: Literal["time", "months", "working days", "numbers"]
    size: int

    def __str__(self) -> str:
        return self.times(1)

    def times(self, count: int) -> str:
        """Format the duration of `count` steps."""
        size = self.size * count
        if self.kind == "numbers":
            return str(size)
        if self.kind != "time":
            return f"{size} {self.kind if size != 1 else self.kind.removesuffix('s')}"
        for name, unit in _UNITS:
            if size % unit == 0:
                return f"{size // unit:,} {plural(name, size // unit)}"
        return f"{size / 1e6:g} seconds"


def format_timestamp(at: int, dated: bool, step: TimeStep | None = None) -> str:
    """Format a timestamp; omit the time of day if it is midnight and `step` is a multiple of a day or None.

    dated: whether `at` is in microseconds since 1970; otherwise it is formatted as a plain number.

    >>> hour = TimeStep(kind="time", size=3_600_000_000)
    >>> format_timestamp(0, True), format_timestamp(0, True, hour)
    ('1970-01-01', '1970-01-01 00:00:00')
    """
    if not dated:
        return str(at)
    text = str(np.datetime64(at, "us").astype("M8[s]")).replace("T", " ")
    whole_days = step is None or step.kind != "time" or step.size % _DAY == 0
    return text.removesuffix(" 00:00:00") if whole_days else text


def advance(at: int, step: TimeStep, count: int) -> int:
    """Return the timestamp `count` steps later; in steps of months, the last day of a month stays the last.

    >>> format_timestamp(advance(parse_timestamp("2024-01-31").at, TimeStep(kind="months", size=1), 1), True)
    '2024-02-29'
    """
    size = step.size * count
    if step.kind in ("time", "numbers"):
        return at + size
    day = np.datetime64(at // _DAY, "D")
    if step.kind == "working days":
        return int(np.busday_offset(day, size).astype(np.int64)) * _DAY + at % _DAY
    month = day.astype("M8[M]")
    offset = int((day - month.astype("M8[D]")).astype(np.int64))
    is_last = (day + 1).astype("M8[M]") != month
    last = ((month + size + 1).astype("M8[D]") - 1).astype(np.int64)
    same = (month + size).astype("M8[D]").astype(np.int64) + offset
    return int(last if is_last else min(same, last)) * _DAY + at % _DAY


def find_step(stamps: Integers, dated: bool, same_series: NDArray[np.bool_]) -> tuple[TimeStep, Integers]:
    """Return the most common step, and the timestamps in units in which it is constant: (rows,).

    dated: whether the stamps are dates. same_series: whether each row and the next are of the same series,
    (rows - 1,).
    """

    def most_common(counted: Integers) -> int:
        steps = np.diff(counted)[same_series]
        values, counts = np.unique(steps[steps > 0], return_counts=True)
        return int(values[counts.argmax()]) if values.size else 1

    step = most_common(stamps)
    if not dated:
        return TimeStep(kind="numbers", size=step), stamps
    if not (np.diff(stamps)[same_series] == step).all():
        if (counted := _count_months(stamps, step)) is not None:
            return TimeStep(kind="months", size=most_common(counted)), counted
        if (counted := _count_working_days(stamps, step)) is not None:
            return TimeStep(kind="working days", size=most_common(counted)), counted
    return TimeStep(kind="time", size=step), stamps


def _count_months(stamps: Integers, step: int) -> Integers | None:
    """Return months since 1970 if all timestamps are on the same, or all on the last, day of the month."""
    days = stamps // _DAY
    if step < 27 * _DAY or (stamps % _DAY != stamps[0] % _DAY).any():
        return None
    dates = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    day = (dates - months.astype("M8[D]")).astype(np.int64)
    last = (dates + 1).astype("M8[M]") != months
    return months.astype(np.int64) if (day == day[0]).all() or last.all() else None


def _count_working_days(stamps: Integers, step: int) -> Integers | None:
    """Return working days since 1970 if the step is a day and no timestamp is on a Saturday or Sunday."""
    days = stamps // _DAY
    if step != _DAY or (stamps % _DAY != stamps[0] % _DAY).any() or ((days + 3) % 7 >= 5).any():
        return None
    return np.asarray(np.busday_count(np.datetime64(0, "D"), days.astype("M8[D]")), np.int64)


CalendarFeature = Literal["hour", "day_of_week", "day_of_month", "day_of_year", "month"]


def calendar_features(stamps: Integers, names: Sequence[CalendarFeature]) -> NDArray[np.float64]:
    """Return sine and cosine of calendar features of dates (N,), in microseconds: (N, 2 * names).

    >>> calendar_features(np.array([6 * 3_600_000_000]), ["hour"]).round(3).tolist()
    [[1.0, 0.0]]
    """
    dates = stamps.astype("datetime64[us]")
    days, months, years = (dates.astype(f"datetime64[{unit}]") for unit in "DMY")
    number = days.astype(np.int64)
    parts = {
        "hour": (stamps % _DAY) / _DAY,
        "day_of_week": ((number + 3) % 7) / 7,  # 1970-01-01 was a Thursday
        "day_of_month": (number - months.astype("datetime64[D]").astype(np.int64)) / 31,
        "day_of_year": (number - years.astype("datetime64[D]").astype(np.int64)) / 366,
        "month": (months.astype(np.int64) % 12) / 12,
    }
    angles = 2 * np.pi * np.stack([parts[name] for name in names], 1)
    return np.stack((np.sin(angles), np.cos(angles)), 2).reshape(len(stamps), -1)
