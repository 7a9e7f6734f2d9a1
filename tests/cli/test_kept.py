"""How it is kept what made a file of answers, whatever its name, its place and the settings are."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from glassformer.cli import kept, taken
from glassformer.cli.given import Given
from glassformer.cli.kept import keeping
from glassformer.cli.progress import ATTRIBUTE, told_with
from glassformer.errors import GlassformerError
from tests.forked import Forked
from tests.tasks.reversing import reverser

TEXTS = ["red", "blue", "gold"]
SHOUTED = "RED\nBLUE\nGOLD\n"
MADE = {"verb": "shout"}


def shout(
    out: Path,
    texts: Sequence[str] = TEXTS,
    *,
    made: Mapping[str, Any] = MADE,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """A verb without a model: every text in capitals. meanwhile: done before the last is answered."""
    source = Given(kind="file", lines=iter(texts), total=len(texts))
    with keeping(out, source, made=made, resume=True, overwrite=False, telling=False) as keeper:
        for text in keeper.texts:
            if text == texts[-1] and meanwhile is not None:
                meanwhile()
            keeper.take_at(text.upper(), fresh=True)


def stop() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def attributed(tmp_path):
    """Only where the file system keeps attributes."""
    try:
        os.setxattr(tmp_path, "user.tried", b"")
    except (AttributeError, OSError):
        pytest.skip("files have no attributes here")


@pytest.mark.usefixtures("attributed")
def test_what_was_written_is_told_of_and_not_what_bears_its_name(tmp_path):
    """Renamed, replaced or deleted during the run, which ends well with all lines."""
    out, moved = tmp_path / "out.txt", tmp_path / "moved.txt"

    def replace() -> None:
        out.rename(moved)
        out.write_text("my own\n")

    for meanwhile in (lambda: out.rename(moved), replace):
        shout(out, meanwhile=meanwhile)
        told = told_with(moved)
        assert moved.read_text() == SHOUTED and told is not None and told.lines == 3
        assert not (tmp_path / "out.txt.progress").exists()
        moved.unlink()
    assert out.read_text() == "my own\n" and ATTRIBUTE not in os.listxattr(out)
    out.unlink()
    shout(out, meanwhile=out.unlink)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="Python knows no attributes here")
def test_a_file_system_without_attributes_is_as_good(tmp_path, monkeypatch, capsys):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "setxattr", refuse)
    out = tmp_path / "out.txt"
    shout(out)
    assert out.read_text() == SHOUTED and not capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]
    shout(out)
    assert "nothing tells what made them; they stay as they are" in capsys.readouterr().err
    assert out.read_text() == SHOUTED


def test_through_a_link_it_is_told_beside_the_file(tmp_path):
    """A run that was begun through a link, there before its file, is gone on with by the file's own name."""
    (tmp_path / "far").mkdir()
    out, link = tmp_path / "far" / "out.txt", tmp_path / "link.txt"
    link.symlink_to(out)
    with pytest.raises(KeyboardInterrupt):
        shout(link, meanwhile=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"far", "link.txt"} and link.is_symlink()
    assert {path.name for path in out.parent.iterdir()} == {"out.txt", "out.txt.progress"}
    shout(out)
    assert out.read_text() == SHOUTED and list(out.parent.iterdir()) == [out]
    lost = tmp_path / "lost.txt"
    lost.symlink_to(tmp_path / "nowhere" / "out.txt")
    with pytest.raises(GlassformerError, match=r"lost\.txt' cannot be written to"):
        shout(lost)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
def test_what_is_open_already_is_written_to(tmp_path):
    """By its number, as the shell's 3>FILE; with its name taken away there is nothing to stand beside."""
    for name in ("/dev/fd", "/proc/self/fd"):
        out = tmp_path / "out.txt"
        with out.open("wb") as file:
            shout(Path(name, str(file.fileno())))
        assert out.read_text() == SHOUTED and list(tmp_path.iterdir()) == [out]
        with out.open("w+b") as file:
            out.unlink()
            shout(Path(name, str(file.fileno())))
            assert file.read().decode() == SHOUTED and not list(tmp_path.iterdir())
    read, write = os.pipe()
    shout(Path(f"/dev/fd/{write}"))
    assert os.read(read, 100).decode() == SHOUTED
    os.close(read)
    os.close(write)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="there is no /dev/stdout here")
def test_standard_output_is_a_file_where_it_leads_to_one(tmp_path):
    out = tmp_path / "out.txt"
    words = ["translate", str(reverser()), "red blue", "--num-beams", "1", "--stop", os.fsdecode(b"\xff")]
    with out.open("wb") as file:
        program = [sys.executable, "-m", "glassformer", *words, "--out", "/dev/stdout"]
        done = subprocess.run(program, stdout=file, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, out.read_text()) == (0, "blue red\n"), done.stderr
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("attributed")
def test_settings_of_any_length_and_letters_are_kept(tmp_path, capsys):
    """Bytes that are no UTF-8, as the command line gives them, and more than an attribute has room for."""
    out = tmp_path / "out.txt"
    made = {**MADE, "--stop": ("x" * 5000, os.fsdecode(b"\xff"))}
    other = {**MADE, "--stop": ("x" * 5001,)}
    with pytest.raises(KeyboardInterrupt):
        shout(out, made=made, meanwhile=stop)
    for told in ("stopped; 2 lines", "2 lines are done", "has a line for each of the 3 texts already"):
        assert told in capsys.readouterr().err
        with pytest.raises(
            GlassformerError, match=r"begun with --stop <5,014 letters.*now with --stop <5,005 "
        ):
            shout(out, made=other)
        with pytest.raises(GlassformerError, match="now without --stop"):
            shout(out)
        shout(out, made=made)
    assert out.read_text() == SHOUTED and list(tmp_path.iterdir()) == [out]


def test_lines_that_nobody_counted_are_made_anew(tmp_path, capsys):
    """Killed before they were: they may answer other texts than those that are given now."""
    out, record = tmp_path / "out.txt", tmp_path / "out.txt.progress"
    others = ["tin", "zinc", "lead", "iron"]
    for texts in (TEXTS, others):
        child = Forked(
            lambda: shout(out, meanwhile=lambda: os.kill(os.getpid(), signal.SIGKILL)),
            tmp_path / texts[0],
        )
        assert child.wait() == -signal.SIGKILL and out.read_text() == "RED\nBLUE\n"
        assert json.loads(record.read_text())["lines"] == 0
        shout(out, texts)
        assert "2 lines" in (told := capsys.readouterr().err) and "made anew" in told
        assert out.read_text() == "".join(f"{text.upper()}\n" for text in texts)
        out.unlink()


def test_what_was_taken_is_counted_before_more_is_made(tmp_path, monkeypatch):
    """Lines come many at once, and then none for long: a kill in between costs none of them."""
    out, record, clock = tmp_path / "out.txt", tmp_path / "out.txt.progress", [0.0]
    monkeypatch.setattr(kept.time, "monotonic", lambda: clock[0])
    source = Given(kind="file", lines=iter("abcdef"), total=6)
    with keeping(out, source, made=MADE, resume=False, overwrite=False, telling=False) as keeper:
        texts = iter(keeper.texts)
        asked = list(islice(texts, 2))
        for now, counted in ((9.0, 2), (9.5, 2), (10.0, 4), (11.0, 5)):
            clock[0] = now
            for text in asked:
                keeper.take_at(text.upper(), fresh=True)
            asked = [next(texts)]
            assert json.loads(record.read_text())["lines"] == counted
        keeper.take_at("F", fresh=True)
    assert out.read_text() == "A\nB\nC\nD\nE\nF\n"


def test_how_fast_is_told_of_the_lines_that_are_made_now(tmp_path, monkeypatch, capsys):
    """Two of three were there before, of which one is made again; each takes two seconds."""
    out, clock = tmp_path / "out.txt", [0.0]
    with pytest.raises(KeyboardInterrupt):
        shout(out, meanwhile=stop)
    monkeypatch.setattr(taken.time, "monotonic", lambda: clock[0])
    source = Given(kind="file", lines=iter(TEXTS), total=3)
    with keeping(out, source, made=MADE, resume=True, overwrite=False, telling=True) as keeper:
        for text in keeper.texts:
            clock[0] += 2.0
            keeper.take_at(text.upper(), fresh=True)
    assert out.read_text() == SHOUTED
    assert capsys.readouterr().err.endswith("\n3 of 3 lines, 1 of them now, in 4.0 s, 0.2 a second\n")


CHANGED = {
    "a line is gone": "BLUE\n",
    "a line is another": "RED\nBLUR\n",
    "a line came before them": "MY OWN\nRED\nBLUE\n",
    "the last has no end": "RED\nBLUE",
    "lines are joined": "RED BLUE\n",
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=list(CHANGED))
def test_a_file_that_was_changed_is_refused_and_left(changed, tmp_path):
    out, record = tmp_path / "out.txt", tmp_path / "out.txt.progress"
    with pytest.raises(KeyboardInterrupt):
        shout(out, meanwhile=stop)
    out.write_text(changed)
    before = record.read_bytes()
    with pytest.raises(GlassformerError, match=r"out\.txt' was changed .*--overwrite to begin anew$"):
        shout(out)
    assert out.read_text() == changed and record.read_bytes() == before


def test_lines_that_came_behind_are_cut_off_with_a_word(tmp_path, capsys):
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt):
        shout(out, meanwhile=stop)
    with out.open("a") as file:
        file.write("my own\nlines\nand half a lin")
    with pytest.raises(GlassformerError, match="holds 2 lines that answer other texts"):
        shout(out, ["red", "black", "gold"])
    assert out.read_text() == "RED\nBLUE\nmy own\nlines\nand half a lin"
    capsys.readouterr()
    shout(out, [*TEXTS, "tin"])
    told = capsys.readouterr().err
    assert "2 lines are done" in told and "3 lines" in told and "made anew" in told
    assert out.read_text() == f"{SHOUTED}TIN\n" and list(tmp_path.iterdir()) == [out]


WRONG = {
    "a list": [],
    "nothing made them": {"made": None},
    "a list made them": {"made": []},
    "half a line": {"lines": 1.5},
    "fewer than none": {"lines": -1},
    "more than any": {"lines": 10**30},
    "batches of later texts": {"again": 3},
    "a digest of nothing": {"inputs": None},
    "a digest of no lines": {"answers": 7},
    "less than no bytes": {"size": -1},
    "refused by name": {"refused": ["one"]},
    "refused all": {"refused": 2},
    "a name too many": {"more": 1},
}


@pytest.mark.usefixtures("attributed")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
def test_a_record_that_is_none_is_a_sentence(wrong, tmp_path, capsys):
    """Beside the file it is told that it is damaged; with the file it tells nothing."""
    out, record = tmp_path / "out.txt", tmp_path / "out.txt.progress"
    with pytest.raises(KeyboardInterrupt):
        shout(out, meanwhile=stop)
    progress = json.loads(record.read_text())
    record.write_text(json.dumps({**progress, **wrong} if isinstance(wrong, dict) else wrong))
    with pytest.raises(GlassformerError, match="is damaged; add --overwrite"):
        shout(out)
    record.write_text(json.dumps(progress))
    shout(out)
    progress = json.loads(os.getxattr(out, ATTRIBUTE))
    wrong = {**progress, "lines": 2, **wrong} if isinstance(wrong, dict) else wrong
    os.setxattr(out, ATTRIBUTE, json.dumps(wrong).encode())
    capsys.readouterr()
    shout(out)
    assert "nothing tells what made them" in capsys.readouterr().err and out.read_text() == SHOUTED
