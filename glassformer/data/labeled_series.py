"""Read labeled time series, prepare them for a classifier, and augment them.

Formats: `.ts` (sktime, aeon, the UEA archive), tab- or space-separated rows without a header (the UCR
archive: the label, then the values), and tables with a header, wide (a row per series) or long (a row per
time step).
Letters: N series, T time steps, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from glassformer.data.examples import EqualLengths, augmentation
from glassformer.data.randomness import uniform
from glassformer.data.readers import UTF8, TableOptions, file_format, find_column, open_table, read_lines
from glassformer.data.row_errors import Invalid, StrictRowCounter
from glassformer.data.series import ID_NAMES, INDEX_NAMES, MISSING, TIME_NAMES, read_timestamp
from glassformer.data.sources import clean_label
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileProblemError,
    InvalidValueError,
    UnknownNameError,
)
from glassformer.schema import Settings

LABEL_NAMES = ("label", "class", "target", "y", "category", "class_label")
WARP_KNOTS = 4
_DRAWS = 6 + WARP_KNOTS  # random numbers per series, besides the noise
Values = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LabeledSeries:
    """Series of any lengths. values: (T, C) each, NaN where missing. names: of the channels, if known."""

    values: list[Values]
    labels: list[str] | None
    ids: list[str]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def channels(self) -> int:
        return self.values[0].shape[1]

    def select(self, rows: Rows) -> LabeledSeries:
        """Return some of the series."""
        labels = None if self.labels is None else [self.labels[n] for n in rows]
        values, ids = [self.values[n] for n in rows], [self.ids[n] for n in rows]
        return LabeledSeries(values=values, labels=labels, ids=ids, names=self.names)

    @classmethod
    def join(cls, parts: Mapping[str, LabeledSeries]) -> LabeledSeries:
        """Return the labeled series of several files, by path; they must have the same number of channels."""
        (first, one), *_ = parts.items()
        for path, part in parts.items():
            if part.channels != one.channels:
                reason = f"their series have {one.channels} and {part.channels} channels"
                raise ConflictError((first, path), reason)
        return cls(
            values=[values for part in parts.values() for values in part.values],
            labels=[label for part in parts.values() for label in part.labels or []],
            ids=[name for part in parts.values() for name in part.ids],
            names=one.names,
        )


def read_labeled_series(
    path: str | Path,
    label_column: str | None = None,
    time_column: str | None = None,
    value_columns: Sequence[str] | None = None,
    *,
    labeled: bool = True,
    **text: Unpack[TableOptions],
) -> LabeledSeries:
    """Read the series of a file.

    label_column, time_column, value_columns: columns of a table; None: detected.
    labeled: raise an error if there are no labels. text: how a text file is written.
    """
    path, encoding = Path(path), text.get("encoding", UTF8)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if suffixes[-1:] == [".ts"]:
        series = _read_ts(path, encoding)
    elif file_format(path) in ("plain", "tsv") and not _has_header(path, encoding):
        series = _read_rows(path, encoding)
    else:
        series = _read_table(path, label_column, time_column, value_columns, text)
    if labeled and series.labels is None:
        hint = f"name the column of labels; known names are {', '.join(LABEL_NAMES)}"
        raise FileProblemError(path, "has no labels", hint=hint)
    empty = next((n for n, values in enumerate(series.values) if np.isnan(values).all(0).any()), None)
    if empty is not None:
        raise FileProblemError(path, f"series {series.ids[empty]} has a channel without any value")
    return series


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield the number and content of each line that is neither blank nor a comment."""
    for number, line in enumerate(read_lines(path, encoding=encoding), 1):
        if isinstance(line, Invalid):
            raise FileProblemError(path, line.reason, number)
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _has_header(path: Path, encoding: str) -> bool:
    """Whether the first line has a cell after the first that is not a number."""
    _, line = next(_lines(path, encoding), (0, ""))
    return any(_number(cell) is None for cell in line.split()[1:])


def _number(cell: object) -> float | None:
    """Convert a cell to a number, NaN if it is missing, or None if it is text."""
    if cell is None or str(cell).strip().lower() in MISSING:
        return math.nan
    try:
        number = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else math.nan


def _numbers(cells: Sequence[object], path: Path, line: int) -> list[float]:
    numbers = [_number(cell) for cell in cells]
    if None in numbers:
        raise FileProblemError(path, f"{cells[numbers.index(None)]!r:.40} is not a number", line)
    return numbers  # type: ignore[return-value]


def _read_ts(path: Path, encoding: str) -> LabeledSeries:
    """Read a `.ts` file: channels separated by colons, values by commas, the label last."""
    values: list[Values] = []
    labels: list[str] = []
    has_labels, in_data = False, False
    for number, line in _lines(path, encoding):
        if not in_data:
            key, _, rest = line.lower().partition(" ")
            if key == "@timestamps" and rest.strip() == "true":
                raise FileProblemError(path, "has timestamps", number, hint="write the values alone")
            if key == "@classlabel":
                has_labels = rest.split()[:1] == ["true"]
            in_data = key == "@data"
            continue
        parts = line.split(":")
        if has_labels:
            labels.append(parts.pop().strip())
        channels = [_numbers(part.split(","), path, number) for part in parts]
        if not channels or (values and len(channels) != values[0].shape[1]):
            expected = f", not {values[0].shape[1]} as before" if values else ""
            raise FileProblemError(path, f"has {len(channels)} channels{expected}", number)
        block = np.full((max(map(len, channels)), len(channels)), np.nan)
        for n, channel in enumerate(channels):
            block[: len(channel), n] = channel
        values.append(block)
    if not values:
        raise EmptyInputError(f"file {path}", hint="the rows follow a line @data")
    return LabeledSeries(values=values, labels=labels if has_labels else None, ids=_numbered(values))


def _numbered(values: Sequence[object]) -> list[str]:
    return [str(n) for n in range(1, len(values) + 1)]


def _read_rows(path: Path, encoding: str) -> LabeledSeries:
    """Read rows of a label and values, separated by tabs or spaces; missing values at the end are padding."""
    values, labels = list[Values](), list[str]()
    for number, line in _lines(path, encoding):
        first, *cells = line.split()
        if len(cells) < 2:
            raise FileProblemError(path, "needs a label and at least two values", number)
        values.append(_without_padding(np.array(_numbers(cells, path, number))[:, None]))
        labels.append(_label(float(first) if _number(first) is not None else first, path, number))
    if not values:
        raise EmptyInputError(f"file {path}")
    return LabeledSeries(values=values, labels=labels, ids=_numbered(values))


def _label(cell: object, path: Path, line: int) -> str:
    if isinstance(cell, str) and _number(cell) is not None:
        cell = float(cell) if cell.strip() else cell
    label = clean_label(cell)
    if isinstance(label, Invalid):
        raise FileProblemError(path, f"the label {label.reason}", line)
    return label


def _without_padding(values: Values) -> Values:
    """Remove missing values at the end of a series."""
    known = np.flatnonzero(~np.isnan(values).all(1))
    return values[: known[-1] + 1] if known.size else values


def _read_table(
    path: Path,
    label_column: str | None,
    time_column: str | None,
    value_columns: Sequence[str] | None,
    text: TableOptions,
) -> LabeledSeries:
    table = open_table(path, **text)
    columns = table.head(1).header()
    for name in filter(None, (label_column, time_column, *(value_columns or ()))):
        if name not in columns:
            raise UnknownNameError("column", name, columns, where=str(path))
    label = label_column or find_column(columns, LABEL_NAMES)
    identity, time = find_column(columns, ID_NAMES), time_column or find_column(columns, TIME_NAMES)
    special = {label, identity, *((time,) if identity else ())}
    others = [name for name in columns if name not in special and name.lower() not in INDEX_NAMES]
    names = tuple(value_columns or others)
    if not names:
        raise FileProblemError(path, "has no columns of values")
    wanted = [*names, *filter(None, (label, identity, time if identity else None))]
    rows = []
    for line, cells in table.rows(wanted, StrictRowCounter(str(path))):
        numbers = _numbers(cells[: len(names)], path, line)
        rest = dict(zip(wanted[len(names) :], cells[len(names) :], strict=True))
        rows.append((line, numbers, rest))
    if not rows:
        raise EmptyInputError(f"file {path}", hint="it has a header and no rows")
    labels = None if label is None else [_label(rest[label], path, line) for line, _, rest in rows]
    if identity is None or time is None:
        values = [_without_padding(np.array(numbers)[:, None]) for _, numbers, _ in rows]
        ids = _numbered(rows) if identity is None else [str(rest[identity]) for _, _, rest in rows]
        return LabeledSeries(values=values, labels=labels, ids=ids)
    groups: dict[str, list[int]] = {}
    for n, (_, _, rest) in enumerate(rows):
        groups.setdefault(str(rest[identity]).strip(), []).append(n)
    values, chosen = [], []
    for name, members in groups.items():
        stamps = [read_timestamp(rows[n][2][time], path, rows[n][0]).at for n in members]
        ordered = [members[n] for n in np.argsort(stamps, kind="stable")]
        values.append(np.array([rows[n][1] for n in ordered]))
        if labels is not None:
            different = next((n for n in members if labels[n] != labels[members[0]]), None)
            if different is not None:
                problem = f"series {name} has the labels {labels[members[0]]} and {labels[different]}"
                raise FileProblemError(path, problem, rows[different][0])
            chosen.append(labels[members[0]])
    return LabeledSeries(values=values, labels=chosen if labels else None, ids=[*groups], names=names)


def resample(values: Values, length: int) -> Values:
    """Fill missing values linearly and stretch a series (T, C) to `length` steps by linear interpolation.

    >>> resample(np.array([[0.0], [np.nan], [2.0]]), 5)[:, 0].tolist()
    [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    steps = np.linspace(0, len(values) - 1, length)
    result = np.empty((length, values.shape[1]))
    for channel, column in enumerate(values.T):
        known = np.flatnonzero(~np.isnan(column))
        result[:, channel] = np.interp(steps, known, column[known])
    return result


def add_difference(values: Values) -> Values:
    """Append the first difference of each channel: (..., T, C) -> (..., T, 2C); it starts with 0.

    >>> add_difference(np.array([[1.0], [3.0]])).tolist()
    [[1.0, 0.0], [3.0, 2.0]]
    """
    return np.concatenate((values, np.diff(values, axis=-2, prepend=values[..., :1, :])), -1)


@dataclass(frozen=True, kw_only=True)
class SeriesPreparation:
    """Turn series into model inputs: one length, differences as extra channels, standardized.

    length: time steps of the input. difference: whether to append first differences.
    mean, std: of each channel of the input, in the training data.
    """

    length: int
    difference: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, series: Sequence[Values], *, length: int, difference: bool) -> SeriesPreparation:
        """Compute mean and standard deviation of the training series; constant channels are only shifted."""
        values = np.stack([resample(one, length) for one in series])
        inputs = add_difference(values) if difference else values
        std = inputs.std((0, 1))
        mean, std = inputs.mean((0, 1)), np.where(std > 0, std, 1.0)
        return cls(length=length, difference=difference, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    @property
    def channels(self) -> int:
        """Number of channels of a series, without differences."""
        return len(self.mean) // (2 if self.difference else 1)

    def check(self, series: Sequence[Values], name: str) -> None:
        """Raise unless every series has two steps and the channels of the training data."""
        for number, values in enumerate(series, 1):
            self.check_one(values, f"series {number} of {name}")

    def check_one(self, values: Values, name: str) -> None:
        """Raise unless a series has two steps and the channels of the training data."""
        if values.ndim != 2 or values.shape[1] != self.channels or len(values) < 2:
            expected = f"at least 2 steps of {self.channels} channels"
            raise InvalidValueError(name, f"{values.shape}", expected)

    def standardize(self, values: Values) -> NDArray[np.float32]:
        """Convert resampled series (N, T, C) to inputs (N, T, C or 2C)."""
        inputs = add_difference(values) if self.difference else values
        return ((inputs - np.array(self.mean)) / np.array(self.std)).astype(np.float32)

    def __call__(self, series: Sequence[Values]) -> NDArray[np.float32]:
        """Convert series of any lengths to inputs (N, T, C or 2C)."""
        return self.standardize(np.stack([resample(values, self.length) for values in series]))


@dataclass(frozen=True, kw_only=True)
class SeriesAugment(Settings):
    """Random augmentation of series, for training only; a masked span is set to the mean."""

    section = "data"

    jitter_std: float = augmentation("noise, relative to a channel's std", 0.03, "[0, inf)", "std")
    scale_std: float = augmentation("std of a random factor", 0.1, "[0, inf)")
    time_warp: float = augmentation("the local speed changes by up to exp(+-time_warp)", 0.1, "[0, inf)")
    max_shift: float = augmentation("maximum random shift in time", 0.0, "[0, 1)", "fraction of the length")
    max_mask: float = augmentation("longest masked span", 0.1, "[0, 1)", "fraction of the length")

    def augment(
        self, values: Values, preparation: SeriesPreparation, rows: Rows, *, seed: int, epoch: int
    ) -> NDArray[np.float32]:
        """Augment and standardize resampled series (N, T, C) with these row numbers."""
        count, steps, channels = values.shape
        draws = uniform(seed, epoch, rows, _DRAWS)  # (N, draws)
        if self.time_warp or self.max_shift:
            values = self._move(values, draws[:, :1], draws[:, 6:])
        mean, std = (np.array(part)[:channels] for part in (preparation.mean, preparation.std))
        if self.scale_std or self.jitter_std:
            noise = _normal(uniform(seed + 1, epoch, rows, 2 * (steps + 1) * channels))
            noise = noise.reshape(count, steps + 1, channels)
            values = mean + (values - mean) * (1 + self.scale_std * noise[:, :1])
            values = values + self.jitter_std * std * noise[:, 1:]
        inputs = preparation.standardize(values)
        if self.max_mask:
            span = draws[:, 1:2] * self.max_mask * steps
            start = draws[:, 2:3] * (steps - span)
            at = np.arange(steps)
            inputs[(at >= start) & (at < start + span)] = 0.0
        return inputs

    def _move(self, values: Values, shift: Values, knots: Values) -> Values:
        """Shift and warp the time axis. shift: (N, 1), knots: (N, K), random numbers in [0, 1)."""
        count, steps, _ = values.shape
        axis, ends = np.arange(steps), np.linspace(0, steps - 1, knots.shape[1])
        speed = np.exp(
            (2 * np.stack([np.interp(axis, ends, row) for row in knots]) - 1) * self.time_warp
        )  # (N, T)
        time = np.cumsum(speed, 1) - speed[:, :1]
        time = time / time[:, -1:] * (steps - 1) + (2 * shift - 1) * self.max_shift * steps
        time = np.clip(time, 0, steps - 1)
        before = np.minimum(time.astype(np.int64), steps - 2)
        weight = (time - before)[..., None]
        series = np.arange(count)[:, None]
        return values[series, before] * (1 - weight) + values[series, before + 1] * weight


def _normal(draws: Values) -> Values:
    """Convert uniform numbers (N, 2K) to standard normal ones (N, K), by the Box-Muller transform."""
    half = draws.shape[1] // 2
    return np.sqrt(-2 * np.log1p(-draws[:, :half])) * np.cos(2 * np.pi * draws[:, half:])


@dataclass(kw_only=True)
class SeriesExamples(EqualLengths):
    """Labeled series as model inputs. values: resampled, (N, T, C). augment: in training only."""

    values: Values
    labels: NDArray[np.int64]
    preparation: SeriesPreparation
    augment: SeriesAugment | None = None
    seed: int = 0
    _inputs: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._inputs = self.preparation.standardize(self.values)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Rows, *, epoch: int) -> dict[str, NDArray[np.generic]]:
        """Return inputs (B, T, channels) and labels (B,)."""
        if self.augment is None:
            inputs = self._inputs[rows]
        else:
            values, seed = self.values[rows], self.seed
            inputs = self.augment.augment(values, self.preparation, rows, seed=seed, epoch=epoch)
        return {"inputs": inputs, "labels": self.labels[rows]}


def split_by_label(labels: Sequence[str], fraction: float, *, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation, the fraction of each label; both get every label if possible.

    >>> train, valid = split_by_label(["a", "b"] * 10, 0.2, seed=1)
    >>> len(train), len(valid)
    (16, 4)
    """
    names, held_out = np.array(labels), np.zeros(len(labels), bool)
    draws = uniform(seed, 0, np.arange(len(labels)), 1)[:, 0]
    for name in dict.fromkeys(labels):
        rows = np.flatnonzero(names == name)
        count = min(len(rows) - 1, max(1, round(fraction * len(rows))))
        held_out[rows[np.argsort(draws[rows])[:count]]] = True
    if not held_out.any():
        raise EmptyInputError("validation split", hint="use at least two series per label")
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
