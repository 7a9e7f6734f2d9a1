"""Plain text for language models and tokenizers: lines, documents, whole files, or a column of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from glassformer.data.lines import Flaw, lines, pieces
from glassformer.data.names import TEXTS, known_one, looks_like_names
from glassformer.data.pairs import texts_in
from glassformer.data.problems import Problems, Tally
from glassformer.data.sources import Paths, Rows, Texts, fingerprint_of, paths_of, text_of
from glassformer.data.stamps import Stamp, by_time
from glassformer.data.tables import Column, Table, kind_of, open_table
from glassformer.errors import GlassformerError

Unit = Literal["line", "document", "file"]
_PIECE = 1 << 16  # letters of a document given at a time


def texts(paths: Paths, *, unit: Unit = "line", column: Column | None = None) -> TextFiles | TextColumn:
    """Documents from plain files, or from a column of TSV, CSV, JSON Lines or Parquet files.

    unit: what a document is in a plain file: each line, what stands between blank lines, or all of it.
    In a table each row is one.
    """
    files = paths_of(paths)
    kinds = {kind_of(file) for file in files}
    if unit not in get_args(Unit):
        raise GlassformerError(f"unit is '{unit}'; it can be {', '.join(get_args(Unit))}")
    if "plain" in kinds and len(kinds) > 1:
        raise GlassformerError("plain text and tables cannot be read together; give one kind of file")
    if "plain" in kinds:
        if column is not None:
            raise GlassformerError(f"'{files[0]}' is plain text and has no column '{column}'")
        return TextFiles(files, unit)
    if unit != "line":
        raise GlassformerError(f"'{files[0]}' is a table, where each row is a document; leave the unit out")
    tables = [open_table(file) for file in files]
    return TextColumn(tables, column or _chosen(tables[0]))


def _chosen(table: Table) -> Column:
    head = table.head()
    names = head.names
    if names is None:
        cells = [str(cell).strip() for cell in head.rows[0]]
        if len(cells) == 1:
            return cells[0] if cells[0].lower() in TEXTS else 1
        names = tuple(cells) if looks_like_names(cells) else ()
        found = known_one(names, TEXTS)
    else:
        of_text = texts_in(head)
        found = known_one(of_text, TEXTS) or (of_text[0] if len(of_text) == 1 else None)
    if found is None:
        has = f"it has {', '.join(names)}" if names else "its first line names none, so give a number"
        raise GlassformerError(f"which column of '{table.path}' is the text is not plain; {has}")
    return found


class TextFiles(Texts):
    """The documents of plain files; blank lines are none."""

    def __init__(self, paths: list[Path], unit: Unit) -> None:
        self.paths, self.unit = paths, unit

    def pieces(self, problems: Problems) -> Iterator[tuple[int, str]]:
        number = -1
        for path in self.paths:
            tally = problems.begin(path)
            for new, piece in self._read(path, tally):
                number += new
                yield number, piece
            tally.end()

    def _read(self, path: Path, tally: Tally) -> Iterator[tuple[bool, str]]:
        """Whether a document begins with this piece, and the piece."""
        match self.unit:
            case "file":
                for place, piece in enumerate(pieces(path, tally)):
                    yield place == 0, piece
            case "line":
                for line in _good(path, tally):
                    if line.strip():
                        tally.good += 1
                        yield True, line
            case "document":
                yield from _between_blanks(_good(path, tally), tally)

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return fingerprint_of(self.paths, self.unit, stamp=stamp)


def _good(path: Path, tally: Tally) -> Iterator[str]:
    for number, line in enumerate(lines(path), 1):
        if isinstance(line, Flaw):
            tally.add(number, line.what)
        else:
            yield line


def _between_blanks(good: Iterator[str], tally: Tally) -> Iterator[tuple[bool, str]]:
    """Lines joined again; the newline between two lines stands at the start of the later one's piece."""
    held: list[str] = []
    size, new, begun = 0, True, False
    for line in good:
        if line.strip():
            tally.good += 1
            held.append("\n" + line if begun else line)
            size, begun = size + len(held[-1]), True
        if held and (size >= _PIECE or not line.strip()):
            yield new, "".join(held)
            held, size, new = [], 0, False
        if not line.strip():
            new, begun = True, False
    if held:
        yield new, "".join(held)


class TextColumn(Texts):
    """Each row of a table's column is a document."""

    def __init__(self, tables: list[Table], column: Column) -> None:
        self._rows = Rows(self.fields, tables, (column,), (text_of,))
        self.column, self.chosen = column, self._rows.chosen

    def pieces(self, problems: Problems) -> Iterator[tuple[int, str]]:
        for number, (text,) in enumerate(self._rows.rows(problems)):
            yield number, text

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return self._rows.fingerprint(stamp)
