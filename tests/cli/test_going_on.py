"""Runs that are stopped, and gone on with: nothing is lost, and only the same is gone on with."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import glassformer
from glassformer.cli import made
from glassformer.cli.given import Given
from glassformer.cli.kept import keeping
from glassformer.cli.made import content_of
from glassformer.tasks import writing
from tests.forked import Forked, command
from tests.tasks.reversing import ROWS, reverser, speaker


@pytest.fixture(scope="module")
def folder():
    return reverser()


def stopped(words: list[str], out: Path, how: signal.Signals, grown: int = 1) -> tuple[int, str]:
    """Run in a process of its own until the file has grown by so many bytes: exit code, what it said."""
    before = out.stat().st_size if out.exists() else 0
    child = Forked(command(*words, "--out", out, "--resume"), out.with_name(f"child {next(CHILDREN)}"))
    child.until(lambda: out.exists() and out.stat().st_size >= before + grown)
    child.send_signal(how)
    return child.wait(), child.err


CHILDREN = count()


@pytest.fixture
def lines(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{line}\n" for line in islice(cycle([*ROWS, ""]), 2000)))
    return source


def test_stopped_and_gone_on_with_is_what_an_unbroken_run_gives(run, folder, lines, tmp_path):
    """Stopped by Ctrl-C, by SIGTERM and by SIGKILL, each time with half a line lost to the power besides."""
    out = tmp_path / "out.txt"
    words = ["translate", str(folder), "--file", str(lines), "--num-beams", "1", "--batch-tokens", "256"]
    whole = run(*words, "--out", tmp_path / "whole.txt")
    assert whole.code == 0 and "2,000 of 2,000 lines" in whole.err
    expected = (tmp_path / "whole.txt").read_text()
    assert expected.count("\n") == 2000
    for how, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, 143)):
        before = out.stat().st_size if out.exists() else 0
        ended, told = stopped(words, out, how)
        assert ended == code and "Traceback" not in told
        assert ("--resume goes on" in told) == (how is not signal.SIGKILL)
        done = out.read_text()
        assert done.endswith("\n") and expected.startswith(done) and before < len(done) < len(expected)
        with out.open("ab") as file:
            file.write("half a lin€".encode()[:-1])
    assert run(*words, "--out", out, "--resume").code == 0
    assert out.read_text() == expected and not list(tmp_path.glob("*.progress"))
    again = run(*words, "--out", out, "--resume")
    assert again.code == 0 and " lines in " not in again.err and out.read_text() == expected
    assert run(*words, "--out", lines, "--overwrite").code == 2 and lines.stat().st_size
    assert run(*words, "--out", out).code == 2  # what is there is not written over unasked
    assert run(*words, "--out", out, "--overwrite").code == 0
    assert out.read_text() == expected


def test_lines_that_were_refused_are_told_by_who_goes_on(run, folder, tmp_path):
    """The first by the model, the second as no text; a file that has all its lines tells them too."""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    rows = "".join(f"{row}\n" for row in islice(cycle(ROWS), 2000)).encode()
    source.write_bytes(b"x" * 20_000 + b"\n\xff\n" + rows)
    words = ["translate", str(folder), "--file", str(source), "--num-beams", "1", "--batch-tokens", "256"]
    ended, told = stopped(words, out, signal.SIGTERM, grown=2000)
    assert ended == 143 and told.count("is left empty") == 2
    for _ in range(2):  # goes on, and finds nothing left to do
        done = run(*words, "--out", out, "--resume")
        assert done.code == 2 and "error: 2 lines were left empty" in done.err
        first, second = (done.err.index(f"note: line {told} left empty") for told in ("1 was", "2 is"))
        assert first < second
        assert out.read_text().count("\n") == 2002 and out.read_text().startswith("\n\n")
    assert run(*words, "--out", out).code == 2  # what is there is not written over unasked
    source.write_bytes(b"x\nx\n" + rows)
    mended = run(*words, "--out", out, "--resume")
    assert mended.code == 2 and "answer other texts" in mended.err
    assert run(*words, "--out", out, "--overwrite").code == 0 and not list(tmp_path.glob("*.progress"))


def test_from_where_batches_began_every_bit_is_the_same(folder):
    """The lowest bits of a score depend on the batch, so they tell whether batches are filled alike."""
    bundle = glassformer.load(folder)
    texts = list(islice(cycle([*ROWS[:50], "", "red. " * 60]), 700))
    whole = writing.translate(bundle, texts, details=True, batch_tokens=512)
    fresh = [n for n, passage in enumerate(whole) if passage.fresh]
    assert fresh[0] == 0 and 4 < len(fresh) < 200
    for n in (fresh[1], fresh[len(fresh) // 2], fresh[-1]):
        again = writing.translate(bundle, texts[n:], details=True, batch_tokens=512)
        assert [(one.text, one.score, one.fresh) for one in again] == [
            (one.text, one.score, one.fresh) for one in whole[n:]
        ]


@pytest.fixture(scope="module")
def begun(folder, tmp_path_factory):
    """A file of answers whose run was stopped, with the options that made it."""
    place = tmp_path_factory.mktemp("begun")
    source = place / "in.txt"
    source.write_text("".join(f"{row}\n" for row in islice(cycle(ROWS), 3000)))
    words = ["--file", str(source), "--num-beams", "1", "--batch-tokens", "256"]
    stopped(["translate", str(folder), *words], place / "out.txt", signal.SIGINT, grown=2000)
    assert json.loads((place / "out.txt.progress").read_text())["lines"] > 20
    return place


@pytest.fixture
def stopped_run(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "run")
    return tmp_path / "run"


OTHERS = {
    "settings": (["--num-beams", "3"], "begun with --num-beams 1, and now with --num-beams 3"),
    "a further setting": (["--length-penalty", "2"], "begun without --length-penalty"),
    "an option of the verb": (["--split", "always"], "begun without --split, and now with --split always"),
    "the shape of a line": (["--json"], "begun without --json, and now with --json"),
    "precision": (["--dtype", "int8"], "begun with --dtype float32, and now with --dtype int8"),
}


@pytest.mark.parametrize(("words", "sentence"), OTHERS.values(), ids=list(OTHERS))
def test_other_settings_do_not_go_on(run, folder, stopped_run, words, sentence):
    out = stopped_run / "out.txt"
    before = out.read_bytes()
    settings = [] if "--num-beams" in words else ["--num-beams", "1"]
    done = run(
        "translate", folder, "--file", stopped_run / "in.txt", *settings, *words, "--out", out, "--resume"
    )
    assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1
    assert out.read_bytes() == before


def test_another_verb_model_or_text_does_not_go_on(run, folder, stopped_run, tmp_path):
    out, source = stopped_run / "out.txt", stopped_run / "in.txt"
    before = out.read_bytes()
    words = ["--num-beams", "1", "--out", out, "--resume"]
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    weights = other / "model.safetensors"
    held = bytearray(weights.read_bytes())
    held[-1] ^= 1
    weights.write_bytes(held)
    (other / "checksums.json").unlink()
    changed, shorter = tmp_path / "changed.txt", tmp_path / "shorter.txt"
    changed.write_text(source.read_text().replace("red", "gold", 1))
    shorter.write_text("".join(f"{row}\n" for row in ROWS[:10]))
    for verb, model, file, sentence in (
        ("generate", folder, source, "with verb translate, and now with verb generate"),
        ("translate", other, source, "begun by another model"),
        ("translate", folder, changed, "answer other texts"),
        ("translate", folder, shorter, "answer other texts"),
    ):
        done = run(verb, model, "--file", file, *words)
        assert done.code == 2 and sentence in done.err and done.err.count("\n") == 1, done.err
        assert out.read_bytes() == before
    moved = tmp_path / "moved"  # the same model in another place, with more texts after those answered
    shutil.copytree(folder, moved)
    with source.open("a") as file:
        file.write("blue gold\n")
    assert run("translate", moved, "--file", source, *words).code == 0
    assert out.read_bytes().startswith(before) and out.read_bytes().count(b"\n") == 3001


def test_a_model_is_known_by_its_content(tmp_path, monkeypatch):
    """A large file by blocks all over it, so that no change as wide as the gaps between them is missed."""
    monkeypatch.setattr(made, "BLOCK", 16)
    monkeypatch.setattr(made, "BLOCKS", 8)
    large, small = tmp_path / "model.safetensors", tmp_path / "vocab.txt"
    large.write_bytes(bytes(2000))
    small.write_text("red blue")
    known = content_of(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "copy")
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "answers.json").write_text("mine")
    assert known == content_of(tmp_path / "copy") == content_of(tmp_path, but=tmp_path / "answers.json")
    for at in range(0, 1700, 100):
        large.write_bytes(bytes(at) + b"x" * 300 + bytes(1700 - at))
        assert content_of(tmp_path, but=tmp_path / "answers.json") != known
    large.write_bytes(bytes(2001))
    assert content_of(tmp_path, but=tmp_path / "answers.json") != known
    large.write_bytes(bytes(2000))
    small.write_text("red gold")
    assert content_of(tmp_path, but=tmp_path / "answers.json") != known


def test_lines_of_unknown_making_are_not_gone_on_with(run, folder, stopped_run):
    out = stopped_run / "out.txt"
    words = ["translate", folder, "--file", stopped_run / "in.txt", "--num-beams", "1", "--out", out]
    assert "add --resume to go on" in run(*words).err
    assert "give one of them" in run(*words, "--resume", "--overwrite").err
    progress = stopped_run / "out.txt.progress"
    kept = progress.read_text()
    progress.write_text(kept[:40])
    assert "is damaged" in run(*words, "--resume").err
    progress.unlink()
    assert "no 'out.txt.progress' beside it" in run(*words, "--resume").err
    assert "add --overwrite to begin anew" in run(*words).err
    progress.write_text(kept)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:2]))
    assert "was changed since it was written" in run(*words, "--resume").err


def attributed(path: Path) -> None:
    """Skip where the file system keeps no attributes."""
    try:
        os.setxattr(path, "user.tried", b"")
    except (AttributeError, OSError):
        pytest.skip("files have no attributes here")


def test_a_finished_file_knows_what_made_it(run, folder, tmp_path):
    """It stays as it is, is refused to others, and goes on with texts that come after its own."""
    attributed(tmp_path)
    source, out, other = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "other.txt"
    source.write_text("".join(f"{row}\n" for row in ROWS[:20]))
    other.write_text("".join(f"{row}\n" for row in ROWS[20:40]))
    words = ["translate", folder, "--out", out, "--resume"]
    greedy = ["--num-beams", "1"]
    assert run(*words, *greedy, "--file", source).code == 0
    done, when = out.read_bytes(), out.stat().st_mtime_ns
    for file, settings, code, told in (
        (source, greedy, 0, "has a line for each of the 20 texts already; nothing is left to do"),
        (other, greedy, 2, "holds 20 lines that answer other texts than these"),
        (source, [], 2, "begun with --num-beams 1, and now without --num-beams"),
        (source, [*greedy, "--json"], 2, "begun without --json, and now with --json"),
    ):
        again = run(*words, *settings, "--file", file)
        assert again.code == code and told in again.err and again.err.count("\n") == 1
        assert out.read_bytes() == done and out.stat().st_mtime_ns == when
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.txt", "other.txt"}
    source.write_bytes(source.read_bytes() + other.read_bytes())
    assert run(*words, *greedy, "--file", source).code == 0
    alone = run("translate", folder, *greedy, "--file", source)
    assert out.read_text() == alone.out and out.read_bytes().startswith(done)


def test_of_lines_whose_making_is_unknown_nothing_is_claimed(run, folder, tmp_path):
    """Written over or copied, they are left as they are, to the last letter without a line end."""
    source, out, copied = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "copied.txt"
    source.write_text("red\nblue\n")
    words = ["translate", folder, "--file", source, "--num-beams", "1", "--resume", "--out"]
    assert run(*words, out).code == 0
    shutil.copyfile(out, copied)
    out.write_text("my own\nlines\n")
    for path in (out, copied):
        before = path.read_bytes()
        for _ in range(2):
            done = run(*words, path)
            assert done.code == 0 and "nothing tells what made them; they stay as they are" in done.err
        assert path.read_bytes() == before
    for mine, code, told in (
        ("my own\nlines", 0, "nothing tells what made them"),
        ("my own\nlines\nand one more", 2, "no 'out.txt.progress' beside it"),
    ):
        out.write_text(mine)
        done = run(*words, out)
        assert done.code == code and told in done.err and out.read_text() == mine


def test_one_run_at_a_time_writes_to_a_file(run, folder, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    out = tmp_path / "out.txt"
    with out.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run("translate", folder, "red", "--out", out)
    assert done.code == 2 and "another run is writing" in done.err and not out.read_bytes()


def test_draws_begin_anew_and_say_so(run, tmp_path):
    """Where the first text is among those that are answered again, they are those of an unbroken run."""
    folder = speaker(tmp_path / "model", max_len=64)
    source, whole = tmp_path / "in.txt", tmp_path / "whole.txt"
    source.write_text("the\nsea\n" * 600)
    words = ["generate", folder, "--do-sample", "--seed", 3, "--max-new-tokens", 4, "--batch-tokens", 40]
    words += ["--file", source]
    assert run(*words, "--out", whole).code == 0
    for early, grown in ((True, 500), (False, whole.stat().st_size * 4 // 5)):
        out = tmp_path / f"{grown}.txt"
        stopped([str(word) for word in words], out, signal.SIGINT, grown=grown)
        assert early == (json.loads(Path(f"{out}.progress").read_text())["again"] == 0)
        done = run(*words, "--out", out, "--resume")
        assert done.code == 0 and out.read_text().count("\n") == 1200
        assert ("the draws of --seed begin anew" in done.err) != early
        assert not early or out.read_text() == whole.read_text()


def test_a_reader_that_goes_away_ends_it_quietly(folder, lines, tmp_path):
    talker = speaker(tmp_path / "model", "llama")
    for words in (
        f"translate {folder} --file {lines} --num-beams 1 --batch-tokens 256",
        f"translate {folder} --file {lines} --num-beams 1 --batch-tokens 256 --json",
        f"generate {talker} the --max-new-tokens 90000 --min-new-tokens 90000",
    ):
        program = f"{sys.executable} -m glassformer {words} | head -c 20 > /dev/null; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=100)
        assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_a_sentence(folder, run):
    words = ["translate", str(folder), "red"]
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "glassformer", *words]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True)
    kept = run(*words, "--out", "/dev/full")
    for code, told in ((done.returncode, done.stderr), (kept.code, kept.err)):
        assert code == 2 and "No space left" in told and told.count("\n") == 1


TEXTS = ["red", "blue", "", "gold", "green"]
KEEPING = ("answered.py", "kept.py", "progress.py", "taken.py")


def shout(out: Path) -> None:
    """A verb without a model: every text in capitals, batches of two."""
    source = Given(kind="file", lines=iter(TEXTS), total=len(TEXTS))
    with keeping(out, source, made={"verb": "shout"}, resume=True, overwrite=False, telling=False) as keeper:
        first = keeper.texts.answered
        for number, text in enumerate(keeper.texts, first):
            keeper.take_at(text.upper(), fresh=number % 2 == 0)


def interrupted(at: int, act: Callable[[], None]) -> bool:
    """Whether Ctrl-C came before the end: it comes at the so-manieth instruction of what keeps lines."""
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        return trace(frame, event, _) if frame.f_code.co_filename.endswith(KEEPING) else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.collect()  # closes the file, as the end of the process would
    return False


def test_ctrl_c_at_any_instruction_is_gone_on_from(tmp_path, capsys, monkeypatch):
    """Tried at every one, a third of them with a second Ctrl-C in the next run."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    gc.freeze()  # what is there already need not be gone through a thousand times
    expected = "".join(f"{text.upper()}\n" for text in TEXTS)
    for at in count(1):
        out = tmp_path / f"{at}.txt"
        run = partial(shout, out)
        cut = interrupted(at, run)
        if at % 3 == 0:
            interrupted(at // 2 + 40, run)
        run()
        assert out.read_text() == expected, at
        assert not out.with_name(f"{out.name}.progress").exists(), at
        if not cut:
            break
    gc.unfreeze()
    assert at > 500
