"""The verbs that write, from the command line: texts in, a line out for each, in order, whatever happens."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import glassformer
from glassformer.cli.given import given
from glassformer.tasks import writing
from tests.tasks.reversing import ROWS, reverser, speaker


@pytest.fixture(scope="module")
def folder():
    return reverser()


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return speaker(tmp_path_factory.mktemp("speaker") / "model", max_len=64)


@pytest.fixture
def typed(monkeypatch):
    """Put bytes on standard input."""

    def put(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return put


def test_arguments_a_file_and_standard_input_are_one(run, typed, folder, tmp_path):
    texts = ["red blue", "", "gold green red", "   ", "한국어 🌊"]
    expected = glassformer.load(folder).translate(texts)
    content = "\n".join(texts).encode() + b"\n"
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    typed(content)
    answers = [
        run("translate", folder, *texts),
        run("translate", folder, "--file", tmp_path / "in.txt"),
        run("translate", folder, "--threads", 1, "--device", "cpu", "--dtype", "float32"),
    ]
    for done in answers:
        assert done.code == 0, done.err
        assert done.out.split("\n") == [*expected, ""]
    assert expected[1] == expected[3] == ""


def test_what_is_told_on_the_way_counts_every_line_that_is_written(run, folder, tmp_path, monkeypatch):
    """Also those that wait for the first, which comes last here, for the longest lines are written first."""
    monkeypatch.setattr("glassformer.cli.taken.TOLD_EVERY", 0.0)
    lines = ["red", "", *["red blue gold green " * n for n in range(1, 12)]]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ("--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt", "--batch-tokens", 400)
    done = run("translate", folder, *words, "--split", "never")
    assert done.code == 0, done.err
    told = [int(line.split(" of ")[0]) for line in done.err.splitlines() if " lines in " in line]
    assert told == sorted(told) and len(set(told)) > 4  # batch by batch
    first = told.index(len(lines))  # all are written, and then taken
    assert told[first:] == [len(lines)] * (len(lines) + 2)


def test_a_line_that_cannot_be_answered_is_left_empty(run, folder, typed, tmp_path):
    """So that the lines of both files stay beside each other; it is told, and an error at the end."""
    lines = [ROWS[0].encode(), b"x" * 20_000, ROWS[1].encode(), b"blue \xff", ROWS[2].encode()]
    (tmp_path / "in.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    sound = run("translate", folder, *ROWS[:3]).out.splitlines()
    expected = [sound[0], "", sound[1], "", sound[2]]
    words = ("translate", folder)
    answered = run(*words, "--file", tmp_path / "in.txt")
    kept = run(*words, "--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt")
    typed((tmp_path / "in.txt").read_bytes())
    for done in (answered, kept, run(*words)):
        assert done.code == 2
        assert "note: line 2 is left empty: it holds 20,000 letters with no space between" in done.err
        assert "note: line 4 is left empty: it is not UTF-8 (byte 0xff at byte 6)" in done.err
        assert done.err.endswith("error: 2 lines were left empty, for want of an answer\n")
    assert answered.out.splitlines() == expected == (tmp_path / "out.txt").read_text().splitlines()
    assert json.loads((tmp_path / "out.txt.progress").read_text())["refused"] == [2, 4]  # for --resume
    told = [
        json.loads(line) for line in run(*words, "--json", "--file", tmp_path / "in.txt").out.splitlines()
    ]
    assert [one.get("text", "") for one in told] == expected
    assert [name for one in told for name in one if name == "error"] == ["error"] * 2
    many = tmp_path / "many.txt"
    many.write_bytes(b"\xff\n" * 12)
    done = run(*words, "--file", many)
    assert done.out == "\n" * 12 and done.err.count("note: ") == 10
    assert done.err.endswith(
        "error: 12 lines were left empty, for want of an answer; the first 10 are told above\n"
    )


def test_json_tells_scores_and_seconds(run, folder):
    done = run("translate", folder, *ROWS[:3], "--json", "--num-beams", 4, "--num-return-sequences", 2)
    told = [json.loads(line) for line in done.out.splitlines()]
    passages = writing.translate(
        glassformer.load(folder), ROWS[:3], num_beams=4, num_return_sequences=2, details=True
    )
    for one, passage in zip(told, passages, strict=True):
        assert (one["text"], one["tokens"], one["ended"]) == (passage.text, passage.tokens, passage.ended)
        assert one["score"] == pytest.approx(passage.score, abs=1e-5) and one["seconds"] > 0
        assert [other["text"] for other in one["others"]] == [other.text for other in passage.others]


def test_generate_shows_pieces_and_says_when_the_limit_ended_it(run, talker, typed):
    expected = glassformer.load(talker).generate(["the old", "바다"], max_new_tokens=9)
    streamed = run("generate", talker, "the old", "--max-new-tokens", 9)
    assert (streamed.code, streamed.out) == (0, f"{expected[0]}\n")
    assert "stopped at the limit" in streamed.err
    typed("the old\n바다\n".encode())
    many = run("generate", talker, "--max-new-tokens", 9, "--json")
    assert [json.loads(line)["text"] for line in many.out.splitlines()] == expected
    echoed = run("generate", talker, "the old", "바다", "--max-new-tokens", 9, "--echo")
    assert [
        line[: len(prompt)] for line, prompt in zip(echoed.out.splitlines(), ("the old", "바다"), strict=True)
    ] == ["the old", "바다"]


def test_ctrl_c_ends_a_stream_quietly(tmp_path):
    """Also where a program ends and leaves a stream behind: no thread is cut off in mid-product."""
    folder = speaker(tmp_path / "model", "llama")
    words = ["generate", str(folder), "the", "--max-new-tokens", "90000", "--min-new-tokens", "90000"]
    child = subprocess.Popen(
        [sys.executable, "-m", "glassformer", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert (child.returncode, told) == (130, b"")
    program = (
        f"import glassformer; kept = glassformer.load({str(folder)!r}).stream('the', max_new_tokens=90000, "
        "min_new_tokens=90000); print(next(kept))"
    )
    left = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (left.returncode, left.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--num-return-sequences", "2"], "add --json"),
        (["--to", "xx"], "no language 'xx'"),
        (["--resume"], "--out"),
        (["--device", "moon"], "no device 'moon'"),
        (["--dtype", "int3"], "dtype 'int3' is not known"),
        (["--out", "/no/such/place"], "cannot be written"),
        (["--file", "/no/such/file"], "texts are given as arguments and with --file"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_a_sentence(run, folder, words, sentence):
    done = run("translate", folder, "red", *words)
    assert done.code == 2 and not done.out
    assert sentence in done.err and done.err.startswith("error: ") and done.err.count("\n") == 1


def test_a_wrong_model_for_the_verb_is_a_sentence(run, folder, talker):
    for verb, model, sentence in (
        ("restore", folder, "trained to translate, not to restore"),
        ("translate", talker, "goes on from a prompt"),
        ("summarize", talker, "goes on from a prompt"),
        ("translate", folder / "nowhere", "folder not found"),
    ):
        done = run(verb, model, "red")
        assert done.code == 2 and sentence in done.err
    done = run("generate", talker, "sea " * 100)
    assert done.code == 2 and "reads at most 64" in done.err


def test_a_pipe_is_read_as_a_file_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"red\n\nblue",))
    writer.start()
    assert list(given([], pipe).lines) == ["red", "", "blue"]
    writer.join()
