"""Texts with a label each, from tables; the columns are found where none are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glassformer.data.lines import Flaw
from glassformer.data.names import LABELS, TEXTS, known_one, looks_like_names
from glassformer.data.sources import Paths, Rows, label_of, paths_of, text_of
from glassformer.data.tables import Column, Table, open_table
from glassformer.errors import GlassformerError

FIELDS = ("text", "label")


def labelled(paths: Paths, *, columns: Sequence[Column] | None = None) -> Rows:
    """Rows of text and label.

    columns: the names or numbers (from 1) of the text and the label column. Without them the label is the
    column with a usual name, else with the fewest different values; the text likewise, else the longest.
    The result's `columns` and `chosen` say what was found.
    """
    tables = [open_table(file) for file in paths_of(paths)]
    if columns is not None and len(columns) != 2:
        raise GlassformerError(f"{len(columns)} columns were named; there are two, text and label")
    return Rows(FIELDS, tables, columns or _chosen(tables[0]), (text_of, label_of))


def _chosen(table: Table) -> tuple[Column, Column]:
    head = table.head()
    width = Counter(map(len, head.rows)).most_common(1)[0][0] if head.rows else 0
    if width < 2:
        raise GlassformerError(f"'{table.path}' has one column; labelled text needs a text and a label")
    rows = [row for row in head.rows if len(row) == width]
    names = head.names
    if names is None:
        first = [str(cell).strip() for cell in rows[0]]
        if looks_like_names(first) or _is_header(rows):
            names, rows = tuple(first), rows[1:]
    columns = [_Column(place, values) for place, values in enumerate(zip(*rows, strict=True))]
    if not columns:
        raise GlassformerError(f"'{table.path}' holds no rows below its header")

    def named(usual: Sequence[str], among: list[_Column]) -> _Column | None:
        found = known_one([names[column.place] for column in among], usual) if names else None
        return None if found is None or names is None else columns[names.index(found)]

    label = named(LABELS, columns) or min(columns, key=lambda column: (column.different, column.length))
    rest = [column for column in columns if column is not label and column.is_text]
    text = named(TEXTS, rest) or max(rest, key=lambda column: column.length, default=None)
    has = ", ".join(names) if names else f"{width} columns"
    if label.different == len(rows) > 10:
        which = f"'{names[label.place]}'" if names else label.place + 1
        raise GlassformerError(
            f"no two rows of '{table.path}' have the same label, if column {which} is the label; name the "
            f"columns of text and label, of: {has}"
        )
    if text is None:
        raise GlassformerError(
            f"which columns of '{table.path}' are text and label is not plain; name two of: {has}"
        )
    if names is not None:
        return names[text.place], names[label.place]
    return text.place + 1, label.place + 1


class _Column:
    """What the first rows tell of a column."""

    def __init__(self, place: int, values: Sequence[object]) -> None:
        labels = [label_of(value) for value in values]
        good = [label for label in labels if not isinstance(label, Flaw)]
        self.place = place
        self.different = len(set(good)) or len(values) + 1  # a column of nothing is the last to be chosen
        self.length = sum(map(len, good)) / max(1, len(good))
        self.is_text = any(isinstance(value, str) for value in values)


def _is_header(rows: Sequence[Sequence[object]]) -> bool:
    """Whether the first row has something else where all others have one of a few labels."""
    rest = [_Column(place, values) for place, values in enumerate(zip(*rows[1:], strict=True))]
    if len(rows) < 4:
        return False
    label = min(rest, key=lambda column: (column.different, column.length)).place
    labels = {label_of(row[label]) for row in rows[1:]}
    return len(labels) * 2 <= len(rows) - 1 and label_of(rows[0][label]) not in labels
