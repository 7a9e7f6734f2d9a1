"""A file's name where a text is read: taken as a text, and who gave it is told of --file."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.tasks.reversing import reverser, speaker

NOTE = "note: 'src.txt' is taken as a text; --file src.txt reads the file"


@pytest.fixture
def place(tmp_path, monkeypatch, capsys):
    reverser()
    monkeypatch.chdir(tmp_path)
    Path("src.txt").write_text("red blue\n")
    speaker(tmp_path / "speaker")
    capsys.readouterr()


def test_it_is_said_once_by_every_kind_of_verb(run, place):
    for words in (
        ["translate", reverser()],
        ["generate", "./speaker", "--max-new-tokens", 4],
        ["embed", "pocket"],
    ):
        done = run(*words, "src.txt")
        assert done.code == 0 and done.err.count(NOTE) == 1, done
    done = run("similar", "pocket", "src.txt", "--in", "src.txt")
    assert done.code == 0 and done.err.count(NOTE) == 1, done


def test_nothing_is_said_where_it_is_plain(run, place):
    for words in (["--file", "src.txt"], ["red", "src.txt"], ["red"], ["red " * 3000]):
        assert "taken as a text" not in run("translate", reverser(), *words).err


def test_a_picture_s_name_is_what_a_model_of_pictures_reads(run, place):
    Image.new("L", (28, 28)).save("a.png")
    done = run("classify", "pocket-digits", "a.png")
    assert done.code == 0 and "taken as a text" not in done.err
