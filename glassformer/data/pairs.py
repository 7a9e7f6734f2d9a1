"""Sentence pairs: two files aligned line by line, or tables with a column for each side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from glassformer.data.lines import Flaw, lines
from glassformer.data.names import known_pair, looks_like_names
from glassformer.data.problems import Problems
from glassformer.data.sources import Paths, Rows, Source, fingerprint_of, paths_of, text_of
from glassformer.data.stamps import Stamp, by_time
from glassformer.data.tables import Column, Head, Table, kind_of, open_table
from glassformer.errors import GlassformerError

FIELDS = ("source", "target")


def pairs(
    paths: Paths, *, columns: Sequence[Column] | None = None, to: Column | None = None
) -> Rows | Aligned:
    """Pairs from two plain files, line by line, or from TSV, CSV, JSON Lines or Parquet files.

    columns: the names or numbers (from 1) of the source and the target column. Without them they are the
    ones with usual names, else the only two columns of text, else the first two.
    to: the column that names the language of each target, as a third field, `to`.
    A single plain file is read as TSV.
    """
    files = paths_of(paths)
    kinds = [kind_of(file) for file in files]
    if len(files) == 2 and kinds == ["plain", "plain"] and columns is None and to is None:
        return Aligned(files[0], files[1])
    if "plain" in kinds and len(set(kinds)) > 1:
        raise GlassformerError(
            f"'{files[kinds.index('plain')]}' is plain text and the others are tables; "
            "give two plain files, or tables only"
        )
    if columns is not None and len(columns) != 2:
        raise GlassformerError(f"{len(columns)} columns were named; a pair has two, source and target")
    tables = [open_table(file) for file in files]
    if to is None:
        return Rows(FIELDS, tables, columns or _chosen(tables[0]), (text_of, text_of))
    for table in tables:
        _refuse_without(table, to)
    if columns is None and isinstance(to, int):
        raise GlassformerError(f"column {to} names the language; give the two columns of the pair too")
    return Rows(
        (*FIELDS, "to"), tables, (*(columns or _chosen(tables[0], to)), to), (text_of, text_of, text_of)
    )


def _refuse_without(table: Table, to: Column) -> None:
    """A sentence where a table has no column of the name that languages are to be found under."""
    head = table.head(1)
    names = head.names or [str(cell).strip() for cell in head.rows[0]]
    if isinstance(to, str) and to not in names:
        raise GlassformerError(
            f"'{table.path}' has no column '{to}', which is to name the language of each target; add it, or "
            "measure pairs of one language with `glassformer evaluate` and --to, as --to de"
        )


def _chosen(table: Table, to: Column | None = None) -> tuple[Column, ...]:
    """The columns of the pair, which are not the one that names the language."""
    head = table.head()
    if head.names is None:
        names = [name for cell in head.rows[0] if (name := str(cell).strip()) != to]
        if to is not None or looks_like_names(names):
            return known_pair(names) or (names[0], names[1])
        return 1, 2
    texts = [name for name in texts_in(head) if name != to]
    if found := known_pair(texts):
        return found
    if len(texts) != 2:
        raise GlassformerError(
            f"which columns of '{table.path}' are the pair is not plain; name two of: {', '.join(head.names)}"
        )
    return texts[0], texts[1]


def texts_in(head: Head) -> list[str]:
    """The columns whose values are text wherever they are given."""
    columns = zip(head.names or (), zip(*head.rows, strict=True), strict=bool(head.rows))
    return [name for name, values in columns if {type(value) for value in values} - {type(None)} == {str}]


class Aligned(Source):
    """Line n of one file and line n of the other."""

    fields = FIELDS
    columns = None
    chosen = "source from the first file, target from the second"

    def __init__(self, source: Path, target: Path) -> None:
        self.paths = (source, target)

    def rows(self, problems: Problems) -> Iterator[tuple[str, ...]]:
        tally = problems.begin(self.paths[0])
        counts = [0, 0]
        for number, both in enumerate(zip_longest(*map(lines, self.paths)), 1):
            for side in (0, 1):
                counts[side] += both[side] is not None
            if counts[0] != counts[1]:
                continue  # the longer one is read on, to be counted
            if all(isinstance(line, str) and not line.strip() for line in both):
                continue  # a blank line in both is a gap between texts
            row = []
            for path, line in zip(self.paths, both, strict=True):
                read = line if isinstance(line, Flaw) else text_of(line)
                if isinstance(read, Flaw):
                    tally.add(number, read.what, file=path)
                    break
                row.append(read)
            else:
                tally.good += 1
                yield tuple(row)
        if counts[0] != counts[1]:
            raise GlassformerError(
                f"'{self.paths[0]}' has {counts[0]:,} line{'s' * (counts[0] != 1)} and "
                f"'{self.paths[1]}' has {counts[1]:,}; pairs need the same number in both"
            )
        tally.end()

    def fingerprint(self, stamp: Stamp = by_time) -> str:
        return fingerprint_of(self.paths, "aligned", stamp=stamp)
