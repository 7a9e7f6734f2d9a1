"""Bad rows are reported and skipped; bad files raise a typed error."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.data.readers import MAX_LINE_BYTES
from glassformer.data.row_errors import RowErrors, TooManyBadRowsError
from glassformer.data.sources import Source, labeled_texts, pairs, texts
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
)
from tests.data.files import GOOD, X20, jsonl, many, placed, read

PAIR = {"source": "a", "target": "b"}
Make = Callable[..., Source]
BAD_FILES: dict[str, tuple[Make, dict[str, bytes], type[GlassformerError]]] = {
    "empty": (pairs, {"a.tsv": b""}, EmptyInputError),
    "blank lines only": (texts, {"a.txt": b"\n \n\r\n"}, EmptyInputError),
    "header only": (pairs, {"a.tsv": b"source\ttarget\n"}, EmptyInputError),
    "header only, labelled": (labeled_texts, {"a.csv": b"text,label\n"}, EmptyInputError),
    "one file shorter": (pairs, {"a.en": b"x\ny\nz\n", "a.de": b"x\n"}, FileProblemError),
    "one side empty": (pairs, {"a.en": b"x\n", "a.de": b""}, EmptyInputError),
    "UTF-16": (texts, {"a.txt": "Guten Tag\n".encode("utf-16")}, FileProblemError),
    "Latin-1 throughout": (texts, {"a.txt": "für\n".encode("latin-1") * 5}, FileProblemError),
    "zip": (texts, {"a.txt": b"PK\x03\x04 and more"}, FileProblemError),
    "named gz but plain": (texts, {"a.txt.gz": b"hello\n"}, FileProblemError),
    "gzip truncated": (texts, {"a.txt.gz": gzip.compress(os.urandom(999))[:-99]}, FileProblemError),
    "gzip checksum": (texts, {"a.txt.gz": gzip.compress(GOOD)[:-8] + b"12345678"}, FileProblemError),
    "one column": (pairs, {"a.tsv": b"only\n" * 3}, TooManyBadRowsError),
    "a fifth bad": (pairs, {"a.tsv": b"a\tb\na\tb\na\tb\na\tb\na\n"}, TooManyBadRowsError),
    "JSON over several lines": (pairs, {"a.json": b'[\n{"source": "a"}\n]\n'}, FileProblemError),
    "JSON unclear": (pairs, {"a.jsonl": jsonl({"x": "a", "y": "b", "z": "c"})}, FileProblemError),
    "JSON lists": (pairs, {"a.jsonl": jsonl(["a", "b"])}, TooManyBadRowsError),
    "plain and table": (pairs, {"a.txt": b"x\n", "b.tsv": GOOD}, ConflictError),
    "text unclear": (texts, {"a.tsv": GOOD}, FileProblemError),
    "no label column": (labeled_texts, {"a.tsv": GOOD}, FileProblemError),
    "not Parquet": (pairs, {"a.parquet": b"hello"}, FileProblemError),
    "Parquet in gzip": (pairs, {"a.parquet.gz": b"hello"}, FileProblemError),
}


@pytest.mark.parametrize(("make", "files", "error"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file_raises_a_typed_error(
    make: Make, files: dict[str, bytes], error: type[GlassformerError], tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        read(make(placed(tmp_path, files)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "files", "options", "error"),
    [
        (pairs, {"a.tsv": GOOD}, {"columns": ("en", "de")}, UnknownNameError),
        (pairs, {"a.tsv": GOOD}, {"columns": (0, 1)}, InvalidValueError),
        (pairs, {"a.csv": b"x,x\na,b\n"}, {"columns": ("x", "x")}, FileProblemError),
        (pairs, {"a.jsonl": jsonl(PAIR)}, {"columns": ("en", "de")}, TooManyBadRowsError),
        (pairs, {"a.jsonl": jsonl(PAIR)}, {"columns": (1, 2)}, InvalidValueError),
        (texts, {"a.txt": b"x\n"}, {"column": 1}, FileProblemError),
        (texts, {"a.jsonl": jsonl({"text": "x"})}, {"sample_by": "file"}, InvalidValueError),
    ],
)
def test_bad_option_raises_a_typed_error(
    make: Make, files: dict[str, bytes], options: dict[str, object], error: type, tmp_path: Path
) -> None:
    with pytest.raises(error):
        read(make(placed(tmp_path, files), **options))


def test_path_that_is_not_a_regular_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would block
    for path, error in (
        (tmp_path, FileProblemError),
        (tmp_path / "pipe", FileProblemError),
        (tmp_path / "none.txt", FileMissingError),
    ):
        with pytest.raises(error) as caught:
            texts(path)
        assert caught.value.path == path
    with pytest.raises(EmptyInputError):
        labeled_texts([])


# A file with one bad row: file, line and reason. The twenty good rows around it are read.
BAD_ROWS: dict[str, tuple[Make, dict[str, bytes], tuple[str, int, str]]] = {
    "one column": (pairs, {"a.tsv": GOOD + b"alone\n"}, ("a.tsv", 21, "has 1 column, needs 2")),
    "empty cell": (pairs, {"a.tsv": b"\tx\n" + GOOD}, ("a.tsv", 1, "source is empty")),
    "not UTF-8": (pairs, {"a.tsv": GOOD + b"gr\xfc\xdf\tx\n"}, ("a.tsv", 21, "is not UTF-8")),
    "too long": (pairs, {"a.tsv": GOOD + b"a" * MAX_LINE_BYTES + b"\tx\n"}, ("a.tsv", 21, "is longer than")),
    "second file": (pairs, {"a.en": X20 + b"y\n", "a.de": X20 + b"\xff\n"}, ("a.de", 21, "is not UTF-8")),
    "blank on one side": (pairs, {"a.en": b"\n" + X20, "a.de": b"y\n" + X20}, ("a.en", 1, "is empty")),
    "wrong JSON": (pairs, {"a.jsonl": many(PAIR, b"{'a': 1}\n")}, ("a.jsonl", 21, "is not JSON")),
    "JSON key": (
        pairs,
        {"a.jsonl": many(PAIR, b'{"source": "a"}\n')},
        ("a.jsonl", 21, "has no key 'target'"),
    ),
    "JSON surrogate": (
        pairs,
        {"a.jsonl": many(PAIR, b'{"source": "\\ud83d", "target": "b"}\n')},
        ("a.jsonl", 21, "source contains a lone surrogate"),
    ),
    "CSV after quote": (pairs, {"a.csv": b"a,b\n" * 20 + b'"a"x,b\n'}, ("a.csv", 21, "is not CSV")),
    "CSV bad line in a quote": (
        pairs,
        {"a.csv": b'a,"b\n\xff\n"\n' + b"a,b\n" * 20},
        ("a.csv", 1, "is not UTF-8"),
    ),
    "empty label": (
        labeled_texts,
        {"a.tsv": b"good\t1\nbad\t0\n" * 10 + b"so\t \n"},
        ("a.tsv", 21, "label is empty"),
    ),
}


@pytest.mark.parametrize(("make", "files", "expected"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_row_is_reported_and_skipped(
    make: Make, files: dict[str, bytes], expected: tuple[str, int, str], tmp_path: Path
) -> None:
    errors = RowErrors()
    assert len(list(make(placed(tmp_path, files)).rows(errors))) == 20
    (error,) = errors.first
    assert (Path(error.file).name, error.line) == expected[:2] and error.reason.startswith(expected[2])


def test_rows_are_counted_once_if_a_file_is_read_repeatedly(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(GOOD * 5 + b"x\ny\nz\nz\nz\n")
    errors, source = RowErrors(), pairs(tmp_path / "a.tsv")
    for _ in range(2):
        assert len(list(source.rows(errors))) == 100
    assert errors.count == 5 and errors.rows == 105 and len(errors.first) == 3
