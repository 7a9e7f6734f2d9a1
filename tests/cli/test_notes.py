"""What the verbs say on standard error of texts that they were not made for, and of none at all."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer

NOTHING = "note: there is nothing to read; give texts as arguments, with --file, or on standard input\n"
EMPTY = "note: there is nothing to read; the file is empty\n"


def test_doubts_are_told_once_for_all_texts(run: Any) -> None:
    texts = ("Привет, how are you?", "Where is the library?", "Ελλάδα is nice.")
    done = run("translate", "pocket", "--to", "de", "--num-beams", 1, "--json", *texts)
    told = [json.loads(line)["doubts"] for line in done.out.splitlines()]
    assert done.code == 0 and told == [["letters"], [], ["letters"]]
    assert done.err == (
        "note: 2 texts have letters or signs that the model 'pocket' does not know; what it makes of the "
        "words they stand in means nothing\n"
    )
    long = "I have two cats and a dog. " * 20
    done = run("translate", "pocket", "--to", "de", "--num-beams", 1, "--split", "never", long)
    learnt = glassformer.load("pocket").job.usual_len
    assert f"note: 1 text is longer than the {learnt} tokens that the model 'pocket' has learnt" in done.err
    assert run("translate", "pocket", "--to", "de", "--num-beams", 1, long).err == ""
    done = run("translate", "pocket", "--to", "de", "--num-beams", 1, "a" * 200)
    assert "note: 1 text has a stretch without a space that is longer than the model 'pocket'" in done.err


@pytest.mark.parametrize("verb", [["translate", "pocket", "--to", "de"], ["classify", "pocket-digits"]])
def test_that_there_was_nothing_to_read(
    run: Any, verb: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of an empty file as of standard input: it is a job without texts, and it is done."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    done = run(*verb)
    assert (done.code, done.out, done.err) == (0, "", NOTHING)
    files = {"a.txt": b"", "b.txt": b"\xef\xbb\xbf", "c.txt.gz": gzip.compress(b"")}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        done = run(*verb, "--file", tmp_path / name)
        assert (done.code, done.out, done.err) == (0, "", EMPTY)


def test_no_answers_are_an_empty_file(run: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").touch()
    out, vectors = tmp_path / "out.txt", tmp_path / "out.npy"
    done = run("translate", "pocket", "--to", "de", "--file", tmp_path / "in.txt", "--out", out)
    assert (done.code, done.err, out.read_bytes()) == (0, EMPTY, b"")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out.txt"]
    done = run("embed", "pocket", "--file", tmp_path / "in.txt", "--out", vectors)
    assert done.code == 0 and np.load(vectors).shape == (0, 384)


def test_an_empty_line_is_something(run: Any, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n\n")
    done = run("translate", "pocket", "--to", "de", "--file", lines)
    assert (done.code, done.out, done.err) == (0, "\n\n", "")


def test_a_text_is_begun_from_an_empty_argument_and_not_from_an_empty_line(run: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("The sea\n\n  \nThe sea\n")
    words = ["generate", "pocket-lm", "--max-new-tokens", 3, "--no-do-sample", "--num-beams", 2]
    sea, blank = (run(*words, text).out for text in ("The sea", ""))
    assert sea.strip() and blank.strip()
    done = run(*words, "--file", tmp_path / "in.txt")
    assert (done.code, done.out) == (0, f"{sea}\n\n{sea}")
    echoed = run(*words, "--echo", "--file", tmp_path / "in.txt")
    assert echoed.out == f"The sea{sea}\n\nThe sea{sea}"
