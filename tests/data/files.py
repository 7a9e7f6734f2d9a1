"""Small files for the tests of readers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TextSource
from glassformer.data.store import Store

GOOD = b"".join(b"word %d\tWort %d\n" % (n, n) for n in range(20))  # enough that one bad row is no tenth
GOOD_ROWS = [(f"word {n}", f"Wort {n}") for n in range(20)]
X20 = b"x\n" * 20


def read(source: Source) -> tuple[list[tuple[str, ...]], list[str]]:
    """All rows, and the errors of the others, with file names."""
    errors = RowErrors()
    rows = list(source.rows(errors))
    reasons = [f"{Path(p.file).name} {p.line}: {p.reason}" for p in errors.first]
    return rows, reasons


def rows_of(store: Store) -> list[list[list[int]]]:
    """The fields of every row, from all rows read as one batch."""
    if not len(store):
        return []
    fields, lengths = store.gather(np.arange(len(store)))
    columns = [np.split(ids, sizes.cumsum()[:-1]) for ids, sizes in zip(fields, lengths.T, strict=True)]
    return [[ids.tolist() for ids in row] for row in zip(*columns, strict=True)]


def placed(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def jsonl(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def many(value: object, last: bytes) -> bytes:
    return jsonl(*[value] * 20) + last


def joined(source: TextSource) -> list[str]:
    """Each document whole."""
    return ["".join(document) for document in source.documents(RowErrors())]
