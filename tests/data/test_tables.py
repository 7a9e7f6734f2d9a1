"""Tables that are written row by row and continued."""

from __future__ import annotations

import pytest

from glassformer.data.tables import TableWriter
from glassformer.errors import FileProblemError


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_resuming_with_other_columns_is_an_error(tmp_path, name):
    path = tmp_path / name
    with TableWriter(path, {"answer": str}, names=("image",)) as table:
        table.write({"image": "a.png"}, {"answer": "two"})
    before = path.read_bytes()
    with pytest.raises(FileProblemError):
        TableWriter(path, {"answer": str, "answer 2": str}, names=("image",), resume=True)
    assert path.read_bytes() == before
    with TableWriter(path, {"answer": str}, names=("image",), resume=True) as table:
        assert table.rows == 1
        table.write({"image": "b.png"}, {"answer": "three"})
    assert path.read_text().count("png") == 2


def test_resuming_compares_only_what_is_written_alike(tmp_path):
    """Rows of JSON may have names of their own, and a name may contain a line break."""
    path = tmp_path / "out.jsonl"
    path.write_text('{"image": "a.png", "id": 3, "answer": "two"}\n')
    with TableWriter(path, {"answer": str}, names=("image",), resume=True) as table:
        assert table.rows == 1
    path.write_text("two\n")
    with pytest.raises(FileProblemError):
        TableWriter(path, {"answer": str}, names=("image",), resume=True)
    path = tmp_path / "out.csv"
    for resume in (False, True):
        with TableWriter(path, {"answer": str}, names=("image\nfile",), resume=resume) as table:
            table.write({"image\nfile": "a.png"}, {"answer": "two"})
    assert path.read_text().count("a.png") == 2
