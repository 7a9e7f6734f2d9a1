"""Every kind of file gives its rows, bad rows are told and left out, bad files are one sentence each."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.core.errors import GlassformerError
from glassformer.data.held_out import held_out
from glassformer.data.labelled import labelled
from glassformer.data.lines import LONGEST, Flaw, lines, pieces
from glassformer.data.pairs import pairs
from glassformer.data.problems import HOPELESS, Problems, Tally
from glassformer.data.sources import Source, Texts
from glassformer.data.tables import kind_of
from glassformer.data.texts import texts

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))
GOOD = b"".join(b"word %d\tWort %d\n" % (n, n) for n in range(20))  # enough that one bad row is no tenth
GOOD_ROWS = [(f"word {n}", f"Wort {n}") for n in range(20)]


def read(source: Source) -> tuple[list[tuple[str, ...]], list[str]]:
    """All rows, and what was told of the others, by file name."""
    problems = Problems()
    rows = list(source.rows(problems))
    told = [f"{Path(p.file).name} {p.line}: {p.what}" for p in problems.first]
    return rows, told


def placed(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def jsonl(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def many(value: object, last: bytes) -> bytes:
    return jsonl(*[value] * 20) + last


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


X20 = b"x\n" * 20
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


# The same twenty pairs in every guise.
def _csv(header: list[str] | None = None) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([*([header] if header else []), *GOOD_ROWS])
    return text.getvalue().encode()


SOURCE, TARGET = (b"\n".join(row[side].encode() for row in GOOD_ROWS) for side in (0, 1))
GUISES: dict[str, tuple[dict[str, bytes], dict[str, object]]] = {
    "two files": ({"a.en": SOURCE + b"\n", "a.de": TARGET}, {}),
    "blank in both": ({"a.en": b"\n" + SOURCE, "a.de": b"\n" + TARGET}, {}),
    "TSV": ({"a.tsv": GOOD}, {}),
    "gzip": ({"a.tsv.gz": gzip.compress(GOOD)}, {}),
    "two gzips in one": ({"a.tsv.gz": gzip.compress(GOOD[:150]) + gzip.compress(GOOD[150:])}, {}),
    "gzip unnamed": ({"a.tsv": gzip.compress(GOOD)}, {}),
    "one plain file": ({"deu.txt": GOOD}, {}),
    "mark": ({"a.tsv": b"\xef\xbb\xbf" + GOOD}, {}),
    "CRLF": ({"a.tsv": GOOD.replace(b"\n", b"\r\n")}, {}),
    "no last newline": ({"a.tsv": GOOD[:-1]}, {}),
    "blank lines": ({"a.tsv": GOOD.replace(b"\n", b"\n\n")}, {}),
    "plain header": ({"a.tsv": b"source\ttarget\n" + GOOD}, {}),
    "named header": ({"a.tsv": b"this\tthat\n" + GOOD}, {"columns": ("this", "that")}),
    "other order": ({"a.csv": _csv(["that", "this"])}, {"columns": (2, 1)}),
    "CSV": ({"a.csv": _csv()}, {}),
    "CSV languages": ({"a.csv": _csv(["EN", "de"])}, {}),
    "JSON": ({"a.jsonl": jsonl(*[{"src": a, "tgt": b} for a, b in GOOD_ROWS])}, {}),
    "JSON only two": ({"a.jsonl": jsonl(*[{"n": 1, "x": a, "y": b} for a, b in GOOD_ROWS])}, {}),
    "JSON inside": ({"a.jsonl": jsonl(*[{"translation": {"en": a, "de": b}} for a, b in GOOD_ROWS])}, {}),
    "several": (
        {"a.tsv": b"".join(GOOD.splitlines(True)[:9]), "b.csv": b"\n".join(_csv().splitlines()[9:])},
        {},
    ),
}


@pytest.mark.parametrize(("files", "options"), GUISES.values(), ids=GUISES)
def test_pairs_come_out_of_every_guise(
    files: dict[str, bytes], options: dict[str, object], tmp_path: Path
) -> None:
    source = pairs(placed(tmp_path, files), **options)  # type: ignore[arg-type]
    rows, told = read(source)
    if options.get("columns") == (2, 1):
        rows = [(b, a) for a, b in rows][1:]  # numbers alone do not make a first row a header
    assert rows == GOOD_ROWS and not told
    assert read(source) == read(source)  # from the start each time


def test_only_a_newline_ends_a_line_and_text_is_left_as_it_is(tmp_path: Path) -> None:
    whole = "a\x85b\u2028c\x0bd\x0ce\rf \n  \ufeff각 g\n"
    (tmp_path / "a.txt").write_text(whole, "utf-8", newline="")
    assert list(lines(tmp_path / "a.txt")) == whole[:-1].split("\n")
    assert read(texts(tmp_path / "a.txt"))[0] == [(line,) for line in whole[:-1].split("\n")]


@settings(max_examples=60)
@given(
    content=st.lists(
        st.sampled_from([b"a", b"\n", b"\r\n", b" ", "각".encode(), b"\xff", b"\0", b"abcdefgh"])
    ),
    size=st.integers(1, 9),
)
def test_lines_and_pieces_do_not_depend_on_where_chunks_end(
    content: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against the plain definition: split at newlines, decode each line alone."""
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    data = b"x\n" * 4 + b"".join(content)
    path.write_bytes(data)
    expected: list[str | None] = []
    for line in (data[:-1] if data.endswith(b"\n") else data).split(b"\n"):
        try:
            expected.append(None if b"\0" in line or len(line) > 12 else line.decode().removesuffix("\r"))
        except UnicodeDecodeError:
            expected.append(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassformer.data.lines.chunks.__kwdefaults__", {"size": size})
        assert [None if isinstance(line, Flaw) else line for line in lines(path, longest=12)] == expected
    if b"\xff" not in data and b"\0" not in data:
        assert "".join(pieces(path, Tally("a"), size=size)) == data.decode().replace("\r\n", "\n")


def test_quoted_cells_keep_commas_quotes_and_lines_and_line_numbers_stay_true(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'"a ""b"", c","d\r\ne"\r\n' + b"f,g\r\n" * 20 + b"alone\r\n")
    rows, told = read(pairs(path))
    assert rows == [('a "b", c', "d\ne"), *[("f", "g")] * 20]
    assert told == ["a.csv 23: has 1 column, needs 2"]
    path = tmp_path / "a.tsv"
    path.write_bytes(b'"a\t"b\n')  # in TSV a quote is a letter
    assert read(pairs(path))[0] == [('"a', '"b')]


def test_parquet_is_read_by_names_numbers_and_inside_structs(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    count = 700  # more than two batches
    rows = [(f"a {n}", f"b {n}") for n in range(count)]
    texts_, path = pa.array([b for _, b in rows]).dictionary_encode(), tmp_path / "a.parquet"
    parquet.write_table(pa.table({"n": range(count), "x": [a for a, _ in rows], "y": texts_}), path)
    assert read(pairs(path))[0] == rows
    assert read(pairs(path, columns=(3, "x")))[0] == [(b, a) for a, b in rows]
    with pytest.raises(GlassformerError, match="no column 'z'; it has 'n', 'x', 'y'"):
        read(pairs(path, columns=("x", "z")))
    with pytest.raises(GlassformerError, match="text is not plain; it has n, x, y"):
        texts(path)
    inside: list[dict[str, str | None] | None] = [{"en": a, "de": b} for a, b in rows]
    inside[600], inside[601] = None, {"en": "a", "de": None}
    parquet.write_table(pa.table({"translation": inside}), path)
    good, told = read(pairs(path))
    assert good == rows[:600] + rows[602:]
    assert told == ["a.parquet 601: source is missing", "a.parquet 602: target is missing"]
    parquet.write_table(pa.table({"label": [1.0, 0.0, 1.0], "text": ["a", "b", "c"]}), path)
    assert read(labelled(path))[0] == [("a", "1"), ("b", "0"), ("c", "1")]
    assert read(texts(path))[0] == [("a",), ("b",), ("c",)]
    parquet.write_table(pa.table({"x": pa.array([], pa.string()), "y": pa.array([], pa.string())}), path)
    with pytest.raises(GlassformerError, match="holds no rows"):
        pairs(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(GlassformerError, match="not a Parquet file, or is damaged"):
        pairs(path)


REVIEWS = [("so much fun to watch", "1"), ("dull from the first minute", "0"), ("a fine film", "1")] * 7


NUMBERED = [(n, *review) for n, review in enumerate(REVIEWS)]
FOUND = {
    "no header": ("a.tsv", "".join(f"{label}\t{text}\n" for text, label in REVIEWS), (2, 1)),
    "usual names": (
        "a.tsv",
        "id\tdocument\tlabel\n" + "".join(f"{n}\t{text}\t{label}  \n" for n, text, label in NUMBERED),
        ("document", "label"),
    ),
    "unusual names": (
        "a.csv",
        "said,good\n" + "".join(f"{text},{label}\n" for text, label in REVIEWS),
        ("said", "good"),
    ),
    "JSON": (
        "a.jsonl",
        jsonl(*[{"id": str(n), "body": text, "stars": int(y)} for n, text, y in NUMBERED]).decode(),
        ("body", "stars"),
    ),
}


@pytest.mark.parametrize(("name", "content", "columns"), FOUND.values(), ids=FOUND)
def test_text_and_label_are_found(name: str, content: str, columns: tuple, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    source = labelled(tmp_path / name)
    assert source.columns == columns and read(source)[0] == REVIEWS
    assert str(columns[0]) in source.chosen and str(columns[1]) in source.chosen
    assert read(labelled(tmp_path / name, columns=source.columns)) == read(source)


def joined(source: Texts) -> list[str]:
    return ["".join(document) for document in source.documents(Problems())]


def test_documents_are_lines_or_stand_between_blanks_or_are_files(tmp_path: Path) -> None:
    a, b = placed(tmp_path, {"a.txt": b"\n\none\ntwo\n \n\nthree\r\n\n", "b.txt": b"four"})
    assert joined(texts([a, b])) == ["one", "two", "three", "four"]
    assert joined(texts([a, b], unit="document")) == ["one\ntwo", "three", "four"]
    assert joined(texts([a, b], unit="file")) == ["\n\none\ntwo\n \n\nthree\n\n", "four"]
    long = [f"line {n}" for n in range(60_000)]
    a.write_text("\n".join(long) + "\n\nend")
    source = texts(a, unit="document")
    assert joined(source) == ["\n".join(long), "end"]
    assert max(len(piece) for (piece,) in source.rows(Problems())) < 70_000


def test_a_fingerprint_follows_files_and_options(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(GOOD)
    prints = [
        texts(path).fingerprint(),
        texts(path, unit="file").fingerprint(),
        pairs(path).fingerprint(),
        pairs(path, columns=(2, 1)).fingerprint(),
        pairs([path, path]).fingerprint(),
        *(side.fingerprint() for side in held_out(pairs(path), 0.5, seed=0)),
    ]
    assert len(set(prints)) == len(prints)
    assert texts(path).fingerprint() == prints[0]
    os.utime(path, ns=(1, 1))
    assert texts(path).fingerprint() != prints[0]


def peak(read_all: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        read_all()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def consumed(source: Source) -> int:
    return sum(1 for _ in source.rows(Problems()))


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "aligned", "line", "document", "file", "held out"])
def test_memory_does_not_grow_with_the_corpus(kind: str, tmp_path: Path) -> None:
    def source(count: int) -> Source:
        path = tmp_path / f"{count}.{kind}"
        words = "word " * 80
        with path.open("w") as file:
            for n in range(count):
                row = {
                    "tsv": f"{words}\t{n}",
                    "csv": f'"{words}",{n}',
                    "jsonl": json.dumps({"src": words, "tgt": "x"}),
                }
                file.write(row.get(kind, f"{n} {words}") + "\n")
        match kind:
            case "aligned":
                return pairs([path, path])
            case "line" | "document" | "file":
                return texts(path, unit=kind)
            case "held out":
                return held_out(texts(path), 0.1, seed=1)[0]
            case _:
                return pairs(path)

    small, large = source(3000), source(30_000)  # about 1.2 and 12 MB
    assert peak(lambda: consumed(large)) < 1.1 * peak(lambda: consumed(small)) + 50_000


def test_an_endless_line_and_a_gzip_bomb_are_not_held(tmp_path: Path) -> None:
    plain, bomb = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    with plain.open("wb") as file, gzip.open(bomb, "wb", 1) as packed:
        file.write(X20)
        packed.write(X20)
        for _ in range(100):  # 100 MB without a line end
            file.write(b"a" * 1_000_000)
            packed.write(b"a" * 1_000_000)
        file.write(b"\nlast\n")
        packed.write(b"\nlast\n")
    for path in (plain, bomb):
        found: list[list[str]] = []
        assert peak(lambda path=path, found=found: found.extend(read(texts(path)))) < 8_000_000  # type: ignore[misc]
        assert len(found[0]) == 21 and found[1] == [f"{path.name} 21: is longer than 1,048,576 bytes"]
        assert peak(lambda path=path: consumed(texts(path, unit="file"))) < 8_000_000  # type: ignore[misc]


def test_no_sentence_is_on_both_sides_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    forms = ("Caf\u00e9 {}", "cafe\u0301  {}", " CAF\u00c9 {} ", "Cafe {}")
    path.write_text("".join(f"{form.format(n)}\t{n}\n" for form in forms for n in range(2000)), "utf-8")
    whole = pairs(path)
    train, valid = (read(side)[0] for side in held_out(whole, 0.1, seed=3))
    assert sorted(train + valid) == sorted(read(whole)[0])
    same = {row[1] for row in valid if not row[0].startswith("Cafe ")}
    assert not same & {row[1] for row in train if not row[0].startswith("Cafe ")}
    assert 0.08 < len(valid) / 8000 < 0.12  # 0.1 of 4,000 different ones: five standard deviations are 0.024
    again, other = (read(held_out(whole, 0.1, seed=seed)[1])[0] for seed in (3, 4))
    assert again == valid and other != valid
    with pytest.raises(GlassformerError, match="leaves none for validation"):
        held_out(whole, 1e-9, seed=0)
    with pytest.raises(GlassformerError, match="leaves none for training"):
        held_out(whole, 1 - 1e-9, seed=0)
    for share in (0, 1, -1, float("nan")):
        with pytest.raises(GlassformerError, match="between 0 and 1"):
            held_out(whole, share, seed=0)


def test_of_whole_files_the_end_is_held_out(tmp_path: Path) -> None:
    contents = ["".join(f"line {n}\n" for n in range(count)) for count in (50_000, 300)]
    paths = placed(tmp_path, {f"{n}.txt": text.encode() for n, text in enumerate(contents)})
    train, valid = held_out(texts(paths, unit="file"), 0.1, seed=0)
    assert isinstance(train, Texts) and isinstance(valid, Texts)
    for begin, end, whole in zip(joined(train), joined(valid), contents, strict=True):
        assert begin + end == whole and begin.endswith("\n")
        assert abs(len(end) / len(whole) - 0.1) < 0.01


def test_kinds_are_told_by_the_end_of_the_name() -> None:
    names = {"a.TSV": "tsv", "a.csv.gz": "csv", "x.ndjson": "jsonl", "train.en": "plain", "README": "plain"}
    assert {name: kind_of(name) for name in names} == names


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")
@pytest.mark.parametrize(
    ("make", "files", "count"),
    [
        (pairs, ["multi30k/val.en.gz", "multi30k/val.de.gz"], 1014),
        (pairs, ["tatoeba-kor-eng/eng-kor.txt.gz"], 5890),
        (pairs, ["korean-chatbot/ChatbotData.csv.gz"], 11_823),
        (labelled, ["korean-chatbot/ChatbotData.csv.gz"], 11_823),
        (labelled, ["nsmc/test.tsv.gz"], 50_000),
        (labelled, ["imdb-15k/test.tsv.gz"], 5000),
    ],
)
def test_real_files_are_read_whole(make: Callable[..., Source], files: list[str], count: int) -> None:
    rows, told = read(make([DATA / name for name in files]))
    assert len(rows) == count and not told
    if make is labelled:
        assert {label for _, label in rows} <= {"0", "1", "2"}
