"""Bad rows are told and left out, bad files are one sentence each."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.data.labelled import labelled
from glassformer.data.lines import LONGEST
from glassformer.data.pairs import pairs
from glassformer.data.problems import HOPELESS, Problems
from glassformer.data.sources import Source
from glassformer.data.texts import texts
from glassformer.errors import GlassformerError
from tests.data.files import GOOD, X20, jsonl, many, placed, read

PAIR = {"source": "a", "target": "b"}
Case = tuple[Callable[..., Source], dict[str, bytes], dict[str, object], str]

# What comes in, and the one sentence (a pattern) that comes out.
REFUSED: dict[str, Case] = {
    "empty": (pairs, {"a.tsv": b""}, {}, r"a\.tsv' is empty$"),
    "empty gzip": (pairs, {"a.tsv.gz": gzip.compress(b"")}, {}, "is empty$"),
    "no bytes named gz": (texts, {"a.txt.gz": b""}, {}, "is empty$"),
    "byte order mark only": (texts, {"a.txt": b"\xef\xbb\xbf"}, {}, "empty but for a byte order mark"),
    "blank lines only": (texts, {"a.txt": b"\n \n\r\n"}, {}, "holds no rows"),
    "blank table": (pairs, {"a.tsv": b"\n\n"}, {}, "holds no rows"),
    "one file shorter": (
        pairs,
        {"a.en": b"x\ny\nz\n", "a.de": b"x\n"},
        {},
        r"a\.en' has 3 lines and '.*a\.de' has 1; pairs need the same number",
    ),
    "shorter, and bad besides": (pairs, {"a.en": b"\xff\n" * 9, "a.de": b"x\n" * 8}, {}, "9 lines .* has 8;"),
    "shorter by far, and bad": (
        pairs,
        {"a.en": b"\xff\n", "a.de": b"x\n" * 3000},
        {},
        r"a\.en' has 1 line and '.*a\.de' has 3,000;",
    ),
    "one side empty": (pairs, {"a.en": b"x\n", "a.de": b""}, {}, r"a\.de' is empty"),
    "UTF-16": (texts, {"a.txt": "Guten Tag\n".encode("utf-16")}, {}, "UTF-16; save it as UTF-8"),
    "UTF-16 big": (texts, {"a.txt": b"\xfe\xff" + "Tag\n".encode("utf-16-be")}, {}, "UTF-16"),
    "UTF-16 unmarked": (pairs, {"a.tsv": "a\tb\n".encode("utf-16-le")}, {}, "UTF-16 or no text"),
    "UTF-32": (texts, {"a.txt": b"\x00\x00\xfe\xff" + "T\n".encode("utf-32-be")}, {}, "UTF-32"),
    "Latin-1 throughout": (
        texts,
        {"a.txt": "für\n".encode("latin-1") * 5},
        {},
        r"1: is not UTF-8 \(byte 0xfc",
    ),
    "zip": (texts, {"a.txt": b"PK\x03\x04 and more"}, {}, "zip archive; unpack"),
    "xz": (texts, {"a.txt.xz": b"\xfd7zXZ\x00"}, {}, "packed with xz"),
    "zstd": (texts, {"a.txt": b"\x28\xb5\x2f\xfd\x00"}, {}, "packed with zstd"),
    "Parquet as text": (texts, {"a.txt": b"PAR1 and more"}, {}, "is a Parquet file"),
    "named gz but plain": (texts, {"a.txt.gz": b"hello\n"}, {}, "named .gz but is not gzip"),
    "gzip cut short": (texts, {"a.txt.gz": gzip.compress(os.urandom(999))[:-99]}, {}, "gzip .* cut short"),
    "gzip damaged": (
        texts,
        {"a.txt.gz": gzip.compress(GOOD)[:20] + b"\x00\xff" * 20},
        {},
        "gzip .* is (damaged|cut short)",
    ),
    "gzip checksum": (texts, {"a.txt.gz": gzip.compress(GOOD)[:-8] + b"12345678"}, {}, "gzip .* is damaged"),
    "one column": (
        pairs,
        {"a.tsv": b"only\n" * 3},
        {},
        r"no row that can be used: .* 1: has 1 column, needs 2",
    ),
    "a fifth bad": (
        pairs,
        {"a.tsv": b"a\tb\na\tb\na\tb\na\tb\na\n"},
        {},
        r"1 of the 5 rows .* more than 10%: .*line 5: has 1 column",
    ),
    "hopeless": (
        pairs,
        {"a.tsv": b"x\n" * HOPELESS + GOOD * 1000},
        {},
        "none of the first 1,000 rows .*line 1: has 1",
    ),
    "missing column name": (
        pairs,
        {"a.tsv": GOOD},
        {"columns": ("en", "de")},
        "no column 'en'; it has 'word 0'",
    ),
    "missing column number": (pairs, {"a.csv": b"a,b\n"}, {"columns": (1, 3)}, "2 columns, needs 3"),
    "column zero": (pairs, {"a.tsv": GOOD}, {"columns": (0, 1)}, "counted from 1"),
    "three columns": (pairs, {"a.tsv": GOOD}, {"columns": (1, 2, 3)}, "a pair has two"),
    "column named twice": (
        pairs,
        {"a.csv": b"x,x\na,b\n"},
        {"columns": ("x", "x")},
        "more than one column 'x'",
    ),
    "header only": (pairs, {"a.tsv": b"source\ttarget\n"}, {}, "holds no rows"),
    "header only, labelled": (labelled, {"a.csv": b"text,label\n"}, {}, "no rows below its header"),
    "header only, JSON": (pairs, {"a.jsonl": b"\n"}, {}, "holds no rows"),
    "JSON list over lines": (pairs, {"a.json": b'[\n{"source": "a"}\n]\n'}, {}, "one object a line"),
    "JSON not plain": (pairs, {"a.jsonl": jsonl({"x": "a", "y": "b", "z": "c"})}, {}, "name two of: x, y, z"),
    "JSON key missing": (pairs, {"a.jsonl": jsonl(PAIR)}, {"columns": ("en", "de")}, "1: has no key 'en'"),
    "JSON number of a key": (pairs, {"a.jsonl": jsonl(PAIR)}, {"columns": (1, 2)}, "name the key"),
    "JSON lists": (pairs, {"a.jsonl": jsonl(["a", "b"])}, {}, "1: is a JSON list, not an object"),
    "JSON too deep": (pairs, {"a.jsonl": b"[" * 100_000 + b"\n"}, {}, r"is not JSON \(nested too deep"),
    "plain and table": (pairs, {"a.txt": b"x\n", "b.tsv": GOOD}, {}, "two plain files, or tables only"),
    "text and table": (texts, {"a.txt": b"x\n", "b.tsv": GOOD}, {}, "cannot be read together"),
    "column of plain text": (texts, {"a.txt": b"x\n"}, {"column": 1}, "has no column '1'"),
    "unit of a table": (texts, {"a.jsonl": jsonl({"text": "x"})}, {"unit": "file"}, "leave the unit out"),
    "unknown unit": (texts, {"a.txt": b"x\n"}, {"unit": "page"}, "it can be line, document, file"),
    "which text": (texts, {"a.tsv": GOOD}, {}, "first line names none, so give a number"),
    "no label column": (labelled, {"a.tsv": GOOD}, {}, "have the same label"),
    "one column, labelled": (labelled, {"a.tsv": b"x\n" * 20}, {}, "needs a text and a label"),
    "not Parquet": (pairs, {"a.parquet": b"hello"}, {}, "is not a Parquet file, or is damaged"),
    "Parquet in gzip": (pairs, {"a.parquet.gz": b"hello"}, {}, "Parquet inside gzip"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_bad_file_is_one_sentence(case: Case, tmp_path: Path) -> None:
    make, files, options, sentence = case
    with pytest.raises(GlassformerError, match=sentence) as caught:
        read(make(placed(tmp_path, files), **options))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GlassformerError, match="is a folder"):
        pairs(tmp_path)
    with pytest.raises(GlassformerError, match="does not exist"):
        texts(tmp_path / "none.txt")
    with pytest.raises(GlassformerError, match="cannot be read: File name too long"):
        texts(tmp_path / ("x" * 5000))
    with pytest.raises(GlassformerError, match="no file was given"):
        labelled([])
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    with pytest.raises(GlassformerError, match="not an ordinary file"):
        texts(tmp_path / "pipe")


# A file with one bad row: what is told of it. Twenty good rows stand around it and come out.
LEFT_OUT: dict[str, Case] = {
    "one column": (pairs, {"a.tsv": GOOD + b"alone\n"}, {}, "a.tsv 21: has 1 column, needs 2"),
    "empty cell": (pairs, {"a.tsv": b"\tx\n" + GOOD}, {}, "a.tsv 1: source is empty"),
    "blank cell": (pairs, {"a.tsv": GOOD + b"x\t \xc2\xa0 \n"}, {}, "a.tsv 21: target is empty"),
    "not UTF-8": (
        pairs,
        {"a.tsv": GOOD + b"gr\xfc\xdf\tx\n"},
        {},
        "a.tsv 21: is not UTF-8 (byte 0xfc at byte 3)",
    ),
    "overlong UTF-8": (
        pairs,
        {"a.tsv": GOOD + b"\xc0\x80\tx\n"},
        {},
        "a.tsv 21: is not UTF-8 (byte 0xc0 at byte 1)",
    ),
    "NUL": (pairs, {"a.tsv": GOOD + b"a\0\tx\n"}, {}, "a.tsv 21: holds a NUL byte"),
    "too long": (
        pairs,
        {"a.tsv": GOOD + b"a" * LONGEST + b"\tx\n"},
        {},
        "a.tsv 21: is longer than 1,048,576 bytes",
    ),
    "too long at the end": (
        texts,
        {"a.txt": X20 + b"a" * 2 * LONGEST},
        {},
        "a.txt 21: is longer than 1,048,576 bytes",
    ),
    "second file": (
        pairs,
        {"a.en": X20 + b"y\n", "a.de": X20 + b"\xff\n"},
        {},
        "a.de 21: is not UTF-8 (byte 0xff at byte 1)",
    ),
    "blank on one side": (pairs, {"a.en": b"\n" + X20, "a.de": b"y\n" + X20}, {}, "a.en 1: is empty"),
    "wrong JSON": (
        pairs,
        {"a.jsonl": many(PAIR, b"{'a': 1}\n")},
        {},
        "a.jsonl 21: is not JSON (Expecting property",
    ),
    "JSON string": (
        pairs,
        {"a.jsonl": many(PAIR, b'"a"\n')},
        {},
        "a.jsonl 21: is a JSON string, not an object",
    ),
    "JSON number": (
        pairs,
        {"a.jsonl": many(PAIR, b"7\n")},
        {},
        "a.jsonl 21: is a JSON number, not an object",
    ),
    "JSON key": (pairs, {"a.jsonl": many(PAIR, b'{"source": "a"}\n')}, {}, "a.jsonl 21: has no key 'target'"),
    "JSON value": (
        pairs,
        {"a.jsonl": many(PAIR, jsonl({"source": 3, "target": "b"}))},
        {"columns": ("source", "target")},
        "a.jsonl 21: source is not text",
    ),
    "JSON null": (
        pairs,
        {"a.jsonl": many(PAIR, jsonl({"source": "a", "target": None}))},
        {},
        "a.jsonl 21: target is missing",
    ),
    "JSON half a pair": (
        pairs,
        {"a.jsonl": many(PAIR, b'{"source": "\\ud83d", "target": "b"}\n')},
        {},
        "a.jsonl 21: source holds half of a surrogate pair",
    ),
    "JSON NUL": (
        pairs,
        {"a.jsonl": many(PAIR, b'{"source": "a\\u0000b", "target": "b"}\n')},
        {},
        "a.jsonl 21: source holds a NUL",
    ),
    "CSV after quote": (
        pairs,
        {"a.csv": b"a,b\n" * 20 + b'"a"x,b\n'},
        {},
        "a.csv 21: has text after a closing quote",
    ),
    "CSV open quote": (
        pairs,
        {"a.csv": b"a,b\n" * 20 + b'"a,b\nc,d\n'},
        {},
        "a.csv 21: opens a quote that is not closed in the 1 lines after it",
    ),
    "CSV bad line in a quote": (
        pairs,
        {"a.csv": b'a,"b\n\xff\n"\n' + b"a,b\n" * 20},
        {},
        "a.csv 1: is not UTF-8 (byte 0xff at byte 1)",
    ),
    "empty label": (
        labelled,
        {"a.tsv": b"good\t1\nbad\t0\n" * 10 + b"so\t \n"},
        {},
        "a.tsv 21: label is empty",
    ),
    "label NaN": (
        labelled,
        {"a.jsonl": many({"text": "a", "label": 1}, b'{"text": "a", "label": NaN}\n')},
        {},
        "a.jsonl 21: label is not a number",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_bad_row_is_told_and_left_out(case: Case, tmp_path: Path) -> None:
    make, files, options, sentence = case
    rows, told = read(make(placed(tmp_path, files), **options))
    assert len(rows) == 20 and len(told) == 1
    assert told[0].startswith(sentence)


def test_problems_are_counted_once_however_often_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(GOOD * 5 + b"x\ny\nz\nz\nz\n")
    problems, source = Problems(), pairs(tmp_path / "a.tsv")
    for _ in range(2):
        assert len(list(source.rows(problems))) == 100
    assert problems.count == 5 and problems.rows == 105
    first_two = f"5 of 105 rows were left out: {tmp_path}/a.tsv line 101: has 1 column, needs 2; "
    assert problems.sentence().startswith(first_two) and problems.sentence().endswith("needs 2; ...")
