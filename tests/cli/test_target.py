"""What verbs write: nothing that is there is lost unless it is asked for, and never what is read."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.reversing import reverser

MINE = "mine, and not to be lost\n"
SERIES = "date,OT\n" + "".join(f"2024-01-01 {n // 60:02}:{n % 60:02}:00,{n % 7}\n" for n in range(600))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    reverser()
    capsys.readouterr()  # what its training says is none of ours
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("red blue\tblue red\ngold\tgold\n")
    Path("series.csv").write_text(SERIES)
    return tmp_path


# a command, the file it is told to write, and those that it writes
VERBS = {
    "evaluate": (["evaluate", "MODEL", "pairs.tsv", "--out"], "a.txt", ["a.txt"]),
    "forecast": (["forecast", "pocket-series", "series.csv", "--out"], "a.csv", ["a.csv", "a.png"]),
    "picture": (["forecast", "pocket-series", "series.csv", "--picture"], "a.png", ["a.png"]),
    "embed": (["embed", "MODEL", "red", "--out"], "a.npy", ["a.npy"]),
    "tree": (["translate", "MODEL", "red", "--tree"], "a.json", ["a.json"]),
    "drawn tree": (["translate", "MODEL", "red", "--tree"], "a.svg", ["a.svg"]),
    "page": (["explore", "pocket-digits", "--export"], "a.html", ["a.html"]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_is_there_is_written_over_only_when_asked(run, place, verb):
    words, file, written = VERBS[verb]
    words = [str(reverser()) if word == "MODEL" else word for word in words]
    for name in written:
        Path(name).write_text(MINE)
        done = run(*words, file)
        assert done.code == 2 and not done.out, done
        (line,) = done.err.splitlines()
        assert f"'{name}' is there already" in line and "--overwrite" in line
        assert Path(name).read_text() == MINE
        assert run(*words, file, "--overwrite").code == 0
        assert all(MINE.encode() not in Path(one).read_bytes() for one in written)
        for one in written:
            Path(one).unlink()


def test_what_is_read_is_never_written_over(run, place):
    for words in (
        ["evaluate", reverser(), "pairs.tsv", "--out", "./pairs.tsv"],
        ["forecast", "pocket-series", "series.csv", "--out", "series.csv"],
        ["forecast", "pocket-series", "series.csv", "--picture", "series.csv"],
    ):
        before = {path: path.read_bytes() for path in place.iterdir()}
        done = run(*words, "--overwrite")
        assert done.code == 2 and "is the file being read" in done.err and "Traceback" not in done.err
        assert {path: path.read_bytes() for path in place.iterdir()} == before


def test_a_tree_is_not_written_over_the_answers(run, place):
    done = run("translate", reverser(), "red", "--out", "a.json", "--tree", "./a.json", "--overwrite")
    assert done.code == 2 and "give two names" in done.err and not Path("a.json").exists()


def test_a_pipe_keeps_its_name(run, place):
    os.mkfifo("pipe")
    done = run("evaluate", reverser(), "pairs.tsv", "--out", "pipe", "--overwrite")
    assert done.code == 2 and "no ordinary file" in done.err and Path("pipe").is_fifo()


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file grows to what a page or a model needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_page_that_does_not_fit_leaves_the_one_that_is_there(run, place, small_disk):
    Path("a.html").write_text(MINE)
    before = sorted(place.iterdir())
    done = run("explore", "pocket-digits", "--export", "a.html", "--overwrite")
    assert done.code == 2 and "a.html" in done.err and len(done.err.splitlines()) == 1, done
    assert Path("a.html").read_text() == MINE and sorted(place.iterdir()) == before


def test_a_folder_that_does_not_fit_is_not_left_in_part(run, place, small_disk):
    """One that was there keeps what it held."""
    Path("there").mkdir()
    Path("there/notes.txt").write_text(MINE)
    for target, options in (("new", []), ("there", ["--overwrite"])):
        done = run("convert", "pocket-digits", target, *options)
        assert done.code == 2 and target in done.err and len(done.err.splitlines()) == 1, done
    assert not Path("new").exists() and Path("there/notes.txt").read_text() == MINE
