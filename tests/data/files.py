"""Small files, good rows, and all that a reader says of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from glassformer.data.problems import Problems
from glassformer.data.sources import Source, Texts
from glassformer.data.store import Store

GOOD = b"".join(b"word %d\tWort %d\n" % (n, n) for n in range(20))  # enough that one bad row is no tenth
GOOD_ROWS = [(f"word {n}", f"Wort {n}") for n in range(20)]
X20 = b"x\n" * 20


def read(source: Source) -> tuple[list[tuple[str, ...]], list[str]]:
    """All rows, and what was told of the others, by file name."""
    problems = Problems()
    rows = list(source.rows(problems))
    told = [f"{Path(p.file).name} {p.line}: {p.what}" for p in problems.first]
    return rows, told


def rows_of(store: Store) -> list[list[list[int]]]:
    """The fields of every row, from all rows read as one batch."""
    if not len(store):
        return []
    fields, lengths = store.together(np.arange(len(store)))
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


def joined(source: Texts) -> list[str]:
    """Each document whole."""
    return ["".join(document) for document in source.documents(Problems())]
