"""Tables in and out of commands: columns added, in any format, resumed, in any encoding."""

from __future__ import annotations

import csv
import gzip
import json
import sys

import openpyxl
import pyarrow.parquet
import pytest

from tests.cli.conftest import train

pytestmark = pytest.mark.usefixtures("quiet")
ROWS = [("good, film\n바다", "pos"), ('a "bad" one', "neg"), ("", "neg")]


@pytest.fixture
def table(tmp_path):
    with (tmp_path / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *ROWS])
    return tmp_path / "test.csv"


def read_table(path):
    if path.suffix == ".xlsx":
        header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        return [{n: "" if v is None else v for n, v in zip(header, row, strict=True)} for row in rows]
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".jsonl" in path.name:
        return [json.loads(line) for line in raw.decode().splitlines()]
    delimiter = "\t" if ".tsv" in path.name else ","
    return list(csv.DictReader(raw.decode("utf-8-sig").splitlines(True), delimiter=delimiter))


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv", "jsonl", "parquet", "xlsx"])
def test_classify_adds_columns_in_every_format(run, folders, table, tmp_path, suffix):
    lines = run("classify", folders["classify"], ROWS[0][0], ROWS[1][0]).out.splitlines()
    out = tmp_path / f"out.{suffix}"
    assert run("classify", folders["classify"], "--file", table, "--out", out).code == 0
    rows = read_table(out)
    for row, (text, label), line in zip(rows, ROWS, [*lines, "\t"], strict=True):
        text = " ".join(text.split()) if suffix == "tsv" else text
        assert (row["text"], row["label"]) == (text, label)  # the column of the table is kept
        predicted, score = line.split("\t")
        assert (row["predicted_label"] or "") == predicted
        assert row["score"] in (None, "") if not score else abs(float(row["score"]) - float(score)) < 1e-4
    if suffix != "csv":  # what was written can be read again, in another format
        again = run("classify", folders["classify"], "--file", out, "--column", "text")
        assert again.out.splitlines()[1] == lines[1]


@pytest.mark.parametrize("suffix", ["xlsx", "csv"])
def test_table_from_another_country_is_written_as_it_is_read(run, folders, tmp_path, suffix):
    """Semicolons and decimal commas in, the same out; text in a workbook is never a formula."""
    rows = [("=1+1", "3,5"), ("gut, aber; 1.2 lang", "0,25")]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("text", "size"), *rows])
    out = tmp_path / f"out.{suffix}"
    done = run(
        "classify", folders["classify"], "--file", tmp_path / "in.csv", "--column", "text", "--out", out
    )
    assert done.code == 0
    if suffix == "xlsx":
        cells = list(openpyxl.load_workbook(out).active.iter_rows(min_row=2))
        assert [row[0].value for row in cells] == [text for text, _ in rows]
        assert [row[0].data_type for row in cells] == ["s", "s"] and isinstance(cells[0][3].value, float)
        return
    written = list(csv.DictReader(out.open(newline=""), delimiter=";"))
    assert [(row["text"], row["size"]) for row in written] == rows
    assert all(0 < float(row["score"].replace(",", ".")) < 1 and "." not in row["score"] for row in written)


@pytest.mark.parametrize("name", ["pred.ods", "pred.xls"])
def test_unknown_spreadsheets_are_refused(run, folders, table, tmp_path, name):
    run("classify", folders["classify"], "--file", table, "--out", tmp_path / name).error()
    run("forecast", folders["forecast"], table, "--out", tmp_path / "out.xlsx").error()
    assert not (tmp_path / name).exists() and not (tmp_path / "out.xlsx").exists()


def test_excel_without_its_package_names_the_extra(run, folders, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "x.xlsx").write_bytes(b"PK\x03\x04")
    assert "openpyxl" in run("classify", folders["classify"], "--file", tmp_path / "x.xlsx").error()


def test_resumed_table_equals_an_uninterrupted_one(run, folders, table, tmp_path):
    args = ["translate", folders["translate"], "--file", table, "--num-beams", 1, "--out"]
    assert run(*args, tmp_path / "whole.csv").code == 0
    whole = (tmp_path / "whole.csv").read_bytes()
    assert whole.startswith(b"text,label,translation\n")
    for size in (0, len("text,l"), whole.index(b"\n", 40) - 3, len(whole)):  # in the header, inside quotes
        (tmp_path / "cut.csv").write_bytes(whole[:size])
        assert run(*args, tmp_path / "cut.csv", "--resume").code == 0
        assert (tmp_path / "cut.csv").read_bytes() == whole


def test_columns_are_chosen_or_listed_in_an_error(run, folders, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,opinion\n1,good\n2,bad\n")
    done = run("classify", folders["classify"], "--file", path)
    assert done.code == 0 and done.out.count("\n") == 2 and "'opinion'" in done.err
    assert (
        run("classify", folders["classify"], "--file", path, "--column", 2).out.count("\n") == 3
    )  # no header
    path.write_text("left,right\na b,c d\n")
    error = run("classify", folders["classify"], "--file", path).error()
    assert "a b" not in error
    assert "left" in run("classify", folders["classify"], "--file", path, "--column", "lefd").error()
    run("classify", folders["classify"], "a", "--column", "left").error()


def test_bad_row_is_empty_and_reported(run, folders, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a", "n": 1}\nnot JSON\n{"text": 3}\n{"text": "b"}\n{"text": null}\n')
    done = run("embed", folders["embed"], "--file", path, "--column", "text", "--out", tmp_path / "out.jsonl")
    rows = read_table(tmp_path / "out.jsonl")
    assert done.code == 2 and all(f"warning: row {n}" in done.err for n in (2, 3, 5))
    assert [bool(row["embedding"]) for row in rows] == [True, False, False, True, False]
    assert rows[0]["n"] == 1 and rows[2]["text"] == 3


def test_other_encodings_are_suggested_read_and_written_for_excel(run, folders, tmp_path):
    path, out = tmp_path / "ko.csv", tmp_path / "out.csv"
    path.write_bytes("text,label\n좋은 영화,긍정\n나쁜 영화,부정\n".encode("cp949"))
    assert "cp949" in run("classify", folders["classify"], "--file", path).error()
    assert run("classify", folders["classify"], "--file", path, "--encoding", "CP949", "--out", out).code == 0
    assert out.read_bytes().startswith(b"\xef\xbb\xbf") and read_table(out)[0]["text"] == "좋은 영화"
    run("classify", folders["classify"], "--file", path, "--encoding", "klingon").error()


def test_model_remembers_its_columns(run, tmp_path, monkeypatch):
    """Trained on swapped columns: evaluate and translate read the same ones."""
    from tests.cli.conftest import quick

    folder = train(tmp_path, "--train", "pairs.tsv", "--set", "data.columns=[2,1]", *quick())
    monkeypatch.chdir(tmp_path)
    expected = run("evaluate", folder, "test.tsv", "--columns", "2,1", "--json").out
    assert run("evaluate", folder, "test.tsv", "--json").out == expected
    assert run("evaluate", folder, "test.tsv", "--columns", "1,2", "--json").out != expected
    first = (tmp_path / "test.tsv").read_text().splitlines()[0]
    (tmp_path / "one.tsv").write_text(first + "\n")
    args = ("translate", folder, "--num-beams", 1, "--max-new-tokens", 3)
    assert run(*args, "--file", "one.tsv").out == run(*args, first.split("\t")[1]).out
    (tmp_path / "x.csv").write_text("a\nb\n")
    run("evaluate", folder, "x.csv").error()


def test_control_characters_are_escaped_in_messages(run, tmp_path):
    error = run("classify", tmp_path / "a\x1b[31mb").error()
    assert "\x1b" not in error
