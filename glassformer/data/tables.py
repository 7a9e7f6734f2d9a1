"""Read whole rows of tables, and write them with columns added, e.g. with predictions.

CSV, TSV, JSON Lines (all also as .gz), Parquet and Excel; the rows are streamed, so memory use is bounded.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

from glassformer.data.readers import (
    UTF8,
    Column,
    CsvReader,
    DelimitedReader,
    FileFormat,
    JsonlReader,
    ParquetReader,
    TableReader,
    file_format,
    flatten_record,
    import_pyarrow,
    looks_like_header,
    parse_columns,
)
from glassformer.data.row_errors import Invalid, RowCounter
from glassformer.data.sources import text_column
from glassformer.errors import (
    FileProblemError,
    InvalidValueError,
    MissingDependencyError,
    UnknownNameError,
    UnsupportedError,
)

Record = dict[str, object]
WRITE_ROWS = 1000  # rows of a Parquet row group
BOM = "\ufeff"


# fields of training data that a task reads
INPUT_FIELDS = ("image", "source", "text", "text_pair", "question", "context")


class TableRow(NamedTuple):
    """A row: its values by column, and the texts of the requested columns, or why there are none."""

    record: Record
    texts: tuple[str, ...] | Invalid


@dataclass
class _RowErrorQueue(RowCounter):
    """Keeps the errors of rows in order, so that a bad row is yielded in its place."""

    pending: deque[Invalid] = field(default_factory=deque)

    def add_error(self, line: int | None, reason: str, *, file: str | PathLike[str] | None = None) -> None:
        self.pending.append(Invalid(f"{self.unit} {line} of the file {reason}"))

    def pop_rows(self) -> Iterator[TableRow]:
        while self.pending:
            yield TableRow({}, self.pending.popleft())


class InputTable:
    """The rows of a table, and the columns with the texts to process.

    columns: names, or numbers from 1; None chooses the text column. names: all columns; those of a file
    without a header are numbers. lists: whether the columns may have lists, which are returned as JSON.
    """

    def __init__(
        self, table: TableReader, columns: Sequence[Column] | None = None, *, lists: bool = False
    ) -> None:
        self.table, self.lists = table, lists
        self.columns = tuple(columns) if columns else (text_column(table),)
        header = table.head().header()
        named = any(isinstance(column, str) for column in self.columns)
        self.has_header = not isinstance(table, DelimitedReader) or named or looks_like_header(header)
        self.names = header if self.has_header else tuple(str(n) for n in range(1, len(header) + 1))
        for column in self.columns:
            known = column in header if isinstance(column, str) else 1 <= column <= len(header)
            if not known:
                raise UnknownNameError("column", str(column), self.names, where=str(table.path))
        self._keys = [
            column if isinstance(column, str) else self.names[column - 1] for column in self.columns
        ]

    def rows(self) -> Iterator[TableRow]:
        """Yield all rows in order; a row that cannot be read has an empty record."""
        errors = _RowErrorQueue(str(self.table.path), self.table.unit)
        for record in self._records(errors):
            yield from errors.pop_rows()
            yield TableRow(record, self._texts(record))
        yield from errors.pop_rows()

    def _records(self, errors: RowCounter) -> Iterator[Record]:
        match self.table:
            case DelimitedReader():
                for n, (_, cells) in enumerate(self.table.cells(errors)):
                    if n or not self.has_header:
                        more = (str(n) for n in range(len(self.names) + 1, len(cells) + 1))
                        yield dict(zip((*self.names, *more), cells, strict=False))
            case JsonlReader():
                for _, value in self.table.objects(errors):
                    yield value
            case ParquetReader():
                yield from self.table.records()

    def _texts(self, record: Record) -> tuple[str, ...] | Invalid:
        flat = record if all(key in record for key in self._keys) else flatten_record(record)
        texts = []
        for key in self._keys:
            value = flat.get(key, Invalid(f"has no column '{key}'"))
            if isinstance(value, Invalid):
                return value
            if self.lists and isinstance(value, list | dict):
                value = json.dumps(value)
            if not isinstance(value, str):
                return Invalid(f"column '{key}' is {'null' if value is None else 'not text'}")
            texts.append(value)
        return tuple(texts)

    def count(self) -> int:
        """Return the number of rows, good and bad."""
        return sum(1 for _ in self.rows())


def choose_columns(
    table: TableReader, columns: Sequence[str], trained: Mapping[str, Column], max_columns: int = 1
) -> list[Column]:
    """Return the input columns of a task; an empty list stands for the text column.

    columns: names or numbers as a user writes them; at most `max_columns`. trained: the columns of the
    training data by field, which are the default if the table has them.
    """
    chosen = parse_columns(columns)
    if len(chosen) > max_columns:
        expected = "one column" if max_columns == 1 else f"at most {max_columns} columns"
        raise InvalidValueError(name="column", value=list(chosen), expected=expected)
    if chosen:
        return chosen
    header = table.head().header()
    named = [trained[name] for name in INPUT_FIELDS if name in trained]
    fits = all(isinstance(name, int) or name in header for name in named)
    return named if fits and len(named) <= max_columns else []


def unused_names(added: Sequence[str], existing: Sequence[str], path: str | Path) -> dict[str, str]:
    """Return the column name to write for each added column: `predicted_label` if there is a `label`.

    >>> unused_names(["label", "score"], ["text", "label"], "test.csv")
    {'label': 'predicted_label', 'score': 'score'}
    """
    names = {name: f"predicted_{name}" if name in existing else name for name in added}
    for name in names.values():
        if name in existing:
            raise FileProblemError(path, f"has a column '{name}' already", hint="remove or rename it")
    return names


def _names_of_row(line: bytes) -> list[str]:
    """Return the names in a line of JSON; none if it is not an object."""
    try:
        row = json.loads(line)
    except ValueError:
        return []
    return [*row] if isinstance(row, dict) else []


class TableWriter:
    """Writes rows to a CSV, TSV, JSON Lines, Parquet or Excel file, by its suffix.

    added: type of each added column, e.g. str or list. source: the table that is read, for its columns;
    without one, rows have the columns `names`. A CSV file has the separators of a source that is one.
    Text files are written row by row, so that an interrupted run leaves complete rows; others at the end.
    """

    def __init__(
        self,
        path: Path,
        added: Mapping[str, type],
        *,
        source: InputTable | None = None,
        names: Sequence[str] = ("text",),
        resume: bool = False,
    ) -> None:
        self.path, self.format = path, file_format(path)
        self.names = source.names if source else tuple(names)
        self._added = unused_names(list(added), self.names, source.table.path if source else path)
        self._types = {self._added[name]: kind for name, kind in added.items()}
        self._source, self._header = source, source is None or source.has_header
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self._whole = path.suffix == ".gz" or self.format in ("parquet", "xlsx")  # cannot be continued
        table = source.table if source else None
        self._delimiter, self._decimal = ",", "."
        if isinstance(table, CsvReader):
            self._delimiter, self._decimal = table.delimiter, table.decimal
        self.rows = 0  # rows of an earlier run
        if resume and self._whole and path.exists():
            hint = "write .csv or .jsonl, or replace the file"
            raise UnsupportedError(f"{path.suffix} output", "resuming", hint=hint)
        if resume and path.exists():
            self.rows = _truncate_partial_row(path, self.format)
            self._check_columns()
            self.rows -= bool(self.rows) and self._header and self.format in ("csv", "tsv")
        self._batch: list[Record] = []
        self._parquet: Any = None
        self._sheet: Any = None
        self._file: IO[bytes] | gzip.GzipFile | None = None
        if self.format == "parquet":
            self._schema()
        elif self.format == "xlsx":
            self._sheet = ExcelSheet([*self.names, *self._added.values()])
        elif self._whole:
            self._file = gzip.open(self._part, "wb")  # noqa: SIM115
        else:
            self._file = path.open("ab" if resume else "wb", buffering=0)
        delimited = self._file is not None and self.format in ("csv", "tsv")
        if self._file is not None and delimited and self._header and not self._file.tell():
            # Excel reads UTF-8 only with a byte order mark
            mark = BOM if source is not None and source.table.encoding != UTF8 else ""
            self._file.write((mark + self._line([*self.names, *self._added.values()])).encode())

    def _check_columns(self) -> None:
        """Raise unless the rows of an earlier run have the columns of this one."""
        added, delimited = [*self._added.values()], self.format in ("csv", "tsv")
        expected = self._line([*self.names, *added]).encode()
        with self.path.open("rb") as file:
            first = file.read(len(BOM.encode()) + len(expected)) if delimited else file.readline()
        if not first or (delimited and not self._header):
            return
        if delimited:
            same = first.removeprefix(BOM.encode()).startswith(expected)
        else:
            names = _names_of_row(first)  # those of the input first, which may differ from row to row
            same = names[len(names) - len(added) :] == added
        if not same:
            hint = "use the options with which it was written, or replace it with --overwrite"
            raise FileProblemError(self.path, "has other columns than this run would write", hint=hint)

    def write(self, record: Record, cells: Mapping[str, object]) -> None:
        """Write a row. cells: values of the added columns; those left out are empty."""
        values = [*map(record.get, self.names), *map(cells.get, self._added)]
        row = record | {own: cells.get(name) for name, own in self._added.items()}
        if self._sheet is not None:
            self._sheet.append(values, self.path)
        elif self._file is None:
            self._batch.append(row)
            if len(self._batch) >= WRITE_ROWS:
                self._flush()
        elif self.format in ("csv", "tsv"):
            self._file.write(self._line(values).encode())
        else:
            self._file.write(f"{json.dumps(row, ensure_ascii=False, default=str)}\n".encode())

    @property
    def can_resume(self) -> bool:
        return not self._whole

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None)

    def close(self, *, complete: bool = True) -> None:
        """Close the file. complete: False removes a file that cannot be continued."""
        if self.format == "parquet" and complete:
            self._flush()
        if self._sheet is not None and complete:
            self._sheet.save(self._part)
        for file in (self._file, self._parquet):
            if file is not None:
                file.close()
        if self._whole and complete:
            self._part.replace(self.path)
        self._part.unlink(missing_ok=True)

    def _line(self, values: Sequence[object]) -> str:
        cells = [_cell(value) for value in values]
        if self._decimal == ",":
            pairs = zip(cells, values, strict=True)
            cells = [cell.replace(".", ",") if isinstance(value, float) else cell for cell, value in pairs]
        if self.format == "tsv":
            return "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerow(cells)
        return text.getvalue()

    def _schema(self) -> None:
        """Open a Parquet file with the columns of the source, and the added ones."""
        pyarrow = import_pyarrow()
        reader = self._source.table if self._source else None
        if isinstance(reader, ParquetReader):
            schema = reader.schema
        elif isinstance(reader, JsonlReader):
            rows = self._source.rows() if self._source else iter(())
            schema = pyarrow.Table.from_pylist([row.record for row in islice(rows, WRITE_ROWS)]).schema
        else:
            schema = pyarrow.schema([(name, pyarrow.string()) for name in self.names])
        kinds = {str: pyarrow.string(), float: pyarrow.float64(), list: pyarrow.list_(pyarrow.float32())}
        for name, kind in self._types.items():
            schema = schema.append(pyarrow.field(name, kinds[kind]))
        self._arrow, self._arrow_schema = pyarrow, schema
        self._parquet = pyarrow.parquet.ParquetWriter(self._part, schema)

    def _flush(self) -> None:
        rows, self._batch = self._batch, []
        try:
            table = self._arrow.Table.from_pylist(rows, schema=self._arrow_schema)
        except (self._arrow.ArrowException, TypeError, ValueError) as error:
            problem = f"cannot hold these rows ({error})"
            raise FileProblemError(self.path, problem, hint="write .jsonl instead") from None
        self._parquet.write_table(table)


class ExcelSheet:
    """A new workbook with one sheet. Text is never a formula, whatever its first character."""

    MAX_ROWS = 1 << 20

    def __init__(self, header: Sequence[str]) -> None:
        try:
            import openpyxl
            from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
        except ModuleNotFoundError:
            raise MissingDependencyError("openpyxl", extra="excel") from None
        self._book, self._control = openpyxl.Workbook(write_only=True), ILLEGAL_CHARACTERS_RE
        self._sheet, self._rows = self._book.create_sheet(), 0
        self.append(header, Path())

    def append(self, values: Sequence[object], path: Path) -> None:
        from openpyxl.cell import WriteOnlyCell

        self._rows += 1
        if self._rows > self.MAX_ROWS:
            problem = f"cannot hold more than {self.MAX_ROWS:,} rows"
            raise FileProblemError(path, problem, hint="write .csv or .parquet instead")
        cells = []
        for value in values:
            is_number = isinstance(value, int | float) and math.isfinite(value)
            cell = WriteOnlyCell(self._sheet, value if is_number else self._control.sub("", _cell(value)))
            if not is_number:
                cell.data_type = "s"
            cells.append(cell)
        self._sheet.append(cells)

    def save(self, path: Path) -> None:
        self._book.save(path)


def _cell(value: object) -> str:
    if value is None or isinstance(value, Invalid):
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _truncate_partial_row(path: Path, kind: FileFormat) -> int:
    """Remove an incomplete last row; return the number of rows, with the header.

    A row of CSV ends at a newline outside quotes, i.e. after an even number of quotes.
    """
    rows = end = position = quotes = 0
    with path.open("rb") as file:
        for line in file:
            position += len(line)
            quotes += line.count(b'"') if kind == "csv" else 0
            if line.endswith(b"\n") and quotes % 2 == 0:
                rows, end = rows + 1, position
    if end < position:
        os.truncate(path, end)
    return rows
