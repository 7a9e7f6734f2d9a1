"""Commands that process lines: one line out per line in, in order, whatever the other lines are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.tasks.folders import TEXTS

pytestmark = pytest.mark.usefixtures("quiet")
GENERATING = ("translate", "summarize", "restore", "generate")
SHORT = ("--num-beams", 1, "--max-new-tokens", 3)
LONG = b"a " * 100
# lines per command: one that works, and some that are rejected
GOOD = {"fill": b"a [MASK]", "answer": b"where?\tthe cat sat on the mat"}
BAD = {
    "translate": (b"x" * 20_000,),
    "summarize": (b"x" * 1_100_000,),  # too long for a line
    "restore": (b"red \xed\xa0\x80",),  # a surrogate
    "generate": (b"x" * 20_000,),
    "classify": (LONG, b"a " * (1 << 19) + b"a"),
    "embed": (LONG,),
    "similar": (LONG,),
    "fill": (b"[MASK] " * 100, b"a cat"),
    "answer": (b"where?", LONG + b"\ta cat", b"where?\t"),
}
BLANK = (b"", b" \t \xe3\x80\x80")
ODD = (
    b"red \x00",
    b"\x01\x07red\x1b[31m\x08\x7f\x0b\x0c\x1c\x1d\xc2\x85",
    "red\u2028blue\u2029".encode(),
    "\u202e\ufeffred\u200b".encode(),
    b"</s> <pad> <s> <gap> <unk> <|endoftext|>",
    "바다 ☃ zzz 🌊".encode(),
)


@pytest.fixture(params=BAD)
def command(request, folders, tmp_path) -> list[Any]:
    """A command with its model and options."""
    name = request.param
    (tmp_path / "pool").write_text("\na cat\n \na dog\n")
    pool = ["--corpus", tmp_path / "pool"] if name == "similar" else []
    return [name, folders[name], *pool, *(SHORT if name in GENERATING else ())]


def rows(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def bad_lines(err: str) -> list[int]:
    return [int(number) for number in re.findall(r"^warning: line (\d+)", err, re.MULTILINE)]


def test_arguments_file_and_stdin_are_equivalent(run, stdin, command, tmp_path):
    name = command[0]
    texts = TEXTS[: 1 if name == "embed" else 2]  # the last digits of vectors depend on the batch
    texts = [GOOD[name].decode()] * 2 if name in GOOD else texts
    texts += [] if name == "generate" else [""]  # for which an empty argument is a prompt
    content = "".join(f"{text}\n" for text in texts).encode()
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    expected = run(*command, *texts)
    assert expected.code == 0 and expected.out.count("\n") == len(texts)
    assert (
        run(*command, "--file", tmp_path / "in.txt", "--batch-tokens", 40, "--threads", 1).out == expected.out
    )
    for terminal in (False, True):
        stdin(content, terminal=terminal)
        assert run(*command).out == expected.out


def test_bad_blank_and_odd_lines_do_not_affect_the_others(run, stdin, command, tmp_path):
    name = command[0]
    good, bad = GOOD.get(name, b"a cat"), (*BAD[name], b"a \xff dog")
    others = [*bad, *BLANK, *(ODD if name in GENERATING else ())]
    lines = [good, *(line for other in others for line in (other, good))]
    (tmp_path / "in.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    numbers = [2 * n + 2 for n in range(len(bad))]
    alone, *_ = run(*command, good.decode(), good.decode()).out.splitlines()
    stdin((tmp_path / "in.txt").read_bytes())
    for done in (run(*command, "--file", tmp_path / "in.txt"), run(*command)):
        found = done.out.removesuffix("\n").split("\n")
        assert found[::2] == [alone] * (len(others) + 1)
        assert not any(found[1 : 2 * (len(bad) + len(BLANK)) : 2]) and bad_lines(done.err) == numbers
        assert done.code == 2 and done.err.splitlines()[-1].startswith(f"error: {len(bad)} lines")
    values = rows(run(*command, "--file", tmp_path / "in.txt", "--json").out)
    assert [n for n, row in enumerate(values, 1) if "error" in row] == numbers
    blank = values[2 * len(bad) + 1]
    assert blank.keys() == values[0].keys() and not blank.get("text")
    if name in GENERATING:
        run(*command, "--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt")
        assert (tmp_path / "out.txt").read_bytes() == done.out.encode()


def test_warnings_are_limited(run, folders, tmp_path):
    (tmp_path / "many.txt").write_bytes(b"\xff\n" * 12)
    done = run("translate", folders["translate"], "--file", tmp_path / "many.txt")
    assert done.out == "\n" * 12 and done.err.count("warning: ") == 10


@pytest.mark.parametrize("command", [["translate", "pocket", "--to", "de"], ["classify", "pocket-digits"]])
def test_empty_input_prints_a_warning_and_succeeds(run, stdin, command, tmp_path):
    stdin(b"")
    done = run(*command)
    assert (done.code, done.out) == (0, "") and done.err.startswith("warning: ")
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf")
    assert run(*command, "--file", tmp_path / "in.txt") == done


def test_batch_and_the_other_commands_accept_the_same_names_for_files(run, folders, tmp_path):
    (tmp_path / "in.txt").write_text("good film\nbad film\n")
    for source, target in (("--file", "--out"), ("--input", "--output")):
        paths = (source, tmp_path / "in.txt", target, tmp_path / f"{target}.txt")
        assert run("classify", folders["classify"], *paths).code == 0
        assert "no-model" in run("batch", "classify", "no-model", *paths).error()
    assert (tmp_path / "--out.txt").read_bytes() == (tmp_path / "--output.txt").read_bytes() != b""
