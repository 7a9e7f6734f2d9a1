"""Time series from tables, and errors for tables that are uneven, incomplete or not numeric."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.labeled_series import read_labeled_series
from glassformer.data.row_errors import RowErrors
from glassformer.data.series import SeriesSet, read_series
from glassformer.data.timestamps import (
    InvalidTimestampError,
    TimeStep,
    advance,
    format_timestamp,
    parse_timestamp,
)
from glassformer.errors import EmptyInputError, FileMissingError, FileProblemError, UnknownNameError

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


def read(tmp_path: Path, text: str | bytes, name: str = "x.csv", **options: Any) -> SeriesSet:
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return read_series(tmp_path / name, errors=options.pop("errors", RowErrors()), **options)


def hours(count: int, *, leave_out: tuple[int, ...] = ()) -> list[str]:
    start = datetime(2024, 2, 28, 20)
    return [str(start + timedelta(hours=n)) for n in range(count) if n not in leave_out]


def table(stamps: list[str], *columns: list[Any], header: str = "date,a,b") -> str:
    rows = zip(stamps, *columns, strict=True)
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


@pytest.mark.parametrize("between", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_wide_table_is_one_series_with_channels(tmp_path: Path, between: str, end: str, name: str) -> None:
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    text = table(hours(30), values[:, 0].tolist(), values[:, 1].tolist())
    series = read(tmp_path, "\ufeff" + text.replace(",", between).replace("\n", end), name)
    assert (series.values == values).all() and series.values.dtype == np.float64
    assert series.names == ("a", "b") and series.ids == ("x",) and len(series) == 1
    assert str(series.step) == "1 hour" and series.timestamp(5) == "2024-02-29 01:00:00"
    assert series.lengths.tolist() == [30] and len(series.notes) == (between == ";")  # it is reported


def test_long_table_is_many_series_in_any_row_order(tmp_path: Path) -> None:
    rows = [(f"s{n % 3}", n // 3 + 1, 10 * (n % 3) + n // 3, 5) for n in range(15)]
    lines = [f"{name},{at},{value},{other}" for name, at, value, other in rows]
    mixed = read(tmp_path, "unique_id,ds,y,z\n" + "\n".join(lines))
    apart = read(tmp_path, "unique_id,ds,y,z\n" + "\n".join(sorted(lines)))
    for series in (mixed, apart):
        assert series.ids == ("s0", "s1", "s2") and series.names == ("y",)
        assert [series.series(n)[:, 0].tolist() for n in range(3)] == [
            [10 * n + k for k in range(5)] for n in range(3)
        ]
    assert mixed.step == TimeStep(kind="numbers", size=1) and mixed.timestamp(4) == "5"
    both = read(tmp_path, "id,timestamp,target,z\n" + "\n".join(lines), target=["target", "z"])
    assert both.names == ("target", "z") and both.values.shape == (15, 2)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("options", [{}, {"delimiter": "GIVEN", "decimal": ","}])
def test_decimal_commas_are_read(tmp_path: Path, delimiter: str, options: dict[str, str]) -> None:
    values = np.random.default_rng(1).normal(size=(30, 2)).round(3) * 10
    rows = [
        f"{stamp}{delimiter}{a:.3f}{delimiter}{b:.3f}".replace(".", ",")
        for stamp, (a, b) in zip(hours(30), values, strict=True)
    ]
    text = "\n".join([delimiter.join(("date", "a, C", "b")), *rows]) + "\n"
    given = {name: delimiter if value == "GIVEN" else value for name, value in options.items()}
    series = read(tmp_path, text, **given)
    assert series.names == ("a, C", "b") and np.allclose(series.values, values, rtol=0, atol=1e-9)
    assert any("comma" in note for note in series.notes) == (not options)
    with pytest.raises(FileProblemError):
        read(tmp_path, text, delimiter=delimiter, decimal=".")
    labeled = "label;x0;x1;x2\n" + "".join(f"{n % 2};{n},5;1,25;-2\n" for n in range(6))
    (tmp_path / "labeled.csv").write_text(labeled)
    (first, *_) = read_labeled_series(tmp_path / "labeled.csv").values
    assert first[:, 0].tolist() == [0.5, 1.25, -2.0]


def test_excel_workbook_is_one_series(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["date", "a", "b", None])
    for n in range(30):
        book.active.append([datetime(2024, 2, 28, 20) + timedelta(hours=n), n / 8, n if n != 4 else None])
    book.save(tmp_path / "x.xlsx")
    series = read_series(tmp_path / "x.xlsx", errors=RowErrors(), fill="linear")
    assert series.names == ("a", "b") and str(series.step) == "1 hour"
    assert series.values.tolist() == [[n / 8, n] for n in range(30)]
    (tmp_path / "broken.xlsx").write_bytes((tmp_path / "x.xlsx").read_bytes()[:-400])
    with pytest.raises(FileProblemError):
        read_series(tmp_path / "broken.xlsx", errors=RowErrors())


def test_columns_can_be_chosen_and_row_numbers_are_not_a_channel(tmp_path: Path) -> None:
    text = ",when,a,city,b\n0,2024-01-01,1,Rome,4\n1,2024-01-02,2,Oslo,5\n2,2024-01-03,3,Lima,6\n"
    series = read(tmp_path, text, time="when", target=["b", "a"])
    assert series.names == ("b", "a") and series.values.tolist() == [[4, 1], [5, 2], [6, 3]]
    numbers = read(tmp_path, text, time="when")
    assert numbers.names == ("a", "b") and numbers.values.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert len(numbers.notes) == 1 and "city" in numbers.notes[0]
    with pytest.raises(FileProblemError) as caught:
        read(tmp_path, text, time="when", target=["a", "city"])
    assert caught.value.line == 2
    sparse = read(tmp_path, text.replace("Rome", "").replace("Oslo", ""), time="when")
    assert sparse.names == ("a", "b") and sparse.notes == numbers.notes  # empty cells are not numbers
    with pytest.raises(UnknownNameError):
        read(tmp_path, text, target="c")
    assert read(tmp_path, text.replace("city", "x").replace(",when", ",date"), target="a").names == ("a",)


def test_rows_without_a_time_column_are_numbered(tmp_path: Path) -> None:
    for text, names in (
        ("y\n5\n7\n6\n", ("y",)),
        ("sales,price\n5,1\n7,2\n9,3\n", ("sales", "price")),  # increasing values are not step numbers
        ("t,y\n3,5\n1,7\n2,6\n", ("t", "y")),
    ):
        series = read(tmp_path, text)
        assert series.names == names and series.values[0, -1] in (5, 1)
        assert series.stamps.tolist() == [1, 2, 3] and len(series.notes) == 1
    long = read(tmp_path, "id,y\na,1\nb,5\na,2\nb,6\n")
    assert long.ids == ("a", "b") and long.stamps.tolist() == [1, 2, 1, 2]
    for text in ("year,y\n1999,5\n2000,7\n", "y,when\n5,2024-01-01\n7,2024-01-02\n"):
        series = read(tmp_path, text)
        assert series.names == ("y",) and series.notes == ()


def test_other_encodings_are_read(tmp_path: Path) -> None:
    text = "date,판매,가게\n2024-01-01,1,2\n2024-01-02,3,4\n"
    assert read(tmp_path, text.encode("cp949"), encoding="cp949").names == ("판매", "가게")
    path = tmp_path / "labels.csv"
    path.write_bytes("a,b,c,label\n1,2,3,좋음\n3,2,1,나쁨\n".encode("cp949"))
    assert read_labeled_series(path, encoding="cp949").labels == ["좋음", "나쁨"]


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stamps = [datetime(2024, 1, 1) + timedelta(minutes=15 * n) for n in range(12)]
    columns = {"ts": stamps, "y": [1.0, 2.0, None, *map(float, range(4, 13))]}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    series = read_series(tmp_path / "x.parquet", time="ts", fill="linear", errors=RowErrors())
    assert series.values[:, 0].tolist() == list(range(1, 13)) and str(series.step) == "15 minutes"
    with pytest.raises(FileProblemError) as caught:
        read_series(tmp_path / "x.parquet", time="ts", errors=RowErrors())
    assert caught.value.line == 3


def test_latin1_header_is_read_but_latin1_values_are_an_error(tmp_path: Path) -> None:
    text = table(hours(3), [1, 2, 3], [4, 5, 6], header="date,T (°C),PAR (µmol)")
    assert read(tmp_path, text.encode("latin-1")).names == ("T (°C)", "PAR (µmol)")
    with pytest.raises(FileProblemError) as caught:
        read(tmp_path, text.replace(",5", ",5µ").encode("latin-1"))
    assert caught.value.line == 3


STEPS = {
    "months": ([str(date(2023 + n // 12, n % 12 + 1, 1)) for n in range(20)], "1 month"),
    "quarter ends": (["2023-03-31", "2023-06-30", "2023-09-30", "2023-12-31", "2024-03-31"], "3 months"),
    "working days": (
        [str(date(2024, 1, 1) + timedelta(days=n)) for n in range(30) if n % 7 < 5],
        "1 working day",
    ),
    "weeks": ([str(date(2024, 1, 1) + timedelta(weeks=n)) for n in range(9)], "1 week"),
    "years": (["1999", "2000", "2001"], "1"),
    "slashes": (["1990/1/1 0:00", "1990/1/2 0:00", "1990/1/3 0:00"], "1 day"),
    "hours": (["2024-02-29T22", "2024-02-29 23", "2024-03-01T00"], "1 hour"),
    "dots": (["30.12.2009 00:10:00", "31.12.2009 00:10:00", "01.01.2010 00:10:00"], "1 day"),
    "zones": (["2024-03-31T01:30+01:00", "2024-03-31T03:00:00+02:00", "2024-03-31T01:30:00Z"], "30 minutes"),
    "fractions": (
        ["2024-01-01 00:00:00.0", "2024-01-01 00:00:00.250", "2024-01-01 00:00:00.5"],
        "0.25 seconds",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_time_step_is_detected(tmp_path: Path, name: str) -> None:
    stamps, step = STEPS[name]
    count = list(range(len(stamps)))
    series = read(tmp_path, table(stamps, count, count))
    assert str(series.step) == step and series.values[:, 0].tolist() == count
    for row in range(len(stamps) - 1):  # advancing from any row gives the next
        assert advance(int(series.stamps[row]), series.step, 1) == series.stamps[row + 1]


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda when: when.replace(microsecond=0)))
def test_timestamp_round_trip(when: datetime) -> None:
    stamp = parse_timestamp(str(when))
    assert stamp == parse_timestamp(when) == parse_timestamp(when.isoformat() + "Z")
    assert format_timestamp(stamp.at, True) == str(when).removesuffix(" 00:00:00")
    assert stamp.at == int(np.datetime64(when, "us").astype(np.int64))


@pytest.mark.parametrize(
    "text", ["", "soon", "2024-13-01", "2023-02-29", "01/02/2024", "3.5", "2024-01-01 25:00"]
)
def test_invalid_timestamp_is_an_error(text: str) -> None:
    with pytest.raises(InvalidTimestampError):
        parse_timestamp(text)


A, B = list(range(8)), list(range(8, 16))
# The line that the error names; None if it concerns the whole file.
BAD: dict[str, tuple[str | bytes, int | None]] = {
    "no header": (table(hours(8), A, B).split("\n", 1)[1], 1),
    "time alone": ("date\n2024-01-01\n2024-01-02\n", None),
    "repeated column": ("date,a,a\n2024-01-01,1,2\n", 1),
    "short row": (table(hours(8), A, B).replace(",9", ""), 3),
    "bad timestamp": (table([*hours(7), "noon"], A, B), 9),
    "ambiguous timestamp": (table(["01/02/2024"] * 8, A, B), 2),
    "mixed timestamps": (table([*hours(7), "7"], A, B), 9),
    "repeated timestamp": (table([*hours(7), hours(7)[-1]], A, B), 9),
    "unsorted": (table([hours(8)[1], hours(8)[0], *hours(8)[2:]], A, B), 3),
    "gap": (table(hours(10, leave_out=(4, 5)), A, B), 6),
    "uneven": (table([*hours(7), "2024-02-29 03:20:00"], A, B), 9),
    "text": (table(hours(8), [*A[:6], "x", 7], B), 8),
    "nan": (table(hours(8), A, ["nan", "", *B[2:]]), 2),
    "infinite": (table(hours(8), A, [*B[:7], "1e310"]), 9),
    "columns of text": (table(hours(8), ["Rome"] * 8, ["Oslo"] * 8), 2),
    "repeated in one of many": ("unique_id,ds,y\na,1,2\nb,1,3\na,1,2\nb,2,4\n", 4),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_table_raises_an_error_with_its_line(tmp_path: Path, name: str) -> None:
    text, line = BAD[name]
    with pytest.raises(FileProblemError) as caught:
        read(tmp_path, text)
    assert caught.value.line == line and "x.csv" in str(caught.value.path)


def test_missing_empty_and_truncated_files_are_errors(tmp_path: Path) -> None:
    for text in ("", "date,a,b\n"):
        with pytest.raises(EmptyInputError):
            read(tmp_path, text)
    with pytest.raises(FileMissingError):
        read_series(tmp_path / "no.csv", errors=RowErrors())
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(table(hours(8), A, B).encode())[:-9])
    with pytest.raises(FileProblemError):
        read_series(tmp_path / "x.csv.gz", errors=RowErrors())


def test_gaps_and_missing_values_are_filled_on_request(tmp_path: Path) -> None:
    stamps = hours(42, leave_out=(4, 5))
    a = [float(n) for n in range(42) if n not in (4, 5)]
    b = [str(10 * n) for n in range(40)]
    b[0], b[20] = "", "?"
    text = table(stamps, a, b)
    line = read(tmp_path, text, fill="linear")
    assert line.values[:, 0].tolist() == list(range(42))  # the missing ones lie on the line
    assert line.values[0, 1] == 10 and line.values[4, 1] == pytest.approx(30 + 10 / 3)
    assert line.values[22, 1] == 200 and len(line.notes) == 2
    assert [line.timestamp(n) for n in range(42)] == [stamp.removesuffix(" 00:00:00") for stamp in hours(42)]
    last = read(tmp_path, text, fill="last")
    assert last.values[3:7, 0].tolist() == [3, 3, 3, 6] and last.values[22, 1] == 190
    with pytest.raises(FileProblemError):
        read(tmp_path, text, fill="ignore")  # gaps can be overlooked, missing values cannot
    with pytest.raises(FileProblemError):
        read(tmp_path, table(hours(40, leave_out=tuple(range(5, 37))), A, B), fill="linear")
    with pytest.raises(FileProblemError):
        read(tmp_path, table(hours(8), A, ["", "", *B[2:]]), fill="linear")


def test_repeated_timestamps_are_skipped_or_ignored_on_request(tmp_path: Path) -> None:
    stamps = hours(30)
    text = table([*stamps[:9], stamps[8], *stamps[9:]], list(range(31)), list(range(31)))
    errors = RowErrors()
    filled = read(tmp_path, text, fill="linear", errors=errors)
    assert filled.values[:, 0].tolist() == [*range(9), *range(10, 31)]
    assert [error.line for error in errors.first] == [11]
    as_it_is = read(tmp_path, text, fill="ignore")
    assert len(as_it_is.values) == 31 and len(as_it_is.notes) == 1


def test_rows_with_the_newest_first_are_reversed(tmp_path: Path) -> None:
    series = read(tmp_path, table(hours(8)[::-1], A[::-1], B[::-1]))
    assert series.values[:, 0].tolist() == A and "newest first" in series.notes[0]
    long = read(tmp_path, "unique_id,ds,y\na,3,30\nb,9,90\na,2,20\nb,8,80\n")
    assert long.values[:, 0].tolist() == [20, 30, 80, 90] and long.ids == ("a", "b")


def test_text_of_a_file_is_not_kept_in_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20_000, 4)).round(3)
    start = datetime(2020, 1, 1)
    lines = [
        f"{start + timedelta(hours=n)},{a},{b},{c},{d}" for n, (a, b, c, d) in enumerate(values.tolist())
    ]
    path = tmp_path / "x.csv"
    path.write_text("date,a,b,c,d\n" + "\n".join(lines))
    del lines
    tracemalloc.start()
    series = read_series(path, errors=RowErrors())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(series.values) == 20_000 and peak < 2.5 * path.stat().st_size


@pytest.mark.skipif(not (DATA / "ett").is_dir(), reason="needs GLASSFORMER_DATA")
def test_published_series_are_read() -> None:
    hourly = read_series(DATA / "ett" / "ETTh1.csv.gz", errors=RowErrors())
    assert hourly.values.shape == (17_420, 7) and str(hourly.step) == "1 hour" and hourly.notes == ()
    with pytest.raises(FileProblemError) as caught:
        read_series(DATA / "forecast-extra" / "weather.csv.gz", errors=RowErrors())
    assert caught.value.line == 19_046
    weekly = read_series(DATA / "forecast-extra" / "national_illness.csv.gz", errors=RowErrors())
    assert weekly.values.shape == (966, 7) and str(weekly.step) == "1 week"
