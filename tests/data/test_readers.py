"""Every kind of file gives its rows, whatever guise they come in."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data import readers
from glassformer.data.readers import MAX_LINE_BYTES, open_table, read_lines, read_pieces
from glassformer.data.row_errors import Invalid, RowCounter, RowErrors
from glassformer.data.sources import Source, labeled_texts, pairs, stamp_by_content, texts
from glassformer.data.split import split_source
from glassformer.errors import (
    EmptyInputError,
    FileProblemError,
    UnknownNameError,
)
from tests.data.files import GOOD, GOOD_ROWS, joined, jsonl, placed, read

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


# The same twenty pairs in every guise.
def _csv(header: list[str] | None = None, delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows([*([header] if header else []), *GOOD_ROWS])
    return text.getvalue().encode()


def _excel(header: list[str] | None = None) -> bytes:
    import openpyxl

    book, content = openpyxl.Workbook(), io.BytesIO()
    for row in [*([header] if header else []), *GOOD_ROWS]:
        book.active.append(row)
    book.save(content)
    return content.getvalue()


SOURCE, TARGET = (b"\n".join(row[side].encode() for row in GOOD_ROWS) for side in (0, 1))
GUISES: dict[str, tuple[dict[str, bytes], dict[str, object]]] = {
    "two files": ({"a.en": SOURCE + b"\n", "a.de": TARGET}, {}),
    "blank in both": ({"a.en": b"\n" + SOURCE, "a.de": b"\n" + TARGET}, {}),
    "TSV": ({"a.tsv": GOOD}, {}),
    "gzip": ({"a.tsv.gz": gzip.compress(GOOD)}, {}),
    "one plain file": ({"deu.txt": GOOD}, {}),
    "mark": ({"a.tsv": b"\xef\xbb\xbf" + GOOD}, {}),
    "CRLF": ({"a.tsv": GOOD.replace(b"\n", b"\r\n")}, {}),
    "blank lines": ({"a.tsv": GOOD.replace(b"\n", b"\n\n")}, {}),
    "header of three": ({"a.tsv": b"source\ttarget\tto\n" + GOOD.replace(b"\n", b"\tde\n")}, {}),
    "languages and one more": ({"a.csv": _csv(["en", "de", "to"])}, {}),
    "named header": ({"a.tsv": b"this\tthat\n" + GOOD}, {"columns": ("this", "that")}),
    "other order": ({"a.csv": _csv(["that", "this"])}, {"columns": (2, 1)}),
    "CSV": ({"a.csv": _csv()}, {}),
    "semicolons": ({"a.csv": _csv(["source", "target"], ";")}, {}),
    "pipes": ({"a.csv": _csv(None, "|")}, {}),
    "tabs with quotes": ({"a.csv": _csv(["source", "target"], "\t")}, {}),
    "given delimiter": ({"a.txt": _csv(None, "#")}, {"delimiter": "#"}),
    "Excel": ({"a.xlsx": _excel(["source", "target"])}, {}),
    "Excel without a header": ({"a.xlsx": _excel()}, {}),
    "JSON": ({"a.jsonl": jsonl(*[{"src": a, "tgt": b} for a, b in GOOD_ROWS])}, {}),
    "JSON inside": ({"a.jsonl": jsonl(*[{"translation": {"en": a, "de": b}} for a, b in GOOD_ROWS])}, {}),
    "several": (
        {"a.tsv": b"".join(GOOD.splitlines(True)[:9]), "b.csv": b"\n".join(_csv().splitlines()[9:])},
        {},
    ),
}


@pytest.mark.parametrize(("files", "options"), GUISES.values(), ids=GUISES)
def test_pairs_are_read_from_every_format(
    files: dict[str, bytes], options: dict[str, object], tmp_path: Path
) -> None:
    source = pairs(placed(tmp_path, files), **options)  # type: ignore[arg-type]
    rows, errors = read(source)
    if options.get("columns") == (2, 1):
        rows = [(b, a) for a, b in rows][1:]  # numbers alone do not make a first row a header
    assert rows == GOOD_ROWS and not errors
    assert read(source) == read(source)  # from the start each time


@settings(max_examples=60)
@given(
    content=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b" ", "각".encode(), b"\xff", b"abcdefgh"])),
    size=st.integers(1, 9),
)
def test_lines_and_pieces_do_not_depend_on_chunk_boundaries(
    content: list[bytes], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against the plain definition: split at newlines, decode each line alone."""
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    data = b"x\n" * 4 + b"".join(content)
    path.write_bytes(data)
    expected: list[str | None] = []
    for line in (data[:-1] if data.endswith(b"\n") else data).split(b"\n"):
        try:
            expected.append(None if len(line) > 12 else line.decode().removesuffix("\r"))
        except UnicodeDecodeError:
            expected.append(None)
    lines = read_lines(path, max_bytes=12)
    assert [None if isinstance(line, Invalid) else line for line in lines] == expected
    if b"\xff" not in data:
        assert "".join(read_pieces(path, RowCounter("a"), size=size)) == data.decode().replace("\r\n", "\n")


def test_quoted_csv_cells_keep_commas_quotes_newlines_and_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'"a ""b"", c","d\r\ne"\r\n' + b"f,g\r\n" * 20 + b"alone\r\n")
    rows, errors = read(pairs(path))
    assert rows == [('a "b", c', "d\ne"), *[("f", "g")] * 20]
    assert errors == ["a.csv 23: has 1 column, needs 2"]
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
    with pytest.raises(UnknownNameError):
        read(pairs(path, columns=("x", "z")))
    with pytest.raises(FileProblemError):
        texts(path)
    inside: list[dict[str, str | None] | None] = [{"en": a, "de": b} for a, b in rows]
    inside[600], inside[601] = None, {"en": "a", "de": None}
    parquet.write_table(pa.table({"translation": inside}), path)
    good, errors = read(pairs(path))
    assert good == rows[:600] + rows[602:]
    assert errors == ["a.parquet 601: source is missing", "a.parquet 602: target is missing"]
    parquet.write_table(pa.table({"label": [1.0, 0.0, 1.0], "text": ["a", "b", "c"]}), path)
    assert read(labeled_texts(path))[0] == [("a", "1"), ("b", "0"), ("c", "1")]
    assert read(texts(path))[0] == [("a",), ("b",), ("c",)]
    parquet.write_table(pa.table({"text": ["a", "b"], "label": ["good", "bad"]}), path)
    with pytest.raises(FileProblemError):  # labels are not targets
        pairs(path)
    parquet.write_table(pa.table({"x": pa.array([], pa.string()), "y": pa.array([], pa.string())}), path)
    with pytest.raises(EmptyInputError):
        pairs(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileProblemError):
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
def test_text_and_label_columns_are_detected(name: str, content: str, columns: tuple, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    source = labeled_texts(tmp_path / name)
    assert source.columns == columns and read(source)[0] == REVIEWS
    assert str(columns[0]) in source.description and str(columns[1]) in source.description
    assert read(labeled_texts(tmp_path / name, columns=source.columns)) == read(source)


def test_documents_are_lines_paragraphs_or_files(tmp_path: Path) -> None:
    a, b = placed(tmp_path, {"a.txt": b"\n\none\ntwo\n \n\nthree\r\n\n", "b.txt": b"four"})
    assert joined(texts([a, b])) == ["one", "two", "three", "four"]
    assert joined(texts([a, b], sample_by="paragraph")) == ["one\ntwo", "three", "four"]
    assert joined(texts([a, b], sample_by="file")) == ["\n\none\ntwo\n \n\nthree\n\n", "four"]
    long = [f"line {n}" for n in range(60_000)]
    a.write_text("\n".join(long) + "\n\nend")
    source = texts(a, sample_by="paragraph")
    assert joined(source) == ["\n".join(long), "end"]
    assert max(len(piece) for (piece,) in source.rows(RowErrors())) < 70_000


def test_fingerprint_changes_with_files_and_options(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(GOOD)
    prints = [
        texts(path).fingerprint(),
        texts(path, sample_by="file").fingerprint(),
        pairs(path).fingerprint(),
        pairs(path, columns=(2, 1)).fingerprint(),
        pairs([path, path]).fingerprint(),
        *(side.fingerprint() for side in split_source(pairs(path), 0.5, seed=0)),
    ]
    assert len(set(prints)) == len(prints)
    assert texts(path).fingerprint() == prints[0]
    content = texts(path).fingerprint(stamp_by_content)
    os.utime(path, ns=(1, 1))
    assert texts(path).fingerprint() != prints[0]
    assert texts(path).fingerprint(stamp_by_content) == content
    path.write_bytes(GOOD.swapcase())
    assert texts(path).fingerprint(stamp_by_content) != content


@pytest.mark.skipif(not DATA.is_dir(), reason="needs GLASSFORMER_DATA")
@pytest.mark.parametrize(
    ("make", "files", "count"),
    [
        (pairs, ["multi30k/val.en.gz", "multi30k/val.de.gz"], 1014),
        (pairs, ["tatoeba-kor-eng/eng-kor.txt.gz"], 5890),
        (pairs, ["korean-chatbot/ChatbotData.csv.gz"], 11_823),
        (labeled_texts, ["korean-chatbot/ChatbotData.csv.gz"], 11_823),
        (labeled_texts, ["nsmc/test.tsv.gz"], 50_000),
        (labeled_texts, ["imdb-15k/test.tsv.gz"], 5000),
    ],
)
def test_real_files_are_read_completely(make: Callable[..., Source], files: list[str], count: int) -> None:
    rows, errors = read(make([DATA / name for name in files]))
    assert len(rows) == count and not errors
    if make is labeled_texts:
        assert {label for _, label in rows} <= {"0", "1", "2"}


@pytest.mark.parametrize("later", ["", '"good, really",1', '"multi\nline, cell",0', '"another stray one,1'])
def test_stray_quote_makes_only_its_own_line_bad(tmp_path: Path, later: str) -> None:
    lines = [f"row {n},{n % 2}" for n in range(300)]
    lines[100] = '"' + lines[100]
    lines[200] = later or lines[200]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    rows, errors = read(labeled_texts(tmp_path / "a.csv"))
    stray = [line for line in lines if line.count('"') == 1]
    assert len(rows) == 300 - len(stray) == 300 - len(errors)
    assert errors[0].startswith("a.csv 102:")


@pytest.mark.parametrize("encoding", ["cp949", "utf-16", "euc-kr"])
def test_tables_and_texts_are_read_in_their_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("source,target\n바다,sea\n하늘,sky\n".encode(encoding))
    assert read(pairs(tmp_path / "a.csv", encoding=encoding))[0] == [("바다", "sea"), ("하늘", "sky")]
    (tmp_path / "a.txt").write_bytes("바다\n\xff\n".encode("cp949", "ignore") + b"\xff\n" + b"x\n" * 20)
    lines = list(read_lines(tmp_path / "a.txt", encoding="cp949"))
    assert lines[0] == "바다" and any(isinstance(line, Invalid) for line in lines)


def test_huge_parquet_cell_is_rejected(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    long = "x" * (MAX_LINE_BYTES + 1)
    table = pa.table({"source": ["a"] * 20 + [long], "target": ["b"] * 21})
    parquet.write_table(table, tmp_path / "a.parquet")
    rows, errors = read(pairs(tmp_path / "a.parquet"))
    assert len(rows) == 20 and len(errors) == 1
    bomb = pa.table({"source": ["x" * (1 << 28)], "target": ["b"]})
    parquet.write_table(bomb, tmp_path / "b.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(FileProblemError):
        pairs(tmp_path / "b.parquet")


def test_decimal_commas_are_converted_in_numbers_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;size\nGood, but long;3,5\n1,5 stars;-0,25\n")
    rows = open_table(tmp_path / "a.csv").rows(["text", "size"], RowCounter(""))
    assert [list(row) for _, row in rows] == [["Good, but long", "3.5"], ["1,5 stars", "-0.25"]]
    (tmp_path / "b.csv").write_text('text,size\na,"3,500"\nb,"12,000"\n')  # commas between thousands
    rows = open_table(tmp_path / "b.csv").rows(["text", "size"], RowCounter(""))
    assert [list(row) for _, row in rows] == [["a", "3,500"], ["b", "12,000"]]


def test_empty_cells_of_a_workbook_keep_their_place(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["id", "text", "label"], [1, None, "good"], [None, "b", None], [None] * 3, [2, "c", "bad"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    rows = open_table(tmp_path / "a.xlsx").rows(["text", "label", "id"], RowCounter(""))
    assert [list(row) for _, row in rows] == [["", "good", "1"], ["b", "", ""], ["c", "bad", "2"]]


def test_workbook_that_expands_too_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book, path = openpyxl.Workbook(), tmp_path / "a.xlsx"
    book.active.append(["text"])
    book.active.append(["a"])
    book.save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/media/large", bytes(2 << 20))
    assert open_table(path).head().rows == [("text",), ("a",)]
    monkeypatch.setattr(readers, "MAX_COLUMN_BYTES", 1 << 20)
    with pytest.raises(FileProblemError):
        open_table(path).head()
