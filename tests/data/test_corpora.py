"""Memory use of readers, and splits of a corpus."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TextSource, pairs, texts
from glassformer.data.split import split_source
from glassformer.errors import EmptyInputError
from tests.data.files import X20, joined, placed, read


def peak(read_all: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        read_all()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def consumed(source: Source) -> int:
    return sum(1 for _ in source.rows(RowErrors()))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "aligned", "paragraph", "file", "held out"])
def test_memory_does_not_grow_with_the_corpus(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.data.split.MAX_CACHED_CHARS", 50_000)  # less than either leaves over

    def source(count: int) -> Source:
        path = tmp_path / f"{count}.{kind}"
        line = "word " * 80
        with path.open("w") as file:
            for n in range(count):
                row = {
                    "csv": f'"{line}",{n}',
                    "jsonl": json.dumps({"src": line, "tgt": "x"}),
                }
                file.write(row.get(kind, f"{n} {line}") + "\n")
        match kind:
            case "aligned":
                return pairs([path, path])
            case "paragraph" | "file":
                return texts(path, sample_by=kind)
            case "held out":
                return split_source(texts(path), 0.1, seed=1)[0]
            case _:
                return pairs(path)

    small, large = source(2000), source(12_000)  # about 0.8 and 5 MB
    assert peak(lambda: consumed(large)) < 1.1 * peak(lambda: consumed(small)) + 50_000


def test_endless_line_and_gzip_bomb_need_little_memory(tmp_path: Path) -> None:
    plain, bomb = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    with plain.open("wb") as file, gzip.open(bomb, "wb", 1) as packed:
        file.write(X20)
        packed.write(X20)
        for _ in range(40):  # 40 MB without a line end
            file.write(b"a" * 1_000_000)
            packed.write(b"a" * 1_000_000)
        file.write(b"\nlast\n")
        packed.write(b"\nlast\n")
    for path in (plain, bomb):
        rows: list[list[str]] = []
        assert peak(lambda path=path, rows=rows: rows.extend(read(texts(path)))) < 8_000_000  # type: ignore[misc]
        assert len(rows[0]) == 21 and rows[1] == [f"{path.name} 21: is longer than 1,048,576 bytes"]
        assert peak(lambda path=path: consumed(texts(path, sample_by="file"))) < 8_000_000  # type: ignore[misc]


def test_split_puts_every_sentence_into_exactly_one_side(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    forms = ("Caf\u00e9 {}", "cafe\u0301  {}", " CAF\u00c9 {} ", "Cafe {}")
    path.write_text("".join(f"{form.format(n)}\t{n}\n" for form in forms for n in range(2000)), "utf-8")
    full = pairs(path)
    train, valid = (read(side)[0] for side in split_source(full, 0.1, seed=3))
    assert sorted(train + valid) == sorted(read(full)[0])
    same = {row[1] for row in valid if not row[0].startswith("Cafe ")}
    assert not same & {row[1] for row in train if not row[0].startswith("Cafe ")}
    assert 0.08 < len(valid) / 8000 < 0.12  # 0.1 of 4,000 different ones: five standard deviations are 0.024
    again, other = (read(split_source(full, 0.1, seed=seed)[1])[0] for seed in (3, 4))
    assert again == valid and other != valid
    sides = split_source(full, 0.1, seed=3)
    assert read(sides[0])[0] == train
    path.rename(tmp_path / "b.tsv")  # what the one side left was kept for the other
    assert read(sides[1])[0] == valid
    (tmp_path / "b.tsv").rename(path)
    with pytest.raises(EmptyInputError):
        split_source(full, 1e-9, seed=0)
    with pytest.raises(EmptyInputError):
        split_source(full, 1 - 1e-9, seed=0)


def test_split_of_files_holds_out_the_end(tmp_path: Path) -> None:
    contents = ["".join(f"line {n}\n" for n in range(count)) for count in (50_000, 300)]
    paths = placed(tmp_path, {f"{n}.txt": text.encode() for n, text in enumerate(contents)})
    train, valid = split_source(texts(paths, sample_by="file"), 0.1, seed=0)
    assert isinstance(train, TextSource) and isinstance(valid, TextSource)
    for start, end, full in zip(joined(train), joined(valid), contents, strict=True):
        assert start + end == full and start.endswith("\n")
        assert abs(len(end) / len(full) - 0.1) < 0.01
