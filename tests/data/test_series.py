"""Series come back as they were written, and a table that is not even, whole or numeric is one sentence."""

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

from glassformer.data.problems import Problems
from glassformer.data.series import SeriesSet, read_series
from glassformer.data.timestamps import BadStampError, Step, later, read_stamp, written
from glassformer.errors import GlassformerError

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


def read(tmp_path: Path, text: str | bytes, name: str = "x.csv", **options: Any) -> SeriesSet:
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return read_series(tmp_path / name, problems=options.pop("problems", Problems()), **options)


def hours(count: int, *, leave_out: tuple[int, ...] = ()) -> list[str]:
    start = datetime(2024, 2, 28, 20)
    return [str(start + timedelta(hours=n)) for n in range(count) if n not in leave_out]


def table(stamps: list[str], *columns: list[Any], header: str = "date,a,b") -> str:
    rows = zip(stamps, *columns, strict=True)
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


@pytest.mark.parametrize("between", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_wide_table_is_one_series_of_channels(tmp_path: Path, between: str, end: str, name: str) -> None:
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    text = table(hours(30), values[:, 0].tolist(), values[:, 1].tolist())
    series = read(tmp_path, "\ufeff" + text.replace(",", between).replace("\n", end), name)
    assert (series.values == values).all() and series.values.dtype == np.float64
    assert series.names == ("a", "b") and series.ids == ("x",) and len(series) == 1
    assert str(series.step) == "1 hour" and series.when(5) == "2024-02-29 01:00:00"
    assert series.lengths.tolist() == [30] and series.notes == ()


def test_a_long_table_is_many_series_however_its_rows_are_mixed(tmp_path: Path) -> None:
    rows = [(f"s{n % 3}", n // 3 + 1, 10 * (n % 3) + n // 3, 5) for n in range(15)]
    lines = [f"{name},{at},{value},{other}" for name, at, value, other in rows]
    mixed = read(tmp_path, "unique_id,ds,y,z\n" + "\n".join(lines))
    apart = read(tmp_path, "unique_id,ds,y,z\n" + "\n".join(sorted(lines)))
    for series in (mixed, apart):
        assert series.ids == ("s0", "s1", "s2") and series.names == ("y",)
        assert [series.series(n)[:, 0].tolist() for n in range(3)] == [
            [10 * n + k for k in range(5)] for n in range(3)
        ]
    assert mixed.step == Step(kind="numbers", size=1) and mixed.when(4) == "5"
    both = read(tmp_path, "id,timestamp,target,z\n" + "\n".join(lines), target=["target", "z"])
    assert both.names == ("target", "z") and both.values.shape == (15, 2)


def test_columns_may_be_chosen_and_row_numbers_are_no_channel(tmp_path: Path) -> None:
    text = ",when,a,city,b\n0,2024-01-01,1,Rome,4\n1,2024-01-02,2,Oslo,5\n2,2024-01-03,3,Lima,6\n"
    series = read(tmp_path, text, time="when", target=["b", "a"])
    assert series.names == ("b", "a") and series.values.tolist() == [[4, 1], [5, 2], [6, 3]]
    with pytest.raises(GlassformerError, match=r"column 'city' .* holds words .'Rome' in line 2"):
        read(tmp_path, text, time="when")
    with pytest.raises(GlassformerError, match="no column 'c'; it has"):
        read(tmp_path, text, target="c")
    assert read(tmp_path, text.replace("city", "x").replace(",when", ",date"), target="a").names == ("a",)


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stamps = [datetime(2024, 1, 1) + timedelta(minutes=15 * n) for n in range(12)]
    columns = {"ts": stamps, "y": [1.0, 2.0, None, *map(float, range(4, 13))]}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    series = read_series(tmp_path / "x.parquet", time="ts", fill="linear", problems=Problems())
    assert series.values[:, 0].tolist() == list(range(1, 13)) and str(series.step) == "15 minutes"
    with pytest.raises(GlassformerError, match="row 3 has no finite value in column 'y';"):
        read_series(tmp_path / "x.parquet", time="ts", problems=Problems())


def test_a_header_in_another_encoding_is_read_but_values_are_not_guessed(tmp_path: Path) -> None:
    text = table(hours(3), [1, 2, 3], [4, 5, 6], header="date,T (°C),PAR (µmol)")
    assert read(tmp_path, text.encode("latin-1")).names == ("T (°C)", "PAR (µmol)")
    with pytest.raises(GlassformerError, match="line 3 is not UTF-8"):
        read(tmp_path, text.replace(",5", ",5µ").encode("latin-1"))


STEPS = {
    "months": ([str(date(2023 + n // 12, n % 12 + 1, 1)) for n in range(20)], "1 month"),
    "quarter ends": (["2023-03-31", "2023-06-30", "2023-09-30", "2023-12-31", "2024-03-31"], "3 months"),
    "month names only": (["2024-01", "2024-02", "2024-03", "2024-04"], "1 month"),
    "working days": (
        [str(date(2024, 1, 1) + timedelta(days=n)) for n in range(30) if n % 7 < 5],
        "1 working day",
    ),
    "weeks": ([str(date(2024, 1, 1) + timedelta(weeks=n)) for n in range(9)], "1 week"),
    "years": (["1999", "2000", "2001"], "1"),
    "slashes": (["1990/1/1 0:00", "1990/1/2 0:00", "1990/1/3 0:00"], "1 day"),
    "hours": (["2024-02-29T22", "2024-02-29 23", "2024-03-01T00"], "1 hour"),
    "dots": (["30.12.2009 00:10:00", "31.12.2009 00:10:00", "01.01.2010 00:10:00"], "1 day"),
    "compact": (["20240228", "20240229", "20240301"], "1 day"),
    "zones": (["2024-03-31T01:30+01:00", "2024-03-31T03:00:00+02:00", "2024-03-31T01:30:00Z"], "30 minutes"),
    "zones behind": (["2024-01-01T00:00-03:30", "2024-01-01T03:45Z", "2024-01-01T05:00+0100"], "15 minutes"),
    "fractions": (
        ["2024-01-01 00:00:00.0", "2024-01-01 00:00:00.250", "2024-01-01 00:00:00.5"],
        "0.25 seconds",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_step_is_found(tmp_path: Path, name: str) -> None:
    stamps, step = STEPS[name]
    count = list(range(len(stamps)))
    series = read(tmp_path, table(stamps, count, count))
    assert str(series.step) == step and series.values[:, 0].tolist() == count
    for row in range(len(stamps) - 1):  # going on from any row gives the next
        assert later(int(series.stamps[row]), series.step, 1) == series.stamps[row + 1]


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda when: when.replace(microsecond=0)))
def test_stamps_are_read_as_they_are_written(when: datetime) -> None:
    stamp = read_stamp(str(when))
    assert stamp == read_stamp(when) == read_stamp(when.isoformat() + "Z")
    assert written(stamp.at, True) == str(when).removesuffix(" 00:00:00")
    assert stamp.at == int(np.datetime64(when, "us").astype(np.int64))


@pytest.mark.parametrize(
    "text", ["", "soon", "2024-13-01", "2023-02-29", "01/02/2024", "3.5", "2024-01-01 25:00"]
)
def test_what_is_no_time_stamp_is_told(text: str) -> None:
    with pytest.raises(BadStampError, match="time stamp"):
        read_stamp(text)


A, B = list(range(8)), list(range(8, 16))
BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty"),
    "utf-16": (table(hours(8), A, B).encode("utf-16"), "is UTF-16"),
    "no header": (table(hours(8), A, B).split("\n", 1)[1], "begins with numbers; give it a first line"),
    "header alone": ("date,a,b\n", "a header and no rows"),
    "one row": (table(hours(1), [1], [2]), "has 1 row; a series needs at least two"),
    "no time": ("a,b\n1.5,2.5\n3.5,4.5\n", "no column of time stamps"),
    "time alone": ("date\n2024-01-01\n2024-01-02\n", "no column of values"),
    "name twice": ("date,a,a\n2024-01-01,1,2\n", "more than one column 'a'"),
    "short row": (table(hours(8), A, B).replace(",9", ""), "line 3 has 2 columns, but the header 3"),
    "bad stamp": (table([*hours(7), "noon"], A, B), "line 9 has the time stamp 'noon', which is no date"),
    "no such day": (table([*hours(7), "2024-02-30"], A, B), "line 9 .*'2024-02-30', which is no date"),
    "empty stamp": (table([*hours(7), ""], A, B), "line 9 has no time stamp"),
    "unclear stamp": (table(["01/02/2024"] * 8, A, B), "line 2 .* day and month cannot be told apart"),
    "mixed stamps": (table([*hours(7), "7"], A, B), "line 9 .* but those before are dates"),
    "repeated": (table([*hours(7), hours(7)[-1]], A, B), "line 9 repeats the time stamp .* of line 8"),
    "unsorted": (
        table([hours(8)[1], hours(8)[0], *hours(8)[2:]], A, B),
        "line 3 .* goes back in time after line 2 .* and 0 more",
    ),
    "gap": (
        table(hours(10, leave_out=(4, 5)), A, B),
        "2 rows are missing in 1 gap, the first between line 5 .* and line 6 .* where the step is 1 hour",
    ),
    "one row gone": (
        table(hours(9, leave_out=(4,)), A, B),
        "1 row is missing in 1 gap, the first between line 5",
    ),
    "uneven": (
        table([*hours(7), "2024-02-29 03:20:00"], A, B),
        "line 9 .* is not a whole number of steps .1 hour. after line 8",
    ),
    "text": (table(hours(8), [*A[:6], "x", 7], B), "line 8 has 'x' in column 'a';"),
    "nan": (table(hours(8), A, ["nan", "", *B[2:]]), "line 2 has no finite value in column 'b', and 1 more"),
    "infinite": (table(hours(8), A, [*B[:7], "1e310"]), "line 9 has no finite value in column 'b'"),
    "decimal comma": (table(hours(8), ["1;5"] * 8, B), "holds words|line 2 has '1;5'"),
    "words": (table(hours(8), ["Rome"] * 8, B), "column 'a' .* holds words .'Rome' in line 2.*target"),
    "NUL": (table(hours(8), A, B).replace("9", "9\0"), "line 3 holds a NUL"),
    "lone rows": ("unique_id,ds,y\na,1,2\nb,1,3\n", "no series of two rows or more"),
    "repeated in one of many": (
        "unique_id,ds,y\na,1,2\nb,1,3\na,1,2\nb,2,4\n",
        "line 4 repeats .* 1 of line 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_one_sentence(tmp_path: Path, name: str) -> None:
    text, sentence = BAD[name]
    with pytest.raises(GlassformerError, match=sentence) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value) and "x.csv" in str(caught.value)


def test_a_missing_file_and_a_cut_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(GlassformerError, match="does not exist"):
        read_series(tmp_path / "no.csv", problems=Problems())
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(table(hours(8), A, B).encode())[:-9])
    with pytest.raises(GlassformerError, match="cut short"):
        read_series(tmp_path / "x.csv.gz", problems=Problems())


def test_gaps_and_missing_values_are_filled_only_when_asked(tmp_path: Path) -> None:
    stamps = hours(42, leave_out=(4, 5))
    a = [float(n) for n in range(42) if n not in (4, 5)]
    b = [str(10 * n) for n in range(40)]
    b[0], b[20] = "", "?"
    text = table(stamps, a, b)
    line = read(tmp_path, text, fill="linear")
    assert line.values[:, 0].tolist() == list(range(42))  # the missing ones lie on the line
    assert line.values[0, 1] == 10 and line.values[4, 1] == pytest.approx(30 + 10 / 3)
    assert line.values[22, 1] == 200 and len(line.notes) == 2
    assert [line.when(n) for n in range(42)] == [stamp.removesuffix(" 00:00:00") for stamp in hours(42)]
    last = read(tmp_path, text, fill="last")
    assert last.values[3:7, 0].tolist() == [3, 3, 3, 6] and last.values[22, 1] == 190
    with pytest.raises(GlassformerError, match="2 has no finite value"):
        read(tmp_path, text, fill="ignore")  # gaps can be overlooked, missing values cannot
    with pytest.raises(GlassformerError, match="too many to fill"):
        read(tmp_path, table(hours(40, leave_out=tuple(range(5, 37))), A, B), fill="linear")
    with pytest.raises(GlassformerError, match=r"25% of column 'b' .* is missing"):
        read(tmp_path, table(hours(8), A, ["", "", *B[2:]]), fill="linear")


def test_repeated_stamps_are_left_out_or_overlooked_only_when_asked(tmp_path: Path) -> None:
    stamps = hours(30)
    text = table([*stamps[:9], stamps[8], *stamps[9:]], list(range(31)), list(range(31)))
    problems = Problems()
    mended = read(tmp_path, text, fill="linear", problems=problems)
    assert mended.values[:, 0].tolist() == [*range(9), *range(10, 31)]
    assert problems.count == 1 and "line 11: repeats the time stamp" in problems.sentence()
    as_it_is = read(tmp_path, text, fill="ignore")
    assert len(as_it_is.values) == 31 and "line 11 repeats" in as_it_is.notes[0]


def test_rows_with_the_newest_first_are_turned_round(tmp_path: Path) -> None:
    series = read(tmp_path, table(hours(8)[::-1], A[::-1], B[::-1]))
    assert series.values[:, 0].tolist() == A and "turned round" in series.notes[0]
    long = read(tmp_path, "unique_id,ds,y\na,3,30\nb,9,90\na,2,20\nb,8,80\n")
    assert long.values[:, 0].tolist() == [20, 30, 80, 90] and long.ids == ("a", "b")


def test_a_column_that_never_changes_is_noted(tmp_path: Path) -> None:
    assert read(tmp_path, table(hours(8), A, [5] * 8)).notes == ("column 'b' never changes",)


def test_the_text_of_a_file_is_never_held_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(20_000, 4)).round(3)
    start = datetime(2020, 1, 1)
    lines = [
        f"{start + timedelta(hours=n)},{a},{b},{c},{d}" for n, (a, b, c, d) in enumerate(values.tolist())
    ]
    path = tmp_path / "x.csv"
    path.write_text("date,a,b,c,d\n" + "\n".join(lines))
    del lines
    tracemalloc.start()
    series = read_series(path, problems=Problems())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(series.values) == 20_000 and peak < 2.5 * path.stat().st_size


@pytest.mark.skipif(not (DATA / "ett").is_dir(), reason="needs GLASSFORMER_DATA")
def test_published_series_are_read_whole() -> None:
    hourly = read_series(DATA / "ett" / "ETTh1.csv.gz", problems=Problems())
    assert hourly.values.shape == (17_420, 7) and str(hourly.step) == "1 hour" and hourly.notes == ()
    with pytest.raises(GlassformerError, match="line 19,046 repeats"):
        read_series(DATA / "forecast-extra" / "weather.csv.gz", problems=Problems())
    weekly = read_series(DATA / "forecast-extra" / "national_illness.csv.gz", problems=Problems())
    assert weekly.values.shape == (966, 7) and str(weekly.step) == "1 week"
