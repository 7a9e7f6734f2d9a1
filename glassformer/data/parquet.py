"""Parquet files, a batch of rows at a time. pyarrow is imported only when such a file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING

from glassformer.data.problems import Tally
from glassformer.data.tables import HEAD, Column, Head, Table
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 256  # of a batch; rows of a megabyte each still fit


class Parquet(Table):
    """The columns of a Parquet file; one inside a struct is written with a dot, `translation.en`."""

    unit = "row"

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise GlassformerError(
                f"reading '{path}' needs pyarrow, which is not installed: pip install pyarrow"
            ) from None
        self._broken = (OSError, UnicodeDecodeError, pyarrow.ArrowException)
        self._open = pyarrow.parquet.ParquetFile
        try:
            with self._open(self.path) as file:
                fields = list(file.schema_arrow)
        except self._broken:
            raise GlassformerError(f"'{path}' is not a Parquet file, or is damaged") from None
        # Each column by its name, and the column of the file it lies in.
        self._tops: dict[str, str] = {}
        for field in fields:
            inner = _inner(field.type)
            names = [f"{field.name}.{part}" for part in inner] if inner else [field.name]
            self._tops |= dict.fromkeys(names, field.name)
        self.names = tuple(self._tops)

    def head(self, count: int = HEAD) -> Head:
        rows = [tuple(values) for _, values in islice(self._values(self.names), count)]
        if not rows:
            Tally(str(self.path)).end()
        return Head(names=self.names, rows=rows)

    def rows(self, columns: Sequence[Column], tally: Tally) -> Iterator[tuple[int, Sequence[object]]]:
        return self._values([self._name(column) for column in columns])

    def _name(self, column: Column) -> str:
        if isinstance(column, int) and 1 <= column <= len(self.names):
            return self.names[column - 1]
        if isinstance(column, int) or column not in self.names:
            raise self.missing(column, self.names)
        return column

    def _values(self, names: Sequence[str]) -> Iterator[tuple[int, Sequence[object]]]:
        seen = 0
        try:
            with self._open(self.path) as file:
                tops = dict.fromkeys(self._tops[name] for name in names)
                for batch in file.iter_batches(_ROWS, columns=list(tops)):
                    found: dict[str, pa.Array] = {}
                    for name, column in zip(batch.schema.names, batch.columns, strict=True):
                        inner = _inner(column.type)
                        if inner:
                            parts = (f"{name}.{part}" for part in inner)
                            found |= dict(zip(parts, column.flatten(), strict=True))
                        else:
                            found[name] = column
                    columns = [found[name].to_pylist() for name in names]
                    yield from enumerate(zip(*columns, strict=True), seen + 1)
                    seen += batch.num_rows
        except self._broken:
            raise GlassformerError(f"'{self.path}' is damaged after row {seen:,}") from None


def _inner(kind: pa.DataType) -> list[str]:
    """The names inside a struct; none for anything else."""
    from pyarrow import types

    return [field.name for field in kind.fields] if types.is_struct(kind) else []
